"""Counts of what each caller uses of this process: calls a second, and open streams.

The module is pure: the time is passed in, in seconds of any clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowwater import errors

if TYPE_CHECKING:
    from lowwater_authority.access.policy import Limits

_MOST_KEYS: Final = 1000
"""Most callers with a bucket. Beyond that, idle ones are forgotten: callers without a principal can
come from any number of hosts."""


class Bucket:
    """A token bucket: ``rate`` calls a second, all of which may come at once. O(1)."""

    __slots__ = ("_filled", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._tokens = max(1.0, rate)
        self._filled = now

    def take(self, rate: float, now: float) -> float:
        """Take one token. Returns 0.0, or the seconds after which there is one, if there is none.

        ``rate`` may differ from call to call.
        """
        self._tokens = min(max(1.0, rate), self._tokens + (now - self._filled) * rate)
        self._filled = now
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) / rate

    def idle(self, rate: float, now: float) -> bool:
        """Return whether it is full again, so that it can be forgotten."""
        return self._tokens + (now - self._filled) * rate >= max(1.0, rate)


class Usage:
    """Calls and open streams of each caller, by any key.

    Idle callers are forgotten when there are many.
    """

    def __init__(self, *, fixed: bool = False) -> None:
        """``fixed``: no operator can raise the limits, and errors do not offer it."""
        self._fixed = fixed
        self._buckets: dict[str, Bucket] = {}
        self._streams: dict[str, int] = {}

    @property
    def callers(self) -> int:
        """Number of callers with a bucket."""
        return len(self._buckets)

    def call(self, key: str, limits: Limits, now: float) -> None:
        """Count a call or a stream that begins. Raises Overloaded, with the delay."""
        rate = limits.calls_per_second
        if rate is None:
            return
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _MOST_KEYS:
                busy = {caller: used for caller, used in self._buckets.items() if not used.idle(rate, now)}
                self._buckets = busy
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

    ``delay`` is the seconds after which the caller may try again; 0.0: waiting does not help.
    ``fixed``: no operator can raise the limit.
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
