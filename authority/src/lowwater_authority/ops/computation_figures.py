"""Figures of each computation, read at a scrape from published views and range counts."""

from __future__ import annotations

import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from lowwater.core.causes import Cause, cause_of_range
from lowwater.core.lag import lag_seconds, root_lows, upstream_first
from lowwater.core.text import describe_range
from lowwater.prometheus import Figure
from lowwater.views import RangeState, RangeView
from lowwater.watermark import Watermark
from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.heuristics import PPM
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.promises import NOTHING, Promises

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lowwater_authority.core.computation import View
    from lowwater_authority.core.interval_map import Range
    from lowwater_authority.core.tasks import GroupFigures
    from lowwater_authority.engine.shard import Shard
    from lowwater_authority.ops.range_survey import RangeSurvey
    from lowwater_authority.ops.upstream import Upstream

    Sample = tuple[list[str], float]
    """Label values and the value."""

STILL_SECONDS: Final = 30
"""Seconds that a low watermark must stand still before its holder is named."""


def _gauge(name: str, says: str, *labels: str) -> Figure:
    return Figure("gauge", f"lowwater_{name}", says, ("computation", *labels))


def _counter(name: str, says: str, *labels: str) -> Figure:
    return Figure("counter", f"lowwater_{name}", says, ("computation", *labels))


LOW: Final = _gauge(
    "low_watermark_timestamp_seconds",
    "Published low watermark, while it is a time: every event time below it is complete.",
)
SHARE: Final = _gauge(
    "heuristic_watermark_timestamp_seconds",
    "Published heuristic watermark, while it is a time: this share of the recent records is past it.",
    "share",
)
BUDGET: Final = _gauge(
    "lateness_budget_timestamp_seconds",
    "Published watermark of a lateness budget, while it is a time: in the long run, at most about this share of the records comes behind it.",
    "budget",
)
BUDGET_RECORDS: Final = _counter(
    "lateness_budget_records_total", "Records of a computation with a lateness budget.", "budget"
)
BUDGET_BEHIND: Final = _counter(
    "lateness_budget_behind_total", "Records that came behind the watermark of a lateness budget.", "budget"
)
BUDGET_EXCUSED: Final = _counter(
    "lateness_budget_excused_total",
    "Records behind the watermark that do not count: they came when lateness jumped, before the watermark could adapt.",
    "budget",
)
BUDGET_WORST: Final = _gauge(
    "lateness_budget_worst_ratio",
    "Greatest share behind in any 10,000 of the last 100,000 records; 0 before there are as many.",
    "budget",
)
STATE: Final = _gauge(
    "watermark_state",
    "1 for the state of the low watermark: unknown, a time or finished.",
    "state",
)
LOCAL_LAG: Final = _gauge(
    "local_lag_seconds",
    "Event time by which the low watermark is behind those of its inputs, while all of them are times.",
)
GLOBAL_LAG: Final = _gauge(
    "global_lag_seconds",
    "Event time by which the low watermark is behind those of the roots upstream, while all of them are times.",
)
CHANGED: Final = _gauge(
    "low_watermark_change_timestamp_seconds",
    "Processing time at which the low watermark moved last; absent before it ever did.",
)
OPERATION: Final = _gauge(
    "oldest_operation_timestamp_seconds",
    "Processing time at which the oldest running operation began; absent when no worker reports one.",
)
RANGES: Final = _gauge(
    "ranges",
    "Key ranges: never_claimed, owned, unowned, stopped (released in good order), finished (of claims that are as a whole) or retired. Counted every 5 s.",
    "state",
)
HOLDING: Final = _gauge("holding_ranges", "Key ranges at the low watermark, which hold it there. Counted every 5 s.")
LAST_REPORT: Final = _gauge(
    "last_report_timestamp_seconds",
    "Oldest last report of the claims that hold the low watermark, as processing time; absent without such a claim. Counted every 5 s.",
)
HOLDER: Final = _gauge(
    "holder_info",
    "1 for a key range that holds a low watermark, which has stood still for 30 s and is behind all inputs, if any.",
    "worker",
    "host",
    "range",
)
HOLDER_STATE: Final = _gauge(
    "holder_state",
    "1 while the key range that holds the low watermark has a worker that has stopped, failed, or not begun; else absent. Stopped only if the workers of all ranges that hold it have.",
    "state",
)
ESTIMATED: Final = _gauge(
    "estimated",
    "1 for estimated watermarks, which are no promise: Spark's own, and those of computations that read them.",
)
TASKS: Final = _gauge(
    "tasks", "Tasks of a group: ready, leased, or done and remembered. A group has at most 4,096.", "group", "state"
)
CLOSED: Final = _gauge(
    "tasks_closed_timestamp_seconds",
    "Event time below which every task of a group is done, or its intervals are closed; while it is a time.",
    "group",
)
EPOCH: Final = _gauge("epoch", "Ownership number of the computation among the shards.")
INCARNATION: Final = _gauge("incarnation", "The computation's incarnation: grows with each reset.")
LATE: Final = _gauge(
    "promise_late_seconds",
    "Promised distance of the low watermark behind the clock, beyond which it is late; absent without a promise.",
)
PROMISE: Final = _gauge(
    "promise_info",
    "1 for a computation with a promise: its owner, team and runbook; a label that the promise does not name is empty.",
    "owner",
    "team",
    "runbook",
)


