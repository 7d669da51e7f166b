"""Answers of the authority as plain values: watermarks, ranges, tasks, the graph.

Event times are :class:`~lowwater.Watermark`; processing times, by the authority's clock, are
microseconds since the epoch, with a property that gives the aware datetime. All types are frozen
and compare by value. :mod:`lowwater.notebook` says how the long ones look in a notebook and in an
interactive Python.
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
    "Views",
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
    match = _SLICE.fullmatch(name)
    return "" if match is None else match[1]


_LAST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def _datetime(micros: int) -> datetime:
    """Return a processing time; a wild clock's beyond the years of datetime becomes their end."""
    return _EPOCH + timedelta(microseconds=max(0, min(micros, _LAST)))


def _moment(micros: int) -> datetime | None:
    return _datetime(micros) if micros > 0 else None


class RangeState(Enum):
    """State of a key range."""

    NEVER_CLAIMED = "never claimed"
    """A range that no owner has ever claimed: it holds at unknown."""
    OWNED = "owned"
    """A range that a worker owns."""
    UNOWNED = "unowned"
    """A range without an owner now: it holds its last value."""
    FINISHED = "finished"
    """A range whose owner declared that no more data will come."""
    RETIRED = "retired"
    """A range that an operator took out of the computation."""


class Remarks(NamedTuple):
    """A worker's remarks about itself, for people. They change no watermark."""

    holdback_micros: int = 0
    """Event time, in microseconds, by which its watermarks lag its inputs by design: a window, or
    how long rows are kept. A worker that lags by less has no work left. 0: none, or unknown."""
    ended: bool = False
    """True when this was the last report of a worker that has ended."""
    failure: str = ""
    """First line of the error that ended it, at most 200 bytes; empty when it was stopped in good
    order."""
    untimed_rows: int = 0
    """Number of rows without an event time that it has read since it began. They hold no watermark,
    and are in no window."""


NO_REMARKS: Final = Remarks()
"""Remarks of a worker that reports none."""


@dataclass(frozen=True, slots=True)
class RangeView:
    """One key range ``[start, end)``; an empty ``end`` means no upper bound."""

    start: bytes
    end: bytes
    watermark: Watermark
    state: RangeState
    worker: str
    host: str
    sequencer: int
    since_micros: int
    """Processing time at which its watermark moved last."""
    last_report_micros: int
    """Processing time of its owner's last report, or of the claim or its release; 0 when it was
    never claimed, or not reported since the authority restarted. An authority of release 0.1 counts
    only reports."""
    waiting_for: str = ""
    """Text in which its worker says what it waits for, at most 200 bytes; empty for none, or
    without an owner."""
    remarks: Remarks = NO_REMARKS
    """Remarks of its worker; without an owner only that the worker has ended, if it has released
    the range."""
    claimed_micros: int = 0
    """Processing time at which its owner claimed it; 0 without an owner, or when unknown. While it
    equals ``last_report_micros``, the owner has reported nothing."""

    @property
    def since(self) -> datetime | None:
        """Time at which its watermark moved last."""
        return _moment(self.since_micros)

    @property
    def last_report(self) -> datetime | None:
        """Time of its owner's last report; None when unknown."""
        return _moment(self.last_report_micros)

    @property
    def claimed(self) -> datetime | None:
        """Time at which its owner claimed it; None when unknown."""
        return _moment(self.claimed_micros)


@dataclass(frozen=True, slots=True)
class LatenessBudget:
    """A watermark behind which, in the long run, at most a given share of the records comes."""

    share: float
    """Share of records that may come behind, such as 0.01."""
    watermark: Watermark
    """Watermark of the budget: never below the low watermark, and it never goes down."""
    records: int
    """Number of records so far in this incarnation."""
    behind: int
    """Number of these records that came behind the watermark."""
    excused: int
    """Number of records behind that do not count: lateness jumped, and the watermark could not give
    way in time."""
    worst: float
    """Worst share behind in any 10,000 of the last 100,000 records; 0 before the first 10,000."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Promise of an operator about a computation, for people: it changes no watermark.

    Texts that the operator did not give are empty.
    """

    late: timedelta | None = None
    """Most time that its low watermark may lag the clock before it is late; None when not given."""
    owner: str = ""
    """Person who is responsible for it."""
    team: str = ""
    runbook: str = ""
    """Page that says what to do when it is late."""
    logs: str = ""
    """Place of its workers' logs; it may contain ``{worker}`` and ``{host}``."""

    def logs_of(self, worker: str, host: str) -> str:
        """Return the place of one worker's logs; empty when the operator gave none."""
        return self.logs.replace("{worker}", quote(worker, safe="")).replace("{host}", quote(host, safe=""))


