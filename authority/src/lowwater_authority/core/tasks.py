"""Leases and tasks of one computation: groups of work, each piece of it done once by whoever takes it.

Google's Workflow ("Data Processing Pipelines", Site Reliability Engineering, chapter 25) keeps four guarantees: a commit needs the newest lease, the
newest configuration, outputs that no other lease names, and the server that granted it. Here they are versions, compared by equality:

    READY(v) -> LEASED(v + 1, worker) -> DONE(outputs)
                LEASED(v + 1) -> READY(v + 2)        given back, or taken over once the lease has run out

Each arrow is a step in the computation's next record, and so in its log, before it is answered. A commit and the tasks that it creates are one step.
No clock judges a commit: one may only *offer* a lease that has run out to others, and what nobody has taken still counts. When a lease runs out is in
memory only, so that after a fail-over every lease has its full time again.

A group may have intervals. Then its tasks are made as the low watermark passes the end of each, in the very record that moves it: whoever sees the
watermark there can rely on the task. Which intervals have theirs is one number of the group, so that each gets one, whatever happens in between.

No input, no output, no clock: the time is passed in. Staging, records, publishing and snapshots are those of core/computation.py.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from sortedcontainers import SortedDict, SortedSet

from lowwater import errors
from lowwater.watermark import Watermark
from lowwater_authority.core.times import DAY, MAX, MIN
from lowwater_authority.records import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

GROUPS: Final = 16
"""Most groups of one computation."""

TASKS: Final = 4096
"""Most tasks of one group, those included that are done and remembered."""

OPEN_INTERVALS: Final = 256
"""Most tasks of intervals that are not done. The next ones are made as these are done: which
intervals wait is known from one number."""

KEPT: Final = 256
"""Commits that a group remembers, the newest, unless it is short of room: one that is repeated
later is refused."""

TOGETHER: Final = 100
"""Most tasks that one call creates, and most outputs of one task."""

PAYLOAD_BYTES: Final = 1024
OUTPUT_BYTES: Final = 2048
"""Of all outputs of one task."""

DIGEST_BYTES: Final = 256
CONFIGURATION_BYTES: Final = 4096
NONCE_BYTES: Final = 16

SECOND: Final = 1_000_000
DEFAULT_LEASE: Final = 60 * SECOND
LONGEST_LEASE: Final = 7 * DAY
LONGEST_INTERVAL: Final = 366 * DAY

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""Of a group, and of a task that a call creates."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
YEARS: Final = (
    (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND,
    (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND,
)
"""The first and the last microsecond that a date can say."""


class TaskState(enum.IntEnum):
    """How a task stands. The numbers are those of the wire and the journal."""

    READY = 1
    LEASED = 2
    DONE = 3


class TaskKey(NamedTuple):
    """Which task of a group. Tasks are ordered by it, the oldest work first."""

    at: int
    """The event time of the oldest work that the task stands for, microseconds."""
    name: str
    """Empty for the task of an interval."""


@dataclass(frozen=True, slots=True)
class TaskLease:
    """A lease as it was granted, and as a commit has to name it."""

    incarnation: int
    group: str
    key: TaskKey
    version: int
    configuration_version: int
    epoch: int
    """Which ownership of the log has granted it: see ``epoch_base`` in engine/holding.py, without
    the counter."""
    nonce: bytes


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task that is to be created.

    ``group`` is empty for a successor in the group of the task that is committed.
    """

    key: TaskKey
    payload: bytes = b""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A task. Every step makes another one of it."""

    key: TaskKey
    until: int
    """Where its interval ends, exclusive; else as ``key.at``."""
    payload: bytes = b""
    version: int = 1
    state: TaskState = TaskState.READY
    worker: str = ""
    """Who has the newest lease, or had it."""
    nonce: bytes = b""
    epoch: int = 0
    outputs: tuple[str, ...] = ()
    digest: bytes = b""
    asked: bytes = b""
    """Digest of all that its commit has asked for."""

    def is_held_by(self, lease: TaskLease) -> bool:
        """Whether a lease is the one that the task was last granted under.

        Everything is compared by equality: nothing here is ever *older*.
        """
        return (self.version, self.epoch, self.nonce) == (lease.version, lease.epoch, lease.nonce)


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """What is shown of a group; see the wire's TaskGroup for the fields."""

    name: str
    every: int
    start: int
    lease: int
    configuration: bytes
    configuration_version: int
    mark: int
    closed: int
    ready: int
    leased: int
    done: int


class TaskGrant(NamedTuple):
    """A lease with all that its worker is to know."""

    lease: TaskLease
    task: Task
    configuration: bytes
    micros: int
    """For how long the lease is offered to nobody else."""


