"""One run of a plain query: a plan with a sink of Spark's own, in which no hook runs. The clock does everything.

None is needed: a plain plan that holds nothing back says all that it has to say by its checkpoint. When ``commits/N`` exists, every
reading W of the inputs whose head lies within what is committed counts, and everything that the query will still write is at or after
it. What Spark's own operators hold back is bounded by the watermark that the committed batch ran with (``offsets/N``), less the
declared retention.

The sink must have made its rows visible when a batch stands in the commit log, as Spark's sinks do: the entry is written after the sink
has returned.

The last reading of the inputs that counted is kept in the checkpoint. A restarted query could do without: it reads the inputs anew and lists its
sources. With it, it claims from where it stood and not from nothing, and it notices that an input was reset meanwhile, so that what the checkpoint
has read belongs to an earlier life of it. A reading that counted stays true of every later state of the same checkpoint, so an old file only says
less.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lowwater
from lowwater.watermark import MAX, MIN
from lowwater_spark.authority import Authority
from lowwater_spark.checkpoint.durable import boot_of, sync_directory, sync_file
from lowwater_spark.checkpoint.log import CheckpointLog, Plan
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.bookmarks import Bookmarks
from lowwater_spark.sources.head import Heads
from lowwater_spark.sources.sink_log import DurableSink
from lowwater_spark.sources.source_log import NOTHING
from lowwater_spark.sources.writers import mark_sink
from lowwater_spark.track.batch import Keyed
from lowwater_spark.track.events import BatchEvent
from lowwater_spark.track.inputs import UNREAD, Reading, still_counts
from lowwater_spark.track.plan import Checked
from lowwater_spark.track.progress import Committed, Progress
from lowwater_spark.track.status import Status

if TYPE_CHECKING:
    from lowwater_spark.drive.watermark import Driving

__all__ = ["LastReading", "PlainRun"]

logger = logging.getLogger("lowwater.spark")

_KEPT_PROMISES: Final = 200
"""Steps of the commit log that are remembered until Spark's events of their batches have come."""


