"""One run of a tracked query: the clock between its batches, and the reports of its stages.

Two kinds of queries differ only in how the run notices batches: a hook is called in each batch of a
user's function (:mod:`lowwater_spark.track.run.hook`); batches of a Spark sink are found in the
commit log (:mod:`lowwater_spark.track.run.plain`).

The clock is a thread that takes *looks*. A look (:meth:`Run.look`) records new commits, reads the
inputs, lists the sources, and reports the watermark that counts by then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import lowwater
from lowwater.watermark import MAX, MIN
from lowwater_spark.checkpoint.location import Location, glance
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.sources.base import Line
from lowwater_spark.sources.files.bookmarks import Bookmarks
from lowwater_spark.sources.files.source_log import NOTHING
from lowwater_spark.sources.head import Heads
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.plan.checked import Checked
from lowwater_spark.track.run.authority import Authority
from lowwater_spark.track.run.events import BatchEvent
from lowwater_spark.track.run.hook import Hook
from lowwater_spark.track.run.plain import Plain
from lowwater_spark.track.run.progress import AfterBatch, Progress
from lowwater_spark.track.run.stage_run import StageRun
from lowwater_spark.track.run.status import KeyRange, Status
from lowwater_spark.track.state.store import StageSection

__all__ = ["Controls", "Run"]


class Controls(Protocol):
    """The mover of Spark's own watermark in a query (:mod:`lowwater_spark.drive`)."""

    def news(self) -> bool:
        """Return whether the inputs have moved. O(inputs), without the network."""
        ...

    @property
    def asked(self) -> bool:
        """True if the query may ask its control sources for values: no event tells the clock so."""
        ...

    def hear(self) -> Iterator[object]:
        """Yield whenever an input has moved. Waits in between, and ends with the run."""
        ...

    def look(self) -> None:
        """Take one look of the clock. Raises errors that must end the query."""
        ...

    def silence(self) -> None:
        """Publish no further value."""
        ...

    def close(self) -> None:
        """End the run, after the query has ended or if it was never started."""
        ...


