"""The public names, on threads and on asyncio, and what using the client wrongly says."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NoReturn

import grpc
import grpc.aio
import numpy as np
import pytest

import lowwater
import lowwater.aio
from lowwater import errors
from lowwater.core.settings import Settings
from lowwater.core.surroundings import Surroundings
from lowwater.v1 import cluster_pb2
from tests.kit.served import authority_served, scripted, served

NAMES = """
Arrived Batches BelowMark Client ClientStatistics Closed Completeness Completion Computation Cycle EstimatedInput EventTime FinishRequired Gap Histogram History Hop Identity
IdentityMismatch IncarnationChanged InputReader InputVersion Inputs Interval IntervalView InvalidArgument JournalFailed LatenessBudget Layout LayoutConflict LayoutView Lease LimitReached LowwaterError MAX MIN Moved NewTask NotPrepared OldStream
OlderClaim OtherSlice Overloaded OwnedRanges PermissionDenied Promise RangeLoad RangeState RangeView Ranges Recovering Refusal RegionRefused
RegistrationConflict Remarks Rewound SecondAgent ServerTokenMismatch Settings ShardView Shards ShuttingDown Slice StaleAdoption StaleEpoch
StaleLease StaleSequencer StillRead TaskAttempt TaskConflict TaskGroup TaskLease TaskList TaskState TaskView Tasks Timeout TooFarAhead
Topology Unauthenticated Unavailable Unconfirmed UnknownComputation UnknownGroup UnknownReference Views Watermark
WatermarkView Watermarks Why Worker WouldRegress connect
"""


def test_the_public_names_are_these() -> None:
    assert sorted(lowwater.__all__) == sorted(NAMES.split())
    assert all(getattr(lowwater, name) is not None for name in lowwater.__all__)
    assert not [name for name, obj in vars(lowwater).items() if isinstance(obj, type) and name not in lowwater.__all__]


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
def silent() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        yield listening


def test_close_ends_calls_that_wait(silent: socket.socket) -> None:
    lw = lowwater.connect(f"127.0.0.1:{silent.getsockname()[1]}", timeout=60.0)
    calls: list[Callable[[], object]] = [lw.get, lambda: lw.reset("c"), lambda: lw.wait("c", 5), lw.inputs("c").read]
    with futures.ThreadPoolExecutor(len(calls)) as threads:
        waiting = [threads.submit(call) for call in calls]
        connection, _ = silent.accept()
        lw.close()
        connection.close()
        assert [type(call.exception(timeout=20)) for call in waiting] == [lowwater.Closed] * len(calls)


NO_CHANNELS = [OSError("no key"), grpc.RpcError("no key")]
"""Errors of credentials when a channel is made; the last one is no call and has no code."""


@pytest.mark.parametrize("error", NO_CHANNELS, ids=lambda error: type(error).__name__)
def test_a_channel_that_cannot_be_made_is_said_at_once_and_by_what_waits_at_its_timeout(error: Exception) -> None:
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
        with pytest.raises(lowwater.Timeout, match=r"never answered: .*no key"):
            lw.wait("c", 5, timeout=0.5)


@pytest.mark.parametrize(
    ("address", "addresses"),
    [
        pytest.param("lowwater", ("lowwater:7420",), id="a name"),
        pytest.param("lowwater.prod.svc, 10.0.0.7:1", ("lowwater.prod.svc:7420", "10.0.0.7:1"), id="a list"),
        pytest.param("::1,[::1],[fe80::1%eth0]:1", ("[::1]:7420", "[::1]:7420", "[fe80::1%eth0]:1"), id="IPv6"),
        pytest.param("dns:///lowwater,dns:lowwater", ("dns:///lowwater:7420", "dns:lowwater:7420"), id="dns"),
        pytest.param("dns://10.0.0.2:53/there", ("dns://10.0.0.2:53/there:7420",), id="a name server's is no port"),
        pytest.param("ipv4:10.0.0.7,ipv6:[::1]", ("ipv4:10.0.0.7:7420", "ipv6:[::1]:7420"), id="numbers"),
        pytest.param("unix:/run/lw,unix-abstract:lw", ("unix:/run/lw", "unix-abstract:lw"), id="sockets have no port"),
    ],
)
def test_an_address_without_a_port_means_that_of_an_authority(address: str, addresses: tuple[str, ...]) -> None:
    """Left to gRPC it would be 443, where somebody else may listen."""
    settings = lowwater.Settings(address)
    assert (settings.address, settings.addresses) == (address, addresses)


def test_settings_cross_process_borders_and_make_a_client_there() -> None:
    settings = pickle.loads(pickle.dumps(lowwater.connect("there:1", namespace="n").settings))
    assert lowwater.Client(settings).settings == lowwater.Settings("there:1", namespace="n")


def test_secrets_are_not_printed() -> None:
    settings = lowwater.connect(token="hush", private_key=b"hush", certificate_chain=b"shown").settings
    assert "hush" not in repr(settings)
    bad: list[Any] = [{"token": "hush\n"}, {"token": b"hush"}, {"private_key": "hush"}, {"private_key": b"hush"}]
    for wrong in bad:
        with pytest.raises(lowwater.InvalidArgument) as refused:
            lowwater.connect(**wrong)
        assert "hush" not in str(refused.value)


def test_a_closed_client_says_so() -> None:
    with lowwater.connect("localhost:1", timeout=0.1) as lw:
        used, unused = lw.inputs("c"), lw.inputs("c")
        assert used.read().low.unknown
    lw.close()
    batch = lambda: lw.batches.commit("c", 1, 1)  # noqa: E731
    reads = (used.read, unused.read, lambda: lw.inputs("c").read())
    for use in (lw.get, lw.topology, lw.statistics, lambda: lw.worker("c"), batch, *reads):
        with pytest.raises(lowwater.Closed, match="connect"):
            use()
    for reader in (used, unused):
        assert list(reader.watch()) == []


@dataclass
class Stage:
    """A claim of three ranges, and a snapshot of their input, which is at 10."""

    lw: lowwater.aio.Client
    source: lowwater.aio.Lease
    worker: lowwater.aio.Worker
    lease: lowwater.aio.Lease
    seen: lowwater.Inputs

    async def staged(self) -> list[int]:
        await self.lease.flush()
        page = await self.lw.ranges("c", limit=3)
        return [entry.watermark.micros for entry in sorted(page.ranges, key=lambda entry: entry.start)]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with authority_served() as (_, address), lowwater.aio.connect(address) as lw:
        await lw.register("a")
        await lw.register("c", inputs=["a"])
        source = await lw.worker("a").claim()
        source.advance(None, oldest=None, frontier=10)
        await source.flush()
        worker = lw.worker("c")
        lease = await worker.claim(bounds=[b"", b"m", b"t", b""])
        yield Stage(lw, source, worker, lease, await worker.inputs())


OLDEST: list[tuple[Any, list[int]]] = [
    (None, [10, 10, 10]),
    (lowwater.Watermark(4), [4, 4, 4]),
    ({1: None, np.int64(2): np.int64(6)}, [4, 10, 6]),
    ({}, [4, 10, 6]),
    (np.array([1, lowwater.MAX, 12]), [1, 10, 10]),
    ([datetime(1970, 1, 1, tzinfo=UTC), None, 3], [0, 10, 3]),
    (np.int64(2), [2, 2, 2]),
]


async def test_oldest_is_one_some_or_all(stage: Stage) -> None:
    for oldest, expected in OLDEST:
        stage.lease.advance(stage.seen, oldest=oldest)
        assert await stage.staged() == expected, oldest


async def test_wrong_calls_say_what_to_pass(stage: Stage) -> None:
    injector, lease, snapshot_ = stage.source, stage.lease, stage.seen
    other = replace(snapshot_, computation="other")
    naive = datetime(2013, 1, 1)  # noqa: DTZ001 - the mistake itself
    wrong: list[tuple[Any, type[Exception], str, Any, dict[str, Any]]] = [
        (lease, lowwater.InvalidArgument, "snapshot", None, {"oldest": None}),
        (lease, lowwater.InvalidArgument, "snapshot", other, {"oldest": None}),
        (lease, lowwater.InvalidArgument, "no frontier", snapshot_, {"oldest": None, "frontier": 5}),
        (injector, lowwater.InvalidArgument, "injector", snapshot_, {"oldest": None, "frontier": 5}),
        (injector, lowwater.InvalidArgument, "injector", None, {"oldest": None}),
        (injector, lowwater.FinishRequired, "finish", None, {"oldest": None, "frontier": lowwater.MAX}),
        (lease, lowwater.InvalidArgument, "3 ranges", snapshot_, {"oldest": [1, 2]}),
        (lease, ValueError, "time zone", snapshot_, {"oldest": naive}),
        (lease, TypeError, "oldest", snapshot_, {}),  # forgetting what is held would promise that nothing is
    ]
    for owner, error, match, snapshot, values in wrong:
        with pytest.raises(error, match=match):
            owner.advance(snapshot, **values)
    assert await stage.staged() == [lowwater.MIN] * 3


async def test_a_partial_loss_is_told_once_and_a_whole_one_always(stage: Stage) -> None:
    lease = stage.lease
    await stage.worker.claim(b"m", b"t")
    assert (set(lease.lost), list(lease.live)) == ({1}, [0, 2])
    with pytest.raises(lowwater.StaleSequencer, match="1 of its 3 ranges"):
        lease.advance(stage.seen, oldest=None)
    lease.advance(stage.seen, oldest=None)
    await stage.worker.claim()
    for _ in range(2):
        with pytest.raises(lowwater.StaleSequencer, match="all its ranges"):
            lease.advance(stage.seen, oldest=None)
    assert (len(lease.lost), len(lease.live)) == (3, 0)


PAIRS = [
    (lowwater.Batches, lowwater.aio.Batches),
    (lowwater.Client, lowwater.aio.Client),
    (lowwater.Worker, lowwater.aio.Worker),
    (lowwater.Lease, lowwater.aio.Lease),
    (lowwater.InputReader, lowwater.aio.InputReader),
]


def public(cls: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(cls) if not name.startswith("_")}


@pytest.mark.parametrize(("threads", "tasks"), PAIRS, ids=lambda cls: cls.__module__.split(".")[1] + cls.__name__)
def test_both_shells_have_the_same_methods_with_the_same_parameters(threads: type, tasks: type) -> None:
    here, theirs_all = public(threads), public(tasks)
    assert here.keys() == theirs_all.keys()
    for name, method in here.items():
        if inspect.isfunction(method):
            ours, theirs = inspect.signature(method), inspect.signature(theirs_all[name])
            assert list(ours.parameters.values()) == list(theirs.parameters.values()), name
            assert theirs_all[name].__doc__


def test_connect_takes_the_same_arguments_and_makes_the_same_settings() -> None:
    assert (
        inspect.signature(lowwater.connect).parameters.keys()
        == inspect.signature(lowwater.aio.connect).parameters.keys()
    )
    options: dict[str, Any] = {"namespace": "n", "token": "t", "timeout": 3.0, "server_token": "s"}
    assert lowwater.aio.connect("there:1", **options).settings == lowwater.connect("there:1", **options).settings


async def test_a_closed_reader_and_worker_say_so() -> None:
    async with lowwater.aio.connect("localhost:1") as lw:
        async with lw.inputs("c") as reader:
            pass
        with pytest.raises(lowwater.Closed, match=r"lw\.inputs"):
            await reader.read()
        assert [view async for view in reader.watch()] == []
        async with lw.worker("c") as worker:
            pass
        with pytest.raises(lowwater.Closed, match=r"lw\.worker"):
            await worker.claim()
        with pytest.raises(lowwater.InvalidArgument, match="at least one"):
            lw.inputs()


def test_a_client_belongs_to_its_event_loop() -> None:
    lw = lowwater.aio.connect("localhost:1", timeout=0.1)

    async def use() -> lowwater.Inputs:
        return await lw.inputs("c").read()

    async def forget() -> None:
        await lw.close()

    with asyncio.Runner() as first:
        assert first.run(use()).low.unknown
        with asyncio.Runner() as second, pytest.raises(lowwater.Closed, match="another event loop"):
            second.run(use())
        first.run(forget())


async def test_close_ends_calls_that_wait_and_their_tasks_are_not_cancelled() -> None:
    lw = lowwater.aio.connect("localhost:1", timeout=60.0)
    calls = [asyncio.ensure_future(wait) for wait in (lw.get(), lw.reset("c"), lw.wait("c", 5), lw.inputs("c").read())]
    await asyncio.sleep(0)
    await lw.close()
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, lowwater.Closed), result


class Cancelling(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        call = await continuation(client_call_details, request)
        call.cancel()
        return call


async def test_a_call_that_grpc_cancels_by_itself_is_unavailable() -> None:
    channel = lambda address: grpc.aio.insecure_channel(address, interceptors=[Cancelling()])  # noqa: E731
    async with lowwater.aio.Client(Settings("localhost:1", timeout=0.3), channel=channel) as lw:
        for waiting in (lw.get(), lw.reset("c")):
            with pytest.raises(lowwater.Unavailable, match="localhost:1"):
                await waiting


@pytest.mark.parametrize(("metadata", "tries"), [({}, 1), ({"field": "address"}, 1), ({"field": "version"}, 5)])
async def test_a_change_of_shards_is_repeated_while_others_intervene(metadata: dict[str, str], tries: int) -> None:
    """Also an authority that does not name the field is told of as it refuses."""
    requests: list[str] = []

    def shards(_: object) -> cluster_pb2.ListShardsResponse:
        requests.append("ListShards")
        return cluster_pb2.ListShardsResponse(server_token="t")

    def drain(_: object) -> NoReturn:
        requests.append("Drain")
        raise errors.InvalidArgument("no", metadata=metadata)

    service = scripted(
        "lowwater.v1.ClusterService",
        ListShards=(cluster_pb2.ListShardsRequest, shards),
        Drain=(cluster_pb2.DrainRequest, drain),
    )
    async with served(service) as address, lowwater.aio.connect(address) as lw:
        with pytest.raises(errors.InvalidArgument):
            await lw.drain("there:1")
    assert requests == ["ListShards", "Drain"] * tries
