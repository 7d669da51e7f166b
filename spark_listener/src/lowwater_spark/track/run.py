"""One run of a tracked query: what a clock does between its batches, and what each of its stages may say.

How the run learns of its batches is the one thing in which two kinds of queries differ: a function of the user's is called in each
(:mod:`lowwater_spark.track.hook`); of a sink of Spark's own they are found in the commit log (:mod:`lowwater_spark.track.plain`).
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
from lowwater_spark.sources.bookmarks import Bookmarks
from lowwater_spark.sources.head import Heads
from lowwater_spark.sources.source_log import NOTHING
from lowwater_spark.track.authority import Authority
from lowwater_spark.track.events import BatchEvent
from lowwater_spark.track.hook import Hook
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.part import Part
from lowwater_spark.track.plain import Plain
from lowwater_spark.track.plan import Checked
from lowwater_spark.track.progress import Committed, Progress
from lowwater_spark.track.state import Place
from lowwater_spark.track.status import KeyRange, Status

__all__ = ["Controls", "Run"]


class Controls(Protocol):
    """What moves Spark's own watermark in a query (:mod:`lowwater_spark.drive`), as the run and its clock know it."""

    def news(self) -> bool:
        """Return whether a look is worth while: the inputs have moved.

        O(inputs), without the network.
        """
        ...

    @property
    def asked(self) -> bool:
        """Whether the query may ask, which nobody tells the clock of."""
        ...

    def hear(self) -> Iterator[object]:
        """Yield whenever an input has moved. Waits between, and ends with the run."""
        ...

    def tick(self) -> None:
        """One look of the clock. Raises what must end the query."""
        ...

    def silence(self) -> None:
        """Give out nothing more."""
        ...

    def close(self) -> None:
        """End the run. Only after the query has ended, or when it was never started."""
        ...


