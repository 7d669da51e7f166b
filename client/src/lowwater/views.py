"""What the authority says, as plain values: watermarks, ranges, answers, the graph.

Event times are :class:`~lowwater.Watermark`; processing times, by the authority's clock, are
microseconds since the epoch with a property that gives the aware datetime. All types are frozen and
compare by value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import quote

from lowwater.watermark import MAX, EventTime, Watermark

__all__ = [
    "Completeness",
    "Computation",
    "Inputs",
    "NO_REMARKS",
    "LatenessBudget",
    "NewTask",
    "Promise",
    "RangeState",
    "RangeView",
    "Ranges",
    "Refusal",
    "Remarks",
    "ShardView",
    "Shards",
    "Slice",
    "TaskAttempt",
    "TaskGroup",
    "TaskList",
    "TaskState",
    "TaskView",
    "Topology",
    "WatermarkView",
]

PPM = 1_000_000
"""Shares travel in parts per million."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_SLICE: Final = re.compile(r"([^~]+)~[0-9]{1,3}")


def slice_of(name: str) -> str:
    """Return the computation that a name is a slice of; empty when it is none.

    >>> slice_of("ns/hourly~12"), slice_of("hourly")
    ('ns/hourly', '')
    """
    found = _SLICE.fullmatch(name)
    return "" if found is None else found[1]


_LAST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def _datetime(micros: int) -> datetime:
    """Return a processing time; beyond the years that datetime knows, their end: a wild clock must not break who looks at it."""
    return _EPOCH + timedelta(microseconds=max(0, min(micros, _LAST)))


def _moment(micros: int) -> datetime | None:
    return _datetime(micros) if micros > 0 else None


class RangeState(Enum):
    """How a key range stands."""

    NEVER_CLAIMED = "never claimed"
    """No owner has ever claimed it: it holds at unknown."""
    OWNED = "owned"
    """A worker owns it."""
    UNOWNED = "unowned"
    """Nobody owns it now: it holds its last value."""
    FINISHED = "finished"
    """Its owner said that nothing will ever come."""
    RETIRED = "retired"
    """An operator took it out of the computation."""


class Remarks(NamedTuple):
    """What a worker tells of itself, for people. Part of no watermark."""

    holdback_micros: int = 0
    """Event time by which its watermarks stay below those of its inputs by design, microseconds: a
    window, or how long rows are kept. A worker that is behind by less has nothing left to do. 0:
    none, or not known."""
    ended: bool = False
    """Whether it has ended: this was its last report."""
    failure: str = ""
    """First line of the error that ended it, at most 200 bytes; empty: it was stopped in good
    order."""
    untimed_rows: int = 0
    """Number of rows without an event time that it has read since it began. They hold no watermark,
    and are in no window."""


NO_REMARKS: Final = Remarks()
"""Remarks of a worker that reports none."""


@dataclass(frozen=True, slots=True)
class RangeView:
    """One key range ``[start, end)``; ``end`` empty means no upper bound."""

    start: bytes
    end: bytes
    watermark: Watermark
    state: RangeState
    worker: str
    host: str
    sequencer: int
    since_micros: int
    """Processing time since which it has stood at this watermark."""
    last_report_micros: int
    """Processing time of the last that was heard of its claim: a report, or the claim itself. 0
    when it was never claimed, or not heard of since the authority restarted. An authority of
    release 0.1 knows of reports only."""
    waiting_for: str = ""
    """What its worker waits for, in the worker's own words; empty when it told none, or nobody owns
    the range. At most 200 bytes."""
    remarks: Remarks = NO_REMARKS
    """What its worker tells of itself; nothing when nobody owns the range."""

    @property
    def since(self) -> datetime | None:
        """Since when it has stood at this watermark."""
        return _moment(self.since_micros)

    @property
    def last_report(self) -> datetime | None:
        """When its owner was heard of last; None when that is not known."""
        return _moment(self.last_report_micros)


@dataclass(frozen=True, slots=True)
class LatenessBudget:
    """A watermark behind which at most about a given share of the records comes in the long run, besides those excused."""

    share: float
    """The share that may come behind, such as 0.01."""
    watermark: Watermark
    """Never below the low watermark, never back."""
    records: int
    """That came so far, in this incarnation."""
    behind: int
    """Those of them that came behind the watermark."""
    excused: int
    """Those of these that do not count: they came when lateness jumped, before the watermark could
    give way."""
    worst: float
    """The worst share behind in any 10,000 of the last 100,000 records; 0 before there are 10,000.
    """


