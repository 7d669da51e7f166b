"""One run, some ways to close its windows: compared from the batches the run itself recorded.

The hourly job appends one :class:`Batch` per micro-batch to a JSON Lines file, ``batches.jsonl``::

    {"batch": 7, "clock": 1357639200000000, "low": 1357632000000000, "heuristic": 1357635600000000,
     "budget": 1357632900000000, "records": [["JFK", 1357633800000000], ["EWR", 1357637400000000]]}

``clock`` is the replay clock when the batch ran, ``low`` and ``heuristic`` the low watermark and
that of 99 % of the records lately seen that it ran with, ``budget`` the watermark of the lateness
budget of 1 %, null where a run has none, ``records`` the origin and event time of each input
record, duplicates removed. Times are microseconds since the Unix epoch, UTC; MIN (-2^63) is
unknown, MAX (2^63-1) finished.

A way to close windows is a watermark per batch: a window closes in the first batch whose watermark
has reached its end. Records in that batch or an earlier one are in the window's result; records
that come later are missing from it. That is what the hourly job does with the low watermark, and
what Spark does with its own: it evicts with the watermark of the batch, but drops late rows by that
of the batch before (SPARK-40925), so rows in the closing batch still count.

Spark's own watermark of a batch is the greatest event time in all earlier batches, late rows
included, minus the delay, in whole milliseconds; it never goes back. Before the first row it is the
epoch.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from examples.flights.data import HOUR, moment, nearest_rank
from examples.flights.expected import Hourly, Window

MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000

LOW: Final = "low watermark"
HEURISTIC: Final = "99 % lately seen"
BUDGET: Final = "1 % lateness budget"
SPARK_2H: Final = "Spark, max - 2 h"
SPARK_6H: Final = "Spark, max - 6 h"
STRATEGIES: Final = (LOW, HEURISTIC, BUDGET, SPARK_2H, SPARK_6H)


class WrongWindowsError(Exception):
    """The pipeline's output is not the batch answer."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of the hourly job; times in microseconds."""

    batch: int
    clock: int
    low: int
    heuristic: int
    records: tuple[tuple[str, int], ...]
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of one way of closing windows; waits are seconds of event time."""

    name: str
    windows: int
    """Windows closed."""
    windows_wrong: int
    """Closed windows that miss records."""
    windows_never_closed: int
    missing_records: int
    """Records that came after their window had closed."""
    median_wait_seconds: float | None
    """Time from the end of a window to the batch that closed it; None when none was closed."""
    p99_wait_seconds: float | None
    records: int
    """Records of all batches."""
    batches: int
    batch_span_seconds_median: float | None
    """Seconds of the replay clock from one batch to the next."""
    batch_span_seconds_max: float | None


class Missing(NamedTuple):
    """A record that came after its window had closed."""

    origin: str
    event_time: int
    clock: int
    """The replay clock of the batch that brought it."""


def append_batch(path: Path, batch: Batch) -> None:
    """Append a batch to the run's record; the line is in the file when this returns."""
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(batch)) + "\n")


def read_batches(path: Path) -> list[Batch]:
    """Return a run's batches by number. Of a batch that was replayed, the last line counts.

    Raises:
        ValueError: A line is not a batch; the message names it.
    """
    batches: dict[int, Batch] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            fields = json.loads(line)
            records = tuple((str(origin), int(time)) for origin, time in fields.pop("records"))
            batch = Batch(**fields, records=records)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}:{number} is not a recorded batch: {error}") from error
        batches[batch.batch] = batch
    return [batches[number] for number in sorted(batches)]


def watermarks(batches: Sequence[Batch]) -> dict[str, list[int]]:
    """Return, for each way of closing windows, the watermark that each batch runs with."""
    budgets = [batch.budget for batch in batches if batch.budget is not None]
    return {
        LOW: list(accumulate((batch.low for batch in batches), max)),
        HEURISTIC: list(accumulate((batch.heuristic for batch in batches), max)),
        **({BUDGET: list(accumulate(budgets, max))} if len(budgets) == len(batches) else {}),
        SPARK_2H: spark_watermarks(batches, 2 * HOUR),
        SPARK_6H: spark_watermarks(batches, 6 * HOUR),
    }


