"""The control of a driven query as a Python Data Source: its offset is a watermark.

Whenever the watermark moves, the source gives one row with that time. This module needs PySpark
4.2, so only ``drive()``, Spark's driver-side Python process and the executor that makes the row
import it. An older ``latestOffset()`` does not get the query's last offset, so the source could go
back after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from lowwater_spark.sources.control import DIRECTORY, FORMAT, ClockValue, Control, Offset

__all__ = ["ControlDataSource"]

ANSWER_TIMEOUT: Final = 30.0
"""Seconds that the source of an ending query waits for the clock's last value. After that the
watermark stays."""

_POLL: Final = 0.01

_NOT_DRIVEN: Final = (
    "nobody drives this query: its frame is from lowwater_spark.drive(), and writeStream started it without a clock, so it would keep its windows for "
    "ever. Start it by stage.start(...) or stage.foreach_batch(...), whose clock moves its watermark."
)


class ControlDataSource(DataSource):
    """The format :data:`~lowwater_spark.sources.control.FORMAT`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the one column, milliseconds: Python has no time after the year 9999."""
        return "value bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names
        """Return the reader."""
        return ControlReader(self.options[DIRECTORY])


@dataclass
class _Move(InputPartition):
    """One move of the watermark."""

    watermark: int


class ControlReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Gives the clock's values to Spark, and never a lower one than Spark's own log has."""

    def __init__(self, directory: str) -> None:
        self._control = Control(directory)
        self._asks_clock = False
        self._questions = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the first offset of a new query: no watermark."""
        self._read()
        return Offset().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Ask the clock, and wait for its answer, from now on.

        Spark calls this for a query that ends when no source has anything new.
        """
        self._asks_clock = True

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """Return the newest value, or ``start`` while there is no newer one."""
        value = self._read()
        if self._asks_clock and not value.final:
            value = self._ask(value)
        before = Offset.from_json(start)
        after = value.newest(before)
        return start if after is before else after.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition when the watermark has moved, else none."""
        after = Offset.from_json(end)
        return [_Move(after.watermark)] if after.follows(Offset.from_json(start)) else []

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Yield the control row."""
        assert isinstance(partition, _Move)
        yield (partition.watermark,)

    def _read(self) -> ClockValue:
        value = self._control.last_value()
        if value is None:
            raise RuntimeError(_NOT_DRIVEN)
        return value

    def _ask(self, value: ClockValue) -> ClockValue:
        self._questions += 1
        self._control.ask(self._questions)
        deadline = time.monotonic() + ANSWER_TIMEOUT
        while value.answered < self._questions and time.monotonic() < deadline:
            time.sleep(_POLL)
            value = self._read()
        return value
