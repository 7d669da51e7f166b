"""Counts the lines of the log by their event: what a process logs can be alerted on without a collector of logs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from lowwater.core.events import ATTRIBUTE

if TYPE_CHECKING:
    from prometheus_client import Counter

MOST_SERIES: Final = 200
"""Pairs of an event and a level that get a series of their own; lines of further ones count as
``OTHER``."""

OTHER: Final = "other"
"""The event of lines that have none, which other libraries write, and of those beyond
``MOST_SERIES``."""

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
"""Events that alerts are about, each with its level. Their series begin at 0: a series that begins
at 1 has no increase."""


class LogCounter(logging.Handler):
    """Counts records of warnings and errors. To be added to the root logger.

    The names of events are words in the code; if one ever came from a caller, ``MOST_SERIES`` would
    still bound the series.
    """

    def __init__(self, counter: Counter) -> None:
        super().__init__(logging.WARNING)
        self._counter = counter
        self._known = set(ALERTED)
        for pair in ALERTED:
            counter.labels(*pair)

    def emit(self, record: logging.LogRecord) -> None:
        """Count a record. On any thread; Handler holds its lock meanwhile."""
        level = "warning" if record.levelno < logging.ERROR else "error"
        fields = getattr(record, ATTRIBUTE, None)
        name = fields.get("event", OTHER) if isinstance(fields, dict) else OTHER
        pair = (str(name), level)
        if pair not in self._known:
            if len(self._known) >= MOST_SERIES:
                pair = (OTHER, level)
            self._known.add(pair)
        self._counter.labels(*pair).inc()
