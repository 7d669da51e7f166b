"""The event times that a streaming query of Spark has read, batch by batch, in bounded memory.

Spark reports of each batch its rows and the least, mean and greatest event time: no row is looked
at for it, and no job runs. :class:`EventTimes` keeps these figures of the whole past of a query.
When it is full, neighbours become one :class:`Stretch`, so that old times get coarser, not lost.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowwater.watermark import MIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["BatchTimes", "EventTimes", "Stretch", "read_batch_times", "read_progress_lines"]

MOST_STRETCHES: Final = 1_024
"""Greatest number of stretches of a query, 72 bytes each. Above it each two become one."""

MOST: Final = 2**53
"""Number that the rows of a batch and its microseconds stay below. More would not fit in 64 bits
when batches are merged."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class BatchTimes(NamedTuple):
    """The event times of one batch, as Spark reports them: in whole milliseconds, rounded down.

    All times are microseconds.
    """

    batch: int
    """Number of the batch, by Spark."""
    started: int
    """Processing time at which the batch began."""
    ended: int
    """Processing time at which the batch ended."""
    rows: int
    """Number of rows that were read."""
    times: tuple[int, int, int] | None
    """Least, mean and greatest event time; None without rows or without a ``withWatermark``."""


class Stretch(NamedTuple):
    """The rows of some batches that follow each other. All times are microseconds."""

    started: int
    """Processing time at which its first batch began."""
    ended: int
    """Processing time at which its last batch ended."""
    batches: int
    rows: int
    first_reference: int
    """Greatest event time from which the delay counts for the rows of its first batch. Spark drops
    rows by the watermark of the batch before, so it is that of all rows up to the last batch but
    one."""
    last_reference: int
    """The same for its last batch."""
    least: int
    """Least event time, rounded down to a millisecond."""
    mean: int
    """Mean event time; the exact one is later by up to :data:`ROUNDING`."""
    greatest: int
    """Greatest event time, rounded down to a millisecond."""


ROUNDING: Final = 1_100
"""Microseconds by which an exact mean may be later: below a millisecond by Spark's rounding, and a
microsecond each time that a stretch becomes part of a longer one."""

_FIELDS: Final = len(Stretch._fields)


