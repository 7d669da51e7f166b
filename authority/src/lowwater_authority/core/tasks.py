"""Leases and tasks of one computation: groups of work, each task of which is done once.

Google's Workflow ("Data Processing Pipelines", Site Reliability Engineering, chapter 25) keeps four
guarantees: a commit needs the newest lease, the newest configuration, outputs that no other lease
names, and the server that granted the lease. Here they are versions, compared by equality:

    READY(v) -> LEASED(v + 1, worker) -> DONE(outputs)
                LEASED(v + 1) -> READY(v + 2)        released, or taken over after the lease ran out

Each arrow is a step in the computation's next record, appended before it is answered. A commit and
the tasks that it creates are one step. No clock judges a commit: a lease that has run out is only
*offered* to others, and counts until another worker takes it. The times at which leases run out are
in memory only, so that after a fail-over every lease has its full time again.

A group may have intervals. Then its tasks are created as the low watermark passes the end of each,
in the record that moves the watermark: a reader that sees the watermark can rely on the task. One
number of the group says which intervals have a task, so that each interval gets exactly one.

No input, no output, no clock: the time is an argument. Staging, records, publishing and snapshots
are those of core/computation.py.
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
from lowwater_authority.core.requests import bad_field
from lowwater_authority.core.times import DAY, MAX, MIN
from lowwater_authority.records import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

GROUPS: Final = 16
"""Most groups of one computation."""

TASKS: Final = 4096
"""Most tasks of one group, remembered done ones included."""

OPEN_INTERVALS: Final = 256
"""Most unfinished tasks of intervals. The next intervals get tasks as these are done."""

REMEMBERED: Final = 256
"""Number of newest commits that a group remembers while it has room. A repeat of an older commit is
refused."""

TOGETHER: Final = 100
"""Most tasks that one call creates, and most outputs of one task."""

PAYLOAD_BYTES: Final = 1024
OUTPUT_BYTES: Final = 2048
"""Most bytes of all outputs of one task."""

DIGEST_BYTES: Final = 256
CONFIGURATION_BYTES: Final = 4096
NONCE_BYTES: Final = 16

SECOND: Final = 1_000_000
DEFAULT_LEASE: Final = 60 * SECOND
LONGEST_LEASE: Final = 7 * DAY
LONGEST_INTERVAL: Final = 366 * DAY

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""Name of a group, and of a task that a call creates."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
YEARS: Final = (
    (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND,
    (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND,
)
"""First and last microsecond of all dates."""


class TaskState(enum.IntEnum):
    """The state of a task. The numbers are those of the wire and the journal."""

    READY = 1
    LEASED = 2
    DONE = 3


class TaskKey(NamedTuple):
    """The key of a task in its group. Tasks are ordered by key, the oldest work first."""

    at: int
    """Event time of the oldest work of the task, microseconds."""
    name: str
    """Name of the task; empty for the task of an interval."""


@dataclass(frozen=True, slots=True)
class TaskLease:
    """A lease as it was granted, and as a commit must name it."""

    incarnation: int
    group: str
    key: TaskKey
    version: int
    configuration_version: int
    epoch: int
    """Ownership of the log that granted it: ``epoch_base`` in engine/holding.py, without the
    counter."""
    nonce: bytes


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to be created.

    ``group`` is empty for a successor in the group of the committed task.
    """

    key: TaskKey
    payload: bytes = b""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A task. Each step replaces it by a new object."""

    key: TaskKey
    until: int
    """End of its interval, exclusive; ``key.at`` for a task without an interval."""
    payload: bytes = b""
    version: int = 1
    state: TaskState = TaskState.READY
    worker: str = ""
    """Worker of the newest lease, current or ended."""
    nonce: bytes = b""
    epoch: int = 0
    outputs: tuple[str, ...] = ()
    digest: bytes = b""
    request_digest: bytes = b""
    """Digest of the whole commit request."""

    def is_held_by(self, lease: TaskLease) -> bool:
        """Return True for the newest lease of the task. All is compared by equality, not by age."""
        return (self.version, self.epoch, self.nonce) == (lease.version, lease.epoch, lease.nonce)


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """The published figures of a group; see the wire's TaskGroup for the fields."""

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
    """A granted lease with all that its worker needs."""

    lease: TaskLease
    task: Task
    configuration: bytes
    micros: int
    """Microseconds for which the lease is not offered to other workers."""