@dataclass(slots=True)
class PlainRun:
    """The driver's side of one run. The clock's thread calls it, and anybody its :meth:`status`; ``_lock`` guards what both see."""

    checkpoint: Path
    checked: Checked
    keyed: Keyed
    authority: Authority
    output: Path | None = None
    """The directory that the sink writes files to; None when it is of another kind, or not local."""
    clock: Callable[[], float] = time.monotonic
    boot: Callable[[Path], str] = boot_of
    skip_removed: bool = False
    """Whether a new checkpoint begins at what is left of outputs whose old batches were removed."""
    log: CheckpointLog = field(init=False)
    progress: Progress = field(init=False)
    failure: BaseException | None = field(default=None, init=False)
    unread: str = field(default="", init=False)
    """What could not be read of the checkpoint when the clock looked last; empty: nothing."""
    stopping: bool = field(default=False, init=False)
    """Whether the user has asked for the end."""
    _lock: threading.RLock = field(init=False)
    manifest: Manifest = field(init=False)
    heads: Heads = field(init=False)
    drive: Driving | None = field(default=None, init=False)
    """What moves the controls of the query, from when on it may: in the same looks."""
    _bookmarks: Bookmarks = field(init=False)
    _last: LastReading = field(init=False)
    _synced: int = field(default=NOTHING, init=False)
    """The last batch that is durable, with all before it."""
    _untold: Plan | None = field(default=None, init=False)
    """The newest committed batch, while the authority does not know that it is."""
    _promises: deque[tuple[int, int]] = field(init=False)
    """A committed batch, and what had been promised before it and those since the entry before."""
    _sink: DurableSink | None = field(init=False)
    """What makes the sink's output durable; None when it is not made of local files."""
    _late: int = field(default=0, init=False)
    _late_example: tuple[int, int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.log = CheckpointLog(self.checkpoint)
        self.manifest = Manifest(self.checkpoint)
        self.manifest.begin(self.authority.registration.ordinal)
        self.heads = Heads.of(self.manifest, self.checked.sources)
        self._lock = self.heads.lock
        self._bookmarks = Bookmarks(
            self.manifest,
            self.heads.outputs,
            self.authority.full_name,
            self.authority.registration.identity,
            skip_removed=self.skip_removed,
        )
        self._last = LastReading(self.manifest)
        self._sink = None if self.output is None else DurableSink(self.output, self.manifest, self.boot)
        self._promises = deque(maxlen=_KEPT_PROMISES)
        self.progress = Progress(self.keyed.ranges, self.keyed.window, self.heads.sources, self._durable())

    # -- start ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Claim, and then read the durable state: until the claim an older run may still have written it."""
        self.heads.settle(self.progress.committed.lines)
        self.heads.look(self.heads.moment(self.progress.committed.lines))
        # Who is refused claims nothing.
        self._bookmarks.check(self.progress.committed.batch)
        self.claim()
        if self.output is not None:
            registration = self.authority.registration
            mark_sink(self.output, self.authority.full_name, registration.identity, adopt=registration.adopt)
        self.manifest.look()
        self.progress.restart(self._durable())
        if self.authority.registered is not None:
            self._check_lives(self.authority.registered)
        self.heads.settle(self.progress.committed.lines)
        self._bookmarks.begin(self.progress.committed.batch, self.clock())
        # What is known now counts from the first batch, if that reads all that is there now.
        self.tick()

    def _durable(self) -> Committed:
        """Return what the checkpoint says of the last committed batch: all that a new run starts from."""
        batch = self.log.last_committed()
        if batch is None:
            self._last.load(NOTHING)
            if self._sink is not None:
                self._sink.begin()
            return Committed(spark_bound=self.checked.spark_bound(None))
        plan = self._plan(batch)
        self._sync(batch)
        return Committed(batch, plan.lines, self._last.load(batch), spark_bound=self.checked.spark_bound(plan))

    def _plan(self, batch: int) -> Plan:
        plan = self.log.plan(batch)
        if plan is None:
            msg = f"{self.checkpoint}/commits/{batch} is there and offsets/{batch} is not; restore the checkpoint as a whole"
            raise CheckpointMismatch(msg)
        return plan

    def _sync(self, last: int) -> None:
        """Make the batches up to a committed one durable, their output first: a power cut must not take back what is reported."""
        if self._sink is not None:
            self._sink.sync(last)
        plans = self.log.plans_after(self._synced, last)
        files = [file for plan in plans for file in self.heads.evidence(self.log, plan)]
        files.append(self.checkpoint / "commits" / str(last))
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # Spark has cleaned up: newer entries stand in for it
                sync_file(file)
        for folder in {file.parent for file in files}:
            sync_directory(folder)
        self._synced = max(self._synced, last)

    def claim(self) -> None:
        """Register and claim, from where the durable state stands. Raises what the authority refuses; degrades when it is away."""
        self.authority.enter(self._check_lives, lambda: self.progress.values(self.progress.reading))

    def _check_lives(self, registered: lowwater.Computation) -> None:
        """Compare the inputs with those that the checkpoint's reading is of."""
        self.progress.inputs = (registered.input_version, registered.input_incarnations)
        committed = self.progress.committed
        again = still_counts(committed.reading, committed.batch, registered)
        self.progress.restart(dataclasses.replace(committed, reading=again))

    # -- the clock --------------------------------------------------------------------------------------------------

    def news(self) -> bool:
        """Return whether a look is worth while: a batch has been committed, or the inputs have moved. O(inputs), without the network."""
        return self.log.committed(self.progress.committed.batch + 1) or self.authority.news()

    def tick(self, *, last: bool = False) -> None:
        """One look of the clock: take notice of what is committed, read the inputs, list the sources, report.

        ``last``: the query has ended. What it has committed counts; that it ended says nothing of what is still to come.
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
        """Take notice of what is committed, and read the inputs. Return whether the authority answers, and the reading if there is one."""
        self._settle()
        if not self.authority.probe():
            return False, None
        if self.authority.lease is None:
            self.claim()
        return True, self.authority.read()

    def _look(self, reading: Reading | None, read: int, committed: Committed, *, last: bool) -> None:
        """List the sources if that is needed for a reading, which was taken at the moment ``read``, and report."""
        now = self.clock()
        news = reading is not None and self.progress.must_list(reading, now)
        heads, listed = None, self.heads.moment() > read
        if news or self._bookmarks.due(committed.batch, now, last=last):
            heads = self.heads.look(read)
        if not news and not listed:
            self.heads.forgive()
        elif news and heads is not None:
            assert reading is not None
            newest = self.log.newest()
            planned = () if newest is None else newest.lines
            with self._lock:
                self.heads.read_to(planned)
                self.progress.observe(reading, heads, now, planned)
        self._settle()
        self._report(last=last)
        if heads is not None and self._bookmarks.due(committed.batch, now, last=last):
            # Only now: what is reported does not wait for it.
            self._bookmarks.keep_up(committed.batch, now)
        if last:
            self.heads.fail_again()

    def _settle(self) -> None:
        """Take notice of the newest batch in the commit log, and of all before it."""
        batch = self.log.last_committed()
        if batch is None or batch == self.progress.committed.batch:
            return
        plan = self._plan(batch)
        bound = self.checked.spark_bound(plan)
        self._sync(batch)
        with self._lock:
            self._promises.append((batch, self._promised()))
            self.heads.settle(plan.lines)
            reading = self.progress.choose(plan.lines)
            self._untold = plan
            self.progress.settle(Committed(batch, plan.lines, reading, spark_bound=bound), "")

    def _promised(self) -> int:
        """Return what rows that come now must not be below: the promise of the inputs, or of the stage itself.

        What Spark has held back may be older than a promise of the inputs, but never than what the stage has reported.
        """
        reading = self.progress.reading
        return reading.low if self.checked.retention is None else min(self.progress.values(reading), default=MIN)

    def _report(self, *, last: bool) -> None:
        """Report the newest reading that counts for the committed state; first make it known that the batch is committed."""
        if self.authority.lease is None:
            return
        with self._lock:
            reading = self.progress.renew()
        if self._untold is not None:
            bound = self.progress.bound(reading)
            plan = self._untold
            self.progress.holding = self.authority.prepare(
                plan.batch, plan.digest, [], self.progress.stamped(reading), bound, covers_all=False
            ) or self.authority.commit(plan.batch)
            if self.progress.holding:
                return
            self._untold = None
        if reading.low != MIN and (self._last.of_other_inputs(reading) or (last and reading != self._last.saved)):
            self._last.save(self.progress.committed.batch, reading)
        values = self.progress.values(reading)
        self.authority.renew(self.progress.stamped(reading), values, waiting_for=self._waiting_for())

    def _waiting_for(self) -> tuple[str, ...]:
        return (*filter(None, [self.unread, self.heads.lost]), *self.progress.waiting_for())

    def cannot_read(self, failure: str) -> None:
        """Remember what could not be read of the checkpoint, for people, and tell the authority; empty: it can be read again."""
        self.unread = failure
        if failure:
            with self._lock:
                self.authority.tell(self._waiting_for())

    def fail(self, failure: BaseException) -> None:
        """Remember what ended the run: the first thing that did."""
        if self.failure is None and not self.stopping:
            self.failure = failure

    # -- what is shown ----------------------------------------------------------------------------------------------

    def take(self, events: Iterable[BatchEvent]) -> None:
        """Look for broken promises in what Spark says of its batches."""
        for event in events:
            promised = next((low for batch, low in self._promises if batch >= event.batch), None)
            if event.oldest is None or promised is None or event.oldest >= promised:
                continue
            self._late += 1
            if self._late_example is None or event.oldest < self._late_example[1]:
                self._late_example = (event.batch, event.oldest)
            logger.warning(
                "batch %d of %s has rows below what had been promised, the oldest at %s",
                event.batch,
                self.authority.registration.name,
                lowwater.Watermark(event.oldest),
            )

    def close(self) -> None:
        """Stop reporting; the ranges hold where they stand."""
        self.authority.close()

    @property
    def stages(self) -> tuple[str, ...]:
        """The name of its one stage."""
        return (self.authority.registration.name,)

    def status(self, stage: str | None = None) -> Status:
        """Return how the run stands. Raises ValueError for the name of another stage: it has one."""
        if stage not in (None, self.authority.registration.name):
            msg = f"{stage!r} is no stage of this query; it has {self.authority.registration.name}"
            raise ValueError(msg)
        with self._lock:
            progress = self.progress
            reading = progress.reading
            example = ""
            if self._late_example is not None:
                batch, micros = self._late_example
                example = f"{lowwater.Watermark(micros)} in batch {batch}"
            holding = progress.holding or self.authority.complaint
            if self.failure is not None:
                holding = f"the query has ended: {self.failure!r}"
            return Status(
                batch=None if progress.committed.batch == NOTHING else progress.committed.batch,
                low=lowwater.Watermark(reading.low),
                reported=lowwater.Watermark(min(progress.values(reading), default=MAX)),
                holding=holding,
                waiting_for=self._waiting_for(),
                late_rows=self._late,
                late_example=example,
                ticks=0,
                remembered_files=self.heads.remembered,
            )


class LastReading:
    """In the manifest: one reading, and the committed batch that it counted for."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.saved = UNREAD
        """What is kept, as far as this object has read or written it."""

    def load(self, committed: int) -> Reading:
        """Return the reading, UNREAD when there is none. Raises CheckpointMismatch.

        ``committed`` is the last batch of the commit log: a reading for a later one was kept while the log was taken from a copy. One batch
        later says nothing, since a power cut can take a log's last entry as well; whether the run is behind is decided by its claim.
        """
        content = self._manifest["reading"]
        if content is None or content["batch"] == committed + 1:
            return UNREAD
        if content["batch"] > committed:
            msg = (
                f"{self._manifest.checkpoint} has read its inputs as of batch {content['batch']}, but the commit log ends at batch {committed}: the checkpoint is older "
                "than what was published. Restore it as a whole, or start from a new one."
            )
            raise CheckpointMismatch(msg)
        self.saved = Reading.from_json(content)
        return self.saved

    def save(self, batch: int, reading: Reading) -> None:
        """Replace the reading. Durable when it returns."""
        self._manifest.keep("reading", {"batch": batch, **reading.to_json()})
        self.saved = reading

    def of_other_inputs(self, reading: Reading) -> bool:
        """Return whether a reading is of other inputs, or other lives of them, than the saved one."""
        lives = (reading.input_version, tuple(reading.input_incarnations))
        return lives != (self.saved.input_version, tuple(self.saved.input_incarnations))
