"""Drives Spark's own watermark by the low watermark of the inputs: the clock's side of ``drive()``.

A value W may be given out when Spark has *planned* everything that was in the sources when W was
read, head(W), say up to batch N. The control row then comes in batch N + 1 at the earliest. Spark's
watermark is W from the batch after that, and drops rows by W one batch later still. All rows below
W are in batches up to N. Rate limits, ``availableNow``, replays and stale listings only delay W.

That holds where a plan names what will be read, as one of files does. A plan of Kafka names
offsets, and until they are read other rows may get them. There batch N must be *committed*, and the
run must confirm that the topics are still the pinned ones. The control row comes in batch N + 1 at
the earliest either way.

Everything that must survive is in Spark's offset log, as the control's offset. A run begins from
the newest planned one.
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
from lowwater_spark.sources.control import ClockValue, Control, Drive, Offset
from lowwater_spark.sources.files.source_log import NOTHING
from lowwater_spark.sources.head import Candidates, Heads
from lowwater_spark.track.plan.checked import Checked
from lowwater_spark.track.run.authority import Authority, Registration
from lowwater_spark.track.run.progress import RELIST

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Driving", "WatermarkLost", "is_approximate"]

logger = logging.getLogger("lowwater.spark")

_PPM: Final = 1_000_000


class WatermarkLost(RuntimeError):
    """Spark's watermark differs from its control rows. Going on would lose rows or windows."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The inputs as they were read at one moment."""

    values: Mapping[int, int]
    """Value that each control may have, milliseconds, by control."""
    incarnations: Mapping[str, int]
    """Incarnation of each registered input."""


@dataclass(slots=True)
class _Driven:
    """One control of the query."""

    drive: Drive
    steps: Steps
    control: Control
    newest: ClockValue = field(default_factory=lambda: ClockValue(Offset()))

    def value(self, views: Mapping[str, lowwater.WatermarkView]) -> int:
        """Return the value that the control's inputs allow; ``views`` has all inputs, by name."""
        return self.steps.value(min(self._allows(views[name]) for name in self.drive.inputs))

    def _allows(self, view: lowwater.WatermarkView) -> int:
        if self.drive.share is not None:
            return view.at_share(round(self.drive.share * _PPM)).micros
        if self.drive.budget is not None:
            return view.at_budget(round(self.drive.budget * _PPM)).micros
        # The watermark of an estimated input may pass rows that are still on their way, and Spark
        # would drop these as late. So the control holds.
        return MIN if view.estimated else view.low.micros


