"""Report streams: what ends them and what follows, pure, and on both shells against a server of a few lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from contextlib import nullcontext
from typing import Any

import grpc
import grpc.aio
import pytest

from lowwater import Refusal, Settings, errors
from lowwater._async.reporter import Reporter as AioReporter
from lowwater._async.watcher import Watcher as AioWatcher
from lowwater._core.attempts import error_of_call
from lowwater._core.backoff import CAP
from lowwater._core.call import Call, Stubs
from lowwater._core.columns import Column
from lowwater._core.exchange import Exchange
from lowwater._core.fold import Fold
from lowwater._core.lease import LeaseState
from lowwater._core.reports import BEAT, Due, Reporting
from lowwater._core.router import Router
from lowwater._core.surroundings import Surroundings
from lowwater._drive.tasks.connection import Connection as AioConnection
from lowwater._drive.tasks.streams import _Running as RunningTask
from lowwater._drive.threads.connection import Connection
from lowwater._drive.threads.streams import _Running
from lowwater._pb.lowwater.v1 import types_pb2, workers_pb2
from lowwater._sync.reporter import Reporter
from lowwater._sync.watcher import Watcher
from lowwater_authority.authority import Authority
from lowwater_authority.ops.observer import Observer
from tests.kit.client import OfflineClient
from tests.kit.clock import Clock
from tests.kit.memory_journal import MemoryDisk, MemoryJournal

CERTAIN = Surroundings(random=lambda: 1.0)
"""Delays without jitter."""

Failing = Callable[[bool], Settings]


@pytest.fixture
def failing() -> Iterator[Failing]:
    """A server that lets every report stream in, acknowledges if told to, and fails it at once."""
    server = grpc.server(futures.ThreadPoolExecutor(4))

    def serve(acknowledging: bool) -> Settings:
        def report(requests: Iterator[workers_pb2.ReportRequest], context: Any) -> Iterator[workers_pb2.ReportResponse]:
            next(requests)
            yield workers_pb2.ReportResponse(opened=workers_pb2.ReportOpened(server_token="t"))
            if acknowledging:
                yield workers_pb2.ReportResponse(ack=workers_pb2.ReportAck(number=0))
            context.abort(grpc.StatusCode.INTERNAL, "out of order")

        handler = grpc.stream_stream_rpc_method_handler(
            report,
            request_deserializer=workers_pb2.ReportRequest.FromString,
            response_serializer=workers_pb2.ReportResponse.SerializeToString,
        )
        service = grpc.method_handlers_generic_handler("lowwater.v1.WorkerService", {"Report": handler})
        server.add_generic_rpc_handlers((service,))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        return Settings(address)

    yield serve
    server.stop(None).wait()


def on_threads(settings: Settings, streams: int) -> list[float]:
    """The delays after some streams."""
    connection = Connection(settings, CERTAIN)
    reporter = Reporter(connection, Watcher(connection))
    reporter.reporting.add(lease())
    reporter.reporting.tend()  # by hand
    stream = reporter.reporting.stream()
    delays = []
    for _ in range(streams):
        with pytest.raises(grpc.RpcError) as failure:
            reporter._stream(stream, _Running())
        delays.append(stream.ended(failure.value))
    connection.close()
    return delays


def on_asyncio(settings: Settings, streams: int) -> list[float]:
    """The delays after some streams."""

    async def run() -> list[float]:
        connection = AioConnection(settings, CERTAIN)
        reporter = AioReporter(connection, AioWatcher(connection))
        reporter.reporting.add(lease())
        reporter.reporting.tend()  # by hand
        stream = reporter.reporting.stream()
        delays = []
        for _ in range(streams):
            with pytest.raises(grpc.RpcError) as failure:
                await reporter._stream(stream, RunningTask())
            delays.append(stream.ended(failure.value))
        await connection.close()
        return delays

    return asyncio.run(run())


BOTH = pytest.mark.parametrize("shell", [on_threads, on_asyncio], ids=["threads", "asyncio"])


@BOTH
def test_streams_that_are_opened_and_fail_at_once_back_off(
    failing: Failing, shell: Callable[[Settings, int], list[float]]
) -> None:
    assert shell(failing(False), 8) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, CAP, CAP]


@BOTH
def test_an_acknowledgement_starts_the_backoff_over(
    failing: Failing, shell: Callable[[Settings, int], list[float]]
) -> None:
    assert shell(failing(True), 3) == [0.1, 0.1, 0.1]


async def test_what_grpc_makes_of_a_refusal_while_a_stream_is_written_to_opens_the_next_stream() -> None:
    """The refusal itself, of a report whose number has a gap, is lost on asyncio in about every second stream."""
    authority = Authority(MemoryJournal(MemoryDisk()), clock=lambda: 1, observer=Observer())
    await authority.recover()
    server = grpc.aio.server()
    authority.add_to(server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()

    async def with_a_gap(stream: int) -> AsyncIterator[workers_pb2.ReportRequest]:
        yield workers_pb2.ReportRequest(open=workers_pb2.ReportOpen(sender=bytes(16), stream=stream))
        for number in range(2, 2000):
            yield workers_pb2.ReportRequest(report=workers_pb2.Report(number=number))

    settings = Settings(address)
    one = Reporting(settings, CERTAIN, Router(settings.addresses, nullcontext())).stream()
    reasons = set()
    async with grpc.aio.insecure_channel(address) as channel:
        stubs = Stubs(channel)
        for stream in range(1, 200):
            one.open(address, "")
            with pytest.raises(grpc.RpcError) as failure:
                assert [one.take(response) async for response in stubs.workers.Report(with_a_gap(stream))]
            assert one.ended(failure.value) > 0
            assert one.failure is None
            reasons.add(error_of_call(failure.value, address).reason)
            if len(reasons) == 2:
                break
    assert reasons == {"INVALID_ARGUMENT", "UNAVAILABLE"}
    await server.stop(None)


async def test_a_stream_that_grpc_cancels_by_itself_is_one_that_failed(
    failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so when it cannot go on writing; the next stream follows with a delay, to whoever serves then."""
    connection = AioConnection(failing(True), CERTAIN)
    reporter = AioReporter(connection, AioWatcher(connection))
    reporter.reporting.add(lease())
    reporter.reporting.tend()  # by hand
    stream = reporter.reporting.stream()

    def fail(_: int) -> Due:
        raise OverflowError

    monkeypatch.setattr(stream, "due", fail)
    reasons, running = set(), RunningTask()
    for _ in range(100):
        with pytest.raises((grpc.RpcError, errors.Unavailable)) as failure:
            await reporter._stream(stream, running)
        assert stream.ended(failure.value) > 0.0
        reasons.add(type(failure.value))
        if errors.Unavailable in reasons:
            break
    assert errors.Unavailable in reasons
    assert running.call is None
    await connection.close()


