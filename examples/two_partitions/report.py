"""Report of the three ways beside the batch answer.

Pure, except for the folder of records that it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from examples.two_partitions.records import BEHIND, HOUR, Step, moment
from examples.two_partitions.ways import ALONE, ATTACHED, DRIVEN, Outcome, Written
from lowwater.watermark import MAX, MIN


class WrongWindowsError(Exception):
    """The run does not show what it has to show; the message lists what is wrong."""


@dataclass(frozen=True, slots=True)
class Line:
    """One window."""

    start: int
    batch: int
    """Rows it has."""
    rows: int | None
    """Rows that were written for it; None: it was not written."""
    lag: int | None
    """Time from its end to its output, in microseconds of the replay clock."""


@dataclass(frozen=True, slots=True)
class Account:
    """One way: where every row of the batch answer went."""

    rows: int
    """Rows in the batch answer."""
    windows: int
    lost: int
    """Rows missing from windows that were written: N."""
    windows_wrong: int
    windows_open: int
    """Windows that were never written."""
    rows_open: int
    """Rows of those."""
    counted: int
    """Dropped rows by Spark's own counter."""
    lag_hours_median: float
    lag_hours_max: float
    seconds: float


def lines(outcome: Outcome, batch: Mapping[int, int]) -> list[Line]:
    """Return each window of the batch answer with what was written of it.

    Raises WrongWindowsError for a window that is written twice, has too many rows, or should not be
    there: nothing that Spark's watermark does.
    """
    written: dict[int, Written] = {}
    wrong = []
    for one in outcome.written:
        if one.window in written or one.rows > batch.get(one.window, 0):
            wrong.append(f"{_time(one.window)}: {one.rows} rows, of {batch.get(one.window, 0)}, or written twice")
        written[one.window] = one
    _require(wrong)
    table = []
    for start, rows in sorted(batch.items()):
        output = written.get(start)
        if output is None:
            table.append(Line(start, rows, None, None))
        else:
            table.append(Line(start, rows, output.rows, output.clock - (start + HOUR)))
    return table


def account(outcome: Outcome, batch: Mapping[int, int]) -> Account:
    """Return where the rows went.

    Raises WrongWindowsError as :func:`lines`, and when nothing was written.
    """
    table = lines(outcome, batch)
    closed = [line for line in table if line.rows is not None]
    lags = [line.lag / HOUR for line in table if line.lag is not None]
    if not lags:
        raise WrongWindowsError("no window was written")
    open_batches = [line.batch for line in table if line.rows is None]
    return Account(
        rows=sum(batch.values()),
        windows=len(batch),
        lost=sum(line.batch - (line.rows or 0) for line in closed),
        windows_wrong=sum(line.rows != line.batch for line in closed),
        windows_open=len(open_batches),
        rows_open=sum(open_batches),
        counted=outcome.dropped,
        lag_hours_median=median(lags),
        lag_hours_max=max(lags),
        seconds=outcome.seconds,
    )


def require_exact(outcomes: Mapping[str, Outcome], batch: Mapping[int, int]) -> None:
    """Check that every driven window is the batch answer, and that attaching has changed nothing.

    Raises WrongWindowsError.
    """
    wrong = [
        f"driven, {_time(line.start)}: {'never written' if line.rows is None else line.rows}, expected {line.batch}"
        for line in lines(outcomes[DRIVEN], batch)
        if line.rows != line.batch
    ]
    if outcomes[DRIVEN].dropped:
        wrong.append(f"driven: Spark has dropped {outcomes[DRIVEN].dropped} rows")
    if sorted(outcomes[ALONE].written) != sorted(outcomes[ATTACHED].written):
        wrong.append("attached, the query has written something else than alone")
    if outcomes[ALONE].dropped != outcomes[ATTACHED].dropped:
        wrong.append(f"attached shows {outcomes[ATTACHED].dropped} dropped rows, Spark {outcomes[ALONE].dropped}")
    _require(wrong)