class Offers:
    """When leases are offered to others, by the caller's clock.

    It is not journaled: a lease whose time is not known here has its full time from when somebody
    looks for it.
    """

    def __init__(self) -> None:
        self._undated: dict[TaskKey, None] = {}
        self._due: dict[TaskKey, int] = {}
        self._order: SortedSet[tuple[int, TaskKey]] = SortedSet()
        self._lapsed: SortedSet[TaskKey] = SortedSet()

    def keys(self) -> set[TaskKey]:
        """Return what is leased. O(leases)."""
        return {*self._undated, *self._due, *self._lapsed}

    def add(self, key: TaskKey) -> None:
        """Know of a lease."""
        self._undated[key] = None

    def discard(self, key: TaskKey) -> None:
        """Forget a lease. O(log leases)."""
        self._undated.pop(key, None)
        self._lapsed.discard(key)
        if key in self._due:
            self._order.discard((self._due.pop(key), key))

    def date(self, key: TaskKey, due: int) -> None:
        """Offer a lease to nobody before a time. O(log leases)."""
        self.discard(key)
        self._due[key] = due
        self._order.add((due, key))

    def look(self, now: int, lease: int) -> SortedSet[TaskKey]:
        """Return what has run out; the time of those whose time is not known begins now, and is ``lease`` long."""
        for key in list(self._undated):
            self.date(key, now + lease)
        while self._order and self._order[0][0] <= now:
            _, key = self._order.pop(0)
            del self._due[key]
            self._lapsed.add(key)
        return self._lapsed

    @property
    def next(self) -> int | None:
        """When the next lease runs out."""
        return self._order[0][0] if self._order else None


