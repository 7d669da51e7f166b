"""The history of a computation, as a table and as JSON."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from lowwater.cli.render import table, times
from lowwater.core.text import duration
from lowwater.core.words import late_words, longest_delay, moment, steps_words
from lowwater.views import History, WatermarkView
from lowwater.watermark import Watermark

__all__ = ["history_record", "history_table", "why_empty"]

_BAR: Final = 12
"""Length of the longest bar, in characters."""

_MICROSECOND: Final = timedelta(microseconds=1)


def history_table(history: History, incarnation: int) -> str:
    """Return a table of completions; the bar of a line shows how late its oldest step was.

    ``incarnation`` is the current one; completions of other incarnations are marked.
    """
    several = any(completion.incarnation != incarnation for completion in history)
    most = max((longest_delay(completion, history.step) for completion in history), default=timedelta())
    rows = [(*(("INCARNATION",) if several else ()), "STEPS", "COMPLETE AT", "AFTER END", "")]
    for completion in history:
        which = (
            f"{completion.incarnation}" if completion.incarnation == incarnation else f"{completion.incarnation}, ended"
        )
        rows.append(
            (
                *((which,) if several else ()),
                steps_words(completion, history.step),
                moment(completion.time_micros),
                late_words(completion, history.step),
                _bar(longest_delay(completion, history.step), most),
            )
        )
    more = history.total - len(history)
    head = f"{history.computation}, in steps of {duration(history.step.total_seconds())}, UTC"
    return f"{head}\n{table(rows)}" + (f"\nand {more} before them; --last shows more" if more > 0 else "")


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
        f"{what} of {view.computation} became complete since its history is kept, because it was at {view.low} "
        "before; the history begins with the next step"
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
                "incarnation": completion.incarnation,
                **times("after", completion.after),
                **times("through", completion.through),
                **times("time", Watermark(completion.time_micros)),
                "behind_seconds": None if completion.behind is None else completion.behind.total_seconds(),
            }
            for completion in history
        ],
    }
