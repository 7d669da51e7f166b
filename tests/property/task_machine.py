"""Random actions of workers and operators on tasks, done to the core and to its oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from lowwater import errors
from lowwater_authority.core import recovery, tasks
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.tasks import NewTask, TaskGroup, TaskKey, TaskLease, tag
from tests.property.core_driver import MAX, MIN, SECOND, Driver
from tests.property.search import Counting
from tests.property.task_oracle import Refused, Sizes, TaskOracle

SIZES = Sizes()
GROUPS = ("daily", "hourly", "repairs", "checks", "more")
DAY = 24 * SECOND

picks = st.integers(0, 7)
coins = st.booleans()
times = st.integers(0, 6)
new_tasks = st.lists(st.tuples(st.sampled_from(["", "repairs", "checks", "daily"]), times, picks), max_size=3)


def small(patch: Callable[[Any, str, int], None]) -> None:
    patch(tasks, "GROUPS", SIZES.groups)
    patch(tasks, "TASKS", SIZES.tasks)
    patch(tasks, "OPEN_INTERVALS", SIZES.open)
    patch(tasks, "REMEMBERED", SIZES.remembered)
    patch(tasks, "PAYLOAD_BYTES", SIZES.payload)


class TaskMachine(Counting):
    """Every rule does the same to both, compares what they answer, and then all they hold."""

    computation_class: type[Computation] = Computation

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(computation_class=self.computation_class)
        self.oracle = TaskOracle(SIZES)
        self.sequencer = self.driver.claim(b"", b"").sequencer
        self.snapshot: bytes | None = None
        self.now = 0
        self.tide = 0
        self.leases: list[TaskLease] = []
        self.commits: list[tuple[TaskLease, list[str], list[tuple[str, int, str, bytes]]]] = []
        self.nonces = 0

    @property
    def tasks(self) -> tasks.Tasks:
        return self.driver.core.tasks

    def same(self, kind: str, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
        try:
            result = ours()
            answer = result[0] if isinstance(result, tuple) else result
        except errors.LowwaterError as error:
            result, answer = None, error.reason
        try:
            expected = theirs()
        except Refused as refused:
            expected = refused.args[0]
        assert answer == expected, f"{kind}: {answer}, not {expected}"
        self.steps[kind] += 1
        if isinstance(answer, str):
            self.steps[answer] += 1
        self.check()
        return result

    def check(self) -> None:
        self.tasks.check()
        ours = {
            group.name: (
                group.configuration_version,
                group.next,
                group.mark,
                {
                    tuple(key): (task.state.name, task.version, task.worker, task.nonce, list(task.outputs))
                    for key, task in group.tasks.items()
                },
            )
            for group in self.tasks
        }
        assert ours == self.oracle.state()

    # -- groups ----------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        for pick in range(3):
            self.create_group(pick, repeat=True)
        self.settle()

    @rule(pick=picks, repeat=coins)
    def create_group(self, pick: int, repeat: bool) -> None:
        name = GROUPS[pick % len(GROUPS)]
        every = {"daily": DAY, "hourly": SECOND}.get(name, 0)
        start = -DAY if name == "daily" else 0
        lease = (5 if repeat or pick < 6 else 6) * SECOND
        configuration = b"one" if repeat else b"two"

        def ours() -> int:
            group = TaskGroup(name, every, start, lease, configuration)
            return self.tasks.create_group(group).configuration_version

        self.same("create_group", ours, lambda: self.oracle.create_group(name, every, start, lease, configuration))

    @rule(pick=picks, older=coins)
    def configure(self, pick: int, older: bool) -> None:
        name = GROUPS[pick % 3]
        version = self.tasks.groups[name].configuration_version - (older and pick > 3)
        configuration = b"%d" % (version if pick < 6 else 0)

        def ours() -> int:
            return self.tasks.configure(name, configuration, version).configuration_version

        self.same("configure", ours, lambda: self.oracle.configure(name, configuration, version))

    # -- tasks -----------------------------------------------------------------------------------------------

    def spelled(self, chosen: list[tuple[str, int, int]]) -> list[tuple[str, int, str, bytes]]:
        payloads = {6: b"q", 7: b"pp"}
        return [(group, self.tide + at, f"n{pick % 3}", payloads.get(pick, b"p")) for group, at, pick in chosen]

    @rule(pick=picks, chosen=new_tasks.filter(bool))
    def create(self, pick: int, chosen: list[tuple[str, int, int]]) -> None:
        name = GROUPS[2 + (pick > 5)] if pick else "daily"
        spelled = self.spelled([("", at, pick) for _, at, pick in chosen])
        tasks = [NewTask(TaskKey(at, called), payload) for _, at, called, payload in spelled]
        self.same("create", lambda: self.tasks.create(name, tasks), lambda: self.oracle.create(name, spelled))

    @rule(pick=picks, repeat=coins)
    def take(self, pick: int, repeat: bool) -> None:
        name = GROUPS[pick % 4]
        self.nonces += not (repeat and pick > 3 and self.nonces)
        nonce = b"%016d" % self.nonces

        def ours() -> Any:
            task = self.tasks.take(
                name, f"w{pick}", nonce, incarnation=self.oracle.incarnation, epoch=self.oracle.epoch, now=self.now
            )
            return None if task is None else ((*task.lease.key, task.lease.version), task.lease)

        lease = self.same("take", ours, lambda: self.oracle.take(name, f"w{pick}", nonce, self.now))
        if lease is not None:
            self.leases.append(lease[1])
            self.steps["taken"] += 1

    def lease(self, pick: int) -> TaskLease:
        return self.leases[-1 - pick % min(len(self.leases), 8)]

    @precondition(lambda self: self.leases)
    @rule(pick=picks)
    def renew(self, pick: int) -> None:
        lease = self.lease(pick)

        def ours() -> None:
            self.tasks.renew(lease, incarnation=self.oracle.incarnation, now=self.now)

        self.same("renew", ours, lambda: self.oracle.renew(lease, self.now))

    @precondition(lambda self: self.leases)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        lease = self.lease(pick)

        def ours() -> None:
            self.tasks.release(lease, incarnation=self.oracle.incarnation)

        self.same("release", ours, lambda: self.oracle.release(lease))

    @precondition(lambda self: self.leases)
    @rule(pick=picks, chosen=new_tasks, part=picks)
    def commit(self, pick: int, chosen: list[tuple[str, int, int]], part: int) -> None:
        lease = self.lease(pick)
        self.end(lease, [f"part-{part % 2}/{tag(lease.version, lease.nonce)}"], self.spelled(chosen))

    @precondition(lambda self: self.commits)
    @rule(pick=picks)
    def repeat_commit(self, pick: int) -> None:
        self.end(*self.commits[-1 - pick % len(self.commits)])
        self.steps["repeated"] += 1

    @rule(pick=picks, chosen=new_tasks, group=st.integers(0, 2))
    def do_some(self, pick: int, chosen: list[tuple[str, int, int]], group: int) -> None:
        for at in range(pick):
            if group == 2:
                self.create(1, [("", at, 0)])
            self.tide += SECOND
            self.advance(0)
            before = len(self.leases)
            self.take(group, repeat=False)
            if len(self.leases) > before:
                lease = self.leases[-1]
                if at % 2:
                    self.now += 6 * SECOND  # it has run out, everybody may see that, and nobody has taken it over
                    self.look(group)
                after = self.spelled(chosen) if at == pick - 1 else []
                mark = self.tasks.groups[GROUPS[group]].mark
                if group == 2 and at > 3 and mark > MIN:
                    after = [("", mark, "old", b"p")]  # as old as it may be
                self.end(lease, [tag(lease.version, lease.nonce)], after)

    @rule(group=st.integers(0, 2), late=coins)
    def do_all(self, group: int, late: bool) -> None:
        name, begun = GROUPS[group], len(self.leases)
        for _ in range(2 * SIZES.tasks if late else 1):
            self.tide += (SECOND, DAY)[group == 0]
            if group == 2:
                self.create(1, [("", 0, 0)])
            self.advance(0)
            self.take(group, repeat=False)
            for lease in self.leases[begun + late :]:
                self.end(lease, [tag(lease.version, lease.nonce)], [])
            del self.leases[begun + late :]
        while self.tasks.groups[name].unfinished:
            for lease in self.leases[begun:]:
                self.end(lease, [tag(lease.version, lease.nonce)], [])
            self.now += 6 * SECOND
            before = len(self.leases)
            self.take(group, repeat=False)
            begun = min(before, len(self.leases) - 1)
        following = self.tasks.groups[name].next
        self.settle()
        self.tide += (SECOND, DAY)[group == 0]
        overloaded = self.steps["OVERLOADED"]
        self.create(1, [("", 0, 0)])
        self.advance(0)
        if group == 2:
            assert self.steps["OVERLOADED"] == overloaded, "all are done, so there is room"
        else:
            assert following == MAX or self.tasks.groups[name].next > following, "all are done, so there is room"
        self.steps["all done"] += 1

    def look(self, group: int) -> None:
        name = GROUPS[group]

        self.same("look", lambda: len(self.tasks.group(name).look(self.now)), lambda: self.oracle.look(name, self.now))

    def end(self, lease: TaskLease, outputs: list[str], spelled: list[tuple[str, int, str, bytes]]) -> None:
        after = [NewTask(TaskKey(at, called), payload, group) for group, at, called, payload in spelled]

        def ours() -> None:
            self.tasks.commit(lease, outputs, b"", after, incarnation=self.oracle.incarnation)

        before = self.tasks.groups.get(lease.group)
        mark = MIN if before is None else before.mark
        self.same("commit", ours, lambda: self.oracle.commit(lease, outputs, spelled))
        self.commits.append((lease, outputs, spelled))
        after_all = self.tasks.groups.get(lease.group)
        self.steps["mark moved"] += after_all is not None and after_all.mark > mark

    # -- watermark, time and the store -----------------------------------------------------------------------

    @rule(by=times)
    def advance(self, by: int) -> None:
        self.tide += by * SECOND // 2
        lowers = self.tide < self.driver.core.map.minimum()
        self.driver.report(self.sequencer, self.tide, settle=False)
        self.oracle.low = max(self.oracle.low, self.tide)
        self.make_durable(lowers=lowers)

    @precondition(lambda self: self.oracle.low > 10 * SECOND)
    @rule()
    def finish(self) -> None:
        self.driver.report(self.sequencer, MAX, finish=True, settle=False)
        self.oracle.low = MAX
        self.settle()
        self.steps["finished"] += 1

    @rule()
    def settle(self) -> None:
        self.make_durable()

    def make_durable(self, *, lowers: bool = False) -> None:
        """Append a record. It is strong unless all it has can be lost together: an advance, and the intervals that this makes."""
        answered = self.oracle.settle()
        assert bool(self.driver.settle()) == (answered or lowers)
        self.check()

    @rule(by=times)
    def wait(self, by: int) -> None:
        self.now += by * SECOND

    @rule()
    def snap(self) -> None:
        self.settle()
        self.snapshot = recovery.snapshot(self.driver.core)
        self.driver.records.clear()
        self.steps["snapshot"] += 1

    @rule(pick=picks)
    def crash(self, pick: int) -> None:
        if pick > 2:
            return
        try:
            self.driver.crash(snapshot=self.snapshot)
        except recovery.ReplayError as error:
            raise AssertionError(str(error)) from error
        self.oracle.crash()
        self.check()
        self.steps["crash"] += 1

    @rule(group=st.integers(0, 2))
    def lose_a_lease(self, group: int) -> None:
        self.settle()
        before = len(self.leases)
        self.take(group, repeat=False)
        lost = self.leases[before:]
        self.crash(0)
        self.take(group, repeat=False)
        for lease in lost:
            self.end(lease, [tag(lease.version, lease.nonce)], [])
            self.steps["lost"] += 1

    @precondition(lambda self: self.leases)
    @rule(pick=picks)
    def reset(self, pick: int) -> None:
        if pick > 2:
            return
        self.settle()
        self.driver.reset()
        self.oracle.reset()
        self.sequencer = self.driver.claim(b"", b"").sequencer
        self.tide = 0
        self.settle()
        self.steps["reset"] += 1
        lease = self.leases[-1]
        self.end(lease, [tag(lease.version, lease.nonce)], [])
