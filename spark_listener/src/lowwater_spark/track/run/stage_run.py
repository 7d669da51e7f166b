"""One stage of a query, in one run: its inputs, its durable state, and its reports.

A query has one stage, or several that read the same batches. A *reader* folds the inputs by which
the whole query is planned; an *injector* has a frontier of its own; a *later* stage reads what
earlier stages of the query emit in the same batch, so its reading after a batch is the fold of
their reports after that batch. It does not wait until these are published: all of them come from
one durable state, so it never reports more than a restart would.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import lowwater
from lowwater import errors
from lowwater.layout import SLOTS, Layout, slot_text
from lowwater.watermark import MIN
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.checkpoint.log import Plan
from lowwater_spark.errors import AWAY
from lowwater_spark.sources.base import OpenSource
from lowwater_spark.track.facts import BatchFacts
from lowwater_spark.track.inputs import UNREAD, Change, Origin, Reading, fold, still_counts
from lowwater_spark.track.rows.cut import EQUAL, Cut, Share, least_of
from lowwater_spark.track.rows.frontier import Example, Seen
from lowwater_spark.track.rows.keyed import Keyed
from lowwater_spark.track.rows.load import BATCHES, balanced, hottest
from lowwater_spark.track.run.authority import REPLACED, Authority
from lowwater_spark.track.run.batch import Outcome
from lowwater_spark.track.run.batch_log import BatchLog
from lowwater_spark.track.run.progress import AfterBatch, Progress, passed_on
from lowwater_spark.track.run.status import KeyRange
from lowwater_spark.track.segments import Unsent
from lowwater_spark.track.state.store import StageSection, StateStore, StateVersion
from lowwater_spark.track.state.update import can_pin

__all__ = ["LateRow", "StageRun", "after_batch"]

logger = logging.getLogger("lowwater.spark")

_MOST_SAID: Final = 1000
"""Greatest number of characters of a reason that is sent; the authority accepts a few more."""

_TWO: Final = (
    "the ranges of {name} have another layout of version {version}: the authority's journal was restored from an older copy, or the checkpoint belongs to another stage. The ranges stay as they are. "
    "Request a layout again, with lowwater split, merge or move: it gets a version of its own"
)

_NO_TASK: Final = "the range that starts at {start} is pinned to task {task}, and a batch has {most} at most: move it to one of them, or start the query with a greater spark.sql.shuffle.partitions"


@dataclass(frozen=True, slots=True)
class LateRow:
    """A row below the promised watermark."""

    batch: int
    micros: int
    handle: int | None
    """The row's key range; None if it is unknown: in a plain query, in an injector, and in a replay
    of a batch that did not store it."""
    where: str = ""
    """Part of an injector's source that the row came from, in words; empty for other stages."""
    cut: Cut | None = None
    """The cut to which the key range belongs."""


