"""Words for the state and the history of a computation, as the command and notebooks show them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from lowwater.core.causes import Cause, cause_of, cause_of_range, quiet_words
from lowwater.core.text import describe_owner, describe_range, duration
from lowwater.views import Completion, RangeView, WatermarkView
from lowwater.watermark import Watermark

__all__ = [
    "culprit_words",
    "holder_words",
    "is_quiet",
    "late_words",
    "longest_delay",
    "low_words",
    "moment",
    "range_words",
    "severity",
    "state_words",
    "steps_words",
]

_MICROSECOND: Final = timedelta(microseconds=1)


def severity(view: WatermarkView, now_micros: int) -> tuple[bool, int, str]:
    """Return a sort key: trouble first, then the furthest behind, finished computations last."""
    return (not cause_of(view, now_micros).trouble, view.low.micros, view.computation)


def low_words(view: WatermarkView) -> str:
    """Return the low watermark, and whether it is only estimated."""
    if not view.registered:
        return "not registered"
    return f"{view.low} (estimated)" if view.estimated else str(view.low)


def holder_words(key_range: RangeView | None, now_micros: int) -> str:
    """Return a key range, its owner, and how that ended, if it did; empty for none."""
    if key_range is None:
        return ""
    words = f"{describe_range(key_range.start, key_range.end)}, {describe_owner(key_range)}"
    return f"{words}, {quiet_words(key_range, now_micros)}" if is_quiet(key_range, now_micros) else words


def range_words(key_range: RangeView, now_micros: int) -> str:
    """Return the state of a key range, and whether its owner has ended, or not begun."""
    words = key_range.state.value
    return f"{words}, {cause_of_range(key_range, 0, now_micros).value}" if is_quiet(key_range, now_micros) else words


def is_quiet(key_range: RangeView, now_micros: int) -> bool:
    """Return whether an owner has ended, or not begun."""
    return cause_of_range(key_range, 0, now_micros) in {Cause.STOPPED, Cause.FAILED, Cause.NOT_BEGUN}


def state_words(view: WatermarkView, guilty: WatermarkView | None, now_micros: int) -> str:
    """Return what keeps a computation where it is.

    Its own trouble is shown even while another computation holds it: it would hold it next.
    """
    cause = cause_of(view, now_micros)
    waits = guilty is not None and guilty.computation != view.computation and not cause.trouble
    return f"waits for {guilty.computation}" if waits and guilty is not None else cause.value


def culprit_words(view: WatermarkView, guilty: WatermarkView | None, now_micros: int) -> str:
    """Return who holds a computation: its own key range, or another computation and its range."""
    if guilty is None or guilty.computation == view.computation:
        return holder_words(view.holder, now_micros)
    if not guilty.registered:
        # Views of all computations leave out those that the caller may not read.
        return f"{guilty.computation}, which is not registered or may not be read"
    return f"{guilty.computation} {holder_words(guilty.holder, now_micros)}".rstrip()


def moment(micros: int) -> str:
    """Return a processing time, to the second."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).isoformat().replace("+00:00", "Z")


def steps_words(completion: Completion, step: timedelta) -> str:
    """Return the steps that became complete; a single day is named once."""
    if completion.after.unknown:
        return "everything" if completion.through.finished else f"up to {_minute(completion.through, step)}"
    start = _minute(completion.after, step)
    if completion.through.finished:
        return f"{start} to the end"
    end = _minute(completion.through, step)
    day, _, time = end.partition(" ")
    return f"{start} to {time}" if time and start.startswith(f"{day} ") else f"{start} to {end}"


def _minute(boundary: Watermark, step: timedelta) -> str:
    """Return a boundary, to the microsecond, second or minute as its step needs."""
    exact = "microseconds" if step % timedelta(seconds=1) else "seconds" if step % timedelta(minutes=1) else "minutes"
    try:
        return boundary.datetime().replace(tzinfo=None).isoformat(" ", exact)
    except ValueError:  # before the year 1 or after 9999
        return str(boundary)


def longest_delay(completion: Completion, step: timedelta) -> timedelta:
    """Return how late the oldest step of a completion was; zero if its end is not known."""
    if completion.behind is None:
        return timedelta()
    if completion.after.unknown:
        return completion.behind
    return completion.behind + (completion.through.micros - completion.after.micros) * _MICROSECOND - step


def late_words(completion: Completion, step: timedelta) -> str:
    """Return how long after their ends the newest and the oldest step of a completion came."""
    if completion.behind is None:
        return ""
    newest, oldest = (duration(late.total_seconds()) for late in (completion.behind, longest_delay(completion, step)))
    return newest if newest == oldest else f"{newest} to {oldest}"