@dataclass(slots=True)
class TaskGroup:
    """The tasks of one group.

    Cost: a step is O(log tasks), and so is each lease that runs out, once.
    """

    name: str
    every: int = 0
    start: int = 0
    lease: int = DEFAULT_LEASE
    configuration: bytes = b""
    configuration_version: int = 1
    created_with: bytes = b""
    """Digest of the configuration that it was created with, which a repeat of that names."""
    next: int = 0
    """Where the first interval begins that has no task yet; MAX: there is none any more."""
    mark: int = MIN
    tasks: SortedDict[TaskKey, Task] = field(default_factory=SortedDict[TaskKey, Task])
    ready: SortedSet[TaskKey] = field(default_factory=SortedSet)
    leased: SortedSet[TaskKey] = field(default_factory=SortedSet)
    done: dict[TaskKey, None] = field(default_factory=dict)
    """What is done and remembered, in the order of the commits."""
    nonces: dict[bytes, TaskKey] = field(default_factory=dict)
    """What is leased, by what its worker calls the lease."""
    offers: Offers = field(default_factory=Offers)
    _messages: dict[TaskKey, bytes] = field(default_factory=dict)
    """Each task as a snapshot has it."""
    offered: int = 0
    """How often a task has become ready, since this process holds it."""

    @property
    def closed(self) -> int:
        """Below this event time every task is done: of a group with intervals, that is how far they are closed."""
        oldest = self.oldest
        return min(self.next if self.every else MAX, MAX if oldest is None else oldest.at)

    @property
    def oldest(self) -> TaskKey | None:
        """The oldest task that is not done."""
        return min([*self.ready[:1], *self.leased[:1]], default=None)

    @property
    def unfinished(self) -> int:
        """How many tasks are not done."""
        return len(self.ready) + len(self.leased)

    def figures(self) -> GroupFigures:
        """Return what is shown of it."""
        return GroupFigures(
            self.name,
            self.every,
            self.start,
            self.lease,
            self.configuration,
            self.configuration_version,
            self.mark,
            self.closed,
            len(self.ready),
            len(self.leased),
            len(self.done),
        )

    def restarted(self) -> TaskGroup:
        """Return the group as a new incarnation begins with it: as it is defined, without a task."""
        return TaskGroup(
            self.name,
            self.every,
            self.start,
            self.lease,
            self.configuration,
            self.configuration_version,
            self.created_with,
            next=self.start,
        )

    def put(self, task: Task) -> None:
        """Let a task stand as it does now."""
        old = self.tasks.get(task.key)
        if old is not None:
            self._forget(old)
        self.tasks[task.key] = task
        self._messages[task.key] = _encoded(task)
        match task.state:
            case TaskState.READY:
                self.ready.add(task.key)
                self.offered += 1
            case TaskState.LEASED:
                self.leased.add(task.key)
                self.offers.add(task.key)
                self.nonces[task.nonce] = task.key
            case TaskState.DONE:
                self.done[task.key] = None

    def encoded(self) -> bytes:
        """Return all tasks, encoded; what is done in the order of the commits, which is found again by that. O(bytes)."""
        return b"".join(map(self._messages.__getitem__, (*self.ready, *self.leased, *self.done)))

    def _forget(self, task: Task) -> None:
        del self._messages[task.key]
        self.ready.discard(task.key)
        self.leased.discard(task.key)
        self.done.pop(task.key, None)
        self.offers.discard(task.key)
        if self.nonces.get(task.nonce) == task.key:
            del self.nonces[task.nonce]

    def raise_mark(self, mark: int) -> None:
        """Forget the tasks below an event time. All of them are done."""
        while self.tasks and self.tasks.peekitem(0)[0].at < mark:
            _, task = self.tasks.popitem(0)
            self._forget(task)
        self.mark = mark

    def mark_behind(self, ended: TaskKey, successors: Collection[TaskKey]) -> int:
        """Return where the mark is to be once one more task is done, and others follow from it in this group.

        It stays below all that is unfinished. It stays below the ``KEPT`` tasks that were committed last, too, whose commits may be repeated, as
        far as there is room: see :meth:`_may_remember`. Else one commit of old work would hold what is done behind it for ever. Of what is too much
        the oldest work is forgotten first.
        """
        unfinished = [key for key in (*self.ready[:2], *self.leased[:2]) if key != ended]
        limit = min((key.at for key in (*unfinished, *successors)), default=MAX)
        if self.every:
            limit = min(limit, self.next)
        mark = self.mark
        if len(self.done) >= KEPT:
            recent = islice(reversed(self.done), KEPT - 1)
            mark = min(key.at for key in (*recent, ended))
        surplus = len(self.done) + 1 - self._may_remember(self.unfinished - 1 + len(successors))
        if surplus > 0:
            last = self.tasks.peekitem(min(surplus, len(self.tasks)) - 1)[0]
            mark = max(mark, last.at + 1)
        return max(self.mark, min(mark, limit))

    @staticmethod
    def _may_remember(unfinished: int) -> int:
        """Return how many tasks that are done may be remembered beside so many that are not.

        ``KEPT`` places stay free for what comes next. Only where nearly all is unfinished are these
        used too, for the newest commits.
        """
        left = TASKS - unfinished
        return max(left - KEPT, min(left, KEPT))

    def held_from(self, mark: int) -> int:
        """Return how many tasks there are at an event time or behind it. O(log tasks)."""
        return len(self.tasks) - self.tasks.bisect_left(TaskKey(mark, ""))

    def look(self, now: int) -> SortedSet[TaskKey]:
        """Return the leases that have run out, the oldest work first."""
        return self.offers.look(now, self.lease)

    def next_offer(self, now: int) -> int | None:
        """Return when a task can be taken: ``now`` or before it, at once; None: not before something else happens."""
        return now if self.ready or self.look(now) else self.offers.next

    def reach(self, low: int) -> int:
        """Return up to where intervals are to have tasks at a low watermark, as far as there is room.

        MAX has no boundary before it: what is left is one interval without an end.
        """
        room = min(OPEN_INTERVALS - self.unfinished, TASKS - len(self.tasks))
        if self.next == MAX or room <= 0:
            return self.next
        if low == MAX:
            return MAX
        passed = max(0, low - self.next) // self.every
        return self.next + min(passed, room) * self.every

    def check(self) -> None:
        """Assert every invariant. O(tasks)."""
        by_state = {TaskState.READY: self.ready, TaskState.LEASED: self.leased, TaskState.DONE: self.done}
        assert sum(map(len, by_state.values())) == len(self.tasks) <= TASKS
        for state, keys in by_state.items():
            assert all(self.tasks[key].state is state for key in keys)
        assert self._messages.keys() == self.tasks.keys()
        assert sorted(self.nonces.values()) == list(self.leased), "each lease has a nonce of its own"
        assert self.offers.keys() == set(self.leased)
        for key, task in self.tasks.items():
            assert task.key == key
            assert key.at >= self.mark, "what is below the mark is forgotten"
            assert task.version % 2 == (task.state is TaskState.READY), "only what is ready has an odd version"
            assert not self.every or (key.at < self.next and not key.name)
        assert self.every or self.next == self.start == 0
        assert not self.every or self.next == MAX or (self.next - self.start) % self.every == 0
        assert not self.every or self.mark <= self.next


