"""The control as Spark sees it: a Python Data Source whose offset is a watermark, and which gives one row with that time whenever it moves.

Imported only where PySpark is: by ``drive()``, by Spark's driver-side Python process, and by the executor that makes the row. Needs PySpark
4.2: with the ``latestOffset()`` of older ones the source does not know where the query stands, and could go back after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from lowwater_spark.sources.control import DIRECTORY, FORMAT, Control, Offset, Told

__all__ = ["ControlDataSource"]

ANSWER_TIMEOUT: Final = 30.0
"""Seconds that the source of a query that is about to end waits for the clock's last word;
afterwards nothing moves."""

_POLL: Final = 0.01

_NOT_DRIVEN: Final = (
    "nobody drives this query: a frame made by lowwater_spark.drive() is started by stage.start(...) or stage.foreach_batch(...), whose clock "
    "moves its watermark. Started by writeStream it would keep its windows for ever."
)


class ControlDataSource(DataSource):
    """The format :data:`~lowwater_spark.sources.control.FORMAT`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the one column: milliseconds, since Python has no time after the year 9999."""
        return "value bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names
        """Return the reader."""
        return ControlReader(self.options[DIRECTORY])


@dataclass
class _Move(InputPartition):
    """One move of the watermark."""

    watermark: int


class ControlReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Gives out what the clock has told, and never less than Spark's own log says."""

    def __init__(self, directory: str) -> None:
        self._control = Control(directory)
        self._asks = False
        self._questions = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins: nothing given out."""
        self._read()
        return Offset().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take note that the query ends when no source has anything new: from now on the clock is asked, and waited for."""
        self._asks = True

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """Return the newest value, or ``start`` while there is no newer one."""
        told = self._read()
        if self._asks and not told.final:
            told = self._ask(told)
        before = Offset.from_json(start)
        after = told.newest(before)
        return start if after is before else after.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition when the value has moved, none when it has not."""
        after = Offset.from_json(end)
        return [_Move(after.watermark)] if after.follows(Offset.from_json(start)) else []

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Give the control row."""
        assert isinstance(partition, _Move)
        yield (partition.watermark,)

    def _read(self) -> Told:
        told = self._control.told()
        if told is None:
            raise RuntimeError(_NOT_DRIVEN)
        return told

    def _ask(self, told: Told) -> Told:
        self._questions += 1
        self._control.ask(self._questions)
        deadline = time.monotonic() + ANSWER_TIMEOUT
        while told.answered < self._questions and time.monotonic() < deadline:
            time.sleep(_POLL)
            told = self._read()
        return told
