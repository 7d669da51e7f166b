"""Drives Spark's own watermark by the low watermark of the inputs: the clock's side of ``drive()``.

A value W may be given out when everything that stood in the sources when W was read, head(W), lies
within what Spark has *planned* already: say up to batch N. The control row then comes in batch N +
1 at the earliest, Spark's watermark is W from the batch after that, and it drops rows by it one
batch later still. All rows below W are in batches up to N. Rate limits, ``availableNow``, replays
and stale listings only make W wait; nothing else needs to be known of them.

That is so where a plan names what will be read, as one of files does. One of Kafka names offsets,
and until they are read other rows may stand under them. There batch N must be *committed*, and
confirmed by the run: the topics are still those that were pinned. The control row comes in batch N
+ 1 at the earliest either way.

Everything that must survive stands in Spark's offset log, as the control's offset. A run begins
from the newest planned one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import lowwater
from lowwater import errors
from lowwater.watermark import MIN
from lowwater_spark.checkpoint.durable import sync_directory, sync_file
from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.location import Location, local
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.drive.late import LateRule, open_late, reserve_late, windows_of
from lowwater_spark.drive.plan import (
    Steps,
    check_checkpoint,
    check_driven,
    check_ending,
    given_offsets,
    holdback_of,
    steps_for,
)
from lowwater_spark.errors import AWAY
from lowwater_spark.sources.base import Line
from lowwater_spark.sources.control import Control, Drive, Offset, Told
from lowwater_spark.sources.head import Candidates, Heads
from lowwater_spark.sources.source_log import NOTHING
from lowwater_spark.track.authority import Authority, Registration
from lowwater_spark.track.plan import Checked
from lowwater_spark.track.progress import RELIST

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Driving", "WatermarkLost", "is_approximate"]

logger = logging.getLogger("lowwater.spark")

_PPM: Final = 1_000_000


class WatermarkLost(RuntimeError):
    """Spark's watermark is not where its control rows have put it.

    Going on would drop rows, or keep windows for ever.
    """


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was read of the inputs at one moment."""

    values: Mapping[int, int]
    """By control: where its watermark may stand, milliseconds."""
    incarnations: Mapping[str, int]
    """Of each registered input."""


@dataclass(slots=True)
class _Driven:
    """One control of the query."""

    drive: Drive
    steps: Steps
    control: Control
    told: Told = field(default_factory=lambda: Told(Offset()))

    def value(self, each: Mapping[str, lowwater.WatermarkView]) -> int:
        """Return the value that its inputs allow; ``each`` is all that was read, by the names asked for."""
        return self.steps.value(min(self._allows(each[name]) for name in self.drive.inputs))

    def _allows(self, view: lowwater.WatermarkView) -> int:
        if self.drive.share is not None:
            return view.at_share(round(self.drive.share * _PPM)).micros
        if self.drive.budget is not None:
            return view.at_budget(round(self.drive.budget * _PPM)).micros
        # What nobody promises may pass rows that are still on their way.
        return MIN if view.estimated else view.low.micros


