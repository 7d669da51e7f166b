"""The client's two threads against a server of a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from lowwater import Refusal
from lowwater._core.backoff import CAP, Backoff
from lowwater._core.columns import Column
from lowwater._core.lease import LeaseState
from lowwater._pb.lowwater.v1 import types_pb2, watermarks_pb2, workers_pb2
from lowwater._sync.connection import Connection, Settings
from lowwater._sync.reporter import Reporter
from lowwater._sync.watcher import Subscription, Watcher


@contextmanager
def failing(*, acknowledging: bool) -> Iterator[Reporter]:
    """A reporter at a server that lets every stream in, acknowledges if told to, and fails it at once."""

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
    server = grpc.server(futures.ThreadPoolExecutor(4))
    service = grpc.method_handlers_generic_handler("lowwater.v1.WorkerService", {"Report": handler})
    server.add_generic_rpc_handlers((service,))
    connection = Connection(Settings(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"))
    server.start()
    try:
        yield Reporter(connection, Watcher(connection))
    finally:
        connection.close()
        server.stop(None).wait()


def delays(reporter: Reporter, count: int) -> list[float]:
    backoff = Backoff(lambda: 1.0)
    return [reporter._report(backoff) for _ in range(count)]


def test_streams_that_are_opened_and_fail_at_once_back_off() -> None:
    with failing(acknowledging=False) as reporter:
        assert delays(reporter, 8) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, CAP, CAP]


def test_an_acknowledgement_starts_the_backoff_over() -> None:
    with failing(acknowledging=True) as reporter:
        assert delays(reporter, 3) == [0.1, 0.1, 0.1]


def test_refusals_are_logged_once_a_claim_and_forgotten_with_it(caplog: pytest.LogCaptureFixture) -> None:
    connection = Connection(Settings("localhost:1"))
    connection.closed.set()
    reporter = Reporter(connection, Watcher(connection))
    for computation in ("c", "d"):
        for sequencer in range(1, 51):
            lease = LeaseState(computation, sequencer, Column(2, 0), reference=0)
            refused = [(computation, sequencer, Refusal("TOO_FAR_AHEAD", "m", (0,)))]
            reporter.add(lease)
            reporter._log(refused)
            reporter._log(refused)
            reporter.remove(lease)
            reporter._log(refused)
    assert len(caplog.records) == 100
    assert not reporter._logged


def heard(incarnation: int) -> watermarks_pb2.WatchResponse:
    view = types_pb2.Watermark(computation="c", registered=True, incarnation=incarnation, low_micros=5)
    return watermarks_pb2.WatchResponse(server_token="t", watermarks=[view])


def confirmed(*subscriptions: Subscription) -> list[bool]:
    return [each.confirmed for each in subscriptions]


def test_a_subscription_uses_nothing_that_was_heard_while_nobody_followed_it() -> None:
    connection = Connection(Settings("localhost:1"))
    connection.closed.set()
    watcher = Watcher(connection)
    first = watcher.subscribe(["c"])
    watcher._covered = frozenset(["c"])
    assert confirmed(first) == [False]
    watcher._take(heard(1))
    assert confirmed(first) == [True]
    assert watcher.subscribe(["c"]).confirmed, "the stream is live"
    watcher._end_stream()
    later, other, every = watcher.subscribe(["c"]), watcher.subscribe(["d"]), watcher.subscribe([])
    assert confirmed(later, other, every) == [False] * 3
    watcher._covered = frozenset(["c"])
    watcher._take(heard(2))
    assert confirmed(later, other, every) == [True, False, False]
    assert watcher.ratchet.get("c").incarnation == 2
    other.close()
    every.close()
    assert not watcher._unconfirmed


def test_rule11_beats_of_an_authority_whose_journal_hangs_do_not_make_values_fresh() -> None:
    connection = Connection(Settings("localhost:1"))
    watcher = Watcher(connection)

    def heard_of(micros: int) -> float:
        watcher._take(watermarks_pb2.WatchResponse(server_token="t", time_micros=micros))
        return watcher._heard_at

    first = heard_of(1_000)
    assert heard_of(1_000) == first, "the append that began then is still on its way"
    assert heard_of(1_000) == first
    assert heard_of(1_001) > first
    connection.close()