class Tasks:
    """The groups of one computation, and the steps that its next record will have.

    Live requests and replayed steps change state by the same function, :meth:`apply`. Every check
    comes before the first step of a request: one that is refused has changed nothing.
    """

    def __init__(self, groups: Iterable[TaskGroup] = ()) -> None:
        self.groups: dict[str, TaskGroup] = {group.name: group for group in groups}
        self.published: tuple[GroupFigures, ...] = ()
        """The groups by name, as of the last durable record. Never changed, only replaced: threads
        may read it."""
        self._unpublished = True
        self._steps: list[pb.TaskStep] = []
        self._strong = False

    def restarted(self) -> Tasks:
        """Return what a new incarnation begins with: the groups without their tasks.

        Intervals are counted from their start again.
        """
        return Tasks(group.restarted() for group in self.groups.values())

    # -- groups ------------------------------------------------------------------------------------

    def group(self, name: str) -> TaskGroup:
        """Return a group. Raises UnknownGroup."""
        if name not in self.groups:
            msg = f"there is no group of tasks {name!r}; create it, or correct the spelling"
            raise errors.UnknownGroup(msg, metadata={"group": name})
        return self.groups[name]

    def create_group(self, wanted: TaskGroup) -> GroupFigures:
        """Create a group, unless it is there.

        Raises InvalidArgument, RegistrationConflict, Overloaded.
        """
        _check_group(wanted)
        known = self.groups.get(wanted.name)
        asked = digest([wanted.configuration])
        if known is not None:
            same = (known.every, known.start, known.lease) == (wanted.every, wanted.start, wanted.lease)
            if not same or (asked != known.created_with and wanted.configuration != known.configuration):
                msg = (
                    f"the group {wanted.name!r} is there with another {'configuration' if same else 'interval, start or lease'}; "
                    "use another name, or change the configuration by itself"
                )
                raise errors.RegistrationConflict(msg, metadata={"group": wanted.name})
            return known.figures()
        if len(self.groups) >= GROUPS:
            msg = f"{GROUPS} groups of tasks hang under this computation, the most there can be; use one of them"
            raise errors.Overloaded(msg, metadata={"bound": "task_groups", "limit": str(GROUPS)})
        made = pb.TaskGroup(
            name=wanted.name,
            every_micros=wanted.every,
            start_micros=wanted.start,
            lease_micros=wanted.lease,
            configuration=wanted.configuration,
            configuration_version=1,
            created_with=asked,
            next_micros=wanted.start,
            mark_micros=MIN,
        )
        self._step(pb.TaskStep(group=wanted.name, created_group=made))
        return self.groups[wanted.name].figures()

    def configure(self, name: str, configuration: bytes, version: int) -> GroupFigures:
        """Change a group's configuration from the one of ``version``, and end all leases of the group. Raises UnknownGroup, TaskConflict."""
        group = self.group(name)
        _check_bytes("configuration", configuration, CONFIGURATION_BYTES)
        if (group.configuration_version, group.configuration) == (version + 1, configuration):
            return group.figures()  # a repeat
        if group.configuration_version != version:
            msg = f"version {group.configuration_version} of the configuration of {name!r} is in force, not {version}; look at it first"
            facts = {"group": name, "configuration_version": str(group.configuration_version)}
            raise errors.TaskConflict(msg, metadata=facts)
        changed = pb.TaskConfiguration(configuration=configuration, version=version + 1)
        self._step(pb.TaskStep(group=name, configured=changed))
        return group.figures()

    # -- tasks -------------------------------------------------------------------------------------

    def create(self, name: str, tasks: Sequence[NewTask]) -> None:
        """Create tasks, all or none; those that are there stay as they are.

        Raises UnknownGroup, InvalidArgument, BelowMark, TaskConflict, Overloaded.
        """
        if not tasks:
            raise _bad("tasks", "is empty", f"send 1 to {TOGETHER} tasks")
        if any(task.group for task in tasks):
            raise _bad("tasks.group", "is set", "leave it empty: the call names the group")
        new = self._new("tasks", name, tasks)
        self._check_room(new)
        for step in new:
            self._step(pb.TaskStep(group=name, created=step))

    def _new(self, field: str, own: str, tasks: Sequence[NewTask]) -> list[pb.NewTask]:
        """Return those of some tasks that are not there, each with its group.

        Raises as create, but for room, before anything is changed.
        """
        if len(tasks) > TOGETHER:
            raise _bad(field, f"has {len(tasks)} tasks", f"send at most {TOGETHER} at a time")
        new: dict[tuple[str, TaskKey], pb.NewTask] = {}
        for place, task in enumerate(tasks):
            about, name = f"{field}[{place}]", task.group or own
            group = self.group(name)
            if group.every:
                fix = "use a group without intervals: those of this one are made as the low watermark passes them"
                raise _bad(f"{about}.group", "has intervals", fix)
            if NAME.fullmatch(task.key.name) is None:
                raise _bad(f"{about}.name", "is no name", "1 to 128 of A-Z a-z 0-9 _ . -")
            if not MIN < task.key.at < MAX:
                raise _bad(f"{about}.at_micros", "is no time", "the event time of the oldest work that the task is for")
            _check_bytes(f"{about}.payload", task.payload, PAYLOAD_BYTES)
            known: Task | pb.NewTask | None = group.tasks.get(task.key) or new.get((name, task.key))
            if known is not None:
                if known.payload != task.payload:
                    msg = f"{about} is there with another payload; give what is other work another name"
                    raise errors.TaskConflict(msg, metadata={"group": name, "task": task.key.name})
                continue
            if task.key.at < group.mark:
                msg = (
                    f"{about} is at {task.key.at}, below the mark {group.mark} of the group {name!r}: all work before that is done and forgotten, so "
                    "nobody can tell whether this task was among it"
                )
                raise errors.BelowMark(msg, metadata={"group": name, "mark": str(group.mark)})
            new[name, task.key] = pb.NewTask(key=_key_message(task.key), payload=task.payload, group=name)
        return list(new.values())

    def _check_room(self, new: Sequence[pb.NewTask], marks: Mapping[str, int] | None = None) -> None:
        """Raise Overloaded when a group has no room for its new tasks.

        ``marks``: of the groups in which the same step forgets what is below.
        """
        marks = marks or {}
        for name, count in Counter(task.group for task in new).items():
            group = self.groups[name]
            if group.held_from(marks.get(name, group.mark)) + count > TASKS:
                raise self._full(group)

    def _full(self, group: TaskGroup) -> errors.Overloaded:
        oldest = group.oldest
        about = (
            f"{oldest.name!r} at {oldest.at} is the oldest that is not done, and holds what is done behind it"
            if oldest is not None
            else "all of them are done; give new tasks later event times"
        )
        msg = f"the group {group.name!r} has {TASKS} tasks, the most it can have; {about}"
        return errors.Overloaded(msg, metadata={"bound": "tasks", "limit": str(TASKS), "group": group.name})

    def take(self, name: str, worker: str, nonce: bytes, *, incarnation: int, epoch: int, now: int) -> TaskGrant | None:
        """Lease the oldest task that is ready, or whose lease has run out; None: there is none.

        Raises UnknownGroup, InvalidArgument.

        A repeat under the same nonce gets the same lease for as long as it counts.
        """
        group = self.group(name)
        if len(nonce) != NONCE_BYTES:
            raise _bad("nonce", f"has {len(nonce)} bytes", f"send {NONCE_BYTES} random bytes")
        if nonce in group.nonces:
            return self._taken(group, group.tasks[group.nonces[nonce]], incarnation)
        key = min([*group.ready[:1], *group.look(now)[:1]], default=None)
        if key is None:
            return None
        task = group.tasks[key]
        if task.state is TaskState.LEASED:
            self._step(pb.TaskStep(group=name, ready=pb.TaskReady(key=_key_message(key), version=task.version + 1)))
            task = group.tasks[key]
        leased = pb.TaskLeased(key=_key_message(key), version=task.version + 1, worker=worker, nonce=nonce, epoch=epoch)
        self._step(pb.TaskStep(group=name, leased=leased))
        group.offers.date(key, now + group.lease)
        return self._taken(group, group.tasks[key], incarnation)

    def _taken(self, group: TaskGroup, task: Task, incarnation: int) -> TaskGrant:
        lease = TaskLease(
            incarnation, group.name, task.key, task.version, group.configuration_version, task.epoch, task.nonce
        )
        return TaskGrant(lease, task, group.configuration, group.lease)

    def renew(self, lease: TaskLease, *, incarnation: int, now: int) -> int:
        """Offer a lease to nobody for its full time from now on, which is returned.

        Changes nothing that is journaled. Raises as commit.
        """
        group = self._group_of(lease, incarnation)
        task = self._held(group, lease)
        group.offers.date(task.key, now + group.lease)
        return group.lease

    def release(self, lease: TaskLease, *, incarnation: int) -> None:
        """Give a lease back.

        A repeat changes nothing until the task is taken again. Raises as commit.
        """
        group = self._group_of(lease, incarnation)
        task = group.tasks.get(lease.key)
        if task is not None and replace(task, version=task.version - 1).is_held_by(lease):
            return  # given back, by this call or otherwise, and nobody has taken it since
        task = self._held(group, lease)
        self._step(
            pb.TaskStep(group=group.name, ready=pb.TaskReady(key=_key_message(task.key), version=task.version + 1))
        )

    def commit(
        self,
        lease: TaskLease,
        outputs: Sequence[str],
        digest_of_outputs: bytes,
        successors: Sequence[NewTask],
        *,
        incarnation: int,
    ) -> None:
        """End a task, and create those that follow from it, in one step.

        A repeat changes nothing and gets the same answer.

        Raises IncarnationChanged, UnknownGroup, StaleLease unless the lease is the newest one of
        the task; BelowMark when that is not known any more; TaskConflict when the lease has
        committed something else; InvalidArgument; and for successors as create.
        """
        group = self._group_of(lease, incarnation)
        _check_outputs(lease, outputs)
        _check_bytes("digest", digest_of_outputs, DIGEST_BYTES)
        asked = _asked(lease, outputs, digest_of_outputs, successors)
        task = group.tasks.get(lease.key)
        if task is not None and task.state is TaskState.DONE and task.is_held_by(lease):
            if task.asked != asked:
                msg = "this lease has committed the task already, with other outputs; it stays as it is"
                raise errors.TaskConflict(msg, metadata=_about(lease))
            return
        task = self._held(group, lease)
        new = self._new("successors", group.name, successors)
        mark = group.mark_behind(task.key, [_key(each.key) for each in new if each.group == group.name])
        self._check_room(new, {group.name: mark})
        done = pb.TaskDone(
            key=_key_message(task.key),
            version=task.version,
            outputs=outputs,
            digest=digest_of_outputs,
            asked=asked,
            successors=new,
            mark_micros=mark,
        )
        self._step(pb.TaskStep(group=group.name, done=done))

    def _group_of(self, lease: TaskLease, incarnation: int) -> TaskGroup:
        if lease.incarnation != incarnation:
            msg = (
                f"the lease is of the incarnation {lease.incarnation}, and {incarnation} is in force: the tasks of that one ended with it, and this one "
                "makes its own. Drop what was made, and take a task anew."
            )
            raise errors.IncarnationChanged(msg, metadata=_about(lease))
        return self.group(lease.group)

    def _held(self, group: TaskGroup, lease: TaskLease) -> Task:
        """Return the task of a lease that counts. Raises StaleLease, and BelowMark."""
        task = group.tasks.get(lease.key)
        if task is None and lease.key.at < group.mark:
            msg = f"all tasks before {group.mark} are done and forgotten; whether this lease has done its own is not known any more"
            raise errors.BelowMark(msg, metadata={**_about(lease), "mark": str(group.mark)})
        stale = _why_stale(task, group, lease)
        if task is None or stale:
            about = lease.key.name or f"the interval from {Watermark(lease.key.at)}"
            msg = f"the lease of {about} counts no more: {stale}. Drop what was made, and take a task anew."
            raise errors.StaleLease(msg, metadata=_about(lease))
        return task

    # -- intervals ---------------------------------------------------------------------------------

    def pass_low(self, low: int) -> None:
        """Make the tasks of the intervals that a low watermark has passed.

        To be called for each record, with what it publishes. O(groups + new ones).
        """
        for group in self.groups.values():
            if not group.every:
                continue
            through = group.reach(low)
            if through > group.next:
                passed = pb.IntervalsPassed(through_micros=through)
                # Losing it is safe: it is of the record that moves the watermark, or of a strong
                # one.
                self._step(pb.TaskStep(group=group.name, passed=passed), strong=False)

    # -- steps -------------------------------------------------------------------------------------

    @property
    def changed(self) -> bool:
        """Whether there are steps that no record has yet."""
        return bool(self._steps)

    def take_steps(self) -> tuple[list[pb.TaskStep], bool]:
        """Return the steps for the next record, and whether losing one of them is not safe (rule 10)."""
        steps, strong = self._steps, self._strong
        self._steps, self._strong = [], False
        return steps, strong

    def _step(self, step: pb.TaskStep, *, strong: bool = True) -> None:
        self.apply(step)
        self._steps.append(step)
        self._strong = self._strong or strong

    def apply(self, step: pb.TaskStep) -> None:
        """Take one step, live or replayed.

        Raises KeyError or ValueError when it does not follow from those before it.
        """
        self._unpublished = True
        if step.WhichOneof("kind") == "created_group":
            if step.group in self.groups:
                msg = f"the group {step.group!r} is created twice"
                raise ValueError(msg)
            self.groups[step.group] = restored(step.created_group)
            return
        group = self.groups[step.group]
        match step.WhichOneof("kind"):
            case "configured":
                _follows(step.configured.version, group.configuration_version)
                group.configuration = step.configured.configuration
                group.configuration_version = step.configured.version
                for key in list(group.leased):
                    task = group.tasks[key]
                    group.put(replace(task, state=TaskState.READY, version=task.version + 1))
            case "created":
                self._apply_created(step.created)
            case "leased":
                task = _standing(group, step.leased.key, TaskState.READY)
                leased = step.leased
                _follows(leased.version, task.version)
                group.put(
                    replace(
                        task,
                        state=TaskState.LEASED,
                        version=leased.version,
                        worker=leased.worker,
                        nonce=leased.nonce,
                        epoch=leased.epoch,
                    )
                )
            case "ready":
                task = _standing(group, step.ready.key, TaskState.LEASED)
                _follows(step.ready.version, task.version)
                group.put(replace(task, state=TaskState.READY, version=step.ready.version))
            case "done":
                self._apply_done(group, step.done)
            case "passed":
                _apply_passed(group, step.passed.through_micros)
            case kind:
                msg = f"unknown step {kind} of a task"
                raise ValueError(msg)

    def _apply_created(self, new: pb.NewTask) -> None:
        group, key = self.groups[new.group], _key(new.key)
        if key in group.tasks or key.at < group.mark:
            msg = f"the task {key} of {new.group!r} is created twice"
            raise ValueError(msg)
        group.put(Task(key, key.at, new.payload))

    def _apply_done(self, group: TaskGroup, done: pb.TaskDone) -> None:
        task = _standing(group, done.key, TaskState.LEASED)
        if done.version != task.version:
            msg = f"version {done.version} of {task.key} is done, and it is leased under {task.version}"
            raise ValueError(msg)
        ended = replace(task, state=TaskState.DONE, outputs=tuple(done.outputs), digest=done.digest, asked=done.asked)
        group.put(ended)
        for new in done.successors:
            self._apply_created(new)
        if done.mark_micros < group.mark:
            msg = f"the mark of {group.name!r} goes back from {group.mark} to {done.mark_micros}"
            raise ValueError(msg)
        group.raise_mark(done.mark_micros)

    def publish(self) -> None:
        """Show the groups as they are, after their record is durable.

        O(groups), if any has changed.
        """
        if self._unpublished:
            self.published, self._unpublished = tuple(group.figures() for group in self), False

    def snapshot(self) -> list[bytes]:
        """Return each group as a message, encoded.

        O(bytes): tasks were encoded as they changed, for thousands would take too long at once.
        """
        return [_group_message(group).SerializeToString() + group.encoded() for group in self.groups.values()]

    def check(self) -> None:
        """Assert every invariant. O(tasks)."""
        assert len(self.groups) <= GROUPS
        for name, group in self.groups.items():
            assert group.name == name
            group.check()

    def __iter__(self) -> Iterator[TaskGroup]:
        """Go through the groups, by name."""
        return iter(sorted(self.groups.values(), key=lambda group: group.name))