@dataclass(slots=True)
class Run:
    """The driver's side of one run.

    The clock's thread calls it, Spark's thread calls the hook, and any thread :meth:`status`.
    ``lock`` guards everything that two threads use, and the waits for the sources.
    """

    checkpoint: Location
    checked: Checked
    stages: Sequence[StageRun]
    """Stages of the query, each after the stages that it reads."""
    batches: Hook | Plain
    """Finder of the run's batches."""
    clock: Callable[[], float] = time.monotonic
    elsewhere: Manifest | None = None
    """Manifest in a sidecar's own directory: another process writes the checkpoint, and this one
    only reads it. None: the checkpoint's own manifest."""
    skip_removed: bool = False
    """True: a new checkpoint begins with the rest of outputs whose old batches were removed."""
    log: CheckpointLog = field(init=False)
    failure: BaseException | None = field(default=None, init=False)
    unread: str = field(default="", init=False)
    """Error of the last read of the checkpoint, by the clock or a new batch; empty: none."""
    stopping: bool = field(default=False, init=False)
    """True: the user stops the query, so an interrupted batch has not failed."""
    manifest: Manifest = field(init=False)
    heads: Heads = field(init=False)
    lock: threading.RLock = field(init=False)
    reader: StageRun | None = field(init=False)
    """Stage whose reading of the inputs is the query's W; None if all are injectors."""
    drive: Controls | None = field(default=None, init=False)
    """Mover of Spark's own watermark, called in each look; None without drive(), and before the
    claim."""
    wake: threading.Event = field(default_factory=threading.Event, init=False)
    """Set when there may be news: ends the clock's wait."""
    _bookmarks: Bookmarks = field(init=False)
    _looked: int = field(default=NOTHING, init=False)
    """Newest committed batch that a look has found, whether or not it could be reported."""

    _ask: float = field(default=0.0, init=False)
    """Time, by ``clock``, from which the commit log may be asked for news again."""

    def __post_init__(self) -> None:
        self.log = CheckpointLog(self.checkpoint)
        self.manifest = Manifest(self.checkpoint) if self.elsewhere is None else self.elsewhere
        self.manifest.begin(self.authority.registration.ordinal)
        for stage in self.stages:
            stage.section = StageSection(self.manifest, stage.home)
        self.heads = Heads([*Heads.of(self.manifest, self.checked.sources).sources, *self.batches.open(self)])
        self.lock = self.heads.lock
        self._bookmarks = Bookmarks(
            self.manifest,
            self.heads.outputs,
            self.authority.full_name,
            self.authority.registration.identity,
            skip_removed=self.skip_removed,
        )
        self.reader = next((stage for stage in self.stages if stage.reads), None)
        for stage, state in zip(self.stages, self.batches.durable(), strict=True):
            stage.open(self.heads.sources, state)
        self.heads.confirm(self.lines)

    @property
    def authority(self) -> Authority:
        """Authority of the first stage."""
        return self.stages[0].authority

    @property
    def progress(self) -> Progress:
        """Progress of the first stage."""
        return self.stages[0].progress

    @property
    def lines(self) -> Sequence[Line]:
        """Ends of the committed batches, by source."""
        return self.progress.committed.lines

    # -- start -------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Register and claim all stages with the durable state.

        Raises the authority's refusals; degrades when it is away.
        """
        for stage in self.stages:
            # A stage is registered after the stages that it reads, so the first one that cannot
            # claim ends the loop. claim() calls the authority without the lock: a running batch
            # needs the lock, and would wait as long as the call.
            if stage.authority.lease is None and (stage.authority.problem or not stage.claim(self.reader, self.lock)):
                break
        self.batches.claimed()

    def start(self) -> None:
        """Claim, and read the durable state again: an older run may change it until the claim."""
        self.heads.look(self.heads.moment(self.lines))
        # check() raises if unread batches of a source were removed. It comes before the claim: a
        # run that cannot start must not fence another run of the stage that still works.
        self._bookmarks.check(self.progress.committed.batch)
        self.claim()
        self.manifest.look()
        with self.lock:
            for stage, state in zip(self.stages, self.batches.durable(), strict=True):
                stage.restart(state)
            for stage in self.stages:
                if stage.authority.registered is not None:
                    stage.check_inputs(stage.authority.registered, self.reader)
            self.heads.confirm(self.lines)
        self._bookmarks.begin(self.progress.committed.batch, self.clock())
        # This look reads the inputs and lists the sources before Spark plans the first batch. If
        # that batch reads all that was listed, it may use this reading. Without the look it would
        # run with the watermark of the run before.
        self.look()

    # -- the clock ---------------------------------------------------------------------------------

    def news(self) -> bool:
        """Return whether a batch was committed or the inputs moved.

        O(inputs), without the network.
        """
        return self.committed() or (self.reader is not None and self.reader.authority.news())

    def committed(self) -> bool:
        """Return whether a batch was committed since the last look.

        Costs at most two calls on the file system.
        """
        if self.progress.committed.batch != self._looked:
            return True
        now = self.clock()
        if now < self._ask:
            return False
        self._ask = now + glance(self.checkpoint)
        try:
            return self.batches.ready()
        except OSError:
            return True  # the look reads the log again, and handles the error

    @property
    def idle(self) -> bool:
        """True if every expected change has an event.

        False while files must be listed again, the authority is away, or a time is due.
        """
        return not (
            self.unread
            or self.heads.lost
            or self.batches.timed
            or (self.drive is not None and self.drive.asked)
            or any(
                stage.authority.problem
                or stage.authority.lease is None
                or stage.progress.holding
                or stage.progress.waits
                for stage in self.stages
            )
        )

    def hear(self) -> Sequence[Iterator[object]]:
        """Return iterators that yield whenever an input moves, one for a thread each.

        Raises Closed.
        """
        iterators = [] if self.reader is None else [self.reader.authority.hear()]
        return iterators if self.drive is None else [*iterators, self.drive.hear()]

    def look(self, *, last: bool = False) -> None:
        """Take a look: settle batches, read inputs, list sources, report, request a batch.

        The query's controls read their inputs after the stage's and before the sources are listed,
        so one listing serves both. ``last``: the query has ended. Its commits count, but its end
        does not say that no more rows will come.
        """
        reading = None
        try:
            self.batches.follow_commits()
            # Noted before the next steps, which may raise. Otherwise committed() would return True
            # for the same batch again, and the clock would look again without its usual pause.
            self._looked = self.progress.committed.batch
            answering = [stage for stage in self.stages if stage.authority.answers()]
            if answering and any(stage.authority.lease is None for stage in self.stages):
                self.claim()
            if answering and self.reader is not None:
                reading = self.reader.authority.read()
            committed = self.progress.committed
            read = self.heads.moment(committed.lines)
        finally:
            # self.drive reads inputs by itself. So Spark's own watermark follows them in this look
            # even if an error ended the steps above.
            if self.drive is not None and not last:
                self.drive.look()
        if answering:
            self._list_and_report(reading, read, committed, last=last)
            for stage in () if last else self.stages:
                stage.authority.widen()  # without self.lock: a running batch would wait for the call
        else:
            self.batches.report(last=last)  # while the authority is away, a timer may still need a batch
        self.heads.let_go()

    def _list_and_report(self, reading: Reading | None, read: int, committed: AfterBatch, *, last: bool) -> None:
        """List the sources if a reading, taken at the moment ``read``, needs it; then report."""
        now = self.clock()
        news = self.reader is not None and reading is not None and self.reader.progress.must_list(reading, now)
        heads, listed = None, self.heads.moment() > read
        if news or self._bookmarks.due(committed.batch, now, last=last):
            heads = self.heads.look(read)
        if not news and not listed:
            self.heads.forgive()
        elif news and heads is not None:
            assert self.reader is not None
            assert reading is not None
            newest = self.log.newest()
            planned = () if newest is None else newest.lines
            with self.lock:
                # A sidecar reads the source logs only up to the last commit. The process that it
                # follows may plan an uncommitted batch again from other rows, for example after the
                # checkpoint was restored from an older copy. read_to() reads no entry twice, so the
                # files of the first plan would count as read: the watermark would pass their rows.
                self.heads.read_to(committed.lines if self.batches.elsewhere else planned)
                self.reader.progress.observe(reading, heads, now, planned)
        # Record what was committed since the look began. In a sidecar, follow_commits() also raises
        # if the checkpoint was begun anew during the look: then read_to() above has read another
        # query's logs, and report() must not go by them. Without news it has read none, and
        # look() has called follow_commits() already.
        if news or not self.batches.elsewhere:
            self.batches.follow_commits()
        self._looked = self.progress.committed.batch
        self.batches.report(last=last)
        if heads is not None and self._bookmarks.due(committed.batch, now, last=last):
            # The bookmarks move after the report: a watermark must not wait for their fsyncs, and a
            # late bookmark only makes the writer of a source keep old batches longer.
            self._bookmarks.keep_up(committed.batch, now)
        if last:
            self.heads.fail_again()

    def waiting_for(self) -> tuple[str, ...]:
        """Return what the query waits for, in words."""
        waiting = () if self.reader is None else self.reader.progress.waiting_for()
        if self.batches.elsewhere:
            batch = self.progress.committed.batch
            last = f"the last batch of which is {batch}" if batch != NOTHING else "which has committed no batch"
            waiting = [f"the job that this sidecar follows, {last}, to read {name}" for name in waiting]
        holds = [name for stage in self.stages for name in stage.held_by()]
        # People read the texts after "waits for". So an error is put behind what the query needs,
        # as in "a checkpoint that answers: Input/output error".
        unread = self.unread and f"a checkpoint that answers: {self.unread}"
        lost = self.heads.lost and f"sources that can be listed: {self.heads.lost}"
        return (*filter(None, [unread, lost, self._held_by_spark()]), *holds, *waiting)

    def _held_by_spark(self) -> str:
        """Return why Spark's own state holds the watermark below the inputs; empty: it does not."""
        # In a driven query (with controls) Spark's own watermark follows the inputs: it is no hold.
        if self.reader is None or self.checked.controls:
            return ""
        committed, low = self.reader.progress.committed, self.reader.progress.reading.low
        if committed.spark_bound >= low:
            return ""
        if self.batches.elsewhere and committed.batch == NOTHING:
            return "the first committed batch: until then it is unknown what the query reads and holds"
        if committed.spark_bound == MIN:
            return "Spark's own watermark, which exists after the first batch with rows"
        bound = lowwater.Watermark(committed.spark_bound)
        return f"Spark's own watermark, which moves only with rows: less what Spark holds it is at {bound}"

    def fail(self, failure: BaseException) -> None:
        """Keep the first error that ended the run."""
        if self.failure is None and not self.stopping:
            self.failure = failure

    def cannot_read(self, failure: str) -> None:
        """Keep and report an error of reading the checkpoint; empty: it was read again."""
        self.unread = failure
        if failure:
            with self.lock:
                for stage in self.stages:
                    stage.authority.tell(self.waiting_for())

    @property
    def listens(self) -> bool:
        """True if the events that Spark delivers after its batches are needed."""
        return self.batches.observed or bool(self.checked.watermarks)

    def take(self, events: Iterable[BatchEvent]) -> None:
        """Process the events that Spark delivers after its batches.

        Only status, metrics and warnings depend on them.
        """
        batch_events = list(events)
        with self.lock:
            for event in batch_events:
                self.stages[0].count_untimed(event.batch, event.untimed)
        self.batches.take(batch_events)

    def end(self, failure: str) -> None:
        """Report to the authority that the run ends, and with which error; empty: in good order."""
        with self.lock:
            for stage in self.stages:
                stage.authority.end(failure)

    def close(self) -> None:
        """Stop reporting; the ranges hold their values."""
        self.batches.close()
        self.heads.close()
        for stage in self.stages:
            stage.authority.close()

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of the query's stages."""
        return tuple(stage.name for stage in self.stages)

    def status(self, name: str | None = None) -> Status:
        """Return the status of the run's stage of this name, by default the first.

        Raises ValueError if the query has no such stage.
        """
        with self.lock:
            stage = next((stage for stage in self.stages if name in (None, stage.name)), None)
            if stage is None:
                msg = f"{name!r} is no stage of this query; it has {', '.join(stage.name for stage in self.stages)}"
                raise ValueError(msg)
            progress, late = stage.progress, stage.late_row
            removals = self.batches.removals
            reading = progress.reading
            holding = progress.holding or stage.authority.complaint
            if self.failure is not None:
                holding = f"the query has ended: {self.failure!r}"
            return Status(
                batch=None if progress.committed.batch == NOTHING else progress.committed.batch,
                low=lowwater.Watermark(reading.low),
                reported=lowwater.Watermark(min(progress.values(reading), default=MAX)),
                holding=holding,
                waiting_for=self.waiting_for(),
                late_rows=stage.late_rows,
                untimed_rows=stage.untimed_rows,
                late_example=""
                if late is None
                else f"{late.where or lowwater.Watermark(late.micros)} in batch {late.batch}",
                ticks=self.batches.ticked,
                remembered_files=self.heads.remembered,
                removed_batches=sum(removal.batches for removal in removals),
                removed_bytes=sum(removal.size for removal in removals),
                removal_held_back=max((removal.held_back(time.time()) for removal in removals), default=0.0),
                ahead_rows=stage.ahead_rows,
                ahead_example="" if stage.ahead_row is None else f"{stage.ahead_row[1]} in batch {stage.ahead_row[0]}",
                late_range=None
                if late is None or late.handle is None or late.cut is None
                else KeyRange.of(late.handle, late.cut),
                unsent_rows=sum(rows.rows for rows in stage.unsent),
                unsent_since=min((rows.since / 1e6 for rows in stage.unsent if rows.since != MIN), default=None),
                unsent_oldest=min((lowwater.Watermark(rows.oldest) for rows in stage.unsent), default=None),
            )