class Offers:
    """The times at which leases are offered to other workers, by the caller's clock.

    They are not journaled. The full time of a lease without a known time begins when a worker next
    looks for work.
    """

    def __init__(self) -> None:
        self._undated: dict[TaskKey, None] = {}
        self._due: dict[TaskKey, int] = {}
        self._order: SortedSet[tuple[int, TaskKey]] = SortedSet()
        self._lapsed: SortedSet[TaskKey] = SortedSet()

    def keys(self) -> set[TaskKey]:
        """Return the keys of all leased tasks. O(leases)."""
        return {*self._undated, *self._due, *self._lapsed}

    def add(self, key: TaskKey) -> None:
        """Add a lease whose time is not known."""
        self._undated[key] = None

    def discard(self, key: TaskKey) -> None:
        """Forget a lease. O(log leases)."""
        self._undated.pop(key, None)
        self._lapsed.discard(key)
        if key in self._due:
            self._order.discard((self._due.pop(key), key))

    def date(self, key: TaskKey, due: int) -> None:
        """Set the time at which a lease is offered. O(log leases)."""
        self.discard(key)
        self._due[key] = due
        self._order.add((due, key))

    def look(self, now: int, lease: int) -> SortedSet[TaskKey]:
        """Return the leases that have run out. Those without a time run out ``lease`` from now."""
        for key in list(self._undated):
            self.date(key, now + lease)
        while self._order and self._order[0][0] <= now:
            _, key = self._order.pop(0)
            del self._due[key]
            self._lapsed.add(key)
        return self._lapsed

    @property
    def next(self) -> int | None:
        """Time at which the next lease runs out; None without leases that have a time."""
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
    """Digest of its first configuration, by which a repeated creation is recognised."""
    next: int = 0
    """Start of the first interval without a task; MAX: all intervals have one."""
    mark: int = MIN
    tasks: SortedDict[TaskKey, Task] = field(default_factory=SortedDict[TaskKey, Task])
    ready: SortedSet[TaskKey] = field(default_factory=SortedSet)
    leased: SortedSet[TaskKey] = field(default_factory=SortedSet)
    done: dict[TaskKey, None] = field(default_factory=dict)
    """Remembered done tasks, in the order of their commits."""
    nonces: dict[bytes, TaskKey] = field(default_factory=dict)
    """Leased tasks by the nonce of the lease."""
    offers: Offers = field(default_factory=Offers)
    _messages: dict[TaskKey, bytes] = field(default_factory=dict)
    """Tasks as encoded in a snapshot."""
    offered: int = 0
    """Number of times that a task became ready since this process loaded the log."""

    @property
    def closed(self) -> int:
        """Event time below which every task is done and every interval is closed."""
        oldest = self.oldest
        return min(self.next if self.every else MAX, MAX if oldest is None else oldest.at)

    @property
    def oldest(self) -> TaskKey | None:
        """The oldest task that is not done."""
        return min([*self.ready[:1], *self.leased[:1]], default=None)

    @property
    def unfinished(self) -> int:
        """Number of tasks that are not done."""
        return len(self.ready) + len(self.leased)

    def figures(self) -> GroupFigures:
        """Return the figures to be published."""
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
        """Return the group as a new incarnation begins with it: its definition without any task."""
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
        """Add a task, or replace the one of the same key."""
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
        """Return all tasks, encoded; done ones in the order of their commits. O(bytes)."""
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
        """Return the mark after a task is done and its successors in this group are created.

        The mark stays below all unfinished tasks. While there is room, it also stays below the
        ``REMEMBERED`` newest commits, which may be repeated; see :meth:`_may_remember`. The bound
        is needed because one commit of old work would otherwise keep all done tasks behind it for
        ever. Where there are too many, the oldest work is forgotten first.
        """
        unfinished = [key for key in (*self.ready[:2], *self.leased[:2]) if key != ended]
        limit = min((key.at for key in (*unfinished, *successors)), default=MAX)
        if self.every:
            limit = min(limit, self.next)
        mark = self.mark
        if len(self.done) >= REMEMBERED:
            recent = islice(reversed(self.done), REMEMBERED - 1)
            mark = min(key.at for key in (*recent, ended))
        surplus = len(self.done) + 1 - self._may_remember(self.unfinished - 1 + len(successors))
        if surplus > 0:
            last = self.tasks.peekitem(min(surplus, len(self.tasks)) - 1)[0]
            mark = max(mark, last.at + 1)
        return max(self.mark, min(mark, limit))

    @staticmethod
    def _may_remember(unfinished: int) -> int:
        """Return how many done tasks may be remembered beside a number of unfinished ones.

        ``REMEMBERED`` places stay free for new tasks. The newest commits use them only when nearly
        all tasks are unfinished.
        """
        room = TASKS - unfinished
        return max(room - REMEMBERED, min(room, REMEMBERED))

    def held_from(self, mark: int) -> int:
        """Return the number of tasks at or after an event time. O(log tasks)."""
        return len(self.tasks) - self.tasks.bisect_left(TaskKey(mark, ""))

    def look(self, now: int) -> SortedSet[TaskKey]:
        """Return the leases that have run out, the oldest work first."""
        return self.offers.look(now, self.lease)

    def next_offer(self, now: int) -> int | None:
        """Return the time from which a task can be leased; None: not before another step."""
        return now if self.ready or self.look(now) else self.offers.next

    def reach(self, low: int) -> int:
        """Return the event time up to which intervals should have tasks at a low watermark.

        Room limits it. At MAX, all the rest is one interval without an end.
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
    """The groups of one computation, and the steps of its next record.

    Live requests and replayed steps change the state by the same function, :meth:`apply`. All
    checks come before the first step of a request, so a refused request has changed nothing.
    """

    def __init__(self, groups: Iterable[TaskGroup] = ()) -> None:
        self.groups: dict[str, TaskGroup] = {group.name: group for group in groups}
        self.published: tuple[GroupFigures, ...] = ()
        """Groups in the order of their names, as of the last durable record. Never changed, only
        replaced, because other threads read it."""
        self._unpublished = True
        self._steps: list[pb.TaskStep] = []
        self._strong = False

    def restarted(self) -> Tasks:
        """Return the groups of a new incarnation, without tasks; intervals begin at their start."""
        return Tasks(group.restarted() for group in self.groups.values())

    # -- groups ------------------------------------------------------------------------------------

    def group(self, name: str) -> TaskGroup:
        """Return a group. Raises UnknownGroup."""
        if name not in self.groups:
            msg = f"there is no group of tasks {name!r}; create it, or correct the spelling"
            raise errors.UnknownGroup(msg, metadata={"group": name})
        return self.groups[name]

    def create_group(self, definition: TaskGroup) -> GroupFigures:
        """Create a group, or return the same group if it exists.

        Raises InvalidArgument, RegistrationConflict, Overloaded.
        """
        _check_group(definition)
        group = self.groups.get(definition.name)
        configured = digest([definition.configuration])
        if group is not None:
            same = (group.every, group.start, group.lease) == (definition.every, definition.start, definition.lease)
            if not same or (configured != group.created_with and definition.configuration != group.configuration):
                msg = (
                    f"the group {definition.name!r} exists with another {'configuration' if same else 'interval, start or lease'}; "
                    "use another name, or change the configuration by itself"
                )
                raise errors.RegistrationConflict(msg, metadata={"group": definition.name})
            return group.figures()
        if len(self.groups) >= GROUPS:
            msg = f"{GROUPS} groups of tasks hang under this computation, the most there can be; use one of them"
            raise errors.Overloaded(msg, metadata={"bound": "task_groups", "limit": str(GROUPS)})
        created = _group_message(replace(definition, created_with=configured, next=definition.start))
        self._step(pb.TaskStep(group=definition.name, created_group=created))
        return self.groups[definition.name].figures()

    def configure(self, name: str, configuration: bytes, version: int) -> GroupFigures:
        """Replace a group's configuration of a version, which ends all leases of the group.

        Raises UnknownGroup, TaskConflict.
        """
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
        """Create tasks, all or none; existing ones stay as they are.

        Raises UnknownGroup, InvalidArgument, BelowMark, TaskConflict, Overloaded.
        """
        if not tasks:
            raise bad_field("tasks", "is empty", f"send 1 to {TOGETHER} tasks")
        if any(task.group for task in tasks):
            raise bad_field("tasks.group", "is set", "leave it empty: the call names the group")
        new = self._new("tasks", name, tasks)
        self._check_room(new)
        for step in new:
            self._step(pb.TaskStep(group=name, created=step))

    def _new(self, field: str, own: str, tasks: Sequence[NewTask]) -> list[pb.NewTask]:
        """Return the tasks that do not exist yet, each with its group, and change nothing.

        Raises as create, but not for lack of room.
        """
        if len(tasks) > TOGETHER:
            raise bad_field(field, f"has {len(tasks)} tasks", f"send at most {TOGETHER} at a time")
        new: dict[tuple[str, TaskKey], pb.NewTask] = {}
        for place, task in enumerate(tasks):
            about, name = f"{field}[{place}]", task.group or own
            group = self.group(name)
            if group.every:
                fix = "use a group without intervals: those of this one are made as the low watermark passes them"
                raise bad_field(f"{about}.group", "has intervals", fix)
            if NAME.fullmatch(task.key.name) is None:
                raise bad_field(f"{about}.name", "is no name", "1 to 128 of A-Z a-z 0-9 _ . -")
            if not MIN < task.key.at < MAX:
                raise bad_field(
                    f"{about}.at_micros", "is no time", "the event time of the oldest work that the task is for"
                )
            _check_bytes(f"{about}.payload", task.payload, PAYLOAD_BYTES)
            existing: Task | pb.NewTask | None = group.tasks.get(task.key) or new.get((name, task.key))
            if existing is not None:
                if existing.payload != task.payload:
                    msg = f"{about} exists with another payload; give other work another name"
                    raise errors.TaskConflict(msg, metadata={"group": name, "task": task.key.name})
                continue
            if task.key.at < group.mark:
                msg = (
                    f"{about} is at {task.key.at}, below the mark {group.mark} of the group {name!r}: all work before that is done and forgotten, "
                    "perhaps this task too; give it a later event time if it is new work"
                )
                raise errors.BelowMark(msg, metadata={"group": name, "mark": str(group.mark)})
            new[name, task.key] = pb.NewTask(key=_key_message(task.key), payload=task.payload, group=name)
        return list(new.values())

    def _check_room(self, new: Sequence[pb.NewTask], marks: Mapping[str, int] | None = None) -> None:
        """Raise Overloaded when a group has no room for its new tasks.

        ``marks``: new marks by group, where the same step forgets tasks.
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

        A repeat with the same nonce gets the same lease while that counts. Raises UnknownGroup,
        InvalidArgument.
        """
        group = self.group(name)
        if len(nonce) != NONCE_BYTES:
            raise bad_field("nonce", f"has {len(nonce)} bytes", f"send {NONCE_BYTES} random bytes")
        if nonce in group.nonces:
            return self._grant(group, group.tasks[group.nonces[nonce]], incarnation)
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
        return self._grant(group, group.tasks[key], incarnation)

    def _grant(self, group: TaskGroup, task: Task, incarnation: int) -> TaskGrant:
        lease = TaskLease(
            incarnation, group.name, task.key, task.version, group.configuration_version, task.epoch, task.nonce
        )
        return TaskGrant(lease, task, group.configuration, group.lease)

    def renew(self, lease: TaskLease, *, incarnation: int, now: int) -> int:
        """Give a lease its full time from now on, and return that time; nothing is journaled.

        Raises as commit.
        """
        group = self._group_of(lease, incarnation)
        task = self._leased(group, lease)
        group.offers.date(task.key, now + group.lease)
        return group.lease

    def release(self, lease: TaskLease, *, incarnation: int) -> None:
        """Release a lease; a repeat changes nothing until the task is leased again.

        Raises as commit.
        """
        group = self._group_of(lease, incarnation)
        task = group.tasks.get(lease.key)
        if task is not None and replace(task, version=task.version - 1).is_held_by(lease):
            return  # released, by this call or otherwise, and not leased again since
        task = self._leased(group, lease)
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
        """Finish a task and create its successors, in one step; a repeat changes nothing.

        Raises IncarnationChanged, UnknownGroup; StaleLease unless the lease is the newest one of
        the task; BelowMark when the task is forgotten; TaskConflict when the lease has committed
        other outputs; InvalidArgument; and for successors as create.
        """
        group = self._group_of(lease, incarnation)
        _check_outputs(lease, outputs)
        _check_bytes("digest", digest_of_outputs, DIGEST_BYTES)
        request_digest = _request_digest(lease, outputs, digest_of_outputs, successors)
        task = group.tasks.get(lease.key)
        if task is not None and task.state is TaskState.DONE and task.is_held_by(lease):
            if task.request_digest != request_digest:
                msg = "this lease has committed the task already, with other outputs; it stays as it is"
                raise errors.TaskConflict(msg, metadata=_about(lease))
            return
        task = self._leased(group, lease)
        new = self._new("successors", group.name, successors)
        mark = group.mark_behind(task.key, [_key(successor.key) for successor in new if successor.group == group.name])
        self._check_room(new, {group.name: mark})
        done = pb.TaskDone(
            key=_key_message(task.key),
            version=task.version,
            outputs=outputs,
            digest=digest_of_outputs,
            asked=request_digest,
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

    def _leased(self, group: TaskGroup, lease: TaskLease) -> Task:
        """Return the task of a lease that counts. Raises StaleLease, BelowMark."""
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
        """Create the tasks of the intervals that the low watermark of a record has passed.

        O(groups + new tasks).
        """
        for group in self.groups.values():
            if not group.every:
                continue
            through = group.reach(low)
            if through > group.next:
                passed = pb.IntervalsPassed(through_micros=through)
                # This step may be lost, because it is only lost with the move of the watermark.
                self._step(pb.TaskStep(group=group.name, passed=passed), strong=False)

    # -- steps -------------------------------------------------------------------------------------

    @property
    def changed(self) -> bool:
        """True when there are steps for the next record."""
        return bool(self._steps)

    def take_steps(self) -> tuple[list[pb.TaskStep], bool]:
        """Return the steps for the next record, and whether one must not be lost (rule 10)."""
        steps, strong = self._steps, self._strong
        self._steps, self._strong = [], False
        return steps, strong

    def _step(self, step: pb.TaskStep, *, strong: bool = True) -> None:
        self.apply(step)
        self._steps.append(step)
        self._strong = self._strong or strong

    def apply(self, step: pb.TaskStep) -> None:
        """Apply one step, live or replayed.

        Raises KeyError or ValueError when it does not follow from the steps before it.
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
        ended = replace(
            task, state=TaskState.DONE, outputs=tuple(done.outputs), digest=done.digest, request_digest=done.asked
        )
        group.put(ended)
        for new in done.successors:
            self._apply_created(new)
        if done.mark_micros < group.mark:
            msg = f"the mark of {group.name!r} goes back from {group.mark} to {done.mark_micros}"
            raise ValueError(msg)
        group.raise_mark(done.mark_micros)

    def publish(self) -> None:
        """Publish the groups, after their record is durable. O(groups), if any has changed."""
        if self._unpublished:
            self.published, self._unpublished = tuple(group.figures() for group in self), False

    def snapshot(self) -> list[bytes]:
        """Return each group as an encoded message.

        O(bytes): each task is encoded when it changes, because thousands at once take too long.
        """
        return [_group_message(group).SerializeToString() + group.encoded() for group in self.groups.values()]

    def check(self) -> None:
        """Assert every invariant. O(tasks)."""
        assert len(self.groups) <= GROUPS
        for name, group in self.groups.items():
            assert group.name == name
            group.check()

    def __iter__(self) -> Iterator[TaskGroup]:
        """Iterate over the groups in the order of their names."""
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
    """Return the part of an output's name that only outputs of one lease have.

    >>> tag(2, bytes(16))
    '2-00000000000000000000000000000000'
    """
    return f"{version}-{nonce.hex()}"