class Reading:
    """Samples of one scrape. An unknown value has no sample, because a wrong figure misleads.

    Computations of other shards count as these have answered ``upstream`` lately.
    """

    def __init__(self, shard: Shard, survey: RangeSurvey, upstream: Upstream, promises: Promises | None = None) -> None:
        self._shard = shard
        self._promises = promises or Promises()
        self._topology = shard.topology
        self._counts = survey.counts
        self._upstream = upstream
        self._roots: dict[str, int] | None = None

    def low(self, view: View) -> Iterator[Sample]:
        """Return the samples of LOW."""
        if MIN < view.low < MAX:
            yield [view.name], view.low / 1e6

    def shares(self, view: View) -> Iterator[Sample]:
        """Return the samples of SHARE."""
        for ppm, micros in view.heuristics:
            if MIN < micros < MAX:
                yield [view.name, f"{ppm / 1e6:g}"], micros / 1e6

    def budget(self, view: View) -> Iterator[Sample]:
        """Return the samples of BUDGET."""
        for budget in view.budgets:
            if MIN < budget.micros < MAX:
                yield [view.name, f"{budget.ppm / PPM:g}"], budget.micros / 1e6

    def state(self, view: View) -> Iterator[Sample]:
        """Return the samples of STATE."""
        yield [view.name, "unknown"], float(view.low == MIN)
        yield [view.name, "time"], float(MIN < view.low < MAX)
        yield [view.name, "finished"], float(view.low == MAX)

    def local_lag(self, view: View) -> Iterator[Sample]:
        """Return the samples of LOCAL_LAG."""
        inputs = self._inputs(view.name)
        lag = lag_seconds(min(map(self._low, inputs)), view.low) if inputs else None
        if lag is not None:
            yield [view.name], lag

    def global_lag(self, view: View) -> Iterator[Sample]:
        """Return the samples of GLOBAL_LAG. O(edges of the graph), once for all computations."""
        if not self._inputs(view.name):
            return
        if self._roots is None:
            graph = {name: spec.inputs for name, spec in self._topology.computations.items()}
            self._roots = root_lows(upstream_first(graph), self._inputs, self._low)
        lag = lag_seconds(self._roots.get(view.name, MIN), view.low)
        if lag is not None:
            yield [view.name], lag

    def changed(self, view: View) -> Iterator[Sample]:
        """Return the samples of CHANGED."""
        if view.since:
            yield [view.name], view.since / 1e6

    def operation(self, view: View) -> Iterator[Sample]:
        """Return the samples of OPERATION."""
        if view.oldest_operation:
            yield [view.name], view.oldest_operation / 1e6

    def ranges(self, view: View) -> Iterator[Sample]:
        """Return the samples of RANGES."""
        if view.name in self._counts:
            for state, number in self._counts[view.name].states.items():
                yield [view.name, state], number

    def holding(self, view: View) -> Iterator[Sample]:
        """Return the samples of HOLDING."""
        if view.name in self._counts:
            yield [view.name], self._counts[view.name].holding

    def last_report(self, view: View) -> Iterator[Sample]:
        """Return the samples of LAST_REPORT."""
        if view.name in self._counts and self._counts[view.name].last_report:
            yield [view.name], self._counts[view.name].last_report / 1e6

    def holder(self, view: View) -> Iterator[Sample]:
        """Return the sample of HOLDER: none if the computation moves, or waits for its inputs."""
        if view.holder is not None and self._stands_still(view):
            owner = view.holder.owner
            yield [view.name, owner.worker, owner.host, describe_range(view.holder.start, view.holder.end)], 1

    def holder_state(self, view: View) -> Iterator[Sample]:
        """Return the sample of HOLDER_STATE."""
        if view.holder is None or view.low == MAX:
            return
        # The wall clock: a scrape is on another thread than the shard's processing time.
        cause = cause_of_range(_holder_view(view.holder), 0, time.time_ns() // 1000)
        if cause is Cause.STOPPED and not (view.name in self._counts and self._counts[view.name].stopped):
            return  # a worker that holds too may have died, of which an alert must tell
        if cause in {Cause.STOPPED, Cause.FAILED, Cause.NOT_BEGUN}:
            yield [view.name, cause.value.replace(" ", "_")], 1

    def estimated(self, view: View) -> Iterator[Sample]:
        """Return the samples of ESTIMATED."""
        yield [view.name], float(self._topology.is_estimated(view.name))

    def epoch(self, view: View) -> Iterator[Sample]:
        """Return the samples of EPOCH."""
        yield [view.name], self._shard.served.epoch(view.name)

    def incarnation(self, view: View) -> Iterator[Sample]:
        """Return the samples of INCARNATION."""
        yield [view.name], view.incarnation

    def late(self, view: View) -> Iterator[Sample]:
        """Return the samples of LATE."""
        promise = self._promises.of(view.name)
        if promise.late_micros:
            yield [view.name], promise.late_micros / 1e6

    def promise(self, view: View) -> Iterator[Sample]:
        """Return the samples of PROMISE."""
        promise = self._promises.of(view.name)
        if promise != NOTHING:
            yield [view.name, promise.owner, promise.team, promise.runbook], 1

    def tasks(self, view: View) -> Iterator[Sample]:
        """Return the samples of TASKS."""
        for group in self._groups(view):
            yield [view.name, group.name, "ready"], group.ready
            yield [view.name, group.name, "leased"], group.leased
            yield [view.name, group.name, "done"], group.done

    def closed(self, view: View) -> Iterator[Sample]:
        """Return the samples of CLOSED."""
        for group in self._groups(view):
            if MIN < group.closed < MAX:
                yield [view.name, group.name], group.closed / 1e6

    def _groups(self, view: View) -> tuple[GroupFigures, ...]:
        computation = self._shard.held.computation(view.name)
        return () if computation is None else computation.tasks.published

    def _stands_still(self, view: View) -> bool:
        """Return whether a computation stands still, and its inputs are not the reason. O(inputs).

        A computation that has never moved stands still.
        """
        if time.time_ns() // 1000 - view.since < STILL_SECONDS * 1_000_000:
            return False
        inputs = self._inputs(view.name)
        return not inputs or view.low < min(map(self._low, inputs))

    def _inputs(self, name: str) -> tuple[str, ...]:
        spec = self._topology.computations.get(name)
        return spec.inputs if spec is not None else ()

    def _low(self, name: str) -> int:
        """Return the low watermark of a computation; MIN if no shard has answered lately."""
        here = self._shard.served.view(name)
        return self._upstream.low(name) if here is None else here.low


_STATES: Final = {
    GroupState.NEVER: RangeState.NEVER_CLAIMED,
    GroupState.OWNED: RangeState.OWNED,
    GroupState.UNOWNED: RangeState.UNOWNED,
    GroupState.RETIRED: RangeState.RETIRED,
}


def _holder_view(holder: Range) -> RangeView:
    """Return the key range that holds a low watermark below MAX, as a client sees it."""
    owner = holder.owner
    return RangeView(
        holder.start,
        holder.end,
        Watermark(holder.value),
        _STATES[owner.state],
        owner.worker,
        owner.host,
        owner.sequencer,
        holder.since,
        owner.last_report,
        owner.waiting_for,
        owner.remarks,
        owner.claimed,
    )


def _budgets(read: Callable[[Any], float]) -> Callable[[Reading, View], Iterator[Sample]]:
    """Return the reader of a figure that each lateness budget has."""

    def samples(_: Reading, view: View) -> Iterator[Sample]:
        for budget in view.budgets:
            yield [view.name, f"{budget.ppm / PPM:g}"], read(budget)

    return samples


READ: Final[dict[Figure, Callable[[Reading, View], Iterator[Sample]]]] = {
    LOW: Reading.low,
    SHARE: Reading.shares,
    BUDGET: Reading.budget,
    BUDGET_RECORDS: _budgets(attrgetter("records")),
    BUDGET_BEHIND: _budgets(attrgetter("behind")),
    BUDGET_EXCUSED: _budgets(attrgetter("excused")),
    BUDGET_WORST: _budgets(lambda budget: budget.worst / PPM),
    STATE: Reading.state,
    LOCAL_LAG: Reading.local_lag,
    GLOBAL_LAG: Reading.global_lag,
    CHANGED: Reading.changed,
    OPERATION: Reading.operation,
    RANGES: Reading.ranges,
    HOLDING: Reading.holding,
    LAST_REPORT: Reading.last_report,
    HOLDER: Reading.holder,
    HOLDER_STATE: Reading.holder_state,
    ESTIMATED: Reading.estimated,
    EPOCH: Reading.epoch,
    INCARNATION: Reading.incarnation,
    LATE: Reading.late,
    PROMISE: Reading.promise,
    TASKS: Reading.tasks,
    CLOSED: Reading.closed,
}
"""Reader of each figure. A computation is exported only by the shard that serves it."""
