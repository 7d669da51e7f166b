"""Leases and tasks over a journal in memory: crashes at each point, fail-over, resets, waiting, and whose fault it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from lowwater import errors
from lowwater_authority.core import tasks
from lowwater_authority.core.tasks import NewTask, TaskGrant, TaskGroup, TaskKey, TaskLease, TaskState, tag
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.admission import Gate
from lowwater_authority.engine.rounds import Round
from lowwater_authority.engine.shard import Shard
from lowwater_authority.engine.task_master import TaskMaster
from tests.kit.faults import FaultPlan, Operation, Outcome
from tests.kit.memory_journal import MemoryDisk
from tests.kit.shards import Deployment, turns
from tests.kit.times import DAY, HOUR, SECOND
from tests.property import task_switches
from tests.property.core_driver import Driver
from tests.property.switches import off
from tests.unit.test_shard import Running
from tests.unit.test_shard import Gate as Held

nonces = count(1)
NOBODY = asyncio.Event()


class Master(TaskMaster):
    """A task master, and short words for what tests do with it. One computation, "a"."""

    def __init__(self, shard: Shard) -> None:
        self.waiting = Gate[Any]("task_waits", 2, 0)
        super().__init__(shard, self.waiting)

    async def manual(self, group: str = "repairs", *names: str, lease: int = 60 * SECOND) -> None:
        """A group, with these tasks in it."""
        await self.create_group("a", TaskGroup(group, lease=lease))
        if names:
            await self.create("a", group, [task(name) for name in names], 0)

    async def daily(self) -> None:
        await self.create_group("a", TaskGroup("daily", every=DAY, start=0))

    async def get(
        self, group: str = "repairs", *, worker: str = "w", wait: float = 0.0, nonce: bytes = b""
    ) -> TaskGrant | None:
        nonce = nonce or next(nonces).to_bytes(16)
        return await self.take("a", group, worker, nonce, wait=wait, leaving=NOBODY)

    async def lease(self, group: str = "repairs", *, worker: str = "w") -> TaskLease:
        taken = await self.get(group, worker=worker)
        assert taken is not None
        return taken.lease

    async def end(self, lease: TaskLease, *successors: NewTask, part: str = "part") -> None:
        await self.commit("a", lease, [output(lease, part)], b"", successors)

    async def shown(self, group: str = "repairs") -> list[tuple[int, str, str, int]]:
        """(event time in hours, name, state, version) of all tasks."""
        _, _, found, _ = await self.tasks("a", group, None, 1000)
        return [(task.key.at // HOUR, task.key.name, task.state.name, task.version) for task, _ in found]


def task(name: str, at: int = HOUR, payload: bytes = b"") -> NewTask:
    return NewTask(TaskKey(at, name), payload)


def output(lease: TaskLease, part: str = "part") -> str:
    return f"{tag(lease.version, lease.nonce)}/{part}"


async def begun(disk: MemoryDisk, faults: FaultPlan | None = None) -> tuple[Running, Master]:
    running = await Running(disk, faults).start()
    if "a" not in running.shard.topology.computations:
        await running.shard.register(Spec("a"))
    return running, Master(running.shard)


# -- rule 2: durable before visible ------------------------------------------------------------------------


async def durable_before_answered(disk: MemoryDisk, made: type[Shard]) -> None:
    """Each step is in the log before its caller hears of it."""
    gate = Held()
    running, master = await begun(disk, gate)
    await master.manual("repairs", "n1", "n2")
    running.shard.__class__ = made

    async def answered(step: Callable[[], Awaitable[Any]]) -> Any:
        gate.open.clear()
        gate.reached.clear()
        done = asyncio.ensure_future(step())
        await gate.reached.wait()
        await turns()
        early = done.done()
        gate.open.set()
        result = await done
        assert not early, "it is answered before it is durable"
        return result

    try:
        lease = await answered(master.lease)
        await answered(lambda: master.release("a", lease))
        lease = await answered(master.lease)
        await answered(lambda: master.end(lease, task("n3")))
        await answered(lambda: master.create("a", "repairs", [task("n4")], 0))
    finally:
        await running.stop()


class AnswersFirst(Shard):
    """Rule 2 switched off: the record is on its way when its callers are answered."""

    async def append(self, round_: Round) -> None:
        self.behind = asyncio.ensure_future(super().append(round_))
        await asyncio.sleep(0)


async def test_rule2_a_step_of_a_task_is_durable_before_it_is_answered(disk: MemoryDisk) -> None:
    await durable_before_answered(disk, Shard)


@off(2)
async def test_rule2_a_step_of_a_task_off(disk: MemoryDisk) -> None:
    await durable_before_answered(disk, AnswersFirst)


class Dies(FaultPlan):
    """Kills the machine at the next append: before it touches the disk, or behind that and before it is acknowledged."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__()
        self._disk = disk
        self.at = ""
        self.dead = asyncio.Event()

    async def before(self, operation: Operation) -> Outcome:
        if self.at == "before" and operation.name == "append":
            await self._die()
        return await super().before(operation)

    async def after(self, operation: Operation) -> None:
        if self.at == "after" and operation.name == "append":
            await self._die()

    async def _die(self) -> None:
        self._disk.crash()
        self.dead.set()
        await asyncio.Event().wait()


