"""What one principal takes of this process: calls a second and open streams.

Pure: the time is passed in, in seconds of any clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowwater import errors

if TYPE_CHECKING:
    from lowwater_authority.access.policy import Limits

__all__ = ["Bucket", "Usage"]

_MOST_KEYS: Final = 1000
"""Callers that are remembered before the idle ones are forgotten: peers without a principal may
come from any number of hosts."""


class Bucket:
    """A token bucket: so many a second, and a second's worth, at least one, at once. O(1)."""

    __slots__ = ("_filled", "_left")

    def __init__(self, rate: float, now: float) -> None:
        self._left = max(1.0, rate)
        self._filled = now

    def take(self, rate: float, now: float) -> float:
        """Take one; returns 0.0, or after how many seconds there is one, when there is none.

        ``rate`` may differ from call to call.
        """
        self._left = min(max(1.0, rate), self._left + (now - self._filled) * rate)
        self._filled = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / rate

    def idle(self, rate: float, now: float) -> bool:
        """Whether it is full again, and so worth no memory."""
        return self._left + (now - self._filled) * rate >= max(1.0, rate)


class Usage:
    """What each caller, by any key, takes now.

    Bounded: callers that take nothing are forgotten when there are many.
    """

    def __init__(self, *, fixed: bool = False) -> None:
        """Count nothing yet; ``fixed``: no operator can raise its limits."""
        self._fixed = fixed
        self._buckets: dict[str, Bucket] = {}
        self._streams: dict[str, int] = {}

    @property
    def callers(self) -> int:
        """How many callers it remembers whose calls it counts."""
        return len(self._buckets)

    def call(self, key: str, limits: Limits, now: float) -> None:
        """Count a call or a stream that begins. Raises Overloaded, with the delay."""
        rate = limits.calls_per_second
        if rate is None:
            return
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _MOST_KEYS:
                self._buckets = {each: kept for each, kept in self._buckets.items() if not kept.idle(rate, now)}
            bucket = self._buckets[key] = Bucket(rate, now)
        delay = bucket.take(rate, now)
        if delay:
            what = f"{rate:g} calls a second are all that {key} may make"
            raise overloaded("calls_per_second", what, f"{rate:g}", delay, fixed=self._fixed)

    def open(self, key: str, limits: Limits) -> None:
        """Count a stream that was opened. Raises Overloaded."""
        opened = self._streams.get(key, 0)
        if limits.streams is not None and opened >= limits.streams:
            msg = f"{limits.streams} streams of {key} are open, the most at once"
            raise overloaded("streams", msg, str(limits.streams), 1.0, fixed=self._fixed)
        self._streams[key] = opened + 1

    def close(self, key: str) -> None:
        """Count a stream that has ended."""
        self._streams[key] -= 1
        if not self._streams[key]:
            del self._streams[key]


def overloaded(limit: str, what: str, value: str, delay: float = 0.0, *, fixed: bool = False) -> errors.Overloaded:
    """Return the error for a caller that has reached a limit.

    ``delay`` is after how many seconds there is room; 0.0: waiting does not help. ``fixed``: no
    operator can raise the limit.
    """
    fixes = [f"try again in {delay:.2f} s" if delay else "use less"]
    if not fixed:
        fixes.append(
            f"have it raised: {limit} of [limits] in the access file, or the authority's option --limit {limit}=NUMBER"
        )
    error = errors.Overloaded(f"{what}; {', or '.join(fixes)}", metadata={"bound": limit, "limit": value})
    error.retry_after = delay
    return error


def limit_reached(limit: str, what: str, value: str) -> errors.LimitReached:
    """Return the refusal of a new computation for which a limit leaves no room."""
    refusal = overloaded(limit, what, value)
    return errors.LimitReached(refusal.message, metadata=refusal.metadata)