@dataclass(frozen=True, slots=True)
class Promise:
    """What was promised of a computation, as an operator wrote it down for the authority: for people, it changes no watermark.

    Texts are empty where nobody said anything.
    """

    late: timedelta | None = None
    """How far behind the clock its low watermark may be before it is late; None: nobody said."""
    owner: str = ""
    """Who answers for it."""
    team: str = ""
    runbook: str = ""
    """A page that says what to do when it is late."""
    logs: str = ""
    """Where its workers' logs are, with ``{worker}`` and ``{host}`` in it, or not."""

    def logs_of(self, worker: str, host: str) -> str:
        """Return where the logs of one worker are; empty when nobody said where logs are."""
        return self.logs.replace("{worker}", quote(worker, safe="")).replace("{host}", quote(host, safe=""))


@dataclass(frozen=True, slots=True)
class WatermarkView:
    """The published watermarks of a computation.

    Within one incarnation, ``low``, ``heuristic`` and ``budget`` never go down.
    """

    computation: str
    registered: bool = False
    incarnation: int = 0
    """The computation's incarnation: values of different incarnations never compare."""
    epoch: int = 0
    """The ownership number of the shard that answered."""
    low: Watermark = Watermark.UNKNOWN
    """Every event time below it is complete."""
    shares: tuple[tuple[int, Watermark], ...] = ()
    """The heuristic watermarks by share in parts per million, largest share first."""
    oldest_operation_micros: int = 0
    since_micros: int = 0
    holder: RangeView | None = None
    """The range that holds the low watermark, if one does."""
    ranges: int = 0
    inputs: tuple[str, ...] = ()
    estimated: bool = False
    """Whether nobody promises the watermarks; only estimated computations read it."""
    budgets: tuple[LatenessBudget, ...] = ()
    """The lateness budgets, least first."""
    passed: tuple[tuple[int, int, int], ...] = ()
    """By share in parts per million of a heuristic watermark: records that came since it was a
    time, and those of them that came behind it. Known of a computation with a lateness budget."""
    promise: Promise | None = None
    """What was promised of it; None: nothing."""

    @property
    def slice_of(self) -> str:
        """The computation that it is a slice of; empty: it is none.

        Only that one's watermarks are the computation's.
        """
        return slice_of(self.computation)

    @property
    def dropped(self) -> bool:
        """Whether it was dropped: it is not registered any more, and ``incarnation`` was its last one."""
        return not self.registered and self.incarnation > 0

    @property
    def heuristic(self) -> Mapping[float, Watermark]:
        """The heuristic watermarks by share: ``heuristic[0.99]`` has been passed by 99 % of the records lately seen.

        A share of records, not a promise: delete nothing by it. :attr:`came_behind` says what has come behind it.
        """
        return {share / PPM: watermark for share, watermark in self.shares}

    @property
    def came_behind(self) -> Mapping[float, float]:
        """By share of a heuristic watermark: the share of all records that came behind it, at most: one that may have does. Empty where nobody tells how late records are: without a lateness budget."""
        return {share / PPM: behind / records for share, records, behind in self.passed}

    @property
    def budget(self) -> Mapping[float, LatenessBudget]:
        """The lateness budgets by share: at most about 1 % of the records come behind ``budget[0.01].watermark`` in the long run.

        Arithmetic, but not for any single window, key or hour: delete nothing by it, unless results may lack that share.
        """
        return {budget.share: budget for budget in self.budgets}

    def at_budget(self, share_ppm: int) -> Watermark:
        """Return the watermark of the largest registered lateness budget not above the given share, else ``low``: no more records come behind it than the share says."""
        smaller = [budget for budget in self.budgets if round(budget.share * PPM) <= share_ppm]
        return max(smaller, key=lambda each: each.share).watermark if smaller else self.low

    def at_share(self, share_ppm: int) -> Watermark:
        """Return the watermark of the smallest registered share not below the given one, else ``low``."""
        larger = [(share, watermark) for share, watermark in self.shares if share >= share_ppm]
        return min(larger, key=lambda each: each[0])[1] if larger else self.low

    @property
    def since(self) -> datetime | None:
        """When the low watermark changed last."""
        return _moment(self.since_micros)

    @property
    def oldest_operation(self) -> datetime | None:
        """The start of the oldest operation still running at any worker, as far as workers tell."""
        return _moment(self.oldest_operation_micros)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The minimum over several computations, folded locally, as it stood at one moment.

    From ``Worker.inputs()`` it is the snapshot that ``Lease.advance`` wants: take it first, then
    read everything that is there, then advance with it.
    """

    low: Watermark
    """The least low watermark: every event time below it is complete in all of them."""
    heuristic: Mapping[float, Watermark]
    """The least heuristic watermark by share. An input without a share stands with its next larger
    one, or its low."""
    stale_for: float
    """Seconds since the authority last confirmed the values; infinite when it never did."""
    held_by: str | None
    """Who holds ``low``: the input and, if known, its key range and worker. None when all inputs
    are finished."""
    each: Mapping[str, WatermarkView]
    """Every input by name, in order."""
    computation: str = ""
    """Whose inputs they are; empty when they were named by hand."""
    input_version: int = 0
    """The version of that computation's inputs."""
    incarnations: tuple[int, ...] = ()
    """The incarnation of each input, in order."""
    budget: Mapping[float, Watermark] = field(default_factory=dict[float, Watermark])
    """The least watermark of their lateness budgets by share: of all their records, at most about
    that share comes behind it. An input without a share stands with its next smaller one, or its
    low."""

    @property
    def finished(self) -> bool:
        """Whether nothing will ever come from any of them."""
        return self.low.micros == MAX