@dataclass(slots=True)
class Driving:
    """Moves the controls of one query. :meth:`of` makes it, the query's clock calls :meth:`tick`.

    A run begins in two steps. :meth:`reserve` comes before the claim and finds what would be
    refused; :meth:`open` comes after it, since until then an older run may still plan a batch, and
    reads and tells. Nothing is given out while the run has no lease: until the authority has taken
    the registration, nobody has said that the inputs are what this query may follow.

    The sources are the run's, and so is the lock of what waits for them.

    Costs per tick: a read of each control's question, of the newest offset and of the last commit;
    a look at the sources whenever a reading allows a higher value, which the run has as well.
    """

    checkpoint: Location
    checked: Checked
    drives: Mapping[int, Drive]
    pinned: bool = False
    """Whether the query ends by itself: then what is read of the inputs at the start is all that it
    can reach."""
    clock: Callable[[], float] = time.monotonic
    log: CheckpointLog = field(init=False)
    _heads: Heads = field(init=False)
    _candidates: Candidates[_Seen] = field(init=False)
    _authority: Authority | None = field(default=None, init=False)
    _reader: lowwater.InputReader | None = field(default=None, init=False)
    """Of all inputs of all controls."""
    _guessed: set[str] = field(default_factory=set, init=False)
    """The estimated inputs of frames that are not approximate, as far as they are known."""
    _driven: dict[int, _Driven] = field(default_factory=dict, init=False)
    _incarnations: dict[str, int] = field(default_factory=dict, init=False)
    _seen: _Seen | None = field(default=None, init=False)
    """The newest reading that was listed for."""
    _last: _Seen | None = field(default=None, init=False)
    """What was read of the inputs last."""
    _listed: float = field(default=0.0, init=False)
    _synced: int = field(default=NOTHING, init=False)
    """The last batch whose plan is durable."""
    _followed: int = field(default=NOTHING, init=False)
    """The last committed batch after which Spark's watermark was looked at."""

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        frame: DataFrame,
        checked: Checked,
        checkpoint: Location,
        inputs: Sequence[str],
        trigger: Mapping[str, Any],
    ) -> Driving | None:
        """Return what drives a query, None when nothing in it is driven. Touches nothing.

        Raises Unsupported and ValueError for a query that cannot be driven, CheckpointMismatch for
        a checkpoint that is not its own.
        """
        from lowwater_spark.drive.frame import drive_of

        drives = {number: drive_of(control.directory) for number, control in checked.controls.items()}
        if drives:
            if any(drive.late is not None for drive in drives.values()):
                # The tasks read there by which watermark Spark drops rows.
                fix = "Put it on a local file system or NFS, or drive the query without late=."
                local(checkpoint, "The checkpoint of a query that keeps its late rows in", fix)
            check_ending(trigger)
            check_driven(spark, frame, checked, drives, inputs)
        check_checkpoint(checkpoint, checked.sources)
        return cls(checkpoint, checked, drives, pinned=bool(trigger.get("availableNow"))) if drives else None

    def __post_init__(self) -> None:
        self.log = CheckpointLog(self.checkpoint)

    # -- a run -------------------------------------------------------------------------------------

    def reserve(self, run: Registration, heads: Heads) -> None:
        """Take what the query must have for itself, before the claim.

        Call :meth:`close` also when it raises. ``heads`` are the run's.

        Raises ValueError when the frame, or its directory for late rows, is in use by another
        query, CheckpointMismatch when a frame follows an input that the checkpoint's watermark
        knows nothing of.
        """
        self._heads, self._candidates = heads, Candidates(heads.sources)
        given_offsets(self.log, self.drives)
        for number, drive in self.drives.items():
            control = Control(drive.directory)
            control.reserve()
            self._driven[number] = _Driven(drive, steps_for(self.checked, drive), control)
            if drive.late is not None:
                reserve_late(drive, run.identity)

    def open(self, authority: Authority) -> None:
        """Begin the run, after the claim and before the query starts: from then on its sources may ask.

        Raises IncarnationChanged when an input is not in the incarnation that the checkpoint's watermark was read from, and what a first read of
        the authority raises.
        """
        self._authority = authority
        given = given_offsets(self.log, self.drives)
        for offset in given.values():
            self._incarnations.update(offset.incarnations)
        committed = self.log.last_committed()
        several = len(self.drives) > 1
        run = authority.registration.ordinal if several else 0
        for number, driven in self._driven.items():
            if driven.drive.late is not None:
                windows = [operator.window for operator in self.checked.operators if operator.window is not None]
                rule = LateRule(str(self.checkpoint), windows_of(windows), driven.steps.before)
                open_late(driven.drive, rule, NOTHING if committed is None else committed)
            driven.told = Told(Offset(given[number].watermark, given[number].incarnations, run))
            driven.control.tell(driven.told)
        self._reader = authority.follow(sorted({name for drive in self.drives.values() for name in drive.inputs}))
        # The first batch may carry what is known now, if nothing is there that it could have
        # passed.
        self.tick()

    def silence(self) -> None:
        """Tell the sources nothing more: one that is asked again fails."""
        for driven in self._driven.values():
            driven.control.silence()

    def close(self) -> None:
        """End the run, and leave the frames to other queries.

        Only after the query has ended, or when it was never started.
        """
        for driven in self._driven.values():
            driven.control.close()
        self._driven.clear()
        if self._reader is not None:
            self._reader.close()

    def holdback(self, window: timedelta | None) -> int:
        """Return the event time by which a stage stays below its inputs by design, microseconds.

        From :meth:`reserve` on.

        ``window``: width to which the stage rounds its stamps down.
        """
        return max(holdback_of(self.checked, each.steps, window) for each in self._driven.values())

    # -- the clock ---------------------------------------------------------------------------------

    def news(self) -> bool:
        """Return whether the inputs allow another value than when they were read last.

        O(inputs), without the network.
        """
        last = self._last
        return self._follows and self._read() not in (None, last)

    @property
    def asked(self) -> bool:
        """Whether the query may ask: one that ends by itself does, before it ends."""
        return self.pinned

    def hear(self) -> Iterator[object]:
        """Yield whenever an input has moved. Waits between, and ends with the run."""
        assert self._reader is not None
        return self._reader.watch()

    @property
    def _follows(self) -> bool:
        claimed = self._authority is not None and self._authority.lease is not None
        return claimed and (self._seen is None or not self.pinned)

    def tick(self) -> None:
        """One look of the clock.

        Raises IncarnationChanged, WatermarkLost, and what the client raises once it is closed.

        While the authority is away, nothing new is read, and what was read before is still given
        out.
        """
        # First the questions: what is answered must have been found out after them.
        asked = {number: driven.control.asked() for number, driven in self._driven.items()}
        self._check_followed()
        if self._follows:
            self._look()
        lags = self._lags()
        reached = self._reached()
        for number, driven in self._driven.items():
            offset = driven.told.offset
            if reached is not None and reached.values[number] > offset.watermark:
                incarnations = {name: reached.incarnations[name] for name in driven.drive.inputs}
                offset = Offset(reached.values[number], incarnations, offset.run)
            final = self.pinned and self._seen is not None and self._seen.values[number] <= offset.watermark
            # A batch that was committed before the question may be what the value waits for.
            told = Told(offset, driven.told.answered if lags else asked[number], final)
            if told != driven.told:
                driven.control.tell(told)
                driven.told = told

    def _look(self) -> None:
        """Read the inputs, and then list the sources if that may bring a higher value: never the other way round."""
        seen, read = self._read(), self._heads.moment()
        if seen is None:
            return
        now = self.clock()
        higher = self._seen is None or any(value > self._seen.values[number] for number, value in seen.values.items())
        if not higher and not (len(self._candidates) > 0 and now - self._listed >= RELIST):
            return
        heads = self._heads.look(read)
        if heads is None:
            return
        with self._heads.lock:
            if higher:
                self._candidates.add(seen, heads)
                self._seen = seen
            else:
                self._candidates.relist(heads)
        self._listed = now

    def _read(self) -> _Seen | None:
        """Read all inputs at once; None while the authority has said nothing of them."""
        assert self._reader is not None
        try:
            seen = self._reader.read()
        except AWAY as failure:
            logger.debug("the inputs of a driven query cannot be read: %s", failure)
            return None
        if math.isinf(seen.stale_for):
            return None
        guessed = {name for name in self._promised if seen.each[name].estimated} - self._guessed
        if guessed:
            self._guessed |= guessed
            logger.warning("a driven frame holds: nobody promises the watermark of %s", ", ".join(sorted(guessed)))
        values = {number: driven.value(seen.each) for number, driven in self._driven.items()}
        incarnations = {name: view.incarnation for name, view in seen.each.items() if view.registered}
        for name, incarnation in incarnations.items():
            if self._incarnations.setdefault(name, incarnation) != incarnation:
                msg = (
                    f"{name} was reset: what this query has read and holds belongs to an earlier incarnation of it. Start from a new checkpoint, "
                    "with adopt=True."
                )
                raise errors.IncarnationChanged(msg, metadata={"computation": name})
        self._last = _Seen(values, incarnations)
        return self._last

    @property
    def _promised(self) -> set[str]:
        """The inputs whose low watermark is followed."""
        return {name for drive in self.drives.values() if not drive.guesses for name in drive.inputs}

    def _reached(self) -> _Seen | None:
        """Return the newest reading whose head is planned, of Kafka committed; the plans that it stands on are durable then."""
        batch, lines = self.read_plans()
        lines = self._heads.counted(lines)
        with self._heads.lock:
            reached = self._candidates.newest_reached(lines, forget=False)
        if batch is not None and reached is not None:
            self._sync(batch)
        with self._heads.lock:
            # Only now: what cannot be synced yet is asked for again.
            return self._candidates.newest_reached(lines, forget=True)

    def read_plans(self) -> tuple[int | None, Sequence[Line]]:
        """Read the source logs as far as batches are planned; return the newest of these, and how far it goes."""
        plan = self.log.newest()
        lines: Sequence[Line] = () if plan is None else plan.lines
        with self._heads.lock:
            self._heads.read_to(lines)
        return None if plan is None else plan.batch, lines

    def _lags(self) -> bool:
        """Return whether a batch is committed that counts for a source only once the run has settled it, which it has not."""
        batch = self.log.last_committed()
        plan = None if batch is None else self.log.plan(batch)
        return plan is not None and self._heads.lags(plan.lines)

    def _sync(self, newest: int) -> None:
        """Make the plans up to ``newest`` durable: a file that a lost plan had taken would be read again, below the watermark."""
        if newest <= self._synced:
            return
        for plan in self.log.plans_after(self._synced, newest):
            for file in self._heads.evidence(self.log, plan):
                with contextlib.suppress(FileNotFoundError):  # Spark has cleaned up: newer entries stand in for it
                    sync_file(file)
                sync_directory(file.parent)
        self._synced = newest

    # -- does Spark follow? ------------------------------------------------------------------------

    def _check_followed(self) -> None:
        """Compare Spark's watermark after the last committed batch with the rows that the batches up to it have carried."""
        batch = self.log.last_committed()
        if batch is None or batch == self._followed:
            return
        plan, found = self.log.plan(batch), self._next_watermark(batch)
        self._followed = batch
        if plan is None or found is None:
            return
        offsets = [Offset.of_line(plan.lines[number]) for number in self.drives]
        expected = min(offset.watermark for offset in offsets)
        # Of several controls Spark knows only those that have given a row in this run.
        complete = len(offsets) == 1 or all(
            offset.run == driven.told.offset.run for offset, driven in zip(offsets, self._driven.values(), strict=True)
        )
        if found > expected or (complete and found < expected):
            msg = (
                f"after batch {batch} Spark's watermark is {found} ms, and not {expected} ms as its control rows say: something in the query's plan "
                "moves it, or holds the rows back. The query ends before it drops rows or keeps windows for ever; report its plan."
            )
            raise WatermarkLost(msg)

    def _next_watermark(self, batch: int) -> int | None:
        """Return the watermark that Spark has after a committed batch, milliseconds; None where its entry is gone or says nothing."""
        try:
            lines = lines_of((self.checkpoint / "commits" / str(batch)).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        entry = json.loads(lines[1]) if len(lines) > 1 else {}
        return int(entry["nextBatchWatermarkMs"]) if "nextBatchWatermarkMs" in entry else None


def is_approximate(driving: Driving | None) -> bool:
    """Return whether a query follows a heuristic watermark or a lateness budget: what it writes is then not exact, and registered as estimated."""
    return driving is not None and any(drive.guesses for drive in driving.drives.values())
