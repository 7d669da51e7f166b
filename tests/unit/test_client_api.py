"""The public names, and what using the client wrongly says."""

import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from datetime import UTC, datetime
from typing import Any

import grpc
import numpy as np
import pytest

import lowwater
from lowwater._core.claims import Grant
from lowwater._core.columns import Column
from lowwater._core.fold import Reading, fold_inputs
from lowwater._core.lease import LeaseState
from lowwater._core.settings import Settings
from lowwater._core.surroundings import Surroundings
from lowwater._drive import fork
from lowwater._drive.threads.connection import Connection
from lowwater._pb.lowwater.v1 import watermarks_pb2
from lowwater._sync.lease import Lease
from lowwater._sync.runtime import Runtime
from tests.kit.eventually import eventually

NAMES = """
Arrived Batches BelowMark Client ClientStatistics Closed Completeness Completion Computation Cycle EstimatedInput EventTime FinishRequired Gap Histogram History Hop Identity
IdentityMismatch IncarnationChanged InputReader InputVersion Inputs Interval IntervalView InvalidArgument JournalFailed LatenessBudget Layout LayoutConflict LayoutView Lease LimitReached LowwaterError MAX MIN Moved NewTask NotPrepared OldStream
OlderClaim OtherSlice Overloaded OwnedRanges PermissionDenied Promise RangeLoad RangeState RangeView Ranges Recovering Refusal RegionRefused
RegistrationConflict Remarks Rewound SecondAgent ServerTokenMismatch Settings ShardView Shards ShuttingDown Slice StaleAdoption StaleEpoch
StaleLease StaleSequencer StillRead TaskAttempt TaskConflict TaskGroup TaskLease TaskList TaskState TaskView Tasks Timeout TooFarAhead
Topology Unauthenticated Unavailable Unconfirmed UnknownComputation UnknownGroup UnknownReference Watermark
WatermarkView Watermarks Why Worker WouldRegress connect
"""


def test_the_public_names_are_these() -> None:
    assert sorted(lowwater.__all__) == sorted(NAMES.split())
    assert all(getattr(lowwater, name) is not None for name in lowwater.__all__)
    assert not [
        name for name, value in vars(lowwater).items() if isinstance(value, type) and name not in lowwater.__all__
    ]