@dataclass(frozen=True, slots=True)
class Completeness:
    """Whether everything before an event time is here, and if not, who holds it."""

    complete: bool
    watermark: WatermarkView
    holders: tuple[RangeView, ...]
    """The ranges below that time, furthest behind first; the first few of them."""
    holding: int
    """How many ranges there are below that time."""

    def __bool__(self) -> bool:
        return self.complete


@dataclass(frozen=True, slots=True)
class Ranges:
    """Key ranges of a computation, furthest behind first: the first few of ``total``."""

    ranges: tuple[RangeView, ...]
    total: int

    def __iter__(self) -> Iterator[RangeView]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)


@dataclass(frozen=True, slots=True)
class Completion:
    """One moment at which one or more steps of event time became complete."""

    incarnation: int
    """The computation's incarnation."""
    after: Watermark
    """Steps up to this boundary were complete before; unknown at the first completion of an
    incarnation."""
    through: Watermark
    """All steps that end at or before it are complete; finished when nothing will ever come."""
    time_micros: int
    """Processing time at which the authority knew."""

    @property
    def time(self) -> datetime:
        """When the authority knew."""
        return _datetime(self.time_micros)

    @property
    def behind(self) -> timedelta | None:
        """How long after the end of its newest step that was; None when it finished."""
        return None if self.through.finished else timedelta(microseconds=self.time_micros - self.through.micros)


@dataclass(frozen=True, slots=True)
class History:
    """When steps of event time became complete: the newest completions of ``total`` that are kept, oldest first."""

    computation: str
    step: timedelta
    completions: tuple[Completion, ...]
    total: int

    def __iter__(self) -> Iterator[Completion]:
        return iter(self.completions)

    def __len__(self) -> int:
        return len(self.completions)


@dataclass(frozen=True, slots=True)
class Computation:
    """A computation as registered."""

    name: str
    inputs: tuple[str, ...]
    """The names it reads; empty for an injector."""
    heuristics: tuple[float, ...]
    """The shares of its heuristic watermarks, largest first."""
    key_hash: str
    max_skew: timedelta
    incarnation: int
    input_version: int
    input_incarnations: tuple[int, ...]
    """The incarnation each input must have in a fold, in order; 0 while it is not registered."""
    history_step: timedelta = timedelta(hours=1)
    """The step of the completeness history."""
    estimated: bool = False
    """Whether nobody promises its watermarks; only estimated computations may read it."""
    lateness_budgets: tuple[float, ...] = ()
    """The shares of its lateness budgets, least first."""
    all_pending: bool = False
    """Whether its budgets go by what is pending, which is all that is still to come."""
    slices: tuple[bytes, ...] = ()
    """Where each of its slices but the first began when it was registered, ascending; none: it is
    not cut. ``Client.slices`` has those of now."""
    slice_of: str = ""
    """Of a slice: the computation that it is a slice of; else empty."""
    slice_start: bytes = b""
    """Of a slice: its first key."""
    slice_end: bytes = b""
    """Of a slice: the first key after it; empty means no upper bound."""
    slice_source: str = ""
    """Of a slice: the one that it is still to take its keys over from; else empty."""


