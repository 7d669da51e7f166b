"""One run of a tracked query: what happens in each batch, what a clock does between them, and what each of its stages may say.

A query has one stage, or several, which read the same batches. A *reader* folds the inputs that all of the query is planned by; an *injector* has a
frontier of its own; a *later* stage reads what earlier ones of the query emit in the same batch, so what it may count on
after a batch is what their reports after that batch fold to. It does not wait for them to be published: all of it comes from one
durable state, and who reads the later stage hears of nothing that a restart would not say as well.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lowwater
from lowwater.watermark import MAX, MIN
from lowwater_spark.authority import Authority
from lowwater_spark.checkpoint.batches import BatchEntry, BatchLog
from lowwater_spark.checkpoint.durable import sync_directory, sync_file
from lowwater_spark.checkpoint.log import CheckpointLog, Plan
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.base import NONE, Line, OpenSource
from lowwater_spark.sources.bookmarks import Bookmarks
from lowwater_spark.sources.head import Heads
from lowwater_spark.sources.source_log import NOTHING
from lowwater_spark.sources.ticks import Ticks
from lowwater_spark.track.batch import Batch, Keyed, Outcome
from lowwater_spark.track.inputs import UNREAD, Reading, fold, same_lives, still_counts
from lowwater_spark.track.plan import Checked
from lowwater_spark.track.progress import Committed, Progress, bound_of, passed_on, stamped
from lowwater_spark.track.removal import Removal
from lowwater_spark.track.rows import Actions, Rows
from lowwater_spark.track.state import Manifest as Version
from lowwater_spark.track.state import StateStore
from lowwater_spark.track.status import KeyRange, Status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lowwater_spark.drive.watermark import Driving

__all__ = ["PATIENCE", "LateRow", "Part", "Run", "Status", "WriteBatch"]

logger = logging.getLogger("lowwater.spark")

WriteBatch = Callable[["DataFrame", Batch], object]
"""write_batch(batch_df, batch)."""

PATIENCE: Final = (0.05, 0.2, 1.0, 2.0, *[5.0] * 11)
"""Seconds between the attempts to read the checkpoint of a batch that begins, and of the last look of the clock."""

_KEPT_BATCHES: Final = 100
"""Entries of the batch log that stay, as many as Spark keeps of its own logs."""


@dataclass(slots=True)
class _Running:
    """A batch between its begin and its entry in the commit log."""

    plan: Plan
    entry: BatchEntry
    replayed: bool
    since: float
    ended: Sequence[tuple[Committed, Outcome, str]] = ()
    """Of each stage: how it stands after the batch, and why the authority does not know it whole. Empty until the batch has ended."""


@dataclass(slots=True)
class Run:
    """The driver's side of one run. Two threads call it: Spark's, with batches, and the clock's.

    ``_lock`` guards everything below it, and what waits for the sources; Spark jobs and the user's function run outside of it.
    """

    checkpoint: Path
    checked: Checked
    parts: Sequence[Part]
    """The stages of the query: what one reads of another comes before it."""
    write_batch: WriteBatch
    probe: Callable[[str, int], None]
    clock: Callable[[], float] = time.monotonic
    skip_removed: bool = False
    """Whether a new checkpoint begins at what is left of outputs whose old batches were removed."""
    log: CheckpointLog = field(init=False)
    batches: BatchLog = field(init=False)
    ticks: Ticks = field(init=False)
    failure: BaseException | None = field(default=None, init=False)
    unread: str = field(default="", init=False)
    """What could not be read of the checkpoint when the clock looked last, or by the batch that begins; empty: nothing."""
    stopping: bool = field(default=False, init=False)
    """Whether the user has asked for the end: a batch that is interrupted then has not failed."""
    manifest: Manifest = field(init=False)
    heads: Heads = field(init=False)
    drive: Driving | None = field(default=None, init=False)
    """What moves the controls of the query, from when on it may: in the same looks."""
    _bookmarks: Bookmarks = field(init=False)
    _reader: Part | None = field(init=False)
    """The stage whose reading of the inputs is the query's W; None when all are injectors, or read nothing else."""
    _actions: Actions = field(default_factory=Actions, init=False)
    _lock: threading.RLock = field(init=False)
    _running: _Running | None = field(default=None, init=False)
    _swept: set[Path] = field(default_factory=set, init=False)
    _removals: dict[Path, Removal] = field(default_factory=dict, init=False)
    _ticked: int = field(default=0, init=False)
    _looked: int = field(default=NOTHING, init=False)
    """The newest committed batch that a look of the clock has found, whether or not anybody could be told."""

    def __post_init__(self) -> None:
        self.log = CheckpointLog(self.checkpoint)
        self.batches = self.parts[0].batches
        self.ticks = Ticks(self.checkpoint, len(self.checked.sources), self.authority.registration.ordinal)
        self.manifest = Manifest(self.checkpoint)
        self.manifest.begin(self.authority.registration.ordinal)
        self.heads = Heads([*Heads.of(self.manifest, self.checked.sources).sources, self.ticks])
        self._lock = self.heads.lock
        self._bookmarks = Bookmarks(
            self.manifest,
            self.heads.outputs,
            self.authority.full_name,
            self.authority.registration.identity,
            skip_removed=self.skip_removed,
        )
        self._reader = next((part for part in self.parts if part.reads), None)
        for part, state in zip(self.parts, self._durable(), strict=True):
            part.open(self.heads.sources, state)
        self.heads.settle(self._lines)

    @property
    def authority(self) -> Authority:
        """The first stage's side of the protocol."""
        return self.parts[0].authority

    @property
    def progress(self) -> Progress:
        """How the first stage stands."""
        return self.parts[0].progress

    @property
    def _lines(self) -> Sequence[Line]:
        """How far the committed batches reach."""
        return self.parts[0].progress.committed.lines

    # -- start ------------------------------------------------------------------------------------------------------

    def _durable(self) -> list[Committed]:
        """Return what the checkpoint says of the last committed batch, by stage: all that a new run starts from."""
        last = self.log.last_committed()
        if last is None:
            return [Committed(spark_bound=self.checked.spark_bound(None))] * len(self.parts)
        plan, entry = self.log.plan(last), self.batches.read(last)
        if plan is None or entry is None:
            msg = (
                f"batch {last} in {self.checkpoint} was not run by a tracked stage; start the stage from a new checkpoint, or "
                "restore the directory 'lowwater' with the rest of it"
            )
            raise CheckpointMismatch(msg)
        states: dict[str, Committed] = {}
        for part in self.parts:
            earlier = [states[each.name] for each in part.earlier]
            states[part.name] = part.durable(plan, entry, self.checked.spark_bound(plan), earlier)
        return list(states.values())

    def claim(self) -> None:
        """Register and claim, from where the durable state stands. Raises what the authority refuses; degrades when it is away."""
        for part in self.parts:
            # What a stage reads is registered before it. The calls are made without the lock: a batch does not wait for them.
            if part.authority.lease is None and (part.authority.problem or not part.claim(self._reader, self._lock)):
                break
        with self._lock:
            self._renew()

    def start(self) -> None:
        """Claim, and then read the durable state: until the claim an older run may still have written it."""
        self.heads.look(self.heads.moment(self._lines))
        # Who is refused claims nothing.
        self._bookmarks.check(self.progress.committed.batch)
        self.claim()
        self.manifest.look()
        with self._lock:
            for part, state in zip(self.parts, self._durable(), strict=True):
                part.progress.restart(state)
            for part in self.parts:
                if part.authority.registered is not None:
                    part.check_lives(part.authority.registered, self._reader)
            self.heads.settle(self._lines)
        self._bookmarks.begin(self.progress.committed.batch, self.clock())
        # The first batch may use what is known now, if it reads all that is there now.
        self.tick()

    # -- batches ----------------------------------------------------------------------------------------------------

    def run_batch(self, frame: DataFrame, number: int) -> None:
        """Spark's foreachBatch: everything that happens in batch ``number``."""
        if self.failure is not None:
            raise self.failure
        try:
            self._run_batch(frame, number)
        except BaseException as failure:
            self.fail(failure)
            raise

    def fail(self, failure: BaseException) -> None:
        """Remember what ended the run: the first thing that did."""
        if self.failure is None and not self.stopping:
            self.failure = failure

    def _run_batch(self, frame: DataFrame, number: int) -> None:
        running = self._begin(number)
        self.probe("begun", number)
        batches = self._batches(running)
        first = self.parts[0]
        rows = Rows(frame, first.keyed, running.entry.promised if first.reads else MIN, self._actions)
        # A stage with state counts what its tasks see.
        with_state = all(StateStore.existing(part.home) is not None for part in self.parts)
        self.write_batch(frame if with_state else rows.observed(), batches[0])
        self.probe("written", number)
        outcomes = [batch._close(rows) for batch in batches]
        self.probe("staged", number)
        with self._lock:
            running.ended = self._prepare(running, batches, outcomes)
        self.probe("prepared", number)

    def _batches(self, running: _Running) -> list[Batch]:
        """Make what the function gets: the first stage's batch, from which it has the others'."""
        made: dict[str, Batch] = {}
        for part in self.parts:
            entry, silent = running.entry, not part.reads
            if silent:
                promised = MIN if part.keyed.injector else part.promised(entry.promised)
                entry = dataclasses.replace(entry, reading=UNREAD, promised=promised)
            made[part.name] = Batch(
                entry,
                part.keyed,
                part.home,
                part.batches,
                part.authority.destination(entry.batch),
                replayed=running.replayed,
                previous_frontier=part.progress.committed.reading.low,
                ordinal=part.authority.registration.ordinal,
                swept=self._swept,
                removals=self._removals,
                probe=self.probe,
                writer=part.authority.full_name,
                stages=made,
                earlier=[each.name for each in part.earlier],
                actions=self._actions,
            )
        return list(made.values())

    def _prepare(
        self, running: _Running, batches: Sequence[Batch], outcomes: Sequence[Outcome]
    ) -> list[tuple[Committed, Outcome, str]]:
        """Name what each stage has to say of the batch. Hold the lock."""
        ended: dict[str, tuple[Committed, Outcome, str]] = {}
        for part, batch, outcome in zip(self.parts, batches, outcomes, strict=True):
            if part.keyed.injector:
                reading = part.at_frontier(batch._low())
            elif part.earlier:
                reading = part.own(fold([self._passed_on(each, ended[each.name][0]) for each in part.earlier]))
            else:
                assert self._reader is not None
                reading = part.translated(running.entry.reading, self._reader)
            state = committed(running.plan, reading, outcome.manifest, self.checked.spark_bound(running.plan))
            holding = part.authority.prepare(
                batch.id,
                running.entry.digest,
                [receipt.task for receipt in outcome.receipts],
                stamped(state, reading, part.keyed.window),
                bound_of(state, reading, part.keyed.window),
                covers_all=outcome.manifest is not None,
            )
            ended[part.name] = (state, outcome, holding)
            part.count_late(batch.id, outcome)
        return list(ended.values())

    def _passed_on(self, part: Part, state: Committed) -> Reading:
        """Return what a later stage may count on after a batch; nothing, if the batch's W was of inputs that were changed since."""
        return passed_on(
            state, UNREAD if part.progress.is_outdated(state.reading) else state.reading, part.keyed.window
        )

    def _begin(self, number: int) -> _Running:
        """Choose W for the batch and make it durable, together with the plan that it was chosen for."""
        plan = self._read_plan(number)
        with self._lock:
            chosen, promised = UNREAD, MIN
            if self._reader is not None:
                chosen = self._reader.progress.choose(plan.lines)
                # What Spark has held back may be older than a promise.
                promised = MIN if self.checked.retention is not None else self._reader.progress.reading.low
            # What Spark still holds after this batch is written by a later one.
            bound = self.checked.spark_bound(plan)
            chosen = dataclasses.replace(chosen, low=bound) if bound < chosen.low else chosen
            entry, replayed = self.batches.begin(BatchEntry(number, plan.digest, chosen, promised))
            self._running = _Running(plan, entry, replayed, time.time())
            return self._running

    def _read_plan(self, number: int) -> Plan:
        """Settle the batch before, and return the plan of the one that begins, durable, with its source logs read.

        A file system that is away for a moment must not end the query: it is asked again, for a minute at most.
        """
        pauses = itertools.chain(PATIENCE, [None])
        while True:
            try:
                with self._lock:
                    self._settle(evidence=number)
                    plan = self.log.plan(number)
                    if plan is None:
                        msg = f"batch {number} runs, but {self.checkpoint}/offsets/{number} is not there; lowwater needs Spark's own offset log"
                        raise CheckpointMismatch(msg)
                    self.heads.read_to(plan.lines)
                    for file in self.heads.evidence(self.log, plan):
                        sync_file(file)
                        sync_directory(file.parent)
                    return plan
            except OSError as failure:
                pause = next(pauses)
                if pause is None or self.stopping:
                    raise
                self.unread = str(failure)
                logger.warning("batch %d waits, and reads again: %s", number, failure)
                time.sleep(pause)

    def _settle(self, evidence: int | None = None) -> None:
        """Take notice of a batch in the commit log: commit what was prepared. Hold the lock.

        ``evidence`` is the number of a batch that begins: the one before it is committed.
        """
        running = self._running
        if running is None or not running.ended:
            return
        number = running.plan.batch
        if not ((evidence is not None and evidence > number) or self.log.committed(number)):
            return
        # Before anything is told: what cannot be read now is read, and told, at the next look.
        self.heads.settle(running.plan.lines)
        self.probe("committed", number)
        # What a stage reads is committed before it: a crash in between leaves the later ones behind, never ahead.
        told = [
            (state, outcome, holding or part.authority.commit(number))
            for part, (state, outcome, holding) in zip(self.parts, running.ended, strict=True)
        ]
        self._running = None
        for part, (state, outcome, holding) in zip(self.parts, told, strict=True):
            part.settle(state, outcome, holding)
        try:
            for part in self.parts:
                part.clean(number, number - _KEPT_BATCHES)
            self.ticks.clean(self._tick_line())
        except OSError as failure:
            logger.warning("what batch %d leaves behind is deleted after the next: %s", number, failure)

    # -- the clock --------------------------------------------------------------------------------------------------

    def news(self) -> bool:
        """Return whether a look is worth while: a batch has been committed, or the inputs have moved. O(inputs), without the network."""
        with self._lock:
            running, settled = self._running, self.progress.committed.batch
        if settled != self._looked or (
            running is not None and running.ended and self.log.committed(running.plan.batch)
        ):
            return True
        return self._reader is not None and self._reader.authority.news()

    def tick(self, *, last: bool = False) -> None:
        """One look of the clock: commit, read the inputs, list the sources, renew, and ask for a batch if one is needed.

        What drives the query reads its inputs after them and before the sources are listed, so one listing serves both.
        """
        try:
            answering, reading = self._read()
            committed = self.progress.committed
            read = self.heads.moment(committed.lines)
        finally:
            # Whatever has become of the stage's own reading: the controls are asked all the same.
            if self.drive is not None and not last:
                self.drive.tick()
        if answering:
            self._look(reading, read, committed, last=last)
        self.heads.let_go()

    def _read(self) -> tuple[bool, Reading | None]:
        """Commit, and read the inputs. Return whether the authority answers, and the reading if there is one."""
        with self._lock:
            self._settle()
            # Whatever comes of this look: what it cannot tell waits for the next one, and is no news until then.
            self._looked = self.progress.committed.batch
        answering = [part for part in self.parts if part.authority.probe()]
        if not answering:
            return False, None
        if any(part.authority.lease is None for part in self.parts):
            self.claim()
        return True, None if self._reader is None else self._reader.authority.read()

    def _look(self, reading: Reading | None, read: int, committed: Committed, *, last: bool) -> None:
        """List the sources if that is needed for a reading, which was taken at the moment ``read``, and report."""
        now = self.clock()
        news = self._reader is not None and reading is not None and self._reader.progress.must_list(reading, now)
        heads, listed = None, self.heads.moment() > read
        if news or self._bookmarks.due(committed.batch, now, last=last):
            heads = self.heads.look(read)
        if not news and not listed:
            self.heads.forgive()
        elif news and heads is not None:
            assert self._reader is not None
            assert reading is not None
            newest = self.log.newest()
            planned = () if newest is None else newest.lines
            with self._lock:
                self.heads.read_to(planned)
                self._reader.progress.observe(reading, heads, now, planned)
        with self._lock:
            self._settle()
            self._looked = self.progress.committed.batch
            self._renew()
            if not last:
                self._force()
        if heads is not None and self._bookmarks.due(committed.batch, now, last=last):
            # Only now: what is reported does not wait for it.
            self._bookmarks.keep_up(committed.batch, now)
        if last:
            self.heads.fail_again()

    def _renew(self) -> None:
        """Report the newest reading that counts for the committed state. Hold the lock."""
        since = None if self._running is None else self._running.since
        for part in self.parts:
            part.advance(self._reader)
            if not part.authority.problem:
                part.renew(since, self._waiting_for())

    def _waiting_for(self) -> tuple[str, ...]:
        waiting = () if self._reader is None else self._reader.progress.waiting_for()
        return (*filter(None, [self.unread, self.heads.lost]), *waiting)

    def cannot_read(self, failure: str) -> None:
        """Remember what could not be read of the checkpoint, for people, and tell the authority; empty: it can be read again."""
        self.unread = failure
        if failure:
            with self._lock:
                for part in self.parts:
                    part.authority.tell(self._waiting_for())

    def _force(self) -> None:
        """Ask for an empty batch when only a batch can help. Hold the lock."""
        needed = any(part.progress.holding or part.progress.would_close() for part in self.parts)
        if self._running is None and needed and self.ticks.force(self._tick_line()):
            self._ticked += 1

    def _tick_line(self) -> Line:
        source = len(self.checked.sources)
        return self._lines[source] if len(self._lines) > source else NONE

    def close(self) -> None:
        """Stop reporting; the ranges hold where they stand."""
        self._actions.close()
        for part in self.parts:
            part.authority.close()

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of its stages."""
        return tuple(part.name for part in self.parts)

    def status(self, name: str | None = None) -> Status:
        """Return how a stage of the run stands: the first, or the one of this name. Raises ValueError for a name that is none."""
        with self._lock:
            part = next((part for part in self.parts if name in (None, part.name)), None)
            if part is None:
                msg = f"{name!r} is no stage of this query; it has {', '.join(part.name for part in self.parts)}"
                raise ValueError(msg)
            progress, late = part.progress, part.late_row
            removals = list(self._removals.values())
            reading = progress.reading
            holding = progress.holding or part.authority.complaint
            if self.failure is not None:
                holding = f"the query has ended: {self.failure!r}"
            return Status(
                batch=None if progress.committed.batch == NOTHING else progress.committed.batch,
                low=lowwater.Watermark(reading.low),
                reported=lowwater.Watermark(min(progress.values(reading), default=MAX)),
                holding=holding,
                waiting_for=self._waiting_for(),
                late_rows=part.late_rows,
                late_example="" if late is None else f"{lowwater.Watermark(late.micros)} in batch {late.batch}",
                ticks=self._ticked,
                remembered_files=self.heads.remembered,
                removed_batches=sum(each.batches for each in removals),
                removed_bytes=sum(each.size for each in removals),
                removal_held_back=max((each.held_back(time.time()) for each in removals), default=0.0),
                late_range=None if late is None or late.handle is None else KeyRange.of(late.handle, part.keyed.ranges),
            )


@dataclass(frozen=True, slots=True)
class LateRow:
    """A row below what had been promised."""

    batch: int
    micros: int
    handle: int | None
    """Its key range; None when the batch was a replay of one that did not keep it."""


@dataclass(slots=True)
class Part:
    """One stage of a query. The run's lock guards it."""

    authority: Authority
    keyed: Keyed
    home: Path
    """Where its directory ``lowwater`` is: the checkpoint for the first stage, a directory in it for the others."""
    earlier: Sequence[Part] = ()
    """The stages of the query that it reads; empty for a reader and for an injector."""
    batches: BatchLog = field(init=False)
    progress: Progress = field(init=False)
    late_rows: int = field(default=0, init=False)
    late_row: LateRow | None = field(default=None, init=False)
    """The oldest of them."""
    _unreported: tuple[tuple[Sequence[int], Sequence[int]], int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.batches = BatchLog(self.home)

    @property
    def name(self) -> str:
        """The computation's name."""
        return self.authority.registration.name

    @property
    def reads(self) -> bool:
        """Whether it folds the inputs of the query."""
        return not self.keyed.injector and not self.earlier

    # -- what it may count on -----------------------------------------------------------------------------------------

    def at_frontier(self, micros: int) -> Reading:
        """Return an injector's reading: its frontier stands for every share."""
        shares = [round(share * 1_000_000) for share in self.authority.registration.heuristics]
        return Reading(micros, dict.fromkeys(shares, micros))

    def own(self, reading: Reading) -> Reading:
        """Return a reading as one of this stage's own registered inputs; UNREAD while they are not known.

        The caller vouches that the reading is of the same lives of the same inputs.
        """
        if self.progress.inputs is None:
            return UNREAD
        version, incarnations = self.progress.inputs
        return dataclasses.replace(reading, input_version=version, input_incarnations=tuple(incarnations))

    def translated(self, reading: Reading, reader: Part) -> Reading:
        """Return the reader's reading as one of this stage, which folds the same inputs; UNREAD when it does not any more."""
        theirs, mine = reader.authority.registered, self.authority.registered
        if self is reader or reading.low == MIN:
            return reading
        if theirs is None or mine is None or tuple(theirs.inputs) != tuple(mine.inputs):
            return UNREAD
        if reading.input_version != theirs.input_version or not same_lives(reading, mine.input_incarnations):
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

    # -- the durable state --------------------------------------------------------------------------------------------

    def durable(self, plan: Plan, entry: BatchEntry, spark_bound: int, earlier: Sequence[Committed]) -> Committed:
        """Return what the stage's files say of a committed batch.

        ``earlier`` is the same of the stages it reads. Versions of inputs in the reading are those of the query's reader.
        """
        last = plan.batch
        reading = entry.reading
        if self.keyed.injector:
            frontier = self.batches.frontier(last)
            reading = self.at_frontier(MIN if frontier is None else frontier)
        elif self.earlier:
            reading = fold(
                [
                    passed_on(each, each.reading, part.keyed.window)
                    for part, each in zip(self.earlier, earlier, strict=True)
                ]
            )
        store = StateStore.existing(self.home)
        manifest = None if store is None or last < store.first else store.before(last + 1)
        return committed(plan, reading, manifest, spark_bound)

    def open(self, sources: Sequence[OpenSource], state: Committed) -> None:
        """Begin from the durable state."""
        self.progress = Progress(self.keyed.ranges, self.keyed.window, sources, state)

    # -- the claim ----------------------------------------------------------------------------------------------------

    def claim(self, reader: Part | None, lock: threading.RLock) -> bool:
        """Register and claim, from where the committed state stands; False when the authority is away. Raises what it refuses.

        ``lock`` is the run's, and not held: the calls may take long, and a batch that begins or ends meanwhile needs it. What the claim says
        of a state that is not the newest any more stays true, and the next report says the rest.
        """

        def check(registered: lowwater.Computation) -> None:
            with lock:
                self.check_lives(registered, reader)

        def values() -> list[int]:
            with lock:
                self._unreported = (self.progress.committed.pending, 0)
                return self.progress.values(self.progress.reading)

        return self.authority.enter(check, values)

    def check_lives(self, registered: lowwater.Computation, reader: Part | None) -> None:
        """Compare the inputs with those that the checkpoint's watermark was read from."""
        state = self.progress.committed
        reading = state.reading
        if not self.keyed.injector:
            self.progress.inputs = (registered.input_version, registered.input_incarnations)
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

    # -- batches and the clock ----------------------------------------------------------------------------------------

    def settle(self, state: Committed, outcome: Outcome, holding: str) -> None:
        """Take notice of a committed batch. ``holding``: why the authority does not know it whole."""
        self.progress.settle(state, holding)
        finished = outcome.finished + (self._unreported[1] if self._unreported is not None else 0)
        self._unreported = (self.progress.committed.pending, finished)
        if holding:
            logger.warning("%s holds after batch %d: %s", self.name, state.batch, holding)

    def clean(self, committed: int, before: int) -> None:
        """Delete what no replay can need after a committed batch: versions of the state, and entries of batches ``before`` one. Raises OSError."""
        store = StateStore.existing(self.home)
        if store is not None:
            store.purge(committed)
        self.batches.purge(before)

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
        """Report where the ranges stand. ``since``: the wall clock at which the running batch began, seconds; ``waiting_for`` as in Status."""
        if self.progress.holding or self.authority.lease is None:
            return
        reading = self.progress.stamped(self.progress.reading)
        if self.keyed.injector:
            reading = dataclasses.replace(reading, low=self.progress.bound(reading))
        pending, finished = self._unreported or (None, 0)
        self._unreported = None
        self.authority.renew(
            reading,
            self.progress.values(reading),
            pending=pending,
            finished=finished,
            since=since,
            waiting_for=waiting_for,
        )

    def count_late(self, batch: int, outcome: Outcome) -> None:
        """Count the rows of a batch that were below what had been promised, and say so."""
        if not outcome.late or outcome.late_example is None:
            return
        self.late_rows += outcome.late
        row = LateRow(batch, outcome.late_example, outcome.late_handle)
        if self.late_row is None or row.micros < self.late_row.micros:
            self.late_row = row
        logger.warning(
            "batch %d of %s has %d rows below what its inputs had promised, the oldest at %s, in key range %s",
            batch,
            self.name,
            outcome.late,
            lowwater.Watermark(row.micros),
            "?" if row.handle is None else KeyRange.of(row.handle, self.keyed.ranges),
        )


def committed(plan: Plan, reading: Reading, manifest: Version | None, spark_bound: int) -> Committed:
    """Return a batch as a committed one."""
    if manifest is None:
        return Committed(plan.batch, plan.lines, reading, spark_bound=spark_bound)
    return Committed(plan.batch, plan.lines, reading, manifest.held, manifest.pending, spark_bound)