def restored(message: pb.TaskGroup) -> TaskGroup:
    """Return the group of a message, without its tasks."""
    return TaskGroup(
        message.name,
        message.every_micros,
        message.start_micros,
        message.lease_micros,
        message.configuration,
        message.configuration_version,
        message.created_with,
        next=message.next_micros,
        mark=message.mark_micros,
    )


def restored_task(message: pb.Task) -> Task:
    """Return the task of a message."""
    return Task(
        _key(message.key),
        message.until_micros,
        message.payload,
        message.version,
        TaskState(message.state),
        message.worker,
        message.nonce,
        message.epoch,
        tuple(message.outputs),
        message.digest,
        message.asked,
    )


def tag(version: int, nonce: bytes) -> str:
    """Return what each output of a lease has in its name, and no output of any other lease.

    >>> tag(2, bytes(16))
    '2-00000000000000000000000000000000'
    """
    return f"{version}-{nonce.hex()}"


def digest(parts: Sequence[bytes]) -> bytes:
    """Return a digest of several texts: whoever divides them otherwise gets another one."""
    found = sha256()
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.digest()[:16]


def _asked(lease: TaskLease, outputs: Sequence[str], of_outputs: bytes, successors: Sequence[NewTask]) -> bytes:
    after = [
        part
        for each in successors
        for part in (each.group.encode(), b"%d" % each.key.at, each.key.name.encode(), each.payload)
    ]
    parts = [output.encode() for output in outputs]
    return digest([b"%d %d" % (lease.configuration_version, len(outputs)), *parts, of_outputs, *after])