class Slice(NamedTuple):
    """A part ``[start, end)`` of the key space of a computation, that is served by itself; ``end`` empty means no upper bound."""

    name: str
    """The name of the computation, "~" and a number from 0; of one that is not cut, its own."""
    start: bytes
    end: bytes


@dataclass(frozen=True, slots=True)
class Topology:
    """The pipeline graph at one version."""

    version: int
    computations: Mapping[str, Computation]


@dataclass(frozen=True, slots=True)
class ShardView:
    """One process of the authority, and what it serves."""

    address: str
    """``host:port``, as it was told to advertise itself."""
    id: str
    """Random, made when the process started."""
    draining: bool
    """Whether it hands over what it serves and takes nothing more."""
    silent_for: float
    """Seconds since it was heard of, by the store's clock."""
    computations: tuple[str, ...]
    """What it serves, as the store has it, sorted."""


@dataclass(frozen=True, slots=True)
class Shards:
    """The living shards of a deployment, by address."""

    version: int
    """Grows whenever a shard comes, goes or drains, or a pin changes."""
    shards: tuple[ShardView, ...]
    pins: Mapping[str, str]
    """The address that an operator has given a computation to, by computation."""
    unserved: tuple[str, ...]
    """Registered computations that no living shard serves just now."""

    def __iter__(self) -> Iterator[ShardView]:
        return iter(self.shards)

    def __len__(self) -> int:
        return len(self.shards)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose a token is, by the access file as it was when this was asked."""

    controlled: bool
    """Whether there is an access file. Without one everybody may see everything, and nobody has a
    name."""
    name: str
    """The principal in the access file; empty when the token is nobody's."""
    page: bool
    """Whether they may see the status page and its API, with all namespaces."""
    metrics: bool
    """Whether they may scrape /metrics."""


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """Names one attempt of one task of a Spark micro-batch."""

    stage: int
    partition: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Ranges of a report that the authority did not take over."""

    reason: str
    """As the ``reason`` of the errors: "TOO_FAR_AHEAD", "STALE_SEQUENCER", ..."""
    message: str
    handles: tuple[int, ...] | None
    """Which ranges; None means all of the claim."""


class TaskState(Enum):
    """How a task stands."""

    READY = "ready"
    """Whoever comes may take it."""
    LEASED = "leased"
    """A worker has it."""
    DONE = "done"
    """It was committed."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task that is to be created.

    Its name is unique within its group and time: 1 to 128 of ``A-Z a-z 0-9 _ . -``.
    """

    name: str
    at: EventTime
    """The event time of the oldest work that it stands for: groups hand out the oldest task first.
    """
    payload: bytes = b""
    """What its worker is to know, at most 1,024 bytes."""
    group: str = ""
    """Of a successor: its group, if that is another one."""


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task as it stands."""

    group: str
    name: str
    """Empty for the task of an interval, which ``at`` names."""
    at: Watermark
    """Of an interval: where it begins."""
    until: Watermark
    """Of an interval: where it ends, exclusive; finished: it has no end, for nothing more will
    come. Else as ``at``."""
    payload: bytes
    version: int
    """Grows with every step."""
    state: TaskState
    worker: str
    """Who has it, or has done it; empty when nobody has."""
    outputs: tuple[str, ...]
    """Of one that is done: what was made."""
    digest: bytes
    offered: bool
    """Whether its lease has run out, so that others may take it."""


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """A group of tasks."""

    computation: str
    name: str
    incarnation: int
    """The computation's: a reset ends all tasks of the incarnation before."""
    every: timedelta | None
    """The length of its intervals; None: its tasks are made by calls."""
    start: Watermark | None
    """Where the first interval begins."""
    lease: timedelta
    """For how long a lease is offered to nobody else."""
    configuration: bytes
    configuration_version: int
    mark: Watermark
    """Every task below it is done and forgotten, and none is created there any more."""
    closed: Watermark
    """Every task below it is done; finished: every task is. Of a group with intervals: how far
    these are closed, which never goes back."""
    ready: int
    leased: int
    done: int
    """Those that are remembered."""


@dataclass(frozen=True, slots=True)
class TaskList:
    """The oldest tasks of a group."""

    group: TaskGroup
    tasks: tuple[TaskView, ...]
    total: int
    """How many there are in all, of those that were asked for."""

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[TaskView]:
        return iter(self.tasks)