@dataclass(frozen=True, slots=True)
class WatermarkView:
    """The published watermarks of a computation.

    Within one incarnation, ``low``, ``heuristic`` and ``budget`` never go down.
    """

    computation: str
    registered: bool = False
    incarnation: int = 0
    """Incarnation of the computation: values of different incarnations never compare."""
    epoch: int = 0
    """Ownership number of the shard that answered."""
    low: Watermark = Watermark.UNKNOWN
    """Low watermark: every event time below it is complete."""
    shares: tuple[tuple[int, Watermark], ...] = ()
    """Heuristic watermarks as (share in parts per million, watermark), largest share first."""
    oldest_operation_micros: int = 0
    since_micros: int = 0
    holder: RangeView | None = None
    """Key range that holds the low watermark; None when no range does."""
    ranges: int = 0
    inputs: tuple[str, ...] = ()
    estimated: bool = False
    """True when no worker promises the watermarks; only estimated computations may read it."""
    budgets: tuple[LatenessBudget, ...] = ()
    """Lateness budgets, smallest share first."""
    passed: tuple[tuple[int, int, int], ...] = ()
    """Counts by heuristic watermark, only with a lateness budget: (its share in parts per million,
    records since it first had a time, those of them that came behind it)."""
    promise: Promise | None = None
    """Promise about the computation; None for none."""

    @property
    def slice_of(self) -> str:
        """Computation that this is a slice of; empty for none.

        Readers must use the watermarks of the whole computation only.
        """
        return slice_of(self.computation)

    @property
    def dropped(self) -> bool:
        """True when it was dropped; ``incarnation`` was its last one."""
        return not self.registered and self.incarnation > 0

    @property
    def heuristic(self) -> Mapping[float, Watermark]:
        """Heuristic watermarks by share: 99 % of recent records have passed ``heuristic[0.99]``.

        A share of records and no promise: delete nothing by it. :attr:`came_behind` shows how many
        came behind it.
        """
        return {share / PPM: watermark for share, watermark in self.shares}

    @property
    def came_behind(self) -> Mapping[float, float]:
        """Most of all records, as a share, that came behind each heuristic watermark.

        Empty without a lateness budget, because then no worker reports how late records are.
        """
        return {share / PPM: behind / records for share, records, behind in self.passed}

    @property
    def budget(self) -> Mapping[float, LatenessBudget]:
        """Lateness budgets by share.

        In the long run at most about 1 % of the records come behind ``budget[0.01].watermark``.
        That bounds no single window, key or hour: delete nothing by it, unless results may lack
        that share.
        """
        return {budget.share: budget for budget in self.budgets}

    def at_budget(self, share_ppm: int) -> Watermark:
        """Return the watermark of the largest lateness budget up to a share, else ``low``."""
        smaller = [budget for budget in self.budgets if round(budget.share * PPM) <= share_ppm]
        return max(smaller, key=lambda budget: budget.share).watermark if smaller else self.low

    def at_share(self, share_ppm: int) -> Watermark:
        """Return the watermark of the smallest share from the given one on, else ``low``."""
        larger = [(share, watermark) for share, watermark in self.shares if share >= share_ppm]
        return min(larger, key=lambda pair: pair[0])[1] if larger else self.low

    @property
    def since(self) -> datetime | None:
        """Time at which the low watermark changed last."""
        return _moment(self.since_micros)

    @property
    def oldest_operation(self) -> datetime | None:
        """Start of the oldest operation that still runs at a worker that reports it."""
        return _moment(self.oldest_operation_micros)