def _apply_passed(group: TaskGroup, through: int) -> None:
    """Make one task for each interval up to a boundary; for MAX, one for all that is left."""
    whole = through == MAX or (through - group.next) % group.every == 0
    if not group.every or not whole or through <= group.next:
        msg = f"the intervals of {group.name!r} go on from {group.next}, and pass {through}"
        raise ValueError(msg)
    while group.next < through:
        until = MAX if through == MAX else group.next + group.every
        group.put(Task(TaskKey(group.next, ""), until))
        group.next = until


def _why_stale(task: Task | None, group: TaskGroup, lease: TaskLease) -> str:
    """Return why a lease counts no more; empty: it does."""
    if task is None:
        return "there is no such task"
    worker = task.worker or "an unnamed worker"
    if task.state is TaskState.DONE:
        return f"it is done by {worker}"
    if task.state is TaskState.READY:
        return "the lease was given back, or ended with another configuration"
    if not task.is_held_by(lease):
        return f"{worker} has it now"
    return "" if lease.configuration_version == group.configuration_version else "the configuration was changed since"


def _standing(group: TaskGroup, key: pb.TaskKey, state: TaskState) -> Task:
    task = group.tasks[_key(key)]
    if task.state is not state:
        msg = f"{task.key} of {group.name!r} is {task.state.name}, not {state.name}"
        raise ValueError(msg)
    return task


