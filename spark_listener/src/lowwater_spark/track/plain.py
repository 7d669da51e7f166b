"""Batches that a sink of Spark's own writes: no hook runs in them, and the clock finds them in the commit log.

None is needed: a plain plan that holds nothing back says all that it has to say by its checkpoint. When ``commits/N`` exists, every
reading W of the inputs whose head lies within what is committed counts, and everything that the query will still write is at or after
it. What Spark's own operators hold back is bounded by the watermark that the committed batch ran with (``offsets/N``), less the
declared retention.

The sink must have made its rows visible when a batch stands in the commit log, as Spark's sinks do: the entry is written after the sink
has returned.

The last reading of the inputs that counted is kept in the checkpoint. A restarted query could do without: it reads the inputs anew and lists its
sources. With it, it claims from where it stood and not from nothing, and it notices that an input was reset meanwhile, so that what the checkpoint
has read belongs to an earlier incarnation of it. A reading that counted stays true of every later state of the same checkpoint, so an old file only says
less.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import lowwater
from lowwater.watermark import MIN
from lowwater_spark.checkpoint.durable import boot_of, sync_directory, sync_file
from lowwater_spark.checkpoint.log import Plan
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.base import OpenSource
from lowwater_spark.sources.sink_log import DurableSink
from lowwater_spark.sources.source_log import NOTHING
from lowwater_spark.sources.writers import mark_sink
from lowwater_spark.track.hook import GLANCE
from lowwater_spark.track.inputs import UNREAD, Change, Reading
from lowwater_spark.track.part import LateRow, Part
from lowwater_spark.track.progress import Committed

if TYPE_CHECKING:
    from lowwater_spark.track.events import BatchEvent
    from lowwater_spark.track.removal import Removal
    from lowwater_spark.track.run import Run

__all__ = ["LastReading", "Plain", "Witness"]

logger = logging.getLogger("lowwater.spark")

_UNTIL_A_PLAN: Final = 0.1
"""Seconds between two glances for the plan of a batch. From there to its commit it is a job and two
files, which takes about as long or longer."""

_KEPT_PROMISES: Final = 200
"""Steps of the commit log that are remembered until Spark's events of their batches have come."""


class Witness(Protocol):
    """Who looks after a checkpoint that another process writes: what is read of it must be of the query that it was of before."""

    def attend(self) -> None:
        """Raise CheckpointMismatch when it is another query's by now, OSError when nobody can tell."""
        ...

    def confirm(self, plan: Plan | None) -> None:
        """Make sure that the newest committed batch follows those that were seen before it; None: there is none. Raises CheckpointMismatch, Unsupported, OSError."""
        ...