@dataclass(slots=True)
class StageRun:
    """One stage of a query. The run's lock guards it."""

    authority: Authority
    keyed: Keyed
    home: Location
    """Parent of the stage's directory ``lowwater``: the checkpoint, or a folder of it."""
    earlier: Sequence[StageRun] = ()
    """Stages of the query that this one reads; empty for readers and injectors."""
    section: StageSection = field(init=False)
    """The stage's section of the checkpoint's manifest, set when the run begins."""
    entries: BatchLog = field(init=False)
    """Log of the stage's batches; empty for a plain query."""
    progress: Progress = field(init=False)
    late_rows: int = field(default=0, init=False)
    late_row: LateRow | None = field(default=None, init=False)
    ahead_rows: int = field(default=0, init=False)
    ahead_row: tuple[int, Example] | None = field(default=None, init=False)
    """The newest row too far ahead of the clock, and its batch."""
    source_state: Seen | None = field(default=None, init=False)
    """An injector's knowledge of its source after the newest batch; None without declarations."""
    untimed_rows: int = field(default=0, init=False)
    """Number of rows of this run without an event time."""
    driven_holdback: int = field(default=0, init=False)
    """Event time by which Spark holds a driven query's output back by design, microseconds."""
    unsent: Sequence[Unsent] = field(default=(), init=False)
    """Segments of the last batch that another store has not accepted yet. Unknown before the run's
    first batch, which is requested at once if there are any."""
    _unreported: tuple[tuple[Sequence[int], Sequence[int]], int] | None = field(default=None, init=False)
    """Histogram of the held records, and number of rows finished since the last report; None: the
    last report had both."""
    _arrived: lowwater.Arrived | None = field(default=None, init=False)
    """Lateness of the rows of the batches that no report has included yet."""
    _fixed: str = field(default="", init=False)
    """Why the stage's ranges cannot be cut again, by its last batch; empty: they can."""
    _refused: str = field(default="", init=False)
    """Why the wanted layout is not followed; empty: it is, or no layout is wanted."""
    _unclaimed: tuple[Layout, str] = field(default=(EQUAL, ""), init=False)
    """The last layout whose claim was refused, and the reason."""
    _loads: Sequence[Sequence[lowwater.RangeLoad]] = field(default=(), init=False)
    """Loads of the ranges in the last batches, for balancing."""
    _logged_refusal: Layout = field(default=EQUAL, init=False)
    """The last layout of which it was logged that the stage does not follow it."""
    _partitions: int = field(default=SLOTS, init=False)
    """Greatest number of tasks that can share the ranges, by the last batch."""

    def __post_init__(self) -> None:
        self.entries = BatchLog(self.home)

    @property
    def name(self) -> str:
        """Name of the computation."""
        return self.authority.registration.name

    @property
    def reads(self) -> bool:
        """True for a reader, which folds the inputs of the query."""
        return not self.keyed.injector and not self.earlier

    # -- its reading -------------------------------------------------------------------------------

    def at_frontier(self, micros: int) -> Reading:
        """Return an injector's reading: its frontier counts for every share."""
        shares = [round(share * 1_000_000) for share in self.authority.registration.heuristics]
        return Reading(micros, dict.fromkeys(shares, micros))

    def own(self, reading: Reading) -> Reading:
        """Return a reading with the input version and incarnations of this stage.

        UNREAD while the stage's inputs are unknown. The caller guarantees that the reading belongs
        to the same incarnations of the same inputs.
        """
        if self.progress.inputs is None:
            return UNREAD
        mine = self.progress.inputs
        return dataclasses.replace(reading, input_version=mine.version, input_incarnations=mine.incarnations)

    def translated(self, reading: Reading, reader: StageRun) -> Reading:
        """Return the reader's reading as one of this stage; UNREAD if their inputs now differ."""
        theirs, mine = reader.authority.registered, self.authority.registered
        if self is reader or reading.low == MIN:
            return reading
        if theirs is None or mine is None or tuple(theirs.inputs) != tuple(mine.inputs):
            return UNREAD
        # The reading has the version of the reader's list of inputs. This stage counts the versions
        # of its own list separately: compared with those, a good reading would become UNREAD. So it
        # is compared with the reader's present version and with this stage's incarnations.
        if reading.origin.since(dataclasses.replace(Origin.of(mine), version=theirs.input_version)) is not Change.NONE:
            return UNREAD
        return dataclasses.replace(reading, input_version=mine.input_version)

    def promised(self, outer: int) -> int:
        """Return the event time below which the stage's rows in the next batch are late, micros.

        ``outer`` is this time for the query's inputs; for a later stage the reports of the earlier
        stages that it reads decide.
        """
        if self.keyed.injector:
            return self.progress.committed.reading.low
        if not self.earlier:
            return outer
        return min(
            passed_on(stage.progress.committed, Reading(stage.promised(outer)), stage.keyed.window).low
            for stage in self.earlier
        )

    # -- the durable state -------------------------------------------------------------------------

    def durable(self, plan: Plan, facts: BatchFacts, spark_bound: int, earlier: Sequence[AfterBatch]) -> AfterBatch:
        """Return what the stage's files say about a committed batch.

        ``earlier`` has the same for the stages that it reads. Versions of inputs in the reading are
        those of the query's reader. Raises CheckpointMismatch if the files contradict each other.
        """
        last = plan.batch
        reading = facts.reading
        if self.keyed.injector:
            frontier = self.entries.frontier(last)
            self.source_state = None if self.keyed.bounds is None else self.entries.seen(last)
            reading = self.at_frontier(MIN if frontier is None else frontier)
        elif self.earlier:
            reading = fold(
                [
                    passed_on(state, state.reading, stage.keyed.window)
                    for stage, state in zip(self.earlier, earlier, strict=True)
                ]
            )
        self._lay_out(facts.layouts)
        store = StateStore.existing(self.section)
        version = None if store is None or last < store.first else store.before(last + 1)
        if store is not None and version is not None:
            store.check_layout(version, self.keyed.layout)
        return after_batch(plan, reading, version, spark_bound)

    def open(self, sources: Sequence[OpenSource], state: AfterBatch) -> None:
        """Begin with the durable state."""
        self.progress = Progress(len(self.keyed.cut), self.keyed.window, sources, state, self.keyed.window_start)

    def restart(self, state: AfterBatch) -> None:
        """Begin again with a durable state and its ranges: an older run may have changed both."""
        self.progress.restart(state)
        self.progress.relay(len(self.keyed.cut), state.held)

    # -- the claim ---------------------------------------------------------------------------------

    def claim(self, reader: StageRun | None, lock: threading.RLock) -> bool:
        """Register and claim, with the committed state.

        Returns False when the authority is away, and when a batch has changed the cut into key
        ranges meanwhile: the caller tries again later. If only the state changes meanwhile, the
        claim holds, because the values it began with are lower bounds; the next report says the
        rest. Raises the authority's other refusals. ``lock`` is the run's; the caller does not hold
        it, because the calls may take long and a batch needs it.
        """

        def check(registered: lowwater.Computation) -> None:
            with lock:
                self.check_inputs(registered, reader)

        def values() -> tuple[Cut, list[int]]:
            with lock:
                self._unreported = (self.progress.committed.pending, 0)
                return self.keyed.cut, self.progress.values(self.progress.reading)

        return self.authority.enter(check, values, lock)

    def check_inputs(self, registered: lowwater.Computation, reader: StageRun | None) -> None:
        """Compare the registered inputs with those of the checkpoint's watermark."""
        state = self.progress.committed
        reading = state.reading
        if not self.keyed.injector:
            self.progress.inputs = Origin.of(registered)
        if self.keyed.injector:
            again = self.at_frontier(reading.low)
        elif self.earlier:
            again = self._folded()
        elif reader is not None and reader is not self:
            again = self.translated(reader.progress.committed.reading, reader)
        else:
            # If the stage had other inputs at this reading, the reading says nothing about the
            # present ones: it becomes UNREAD, and the watermark holds. ``state.held`` stays: the
            # ranges still hold those records, whatever the inputs are.
            again = still_counts(reading, state.batch, registered)
        self.progress.restart(dataclasses.replace(state, reading=again))

    # -- the layout of its ranges ------------------------------------------------------------------

    def follow_wanted(self, batch: int, digest: str) -> None:
        """Claim the ranges of the wanted layout before a batch begins, if they can be followed.

        If the claim is not granted, the layout stays. Raises the error that replaced the run.
        """
        wanted = self.authority.wanted
        if wanted is None or wanted == self.keyed.layout or not wanted.starts:
            return
        self._refused = self._why_not(wanted)[:_MOST_SAID]
        if self._refused:
            if self._logged_refusal != wanted:
                message = "version %d of the layout of %s is not followed: %s"
                logger.warning(message, wanted.version, self.name, self._refused)
            self._logged_refusal = wanted
            return
        if self.authority.lease is None or self.authority.problem or self.progress.holding:
            return  # try again before a later batch, when the authority knows the last one whole
        if self._relay(wanted, batch, digest):
            logger.info("%s has %d key ranges from batch %d on", self.name, len(wanted), batch)

    def _why_not(self, wanted: Layout) -> str:
        """Return why a layout is not followed; empty: it can be followed."""
        if wanted.version == self.keyed.layout.version:
            return _TWO.format(version=wanted.version, name=self.name)
        unclaimed, why = self._unclaimed
        return wanted.wrong() or self._unpinned(wanted) or self._fixed or (why if unclaimed == wanted else "")

    def _unpinned(self, wanted: Layout) -> str:
        """Return why a range cannot run in the task to which it is pinned; empty: all can."""
        for start, task in zip(wanted.starts, wanted.tasks, strict=False):
            if task > self._partitions and can_pin():
                return _NO_TASK.format(start=slot_text(start), task=task, most=self._partitions)
        return ""

    def follow_logged(self, layouts: Mapping[str, Layout], batch: int, digest: str) -> None:
        """Follow the layout of a batch's first run, also if its ranges cannot be claimed now.

        They are then claimed later. Raises the error that replaced the run.
        """
        logged = layouts.get(self.section.name, EQUAL)
        if logged == self.keyed.layout:
            return
        if self.authority.lease is None or self.authority.problem or not self._relay(logged, batch, digest):
            shares = Cut(self.keyed.ranges, logged).shares(self.keyed.cut)
            stamps = self._held_stamps(shares)
            self._lay_out(layouts)
            self.progress.relay(len(shares), stamps)

    def _relay(self, layout: Layout, batch: int, digest: str) -> bool:
        """Claim another layout's ranges, each with its keys' values; False if not granted.

        A refused layout is not claimed again.
        """
        cut = Cut(self.keyed.ranges, layout)
        shares = cut.shares(self.keyed.cut)
        values = self.progress.values(self.progress.reading)
        try:
            self.authority.claim_again(
                cut, [min(values[share.parent] for share in range_shares) for range_shares in shares], batch, digest
            )
        except (*REPLACED, errors.Closed):
            raise
        except errors.LowwaterError as failure:
            self.authority.lost(failure)
            if isinstance(failure, errors.Overloaded) or not isinstance(failure, AWAY):
                self._unclaimed = layout, str(failure)[:_MOST_SAID]
            return False
        stamps = self._held_stamps(shares)
        self.keyed = dataclasses.replace(self.keyed, layout=layout)
        self.progress.relay(len(shares), stamps)
        self._unreported = (self.progress.committed.pending, 0 if self._unreported is None else self._unreported[1])
        return True

    def _held_stamps(self, shares: Sequence[Sequence[Share]]) -> Sequence[int | None]:
        stamps = self.progress.committed.held
        return least_of(shares, stamps) if stamps else ()

    def _lay_out(self, layouts: Mapping[str, Layout]) -> None:
        """Adopt a batch's layout. A lease of other ranges is dropped, and claimed anew later."""
        self.keyed = dataclasses.replace(self.keyed, layout=layouts.get(self.section.name, EQUAL))
        if self.authority.cut != self.keyed.cut:
            self.authority.drop_lease()
            self.authority.cut = self.keyed.cut

    def _balance(self, outcome: Outcome) -> None:
        """Request a layout that spreads the last batches' loads better, unless one is wanted."""
        wanted, layout = self.authority.wanted, self.keyed.cut.told
        if not self.keyed.balance or not outcome.loads or self._fixed:
            return
        self._loads = [*self._loads, outcome.loads][-BATCHES:]
        if wanted is not None and wanted != layout:
            if wanted.starts:
                return
            # A wanted layout without starts names no ranges, and is not followed: the computation
            # was dropped and registered anew, or is a slice that has handed keys to another. The
            # request must still name its version, or the authority refuses it.
            layout = dataclasses.replace(layout, version=wanted.version)
        better = balanced(layout, self._loads, outcome.tasks, outcome.workers, self.keyed.ranges, pins=can_pin())
        if better is not None and self.authority.propose(better):
            self._loads = []

    # -- batches and the clock ---------------------------------------------------------------------

    def commit(self, outcome: Outcome) -> Outcome:
        """Commit a prepared batch at the authority, with its hottest ranges.

        Returns the outcome with the reason why the authority does not know the batch whole, or
        none. Raises the error that replaced the run.
        """
        if outcome.holding:
            return outcome
        holding = self.authority.commit(outcome.after.batch, self._refused, hottest(outcome.loads))
        if self.authority.wanted is None:
            self._refused = ""
        return dataclasses.replace(outcome, holding=holding)

    def record(self, outcome: Outcome) -> None:
        """Record a batch that :meth:`commit` has returned."""
        self.progress.record(outcome.after, outcome.holding)
        self._fixed, self.unsent, self._partitions = outcome.fixed, outcome.unsent, outcome.partitions
        self._balance(outcome)
        finished = outcome.counted.finished + (self._unreported[1] if self._unreported is not None else 0)
        self._unreported = (self.progress.committed.pending, finished)
        if outcome.counted.arrived is not None:
            self._arrived = (
                outcome.counted.arrived if self._arrived is None else self._arrived | outcome.counted.arrived
            )
        if outcome.holding:
            logger.warning("%s holds after batch %d: %s", self.name, outcome.after.batch, outcome.holding)

    def clean(self, committed: int, before: int) -> None:
        """Delete state versions that no replay needs, and log entries before ``before``.

        Raises OSError.
        """
        store = StateStore.existing(self.section)
        if store is not None:
            store.purge(committed)
        self.entries.purge(before)

    def advance(self, reader: StageRun | None) -> None:
        """Adopt the newest reading that counts, after the earlier stages have adopted theirs."""
        if self.earlier:
            self.progress.advance(self._folded())
        elif self.reads and reader is not None and reader is not self:
            self.progress.advance(self.translated(reader.progress.reading, reader))
        else:
            self.progress.renew()

    def _folded(self) -> Reading:
        """Return the fold of the earlier stages' current reports."""
        standing = [(stage.progress.committed, stage.progress.reading, stage.keyed.window) for stage in self.earlier]
        return self.own(fold([passed_on(*report) for report in standing]))

    def renew(self, since: float | None, waiting_for: Sequence[str]) -> None:
        """Report the ranges' values.

        ``since`` is when the running batch began, epoch seconds; ``waiting_for`` as in Status.
        """
        if self.progress.holding or self.authority.lease is None:
            return
        reading = self.progress.stamped(self.progress.reading)
        if self.keyed.injector:
            reading = dataclasses.replace(reading, low=self.progress.bound(reading))
        pending, finished = self._unreported or (None, 0)
        arrived, self._unreported, self._arrived = self._arrived, None, None
        self.authority.renew(
            reading,
            self.progress.values(reading),
            pending=pending,
            finished=finished,
            arrived=arrived,
            since=since,
            waiting_for=waiting_for,
            remarks=lowwater.Remarks(self._holdback, untimed_rows=self.untimed_rows),
        )

    @property
    def _holdback(self) -> int:
        """Event time by which the stage's watermark is below the inputs by design, microseconds."""
        window = self.keyed.window
        return max(self.driven_holdback, 0 if window is None else window // timedelta(microseconds=1))

    def count_seen(self, batch: int, source_state: Seen) -> None:
        """Count and log the rows of an injector's batch that break its declarations."""
        self.source_state = source_state
        if source_state.late_example is not None:
            example = source_state.late_example
            self.add_late(source_state.late, LateRow(batch, example.micros, None, str(example)))
            logger.warning(
                "batch %d of %s has %d rows older than was declared of its source, the oldest %s: the declaration is too small",
                batch,
                self.name,
                source_state.late,
                example,
            )
        if source_state.ahead_example is not None:
            self.ahead_rows += source_state.ahead
            if self.ahead_row is None or source_state.ahead_example.micros > self.ahead_row[1].micros:
                self.ahead_row = batch, source_state.ahead_example
            logger.warning(
                "batch %d of %s has %d rows too far ahead of the clock, which do not move its frontier, the newest %s",
                batch,
                self.name,
                source_state.ahead,
                source_state.ahead_example,
            )

    def held_by(self) -> list[str]:
        """Return what the stage itself waits for, in words: unsent rows, parts of its source."""
        bounds = self.keyed.bounds
        held = [] if bounds is None or self.source_state is None else bounds.holding(self.source_state)
        return [*map(str, self.unsent), *held]

    def count_untimed(self, batch: int, rows: int) -> None:
        """Count the rows of a batch without an event time, and log the first time."""
        if rows and not self.untimed_rows:
            logger.warning(
                "batch %d of %s has %d rows without an event time, which hold no watermark and are in no window; later ones are counted",
                batch,
                self.name,
                rows,
            )
        self.untimed_rows += rows

    def add_late(self, rows: int, example: LateRow) -> None:
        """Add late rows, and keep the oldest of all examples."""
        self.late_rows += rows
        if self.late_row is None or example.micros < self.late_row.micros:
            self.late_row = example

    def count_late(self, batch: int, outcome: Outcome) -> None:
        """Count and log the rows of a batch below the promised watermark."""
        if not outcome.counted.late or outcome.counted.late_example is None:
            return
        row = LateRow(batch, outcome.counted.late_example, outcome.counted.late_handle, cut=self.keyed.cut)
        self.add_late(outcome.counted.late, row)
        logger.warning(
            "batch %d of %s has %d rows below what its inputs had promised, the oldest at %s, in key range %s",
            batch,
            self.name,
            outcome.counted.late,
            lowwater.Watermark(row.micros),
            "?" if row.handle is None else KeyRange.of(row.handle, self.keyed.cut),
        )


def after_batch(plan: Plan, reading: Reading, version: StateVersion | None, spark_bound: int) -> AfterBatch:
    """Return a stage after a batch that has made this version of its state; None: it has none."""
    if version is None:
        return AfterBatch(plan.batch, plan.lines, reading, spark_bound=spark_bound)
    return AfterBatch(plan.batch, plan.lines, reading, version.held, version.pending, spark_bound, version.due)