def spark_watermarks(batches: Sequence[Batch], delay: int) -> list[int]:
    """Return the watermark each batch of a Spark query runs with, for a delay in microseconds.

    >>> records = (("JFK", 7_000_499), ("JFK", 3_000_000))
    >>> batch = Batch(0, clock=0, low=0, heuristic=0, records=records)
    >>> spark_watermarks([batch, batch], delay=2_000_000)
    [0, 5000000]
    """
    values, newest = [], 0
    for batch in batches:
        values.append(newest)
        greatest = max((time for _, time in batch.records), default=0)
        newest = max(newest, greatest // MILLISECOND * MILLISECOND - delay)
    return values


def window_of(origin: str, event_time: int) -> Window:
    """Return the window of a record: its origin and the start of its scheduled hour."""
    return origin, event_time // HOUR * HOUR


def closings(batches: Sequence[Batch], marks: Sequence[int]) -> dict[Window, int | None]:
    """Return the index of the batch that closes each window; None for one that never closes.

    Args:
        batches: In order.
        marks: The watermark each batch runs with; never goes back.
    """
    windows = {window_of(*record) for batch in batches for record in batch.records}
    closed_by: dict[Window, int | None] = {}
    for window in sorted(windows):
        index = bisect_left(marks, window[1] + HOUR)
        closed_by[window] = index if index < len(marks) else None
    return closed_by


def missing(batches: Sequence[Batch], marks: Sequence[int]) -> list[Missing]:
    """Return the records that came after their window had closed, in the order they came."""
    closed = closings(batches, marks)
    return [
        Missing(origin, event_time, batch.clock)
        for index, batch in enumerate(batches)
        for origin, event_time in batch.records
        if (closing := closed[window_of(origin, event_time)]) is not None and index > closing
    ]


def compare(batches: Sequence[Batch]) -> list[Comparison]:
    """Compare the ways on the batches of one run."""
    spans = [later.clock - earlier.clock for earlier, later in pairwise(batches)]
    comparisons = []
    for name, marks in watermarks(batches).items():
        closed = {window: index for window, index in closings(batches, marks).items() if index is not None}
        lost = missing(batches, marks)
        waits = sorted(batches[index].clock - (start + HOUR) for (_, start), index in closed.items())
        total = len(closings(batches, marks))
        comparisons.append(
            Comparison(
                name=name,
                windows=len(closed),
                windows_wrong=len({window_of(record.origin, record.event_time) for record in lost}),
                windows_never_closed=total - len(closed),
                missing_records=len(lost),
                median_wait_seconds=median(waits) / SECOND if waits else None,
                p99_wait_seconds=nearest_rank(waits, 990) / SECOND if waits else None,
                records=sum(len(batch.records) for batch in batches),
                batches=len(batches),
                batch_span_seconds_median=median(spans) / SECOND if spans else None,
                batch_span_seconds_max=max(spans) / SECOND if spans else None,
            )
        )
    return comparisons


def write_report(path: Path, comparisons: Iterable[Comparison]) -> None:
    """Write the comparison as a JSON list, one object per way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(comparison) for comparison in comparisons], indent=2) + "\n", encoding="utf-8")


def differences(rows: Iterable[tuple[Window, Hourly]], expected: Mapping[Window, Hourly]) -> list[str]:
    """Compare what the hourly job wrote with the batch answer.

    Args:
        rows: Every output row: its window and what it says. A window written twice is a difference
            even if both agree.
        expected: From :func:`examples.flights.expected.hourly`.

    Returns:
        One readable line per difference, by window; empty when the output is exactly the batch
        answer.
    """
    actual: defaultdict[Window, list[Hourly]] = defaultdict(list)
    for window, row in rows:
        actual[window].append(row)
    problems = []
    for window in sorted(actual.keys() | expected.keys(), key=lambda window: (window[1], window[0])):
        origin, start = window
        name = f"{origin} {moment(start):%Y-%m-%d %H:%M} UTC"
        written, right = actual.get(window, []), expected.get(window)
        if right is None:
            problems.append(f"{name}: written, but no flight was scheduled then: {written}")
        elif not written:
            problems.append(f"{name}: never written; expected {right}")
        elif len(written) > 1:
            problems.append(f"{name}: written {len(written)} times: {written}; expected once {right}")
        elif written[0] != right:
            wrong = [
                f"{field} is {have}, expected {want}"
                for field, have, want in zip(right._fields, written[0], right, strict=True)
                if have != want
            ]
            problems.append(f"{name}: {'; '.join(wrong)}")
    return problems


def require_exact(rows: Iterable[tuple[Window, Hourly]], expected: Mapping[Window, Hourly]) -> None:
    """Check that the hourly job wrote exactly the batch answer.

    Raises:
        WrongWindowsError: It did not; the message lists up to twenty differences.
    """
    problems = differences(rows, expected)
    if problems:
        listed = "\n  ".join(problems[:20])
        more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise WrongWindowsError(
            f"{len(problems)} of {len(expected)} windows are not the batch answer:\n  {listed}{more}"
        )
