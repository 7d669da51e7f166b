"""Batches that a Spark sink writes: no hook runs, and the clock finds them in the commit log.

A plain plan that holds no rows needs no hook: its checkpoint says everything. Once ``commits/N``
exists, every reading W of the inputs whose head is within the committed batches counts, and all
that the query will still write is at or after it. Rows in Spark's own operators are bounded by the
watermark of the committed batch (``offsets/N``), less the declared retention.

The sink must have made its rows visible when a batch is in the commit log, as Spark's sinks do: the
entry is written after the sink has returned.

The checkpoint stores the last reading that counted. A restarted query could read the inputs anew
and list its sources. With the stored reading it claims from its last values, and notices if an
input was reset meanwhile, so that the checkpoint's rows belong to an earlier incarnation. A reading
that counted stays true for every later state of the checkpoint, so an old file only says less.
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
from lowwater_spark.sources.files.sink_log import DurableSink
from lowwater_spark.sources.files.source_log import NOTHING
from lowwater_spark.sources.files.writers import mark_sink
from lowwater_spark.track.inputs import UNREAD, Change, Reading
from lowwater_spark.track.run.hook import GLANCE
from lowwater_spark.track.run.progress import AfterBatch
from lowwater_spark.track.run.stage_run import LateRow, StageRun

if TYPE_CHECKING:
    from lowwater_spark.track.output.removal import Removal
    from lowwater_spark.track.run.events import BatchEvent
    from lowwater_spark.track.run.run import Run

__all__ = ["LastReading", "Plain", "Witness"]

logger = logging.getLogger("lowwater.spark")

_UNTIL_A_PLAN: Final = 0.1
"""Seconds between two looks for the plan of a batch. A batch takes about as long or longer from its
plan to its commit: a job and two files."""

_KEPT_PROMISES: Final = 200
"""Number of promises that are remembered until Spark's events of their batches arrive."""


class Witness(Protocol):
    """Checks that a checkpoint that another process writes still belongs to the same query."""

    def attend(self) -> None:
        """Raise CheckpointMismatch for another query's checkpoint, OSError if that is unknown."""
        ...

    def confirm(self, plan: Plan | None) -> None:
        """Check that the newest committed batch, if any, follows the earlier ones.

        Raises CheckpointMismatch, Unsupported, OSError.
        """
        ...