def test_importing_starts_nothing_and_needs_no_numpy() -> None:
    program = (
        "import threading, sys, os\n"
        "hooks = []\n"
        "os.register_at_fork = lambda **_: hooks.append(1)\n"
        "import lowwater\n"
        "grpcs = len(hooks)\n"
        "lw = lowwater.connect('localhost:1')\n"
        "lowwater.connect('localhost:1')\n"
        "assert len(hooks) == grpcs + 1, 'one hook, with the first client'\n"
        "assert threading.active_count() == 1\n"
        "assert 'numpy' not in sys.modules\n"
        "lw.close()\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


def test_claims_carry_the_name_of_the_surroundings() -> None:
    with lowwater.Client(Settings("there:1"), surroundings=Surroundings(host=lambda: "there", pid=lambda: 7)) as lw:
        assert (lw.worker("c").name, lw.worker("c").host) == ("there-7", "there")
        assert lw.worker("c", name="given").name == "given"
    with lowwater.connect("there:1") as lw:
        assert lw.worker("c").name == f"{socket.gethostname()}-{os.getpid()}"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of somebody who takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_close_ends_calls_that_wait(silent: str) -> None:
    lw = lowwater.connect(silent, timeout=60.0)
    calls: list[Callable[[], object]] = [lw.get, lambda: lw.reset("c"), lambda: lw.wait("c", 5), lw.inputs("c").read]
    with futures.ThreadPoolExecutor(len(calls)) as threads:
        made = [threads.submit(call) for call in calls]
        connection = lw._runtime().connection
        eventually(lambda: connection._users == 3)  # two calls and the stream
        lw.close()
        assert [type(each.exception(timeout=20)) for each in made] == [lowwater.Closed] * len(calls)


def test_a_call_that_grpc_cannot_make_is_not_repeated() -> None:
    """Nothing would ever close such a channel but a mistake in this program."""
    with futures.ThreadPoolExecutor(2) as threads, lowwater.connect("localhost:1", timeout=60.0) as lw:
        connection = lw._runtime().connection
        with connection.use("localhost:1"):
            connection._channels.by_address["localhost:1"].channel.close()
        made = [threads.submit(call) for call in (lw.get, lambda: lw.reset("c"))]
        failures = [type(each.exception(timeout=20)) for each in made]
    assert failures == [ValueError] * 2


NO_CHANNELS = [RuntimeError("no key"), ValueError("no key"), OSError("no key"), grpc.RpcError("no key")]
"""What may come out of credentials when a channel is made; the last one is no call and has no code."""


@pytest.mark.parametrize("error", NO_CHANNELS, ids=lambda error: type(error).__name__)
def test_a_channel_that_cannot_be_made_is_said_at_once_and_by_what_waits_at_its_timeout(
    error: Exception,
) -> None:
    """A call has nothing to wait for. What follows streams goes on, as after any failure, and says what it is when the time is over."""

    def fail(_address: str) -> grpc.Channel:
        raise error

    expected = lowwater.LowwaterError if isinstance(error, grpc.RpcError) else type(error)
    with lowwater.Client(Settings("localhost:1", timeout=60.0), channel=fail) as lw:
        began = time.monotonic()
        for call in (lw.get, lambda: lw.reset("c"), lambda: lw.register("c"), lw.worker("c", identity="i").claim):
            with pytest.raises(expected, match="no key"):
                call()
        assert time.monotonic() - began < 30
        with pytest.raises(lowwater.Timeout, match=r"never heard of: .*no key"):
            lw.wait("c", 5, timeout=0.5)
    runtime = Runtime(Settings("localhost:1"), make_channel=fail)
    made, state = granted(inputs=(), runtime=runtime)
    runtime.reporter.add(state)
    made.advance(None, oldest=None, frontier=5)
    with pytest.raises(lowwater.Timeout, match=r"as durable within 0.5 s: .*no key"):
        made.flush(0.5)
    runtime.close()


@pytest.mark.parametrize("end", ["close", "await_quiet"])
def test_channels_behind_one_that_fails_to_close_are_closed_and_count_as_used_no_longer(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every later fork would wait for them."""
    connection = Connection(Settings("a:1"))
    stubs = []
    for address in ("a:1", "b:1", "c:1"):
        with connection.use(address) as used:
            stubs.append(used)
    for address in ("a:1", "b:1"):
        monkeypatch.setattr(connection._channels.by_address[address].channel, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(connection, end)()
    assert connection._users == 0
    with pytest.raises(ValueError, match="closed channel"):
        stubs[-1].watermarks.GetWatermarks(watermarks_pb2.GetWatermarksRequest())


def interrupted() -> None:
    """Is interrupted by the user."""
    raise KeyboardInterrupt


def test_a_call_that_is_interrupted_between_two_attempts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with lowwater.connect("localhost:1", timeout=60.0) as lw:
        changed = lw._runtime().connection._changed
        let_go: Any = vars(changed)["_release_save"]

        def told() -> None:
            let_go()
            interrupted()

        monkeypatch.setitem(vars(changed), "_release_save", told)
        with pytest.raises(KeyboardInterrupt):
            lw.get("a")
        monkeypatch.undo()


def test_closing_a_reader_ends_a_read_that_waits(silent: str) -> None:
    with lowwater.connect(silent, timeout=60.0) as lw, futures.ThreadPoolExecutor(1) as threads:
        reader = lw.inputs("c")
        read = threads.submit(reader.read)
        eventually(lambda: reader._subscription is not None)
        reader.close()
        assert read.result(timeout=20).low.unknown


def test_the_address_is_the_argument_the_environment_or_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOWWATER_ADDRESS", raising=False)
    assert lowwater.connect().settings.address == "localhost:7420"
    monkeypatch.setenv("LOWWATER_ADDRESS", "there:1")
    assert lowwater.connect().settings.address == "there:1"
    assert lowwater.connect("here:2").settings.address == "here:2"


def test_an_address_may_be_several() -> None:
    assert lowwater.Settings("a:1, b:2,dns:///c:3").addresses == ("a:1", "b:2", "dns:///c:3")
    for wrong in ("", ",", "a:1,,b:2"):
        with pytest.raises(lowwater.InvalidArgument, match="with commas"):
            lowwater.connect(wrong)


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        pytest.param("lowwater", ("lowwater:7420",), id="a name"),
        pytest.param("lowwater.prod.svc, 10.0.0.7:1", ("lowwater.prod.svc:7420", "10.0.0.7:1"), id="a list"),
        pytest.param("::1,[::1],[fe80::1%eth0]:1", ("[::1]:7420", "[::1]:7420", "[fe80::1%eth0]:1"), id="IPv6"),
        pytest.param("dns:///lowwater,dns:lowwater", ("dns:///lowwater:7420", "dns:lowwater:7420"), id="dns"),
        pytest.param(
            "dns://10.0.0.2:53/there", ("dns://10.0.0.2:53/there:7420",), id="a name server's port is no port"
        ),
        pytest.param("ipv4:10.0.0.7,ipv6:[::1]", ("ipv4:10.0.0.7:7420", "ipv6:[::1]:7420"), id="numbers"),
        pytest.param("unix:/run/lw,unix-abstract:lw", ("unix:/run/lw", "unix-abstract:lw"), id="sockets have no port"),
    ],
)
def test_an_address_without_a_port_means_that_of_an_authority(address: str, asked: tuple[str, ...]) -> None:
    """Left to gRPC it would be 443, where somebody else may listen."""
    settings = lowwater.Settings(address)
    assert (settings.address, settings.addresses) == (address, asked)


@pytest.mark.parametrize(
    "address",
    [
        "lowwater:",
        ":7420",
        "lowwater:http",
        "lowwater:0",
        "lowwater:65536",
        "http://lowwater:7420",
        "::1:7420:x",
        "a b:1",
        "dns:///",
        "user@lowwater",
    ],
)
def test_what_is_no_address_is_refused_before_anybody_is_asked(address: str) -> None:
    with pytest.raises(lowwater.InvalidArgument, match="host:port, such as localhost:7420") as caught:
        lowwater.connect(address)
    assert caught.value.metadata["field"] == "address"


def test_settings_cross_process_borders_and_make_a_client_there() -> None:
    settings = pickle.loads(pickle.dumps(lowwater.connect("there:1", namespace="n").settings))
    assert lowwater.Client(settings).settings == lowwater.Settings("there:1", namespace="n")


def test_secrets_are_not_printed() -> None:
    settings = lowwater.connect(token="hush", private_key=b"hush", certificate_chain=b"shown").settings
    assert "hush" not in repr(settings)
    bad: list[dict[str, Any]] = [
        {"token": "hush\n"},
        {"token": b"hush"},
        {"private_key": "hush"},
        {"private_key": b"hush"},
    ]
    for wrong in bad:
        with pytest.raises(lowwater.InvalidArgument) as refused:
            lowwater.connect(**wrong)
        assert "hush" not in str(refused.value)


def test_a_closed_client_says_so() -> None:
    with lowwater.connect("localhost:1", timeout=0.1) as lw:
        known, unused = lw.inputs("c"), lw.inputs("c")
        assert known.read().low.unknown
    lw.close()
    batch = lambda: lw.batches.commit("c", 1, 1)  # noqa: E731
    reads = (known.read, unused.read, lambda: lw.inputs("c").read())
    for use in (lw.get, lw.topology, lw.statistics, lambda: lw.worker("c"), batch, *reads):
        with pytest.raises(lowwater.Closed, match="connect"):
            use()
    for reader in (known, unused):
        assert list(reader.watch()) == []


@pytest.mark.parametrize("made", ["before", "meanwhile"])
def test_a_client_that_is_first_used_while_another_thread_forks_begins_when_it_has(made: str) -> None:
    """Else its call is ended with its channel, or the child inherits what gRPC does at that moment; or no call ever begins."""
    lw = lowwater.connect("localhost:1", timeout=0.5)
    fork._before_fork()
    try:
        lw = lw if made == "before" else lowwater.connect("localhost:1", timeout=0.5)
        with futures.ThreadPoolExecutor(1) as threads:
            call = threads.submit(lw.get)
            eventually(lambda: lw._runtimes.existing() is not None)
            assert lw._runtime().connection.pauses == 1
            assert not lw._runtime().connection._channels.by_address
            fork._after_fork_in_parent()
            with pytest.raises(lowwater.Unavailable, match="localhost:1"):
                call.result(30)
    finally:
        if threading.get_ident() in fork._forking:
            fork._after_fork_in_parent()
    lw.close()


def test_the_names_that_micro_batches_had_in_0_1_do_the_same() -> None:
    """tests/compatibility/program.py runs batches by them."""
    with lowwater.connect("localhost:1") as lw:
        pairs: dict[Callable[..., object], Callable[..., object]] = {
            lw.stage_task: lw.batches.stage_task,
            lw.prepare_batch: lw.batches.prepare,
            lw.commit_batch: lw.batches.commit,
        }
        for old, new in pairs.items():
            said = []
            for call in (old, new):
                with pytest.raises((TypeError, lowwater.InvalidArgument)) as error:
                    call("c", sequencer=1, batch=-1)
                said.append(str(error.value))
            assert said[0] == said[1]


def test_nobody_there_is_unavailable_within_the_timeout() -> None:
    with lowwater.connect("localhost:1", timeout=2.0) as lw, pytest.raises(lowwater.Unavailable, match="localhost:1"):
        lw.get()


def test_reading_degrades_without_an_authority() -> None:
    with lowwater.connect("localhost:1", timeout=0.1) as lw, lw.inputs("flights") as reader:
        seen = reader.read()
    assert seen.low.unknown
    assert seen.stale_for == float("inf")
    assert seen.held_by == "flights (not registered)"


@pytest.mark.parametrize("heuristics", [(1.0,), (0.0,), (99,), (-0.1,)])
def test_what_is_no_share_is_refused_with_the_fix(heuristics: tuple[float, ...]) -> None:
    with lowwater.connect("localhost:1") as lw, pytest.raises(lowwater.InvalidArgument, match=r"0\.99") as caught:
        lw.register("c", heuristics=heuristics)
    assert caught.value.metadata["field"] == "heuristics"


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param([b"a"], id="one key"),
        pytest.param([b"b", b"a"], id="descending"),
        pytest.param([b"a", b"a"], id="twice"),
        pytest.param([b"a", b"", b"b"], id="empty in the middle"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds: list[bytes]) -> None:
    with lowwater.connect("localhost:1") as lw, pytest.raises(lowwater.InvalidArgument, match="ascending"):
        lw.worker("c").claim(bounds=bounds)


def granted(
    count: int = 3, *, inputs: tuple[str, ...] = ("a",), runtime: Runtime | None = None
) -> tuple[Lease, LeaseState]:
    """A lease, as the worker makes it, and its state; nothing is reported."""
    reading = Reading("c", inputs, 1 if inputs else 0, (1,) * len(inputs), (990_000,))
    state = LeaseState("c", 7, Column(count, 0), input_version=1, input_incarnations=(1,), reference=0)
    bounds = (*(bytes([i]) for i in range(count)), b"")
    grant = Grant(state, bounds, lowwater.Watermarks([0] * count), reading)
    return Lease(runtime or Runtime(lowwater.Settings("localhost:1")), grant), state


def seen(low: int = 10, computation: str = "c") -> lowwater.Inputs:
    view = lowwater.WatermarkView("a", registered=True, incarnation=1, low=lowwater.Watermark(low))
    return fold_inputs(("a",), {"a": view}, Reading(computation, ("a",), 1, (1,), (990_000,)), 0.0)


def staged(state: LeaseState) -> list[int]:
    group = state.take()
    assert group is not None
    state.reconnect()
    return [group.values] * 3 if isinstance(group.values, int) else list(group.values)


def test_oldest_is_one_some_or_all() -> None:
    made, state = granted()
    made.advance(seen(), oldest=None)
    assert staged(state) == [10, 10, 10]
    made.advance(seen(), oldest=lowwater.Watermark(4))
    assert staged(state) == [4, 4, 4]
    made.advance(seen(), oldest={1: None, np.int64(2): np.int64(6)})  # type: ignore[dict-item]
    assert staged(state) == [4, 10, 6]
    made.advance(seen(5), oldest={})
    assert staged(state) == [4, 5, 5]
    made.advance(seen(), oldest=np.array([1, lowwater.MAX, 12]))  # type: ignore[arg-type]
    assert staged(state) == [1, 10, 10]
    made.advance(seen(), oldest=[datetime(1970, 1, 1, tzinfo=UTC), None, 3])
    assert staged(state) == [0, 10, 3]
    made.advance(seen(), oldest=np.int64(2))  # type: ignore[arg-type]
    assert staged(state) == [2, 2, 2]


def test_a_snapshot_of_newer_inputs_is_told_as_that() -> None:
    """A worker of several slices has it from the first one that knows them: the authority judges by the version, and the worker does not fail."""
    (made, state), views = (
        granted(),
        {"a": lowwater.WatermarkView("a", registered=True, incarnation=1, low=lowwater.Watermark(9))},
    )

    def folded(version: int) -> lowwater.Inputs:
        return fold_inputs(("a", "b"), views, Reading("c", ("a", "b"), version, (1, 1), ()), 0.0)

    with pytest.raises(lowwater.InvalidArgument, match="snapshot"):
        made.advance(folded(1), oldest=None)
    made.advance(folded(2), oldest=None)
    group = state.take()
    assert group is not None
    assert (group.input_version, group.input_incarnations, group.values) == (2, (1, 0), lowwater.MIN)


def test_an_injector_gives_its_frontier() -> None:
    made, state = granted(inputs=())
    made.advance(None, oldest=None, frontier=8)
    assert staged(state) == [8, 8, 8]


def test_wrong_calls_say_what_to_pass() -> None:
    (stage, one), (injector, other) = granted(), granted(inputs=())
    with pytest.raises(lowwater.InvalidArgument, match="snapshot"):
        stage.advance(None, oldest=None)
    with pytest.raises(lowwater.InvalidArgument, match="snapshot"):
        stage.advance(seen(computation="other"), oldest=None)
    with pytest.raises(lowwater.InvalidArgument, match="no frontier"):
        stage.advance(seen(), oldest=None, frontier=5)
    with pytest.raises(lowwater.InvalidArgument, match="injector"):
        injector.advance(seen(), oldest=None, frontier=5)
    with pytest.raises(lowwater.InvalidArgument, match="injector"):
        injector.advance(None, oldest=None)
    with pytest.raises(lowwater.FinishRequired, match="finish"):
        injector.advance(None, oldest=None, frontier=lowwater.MAX)
    with pytest.raises(lowwater.InvalidArgument, match="3 ranges"):
        stage.advance(seen(), oldest=[1, 2])
    with pytest.raises(lowwater.InvalidArgument, match="0 to 2"):
        stage.advance(seen(), oldest={3: 1})
    with pytest.raises(lowwater.InvalidArgument, match=r"finished=-1 .* 0 to 1099511627776"):
        stage.advance(seen(), oldest=None, finished=-1)
    with pytest.raises(ValueError, match="time zone"):
        stage.advance(seen(), oldest=datetime(2013, 1, 1))  # noqa: DTZ001 - the mistake itself
    with pytest.raises(TypeError):
        stage.advance(seen())  # type: ignore[call-arg]  # forgetting what is held would promise that nothing is
    assert one.version == other.version == 0


def test_a_partial_loss_is_told_once_and_a_whole_one_always() -> None:
    made, state = granted()
    state.lose([1], "a newer claim")
    assert made.lost == {1}
    assert list(made.live) == [0, 2]
    with pytest.raises(lowwater.StaleSequencer, match="1 of its 3 ranges: a newer claim"):
        made.advance(seen(), oldest=None)
    made.advance(seen(), oldest=None)
    state.lose(None, "a reset")
    for _ in range(2):
        with pytest.raises(lowwater.StaleSequencer, match="all its ranges: a reset"):
            made.advance(seen(), oldest=None)
    assert made.lost == {0, 1, 2}
    assert list(made.live) == []


def test_what_is_pending_is_counted_from_the_greatest_frontier() -> None:
    """The first report goes out before the authority has told any reference."""
    made, state = granted()
    state.reference = lowwater.MIN
    made.advance(seen(10_000_000), oldest=9_000_000, pending=[9_000_000, 9_999_999])
    group = state.take()
    assert group is not None
    assert group.mass is not None
    assert group.mass.starts == (9_000_000 // 8_000 * 8_000, 9_999_000)
