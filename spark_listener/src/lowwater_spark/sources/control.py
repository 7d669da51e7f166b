"""The control of a driven query: the source whose offset is a watermark. Needs no PySpark.

The control is one more source of the query. Its offset is a watermark in milliseconds, with the
incarnations of the inputs from which it was read. Spark writes the offset into its own log before
the batch with it, so a replay makes the same row again, and a restart continues from the last
value.

Spark asks its sources in a Python process of its own, so the value travels through a directory of
the driver's machine:

* ``told``: the clock's last value, replaced as a whole. The file exists only while a stage runs the
  query. Without it the source fails: a query that no clock drives would keep its windows for ever.
* ``asked``: a count, written by the source of a query that ends when there is nothing more to read
  (``availableNow``). The source then waits until the clock has answered this question, so that the
  query does not end just before its windows could have been closed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from lowwater_spark.checkpoint.durable import write_over
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.base import Line, Rowless, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "DIRECTORY",
    "END",
    "FORMAT",
    "LAST",
    "NOTHING_GIVEN",
    "REMEMBERS",
    "Control",
    "ControlSource",
    "Drive",
    "Offset",
    "ClockValue",
    "is_control",
    "is_end",
    "later",
    "passes_offset",
]

FORMAT: Final = "lowwater_control"
"""Format of the source, as Spark names it."""

DIRECTORY: Final = "directory"
"""Option of the source: the directory of ``told`` and ``asked``."""

REMEMBERS: Final = "remembers"
"""Option of the source: ``true`` where Spark does not pass a query's last offset, so that the
source remembers it."""

END: Final = 2**62 // 1_000
"""Watermark for MAX, milliseconds, in the year 148,107. It is after the end of each window of a row
below :data:`LAST`, also of one of 9999-12-31. With such a window or delay added it is still a
timestamp of Spark."""

LAST: Final = 2**61
"""First event time that is refused, microseconds, in the year 75,042: :data:`END` may not close
its windows."""

_EARLIER_END: Final = 221_845_392_000_000
"""Watermark for MAX in checkpoints of earlier releases, milliseconds, 9000-01-01."""

NOTHING_GIVEN: Final = 0
"""Spark's own watermark before there is one, milliseconds."""


def is_control(leaf: Any) -> bool:
    """Return whether a leaf of a plan, as py4j gives it, is the control of a driven frame."""
    return bool(leaf.getClass().getSimpleName() == "StreamingRelationV2" and leaf.sourceName() == FORMAT)


def is_end(watermark: int) -> bool:
    """Return whether a watermark of a driven query, in milliseconds, means that it is finished."""
    return watermark >= END or watermark == _EARLIER_END


@dataclass(frozen=True, slots=True)
class Drive:
    """Arguments of one ``drive()``."""

    directory: str
    inputs: tuple[str, ...]
    event_time: str
    step: timedelta | None = None
    share: float | None = None
    """Share of the heuristic watermark to follow; None: the low watermark, or a budget."""
    late: str | None = None
    """Directory for rows that the watermark has passed; None: they are not written."""
    within: timedelta | None = None
    """Greatest distance in event time between duplicates of a row; None: not declared."""
    budget: float | None = None
    """Lateness budget to follow; None: none."""

    @property
    def guesses(self) -> bool:
        """True when the query follows a heuristic watermark or a budget, which promise nothing."""
        return self.share is not None or self.budget is not None


@dataclass(frozen=True, slots=True)
class Offset:
    """Offset of a control source."""

    watermark: int = NOTHING_GIVEN
    """Watermark, milliseconds since the epoch."""
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """Incarnation of each input from which the watermark was folded."""
    run: int = 0
    """Run that has given the value out, for a query with several controls; else 0. Spark keeps only
    the least of their watermarks, so a new run must give each of them out again."""

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark logs it."""
        return {"watermarkMs": self.watermark, "incarnations": dict(self.incarnations), "run": self.run}

    def follows(self, start: Offset) -> bool:
        """Return whether this offset comes after ``start``: a greater watermark, or a later run."""
        return (self.watermark, self.run) > (start.watermark, start.run)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Return the offset from the values of :meth:`to_json`."""
        incarnations = {str(name): int(number) for name, number in entry["incarnations"].items()}
        return cls(int(entry["watermarkMs"]), incarnations, int(entry["run"]))

    @classmethod
    def of_line(cls, line: str) -> Self:
        """Return the offset in a line of Spark's offset log.

        Raises ValueError for another source's.

        ``-`` is the line of a source that has given no offset yet.
        """
        if line == "-":
            return cls()
        try:
            return cls.from_json(json.loads(line))
        except (AttributeError, KeyError, TypeError) as error:
            msg = f"{line!r} is not the offset of a control source"
            raise ValueError(msg) from error