class Views(dict[str, WatermarkView]):
    """Published watermarks by name, as ``Client.get`` returns them: a dict of the caller's own."""

    def __init__(self, views: Mapping[str, WatermarkView], *, whole: bool = False) -> None:
        super().__init__(views)
        self.whole: bool = whole
        """True when these are all computations that the caller may read."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The minimum over several computations at one moment, folded in this process.

    From ``Worker.inputs()`` it is the snapshot that ``Lease.advance`` needs: take it first, then
    read all data that has arrived, then advance with it.
    """

    low: Watermark
    """Least low watermark: every event time below it is complete in all inputs."""
    heuristic: Mapping[float, Watermark]
    """Least heuristic watermark by share. An input without a share counts with its next larger one,
    or its low."""
    stale_for: float
    """Seconds since the authority last confirmed the values; infinite before the first time."""
    held_by: str | None
    """Holder of ``low``: the input and, if known, its key range and worker. None when all inputs
    are finished."""
    each: Mapping[str, WatermarkView]
    """View of each input by name, in order."""
    computation: str = ""
    """Computation whose inputs they are; empty when they were named by hand."""
    input_version: int = 0
    """Version of that computation's inputs."""
    incarnations: tuple[int, ...] = ()
    """Incarnation of each input, in order."""
    budget: Mapping[float, Watermark] = field(default_factory=dict[float, Watermark])
    """Least watermark of the inputs' lateness budgets by share: of all their records, at most about
    that share comes behind it. An input without a share counts with its next smaller one, or its
    low."""

    @property
    def finished(self) -> bool:
        """True when no more data will come from any of them."""
        return self.low.micros == MAX


@dataclass(frozen=True, slots=True)
class Completeness:
    """Answer whether everything before an event time has arrived, and what holds it if not."""

    complete: bool
    watermark: WatermarkView
    holders: tuple[RangeView, ...]
    """First few of the ranges below that time, furthest behind first."""
    holding: int
    """Number of ranges below that time."""

    def __bool__(self) -> bool:
        return self.complete


@dataclass(frozen=True, slots=True)
class Ranges:
    """First few of ``total`` key ranges of a computation, furthest behind first."""

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
    """Incarnation of the computation."""
    after: Watermark
    """Boundary up to which steps were complete before; unknown at the first completion of an
    incarnation."""
    through: Watermark
    """Boundary up to which steps are complete now; finished when no more data will come."""
    time_micros: int
    """Processing time at which the authority had the news."""

    @property
    def time(self) -> datetime:
        """Time at which the authority had the news."""
        return _datetime(self.time_micros)

    @property
    def behind(self) -> timedelta | None:
        """Delay after the end of its newest step; None when the computation finished."""
        return None if self.through.finished else timedelta(microseconds=self.time_micros - self.through.micros)


@dataclass(frozen=True, slots=True)
class History:
    """Times at which steps of event time became complete.

    The newest completions of ``total`` that are stored, oldest first.
    """

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
    """Names of the computations that it reads; empty for an injector."""
    heuristics: tuple[float, ...]
    """Shares of its heuristic watermarks, largest first."""
    key_hash: str
    max_skew: timedelta
    incarnation: int
    input_version: int
    input_incarnations: tuple[int, ...]
    """Incarnation that each input must have in a fold, in order; 0 for one that is not
    registered."""
    history_step: timedelta = timedelta(hours=1)
    """Step of the completeness history."""
    estimated: bool = False
    """True when no worker promises its watermarks; only estimated computations may read it."""
    lateness_budgets: tuple[float, ...] = ()
    """Shares of its lateness budgets, smallest first."""
    all_pending: bool = False
    """True when its budgets count pending records, which must be all that is still to come."""
    slices: tuple[bytes, ...] = ()
    """First key of each slice but the first, at registration, ascending; empty when it is not cut.
    ``Client.slices`` returns the current ones."""
    slice_of: str = ""
    """Computation that it is a slice of; empty for no slice."""
    slice_start: bytes = b""
    """First key of a slice."""
    slice_end: bytes = b""
    """First key after a slice; empty means no upper bound."""
    slice_source: str = ""
    """Slice from which a new slice has yet to take over its keys; empty for none."""


class Slice(NamedTuple):
    """A part ``[start, end)`` of the keys with a shard of its own; an empty end has no bound."""

    name: str
    """Name of the computation, "~" and a number from 0; of an uncut computation, its own name."""
    start: bytes
    end: bytes


