"""Batches of a user's function: Spark calls a hook in each, and the clock commits its reports.

A batch's tasks send what its stages will report, and the driver prepares it while the batch runs,
since tasks cannot run again for it. A report that cannot be prepared or committed makes the stage
hold until the next batch repeats it; without a next one, an empty batch is requested.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from lowwater.watermark import MIN
from lowwater_spark.checkpoint.durable import sync_directory, sync_file
from lowwater_spark.checkpoint.log import Plan
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import NONE, Line, OpenSource, Partition
from lowwater_spark.sources.kafka.paced import Pace
from lowwater_spark.sources.kafka.source import unread
from lowwater_spark.sources.ticks import Ticks
from lowwater_spark.track.facts import BatchFacts
from lowwater_spark.track.inputs import UNREAD, Reading, fold
from lowwater_spark.track.output.outputs import OpenOutputs
from lowwater_spark.track.output.removal import Removal
from lowwater_spark.track.rows.counts import Actions, Rows
from lowwater_spark.track.rows.frontier import Seen, look
from lowwater_spark.track.run.batch import Batch, MicroBatch, Outcome
from lowwater_spark.track.run.progress import AfterBatch, bound_of, passed_on, stamped
from lowwater_spark.track.run.stage_run import StageRun, after_batch
from lowwater_spark.track.state.store import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lowwater_spark.track.run.events import BatchEvent
    from lowwater_spark.track.run.run import Run

__all__ = ["GLANCE", "PATIENCE", "QUIET", "Hook", "WriteBatch"]

logger = logging.getLogger("lowwater.spark")

WriteBatch = Callable[["DataFrame", Batch], object]
"""The user's function: write_batch(batch_df, batch)."""

GLANCE: Final = 0.01
"""Seconds between two reads of the commit log while a commit is imminent."""

QUIET: Final = 1.0
"""Seconds between two reads of the commit log, and two looks of the clock, while no commit is
imminent. Other threads wake the clock when there is news, but a wake-up may be lost."""

PATIENCE: Final = (0.05, 0.2, 1.0, 2.0, *[5.0] * 11)
"""Seconds between attempts to read the checkpoint, in a batch's begin and the clock's last look."""

_KEPT_BATCHES: Final = 100
"""Number of entries of the batch log that stay, as many as Spark keeps of its own logs."""


@dataclass(slots=True)
class _Running:
    """A batch between its beginning and its entry in the commit log."""

    plan: Plan
    facts: BatchFacts
    since: float
    """Start of the batch, epoch seconds."""
    outcomes: Sequence[Outcome] = ()
    """Prepared outcome of each stage; empty until the function has returned."""


