"""Closes: workers that take the tasks of a computation's intervals, and what must never come of that.

Each interval of event time is closed once in each life of the computation, after all of it is finished, whoever is killed, frozen, cut off or thought dead
meanwhile. What is checked is checked when the authority *sends* it, before anybody hears of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Final

from lowwater import TaskState, errors
from lowwater._pb.lowwater.v1 import tasks_pb2
from lowwater._pb.lowwater.v1.tasks_pb2 import TaskLease as Lease
from tests.simulation.truth import MAX

if TYPE_CHECKING:
    from lowwater.aio import TaskLease, Tasks
    from tests.simulation.kernel import Process, Tap
    from tests.simulation.oracle import Oracle
    from tests.simulation.programs import Place

CLOSED: Final = "enriched"
"""Whose intervals are closed."""

GROUP: Final = "closes"
EVERY: Final = timedelta(hours=3)
START: Final = 1_357_344_000_000_000 - 12 * 3_600_000_000
"""Before the first record of a world."""

LEASE: Final = timedelta(seconds=3)
OPEN: Final = 4
"""Intervals of these worlds that are open at once."""

AWAY: Final = (
    errors.Timeout,
    errors.Unavailable,
    errors.ShuttingDown,
    errors.JournalFailed,
    errors.UnknownComputation,
    errors.UnknownGroup,
)
"""What a worker hears and goes on."""

LOST: Final = (errors.StaleLease, errors.IncarnationChanged, errors.BelowMark)
"""What a worker hears of a lease that counts no more."""

Interval = tuple[int, int]
"""Incarnation, and where it begins."""


def is_closing(seed: int) -> bool:
    """Whether intervals are closed in the world of a seed: in two of nine."""
    return seed % 9 in (0, 7)


@dataclass
class Granted:
    """What is known of the leases on one task."""

    by_version: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Epoch and nonce of each that was sent to somebody."""
    done: Lease | None = None
    """The lease whose commit was acknowledged."""


class Closes:
    """Knows what was granted and acknowledged. ``weak``: of what such a store forgets nothing is promised but that no interval is closed too early."""

    def __init__(self, oracle: Oracle, *, weak: bool) -> None:
        self._oracle = oracle
        self._weak = weak
        self._tasks: dict[Interval, Granted] = {}
        self._asked: dict[int, tasks_pb2.CommitTaskRequest] = {}
        self._lives: dict[int, int] = {}
        """By call: the newest incarnation of which a lease had been sent when a commit was sent."""
        self._life = 0
        self._closed: dict[tuple[str, int, int], int] = {}

    # -- what is sent ----------------------------------------------------------------------------------------

    def sent(self, tap: Tap) -> None:
        """A message leaves a process."""
        match tap.message:
            case tasks_pb2.TakeTaskResponse() as message if message.HasField("lease"):
                self._grants(tap, message)
            case tasks_pb2.CommitTaskRequest() as message:
                self._asked[tap.call] = tasks_pb2.CommitTaskRequest.FromString(message.SerializeToString())
                self._lives[tap.call] = self._life
            case tasks_pb2.CommitTaskResponse():
                self._acknowledges(tap, self._asked[tap.call].lease, self._lives[tap.call])
            case tasks_pb2.ListTasksResponse() as message:
                for group in message.groups:
                    if group.closed_micros > START:  # else none is closed, and a worker may still begin with older work
                        self._oracle.reached(tap.process, CLOSED, group.closed_micros, complete=True)

    def _grants(self, tap: Tap, message: tasks_pb2.TakeTaskResponse) -> None:
        lease, until = message.lease, message.task.until_micros
        about = f"{tap.process.name} leases the interval {lease.key.at_micros} to {until} under {lease.version}"
        self._oracle.reached(tap.process, CLOSED, until, complete=True)
        self._life = max(self._life, lease.key.incarnation)
        known = self._tasks.setdefault((lease.key.incarnation, lease.key.at_micros), Granted())
        before = known.by_version.setdefault(lease.version, (lease.epoch, lease.nonce))
        if self._weak:
            return
        self._oracle.expect(before == (lease.epoch, lease.nonce), f"{about}, which was another lease's version")
        # A repeat of an answer that was lost is no new lease.
        done = known.done
        self._oracle.expect(
            done is None or lease.version <= done.version, f"{about}, but it was closed under {done and done.version}"
        )

    def _acknowledges(self, tap: Tap, lease: Lease, life: int) -> None:
        about = f"{tap.process.name} acknowledges that {lease.key.at_micros} is closed under {lease.version}"
        if self._weak:
            return
        known = self._tasks.get((lease.key.incarnation, lease.key.at_micros), Granted())
        self._oracle.expect(lease.version in known.by_version, f"{about}, which nobody was granted")
        done = known.done = known.done or lease
        same = (done.version, done.epoch, done.nonce) == (lease.version, lease.epoch, lease.nonce)
        self._oracle.expect(same, f"{about}, after {done.version}")
        newest = max(known.by_version, default=0)
        self._oracle.expect(newest <= lease.version, f"{about}, but {newest} was granted")
        self._oracle.expect(
            lease.key.incarnation >= life, f"{about} in its incarnation {lease.key.incarnation}, after {life} had begun"
        )

    # -- what programs see -----------------------------------------------------------------------------------

    def looked(self, process: Process, incarnation: int, closed: int) -> None:
        """A program was told how far a life of the computation is closed."""
        key = (process.name, process.generation, incarnation)
        before = self._closed.get(key, closed)
        self._oracle.expect(
            closed >= before or self._weak, f"{process.name} sees that it is closed to {closed}, after {before}"
        )
        self._closed[key] = closed

    def audited(self, incarnation: int, found: list[tuple[int, int, tuple[str, ...]]]) -> None:
        """At the end, each interval (from, to, outputs) of the last life is there once and closed."""
        expected = START
        for at, until, outputs in found:
            self._oracle.expect(at == expected, f"an interval begins at {at}, and the one before it ends at {expected}")
            expected = until
            done = self._tasks.get((incarnation, at), Granted()).done
            named = done is None or any(f"{done.version}-{done.nonce.hex()}" in output for output in outputs)
            self._oracle.expect(named or self._weak, f"{at} was closed under {done and done.version}, and is {outputs}")
        self._oracle.expect(expected == MAX, f"the last interval ends at {expected}")


