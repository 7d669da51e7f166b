"""The control of a driven query as a Python Data Source: its offset is a watermark.

Whenever the watermark moves, the source gives one row with that time. Only ``drive()``, Spark's
driver-side Python process and the executor that makes the row import this module.

The source may never go back behind the offset in Spark's own log. Spark says where a query goes on
from in one of two ways, so there are two readers:

* Since 4.2 Spark passes the query's last offset with each question:
  :class:`~lowwater_spark.sources.asking_reader.AskingReader`.
* Before, Spark passes nothing, and :class:`RememberingReader` remembers that offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from lowwater_spark.sources.control import DIRECTORY, FORMAT, REMEMBERS, ClockValue, Control, Offset

__all__ = ["ControlDataSource", "ControlReader", "RememberingReader"]

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
        """Return the reader for this Spark."""
        if self.options[REMEMBERS] == "true":
            return RememberingReader(self.options[DIRECTORY])
        # The module needs PySpark 4.2.
        from lowwater_spark.sources.asking_reader import AskingReader

        return AskingReader(self.options[DIRECTORY])


@dataclass
class _Move(InputPartition):
    """One move of the watermark."""

    watermark: int


class ControlReader(DataSourceStreamReader):
    """Gives the clock's values to Spark. A subclass chooses the newest offset."""

    def __init__(self, directory: str) -> None:
        self.control = Control(directory)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the first offset of a new query: no watermark."""
        self.clock_value()
        return Offset().to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition when the watermark has moved, else none."""
        after = Offset.from_json(end)
        return [_Move(after.watermark)] if after.follows(Offset.from_json(start)) else []

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Yield the control row."""
        assert isinstance(partition, _Move)
        yield (partition.watermark,)

    def clock_value(self) -> ClockValue:
        """Return the clock's last value. Raises RuntimeError when no clock drives the query."""
        value = self.control.last_value()
        if value is None:
            raise RuntimeError(_NOT_DRIVEN)
        return value


class RememberingReader(ControlReader):
    """The control for Spark before 4.2, which asks for the newest offset and passes none.

    The reader remembers the query's last offset, as JSON. When a query goes on from a checkpoint,
    Spark passes the newest offset of its log once, before its first question, as an empty range
    from that offset to itself (``setLatestSeenOffset`` of its Python source). After that each
    offset of the query is an answer of this reader.
    """

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._last: dict[str, Any] = Offset().to_json()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Return the newest value, or the last offset while there is no newer one."""
        self._remember(self.clock_value().offset.to_json())
        return self._last

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Remember the end of the range, and return its partitions."""
        self._remember(end)
        return super().partitions(start, end)

    def _remember(self, offset: dict[str, Any]) -> None:
        if Offset.from_json(offset).follows(Offset.from_json(self._last)):
            self._last = offset