@dataclass(slots=True)
class Hook:
    """The hook of one run. Spark's thread calls it with batches, and the clock's thread.

    The run's lock guards all of the fields below; Spark jobs and the user's function run without
    it. Tests pass ``probe``, which is called with the name of each step of a batch.
    """

    write_batch: WriteBatch
    probe: Callable[[str, int], None]
    wall: Callable[[], float] = time.time
    """The driver's clock, epoch seconds."""
    elapsed: Callable[[], float] = time.monotonic
    """A clock that is never set, seconds."""
    elsewhere: ClassVar[bool] = False
    """False: this process plans the batches; only a sidecar follows those of another process."""
    observed: ClassVar[bool] = False
    """False: late rows are counted while a batch runs, not from Spark's events."""
    run: Run = field(init=False, repr=False, compare=False)
    ticks: Ticks = field(init=False)
    ticked: int = field(default=0, init=False)
    """Number of empty batches that the hook has requested."""
    _actions: Actions = field(default_factory=Actions, init=False)
    _running: _Running | None = field(default=None, init=False)
    _now: tuple[int, float] = field(default=(MIN, 0.0), init=False)
    """Clock of the newest batch, microseconds, and ``elapsed`` at that time, seconds."""
    _newest: BatchFacts | None = field(default=None, init=False)
    """Facts of the newest batch that this run knows; None before the first."""
    _outputs: OpenOutputs = field(default_factory=OpenOutputs, init=False)

    # -- called by the run -------------------------------------------------------------------------

    def open(self, run: Run) -> Sequence[OpenSource]:
        """Begin with the run, and return the query's source besides those of its plan."""
        self.run = run
        self.ticks = Ticks(run.checkpoint, len(run.checked.sources), run.authority.registration.ordinal)
        return [self.ticks]

    def durable(self) -> list[AfterBatch]:
        """Return each stage's durable state after the last committed batch: a run's start."""
        last = self.run.log.last_committed()
        if last is None:
            return [AfterBatch(spark_bound=self.run.checked.spark_bound(None))] * len(self.run.stages)
        plan, facts = self.run.log.plan(last), self.run.stages[0].entries.read(last)
        if plan is None or facts is None:
            msg = (
                f"batch {last} in {self.run.checkpoint} was not run by a tracked stage; start the stage from a new checkpoint, or "
                "restore the directory 'lowwater' with the rest of it"
            )
            raise CheckpointMismatch(msg)
        self._note(facts)
        states: dict[str, AfterBatch] = {}
        for stage in self.run.stages:
            earlier = [states[earlier_stage.name] for earlier_stage in stage.earlier]
            states[stage.name] = stage.durable(plan, facts, self.run.checked.spark_bound(plan), earlier)
            if stage.source_state is not None:
                self._pace(stage, stage.source_state)
        return list(states.values())

    def claimed(self) -> None:
        """Report the stages' values after the claim."""
        with self.run.lock:
            self._renew()

    def ready(self) -> bool:
        """Return whether Spark has committed a prepared batch. Costs one stat."""
        running = self._running
        return running is not None and bool(running.outcomes) and self.run.log.committed(running.plan.batch)

    def pace(self) -> float:
        """Return the seconds until the next call. A batch that ends also wakes the clock."""
        running = self._running
        return GLANCE if running is not None and running.outcomes else QUIET

    @property
    def timed(self) -> bool:
        """True if a stage acts at some time without any event."""
        stages = self.run.stages
        return any(
            stage.keyed.bounds is not None
            or (stage.progress.committed.due is not None and stage.progress.committed.due.wall is not None)
            for stage in stages
        )

    def follow_commits(self, evidence: int | None = None) -> None:
        """Commit the prepared reports of a batch that Spark has committed.

        ``evidence`` is the number of a batch that begins, so the one before it is committed; None:
        the commit log says it.
        """
        running = self._running
        if running is not None and (evidence is not None or self.ready()):
            self.run.heads.knock(running.plan.lines)
        with self.run.lock:
            running = self._running
            if running is None or not running.outcomes:
                return
            number = running.plan.batch
            if not ((evidence is not None and evidence > number) or self.run.log.committed(number)):
                return
            # confirm() raises CheckpointMismatch for a source that was replaced, such as a topic
            # that was made anew: if a stage committed first, its watermark would pass rows that no
            # batch has read. If confirm() raises OSError, self._running stays, and the next look
            # calls it again.
            self.run.heads.confirm(running.plan.lines)
            self.probe("committed", number)
            # A stage commits after the stages that it reads: a crash between two commits leaves the
            # later stage behind, never ahead. commit() raises if another run has replaced this one.
            # Then no stage records the batch, and no other batch begins: if an earlier stage had
            # recorded it, a later one would report by it, without the rows that it holds itself.
            outcomes = [stage.commit(outcome) for stage, outcome in zip(self.run.stages, running.outcomes, strict=True)]
            self._running = None
            for stage, outcome in zip(self.run.stages, outcomes, strict=True):
                stage.record(outcome)
            if not any(outcome.holding for outcome in outcomes):
                self.probe("told", number)
            self._clean(number)

    def report(self, *, last: bool) -> None:
        """Report the newest reading that counts, and request a batch if needed."""
        with self.run.lock:
            self._renew()
            if not last:
                self._force()

    def take(self, events: Iterable[BatchEvent]) -> None:
        """Ignore Spark's events about batches: the batches themselves count late rows."""

    def triggered_every(self, seconds: float) -> None:
        """Let ticks wait for as long as the query's trigger takes. Needs no lock."""
        self.ticks.trigger = seconds

    @property
    def removals(self) -> list[Removal]:
        """The removals from the outputs of this run."""
        with self.run.lock:
            return self._outputs.removals

    def close(self) -> None:
        """Stop the listener and close the outputs."""
        self._actions.close()
        self._outputs.close()

    def _renew(self) -> None:
        since = None if self._running is None else self._running.since
        for stage in self.run.stages:
            stage.advance(self.run.reader)
            if not stage.authority.problem:
                stage.renew(since, self.run.waiting_for())

    def _force(self) -> None:
        """Request an empty batch when only a batch can help. The caller holds the lock."""
        now = int(self.wall() * 1_000_000)
        needed = any(
            # A stage that holds needs another batch, whose report brings what the authority lacks.
            # While the authority is away that report would fail as well, so none is requested.
            (stage.progress.holding and not stage.authority.problem)
            or stage.progress.would_close()
            or stage.progress.would_fire(self._clock())
            or (
                stage.keyed.bounds is not None
                and stage.source_state is not None
                and stage.keyed.bounds.would_move(stage.source_state, now)
            )
            for stage in self.run.stages
        )
        if self._running is None and needed and self.ticks.force(self._tick_line()):
            self.ticked += 1

    def _tick_line(self) -> Line:
        source, lines = len(self.run.checked.sources), self.run.lines
        return lines[source] if len(lines) > source else NONE

    # -- called by Spark ---------------------------------------------------------------------------

    def run_batch(self, frame: DataFrame, number: int) -> None:
        """Run batch ``number``: Spark's foreachBatch."""
        if self.run.failure is not None:
            raise self.run.failure
        try:
            running = self._begin_patiently(number)
            self.run.wake.set()  # _begin() may have committed the batch before: the clock reports that
            self.probe("begun", number)
            facts = running.facts
            shared = MicroBatch(self.run, facts, self._outputs, self.probe, self._actions)
            for stage in self.run.stages:
                own = facts
                if not stage.reads:
                    promised = MIN if stage.keyed.injector else stage.promised(facts.promised)
                    own = dataclasses.replace(facts, reading=UNREAD, promised=promised)
                shared.batches[stage.name] = Batch(own, stage, shared)
            # The user's function gets batches[0]; its of(NAME) returns those of the other stages.
            batches = list(shared.batches.values())
            source_states = {
                stage.name: self._look_at(stage, batch, frame, running)
                for stage, batch in zip(self.run.stages, batches, strict=True)
            }
            first = self.run.stages[0]
            promised = facts.promised if first.reads else MIN
            counts = first.keyed.budgeted and StateStore.existing(first.section) is None
            rows = Rows(
                frame, first.keyed, promised, self._actions, batches[0]._own_facts().reference if counts else MIN
            )
            # A stage with state counts its rows in the tasks of stateful(). If all stages do, the
            # frame needs no metric that counts the rows again.
            with_state = all(StateStore.existing(stage.section) is not None for stage in self.run.stages)
            self.write_batch(frame if with_state else rows.observed(), batches[0])
            self.probe("written", number)
            outcomes = [batch._close(rows) for batch in batches]
            self.probe("staged", number)
            with self.run.lock:
                for stage in self.run.stages:
                    if (source_state := source_states[stage.name]) is not None:
                        stage.count_seen(number, source_state)
                running.outcomes = self._prepare(running, batches, outcomes)
            self.run.wake.set()
            self.probe("prepared", number)
        except BaseException as failure:
            self.run.fail(failure)
            raise

    def _look_at(self, stage: StageRun, batch: Batch, frame: DataFrame, running: _Running) -> Seen | None:
        """Compute an injector's frontier from a batch's rows, durably, before the function runs.

        Returns None for a stage without declarations about its source.
        """
        bounds, number = stage.keyed.bounds, running.plan.batch
        if bounds is None:
            return None
        source_state = stage.entries.seen(number)
        if source_state is None and (frontier := stage.entries.frontier(number)) is not None:
            # A replay, and the batch's first run had no disorder=, which makes ``bounds``: there
            # the function set the frontier. The replay keeps it, whatever the rows would show now:
            # for another one, set_frontier() raises CheckpointMismatch.
            batch._set_computed_frontier(frontier)
            return None
        if source_state is None:
            published = stage.progress.committed.reading.low
            before = stage.entries.seen(number - 1) or Seen()
            before = dataclasses.replace(before, frontier=max(before.frontier, published))
            now = int(self.wall() * 1_000_000)
            ends = self._ends() if bounds.lists else {}
            seen_now = look(frame, stage.keyed.event_time, bounds, before, published, now)
            planned = self._planned(running.plan)
            if bounds.producer is None:
                expected = {str(place) for place in planned.keys() | (ends or {}).keys()}
                read = {str(place) for place in (ends or {}).keys() - {*unread(ends or {}, planned)}}
            else:
                expected = {*bounds.producers}
                read = expected if ends and not unread(ends, planned) else set()
            after = bounds.advanced(before, seen_now, expected, read, now)
            source_state = stage.entries.keep_seen(number, dataclasses.replace(after, unlisted=ends is None))
        self._pace(stage, source_state)
        batch._set_computed_frontier(source_state.frontier)
        self.probe("seen", number)
        return source_state

    def _pace(self, stage: StageRun, source_state: Seen) -> None:
        """Tell sources that hold back fast partitions how far each partition has come."""
        bounds = stage.keyed.bounds
        if bounds is None or bounds.skew is None:
            return
        for source in self.run.checked.sources:
            if source.pace:
                Pace(source.pace).tell(bounds.standing(source_state), idle=bounds.across is None)

    def _planned(self, plan: Plan) -> dict[Partition, int]:
        """Return the offsets at which a batch ends, by partition."""
        planned: dict[Partition, int] = {}
        for source, line in zip(self.run.checked.sources, plan.lines, strict=False):
            ends = source.vector(line)
            if twice := planned.keys() & ends.keys():
                raise Unsupported(
                    f"{min(twice)}, which two sources of the query read,",
                    "each may have read what the other has not, so it is unknown how far the query has come",
                    "Read each topic by one source.",
                )
            planned.update(ends)
        return planned

    def _ends(self) -> dict[Partition, int] | None:
        """Return the present ends of the partitions; None if a source does not answer in time."""
        ends: dict[Partition, int] = {}
        lines = itertools.chain(self.run.lines, itertools.repeat(NONE))
        try:
            for source, opened, line in zip(self.run.checked.sources, self.run.heads.sources, lines, strict=False):
                ends.update(source.ends(opened.head(line)))
        except OSError as failure:
            logger.warning("the ends of the source are unknown, so idle partitions hold: %s", failure)
            return None
        return ends

    def _prepare(self, running: _Running, batches: Sequence[Batch], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Prepare each stage's report about the batch. The caller holds the lock."""
        prepared: dict[str, Outcome] = {}
        for stage, batch, outcome in zip(self.run.stages, batches, outcomes, strict=True):
            if stage.keyed.injector:
                reading = stage.at_frontier(batch._low())
            elif stage.earlier:
                reading = stage.own(
                    fold([self._passed_on(earlier, prepared[earlier.name].after) for earlier in stage.earlier])
                )
            else:
                assert self.run.reader is not None
                reading = stage.translated(running.facts.reading, self.run.reader)
            after = after_batch(running.plan, reading, outcome.version, self.run.checked.spark_bound(running.plan))
            holding = stage.authority.prepare(
                batch.id,
                running.facts.digest,
                [receipt.task for receipt in outcome.receipts],
                stamped(after, reading, stage.keyed.window),
                bound_of(after, reading, stage.keyed.window),
                covers_all=outcome.version is not None,
            )
            prepared[stage.name] = dataclasses.replace(outcome, after=after, holding=holding)
            stage.count_late(batch.id, outcome)
            # In a driven query Spark's windows have dropped rows without an event time by now.
            # Run.take(), of the class Run, counts them where the query reads them, by Spark's
            # events. If they were counted here as well, those that came through to the batch would
            # count twice.
            if not self.run.checked.controls:
                stage.count_untimed(batch.id, outcome.counted.untimed)
        return list(prepared.values())

    def _passed_on(self, stage: StageRun, state: AfterBatch) -> Reading:
        """Return the reading for later stages after a batch; UNREAD if the inputs changed since."""
        return passed_on(
            state, UNREAD if stage.progress.is_outdated(state.reading) else state.reading, stage.keyed.window
        )

    def _clock(self) -> int:
        """Return the clock of a new batch, microseconds.

        The driver's clock; if that was set back, the newest batch's clock and the time since then.
        """
        before, since = self._now
        passed = max(0.0, self.elapsed() - since)
        return max(int(self.wall() * 1_000_000), before + int(passed * 1_000_000))

    def _note(self, facts: BatchFacts) -> None:
        self._now, self._newest = (max(self._now[0], facts.now), self.elapsed()), facts

    def _begin(self, number: int) -> _Running:
        """Commit the last batch, and make the plan and the facts of the next one durable.

        The facts have the reading (W) that the batch may use.
        """
        self.follow_commits(number)  # commits batch number - 1, unless the clock has done so
        with self.run.lock:
            plan = self.run.log.plan(number)
            if plan is None:
                msg = f"batch {number} runs, but {self.run.checkpoint}/offsets/{number} does not exist; lowwater needs Spark's own offset log"
                raise CheckpointMismatch(msg)
            self.run.heads.read_to(plan.lines)
            for file in self.run.heads.evidence(self.run.log, plan):
                sync_file(file)
                sync_directory(file.parent)
            entries, digest = self.run.stages[0].entries, plan.digest
            # At a run's first batch, self._newest is from durable(). An older run of the query may
            # have run more batches since: then the batch log has the last one's facts. By facts of
            # an older batch, this batch's ``low``, ``promised`` and clock could be below those of
            # the last one, and windows that it has closed would open again.
            newest = -1 if self._newest is None else self._newest.batch
            if newest < number - 1 and (before := entries.read(number - 1)) is not None:
                self._note(before)
            chosen, promised = UNREAD, MIN
            # Lowest stamp of the rows that Spark still holds after this batch. A later batch writes
            # them: if the reading that this batch uses were above it, they would come out below
            # the watermark.
            bound = self.run.checked.spark_bound(plan)
            if self.run.reader is not None:
                progress, spark_bound = self.run.reader.progress, self.run.reader.progress.committed.spark_bound
                # A plan names the files of a file source, and the batch fails if one is missing: so
                # counted() takes the planned line. A plan of Kafka names offsets, where a topic
                # that is made anew or truncated before the batch runs has other rows: by that line,
                # the reading could cover rows that no batch has read. So the line of the last
                # committed batch counts.
                chosen = progress.choose(self.run.heads.counted(plan.lines, self.run.lines))
                if self._newest is not None:
                    # A start with a larger retention lowers ``bound`` and ``spark_bound``. But the
                    # rows that Spark holds from before come out within the smaller retention. So
                    # ``low`` and ``promised`` of the last batch are the least values: by lower
                    # ones, windows that it has closed would open again.
                    bound = max(bound, self._newest.reading.low)
                    spark_bound = max(spark_bound, self._newest.promised)
                promised = min(progress.reading.low, spark_bound)
            chosen = dataclasses.replace(chosen, low=bound) if bound < chosen.low else chosen
            if any(stage.authority.wanted for stage in self.run.stages) and entries.read(number) is None:
                for stage in self.run.stages:
                    stage.follow_wanted(number, digest)
                self.probe("laid out", number)
            layouts = {
                stage.section.name: stage.keyed.layout for stage in self.run.stages if stage.keyed.layout.version
            }
            facts = entries.begin(BatchFacts(number, digest, chosen, promised, layouts, self._clock()))
            for stage in self.run.stages:
                stage.follow_logged(facts.layouts, number, digest)
            self._note(facts)
            self._running = _Running(plan, facts, time.time())
            return self._running

    def _begin_patiently(self, number: int) -> _Running:
        """Begin a batch, and try again on an OSError, for a minute at most.

        A file system that is briefly away must not end the query.
        """
        pauses = itertools.chain(PATIENCE, [None])
        while True:
            try:
                return self._begin(number)
            except OSError as failure:
                pause = next(pauses)
                if pause is None or self.run.stopping:
                    raise
                self.run.unread = str(failure)
                logger.warning("batch %d waits, and tries again: %s", number, failure)
                time.sleep(pause)

    def _clean(self, committed: int) -> None:
        """Delete files that no replay needs. A failure is logged, and the other places go on."""
        steps = [functools.partial(stage.clean, committed, committed - _KEPT_BATCHES) for stage in self.run.stages]
        steps.append(functools.partial(self.ticks.clean, self._tick_line()))
        for step in steps:
            try:
                step()
            except OSError as failure:
                logger.warning("the leftovers of batch %d are deleted after the next one: %s", committed, failure)