def _follows(version: int, before: int) -> None:
    if version != before + 1:
        msg = f"version {version} follows {before}"
        raise ValueError(msg)


def _key(message: pb.TaskKey) -> TaskKey:
    return TaskKey(message.at_micros, message.name)


def _key_message(key: TaskKey) -> pb.TaskKey:
    return pb.TaskKey(at_micros=key.at, name=key.name)


def _group_message(group: TaskGroup) -> pb.TaskGroup:
    """Return the group as a message, without its tasks."""
    return pb.TaskGroup(
        name=group.name,
        every_micros=group.every,
        start_micros=group.start,
        lease_micros=group.lease,
        configuration=group.configuration,
        configuration_version=group.configuration_version,
        created_with=group.created_with,
        next_micros=group.next,
        mark_micros=group.mark,
    )


def _encoded(task: Task) -> bytes:
    """Return a task as a group of it alone has it: to be put behind a group."""
    message = pb.Task(
        key=_key_message(task.key),
        until_micros=task.until,
        payload=task.payload,
        version=task.version,
        state=task.state,
        worker=task.worker,
        nonce=task.nonce,
        epoch=task.epoch,
        outputs=task.outputs,
        digest=task.digest,
        asked=task.asked,
    )
    return pb.TaskGroup(tasks=[message]).SerializeToString()


