"""Counts of log lines by event, so that alerts on them need no collector of logs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from lowwater.core.events import ATTRIBUTE

if TYPE_CHECKING:
    from prometheus_client import Counter

MOST_SERIES: Final = 200
"""Most series, each for an event and a level. Lines of further events count as ``OTHER``."""

OTHER: Final = "other"
"""Event of lines without one, which other libraries write, and of those beyond ``MOST_SERIES``."""

ALERTED: Final = (
    ("access_failed", "error"),
    ("access_refused", "error"),
    ("certificate_refused", "error"),
    ("damaged_graph_mended", "error"),
    ("damaged_log", "error"),
    ("damaged_log_kept", "error"),
    ("internal_error", "error"),
    ("journal_created", "warning"),
    ("journal_refused", "error"),
    ("store_lost_epochs", "error"),
    ("store_lost_epochs", "warning"),
    ("store_lost_records", "error"),
)
"""Events with an alert, each with its level. Their series begin at 0, because a series that begins
at 1 shows no increase."""


class LogCounter(logging.Handler):
    """Counts warnings and errors, as a handler of the root logger."""

    def __init__(self, counter: Counter) -> None:
        super().__init__(logging.WARNING)
        self._counter = counter
        self._pairs = set(ALERTED)
        for pair in ALERTED:
            counter.labels(*pair)

    def emit(self, record: logging.LogRecord) -> None:
        """Count a record. On any thread; Handler holds its lock meanwhile."""
        level = "warning" if record.levelno < logging.ERROR else "error"
        fields = getattr(record, ATTRIBUTE, None)
        name = fields.get("event", OTHER) if isinstance(fields, dict) else OTHER
        pair = (str(name), level)
        if pair not in self._pairs:
            if len(self._pairs) >= MOST_SERIES:
                pair = (OTHER, level)
            self._pairs.add(pair)
        self._counter.labels(*pair).inc()
