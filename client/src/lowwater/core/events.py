"""Fields of a log line besides its sentence: a stable event name, and values.

Any standard logger accepts them.

    log.info("%s was reset", name, extra=event("reset", computation=name))

docs/reference/logs.md lists the events; lowwater_server.logging renders those of servers.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["ATTRIBUTE", "NAME_BYTES", "Limited", "event", "shortened"]

ATTRIBUTE: Final = "lowwater"
"""Name of the attribute with the fields in a log record."""

NAME_BYTES: Final = 257
"""Bytes of the longest name of a computation. A longer name belongs to no computation, and is
logged by its beginning and its end."""

QUIET_SECONDS: Final = 10.0
"""Least seconds between two lines about the same repeated event."""

_MOST_KEYS: Final = 1000
"""Most keys that are counted apart; all others share one."""

_OTHERS: Final = object()
"""Key that all keys beyond ``_MOST_KEYS`` share."""


def event(name: str, /, **fields: Any) -> dict[str, Any]:
    """Return the ``extra`` of a log call. Fields that are None or empty are left out.

    >>> event("reset", computation="hourly", host="")
    {'lowwater': {'event': 'reset', 'computation': 'hourly'}}
    """
    return {ATTRIBUTE: {"event": name, **{key: value for key, value in fields.items() if value not in (None, "")}}}


def shortened(text: str, limit: int = NAME_BYTES) -> str:
    """Return a text in at most ``limit`` bytes of UTF-8: its beginning, and its end (the fix)."""
    data = text.encode()
    if len(data) <= limit:
        return text
    half = (limit - len(b" ... ")) // 2
    return f"{data[:half].decode(errors='ignore')} ... {data[-half:].decode(errors='ignore')}"


class Limited:
    """Counts repeated events: reports the first at once, and then once in ``seconds``.

    Each report has the count since the last one. So when a flood ends, its last events are never
    reported; the metrics have them all. Times are seconds of any clock. O(1); O(keys) at most once
    in ``seconds``, to forget keys that were quiet for so long. With too many keys, new ones share
    one, so that neither memory nor lines grow with invented names.
    """

    def __init__(self, seconds: float = QUIET_SECONDS) -> None:
        self._seconds = seconds
        self._reported: dict[object, tuple[float, int]] = {}
        """(time of the last report, count since then) by key."""
        self._swept = float("-inf")
        """Time of the last sweep of quiet keys."""

    def count(self, key: object, now: float, times: int = 1) -> int:
        """Count events; returns the number to report now, 0 for none."""
        if key not in self._reported and len(self._reported) >= _MOST_KEYS:
            self._sweep(now)
            if len(self._reported) >= _MOST_KEYS:
                key = _OTHERS
        reported_at, before = self._reported.get(key, (float("-inf"), 0))
        if now - reported_at < self._seconds:
            self._reported[key] = (reported_at, before + times)
            return 0
        self._reported[key] = (now, 0)
        return before + times

    def _sweep(self, now: float) -> None:
        if now - self._swept >= self._seconds:
            self._swept = now
            self._reported = {key: entry for key, entry in self._reported.items() if now - entry[0] < self._seconds}