def _about(lease: TaskLease) -> dict[str, str]:
    return {"group": lease.group, "task": lease.key.name, "at": str(lease.key.at), "version": str(lease.version)}


def _bad(field: str, problem: str, fix: str) -> errors.InvalidArgument:
    return errors.InvalidArgument(f"{field} {problem}; {fix}", metadata={"field": field, "fix": fix})


def _check_bytes(field: str, value: bytes, most: int) -> None:
    if len(value) > most:
        raise _bad(field, f"has {len(value)} bytes", f"send at most {most}, and name a place for the rest")


def _check_group(group: TaskGroup) -> None:
    if NAME.fullmatch(group.name) is None:
        raise _bad("group", "is no name", "1 to 128 of A-Z a-z 0-9 _ . -")
    if group.every and not SECOND <= group.every <= LONGEST_INTERVAL:
        raise _bad("every_micros", f"is {group.every}", "0, or one second to 366 days in microseconds")
    if not SECOND <= group.lease <= LONGEST_LEASE:
        raise _bad("lease_micros", f"is {group.lease}", "one second to seven days in microseconds")
    if group.every and not YEARS[0] <= group.start <= YEARS[1]:
        raise _bad("start_micros", f"is {group.start}", "a time of the years 1 to 9999 in microseconds")
    if not group.every and group.start:
        raise _bad("start_micros", f"is {group.start}", "leave it 0 for a group without intervals")
    _check_bytes("configuration", group.configuration, CONFIGURATION_BYTES)


def _check_outputs(lease: TaskLease, outputs: Sequence[str]) -> None:
    if len(outputs) > TOGETHER:
        raise _bad("outputs", f"has {len(outputs)} names", f"send at most {TOGETHER}, or the name of a list of them")
    size = sum(len(output.encode()) for output in outputs)
    if size > OUTPUT_BYTES:
        raise _bad("outputs", f"has {size} bytes", f"send at most {OUTPUT_BYTES}, or the name of a list of them")
    own = tag(lease.version, lease.nonce)
    for place, output in enumerate(outputs):
        if own not in output:
            raise _bad(f"outputs[{place}]", "may be what another lease has written", f"have {own} in its name")
