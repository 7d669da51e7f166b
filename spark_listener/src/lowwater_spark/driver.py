"""One run of a tracked query: what happens in each batch, and what a clock does between them."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lowwater
from lowwater import errors
from lowwater.watermark import MAX, MIN
from lowwater_spark.authority import Authority
from lowwater_spark.batch import Batch, Keyed, Outcome
from lowwater_spark.batchlog import BatchEntry, BatchLog
from lowwater_spark.durable import sync_directory, sync_file
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.head import FileSource, list_head
from lowwater_spark.progress import Committed, Progress
from lowwater_spark.reading import UNREAD, Reading, floor_stamp
from lowwater_spark.sourcelog import NOTHING, CheckpointLog, Plan, SourceLog
from lowwater_spark.state import StateStore
from lowwater_spark.ticks import Ticks, tick_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Run", "Status", "WriteBatch"]

logger = logging.getLogger("lowwater.spark")

WriteBatch = Callable[["DataFrame", Batch], object]
"""write_batch(batch_df, batch)."""

_KEPT_BATCHES: Final = 100
"""Entries of the batch log that stay, as many as Spark keeps of its own logs."""


@dataclass(frozen=True, slots=True)
class Status:
    """How a tracked query stands. A snapshot."""

    batch: int | None
    """The last committed batch; None before the first."""
    low: lowwater.Watermark
    """The input low watermark (of an injector: the frontier) that the committed batches have reached."""
    reported: lowwater.Watermark
    """The least of what the key ranges report."""
    holding: str
    """Why the stage reports nothing new at the moment; empty when it does."""
    waiting_for: tuple[str, ...]
    """Files that stood in a source when a newer watermark was read and that no committed batch has taken yet; a few of them."""
    late_rows: int
    """Rows of this run that were below what the inputs had promised before: broken promises."""
    late_example: str
    """The oldest of them: its batch and event time."""
    ticks: int
    """Empty batches that this run has asked for."""


@dataclass(slots=True)
class _Running:
    """A batch between its begin and its entry in the commit log."""

    plan: Plan
    reading: Reading
    since: float
    outcome: Outcome | None = None
    holding: str = "the batch did not end"


@dataclass(slots=True)
class Run:
    """The driver's side of one run. Two threads call it: Spark's, with batches, and the clock's.

    ``_lock`` guards everything below it; Spark jobs and the user's function run outside of it.
    """

    checkpoint: Path
    sources: Sequence[FileSource]
    keyed: Keyed
    authority: Authority
    write_batch: WriteBatch
    probe: Callable[[str, int], None]
    clock: Callable[[], float] = time.monotonic
    log: CheckpointLog = field(init=False)
    batches: BatchLog = field(init=False)
    progress: Progress = field(init=False)
    ticks: Ticks = field(init=False)
    failure: BaseException | None = field(default=None, init=False)
    stopping: bool = field(default=False, init=False)
    """Whether the user has asked for the end: a batch that is interrupted then has not failed."""
    _logs: list[SourceLog] = field(init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _running: _Running | None = field(default=None, init=False)
    _swept: set[Path] = field(default_factory=set, init=False)
    _ticked: int = field(default=0, init=False)
    _late: int = field(default=0, init=False)
    _late_example: tuple[int, int] | None = field(default=None, init=False)
    _unreported: tuple[tuple[Sequence[int], Sequence[int]], int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.log = CheckpointLog(self.checkpoint)
        self.batches = BatchLog(self.checkpoint)
        folder = self.checkpoint / "sources"
        ticks = FileSource(str(tick_directory(self.checkpoint)), recursive=False)
        self._logs = [SourceLog(folder / str(i), source.root) for i, source in enumerate((*self.sources, ticks))]
        data_logs = self._logs[:-1]
        self.progress = Progress(self.keyed.ranges, self.keyed.window, data_logs, self._durable())
        self._read_logs(self.progress.committed.offsets)
        self.ticks = Ticks(self.checkpoint, self.authority.registration.ordinal, self._logs[-1])

    # -- start ------------------------------------------------------------------------------------------------------

    def _durable(self) -> Committed:
        """Return what the checkpoint says of the last committed batch: all that a new run starts from."""
        last = self.log.last_committed()
        if last is None:
            return Committed()
        plan, entry = self.log.plan(last), self.batches.read(last)
        if plan is None or entry is None:
            msg = (
                f"batch {last} in {self.checkpoint} was not run by a tracked stage; start the stage from a new checkpoint, or "
                "restore the directory 'lowwater' with the rest of it"
            )
            raise CheckpointMismatch(msg)
        reading = entry.reading
        if self.keyed.injector:
            frontier = self.batches.frontier(last)
            reading = self._at_frontier(MIN if frontier is None else frontier)
        store = StateStore.existing(self.checkpoint)
        manifest = None if store is None or last < store.first else store.before(last + 1)
        if manifest is None:
            return Committed(last, plan.offsets, reading)
        return Committed(last, plan.offsets, reading, manifest.held, manifest.pending)

    def claim(self) -> None:
        """Register and claim, from where the durable state stands. Raises what the authority refuses; degrades when it is away."""
        with self._lock:
            try:
                registered = self.authority.register()
                self._check_lives(registered)
                self.authority.claim(self.progress.values(self.progress.reading))
            except errors.LowwaterError as failure:
                if isinstance(failure, _DEFERRABLE):
                    self.authority.lost(failure)
                    return
                raise
            committed = self.progress.committed
            self._unreported = (committed.pending, 0)
            self._renew()

    def _check_lives(self, registered: lowwater.Computation) -> None:
        """Compare the inputs with those that the checkpoint's watermark was read from."""
        reading = self.progress.committed.reading
        if not self.keyed.injector:
            self.progress.inputs = (registered.input_version, registered.input_incarnations)
        if self.keyed.injector:
            again = self._at_frontier(reading.low)
        elif reading.input_version == registered.input_version or reading.low == MIN:
            again = reading
            lives = zip(reading.input_incarnations, registered.input_incarnations, strict=False)
            if reading.low != MIN and any(old != new for old, new in lives):
                msg = (
                    f"an input of {registered.name} was reset since batch {self.progress.committed.batch}: what this checkpoint has "
                    "read belongs to an earlier life of it. Start from a new checkpoint, with adopt=True."
                )
                raise errors.IncarnationChanged(msg, metadata={"computation": registered.name})
        else:
            # Other inputs: nothing was read of all of them together. What is held stays held.
            again = UNREAD
        self.progress.restart(dataclasses.replace(self.progress.committed, reading=again))

    def start(self) -> None:
        """Claim, and then read the durable state: until the claim an older run may still have written it."""
        self.claim()
        with self._lock:
            self.progress.restart(self._durable())
            if self.authority.registered is not None:
                self._check_lives(self.authority.registered)
            self._read_logs(self.progress.committed.offsets)
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
        entry, replayed, running = self._begin(number)
        self.probe("begun", number)
        batch = Batch(
            entry,
            self.keyed,
            self.checkpoint,
            self.batches,
            self.authority.destination(number),
            replayed=replayed,
            previous_frontier=self.progress.committed.reading.low,
            ordinal=self.authority.registration.ordinal,
            swept=self._swept,
            probe=self.probe,
        )
        self.write_batch(frame, batch)
        self.probe("written", number)
        outcome = batch._close(frame)
        self.probe("staged", number)
        reading = self._at_frontier(batch.low.micros) if self.keyed.injector else entry.reading
        with self._lock:
            running.outcome, running.reading = outcome, reading
            running.holding = self.authority.prepare(
                number,
                entry.digest,
                [receipt.task for receipt in outcome.receipts],
                reading,
                floor_stamp(reading.low, self.keyed.window),
                covers_all=outcome.manifest is not None,
            )
            self._count_late(number, outcome)
        self.probe("prepared", number)

    def _begin(self, number: int) -> tuple[BatchEntry, bool, _Running]:
        """Choose W for the batch and make it durable, together with the plan that it was chosen for."""
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
            # An injector has no inputs that could have promised anything.
            promised = MIN if self.keyed.injector else self.progress.reading.low
            chosen = UNREAD if self.keyed.injector else self.progress.choose(plan.offsets)
            entry, replayed = self.batches.begin(BatchEntry(number, plan.digest, chosen, promised))
            self._running = _Running(plan, entry.reading, time.time())
            return entry, replayed, self._running

    def _at_frontier(self, micros: int) -> Reading:
        """Return an injector's reading: its frontier stands for every share."""
        shares = [round(share * 1_000_000) for share in self.authority.registration.heuristics]
        return Reading(micros, dict.fromkeys(shares, micros))

    def _count_late(self, number: int, outcome: Outcome) -> None:
        if not outcome.late or outcome.late_example is None:
            return
        self._late += outcome.late
        if self._late_example is None or outcome.late_example < self._late_example[1]:
            self._late_example = (number, outcome.late_example)
        logger.warning(
            "batch %d of %s has %d rows below what its inputs had promised, the oldest at %s",
            number,
            self.authority.registration.name,
            outcome.late,
            lowwater.Watermark(outcome.late_example),
        )

    def _settle(self, evidence: int | None = None) -> None:
        """Take notice of a batch in the commit log: commit what was prepared. Hold the lock.

        ``evidence`` is the number of a batch that begins: the one before it is committed.
        """
        running = self._running
        if running is None or running.outcome is None:
            return
        number = running.plan.batch
        if not (self.log.committed(number) or (evidence is not None and evidence > number)):
            return
        self.probe("committed", number)
        holding = running.holding or self.authority.commit(number)
        outcome, self._running = running.outcome, None
        manifest = outcome.manifest
        self._read_logs(running.plan.offsets)
        self.progress.settle(
            Committed(
                number,
                running.plan.offsets,
                running.reading,
                manifest.held if manifest is not None else (),
                manifest.pending if manifest is not None else ((), ()),
            ),
            holding,
        )
        finished = outcome.finished + (self._unreported[1] if self._unreported is not None else 0)
        self._unreported = (self.progress.committed.pending, finished)
        if holding:
            logger.warning("%s holds after batch %d: %s", self.authority.registration.name, number, holding)
        self.batches.purge(number - _KEPT_BATCHES)
        store = StateStore.existing(self.checkpoint)
        if store is not None:
            store.purge(number)
        self.ticks.clean(self._tick_offset())

    # -- the clock --------------------------------------------------------------------------------------------------

    def tick(self, *, last: bool = False) -> None:
        """One look of the clock: commit, read the inputs, list the sources, renew, and ask for a batch if one is needed."""
        with self._lock:
            self._settle()
        if not self.authority.probe():
            return
        if self.authority.lease is None:
            self.claim()
        reading = self.authority.read()
        now = self.clock()
        if reading is not None and self.progress.must_list(reading, now):
            try:
                heads = [list_head(source) for source in self.sources]
            except OSError as error:
                logger.warning("a source cannot be listed, so no newer watermark counts: %s", error)
            else:
                with self._lock:
                    self.progress.observe(reading, heads, now)
        with self._lock:
            self._settle()
            self._renew()
            if not last:
                self._force()

    def _renew(self) -> None:
        """Report the newest reading that counts for the committed state. Hold the lock."""
        if self.progress.holding or self.authority.lease is None:
            return
        reading = self.progress.renew()
        pending, finished = self._unreported or (None, 0)
        self._unreported = None
        since = None if self._running is None else self._running.since
        self.authority.renew(reading, self.progress.values(reading), pending=pending, finished=finished, since=since)

    def _force(self) -> None:
        """Ask for an empty batch when only a batch can help. Hold the lock."""
        if self._running is not None or not (self.progress.holding or self.progress.would_close()):
            return
        if self.ticks.force(self._tick_offset()):
            self._ticked += 1

    def _tick_offset(self) -> int:
        offsets = self.progress.committed.offsets
        return offsets[len(self.sources)] if len(offsets) > len(self.sources) else NOTHING

    def _read_logs(self, offsets: Sequence[int]) -> None:
        for log, offset in zip(self._logs, offsets, strict=False):
            log.read_to(offset)

    def status(self) -> Status:
        """Return how the run stands."""
        with self._lock:
            progress = self.progress
            reading = progress.reading
            example = ""
            if self._late_example is not None:
                batch, micros = self._late_example
                example = f"{lowwater.Watermark(micros)} in batch {batch}"
            holding = progress.holding or self.authority.problem
            lease = self.authority.lease
            if not holding and lease is not None and lease.refused is not None:
                holding = f"{lease.refused.reason}: {lease.refused.message}"
            if self.failure is not None:
                holding = f"the query has ended: {self.failure!r}"
            return Status(
                batch=None if progress.committed.batch == NOTHING else progress.committed.batch,
                low=lowwater.Watermark(reading.low),
                reported=lowwater.Watermark(min(progress.values(reading), default=MAX)),
                holding=holding,
                waiting_for=tuple(progress.waiting_for()),
                late_rows=self._late,
                late_example=example,
                ticks=self._ticked,
            )


_DEFERRABLE: Final = (
    errors.Unavailable,
    errors.Timeout,
    errors.Overloaded,
    errors.JournalFailed,
    errors.ShuttingDown,
)
"""Refusals of a claim after which it is made again later; all others end the query."""
