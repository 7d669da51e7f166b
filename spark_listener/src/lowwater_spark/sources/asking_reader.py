"""The control's reader for Spark 4.2 and newer, which passes the query's last offset.

The control of a query that ends by itself asks the clock here before the query ends. This module
needs PySpark 4.2.
"""

from __future__ import annotations

import time
from typing import Any, Final

from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from lowwater_spark.sources.control import ClockValue, Offset
from lowwater_spark.sources.control_reader import ControlReader

__all__ = ["AskingReader"]

ANSWER_TIMEOUT: Final = 30.0
"""Seconds that the source of an ending query waits for the clock's last value. After that the
watermark stays."""

_POLL: Final = 0.01


class AskingReader(ControlReader, SupportsTriggerAvailableNow):
    """Gives the clock's values to Spark, and never a lower one than Spark's own log has."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._asks_clock = False
        self._questions = 0

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Ask the clock, and wait for its answer, from now on.

        Spark calls this for a query that ends when no source has anything new.
        """
        self._asks_clock = True

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """Return the newest value, or ``start`` while there is no newer one."""
        value = self.clock_value()
        if self._asks_clock and not value.final:
            value = self._ask(value)
        before = Offset.from_json(start)
        after = value.newest(before)
        return start if after is before else after.to_json()

    def _ask(self, value: ClockValue) -> ClockValue:
        self._questions += 1
        self.control.ask(self._questions)
        deadline = time.monotonic() + ANSWER_TIMEOUT
        while value.answered < self._questions and time.monotonic() < deadline:
            time.sleep(_POLL)
            value = self.clock_value()
        return value
