"""The control of a driven query as a Python Data Source: its offset is a watermark.

Whenever the watermark moves, the source gives one row with that time. Only ``drive()``, Spark's
driver-side Python process and the executor that makes the row import this module.

The source must not go back behind the query's last offset. Spark tells it that offset in one of two
ways, so there are two readers:

* Since 4.2 Spark passes the last offset with each question: :class:`ControlReader`.
* Before, Spark passes no offset with a question: :class:`RememberingReader`.

Spark pickles the reader by the name of its class, and executors load it to make the control row. So
``ControlReader`` and ``_Move`` keep their names and this module: in a rolling upgrade executors may
still have an earlier release.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from lowwater_spark.sources.control import DIRECTORY, FORMAT, REMEMBERS, ClockValue, Control, Offset, later

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow  # pyright: ignore[reportAssignmentType]
except ImportError:  # before 4.2, where RememberingReader is used

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands for the class that this PySpark does not have."""


__all__ = ["ControlDataSource", "ControlReader", "RememberingReader"]

ANSWER_TIMEOUT: Final = 30.0
"""Seconds that the source of an ending query waits for the clock's last value. After that the
watermark stays."""

_POLL: Final = 0.01
"""Seconds between two looks for the clock's answer."""

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
        reader = RememberingReader if self.options[REMEMBERS] == "true" else ControlReader
        return reader(self.options[DIRECTORY])


@dataclass
class _Move(InputPartition):
    """One move of the watermark."""

    watermark: int


class _Reader(DataSourceStreamReader):
    """Gives the clock's values to Spark. A subclass knows the query's last offset."""

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


class ControlReader(_Reader, SupportsTriggerAvailableNow):
    """The control for Spark 4.2 and newer, which passes the query's last offset."""

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
        return later(start, value.offset)

    def _ask(self, value: ClockValue) -> ClockValue:
        self._questions += 1
        self.control.ask(self._questions)
        deadline = time.monotonic() + ANSWER_TIMEOUT
        while value.answered < self._questions and time.monotonic() < deadline:
            time.sleep(_POLL)
            value = self.clock_value()
        return value


class RememberingReader(_Reader):
    """The control for Spark before 4.2, which asks for the newest offset and passes none.

    The reader remembers the greatest offset that Spark has named to it, as JSON. When a query
    starts from a checkpoint, Spark passes the newest offset of its log once, before its first
    question, as an empty range from that offset to itself (``setLatestSeenOffset`` of its Python
    source). After that each offset of the query is an answer of this reader.

    There is one exception. Spark reads its log once more after that range. If an older run, which
    is not fenced yet, plans and commits a batch in between, Spark starts from an offset that the
    reader does not know, and the first answer may be lower. Then the batch has no control row, and
    Spark's watermark stays. The range of that batch begins with the unknown offset, so from the
    next answer on the reader goes by it.
    """

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._last: dict[str, Any] = Offset().to_json()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Return the newest value, or the last offset while there is no newer one."""
        self._last = later(self._last, self.clock_value().offset)
        return self._last

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Remember both ends of the range, and return its partitions."""
        for offset in (start, end):
            if Offset.from_json(offset).follows(Offset.from_json(self._last)):
                self._last = offset
        return super().partitions(start, end)
