"""The public names, and what using the client wrongly says."""

import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from datetime import UTC, datetime
from typing import Any

import grpc
import numpy as np
import pytest

import lowwater
from lowwater._sync.lease import Lease
from lowwater._sync.runtime import Runtime
from lowwater.core.claims import Grant
from lowwater.core.columns import Column
from lowwater.core.fold import Reading, fold_inputs
from lowwater.core.lease import LeaseState
from lowwater.core.settings import Settings
from lowwater.core.surroundings import Surroundings
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


NO_CHANNELS = [OSError("no key"), grpc.RpcError("no key")]
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


def test_the_address_is_the_argument_the_environment_or_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOWWATER_ADDRESS", raising=False)
    assert lowwater.connect().settings.address == "localhost:7420"
    monkeypatch.setenv("LOWWATER_ADDRESS", "there:1")
    assert lowwater.connect().settings.address == "there:1"
    assert lowwater.connect("here:2").settings.address == "here:2"


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


def test_reading_degrades_without_an_authority() -> None:
    with lowwater.connect("localhost:1", timeout=0.1) as lw, lw.inputs("flights") as reader:
        seen = reader.read()
    assert seen.low.unknown
    assert seen.stale_for == float("inf")
    assert seen.held_by == "flights (not registered)"


def granted(*, inputs: tuple[str, ...] = ("a",), runtime: Runtime | None = None) -> tuple[Lease, LeaseState]:
    """A lease, as the worker makes it, and its state; nothing is reported."""
    reading = Reading("c", inputs, 1 if inputs else 0, (1,) * len(inputs), (990_000,))
    state = LeaseState("c", 7, Column(3, 0), input_version=1, input_incarnations=(1,), reference=0)
    bounds = (*(bytes([i]) for i in range(3)), b"")
    grant = Grant(state, bounds, lowwater.Watermarks([0] * 3), reading)
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
