"""What a log line carries besides its sentence: a stable name of what happened, and fields.

Any standard logger takes it.

    log.info("%s was reset", name, extra=event("reset", computation=name))

docs/logs.md lists the events; lowwater_server.logging renders those of servers.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["ATTRIBUTE", "NAME_BYTES", "Limited", "event", "shortened"]

ATTRIBUTE: Final = "lowwater"
"""Under which name a log record has them."""

NAME_BYTES: Final = 257
"""Of the longest name that a computation can have; what is longer is nobody's, and is told by its
beginning and its end."""

QUIET_SECONDS: Final = 10.0
"""What happens again and again is one line in that time."""

_MOST_KEYS: Final = 1000
"""Keys that are told apart at once; what is beyond them counts as one more."""

_OTHERS: Final = object()
"""The key of what is beyond ``_MOST_KEYS``."""


def event(name: str, /, **fields: Any) -> dict[str, Any]:
    """Return the ``extra`` of a log call. Fields that are None or empty are left out.

    >>> event("reset", computation="hourly", host="")
    {'lowwater': {'event': 'reset', 'computation': 'hourly'}}
    """
    return {ATTRIBUTE: {"event": name, **{key: value for key, value in fields.items() if value not in (None, "")}}}


def shortened(text: str, limit: int = NAME_BYTES) -> str:
    """Return a text of at most so many bytes of UTF-8: its beginning, and its end, which says what to do."""
    data = text.encode()
    if len(data) <= limit:
        return text
    kept = (limit - len(b" ... ")) // 2
    return f"{data[:kept].decode(errors='ignore')} ... {data[-kept:].decode(errors='ignore')}"


class Limited:
    """Says how many times something has happened, at once when it is the first, then once in ``seconds``.

    What came since the last line is told by the next one, so a flood that ends leaves some uncounted; the metrics have them all.
    Times are seconds of any clock. O(1), but O(keys) once in ``seconds`` at most: keys that were quiet for that long are forgotten. While
    too many are not, new ones share a key, so that neither memory nor lines grow with made-up names.
    """

    def __init__(self, seconds: float = QUIET_SECONDS) -> None:
        self._seconds = seconds
        self._told: dict[object, tuple[float, int]] = {}
        """By key: when it was told last, and how often it has happened since."""
        self._swept = float("-inf")
        """When the quiet keys were forgotten last."""

    def count(self, key: object, now: float, times: int = 1) -> int:
        """Count; returns how many are to be told now, 0 for none."""
        if key not in self._told and len(self._told) >= _MOST_KEYS:
            self._sweep(now)
            if len(self._told) >= _MOST_KEYS:
                key = _OTHERS
        told, before = self._told.get(key, (float("-inf"), 0))
        if now - told < self._seconds:
            self._told[key] = (told, before + times)
            return 0
        self._told[key] = (now, 0)
        return before + times

    def _sweep(self, now: float) -> None:
        if now - self._swept >= self._seconds:
            self._swept = now
            self._told = {each: kept for each, kept in self._told.items() if now - kept[0] < self._seconds}
