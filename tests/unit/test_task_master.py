"""Leases and tasks over a journal in memory: versions, intervals, waiting, bounds, and whose fault it is."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from lowwater import errors
from lowwater_authority.core import tasks
from lowwater_authority.core.tasks import NewTask, TaskGrant, TaskGroup, TaskKey, TaskLease, TaskState, tag
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.admission import Gate
from lowwater_authority.engine.settings import ShardSettings
from lowwater_authority.engine.shard import Shard
from lowwater_authority.engine.task_master import TaskMaster
from tests.kit.faults import FaultPlan
from tests.kit.memory_journal import MemoryDisk
from tests.kit.shards import turns
from tests.kit.times import DAY, HOUR, SECOND
from tests.unit.test_shard import Running

nonces = count(1)


class Master(TaskMaster):
    """A task master, and short words for what tests do with it. One computation, "a"."""

    def __init__(self, shard: Shard) -> None:
        self.waiting = Gate[Any]("task_waits", 2, 0)
        super().__init__(shard, self.waiting)

    async def manual(self, group: str = "repairs", *names: str, lease: int = 60 * SECOND) -> None:
        await self.create_group("a", TaskGroup(group, lease=lease))
        if names:
            await self.create("a", group, [task(name) for name in names], 0)

    async def daily(self) -> None:
        await self.create_group("a", TaskGroup("daily", every=DAY, start=0))

    async def get(
        self, group: str = "repairs", *, worker: str = "w", wait: float = 0.0, nonce: bytes = b""
    ) -> TaskGrant | None:
        nonce = nonce or next(nonces).to_bytes(16)
        return await self.take("a", group, worker, nonce, wait=wait, leaving=asyncio.Event())

    async def lease(self, group: str = "repairs", *, worker: str = "w") -> TaskLease:
        task = await self.get(group, worker=worker)
        assert task is not None
        return task.lease

    async def end(self, lease: TaskLease, *successors: NewTask, part: str = "part") -> None:
        await self.commit("a", lease, [output(lease, part)], b"", successors)

    async def shown(self, group: str = "repairs") -> list[tuple[int, str, str, int]]:
        """(event time in hours, name, state, version) of all tasks."""
        _, _, tasks, _ = await self.tasks("a", group, None, 1000)
        return [(task.key.at // HOUR, task.key.name, task.state.name, task.version) for task, _ in tasks]


def task(name: str, at: int = HOUR, payload: bytes = b"") -> NewTask:
    return NewTask(TaskKey(at, name), payload)


def output(lease: TaskLease, part: str = "part") -> str:
    return f"{tag(lease.version, lease.nonce)}/{part}"


async def begun(
    disk: MemoryDisk, faults: FaultPlan | None = None, settings: ShardSettings | None = None
) -> tuple[Running, Master]:
    running = await Running(disk, faults, settings).start()
    if "a" not in running.shard.topology.computations:
        await running.shard.graph.register(Spec("a"))
    return running, Master(running.shard)


async def test_rule4_a_zombie_is_refused_by_its_version(disk: MemoryDisk) -> None:
    running, master = await begun(disk)
    await master.manual("repairs", "n1")
    old = await master.lease(worker="zombie")
    running.now += 61 * SECOND
    new = await master.lease(worker="living")
    assert (old.key, old.version + 2) == (new.key, new.version)
    assert output(old) != output(new), "they never write one name"
    with pytest.raises(errors.StaleLease, match="living has it now") as refused:
        await master.end(old)
    assert refused.value.metadata["version"] == "2"
    with pytest.raises(errors.StaleLease):
        await master.renew("a", old)
    with pytest.raises(errors.StaleLease):
        await master.release("a", old)
    await master.end(new)
    with pytest.raises(errors.StaleLease, match="it is done by living"):
        await master.end(old)
    await running.stop()


async def test_rule9_a_repeated_commit_may_not_say_something_else(disk: MemoryDisk) -> None:
    running, master = await begun(disk)
    await master.manual("repairs", "n1")
    lease = await master.lease()
    with pytest.raises(errors.InvalidArgument, match="may be what another lease has written") as refused:
        await master.commit("a", lease, ["part-0"], b"", [])
    assert refused.value.metadata["field"] == "outputs[0]"
    await master.end(lease)
    await master.end(lease)
    with pytest.raises(errors.TaskConflict, match="with other outputs"):
        await master.end(lease, part="other")
    await running.stop()


async def test_a_guess_has_no_intervals(disk: MemoryDisk) -> None:
    running, master = await begun(disk)
    await running.shard.graph.register(Spec("guess", estimated=True))
    with pytest.raises(errors.EstimatedInput, match="the watermarks of guess are estimates"):
        await master.create_group("guess", TaskGroup("daily", every=DAY))
    await master.create_group("guess", TaskGroup("repairs"))
    await running.stop()


async def test_what_has_intervals_becomes_no_guess(disk: MemoryDisk) -> None:
    running, master = await begun(disk)
    await master.daily()
    with pytest.raises(errors.RegistrationConflict, match="estimated False, and not True"):
        await running.shard.graph.register(Spec("a", estimated=True))
    await running.shard.graph.register(Spec("b"))
    await master.create_group("b", TaskGroup("repairs"))
    assert (await running.shard.graph.register(Spec("b", estimated=True))).estimated
    await running.stop()


async def test_a_task_wakes_as_many_as_it_has_work_for(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    running, master = await begun(disk, settings=ShardSettings(task_look_seconds=3600.0))
    await master.manual()
    await master.manual("checks")
    looks: list[str] = []
    take = tasks.Tasks.take

    def noted(self: tasks.Tasks, name: str, *about: Any, **more: Any) -> TaskGrant | None:
        looks.append(name)
        return take(self, name, *about, **more)

    monkeypatch.setattr(tasks.Tasks, "take", noted)
    first, second = (asyncio.ensure_future(master.get(wait=3600.0)) for _ in range(2))
    await turns()
    looks.clear()
    await master.create("a", "checks", [task("n1")], 0)
    await turns()
    assert looks == [], "it is of another group"
    await master.create("a", "repairs", [task("n2")], 0)
    assert await asyncio.wait_for(first, 30) is not None
    await turns()
    assert looks == ["repairs"]
    assert not second.done()
    await master.create("a", "repairs", [task("n3")], 0)
    assert await asyncio.wait_for(second, 30) is not None
    assert looks == ["repairs"] * 2
    await running.stop()


async def test_nobody_comes_and_those_who_wait_are_bounded(disk: MemoryDisk) -> None:
    running, master = await begun(disk)
    await master.manual()
    waiting = [asyncio.ensure_future(master.get(wait=3600.0)) for _ in range(2)]
    await turns()
    with pytest.raises(errors.Overloaded) as refused:
        await master.get(wait=3600.0)
    assert refused.value.metadata["bound"] == "task_waits"
    waiting[0].cancel()
    await turns()
    leaving = asyncio.Event()
    third = asyncio.ensure_future(master.take("a", "repairs", "w", b"3" * 16, wait=3600.0, leaving=leaving))
    await turns()
    leaving.set()
    assert await asyncio.wait_for(third, 30) is None, "the process stops"
    await master.create("a", "repairs", [task("n1")], 0)
    assert await asyncio.wait_for(waiting[1], 30) is not None
    await running.stop()


async def test_rule7_a_full_group_is_its_own_affair(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASKS", 3)
    monkeypatch.setattr(tasks, "GROUPS", 2)
    running, master = await begun(disk)
    await master.manual("repairs", "n1", "n2", "n3")
    with pytest.raises(errors.Overloaded, match=r"'n1' at .* is the oldest that is not done") as refused:
        await master.create("a", "repairs", [task("n4")], 0)
    assert refused.value.metadata["group"] == "repairs"
    await master.manual("checks", "n4")
    lease = await master.lease("checks")
    with pytest.raises(errors.Overloaded):
        await master.end(lease, NewTask(TaskKey(HOUR, "n5"), b"", "repairs"))
    assert await master.shown("checks") == [(1, "n4", "LEASED", 2)], "what is refused has changed nothing"
    await master.end(lease, task("n6"))
    with pytest.raises(errors.Overloaded) as refused:
        await master.manual("more")
    assert refused.value.metadata["bound"] == "task_groups"
    grant = await running.claim()
    assert await running.report(grant, 14) == []
    assert running.low() == 14, "watermarks go on"
    await running.stop()


async def test_a_refused_request_leaves_its_neighbours_in_the_round(disk: MemoryDisk) -> None:
    running, master = await begun(disk)
    await running.shard.graph.register(Spec("b"))
    await master.manual("repairs", "n1")
    await master.create_group("b", TaskGroup("repairs"))
    lease = await master.lease()
    stale = TaskLease(1, "repairs", lease.key, 4, 1, lease.epoch, lease.nonce)
    results = await asyncio.gather(
        master.end(stale),
        master.create("a", "nowhere", [task("n2")], 0),
        master.create("a", "repairs", [task("a", payload=bytes(tasks.PAYLOAD_BYTES + 1))], 0),
        master.create("b", "repairs", [task("n2")], 0),
        master.end(lease, task("n3")),
        return_exceptions=True,
    )
    reasons = [result.reason if isinstance(result, errors.LowwaterError) else result for result in results]
    assert reasons == ["STALE_LEASE", "UNKNOWN_GROUP", "INVALID_ARGUMENT", None, None]
    assert await master.shown() == [(1, "n1", "DONE", 2), (1, "n3", "READY", 1)]
    await running.stop()


def test_states_have_the_numbers_of_the_wire() -> None:
    assert [(state.name, int(state)) for state in TaskState] == [("READY", 1), ("LEASED", 2), ("DONE", 3)]