def as_json(outcomes: Mapping[str, Outcome], batch: Mapping[int, int], steps: Sequence[Step]) -> dict[str, Any]:
    """Return the whole report; times as ISO 8601, lags in hours."""
    tables = {name: lines(outcome, batch) for name, outcome in outcomes.items()}
    return {
        "ways": {name: asdict(account(outcome, batch)) for name, outcome in outcomes.items()},
        "windows": [
            {
                "start": moment(start).isoformat(),
                "batch": batch[start],
                **{
                    name: {"rows": line.rows, "lag_hours": None if line.lag is None else line.lag / HOUR}
                    for name, line in zip(tables, row, strict=True)
                },
            }
            for start, row in zip(sorted(batch), zip(*tables.values(), strict=True), strict=True)
        ],
        "steps": [
            {
                "clock": moment(step.clock).isoformat(),
                "arriving": {partition: len(times) for partition, times in step.arriving.items()},
                "watermarks": {name: _iso(outcome.stands[index].mark) for name, outcome in outcomes.items()},
            }
            for index, step in enumerate(steps)
        ],
        "notes": {name: outcome.note for name, outcome in outcomes.items() if outcome.note},
    }


def as_text(outcomes: Mapping[str, Outcome], batch: Mapping[int, int], steps: Sequence[Step]) -> str:
    """Return the report for people."""
    return "\n\n".join((_steps(outcomes, steps), _windows(outcomes, batch), _summary(outcomes, batch)))


def _steps(outcomes: Mapping[str, Outcome], steps: Sequence[Step]) -> str:
    rows = [
        [
            "replay clock",
            *(f"rows of {name}" for name in BEHIND),
            "attached: estimated",
            "dropped",
            "driven: low",
            "dropped",
        ]
    ]
    for index, step in enumerate(steps):
        row = [_time(step.clock), *(str(len(step.arriving.get(name, ()))) for name in BEHIND)]
        for name in (ATTACHED, DRIVEN):
            stand = outcomes[name].stands[index]
            row += [_time(stand.mark), str(stand.dropped)]
        rows.append(row)
    return _table(rows)


def _windows(outcomes: Mapping[str, Outcome], batch: Mapping[int, int]) -> str:
    rows = [["window", "batch answer", "Spark alone", "lost", "after", "attached", "driven", "lost", "after"]]
    tables = (lines(outcomes[name], batch) for name in (ALONE, ATTACHED, DRIVEN))
    for spark, attached, low in zip(*tables, strict=True):
        rows.append([_time(spark.start), str(spark.batch), *_line(spark), _line(attached)[0], *_line(low)])
    return _table(rows)


def _line(line: Line) -> tuple[str, str, str]:
    """Return the rows, how many are lost, and the lag."""
    if line.rows is None or line.lag is None:
        return ("-", "open", "-")
    return (str(line.rows), str(line.batch - line.rows or ""), f"{line.lag / HOUR:.1f} h")


def _summary(outcomes: Mapping[str, Outcome], batch: Mapping[int, int]) -> str:
    alone, attached, driven = (account(outcomes[name], batch) for name in (ALONE, ATTACHED, DRIVEN))
    notes = {name: outcome.note.replace("\n", "\n  ") for name, outcome in outcomes.items()}
    return f"""\
Spark alone drops {alone.lost} of {alone.rows} rows: of the {alone.windows - alone.windows_open} windows that it has written, {alone.windows_wrong} lack some.
  {alone.windows_open} windows with {alone.rows_open} rows are still open: no row came that would have moved its watermark beyond them.
  Spark's own counter says {alone.counted}. It counts what reaches the state; by then each task has added up its rows of a window into one.
Attached, the same rows come out, and it is seen: {attached.counted} by Spark's counter. In the middle of the stall:
  {notes[ATTACHED]}
Driven, {driven.lost} rows are dropped, and all {driven.windows} windows equal the batch answer. In the middle of the stall:
  {notes[DRIVEN]}
After its end a window was there, on the replay clock, at the median and at most:
  {_lag("Spark alone", alone)}; {_lag("attached", attached)}; {_lag("driven", driven)}.
The runs took {alone.seconds:.0f}, {attached.seconds:.0f} and {driven.seconds:.0f} s."""


def _lag(name: str, way: Account) -> str:
    return f"{name} {way.lag_hours_median:.1f} h and {way.lag_hours_max:.1f} h"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("   ".join(map(str.rjust, row, widths)) for row in rows)


def _time(time: int) -> str:
    if time in {MIN, MAX}:
        return "unknown" if time == MIN else "finished"
    return f"{moment(time):%-d %b %H:%M}"


def _iso(time: int) -> str:
    return _time(time) if time in {MIN, MAX} else moment(time).isoformat()


def _require(wrong: Iterable[str]) -> None:
    if problems := list(wrong):
        raise WrongWindowsError("\n  ".join(problems))
