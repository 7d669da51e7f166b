"""The reason why a computation does not move, derived from its published state."""

from __future__ import annotations

from enum import Enum

from lowwater.core.text import clock_time, duration, on_one_line
from lowwater.views import RangeState, RangeView, WatermarkView
from lowwater.watermark import Watermark

__all__ = ["Cause", "cause_of", "cause_of_range", "quiet_words", "seconds_since"]

_SILENT = 15.0
"""Seconds without a claim or report after which a worker is called silent. A living one reports
every few seconds."""

_LONG = 60.0
"""Seconds after which a running operation is mentioned."""


class Cause(Enum):
    """Reason why a computation does not move."""

    FINISHED = "finished"
    """The computation is finished: it holds nothing."""
    NOT_REGISTERED = "not registered"
    """An input that is not registered."""
    HIDDEN = "hidden"
    """An input that this client may not read. The authority does not even say whether it is
    registered."""
    NEVER_CLAIMED = "never claimed"
    """A key range that no worker has ever claimed."""
    UNOWNED = "unowned"
    """A key range that its worker lost and no other took over."""
    SILENT = "silent"
    """A key range whose worker has stopped reporting: it hangs, died, or is cut off."""
    STOPPED = "stopped"
    """A key range whose worker was stopped in good order: its last report says that, or it has
    released the range."""
    FAILED = "failed"
    """A key range whose worker ended by an error, as its last report says."""
    NOT_BEGUN = "not begun"
    """A key range whose worker has claimed it, and has reported nothing in the seconds after which
    a worker is silent: it prepares, is not programmed to report, or died."""
    UNHEARD = "not heard of"
    """A key range whose worker has not reported since the authority restarted: it may be alive."""
    BUSY = "busy"
    """A reporting worker that has been at one operation for more than a minute: it is slow or
    stuck."""
    WAITING = "waiting"
    """A reporting worker that has not moved for a while: its data is old, or its work has not
    arrived yet."""
    MOVING = "moving"
    """A reporting worker that moved lately: its data is old, and it is catching up."""
    MOVED_ON = "moved on"
    """No range any more: the holder has moved since the value was published."""
    CANNOT_TELL = "cannot tell"
    """Unknown: the authority did not say which key ranges hold. Its store hangs, or a shard is
    about to take over."""

    @property
    def trouble(self) -> bool:
        """True when somebody has to act: no living worker is at it, and none was stopped there.

        A worker that was stopped in good order may be one of a program that runs by cron.
        """
        return self in _TROUBLE


_TROUBLE = {
    Cause.NOT_REGISTERED,
    Cause.NEVER_CLAIMED,
    Cause.UNOWNED,
    Cause.SILENT,
    Cause.FAILED,
    Cause.NOT_BEGUN,
}


def cause_of(view: WatermarkView | None, now_micros: int) -> Cause:
    """Return the reason why a computation does not move."""
    if view is None or not view.registered:
        return Cause.NOT_REGISTERED
    if view.low.finished:
        return Cause.FINISHED
    return (
        Cause.MOVED_ON if view.holder is None else cause_of_range(view.holder, view.oldest_operation_micros, now_micros)
    )


def cause_of_range(holder: RangeView, oldest_operation: int, now_micros: int) -> Cause:
    """Return why a key range does not move. ``oldest_operation``: processing time; 0 for none."""
    if holder.state is RangeState.NEVER_CLAIMED:
        return Cause.NEVER_CLAIMED
    if holder.state not in {RangeState.OWNED, RangeState.UNOWNED}:
        return Cause.MOVED_ON
    if holder.remarks.ended:
        return Cause.FAILED if holder.remarks.failure else Cause.STOPPED
    if holder.state is RangeState.UNOWNED:
        return Cause.UNOWNED
    if not holder.last_report_micros:
        return Cause.UNHEARD
    if seconds_since(holder.last_report_micros, now_micros) > _SILENT:
        return Cause.SILENT if _has_reported(holder) else Cause.NOT_BEGUN
    if oldest_operation and seconds_since(oldest_operation, now_micros) > _LONG:
        return Cause.BUSY
    if not holder.since_micros or seconds_since(holder.since_micros, now_micros) > _SILENT:
        return Cause.WAITING
    return Cause.MOVING


def quiet_words(holder: RangeView, now_micros: int) -> str:
    """Return since when a key range has no reporting worker, and why, as far as that is known.

    Empty for a worker that reports, or of which the authority has not heard since its restart.
    """
    ago = duration(seconds_since(holder.last_report_micros, now_micros))
    match cause_of_range(holder, 0, now_micros):
        case Cause.STOPPED:
            waited = f" and waited for {on_one_line(holder.waiting_for)}" if holder.waiting_for else ""
            return f"which stopped at {clock_time(Watermark(holder.last_report_micros), now_micros)}{waited}"
        case Cause.FAILED:
            return f"which failed {ago} ago: {on_one_line(holder.remarks.failure.rstrip('.'))}"
        case Cause.NOT_BEGUN if holder.claimed_micros:
            return f"which claimed it {ago} ago and has reported nothing yet"
        case Cause.NOT_BEGUN | Cause.SILENT if _has_no_promise(holder):
            return f"which claimed it and has promised nothing yet, last heard of {ago} ago"
        case Cause.SILENT | Cause.UNOWNED if holder.last_report_micros:
            return f"silent for {ago}"
        case _:
            return ""


def _has_reported(holder: RangeView) -> bool:
    """Return whether an owner has reported anything; when that is unknown, whether it promised."""
    if holder.claimed_micros:
        return holder.last_report_micros > holder.claimed_micros
    return not _has_no_promise(holder)


def _has_no_promise(holder: RangeView) -> bool:
    return holder.watermark.unknown and not holder.since_micros


def seconds_since(micros: int, now_micros: int) -> float:
    """Return the seconds since a processing time; 0 for no time."""
    return (now_micros - micros) / 1e6 if micros else 0.0
