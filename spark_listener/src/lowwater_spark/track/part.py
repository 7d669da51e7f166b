"""One stage of a query, in one run: what it may count on, what its files say, and what it tells the authority.

A query has one stage, or several, which read the same batches. A *reader* folds the inputs that all of the query is planned by; an *injector* has a
frontier of its own; a *later* stage reads what earlier ones of the query emit in the same batch, so what it may count on
after a batch is what their reports after that batch fold to. It does not wait for them to be published: all of it comes from one
durable state, and who reads the later stage hears of nothing that a restart would not say as well.
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
from lowwater_spark.track.authority import REPLACED, Authority
from lowwater_spark.track.batch import Keyed, Outcome
from lowwater_spark.track.batch_log import BatchEntry, BatchLog
from lowwater_spark.track.cut import EQUAL, Cut, Share, least_of
from lowwater_spark.track.frontier import Example, Seen
from lowwater_spark.track.inputs import UNREAD, Change, Origin, Reading, fold, still_counts
from lowwater_spark.track.load import BATCHES, balanced, hottest
from lowwater_spark.track.progress import Committed, Progress, passed_on
from lowwater_spark.track.segments import Unsent
from lowwater_spark.track.state import Place, StateStore, Version
from lowwater_spark.track.status import KeyRange
from lowwater_spark.track.update import can_pin

__all__ = ["LateRow", "Part", "committed"]

logger = logging.getLogger("lowwater.spark")

_MOST_SAID: Final = 1000
"""Characters of a reason that the authority hears: it takes a few more."""

_TWO: Final = (
    "the ranges of {name} have another layout of version {version}: the authority's journal was restored from an older copy, or the checkpoint is another one's. They stay as they are. "
    "Ask for a layout once more, with lowwater split, merge or move: it has a version of its own"
)

_NO_TASK: Final = "the range that starts at {start} is pinned to task {task}, and a batch has {most} at most: move it to one of them, or start the query with a greater spark.sql.shuffle.partitions"


@dataclass(frozen=True, slots=True)
class LateRow:
    """A row below what had been promised."""

    batch: int
    micros: int
    handle: int | None
    """Its key range; None where nobody knows it: of a plain query, of an injector, and of a replay
    of a batch that did not keep it."""
    where: str = ""
    """In words, of an injector: its part of the source."""
    cut: Cut | None = None
    """What its key range is one of."""


@dataclass(slots=True)
class Part:
    """One stage of a query. The run's lock guards it."""

    authority: Authority
    keyed: Keyed
    home: Location
    """Where its directory ``lowwater`` is: the checkpoint for the first stage, a directory in it
    for the others."""
    earlier: Sequence[Part] = ()
    """The stages of the query that it reads; empty for a reader and for an injector."""
    place: Place = field(init=False)
    """Where the checkpoint's manifest has its state; from the run on."""
    entries: BatchLog = field(init=False)
    """What its batches run with; a plain query has none."""
    progress: Progress = field(init=False)
    late_rows: int = field(default=0, init=False)
    late_row: LateRow | None = field(default=None, init=False)
    """The oldest of them."""
    ahead_rows: int = field(default=0, init=False)
    ahead_row: tuple[int, Example] | None = field(default=None, init=False)
    """The newest of them, and its batch."""
    seen: Seen | None = field(default=None, init=False)
    """What an injector knows of its source after the newest batch; None when nobody looks."""
    untimed_rows: int = field(default=0, init=False)
    """Number of rows of this run that had no event time."""
    driven_holdback: int = field(default=0, init=False)
    """Event time by which Spark's own operators stay below the inputs by design, of a driven query,
    microseconds."""
    unsent: Sequence[Unsent] = field(default=(), init=False)
    """What its last batch keeps until another store has taken it. Not known before the first batch
    of the run, which is asked for at once when there is some."""
    _unreported: tuple[tuple[Sequence[int], Sequence[int]], int] | None = field(default=None, init=False)
    _arrived: lowwater.Arrived | None = field(default=None, init=False)
    """How late the rows were of the batches that no report has told of."""
    _fixed: str = field(default="", init=False)
    """Why its ranges cannot be cut otherwise, by its last batch; empty: they can."""
    _refused: str = field(default="", init=False)
    """Why the layout that is wanted is not followed; empty: it is, or none is wanted."""
    _unclaimed: tuple[Layout, str] = field(default=(EQUAL, ""), init=False)
    """The last layout whose claim was refused, and why."""
    _loads: Sequence[Sequence[lowwater.RangeLoad]] = field(default=(), init=False)
    """Of the last batches, for who balances them."""
    _said: Layout = field(default=EQUAL, init=False)
    """The last layout whose refusal was logged."""
    _partitions: int = field(default=SLOTS, init=False)
    """How many tasks a batch has at most, by the last one."""

    def __post_init__(self) -> None:
        self.entries = BatchLog(self.home)

    @property
    def name(self) -> str:
        """The computation's name."""
        return self.authority.registration.name

    @property
    def reads(self) -> bool:
        """Whether it folds the inputs of the query."""
        return not self.keyed.injector and not self.earlier

    # -- what it may count on ----------------------------------------------------------------------

    def at_frontier(self, micros: int) -> Reading:
        """Return an injector's reading: its frontier stands for every share."""
        shares = [round(share * 1_000_000) for share in self.authority.registration.heuristics]
        return Reading(micros, dict.fromkeys(shares, micros))

    def own(self, reading: Reading) -> Reading:
        """Return a reading as one of this stage's own registered inputs; UNREAD while they are not known.

        The caller vouches that the reading is of the same incarnations of the same inputs.
        """
        if self.progress.inputs is None:
            return UNREAD
        mine = self.progress.inputs
        return dataclasses.replace(reading, input_version=mine.version, input_incarnations=mine.incarnations)

    def translated(self, reading: Reading, reader: Part) -> Reading:
        """Return the reader's reading as one of this stage, which folds the same inputs; UNREAD when it does not any more."""
        theirs, mine = reader.authority.registered, self.authority.registered
        if self is reader or reading.low == MIN:
            return reading
        if theirs is None or mine is None or tuple(theirs.inputs) != tuple(mine.inputs):
            return UNREAD
        # Each stage has its own number for the list; the inputs, and so their incarnations, are the
        # same.
        if reading.origin.since(dataclasses.replace(Origin.of(mine), version=theirs.input_version)) is not Change.NONE:
            return UNREAD
        return dataclasses.replace(reading, input_version=mine.input_version)

    def promised(self, outer: int) -> int:
        """Return what no row of the next batch should be below, if the inputs have promised ``outer``, microseconds."""
        if self.keyed.injector:
            return self.progress.committed.reading.low
        if not self.earlier:
            return outer
        return min(
            passed_on(part.progress.committed, Reading(part.promised(outer)), part.keyed.window).low
            for part in self.earlier
        )

    # -- the durable state -------------------------------------------------------------------------

    def durable(self, plan: Plan, entry: BatchEntry, spark_bound: int, earlier: Sequence[Committed]) -> Committed:
        """Return what the stage's files say of a committed batch.

        Raises CheckpointMismatch when they say two things of its key ranges.

        ``earlier`` is the same of the stages it reads. Versions of inputs in the reading are those
        of the query's reader.
        """
        last = plan.batch
        reading = entry.reading
        if self.keyed.injector:
            frontier = self.entries.frontier(last)
            self.seen = None if self.keyed.bounds is None else self.entries.seen(last)
            reading = self.at_frontier(MIN if frontier is None else frontier)
        elif self.earlier:
            reading = fold(
                [
                    passed_on(each, each.reading, part.keyed.window)
                    for part, each in zip(self.earlier, earlier, strict=True)
                ]
            )
        self._lay_out(entry.layouts)
        store = StateStore.existing(self.place)
        manifest = None if store is None or last < store.first else store.before(last + 1)
        if store is not None and manifest is not None:
            store.check_layout(manifest, self.keyed.layout)
        return committed(plan, reading, manifest, spark_bound)

    def open(self, sources: Sequence[OpenSource], state: Committed) -> None:
        """Begin from the durable state."""
        self.progress = Progress(len(self.keyed.cut), self.keyed.window, sources, state, self.keyed.window_start)

    def restart(self, state: Committed) -> None:
        """Begin again from a durable state, in the ranges that it is of: an older run may have made a batch since, and another layout with it."""
        self.progress.restart(state)
        self.progress.relay(len(self.keyed.cut), state.held)

    # -- the claim ---------------------------------------------------------------------------------

    def claim(self, reader: Part | None, lock: threading.RLock) -> bool:
        """Register and claim, from where the committed state stands; False when the authority is away. Raises what it refuses.

        ``lock`` is the run's, and not held: the calls may take long, and a batch that begins or ends meanwhile needs it. What the claim says
        of a state that is not the newest any more stays true, and the next report says the rest.
        """

        def check(registered: lowwater.Computation) -> None:
            with lock:
                self.check_inputs(registered, reader)

        def values() -> tuple[Cut, list[int]]:
            with lock:
                self._unreported = (self.progress.committed.pending, 0)
                return self.keyed.cut, self.progress.values(self.progress.reading)

        return self.authority.enter(check, values, lock)

    def check_inputs(self, registered: lowwater.Computation, reader: Part | None) -> None:
        """Compare the inputs with those that the checkpoint's watermark was read from."""
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
            # Of other inputs nothing is known; what is held stays held.
            again = still_counts(reading, state.batch, registered)
        self.progress.restart(dataclasses.replace(state, reading=again))

    # -- the layout of its ranges ------------------------------------------------------------------

    def follow_wanted(self, batch: int, digest: str) -> None:
        """Follow the layout that is wanted, before a batch begins, if there is one and it can be followed: claim its ranges. Raises what replaced the run.

        When the claim is not granted, the layout stays as it is.
        """
        wanted = self.authority.wanted
        if wanted is None or wanted == self.keyed.layout or not wanted.starts:
            return
        self._refused = self._why_not(wanted)[:_MOST_SAID]
        if self._refused:
            if self._said != wanted:
                said = "version %d of the layout of %s is not followed: %s"
                logger.warning(said, wanted.version, self.name, self._refused)
            self._said = wanted
            return
        if self.authority.lease is None or self.authority.problem or self.progress.holding:
            return  # with a batch that the authority hears of
        if self._relay(wanted, batch, digest):
            logger.info("%s has %d key ranges from batch %d on", self.name, len(wanted), batch)

    def _why_not(self, wanted: Layout) -> str:
        """Return why a layout is not followed; empty: it can be."""
        if wanted.version == self.keyed.layout.version:
            return _TWO.format(version=wanted.version, name=self.name)
        unclaimed, why = self._unclaimed
        return wanted.wrong() or self._unpinned(wanted) or self._fixed or (why if unclaimed == wanted else "")

    def _unpinned(self, wanted: Layout) -> str:
        """Return why a range cannot run in the task that it is pinned to; empty: each can."""
        for start, task in zip(wanted.starts, wanted.tasks, strict=False):
            if task > self._partitions and can_pin():
                return _NO_TASK.format(start=slot_text(start), task=task, most=self._partitions)
        return ""

    def follow_logged(self, layouts: Mapping[str, Layout], batch: int, digest: str) -> None:
        """Follow the layout that a batch has begun with: also when nobody grants a claim of its ranges, which are claimed later then. Raises what replaced the run."""
        logged = layouts.get(self.place.name, EQUAL)
        if logged == self.keyed.layout:
            return
        if self.authority.lease is None or self.authority.problem or not self._relay(logged, batch, digest):
            shares = Cut(self.keyed.ranges, logged).shares(self.keyed.cut)
            held = self._held(shares)
            self._lay_out(layouts)
            self.progress.relay(len(shares), held)

    def _relay(self, layout: Layout, batch: int, digest: str) -> bool:
        """Claim the ranges of another layout, each from where its keys stand; False when that was not granted. A layout that was refused is not claimed again."""
        cut = Cut(self.keyed.ranges, layout)
        shares = cut.shares(self.keyed.cut)
        values = self.progress.values(self.progress.reading)
        try:
            self.authority.claim_again(
                cut, [min(values[share.parent] for share in each) for each in shares], batch, digest
            )
        except (*REPLACED, errors.Closed):
            raise
        except errors.LowwaterError as failure:
            self.authority.lost(failure)
            if isinstance(failure, errors.Overloaded) or not isinstance(failure, AWAY):
                self._unclaimed = layout, str(failure)[:_MOST_SAID]
            return False
        held = self._held(shares)
        self.keyed = dataclasses.replace(self.keyed, layout=layout)
        self.progress.relay(len(shares), held)
        self._unreported = (self.progress.committed.pending, 0 if self._unreported is None else self._unreported[1])
        return True

    def _held(self, shares: Sequence[Sequence[Share]]) -> Sequence[int | None]:
        held = self.progress.committed.held
        return least_of(shares, held) if held else ()

    def _lay_out(self, layouts: Mapping[str, Layout]) -> None:
        """Have the layout of a batch. A lease of other ranges is given up, and claimed anew."""
        self.keyed = dataclasses.replace(self.keyed, layout=layouts.get(self.place.name, EQUAL))
        if self.authority.cut != self.keyed.cut:
            self.authority.cut, self.authority.lease = self.keyed.cut, None

    def _balance(self, outcome: Outcome) -> None:
        """Ask for a layout that spreads the loads of the last batches better, if it is declared so; nothing else is wanted meanwhile."""
        wanted, layout = self.authority.wanted, self.keyed.cut.told
        if not self.keyed.balance or not outcome.loads or self._fixed:
            return
        self._loads = [*self._loads, outcome.loads][-BATCHES:]
        if wanted is not None and wanted != layout:
            if wanted.starts:
                return
            # Of a life before, which ends no wish of this one.
            layout = dataclasses.replace(layout, version=wanted.version)
        better = balanced(layout, self._loads, outcome.tasks, outcome.workers, self.keyed.ranges, pins=can_pin())
        if better is not None and self.authority.propose(better):
            self._loads = []

    def commit(self, batch: int, outcome: Outcome) -> str:
        """Have the authority apply a batch, and tell it what the hottest ranges have cost; returns as :meth:`Authority.commit` does."""
        holding = self.authority.commit(batch, self._refused, hottest(outcome.loads))
        if self.authority.wanted is None:
            self._refused = ""
        return holding

    # -- batches and the clock ---------------------------------------------------------------------

    def settle(self, state: Committed, outcome: Outcome, holding: str) -> None:
        """Take notice of a committed batch.

        ``holding``: why the authority does not know it whole.
        """
        self.progress.settle(state, holding)
        self._fixed, self.unsent, self._partitions = outcome.fixed, outcome.unsent, outcome.partitions
        self._balance(outcome)
        finished = outcome.finished + (self._unreported[1] if self._unreported is not None else 0)
        self._unreported = (self.progress.committed.pending, finished)
        if outcome.arrived is not None:
            self._arrived = outcome.arrived if self._arrived is None else self._arrived | outcome.arrived
        if holding:
            logger.warning("%s holds after batch %d: %s", self.name, state.batch, holding)

    def clean(self, committed: int, before: int) -> None:
        """Delete what no replay can need after a committed batch: versions of the state, and entries of batches ``before`` one. Raises OSError."""
        store = StateStore.existing(self.place)
        if store is not None:
            store.purge(committed)
        self.entries.purge(before)

    def advance(self, reader: Part | None) -> None:
        """Take the newest reading that counts now. The stages before it have taken theirs."""
        if self.earlier:
            self.progress.advance(self._folded())
        elif self.reads and reader is not None and reader is not self:
            self.progress.advance(self.translated(reader.progress.reading, reader))
        else:
            self.progress.renew()

    def _folded(self) -> Reading:
        """Return what the earlier stages' reports fold to, as they stand now."""
        standing = [(part.progress.committed, part.progress.reading, part.keyed.window) for part in self.earlier]
        return self.own(fold([passed_on(*each) for each in standing]))

    def renew(self, since: float | None, waiting_for: Sequence[str]) -> None:
        """Report where the ranges stand.

        ``since``: the wall clock at which the running batch began, seconds; ``waiting_for`` as in
        Status.
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
        """Event time by which its watermark stays below the inputs by design, microseconds."""
        window = self.keyed.window
        return max(self.driven_holdback, 0 if window is None else window // timedelta(microseconds=1))

    def count_seen(self, batch: int, seen: Seen) -> None:
        """Count the rows of an injector's batch that break what was declared of its source, and say so."""
        self.seen = seen
        if seen.late_example is not None:
            self.late_rows += seen.late
            example = seen.late_example
            if self.late_row is None or example.micros < self.late_row.micros:
                self.late_row = LateRow(batch, example.micros, None, str(example))
            logger.warning(
                "batch %d of %s has %d rows older than was declared of its source, the oldest %s: the declaration is too small",
                batch,
                self.name,
                seen.late,
                example,
            )
        if seen.ahead_example is not None:
            self.ahead_rows += seen.ahead
            if self.ahead_row is None or seen.ahead_example.micros > self.ahead_row[1].micros:
                self.ahead_row = batch, seen.ahead_example
            logger.warning(
                "batch %d of %s has %d rows too far ahead of the clock, which do not move its frontier, the newest %s",
                batch,
                self.name,
                seen.ahead,
                seen.ahead_example,
            )

    def held_by(self) -> list[str]:
        """Return what holds it by itself, in words: rows that were not taken, and of an injector's frontier parts of its source."""
        bounds = self.keyed.bounds
        parts = [] if bounds is None or self.seen is None else bounds.holding(self.seen)
        return [*map(str, self.unsent), *parts]

    def count_untimed(self, batch: int, rows: int) -> None:
        """Count the rows of a batch that had no event time, and say so once."""
        if rows and not self.untimed_rows:
            logger.warning(
                "batch %d of %s has %d rows without an event time, which hold no watermark and are in no window; later ones are counted",
                batch,
                self.name,
                rows,
            )
        self.untimed_rows += rows

    def count_late(self, batch: int, outcome: Outcome) -> None:
        """Count the rows of a batch that were below what had been promised, and say so."""
        if not outcome.late or outcome.late_example is None:
            return
        self.late_rows += outcome.late
        row = LateRow(batch, outcome.late_example, outcome.late_handle, cut=self.keyed.cut)
        if self.late_row is None or row.micros < self.late_row.micros:
            self.late_row = row
        logger.warning(
            "batch %d of %s has %d rows below what its inputs had promised, the oldest at %s, in key range %s",
            batch,
            self.name,
            outcome.late,
            lowwater.Watermark(row.micros),
            "?" if row.handle is None else KeyRange.of(row.handle, self.keyed.cut),
        )


def committed(plan: Plan, reading: Reading, manifest: Version | None, spark_bound: int) -> Committed:
    """Return a batch as a committed one."""
    if manifest is None:
        return Committed(plan.batch, plan.lines, reading, spark_bound=spark_bound)
    return Committed(plan.batch, plan.lines, reading, manifest.held, manifest.pending, spark_bound, manifest.due)