@dataclass(slots=True)
class Run:
    """The driver's side of one run.

    The clock's thread calls it, and anybody its :meth:`status`; a hook is called by Spark's.

    ``lock`` guards everything that two threads see, and what waits for the sources.
    """

    checkpoint: Location
    checked: Checked
    parts: Sequence[Part]
    """The stages of the query: what one reads of another comes before it."""
    batches: Hook | Plain
    """How it learns of its batches."""
    clock: Callable[[], float] = time.monotonic
    elsewhere: Manifest | None = None
    """The manifest of a checkpoint that is only looked at, which stands elsewhere; None: it has its
    own."""
    skip_removed: bool = False
    """Whether a new checkpoint begins at what is left of outputs whose old batches were removed."""
    log: CheckpointLog = field(init=False)
    failure: BaseException | None = field(default=None, init=False)
    unread: str = field(default="", init=False)
    """What could not be read of the checkpoint when the clock looked last, or by the batch that
    begins; empty: nothing."""
    stopping: bool = field(default=False, init=False)
    """Whether the user has asked for the end: a batch that is interrupted then has not failed."""
    manifest: Manifest = field(init=False)
    heads: Heads = field(init=False)
    lock: threading.RLock = field(init=False)
    reader: Part | None = field(init=False)
    """The stage whose reading of the inputs is the query's W; None when all are injectors, or read
    nothing else."""
    drive: Controls | None = field(default=None, init=False)
    """What moves the controls of the query, from when on it may: in the same looks."""
    wake: threading.Event = field(default_factory=threading.Event, init=False)
    """Set when there may be news: the clock need not wait any longer."""
    _bookmarks: Bookmarks = field(init=False)
    _looked: int = field(default=NOTHING, init=False)
    """The newest committed batch that a look of the clock has found, whether or not anybody could
    be told."""

    _ask: float = field(default=0.0, init=False)
    """When the commit log may be asked again whether there is news."""

    def __post_init__(self) -> None:
        self.log = CheckpointLog(self.checkpoint)
        self.manifest = Manifest(self.checkpoint) if self.elsewhere is None else self.elsewhere
        self.manifest.begin(self.authority.registration.ordinal)
        for part in self.parts:
            part.place = Place(self.manifest, part.home)
        self.heads = Heads([*Heads.of(self.manifest, self.checked.sources).sources, *self.batches.open(self)])
        self.lock = self.heads.lock
        self._bookmarks = Bookmarks(
            self.manifest,
            self.heads.outputs,
            self.authority.full_name,
            self.authority.registration.identity,
            skip_removed=self.skip_removed,
        )
        self.reader = next((part for part in self.parts if part.reads), None)
        for part, state in zip(self.parts, self.batches.durable(), strict=True):
            part.open(self.heads.sources, state)
        self.heads.settle(self.lines)

    @property
    def authority(self) -> Authority:
        """The first stage's side of the protocol."""
        return self.parts[0].authority

    @property
    def progress(self) -> Progress:
        """How the first stage stands."""
        return self.parts[0].progress

    @property
    def lines(self) -> Sequence[Line]:
        """How far the committed batches reach."""
        return self.progress.committed.lines

    # -- start -------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Register and claim, from where the durable state stands.

        Raises what the authority refuses; degrades when it is away.
        """
        for part in self.parts:
            # What a stage reads is registered before it. The calls are made without the lock: a
            # batch does not wait for them.
            if part.authority.lease is None and (part.authority.problem or not part.claim(self.reader, self.lock)):
                break
        self.batches.claimed()

    def start(self) -> None:
        """Claim, and then read the durable state: until the claim an older run may still have written it."""
        self.heads.look(self.heads.moment(self.lines))
        # Who is refused claims nothing.
        self._bookmarks.check(self.progress.committed.batch)
        self.claim()
        self.manifest.look()
        with self.lock:
            for part, state in zip(self.parts, self.batches.durable(), strict=True):
                part.restart(state)
            for part in self.parts:
                if part.authority.registered is not None:
                    part.check_inputs(part.authority.registered, self.reader)
            self.heads.settle(self.lines)
        self._bookmarks.begin(self.progress.committed.batch, self.clock())
        # The first batch may use what is known now, if it reads all that is there now.
        self.tick()

    # -- the clock ---------------------------------------------------------------------------------

    def news(self) -> bool:
        """Return whether a look is worth while: a batch has been committed, or the inputs have moved. O(inputs), without the network."""
        return self.committed() or (self.reader is not None and self.reader.authority.news())

    def committed(self) -> bool:
        """Return whether a batch has been committed since the last look.

        At most one or two calls on the file system.
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
            return True  # a look finds out what is wrong, and says so

    def pace(self) -> float:
        """Return how many seconds may pass until the next glance for news.

        Of inputs that move, and of what a hook knows, the clock is told.
        """
        return self.batches.pace()

    @property
    def idle(self) -> bool:
        """Whether nothing is waited for that nobody tells of: files that are to be listed again or cannot be, an authority that is away, a time that comes, a question."""
        return not (
            self.unread
            or self.heads.lost
            or self.batches.timed
            or (self.drive is not None and self.drive.asked)
            or any(
                part.authority.problem or part.authority.lease is None or part.progress.holding or part.progress.waits
                for part in self.parts
            )
        )

    def hear(self) -> Sequence[Iterator[object]]:
        """Return what yields whenever an input has moved, each to be followed by a thread of its own. Raises Closed."""
        heard = [] if self.reader is None else [self.reader.authority.hear()]
        return heard if self.drive is None else [*heard, self.drive.hear()]

    def tick(self, *, last: bool = False) -> None:
        """One look of the clock: take notice of what is committed, read the inputs, list the sources, report, and ask for a batch if one is needed.

        What drives the query reads its inputs after them and before the sources are listed, so one listing serves both. ``last``: the query has ended.
        What it has committed counts; that it ended says nothing of what is still to come.
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
            for part in () if last else self.parts:
                part.authority.widen()  # without the lock: a batch does not wait for the call
        else:
            self.batches.report(last=last)  # timers that are due do not wait for the authority
        self.heads.let_go()

    def _read(self) -> tuple[bool, Reading | None]:
        """Take notice of what is committed, and read the inputs.

        Return whether the authority answers, and the reading if there is one.
        """
        self.batches.settle()
        # Whatever comes of this look: what it cannot tell waits for the next one, and is no news
        # until then.
        self._looked = self.progress.committed.batch
        answering = [part for part in self.parts if part.authority.probe()]
        if not answering:
            return False, None
        if any(part.authority.lease is None for part in self.parts):
            self.claim()
        return True, None if self.reader is None else self.reader.authority.read()

    def _look(self, reading: Reading | None, read: int, committed: Committed, *, last: bool) -> None:
        """List the sources if that is needed for a reading, which was taken at the moment ``read``, and report."""
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
                # What another process has planned it may plan anew, from other rows.
                self.heads.read_to(committed.lines if self.batches.elsewhere else planned)
                self.reader.progress.observe(reading, heads, now, planned)
        if news or not self.batches.elsewhere:  # of another process's checkpoint nothing was read since
            self.batches.settle()
        self._looked = self.progress.committed.batch
        self.batches.report(last=last)
        if heads is not None and self._bookmarks.due(committed.batch, now, last=last):
            # Only now: what is reported does not wait for it.
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
        held = [name for part in self.parts for name in part.held_by()]
        # What is waited for, and then the error: an error by itself is nothing that anybody waits
        # for.
        unread = self.unread and f"a checkpoint that answers: {self.unread}"
        lost = self.heads.lost and f"sources that can be listed: {self.heads.lost}"
        return (*filter(None, [unread, lost, self._held_by_spark()]), *held, *waiting)

    def _held_by_spark(self) -> str:
        """Return why what Spark holds keeps the watermark below that of the inputs; empty: it does not."""
        if (
            self.reader is None or self.checked.controls
        ):  # what is driven follows the inputs, and closes what it holds by them
            return ""
        committed, low = self.reader.progress.committed, self.reader.progress.reading.low
        if committed.spark_bound >= low:
            return ""
        if self.batches.elsewhere and committed.batch == NOTHING:
            return "the first committed batch: before it nobody knows what the query reads and holds"
        if committed.spark_bound == MIN:
            return "Spark's own watermark, which there is after the first batch with rows"
        bound = lowwater.Watermark(committed.spark_bound)
        return f"Spark's own watermark, which moves with rows alone: with what Spark holds it is at {bound}"

    def fail(self, failure: BaseException) -> None:
        """Remember what ended the run: the first thing that did."""
        if self.failure is None and not self.stopping:
            self.failure = failure

    def cannot_read(self, failure: str) -> None:
        """Remember what could not be read of the checkpoint, for people, and tell the authority; empty: it can be read again."""
        self.unread = failure
        if failure:
            with self.lock:
                for part in self.parts:
                    part.authority.tell(self.waiting_for())

    def triggered_every(self, seconds: float) -> None:
        """Learn how long Spark waits from one batch to the next by the query's trigger.

        Without the lock, which a batch may hold for long.
        """
        self.batches.triggered_every(seconds)

    @property
    def listens(self) -> bool:
        """Whether what Spark says of the batches afterwards is worth asking for."""
        return self.batches.observed or bool(self.checked.watermarks)

    def take(self, events: Iterable[BatchEvent]) -> None:
        """Take notice of what Spark says of its batches afterwards.

        Nothing depends on it but what is shown.
        """
        told = list(events)
        with self.lock:
            for event in told:
                self.parts[0].count_untimed(event.batch, event.untimed)
        self.batches.take(told)

    def end(self, failure: str) -> None:
        """Tell the authority that the run ends, and by which error; empty: in good order."""
        with self.lock:
            for part in self.parts:
                part.authority.end(failure)

    def close(self) -> None:
        """Stop reporting; the ranges hold where they stand."""
        self.batches.close()
        self.heads.close()
        for part in self.parts:
            part.authority.close()

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of its stages."""
        return tuple(part.name for part in self.parts)

    def status(self, name: str | None = None) -> Status:
        """Return how a stage of the run stands: the first, or the one of this name.

        Raises ValueError for a name that is none.
        """
        with self.lock:
            part = next((part for part in self.parts if name in (None, part.name)), None)
            if part is None:
                msg = f"{name!r} is no stage of this query; it has {', '.join(part.name for part in self.parts)}"
                raise ValueError(msg)
            progress, late = part.progress, part.late_row
            removals = self.batches.removals
            reading = progress.reading
            holding = progress.holding or part.authority.complaint
            if self.failure is not None:
                holding = f"the query has ended: {self.failure!r}"
            return Status(
                batch=None if progress.committed.batch == NOTHING else progress.committed.batch,
                low=lowwater.Watermark(reading.low),
                reported=lowwater.Watermark(min(progress.values(reading), default=MAX)),
                holding=holding,
                waiting_for=self.waiting_for(),
                late_rows=part.late_rows,
                untimed_rows=part.untimed_rows,
                late_example=""
                if late is None
                else f"{late.where or lowwater.Watermark(late.micros)} in batch {late.batch}",
                ticks=self.batches.ticked,
                remembered_files=self.heads.remembered,
                removed_batches=sum(each.batches for each in removals),
                removed_bytes=sum(each.size for each in removals),
                removal_held_back=max((each.held_back(time.time()) for each in removals), default=0.0),
                ahead_rows=part.ahead_rows,
                ahead_example="" if part.ahead_row is None else f"{part.ahead_row[1]} in batch {part.ahead_row[0]}",
                late_range=None
                if late is None or late.handle is None or late.cut is None
                else KeyRange.of(late.handle, late.cut),
                unsent_rows=sum(each.rows for each in part.unsent),
                unsent_since=min((each.since / 1e6 for each in part.unsent if each.since != MIN), default=None),
                unsent_oldest=min((lowwater.Watermark(each.oldest) for each in part.unsent), default=None),
            )