def digest(parts: Sequence[bytes]) -> bytes:
    """Return a digest of several texts, which depends on where one text ends."""
    sha = sha256()
    for part in parts:
        sha.update(b"%d:" % len(part))
        sha.update(part)
    return sha.digest()[:16]


def _request_digest(
    lease: TaskLease, outputs: Sequence[str], of_outputs: bytes, successors: Sequence[NewTask]
) -> bytes:
    after = [
        part
        for successor in successors
        for part in (successor.group.encode(), b"%d" % successor.key.at, successor.key.name.encode(), successor.payload)
    ]
    parts = [output.encode() for output in outputs]
    return digest([b"%d %d" % (lease.configuration_version, len(outputs)), *parts, of_outputs, *after])


def _apply_passed(group: TaskGroup, through: int) -> None:
    """Create one task for each interval up to a boundary; for MAX, one for all the rest."""
    whole = through == MAX or (through - group.next) % group.every == 0
    if not group.every or not whole or through <= group.next:
        msg = f"the intervals of {group.name!r} go on from {group.next}, and pass {through}"
        raise ValueError(msg)
    while group.next < through:
        until = MAX if through == MAX else group.next + group.every
        group.put(Task(TaskKey(group.next, ""), until))
        group.next = until


def _why_stale(task: Task | None, group: TaskGroup, lease: TaskLease) -> str:
    """Return the reason why a lease counts no more; empty: the lease counts."""
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
    """Return a task encoded as the only one of a group, to be appended to an encoded group."""
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
        asked=task.request_digest,
    )
    return pb.TaskGroup(tasks=[message]).SerializeToString()


