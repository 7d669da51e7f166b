"""What keeps a computation where it is, as far as what is published of it tells."""

from __future__ import annotations

from enum import Enum

from lowwater.views import RangeState, RangeView, WatermarkView

__all__ = ["Cause", "cause_of", "cause_of_range", "is_silent", "seconds_since"]

_SILENT = 15.0
"""Seconds without a claim or report after which a worker is called silent; living ones repeat
themselves every few seconds."""

_LONG = 60.0
"""Seconds after which an operation that still runs is worth a word."""


class Cause(Enum):
    """What keeps a computation where it is."""

    FINISHED = "finished"
    """Nothing: nothing will ever come."""
    NOT_REGISTERED = "not registered"
    """Something reads it that nobody has registered."""
    HIDDEN = "hidden"
    """Something reads it that this client may not read: nothing is told of that, not even whether
    anybody has registered it."""
    NEVER_CLAIMED = "never claimed"
    """A key range that no worker has ever claimed."""
    UNOWNED = "unowned"
    """A key range that its worker has left, and no other has taken."""
    SILENT = "silent"
    """A key range whose worker does not report any more: it hangs, died, or is cut off."""
    STOPPED = "stopped"
    """A key range whose worker was stopped in good order, as its last report says."""
    FAILED = "failed"
    """A key range whose worker ended by an error, as its last report says."""
    UNHEARD = "not heard of"
    """A key range whose worker the authority has not heard of since it restarted, nor before:
    whether it is alive is not known yet."""
    BUSY = "busy"
    """A worker that reports, and has been at one operation for more than a minute: the system is
    slow or stuck."""
    WAITING = "waiting"
    """A worker that reports, and has stood there for a while or always: its data is old, or the
    work before it is not there yet."""
    MOVING = "moving"
    """A worker that reports, and moved just now: the data is old, and it is on its way."""
    MOVED_ON = "moved on"
    """Nobody any more: what held it has moved since it was published."""
    CANNOT_TELL = "cannot tell"
    """The authority did not say which key ranges hold it: its store hangs, or a shard is about to
    take it over."""

    @property
    def trouble(self) -> bool:
        """Whether somebody has to act before it moves: nobody that is alive works on it."""
        return self in _TROUBLE


_TROUBLE = {
    Cause.NOT_REGISTERED,
    Cause.NEVER_CLAIMED,
    Cause.UNOWNED,
    Cause.SILENT,
    Cause.STOPPED,
    Cause.FAILED,
}


def cause_of(view: WatermarkView | None, now_micros: int) -> Cause:
    """Return what keeps a computation where it is, as far as what is published of it tells."""
    if view is None or not view.registered:
        return Cause.NOT_REGISTERED
    if view.low.finished:
        return Cause.FINISHED
    return (
        Cause.MOVED_ON if view.holder is None else cause_of_range(view.holder, view.oldest_operation_micros, now_micros)
    )


def cause_of_range(holder: RangeView, oldest_operation: int, now_micros: int) -> Cause:
    """Return what keeps a key range where it is; ``oldest_operation`` is that of its computation, 0 for none."""
    if holder.state is RangeState.NEVER_CLAIMED:
        return Cause.NEVER_CLAIMED
    if holder.state is RangeState.UNOWNED:
        return Cause.UNOWNED
    if holder.state is not RangeState.OWNED:
        return Cause.MOVED_ON
    if holder.remarks.ended:
        return Cause.FAILED if holder.remarks.failure else Cause.STOPPED
    if not holder.last_report_micros:
        return Cause.UNHEARD
    if is_silent(seconds_since(holder.last_report_micros, now_micros)):
        return Cause.SILENT
    if oldest_operation and seconds_since(oldest_operation, now_micros) > _LONG:
        return Cause.BUSY
    if not holder.since_micros or seconds_since(holder.since_micros, now_micros) > _SILENT:
        return Cause.WAITING
    return Cause.MOVING


def is_silent(seconds: float) -> bool:
    """Whether a worker that said nothing for so long is called silent."""
    return seconds > _SILENT


def seconds_since(micros: int, now_micros: int) -> float:
    """Return the seconds since a processing time; 0 for none."""
    return (now_micros - micros) / 1e6 if micros else 0.0