# -- the state machine --------------------------------------------------------------------------------------------


def reporting(clock: Clock | None = None) -> Reporting:
    return OfflineClient("there:1", clock=clock).reporting


def lease(computation: str = "c", sequencer: int = 1) -> LeaseState:
    return LeaseState(computation, sequencer, Column(2, 0), reference=0)


class Unavailable(grpc.RpcError):
    """Nobody is there."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection refused"

    def trailing_metadata(self) -> tuple[()]:
        return ()


def test_refusals_are_logged_once_a_claim_and_forgotten_with_it(caplog: pytest.LogCaptureFixture) -> None:
    one = reporting()
    for computation in ("c", "d"):
        for sequencer in range(1, 51):
            state = lease(computation, sequencer)
            refused = [(computation, sequencer, Refusal("TOO_FAR_AHEAD", "m", (0,)))]
            one.add(state)
            one.log(refused)
            one.log(refused)
            one.remove(state)
            one.log(refused)
    assert len(caplog.records) == 100
    assert not any(each.claims for each in one._computations.values())


def test_a_stream_sends_its_opening_then_what_is_due_and_ends_with_the_next() -> None:
    clock = Clock()
    one, state = reporting(clock), lease()
    one.add(state)
    state.finish(None)
    one.staged(state)
    stream, opening = one.stream().open("there:1", "token")
    assert (opening.open.server_token, opening.open.sender, opening.open.stream) == ("token", bytes(16), 1)
    due = one.stream().due(stream)
    assert due is not None
    assert (list(due.messages), due.within) == ([], None), "not before the server has let it in"
    one.stream().take(workers_pb2.ReportResponse(opened=workers_pb2.ReportOpened(server_token="token")))
    due = one.stream().due(stream)
    assert due is not None
    assert [message.report.number for message in due.messages] == [1]
    assert one.stream().due(stream) == Due((), None), "not before it is acknowledged"
    one.stream().take(workers_pb2.ReportResponse(ack=workers_pb2.ReportAck(number=1)))
    due = one.stream().due(stream)
    assert due is not None
    assert due.within == pytest.approx(3.0), "the next beat"
    one.stream().ended(None)
    assert one.stream().due(stream) is None
    later, _ = one.stream().open("there:1", "token")
    assert one.stream().due(stream) is None
    assert one.stream().due(later) is not None


def test_a_state_that_was_durable_already_wakes_those_who_flush_it() -> None:
    one, state = reporting(), lease()
    stream, _ = one.stream().open("there:1", "")
    one.stream().take(workers_pb2.ReportResponse(opened=workers_pb2.ReportOpened(server_token="t")))
    one.add(state)

    def due() -> tuple[int, bool]:
        state.advance(Fold(1, ()), 1, now=0.0)
        one.staged(state)
        one.hurry(state)
        found = one.stream().due(stream)
        assert found is not None
        return len(found.messages), found.answered

    assert due() == (1, False)
    assert due() == (0, False), "it waits for the report that is on its way"
    one.stream().take(workers_pb2.ReportResponse(ack=workers_pb2.ReportAck(number=1)))
    assert not one.answered(state, 2)
    assert due() == (0, True)
    assert one.answered(state, 3)
    assert one.stream().due(stream) == Due((), BEAT), "once is enough"


def test_a_stream_that_lasted_starts_the_backoff_over() -> None:
    clock = Clock()
    one = reporting(clock)
    for delay in (0.1, 0.2, 0.4):
        one.stream().open("there:1", "")
        assert one.stream().ended(Unavailable()) == delay
    one.stream().open("there:1", "")
    one.stream().take(workers_pb2.ReportResponse(opened=workers_pb2.ReportOpened(server_token="t")))
    clock.now += CAP + 1
    assert one.stream().ended(Unavailable()) == 0.1


def test_a_flush_that_is_too_late_says_why_the_last_stream_ended() -> None:
    one, state = reporting(), lease()
    one.add(state)
    assert "acknowledged as durable within 2 s. It stays" in str(one.too_late(state, 2.0))
    one.stream().ended(Unavailable())
    assert "connection refused" in str(one.too_late(state, 2.0))


def test_an_authority_that_goes_away_says_for_how_long() -> None:
    one = reporting()
    assert one.stream().take(workers_pb2.ReportResponse(go_away=types_pb2.GoAway(retry_after_millis=700)))
    assert one.stream().ended(None) == pytest.approx(1.4), "between once and twice as long"


def test_another_deployment_ends_the_reporting(caplog: pytest.LogCaptureFixture) -> None:
    one, state = reporting(), lease()
    one.stream().open("there:1", "t")
    one.stream().ended(errors.ServerTokenMismatch("another one"))
    with pytest.raises(errors.ServerTokenMismatch):
        one.answered(state, 1)
    assert "stopped reporting" in caplog.text


def test_a_bug_does_not_end_the_reporting(caplog: pytest.LogCaptureFixture) -> None:
    one = reporting()
    assert one.stream().ended(ZeroDivisionError()) == 0.1
    assert one.failure is None
    assert "ZeroDivisionError" in caplog.text


# -- attempts -----------------------------------------------------------------------------------------------------


def exchange(clock: Clock, *, repeatable: bool) -> Exchange[None]:
    call: Call[None] = Call(lambda stubs: stubs.workers.Release, None, lambda _: None, "c", repeatable)
    return OfflineClient("there:1", clock=clock).ask(call, 1.0)


def test_a_repeatable_call_is_repeated_within_its_deadline() -> None:
    clock = Clock()
    attempts = exchange(clock, repeatable=True)
    assert attempts.next().options == {"timeout": 1.0, "wait_for_ready": False}
    delays = []
    for _ in range(3):
        delays.append(attempts.failed(Unavailable()))
        clock.now += delays[-1]
    assert delays == [0.1, 0.2, 0.4]
    assert attempts.next().options["timeout"] == pytest.approx(0.3)
    with pytest.raises(errors.Unavailable, match="there:1"):
        attempts.failed(Unavailable())
    clock.now += 1
    assert attempts.next().options["timeout"] > 0


def test_a_call_that_may_not_be_repeated_waits_for_the_channel_instead() -> None:
    attempts = exchange(Clock(), repeatable=False)
    assert attempts.next().options["wait_for_ready"]
    with pytest.raises(errors.Unavailable):
        attempts.failed(Unavailable())


class Unknown(Unavailable):
    """A server without the method."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNIMPLEMENTED

    def details(self) -> str:
        return "Method not found!"


def test_a_call_that_the_authority_does_not_know_says_what_to_upgrade() -> None:
    error = error_of_call(Unknown(), "there:1")
    assert error.reason == "UNIMPLEMENTED"
    assert str(error) == (
        "the authority at there:1 does not know this call: it is older than this client. Upgrade lowwater-authority first."
    )