@dataclass(frozen=True, slots=True)
class ClockValue:
    """The clock's last value."""

    offset: Offset
    answered: int = 0
    """Number of the last question that the clock had seen when it chose the value."""
    final: bool = False
    """True when the clock gives out nothing more in this run."""


class Control:
    """Both ends of a control's directory.

    The clock reserves the directory, writes values and closes it; the source reads and asks.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._folder = Path(directory)
        self._value_file = self._folder / "told"
        self._asked = self._folder / "asked"

    # -- the clock's end ---------------------------------------------------------------------------

    def reserve(self) -> None:
        """Reserve the directory for this query, without a value yet.

        Raises ValueError while another query has it.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            (self._folder / "driver").open("x").close()
        except FileExistsError:
            msg = "this driven frame runs in another query already; call lws.drive() once for each query"
            raise ValueError(msg) from None
        self._value_file.unlink(missing_ok=True)
        self._asked.unlink(missing_ok=True)

    def write_value(self, value: ClockValue) -> None:
        """Write a value. A reader sees this one or the one before, whole."""
        entry = {"offset": value.offset.to_json(), "answered": value.answered, "final": value.final}
        write_over(self._value_file, json.dumps(entry).encode(), durable=False)

    def asked(self) -> int:
        """Return the number of the last question; 0 when there was none."""
        try:
            return int(self._asked.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0

    def silence(self) -> None:
        """Stop driving: the source fails when Spark asks it again."""
        self._value_file.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop driving, and delete the directory, so that the frame's next query can reserve it."""
        self.silence()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- the source's end --------------------------------------------------------------------------

    def last_value(self) -> ClockValue | None:
        """Return the clock's last value; None when no stage drives the query."""
        try:
            content = json.loads(self._value_file.read_bytes())
        except FileNotFoundError:
            return None
        return ClockValue(Offset.from_json(content["offset"]), int(content["answered"]), bool(content["final"]))

    def ask(self, number: int) -> None:
        """Ask the clock for a value that it chooses after this question."""
        write_over(self._asked, str(number).encode(), durable=False)


@dataclass(frozen=True, slots=True)
class ControlSource(Source, Rowless):
    """The source that moves Spark's own watermark in a driven query.

    The source has no log of its own, and no state in a run.
    """

    directory: str
    """Directory of the clock's next value."""

    kind = FORMAT

    @property
    def name(self) -> str:
        """Name of the source in errors."""
        return "the control of lws.drive()"

    def waiting_for(self, inputs: frozenset[str]) -> ControlSource:
        """Return the source unchanged: it has no rows of any writer."""
        return self

    def open(self, manifest: Manifest, number: int) -> ControlSource:
        """Return the source itself for one run of a query."""
        return self

    def read_to(self, line: Line) -> None:
        """Read nothing. Raises as :meth:`check`."""
        self.check(line)

    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no offset of a control."""
        try:
            Offset.of_line(line)
        except ValueError as error:
            raise CheckpointMismatch(str(error)) from error


def later(start: dict[str, Any], offset: Offset) -> dict[str, Any]:
    """Return ``offset`` as JSON if it follows ``start``, else ``start`` itself.

    Spark's log may be ahead of a clock that has just begun. Spark compares offsets as texts, so
    ``start`` comes back as it is, and not from its parsed values.
    """
    return offset.to_json() if offset.follows(Offset.from_json(start)) else start


def passes_offset(spark: SparkSession) -> bool:
    """Return whether Spark passes a query's last offset to a Python data source: from 4.2 on."""
    return tuple(int(part) for part in spark.version.split(".")[:2]) >= (4, 2)