def _about(lease: TaskLease) -> dict[str, str]:
    return {"group": lease.group, "task": lease.key.name, "at": str(lease.key.at), "version": str(lease.version)}


def _check_bytes(field: str, value: bytes, most: int) -> None:
    if len(value) > most:
        raise bad_field(field, f"has {len(value)} bytes", f"send at most {most}, and name a place for the rest")


def _check_group(group: TaskGroup) -> None:
    if NAME.fullmatch(group.name) is None:
        raise bad_field("group", "is no name", "1 to 128 of A-Z a-z 0-9 _ . -")
    if group.every and not SECOND <= group.every <= LONGEST_INTERVAL:
        raise bad_field("every_micros", f"is {group.every}", "0, or one second to 366 days in microseconds")
    if not SECOND <= group.lease <= LONGEST_LEASE:
        raise bad_field("lease_micros", f"is {group.lease}", "one second to seven days in microseconds")
    if group.every and not YEARS[0] <= group.start <= YEARS[1]:
        raise bad_field("start_micros", f"is {group.start}", "a time of the years 1 to 9999 in microseconds")
    if not group.every and group.start:
        raise bad_field("start_micros", f"is {group.start}", "leave it 0 for a group without intervals")
    _check_bytes("configuration", group.configuration, CONFIGURATION_BYTES)


def _check_outputs(lease: TaskLease, outputs: Sequence[str]) -> None:
    if len(outputs) > TOGETHER:
        raise bad_field(
            "outputs", f"has {len(outputs)} names", f"send at most {TOGETHER}, or the name of a list of them"
        )
    size = sum(len(output.encode()) for output in outputs)
    if size > OUTPUT_BYTES:
        raise bad_field("outputs", f"has {size} bytes", f"send at most {OUTPUT_BYTES}, or the name of a list of them")
    own = tag(lease.version, lease.nonce)
    for place, output in enumerate(outputs):
        if own not in output:
            raise bad_field(f"outputs[{place}]", "may be what another lease has written", f"have {own} in its name")
