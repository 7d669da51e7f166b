"""One run of a tracked query: what happens in each batch, and what a clock does between them."""

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
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.bookmarks import Bookmarks
from lowwater_spark.sources.files import FileSource
from lowwater_spark.sources.head import source_logs
from lowwater_spark.sources.roots import Roots
from lowwater_spark.sources.source_log import NOTHING, SourceLog
from lowwater_spark.sources.ticks import Ticks, tick_directory
from lowwater_spark.track.batch import Batch, Outcome
from lowwater_spark.track.inputs import UNREAD, Reading, fold
from lowwater_spark.track.part import Part, committed
from lowwater_spark.track.plan import Checked
from lowwater_spark.track.progress import Committed, Progress, bound_of, passed_on, stamped
from lowwater_spark.track.removal import Removal
from lowwater_spark.track.rows import Actions, Rows
from lowwater_spark.track.state import StateStore
from lowwater_spark.track.status import KeyRange, Status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PATIENCE", "Run", "Status", "WriteBatch"]

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

    ``_lock`` guards everything below it; Spark jobs and the user's function run outside of it.
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
    _logs: list[SourceLog] = field(init=False)
    _roots: Roots = field(init=False)
    _bookmarks: Bookmarks = field(init=False)
    _reader: Part | None = field(init=False)
    """The stage whose reading of the inputs is the query's W; None when all are injectors, or read nothing else."""
    _actions: Actions = field(default_factory=Actions, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _running: _Running | None = field(default=None, init=False)
    _swept: set[Path] = field(default_factory=set, init=False)
    _removals: dict[Path, Removal] = field(default_factory=dict, init=False)
    _ticked: int = field(default=0, init=False)
    _looked: int = field(default=NOTHING, init=False)
    """The newest committed batch that a look of the clock has found, whether or not anybody could be told."""

    def __post_init__(self) -> None:
        self.log = CheckpointLog(self.checkpoint, self.checked.controls)
        self.batches = self.parts[0].batches
        ticks = FileSource(str(tick_directory(self.checkpoint)), recursive=False)
        self._logs = source_logs(self.checkpoint, (*self.checked.sources, ticks))
        self._roots = Roots(self.checkpoint, self.checked.sources, self._logs)
        self._bookmarks = Bookmarks(
            self.checkpoint,
            self._roots.outputs,
            self.authority.full_name,
            self.authority.registration.identity,
            skip_removed=self.skip_removed,
        )
        self._reader = next((part for part in self.parts if part.reads), None)
        for part, state in zip(self.parts, self._durable(), strict=True):
            part.open(self._logs[:-1], state)
        self._read_logs(self._offsets)
        self.ticks = Ticks(self.checkpoint, self.authority.registration.ordinal, self._logs[-1])

    @property
    def authority(self) -> Authority:
        """The first stage's side of the protocol."""
        return self.parts[0].authority

    @property
    def progress(self) -> Progress:
        """How the first stage stands."""
        return self.parts[0].progress

    @property
    def _offsets(self) -> Sequence[int]:
        """How far the committed batches reach."""
        return self.parts[0].progress.committed.offsets

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
        self._roots.list_heads(self._offsets)
        # Who is refused claims nothing.
        self._bookmarks.check(self.progress.committed.batch)
        self.claim()
        with self._lock:
            for part, state in zip(self.parts, self._durable(), strict=True):
                part.progress.restart(state)
            for part in self.parts:
                if part.authority.registered is not None:
                    part.check_lives(part.authority.registered, self._reader)
            self._read_logs(self._offsets)
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
                chosen = self._reader.progress.choose(plan.offsets)
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
                    self._read_logs(plan.offsets)
                    for file in self.log.files_of(plan):
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
        self._read_logs(running.plan.offsets)
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
            self.ticks.clean(self._tick_offset())
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
        """One look of the clock: commit, read the inputs, list the sources, renew, and ask for a batch if one is needed."""
        with self._lock:
            self._settle()
            # Whatever comes of this look: what it cannot tell waits for the next one, and is no news until then.
            self._looked = self.progress.committed.batch
        answering = [part for part in self.parts if part.authority.probe()]
        if not answering:
            return
        if any(part.authority.lease is None for part in self.parts):
            self.claim()
        reading = None if self._reader is None else self._reader.authority.read()
        now, committed = self.clock(), self.progress.committed
        news = self._reader is not None and reading is not None and self._reader.progress.must_list(reading, now)
        heads = None
        if news or self._bookmarks.due(committed.batch, now, last=last):
            heads = self._roots.list_heads(committed.offsets)
        if not news:
            self._roots.forgive()
        elif heads is not None:
            assert self._reader is not None
            assert reading is not None
            planned = self.log.newest_offsets()
            with self._lock:
                self._read_logs(planned)
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
            self._roots.fail_again()

    def _renew(self) -> None:
        """Report the newest reading that counts for the committed state. Hold the lock."""
        since = None if self._running is None else self._running.since
        for part in self.parts:
            part.advance(self._reader)
            if not part.authority.problem:
                part.renew(since, self._waiting_for())

    def _waiting_for(self) -> tuple[str, ...]:
        waiting = () if self._reader is None else self._reader.progress.waiting_for()
        return (*filter(None, [self.unread, self._roots.lost]), *waiting)

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
        if self._running is None and needed and self.ticks.force(self._tick_offset()):
            self._ticked += 1

    def _tick_offset(self) -> int:
        source = len(self.checked.sources)
        return self._offsets[source] if len(self._offsets) > source else NOTHING

    def _read_logs(self, offsets: Sequence[int]) -> None:
        for log, offset in zip(self._logs, offsets, strict=False):
            log.read_to(offset)

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
                removed_batches=sum(each.batches for each in removals),
                removed_bytes=sum(each.size for each in removals),
                removal_held_back=max((each.held_back(time.time()) for each in removals), default=0.0),
                late_range=None if late is None or late.handle is None else KeyRange.of(late.handle, part.keyed.ranges),
            )