class EventTimes:
    """The event times that one query has read since its first batch was noted.

    Cost: :meth:`note` is O(1) on average, O(stretches) at most.
    """

    def __init__(self, batches: Iterable[BatchTimes] = (), *, most: int = MOST_STRETCHES) -> None:
        self.unjudged_rows: int = 0
        """Number of rows for which no watermark could be computed: those of the first two batches,
        before which nothing had been seen, and those without a usable event time."""
        self.before: int = MIN
        """Greatest event time of the batches before the first stretch."""
        self.first_batch: int = 0
        """Number of the first batch that was noted."""
        self.missing_batches: int = 0
        """Number of batches between it and the last one that Spark has not reported."""
        self.until: int = MIN
        """Processing time up to which these are all event times that the query has read."""
        self._most = most
        self._stretches = array("q")
        self._batch: int | None = None
        self._greatest = self._reference = MIN
        for batch in batches:
            self.note(batch)

    def __len__(self) -> int:
        """Return the number of stretches."""
        return len(self._stretches) // _FIELDS

    def __iter__(self) -> Iterator[Stretch]:
        """Iterate over the stretches, oldest first."""
        fields = iter(self._stretches)
        return map(Stretch._make, zip(*[fields] * _FIELDS, strict=True))

    def copy(self) -> EventTimes:
        """Return an independent copy."""
        copied = EventTimes()
        copied.__dict__.update(self.__dict__, _stretches=self._stretches[:])
        return copied

    def note(self, batch: BatchTimes) -> None:
        """Note a batch; one that is not newer than the last one was noted before."""
        if self._batch is None:
            self.first_batch = batch.batch
        else:
            if batch.batch <= self._batch:
                return
            self.missing_batches += batch.batch - self._batch - 1
        self._batch = batch.batch
        self.until = max(self.until, batch.ended)
        reference, self._reference = self._reference, self._greatest
        if batch.times is None:
            self.unjudged_rows += batch.rows
            return
        least, mean, greatest = batch.times
        self._greatest = max(self._greatest, greatest)
        if reference == MIN:
            self.before = self._greatest
            self.unjudged_rows += batch.rows
        elif batch.rows:
            stretch = Stretch(
                batch.started, batch.ended, 1, batch.rows, reference, reference, least, min(mean, greatest), greatest
            )
            self._stretches.extend(stretch)
            if len(self) > self._most:
                self._halve()

    def idle(self, timestamp: str) -> None:
        """Note that Spark said at a time, in ISO 8601, that there was nothing new to read."""
        self.until = max(self.until, _micros(timestamp) or MIN)

    def _halve(self) -> None:
        """Make one stretch of each two."""
        stretches, halved = list(self), array("q")
        for first, second in zip(stretches[::2], stretches[1::2], strict=False):
            halved.extend(_joined(first, second))
        for odd in stretches[len(stretches) // 2 * 2 :]:
            halved.extend(odd)
        self._stretches = halved


def _joined(first: Stretch, second: Stretch) -> Stretch:
    rows = first.rows + second.rows
    return Stretch(
        first.started,
        second.ended,
        first.batches + second.batches,
        rows,
        first.first_reference,
        second.last_reference,
        min(first.least, second.least),
        (first.rows * first.mean + second.rows * second.mean) // rows,
        max(first.greatest, second.greatest),
    )


def read_batch_times(progress: Mapping[str, Any]) -> BatchTimes:
    """Return the event times in the JSON of a progress report of Spark.

    Times that Spark or Python cannot express are absent. Raises KeyError, TypeError, ValueError and
    OverflowError for JSON that is no such report.
    """
    event_time: dict[str, str] = progress.get("eventTime") or {}
    least, mean, greatest = (_micros(event_time.get(name)) for name in ("min", "avg", "max"))
    times = None if least is None or mean is None or greatest is None else (least, mean, greatest)
    rows = progress.get("numInputRows")  # Spark's event log has it only by source
    if rows is None:
        rows = sum(int(source.get("numInputRows") or 0) for source in progress.get("sources") or ())
    started = _micros(str(progress.get("timestamp", ""))) or 0
    rows, took = int(rows), int(progress.get("batchDuration") or 0) * 1_000
    if not (0 <= rows < MOST and 0 <= took < MOST):
        raise ValueError("no batch has so many rows, or takes so long")
    return BatchTimes(int(progress["batchId"]), started, started + took, rows, times)


def read_progress_lines(lines: Iterable[str]) -> dict[str, EventTimes]:
    """Return the event times of each query in lines of JSON, by its name.

    A query without a name, or with one that another query has too, goes by its id. A line is a
    progress report, as ``query.lastProgress.json`` has it, or an event of Spark's event log. All
    other lines are passed over. Batches may be in any order: a shell lists the parts of a rolling
    event log as 1, 10, 2.
    """
    queries: dict[str, dict[int, BatchTimes]] = {}
    names: dict[str, str | None] = {}
    for line in lines:
        if '"batchId"' not in line:
            continue
        try:
            event = json.loads(line)
            progress = event.get("progress", event)
            query, name, batch = str(progress["id"]), progress.get("name"), read_batch_times(progress)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
        queries.setdefault(query, {}).setdefault(batch.batch, batch)
        names[query] = None if name is None else str(name)
    ambiguous = {name for name, count in Counter(names.values()).items() if count > 1}
    return {
        query if name is None or name in ambiguous else name: EventTimes(
            map(itemgetter(1), sorted(queries[query].items()))
        )
        for query, name in names.items()
    }


def _micros(text: str | None) -> int | None:
    try:
        return None if text is None else (datetime.fromisoformat(text).astimezone(UTC) - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        return None
