"""When steps of event time became complete, as a table and as JSON."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from lowwater.cli.render import moment, table, times
from lowwater.core.text import duration
from lowwater.views import Completion, History, WatermarkView
from lowwater.watermark import Watermark

__all__ = ["history_record", "history_table", "why_empty"]

_BAR: Final = 12
"""Length of the longest bar, in characters."""

_MICROSECOND: Final = timedelta(microseconds=1)


def history_table(history: History, incarnation: int) -> str:
    """Return completions as a table, a line each, with a bar as long as the oldest step of the line was late.

    ``incarnation`` is the one that the computation is in: completions of others are marked.
    """
    several = any(each.incarnation != incarnation for each in history)
    most = max((_longest(each, history.step) for each in history), default=timedelta())
    rows = [(*(("INCARNATION",) if several else ()), "STEPS", "COMPLETE AT", "AFTER END", "")]
    for each in history:
        which = f"{each.incarnation}" if each.incarnation == incarnation else f"{each.incarnation}, ended"
        rows.append(
            (
                *((which,) if several else ()),
                _steps(each, history.step),
                moment(each.time_micros),
                _late(each, history.step),
                _bar(_longest(each, history.step), most),
            )
        )
    more = history.total - len(history)
    head = f"{history.computation}, in steps of {duration(history.step.total_seconds())}, UTC"
    return f"{head}\n{table(rows)}" + (f"\nand {more} before them; --last shows more" if more > 0 else "")


def _steps(each: Completion, step: timedelta) -> str:
    """Return from where to where it became complete; a day once if it is one day."""
    if each.after.unknown:
        return "everything" if each.through.finished else f"up to {_minute(each.through, step)}"
    start = _minute(each.after, step)
    if each.through.finished:
        return f"{start} to the end"
    end = _minute(each.through, step)
    day, _, time = end.partition(" ")
    return f"{start} to {time}" if time and start.startswith(f"{day} ") else f"{start} to {end}"


def _minute(boundary: Watermark, step: timedelta) -> str:
    """Return a boundary as exactly as steps need it: boundaries are multiples of the step since the epoch."""
    exact = "microseconds" if step % timedelta(seconds=1) else "seconds" if step % timedelta(minutes=1) else "minutes"
    try:
        return boundary.datetime().replace(tzinfo=None).isoformat(" ", exact)
    except ValueError:  # before the year 1 or after 9999
        return str(boundary)


def _longest(each: Completion, step: timedelta) -> timedelta:
    """Return how late the oldest step of a completion was; nothing when it has no end that is known."""
    if each.behind is None:
        return timedelta()
    if each.after.unknown:
        return each.behind
    return each.behind + (each.through.micros - each.after.micros) * _MICROSECOND - step


def _late(each: Completion, step: timedelta) -> str:
    if each.behind is None:
        return ""
    newest, oldest = (duration(late.total_seconds()) for late in (each.behind, _longest(each, step)))
    return newest if newest == oldest else f"{newest} to {oldest}"


def _bar(late: timedelta, most: timedelta) -> str:
    return "#" * max(1, round(_BAR * (late / most))) if late > timedelta() else ""


def why_empty(history: History, view: WatermarkView, since: Watermark | None) -> str:
    """Return the sentence for a history without completions."""
    what = "no step" if since is None else f"no step that ends after {since}"
    step = history.step // _MICROSECOND
    if view.low.unknown or (since is not None and view.low.micros // step * step <= since.micros):
        return (
            f"{what} of {view.computation} is complete yet: it is at {view.low}, in steps of "
            f"{duration(history.step.total_seconds())}; 'lowwater why {view.computation}' says who holds it"
        )
    return (
        f"{what} of {view.computation} became complete since its history is kept: it was at {view.low} before; the "
        "history begins with the next one"
    )


def history_record(history: History, incarnation: int) -> dict[str, Any]:
    """Return completions for JSON."""
    return {
        "computation": history.computation,
        "incarnation": incarnation,
        "step_seconds": history.step.total_seconds(),
        "step_micros": history.step // _MICROSECOND,
        "total": history.total,
        "completions": [
            {
                "incarnation": each.incarnation,
                **times("after", each.after),
                **times("through", each.through),
                **times("time", Watermark(each.time_micros)),
                "behind_seconds": None if each.behind is None else each.behind.total_seconds(),
            }
            for each in history
        ],
    }
