"""A message whose sender saw the connection break may still arrive. Each change names what it was decided on, and changes nothing later."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc.aio
import numpy as np
import pytest

import lowwater.aio
from lowwater import errors
from lowwater.aio import Tasks
from lowwater.core.call import Gather
from lowwater.v1 import cluster_pb2 as pb
from lowwater.v1 import cluster_pb2_grpc, types_pb2, watermarks_pb2
from lowwater_authority.core.requests import ClaimRequest, Grant
from lowwater_authority.core.tasks import NewTask, TaskGroup, TaskKey
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.admission import Gate
from lowwater_authority.engine.shard import Shard
from lowwater_authority.engine.task_master import TaskMaster
from tests.kit.client import OfflineClient
from tests.kit.memory_journal import MemoryDisk
from tests.kit.shards import NAMES, Deployment, reached, two
from tests.kit.times import HOUR
from tests.kit.tree import One, Tree, ids

Late = Callable[[], Awaitable[object]]


@pytest.fixture
async def one(disk: MemoryDisk) -> AsyncIterator[One]:
    """A process that serves ``in``, ``in2`` and ``b``, which reads ``in``; and ``a``, which is cut."""
    tree = await Tree(disk).start()
    for spec in (Spec("in"), Spec("in2"), Spec("b", inputs=("in",))):
        await tree.top.shard.graph.register(spec)
    yield tree.top
    await tree.stop()


async def claim(
    shard: Shard, name: str, *bounds: bytes, identity: str = "", adopt: bool = False, meant: int = 0
) -> Grant:
    request = ClaimRequest(
        bounds or (b"", b""),
        identity=identity,
        request_id=next(ids).to_bytes(16),
        bound_micros=np.array([9 * HOUR], dtype=np.int64),
    )
    return await shard.owners.claim(name, request, adopt=adopt, incarnation=meant)


def tasks(shard: Shard) -> TaskMaster:
    return TaskMaster(shard, Gate("tasks", 10, 0))


async def is_refused(one: One, late: Late, reason: type[errors.LowwaterError]) -> None:
    """A late message changes neither the graph nor any log."""
    before = one.shard.topology, {name: log.records for name, log in one.tree.disk.logs.items()}
    with pytest.raises(reason):
        await late()
    assert before == (one.shard.topology, {name: log.records for name, log in one.tree.disk.logs.items()})


async def test_rule8_a_late_retirement_takes_out_nothing_that_was_claimed_since(one: One) -> None:
    shard = one.shard
    for force in (False, True):
        _, _, _, newest = await shard.reads.ranges("b", below=None, limit=1)
        late = partial(shard.owners.retire, "b", b"", b"", force=force, newest_claim=newest)
        await late()
        await late()  # a repeat
        grant = await claim(shard, "b")
        await is_refused(one, late, errors.StaleSequencer)
        await shard.owners.release("b", grant.sequencer)
        await is_refused(one, late, errors.StaleSequencer)


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (lambda shard: shard.graph.reset("b", incarnation=1), errors.IncarnationChanged),
        (lambda shard: shard.graph.drop("b", force=True, incarnation=1), errors.IncarnationChanged),
        (lambda shard: shard.graph.set_inputs("b", ["in2"], incarnation=1, input_version=1), errors.IncarnationChanged),
        (lambda shard: shard.graph.split("a", "a~0", b"\x40", incarnation=1), errors.IncarnationChanged),
        (lambda shard: tasks(shard).configure("b", "close", b"two", 1, 1), errors.IncarnationChanged),
        (lambda shard: claim(shard, "b", identity="late", adopt=True, meant=1), errors.IncarnationChanged),
        (lambda shard: tasks(shard).create_group("b", TaskGroup("late"), 1), errors.IncarnationChanged),
        (lambda shard: tasks(shard).create("b", "close", [NewTask(TaskKey(0, "late"))], 1), errors.IncarnationChanged),
    ],
    ids=["reset", "drop", "set_inputs", "split", "configure", "adopt", "create_group", "create_tasks"],
)
async def test_rule8_what_was_decided_on_in_another_incarnation_changes_nothing(
    one: One, late: Callable[[Shard], Awaitable[object]], reason: type[errors.LowwaterError]
) -> None:
    shard = one.shard
    for name in ("b", "a"):
        await shard.graph.reset(name)
    await claim(shard, "b", identity="owner")
    await tasks(shard).create_group("b", TaskGroup("close"))
    await is_refused(one, lambda: late(shard), reason)


async def test_a_slice_which_may_lead_has_no_tasks(one: One) -> None:
    owner = one.tree.owner("a~0")
    await is_refused(owner, lambda: tasks(owner.shard).create_group("a~0", TaskGroup("close")), errors.InvalidArgument)


async def test_rule8_inputs_that_were_decided_on_before_others_were_set_are_not_set(one: One) -> None:
    shard = one.shard
    late = partial(shard.graph.set_inputs, "b", ["in"], incarnation=1, input_version=1)
    await shard.graph.set_inputs("b", ["in", "in2"], incarnation=1, input_version=1)
    await is_refused(one, late, errors.InputVersion)


async def test_a_late_drain_or_pin_does_not_undo_what_was_decided_since(deployment: Deployment) -> None:
    """A late pin is refused also when the newer call was an unpin that found no pin."""
    one, _ = await two(deployment)
    address, name = "other:1", NAMES[0]
    drain, keep = (partial(pb.DrainRequest, address=address, cancel=cancel) for cancel in (False, True))
    pin, unpin = (partial(pb.PinRequest, computation=name, address=to) for to in (address, ""))
    async with reached(one) as place, grpc.aio.insecure_channel(place) as channel:
        cluster = cluster_pb2_grpc.ClusterServiceStub(channel)
        cases: list[Any] = [(cluster.Drain, drain, keep), (cluster.Pin, pin, unpin), (cluster.Pin, unpin, pin)]
        for call, late, decided in cases:
            version = (await cluster.ListShards(pb.ListShardsRequest())).version
            await call(decided(version=version))
            before = one.cluster.view
            with pytest.raises(grpc.aio.AioRpcError, match="version is"):
                await call(late(version=version))
            assert one.cluster.view == before
        async with lowwater.aio.connect(place) as lw:
            assert await lw.drain(address) > 0
            await lw.pin(name, None)
        assert (one.cluster.view.members[1].draining, one.cluster.view.pins) == (True, {})


@pytest.mark.parametrize(("readable", "meant"), [(True, 7), (False, 0)])
async def test_a_group_names_its_incarnation_and_reads_no_whole_graph(readable: bool, meant: int) -> None:
    """One who may report, and not read, names none: the group is created all the same."""
    client = OfflineClient()
    requests: list[Any] = []

    async def call(question: Any) -> Any:
        if not isinstance(question, Gather):
            requests.append(question.request)
            return None
        requests.append(question.request(question.names))
        if not readable:
            raise errors.PermissionDenied("you may not read a")
        view = types_pb2.Watermark(computation="a", registered=True, incarnation=7)
        return question.take([watermarks_pb2.GetWatermarksResponse(watermarks=[view])])

    runtime = SimpleNamespace(calls=client.calls, call=call)
    group: Any = Tasks(SimpleNamespace(get=lambda: runtime), "a", client.surroundings)  # type: ignore[arg-type]
    await group.create_group("repairs")
    assert [request.DESCRIPTOR.name for request in requests] == ["GetWatermarksRequest", "CreateGroupRequest"]
    assert (list(requests[0].computations), requests[1].incarnation) == (["a"], meant)