async def all_or_nothing(disk: MemoryDisk, at: str, step: str) -> None:
    """After a crash at this point of this step it is there as a whole or not at all, and a repeat of it gets the answer that was lost."""
    faults = Dies(disk)
    running, master = await begun(disk, faults)
    await master.manual("repairs", "n1")
    await master.manual("checks")
    nonce = b"n" * 16
    lease = None if step in ("create", "take") else await master.lease()

    def call(master: Master) -> Awaitable[Any]:
        match step:
            case "create":
                return master.create("a", "repairs", [task("n2"), task("n3")], 0)
            case "take":
                return master.get(nonce=nonce)
            case "release":
                assert lease is not None
                return master.release("a", lease)
            case _:
                assert lease is not None
                return master.end(lease, NewTask(TaskKey(HOUR, "after"), b"", "checks"), task("again"))

    before = await master.shown(), await master.shown("checks")
    faults.at = at
    lost = asyncio.ensure_future(call(master))
    await faults.dead.wait()
    assert not lost.done()
    running.task.cancel()
    lost.cancel()

    running, master = await begun(disk)
    found = await master.shown(), await master.shown("checks")
    first = await call(master)
    after = await master.shown(), await master.shown("checks")
    assert found == (before if at == "before" else after)
    assert (first, after) == (await call(master), (await master.shown(), await master.shown("checks"))), "a repeat"
    names = {
        "create": ([(1, "n1", "READY", 1), (1, "n2", "READY", 1), (1, "n3", "READY", 1)], []),
        "take": ([(1, "n1", "LEASED", 2)], []),
        "release": ([(1, "n1", "READY", 3)], []),
        "commit": ([(1, "again", "READY", 1), (1, "n1", "DONE", 2)], [(1, "after", "READY", 1)]),
    }
    if step == "create":
        assert first in (0, 2)
        first = 0
    assert after == names[step]
    await running.stop()


STEPS = ("create", "take", "release", "commit")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("at", ["before", "after"])
async def test_rule8_a_crash_around_the_append_leaves_a_step_whole_and_repeatable(
    disk: MemoryDisk, at: str, step: str
) -> None:
    if step == "create":
        # Its answer says how many were not there, which a repeat says otherwise.
        with pytest.raises(AssertionError, match="a repeat") if at == "before" else _fine():
            await all_or_nothing(disk, at, step)
        return
    await all_or_nothing(disk, at, step)


@off(8)
async def test_rule8_a_crash_off(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    task_switches.repeats_are_refused(monkeypatch)
    try:
        await all_or_nothing(disk, "after", "commit")
    except errors.StaleLease as error:
        raise AssertionError(error.message) from error