@dataclass(slots=True)
class Plain:
    """What a run has instead of a hook.

    The clock's thread calls it; the run's lock guards what others see.
    """

    output: Path | None = None
    """The directory that the sink writes files to; None when it is of another kind, or not local.
    """
    boot: Callable[[Path], str] = boot_of
    witness: Witness | None = None
    """Of a query that runs in another process; None: it runs in this one, and nobody else writes
    its checkpoint."""
    run: Run = field(init=False, repr=False, compare=False)
    _last: LastReading = field(init=False)
    _synced: int = field(default=NOTHING, init=False)
    """The last batch that is durable, with all before it."""
    _sure: bool = field(default=False, init=False)
    """Whether nothing was read of the checkpoint since its witness has looked at it."""
    _untold: Plan | None = field(default=None, init=False)
    """The newest committed batch, while the authority does not know that it is."""
    _promises: deque[tuple[int, int]] = field(init=False)
    """A committed batch, and what had been promised before it and those since the entry before."""
    _sink: DurableSink | None = field(init=False)
    """What makes the sink's output durable; None when it is not made of local files."""
    _marked: bool = field(default=False, init=False)
    _begun: int = field(default=NOTHING, init=False)
    """The newest batch that was found planned while nobody knew of its commit."""

    @property
    def elsewhere(self) -> bool:
        """Whether another process plans the batches: what is planned may then be planned anew, and only what is committed is read."""
        return self.witness is not None

    observed: ClassVar[bool] = True
    """What Spark says of its batches afterwards is all that tells of late rows."""
    ticked: ClassVar[int] = 0
    """It asks for no empty batches: what Spark holds, Spark lets go by itself."""
    removals: ClassVar[Sequence[Removal]] = ()
    """It hands nothing over, and removes nothing."""

    @property
    def _part(self) -> Part:
        """Its one stage."""
        return self.run.parts[0]

    # -- start -------------------------------------------------------------------------------------

    def open(self, run: Run) -> Sequence[OpenSource]:
        """Begin with the run. The query has no sources beside those of its plan."""
        self.run = run
        self._last = LastReading(run.manifest)
        self._sink = None if self.output is None else DurableSink(self.output, run.manifest, self.boot)
        self._promises = deque(maxlen=_KEPT_PROMISES)
        return ()

    def durable(self) -> list[Committed]:
        """Return what the checkpoint says of the last committed batch: all that a new run starts from."""
        batch, checked = self._newest(), self.run.checked
        if batch is None:
            self._last.load(NOTHING)
            if self._sink is not None:
                self._sink.begin()
            # Of a query that runs elsewhere nobody knows yet what it reads, and what it will hold.
            return [Committed(spark_bound=checked.spark_bound(None) if self.witness is None else MIN)]
        plan = self._plan(batch)
        self._sync(batch)
        return [Committed(batch, plan.lines, self._last.load(batch), spark_bound=checked.spark_bound(plan))]

    def claimed(self) -> None:
        """Leave the mark of a tracked query in its output."""
        if self.output is not None and not self._marked:
            registration = self._part.authority.registration
            mark_sink(self.output, self._part.authority.full_name, registration.identity, adopt=registration.adopt)
            self._marked = True

    def _newest(self) -> int | None:
        """Return the newest batch in the commit log, of which whoever writes it elsewhere has been made sure."""
        if self.witness is None:
            return self.run.log.last_committed()
        batch = self.run.log.last_committed()
        self.witness.confirm(None if batch is None else self._plan(batch))
        self._sure = True
        return batch

    def _plan(self, batch: int) -> Plan:
        plan = self.run.log.plan(batch)
        if plan is None:
            if self.witness is not None:
                self.witness.attend()  # it may be away, or be deleted just now
            msg = f"{self.run.checkpoint}/commits/{batch} is there and offsets/{batch} is not; restore the checkpoint as a whole"
            raise CheckpointMismatch(msg)
        return plan

    def _sync(self, last: int) -> None:
        """Make the batches up to a committed one durable, their output first: a power cut must not take back what is reported."""
        if self._sink is not None:
            self._sink.sync(last)
        if not isinstance(self.run.checkpoint, Path):
            return  # what is closed there is as durable as it gets
        plans = self.run.log.plans_after(self._synced, last)
        files = [file for plan in plans for file in self.run.heads.evidence(self.run.log, plan)]
        files.append(self.run.checkpoint / "commits" / str(last))
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # Spark has cleaned up: newer entries stand in for it
                sync_file(file)
        for folder in {file.parent for file in files}:
            sync_directory(folder)
        self._synced = max(self._synced, last)

    # -- the clock ---------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Return whether another batch is committed.

        One stat, but when a plan is found: a batch that is not planned is not committed.
        """
        following = self._part.progress.committed.batch + 1
        if self._begun != following:
            if not self.run.log.planned(following):
                return False
            self._begun = following
        return self.run.log.committed(following)

    def pace(self) -> float:
        """Return how many seconds may pass until it is asked again: nobody tells of a batch that begins, which takes longer than that."""
        return GLANCE if self._begun == self._part.progress.committed.batch + 1 else _UNTIL_A_PLAN

    @property
    def timed(self) -> bool:
        """Whether it has something to do at some time, without anybody telling: it has no timers."""
        return False

    def settle(self) -> None:
        """Take notice of the newest batch in the commit log, and of all before it."""
        progress, batch = self._part.progress, self._newest()
        if batch is None or batch == progress.committed.batch:
            return
        self._sure = False
        plan = self._plan(batch)
        bound = self.run.checked.spark_bound(plan)
        self._sync(batch)
        self.run.heads.knock(plan.lines)
        with self.run.lock:
            self._promises.append((batch, self._promised()))
            self.run.heads.settle(plan.lines)
            reading = progress.choose(plan.lines)
            self._untold = plan
            progress.settle(Committed(batch, plan.lines, reading, spark_bound=bound), "")

    def _promised(self) -> int:
        """Return what rows that come now must not be below: the promise of the inputs, or of the stage itself.

        What Spark has held back may be older than a promise of the inputs, but never than what the stage has reported.
        """
        progress = self._part.progress
        reading = progress.reading
        return reading.low if self.run.checked.retention is None else min(progress.values(reading), default=MIN)

    def report(self, *, last: bool) -> None:
        """Report the newest reading that counts for the committed state; first make it known that the batch is committed."""
        part, progress = self._part, self._part.progress
        if part.authority.lease is None or part.authority.problem:
            return
        if self.witness is not None and not self._sure:
            self._newest()  # what was read of the checkpoint since it was looked at is of the same query
        with self.run.lock:
            part.advance(part)
            reading = progress.reading
        if self._untold is not None:
            plan = self._untold
            progress.holding = part.authority.prepare(
                plan.batch,
                plan.digest,
                [],
                progress.stamped(reading),
                progress.bound(reading),
                covers_all=False,
            ) or part.authority.commit(plan.batch)
            if progress.holding:
                return
            self._untold = None
        if reading.low != MIN and (
            reading.origin.since(self._last.saved.origin) is not Change.NONE or (last and reading != self._last.saved)
        ):
            self._last.save(progress.committed.batch, reading)
        part.renew(None, self.run.waiting_for())

    def take(self, events: Iterable[BatchEvent]) -> None:
        """Look for broken promises in what Spark says of its batches."""
        for event in events:
            promised = next((low for batch, low in self._promises if batch >= event.batch), None)
            if event.oldest is None or promised is None or event.oldest >= promised:
                continue
            part = self._part
            part.late_rows += 1
            if part.late_row is None or event.oldest < part.late_row.micros:
                part.late_row = LateRow(event.batch, event.oldest, None)
            logger.warning(
                "batch %d of %s has rows below what had been promised, the oldest at %s",
                event.batch,
                part.name,
                lowwater.Watermark(event.oldest),
            )

    def triggered_every(self, seconds: float) -> None:
        """Ask for no batches, whatever the trigger is."""

    def close(self) -> None:
        """Nothing of its own is open."""


class LastReading:
    """In the manifest: one reading, and the committed batch that it counted for."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.saved = UNREAD
        """What is kept, as far as this object has read or written it."""

    def load(self, committed: int) -> Reading:
        """Return the reading, UNREAD when there is none. Raises CheckpointMismatch.

        ``committed`` is the last batch of the commit log: a reading for a later one was kept while
        the log was taken from a copy. One batch later says nothing, since a power cut can take a
        log's last entry as well; whether the run is behind is decided by its claim.
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