@dataclass(frozen=True, slots=True)
class Topology:
    """The pipeline graph at one version."""

    version: int
    computations: Mapping[str, Computation]


@dataclass(frozen=True, slots=True)
class ShardView:
    """One process of the authority, and the computations that it serves."""

    address: str
    """Address ``host:port`` that it advertises."""
    id: str
    """Random name, chosen when the process started."""
    draining: bool
    """True while it hands over its computations and takes no more."""
    silent_for: float
    """Seconds since its last beat, by the store's clock."""
    computations: tuple[str, ...]
    """Computations that it serves by the store, sorted."""


@dataclass(frozen=True, slots=True)
class Shards:
    """The living shards of a deployment, by address."""

    version: int
    """Version: it grows when a shard comes, goes or drains, or a pin changes."""
    shards: tuple[ShardView, ...]
    pins: Mapping[str, str]
    """Address to which an operator has pinned a computation, by computation."""
    unserved: tuple[str, ...]
    """Registered computations that no living shard serves now."""

    def __iter__(self) -> Iterator[ShardView]:
        return iter(self.shards)

    def __len__(self) -> int:
        return len(self.shards)


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a token, by the access file at the time of the question."""

    controlled: bool
    """True when there is an access file. Without one everybody may read everything, and has no
    name."""
    name: str
    """Principal in the access file; empty for an unknown token."""
    page: bool
    """True when the principal may read the status page and its API, with all namespaces."""
    metrics: bool
    """True when the principal may scrape /metrics."""


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One attempt of one task of a Spark micro-batch."""

    stage: int
    partition: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of some ranges of a report by the authority."""

    reason: str
    """Reason, like the ``reason`` of the errors: "TOO_FAR_AHEAD", "STALE_SEQUENCER", ..."""
    message: str
    handles: tuple[int, ...] | None
    """Handles of the refused ranges; None means all of the claim."""


class TaskState(Enum):
    """State of a task."""

    READY = "ready"
    """A task that any worker may take."""
    LEASED = "leased"
    """A task that a worker has leased."""
    DONE = "done"
    """A task that was committed."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to create.

    Its name is unique within its group and time: 1 to 128 of ``A-Z a-z 0-9 _ . -``.
    """

    name: str
    at: EventTime
    """Event time of the oldest work that it stands for: groups hand out the oldest task first."""
    payload: bytes = b""
    """Data for its worker, at most 1,024 bytes."""
    group: str = ""
    """Group of a successor task; empty for the same group."""


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task and its current state."""

    group: str
    name: str
    """Name of a task; empty for the task of an interval, which ``at`` names."""
    at: Watermark
    """Event time of a task, or the start of its interval."""
    until: Watermark
    """End of its interval, exclusive; finished when the interval has no end, since no more data
    will come. Equal to ``at`` without intervals."""
    payload: bytes
    version: int
    """Version of the task: it grows with every step."""
    state: TaskState
    worker: str
    """Worker that leased or committed it; empty for none."""
    outputs: tuple[str, ...]
    """Outputs of a committed task."""
    digest: bytes
    offered: bool
    """True when its lease has run out, so that others may take it."""


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """A group of tasks."""

    computation: str
    name: str
    incarnation: int
    """Incarnation of the computation: a reset ends all tasks of the incarnation before."""
    every: timedelta | None
    """Length of its intervals; None when its tasks are created by calls."""
    start: Watermark | None
    """Start of the first interval."""
    lease: timedelta
    """Time for which a leased task is offered to no other worker."""
    configuration: bytes
    configuration_version: int
    mark: Watermark
    """Event time below which every task is done and forgotten, and none is created any more."""
    closed: Watermark
    """Event time below which every task is done; finished when every task is. With intervals: the
    end of the closed ones, which never goes down."""
    ready: int
    leased: int
    done: int
    """Number of committed tasks that are remembered."""


@dataclass(frozen=True, slots=True)
class TaskList:
    """The oldest tasks of a group."""

    group: TaskGroup
    tasks: tuple[TaskView, ...]
    total: int
    """Number of all tasks that match the question."""

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[TaskView]:
        return iter(self.tasks)
