"""The times of the tests, in the three forms in which they are said: datetimes, microseconds and watermarks.

All event times are of one day, 9 January 2013, UTC: that of the flights of the demo.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from lowwater import Watermark

SECOND: Final = 1_000_000
"""Microseconds, as all of these."""
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
MIN: Final = -(2**63)
"""The low watermark of which nothing is known."""
MAX: Final = 2**63 - 1
"""The low watermark of what is finished."""


def at(hour: int, minute: int = 0, second: int = 0) -> datetime:
    return datetime(2013, 1, 9, tzinfo=UTC) + timedelta(hours=hour, minutes=minute, seconds=second)


def mark(hour: int, minute: int = 0) -> Watermark:
    return Watermark.of(at(hour, minute))


def micros(hour: int, minute: int = 0) -> int:
    return mark(hour, minute).micros