# -- programs --------------------------------------------------------------------------------------------------------------


async def close(place: Place, closes: Closes, process: Process) -> None:
    """One worker that closes intervals, as well as it can."""
    random = place.random(process)
    async with place.client(process) as lw:
        tasks = lw.tasks(CLOSED)
        while True:
            try:
                group = await tasks.create_group(GROUP, every=EVERY, start=START, lease=LEASE, configuration=b"first")
                closes.looked(process, group.incarnation, group.closed.micros)
                for group in await tasks.groups():  # these are as they were published, and not as they are
                    closes.looked(process, group.incarnation, group.closed.micros)
                if not place.calm and random.random() < 0.05:
                    await tasks.configure(GROUP, random.randbytes(4), group.configuration_version)
                    place.sim.reach("tasks: another configuration")
                lease = await tasks.take(GROUP, worker=process.name, wait=random.uniform(0, 8))
            except errors.RegistrationConflict:
                continue  # it was configured since: the first configuration is no repeat of it
            except (errors.TaskConflict, errors.IncarnationChanged):  # it was configured, or reset, since
                continue
            except AWAY as error:
                place.sim.reach(f"take: {error.reason}")
                await asyncio.sleep(random.uniform(0.2, 2))
                continue
            if lease is not None:
                await _work(place, process, tasks, lease, random)


async def _work(place: Place, process: Process, tasks: Tasks, lease: TaskLease, random: Random) -> None:
    """Close one interval, or be too slow, or give up; whatever is heard, go on."""
    worth = 1.0 if place.calm else random.random()
    slow = worth < 0.35
    await asyncio.sleep(random.uniform(3, 15) if slow else random.uniform(0.0, 1.5))
    try:
        if worth < 0.1:
            place.sim.reach("tasks: a worker forgot what it had taken")
        elif worth < 0.2:
            await lease.release()
        else:
            if random.random() < 0.3:
                await lease.renew()
            lease = tasks.resume(lease.token)
            await lease.commit([lease.output("close")])
            place.sim.reach("tasks: closed late" if slow else "tasks: closed")
            if random.random() < 0.3:
                await lease.commit([lease.output("close")])
    except LOST as error:
        place.sim.reach(f"a lease ended: {error.reason}")
    except AWAY as error:
        place.sim.reach(f"a commit or release: {error.reason}")


async def audit(place: Place, closes: Closes, process: Process) -> None:
    """At the end, when everything is finished: wait until everything is closed, and look at all of it."""
    async with place.client(process) as lw:
        tasks = lw.tasks(CLOSED)
        for _ in range(240):
            try:
                found = await tasks.list(GROUP, state=TaskState.DONE, limit=1000)
            except AWAY:
                await asyncio.sleep(0.5)
                continue
            if found.group.closed.finished and not found.group.ready and not found.group.leased:
                each = [(task.at.micros, task.until.micros, task.outputs) for task in found]
                closes.audited(found.group.incarnation, each)
                return
            await asyncio.sleep(0.5)
        place.oracle.fail(f"everything is finished, and not everything is closed: {await tasks.groups()}")