@dataclass(slots=True)
class Driving:
    """Moves the controls of one query. :meth:`of` makes it, the query's clock calls :meth:`look`.

    A run begins in two steps. :meth:`reserve` comes before the claim, and finds what would be
    refused. :meth:`open` comes after the claim, reads, and sets the controls: until the claim an
    older run may still plan a batch. Without a lease no value is given out, because only the
    authority's answer confirms that the inputs are what this query may follow.

    The sources belong to the run, and so does the lock of readings that wait for them.

    Each look reads every control's question, the newest offset and the last commit. It also lists
    the sources when a reading allows a higher value; the run uses that listing as well.
    """

    checkpoint: Location
    checked: Checked
    drives: Mapping[int, Drive]
    pinned: bool = False
    """True for a query that ends by itself: it follows only the inputs as read at its start."""
    clock: Callable[[], float] = time.monotonic
    log: CheckpointLog = field(init=False)
    _heads: Heads = field(init=False)
    _candidates: Candidates[_Reading] = field(init=False)
    _authority: Authority | None = field(default=None, init=False)
    _reader: lowwater.InputReader | None = field(default=None, init=False)
    """Reader of all inputs of all controls."""
    _guessed: set[str] = field(default_factory=set, init=False)
    """Estimated inputs of frames that are not approximate, about which a warning was logged."""
    _driven: dict[int, _Driven] = field(default_factory=dict, init=False)
    _incarnations: dict[str, int] = field(default_factory=dict, init=False)
    _listed_reading: _Reading | None = field(default=None, init=False)
    """The newest reading for which the sources were listed."""
    _last_reading: _Reading | None = field(default=None, init=False)
    """The newest reading of the inputs."""
    _listed: float = field(default=0.0, init=False)
    """Time of the last listing of the sources, in seconds of ``clock``."""
    _synced: int = field(default=NOTHING, init=False)
    """The last batch whose plan is durable."""
    _followed: int = field(default=NOTHING, init=False)
    """The last committed batch after which Spark's watermark was checked."""

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
        """Return the driver of a query, None when the query has no control. Changes nothing.

        Raises Unsupported and ValueError for a query that cannot be driven, CheckpointMismatch for
        another query's checkpoint.
        """
        from lowwater_spark.drive.frame import drive_of

        drives = {number: drive_of(control.directory) for number, control in checked.controls.items()}
        if drives:
            if any(drive.late is not None for drive in drives.values()):
                # Each task opens a file of the checkpoint, which says by which watermark Spark
                # drops rows. So the checkpoint must be a local path.
                fix = "Put it on a local file system or NFS, or drive the query without late=."
                local(checkpoint, "The checkpoint of a query that keeps its late rows in", fix)
            check_ending(spark, trigger)
            check_driven(spark, frame, checked, drives, inputs)
        check_checkpoint(checkpoint, checked.sources)
        return cls(checkpoint, checked, drives, pinned=bool(trigger.get("availableNow"))) if drives else None

    def __post_init__(self) -> None:
        self.log = CheckpointLog(self.checkpoint)

    # -- a run -------------------------------------------------------------------------------------

    def reserve(self, run: Registration, heads: Heads) -> None:
        """Reserve what the query needs for itself, before the claim.

        Call :meth:`close` also when it raises. ``heads`` are the run's. Raises ValueError when
        another query uses the frame, or its directory for late rows; CheckpointMismatch when a
        frame follows an input that is new to the checkpoint.
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
        """Begin the run, after the claim. From now on the query's control sources may ask.

        Raises IncarnationChanged when an input's incarnation is not the one that the checkpoint's
        watermark was read from, and what a first read of the authority raises.
        """
        self._authority = authority
        offsets = given_offsets(self.log, self.drives)
        for offset in offsets.values():
            self._incarnations.update(offset.incarnations)
        committed = self.log.last_committed()
        several = len(self.drives) > 1
        run = authority.registration.ordinal if several else 0
        for number, driven in self._driven.items():
            if driven.drive.late is not None:
                windows = [operator.window for operator in self.checked.operators if operator.window is not None]
                rule = LateRule(str(self.checkpoint), windows_of(windows), driven.steps.before)
                open_late(driven.drive, rule, NOTHING if committed is None else committed)
            driven.newest = ClockValue(Offset(offsets[number].watermark, offsets[number].incarnations, run))
            driven.control.write_value(driven.newest)
        self._reader = authority.follow(sorted({name for drive in self.drives.values() for name in drive.inputs}))
        # After this look the first batch already has the inputs' present value, unless the sources
        # have unread rows. Without it the first batch would have that of the last run.
        self.look()

    def silence(self) -> None:
        """Give the sources no more values: a source that asks again fails."""
        for driven in self._driven.values():
            driven.control.silence()

    def close(self) -> None:
        """End the run, and release the frames for other queries.

        Call it only after the query has ended, or if it was never started.
        """
        for driven in self._driven.values():
            driven.control.close()
        self._driven.clear()
        if self._reader is not None:
            self._reader.close()

    def holdback(self, window: timedelta | None) -> int:
        """Return how far a stage stays below its inputs by design, microseconds of event time.

        ``window`` is the width to which the stage rounds its stamps down. Call it after
        :meth:`reserve`.
        """
        return max(holdback_of(self.checked, driven.steps, window) for driven in self._driven.values())

    # -- the clock ---------------------------------------------------------------------------------

    def news(self) -> bool:
        """Return True if the inputs allow another value than last time. O(inputs), no network."""
        last = self._last_reading
        return self._follows and self._read() not in (None, last)

    @property
    def asked(self) -> bool:
        """True for a query that ends by itself: before that, its control sources ask the clock."""
        return self.pinned

    def hear(self) -> Iterator[object]:
        """Yield whenever an input has moved. Blocks in between, and ends with the run."""
        assert self._reader is not None
        return self._reader.watch()

    @property
    def _follows(self) -> bool:
        claimed = self._authority is not None and self._authority.lease is not None
        return claimed and (self._listed_reading is None or not self.pinned)

    def look(self) -> None:
        """Read the inputs once, and move the controls if that is safe.

        While the authority is away, earlier readings may still be given out. Raises
        IncarnationChanged, WatermarkLost, and what the client raises once it is closed.
        """
        # With availableNow a control source asks for a value that is chosen after its question, and
        # lets the query end by it. So the questions are read before the inputs: a value from inputs
        # that were read before could end the query though they had moved on.
        questions = {number: driven.control.asked() for number, driven in self._driven.items()}
        self._check_followed()
        if self._follows:
            self._read_and_list()
        lags = self._lags()
        reached = self._reached()
        for number, driven in self._driven.items():
            offset = driven.newest.offset
            if reached is not None and reached.values[number] > offset.watermark:
                incarnations = {name: reached.incarnations[name] for name in driven.drive.inputs}
                offset = Offset(reached.values[number], incarnations, offset.run)
            final = (
                self.pinned
                and self._listed_reading is not None
                and self._listed_reading.values[number] <= offset.watermark
            )
            # While ``lags`` is true, the newest committed batch does not count yet. Once it counts,
            # the value may be higher. If questions were answered before, the query could end
            # without that value, and its last windows would stay open.
            value = ClockValue(offset, driven.newest.answered if lags else questions[number], final)
            if value != driven.newest:
                driven.control.write_value(value)
                driven.newest = value

    def _read_and_list(self) -> None:
        """Read the inputs, then list the sources if the value may rise; never in another order."""
        reading, moment = self._read(), self._heads.moment()
        if reading is None:
            return
        now = self.clock()
        higher = self._listed_reading is None or any(
            value > self._listed_reading.values[number] for number, value in reading.values.items()
        )
        if not higher and not (len(self._candidates) > 0 and now - self._listed >= RELIST):
            return
        heads = self._heads.look(moment)
        if heads is None:
            return
        with self._heads.lock:
            if higher:
                self._candidates.add(reading, heads)
                self._listed_reading = reading
            else:
                self._candidates.relist(heads)
        self._listed = now

    def _read(self) -> _Reading | None:
        """Read all inputs at once; None while the authority has told nothing about them."""
        assert self._reader is not None
        try:
            views = self._reader.read()
        except AWAY as failure:
            logger.debug("the inputs of a driven query cannot be read: %s", failure)
            return None
        if math.isinf(views.stale_for):
            return None
        estimated = {name for name in self._promised if views.each[name].estimated} - self._guessed
        if estimated:
            self._guessed |= estimated
            logger.warning("a driven frame holds, because its inputs are estimated: %s", ", ".join(sorted(estimated)))
        values = {number: driven.value(views.each) for number, driven in self._driven.items()}
        incarnations = {name: view.incarnation for name, view in views.each.items() if view.registered}
        for name, incarnation in incarnations.items():
            if self._incarnations.setdefault(name, incarnation) != incarnation:
                msg = (
                    f"{name} was reset: what this query has read and holds belongs to an earlier incarnation of it. Start from a new checkpoint, "
                    "with adopt=True."
                )
                raise errors.IncarnationChanged(msg, metadata={"computation": name})
        self._last_reading = _Reading(values, incarnations)
        return self._last_reading

    @property
    def _promised(self) -> set[str]:
        """Names of the inputs whose low watermark is followed."""
        return {name for drive in self.drives.values() if not drive.guesses for name in drive.inputs}

    def _reached(self) -> _Reading | None:
        """Return the newest reading whose head is planned, or for Kafka committed.

        The plans on which it rests are durable then.
        """
        batch, lines = self.read_plans()
        lines = self._heads.counted(lines)
        with self._heads.lock:
            reached = self._candidates.newest_reached(lines, forget=False)
        if batch is not None and reached is not None:
            self._sync(batch)
        with self._heads.lock:
            # The reading is forgotten only after _sync(): if that raises, the next look needs it.
            return self._candidates.newest_reached(lines, forget=True)

    def read_plans(self) -> tuple[int | None, Sequence[Line]]:
        """Read the source logs up to the newest planned batch; return that batch and its lines."""
        plan = self.log.newest()
        lines: Sequence[Line] = () if plan is None else plan.lines
        with self._heads.lock:
            self._heads.read_to(lines)
        return None if plan is None else plan.batch, lines

    def _lags(self) -> bool:
        """Return True while a source does not count the newest committed batch as read.

        For Kafka that is so until the run has confirmed the batch.
        """
        plan = self.log.newest_committed()
        return plan is not None and self._heads.lags(plan.lines)

    def _sync(self, newest: int) -> None:
        """Make the plans up to ``newest`` durable.

        If a plan were lost, Spark would read its files again, below the watermark.
        """
        if newest <= self._synced:
            return
        for plan in self.log.plans_after(self._synced, newest):
            for file in self._heads.evidence(self.log, plan):
                # Spark may have deleted this file since. A deleted entry of a file source's log is
                # repeated by a newer, compacted one, which is synced as well. And a restart needs
                # none of the plans that Spark deletes.
                with contextlib.suppress(FileNotFoundError):
                    sync_file(file)
                sync_directory(file.parent)
        self._synced = newest

    # -- does Spark follow? ------------------------------------------------------------------------

    def _check_followed(self) -> None:
        """Compare Spark's watermark after the last commit with the control rows up to it.

        The newest offset of each control is the greatest, with one exception, see
        :class:`~lowwater_spark.sources.control_reader.RememberingReader`. So earlier plans are read
        only when the newest one does not explain Spark's watermark.
        """
        batch = self.log.last_committed()
        if batch is None or batch == self._followed:
            return
        plan, actual = self.log.plan(batch), self._next_watermark(batch)
        self._followed = batch
        if plan is None or actual is None:
            return
        offsets = {number: Offset.of_line(plan.lines[number]) for number in self.drives}
        if self._explains(offsets, actual):
            return
        for earlier in self.log.plans_after(NOTHING, batch):
            for number in self.drives:
                offset = Offset.of_line(earlier.lines[number])
                if offset.follows(offsets[number]):
                    offsets[number] = offset
        if not self._explains(offsets, actual):
            expected = min(offset.watermark for offset in offsets.values())
            msg = (
                f"after batch {batch} Spark's watermark is {actual} ms, and not {expected} ms as its control rows say: something in the query's plan "
                "moves it, or holds the rows back. The query ends before it drops rows or keeps windows for ever. Report its plan. This checkpoint does "
                "not start again: start from a new one, into a new output, with adopt=True."
            )
            raise WatermarkLost(msg)
        self._go_by(offsets)

    def _explains(self, offsets: Mapping[int, Offset], actual: int) -> bool:
        """Return True if Spark's watermark, milliseconds, may follow from the controls' offsets."""
        expected = min(offset.watermark for offset in offsets.values())
        # With several controls, Spark's watermark stays low after a restart until each control has
        # given a row in this run. Only then a watermark below ``expected`` is an error.
        complete = len(offsets) == 1 or all(
            offset.run == self._driven[number].newest.offset.run for number, offset in offsets.items()
        )
        return actual == expected or (actual < expected and not complete)

    def _go_by(self, offsets: Mapping[int, Offset]) -> None:
        """Raise the controls to offsets of the log, which an older run has planned.

        Such a value was safe when that run gave it out, and the log has all plans on which it
        rests. If the clock stayed below, the log would keep an offset below Spark's watermark, and
        the plan that explains it would be deleted one day.
        """
        for number, driven in self._driven.items():
            offset, newest = offsets[number], driven.newest
            if offset.watermark <= newest.offset.watermark:
                continue
            for name, incarnation in offset.incarnations.items():
                self._incarnations.setdefault(name, incarnation)
            offset = Offset(offset.watermark, offset.incarnations, newest.offset.run)
            driven.newest = ClockValue(offset, newest.answered, newest.final)
            driven.control.write_value(driven.newest)

    def _next_watermark(self, batch: int) -> int | None:
        """Return Spark's watermark after a committed batch, milliseconds; None if not recorded."""
        try:
            lines = lines_of((self.checkpoint / "commits" / str(batch)).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        entry = json.loads(lines[1]) if len(lines) > 1 else {}
        return int(entry["nextBatchWatermarkMs"]) if "nextBatchWatermarkMs" in entry else None


def is_approximate(driving: Driving | None) -> bool:
    """Return True if a query follows a heuristic watermark or a lateness budget.

    Its output is then not exact, and registered as estimated.
    """
    return driving is not None and any(drive.guesses for drive in driving.drives.values())