@dataclass(slots=True)
class Plain:
    """The counterpart of a hook for a plain query.

    The clock's thread calls it; the run's lock guards what other threads see.
    """

    output: Path | None = None
    """Directory of the sink's files; None if the sink writes no local files."""
    boot: Callable[[Path], str] = boot_of
    """Function that names the time since the last possible power cut: see :class:`DurableSink`."""
    witness: Witness | None = None
    """Checker of a checkpoint that another process writes; None: this process writes it."""
    run: Run = field(init=False, repr=False, compare=False)
    _last: LastReading = field(init=False)
    _synced: int = field(default=NOTHING, init=False)
    """Last batch that is durable, with all before it."""
    _sure: bool = field(default=False, init=False)
    """True: the witness has checked the checkpoint since it was last read."""
    _untold: Plan | None = field(default=None, init=False)
    """Newest committed batch, while the authority has not acknowledged it."""
    _promises: deque[tuple[int, int]] = field(init=False)
    """Committed batches, each with the promise that held for the rows before it."""
    _sink: DurableSink | None = field(init=False)
    """Object that syncs the sink's output; None if that is not made of local files."""
    _marked: bool = field(default=False, init=False)
    _begun: int = field(default=NOTHING, init=False)
    """Newest batch whose plan was found before its commit."""

    @property
    def elsewhere(self) -> bool:
        """True: another process plans the batches, may plan them anew, and only commits count."""
        return self.witness is not None

    observed: ClassVar[bool] = True
    """True: late rows are known only from Spark's later events."""
    ticked: ClassVar[int] = 0
    """Number of requested empty batches: none, since Spark releases its rows by itself."""
    removals: ClassVar[Sequence[Removal]] = ()
    """Removals from outputs: none."""

    @property
    def _stage(self) -> StageRun:
        """The query's one stage."""
        return self.run.stages[0]

    # -- start -------------------------------------------------------------------------------------

    def open(self, run: Run) -> Sequence[OpenSource]:
        """Begin with the run. The query has no sources besides those of its plan."""
        self.run = run
        self._last = LastReading(run.manifest)
        self._sink = None if self.output is None else DurableSink(self.output, run.manifest, self.boot)
        self._promises = deque(maxlen=_KEPT_PROMISES)
        return ()

    def durable(self) -> list[AfterBatch]:
        """Return the durable state after the last committed batch, from which a run starts."""
        batch, checked = self._newest(), self.run.checked
        if batch is None:
            self._last.load(NOTHING)
            if self._sink is not None:
                self._sink.begin()
            # A sidecar, which has a witness, cannot know which rows the query of another process
            # has begun to read, or holds, before that query's first commit: at MIN the stage
            # promises nothing until then.
            return [AfterBatch(spark_bound=checked.spark_bound(None) if self.witness is None else MIN)]
        plan = self._plan(batch)
        self._sync(batch)
        return [AfterBatch(batch, plan.lines, self._last.load(batch), spark_bound=checked.spark_bound(plan))]

    def claimed(self) -> None:
        """Leave the mark of a tracked query in the output."""
        if self.output is not None and not self._marked:
            registration = self._stage.authority.registration
            mark_sink(self.output, self._stage.authority.full_name, registration.identity, adopt=registration.adopt)
            self._marked = True

    def _newest(self) -> int | None:
        """Return the newest batch in the commit log, checked by the witness if there is one."""
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
                # If the checkpoint was begun anew, or its file system is away, attend() raises that
                # error: the one below would tell the user to restore a checkpoint for nothing.
                self.witness.attend()
            msg = f"{self.run.checkpoint}/commits/{batch} exists and offsets/{batch} does not; restore the checkpoint as a whole"
            raise CheckpointMismatch(msg)
        return plan

    def _sync(self, last: int) -> None:
        """Make all batches up to a committed one durable, their output first.

        Otherwise a power cut could take back what was reported.
        """
        if self._sink is not None:
            self._sink.sync(last)
        if not isinstance(self.run.checkpoint, Path):
            return  # HDFS or an object store, where a closed file is durable
        plans = self.run.log.plans_after(self._synced, last)
        files = [file for plan in plans for file in self.run.heads.evidence(self.run.log, plan)]
        files.append(self.run.checkpoint / "commits" / str(last))
        for file in files:
            # Spark may have deleted an old entry of its logs: a restart does not need it.
            with contextlib.suppress(FileNotFoundError):
                sync_file(file)
        for folder in {file.parent for file in files}:
            sync_directory(folder)
        self._synced = max(self._synced, last)

    # -- the clock ---------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Return whether another batch is committed.

        Costs one stat, and a second one once its plan was found.
        """
        following = self._stage.progress.committed.batch + 1
        if self._begun != following:
            if not self.run.log.planned(following):
                return False
            self._begun = following
        return self.run.log.committed(following)

    def pace(self) -> float:
        """Return the seconds until the next call: no event announces a batch."""
        return GLANCE if self._begun == self._stage.progress.committed.batch + 1 else _UNTIL_A_PLAN

    @property
    def timed(self) -> bool:
        """False: a plain query has no timers."""
        return False

    def follow_commits(self) -> None:
        """Record the newest batch in the commit log, and all before it."""
        progress, batch = self._stage.progress, self._newest()
        if batch is None or batch == progress.committed.batch:
            return
        self._sure = False
        plan = self._plan(batch)
        bound = self.run.checked.spark_bound(plan)
        self._sync(batch)
        self.run.heads.knock(plan.lines)
        with self.run.lock:
            self._promises.append((batch, self._promised()))
            self.run.heads.confirm(plan.lines)
            reading = progress.choose(plan.lines)
            self._untold = plan
            progress.record(AfterBatch(batch, plan.lines, reading, spark_bound=bound), "")

    def _promised(self) -> int:
        """Return the event time below which a row that arrives now is late, microseconds.

        It is the inputs' watermark; in a query with held rows it is the stage's own, because rows
        that Spark has held back may be below the inputs' watermark without being late.
        """
        progress = self._stage.progress
        reading = progress.reading
        return reading.low if self.run.checked.retention is None else min(progress.values(reading), default=MIN)

    def report(self, *, last: bool) -> None:
        """Report the committed batch, and then the newest reading that counts with it."""
        stage, progress = self._stage, self._stage.progress
        if stage.authority.lease is None or stage.authority.problem:
            return
        if self.witness is not None and not self._sure:
            self._newest()  # the witness checks that the checkpoint is still the same query's
        with self.run.lock:
            stage.advance(stage)
            reading = progress.reading
        if self._untold is not None:
            plan = self._untold
            progress.holding = stage.authority.prepare(
                plan.batch,
                plan.digest,
                [],
                progress.stamped(reading),
                progress.bound(reading),
                covers_all=False,
            ) or stage.authority.commit(plan.batch)
            if progress.holding:
                return
            self._untold = None
        if reading.low != MIN and (
            reading.origin.since(self._last.saved.origin) is not Change.NONE or (last and reading != self._last.saved)
        ):
            self._last.save(progress.committed.batch, reading)
        stage.renew(None, self.run.waiting_for())

    def take(self, events: Iterable[BatchEvent]) -> None:
        """Find and count late rows in Spark's events."""
        for event in events:
            promised = next((low for batch, low in self._promises if batch >= event.batch), None)
            if event.oldest is None or promised is None or event.oldest >= promised:
                continue
            stage = self._stage
            stage.add_late(1, LateRow(event.batch, event.oldest, None))
            logger.warning(
                "batch %d of %s has rows below what had been promised, the oldest at %s",
                event.batch,
                stage.name,
                lowwater.Watermark(event.oldest),
            )

    def triggered_every(self, seconds: float) -> None:
        """Ignore the trigger: no batches are requested."""

    def close(self) -> None:
        """Do nothing: a plain query has opened nothing."""


class LastReading:
    """A reading in the manifest, with the committed batch that it counted for."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.saved = UNREAD
        """The stored reading, as far as this object has read or written it."""

    def load(self, committed: int) -> Reading:
        """Return the stored reading, UNREAD without one. Raises CheckpointMismatch.

        ``committed`` is the last batch of the commit log. A reading for a later batch means that
        the log was restored from a copy. One batch later proves nothing, since a power cut can also
        take a log's last entry; the run's claim then decides whether the run is behind.
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
        """Replace the stored reading, durably."""
        self._manifest.keep("reading", {"batch": batch, **reading.to_json()})
        self.saved = reading
