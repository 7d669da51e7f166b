"""What moves Spark's own watermark in a driven query: the value, and how it gets from the clock to Spark. Needs no PySpark.

A driven query has one source more, the *control*, whose offset is the value itself: a watermark in milliseconds, and the incarnations of the inputs
that it was read from. Spark writes the offset into its own log before the batch that carries it, so a replay makes the same row again, and a
restart finds the last value where it left it.

Spark asks its sources in a Python process of its own, so the value travels through a directory of the driver's machine:

* ``told``: what the clock last gave out, replaced as a whole. It is there only while a stage runs the query: without it the source
  fails, since a query that nobody drives would keep its windows for ever.
* ``asked``: a count, written by the source of a query that ends when there is nothing more to read (``availableNow``). It then waits until
  the clock has answered that very question, so that the query does not end just before its windows could have been closed.
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
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import Line, Rowless

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "DIRECTORY",
    "END",
    "FORMAT",
    "LAST",
    "NOTHING_GIVEN",
    "Control",
    "ControlSource",
    "Drive",
    "Offset",
    "Told",
    "check_version",
    "is_control",
    "is_end",
]

FORMAT: Final = "lowwater_control"
"""The name of the source's format."""

DIRECTORY: Final = "directory"
"""Its option: where ``told`` and ``asked`` lie."""

END: Final = 2**62 // 1_000
"""Milliseconds, in the year 148,107: the watermark that stands for MAX. It is beyond the end of
each window of a row below :data:`LAST`, also of one of 9999-12-31, and still a timestamp of Spark
with such a window or delay added."""

LAST: Final = 2**61
"""Microseconds, in the year 75,042: event times from here on are refused, since :data:`END` may not
close their windows."""

_EARLIER_END: Final = 221_845_392_000_000
"""Milliseconds, 9000-01-01: what stood for MAX before :data:`END` did. Checkpoints of that time
keep it."""

NOTHING_GIVEN: Final = 0
"""Milliseconds: Spark's own watermark before there is one."""


def is_control(leaf: Any) -> bool:
    """Return whether a leaf of a plan, as py4j gives it, is the source of a driven frame's watermark."""
    return bool(leaf.getClass().getSimpleName() == "StreamingRelationV2" and leaf.sourceName() == FORMAT)


def is_end(watermark: int) -> bool:
    """Return whether a watermark of a driven query, in milliseconds, says that all inputs are finished."""
    return watermark >= END or watermark == _EARLIER_END


@dataclass(frozen=True, slots=True)
class Drive:
    """What one ``drive()`` has declared."""

    directory: str
    inputs: tuple[str, ...]
    event_time: str
    step: timedelta | None = None
    share: float | None = None
    """The heuristic watermark to follow; None: the low watermark, or a budget."""
    late: str | None = None
    """Where rows go that the watermark has passed."""
    within: timedelta | None = None
    """How far apart in event time the duplicates of a row may be."""
    budget: float | None = None
    """The lateness budget to follow; None: none."""

    @property
    def guesses(self) -> bool:
        """Whether it follows what nobody promises."""
        return self.share is not None or self.budget is not None


@dataclass(frozen=True, slots=True)
class Offset:
    """The offset of a control source: all that is known of its value."""

    watermark: int = NOTHING_GIVEN
    """Milliseconds since the epoch."""
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """Of each input that the value was folded from."""
    run: int = 0
    """Of a query with several controls: the run that has given it out. Spark remembers the least of
    their watermarks, and not each, so that a new run must say all of them again."""

    def to_json(self) -> dict[str, Any]:
        """Return it as Spark logs it."""
        return {"watermarkMs": self.watermark, "incarnations": dict(self.incarnations), "run": self.run}

    def follows(self, start: Offset) -> bool:
        """Return whether it goes beyond another one. Never with a lower value."""
        return (self.watermark, self.run) > (start.watermark, start.run)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_json` described."""
        incarnations = {str(name): int(number) for name, number in entry["incarnations"].items()}
        return cls(int(entry["watermarkMs"]), incarnations, int(entry["run"]))

    @classmethod
    def of_line(cls, line: str) -> Self:
        """Return the offset that a line of Spark's offset log holds; ``-`` is a source that was not asked yet. Raises ValueError."""
        if line == "-":
            return cls()
        try:
            return cls.from_json(json.loads(line))
        except (AttributeError, KeyError, TypeError) as error:
            msg = f"{line!r} is not the offset of a control source"
            raise ValueError(msg) from error


@dataclass(frozen=True, slots=True)
class Told:
    """What the clock last gave out."""

    offset: Offset
    answered: int = 0
    """The last question that it knew of when it chose the value."""
    final: bool = False
    """Whether nothing more will be given out in this run."""

    def newest(self, start: Offset) -> Offset:
        """Return the offset to go on to from ``start``.

        Never a lower one: Spark's log may be ahead of a clock that has just begun.
        """
        return self.offset if self.offset.follows(start) else start


class Control:
    """Both ends of a control's directory.

    The clock reserves it, tells and closes; the source reads and asks.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._folder = Path(directory)
        self._told = self._folder / "told"
        self._asked = self._folder / "asked"

    # -- the clock's end ---------------------------------------------------------------------------

    def reserve(self) -> None:
        """Make the directory this query's, which is told nothing yet.

        Raises ValueError while another query has it.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            (self._folder / "driver").open("x").close()
        except FileExistsError:
            msg = "this driven frame runs in another query already; call lws.drive() once for each query"
            raise ValueError(msg) from None
        self._told.unlink(missing_ok=True)
        self._asked.unlink(missing_ok=True)

    def tell(self, told: Told) -> None:
        """Give out a value; whoever reads sees this one or the one before, whole."""
        entry = {"offset": told.offset.to_json(), "answered": told.answered, "final": told.final}
        write_over(self._told, json.dumps(entry).encode(), durable=False)

    def asked(self) -> int:
        """Return the number of the last question; 0 when there was none."""
        try:
            return int(self._asked.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0

    def silence(self) -> None:
        """Stop driving: the source then fails if it is asked again."""
        self._told.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop driving, and leave the directory, which goes with all that is in it, to the next query of the frame."""
        self.silence()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- the source's end --------------------------------------------------------------------------

    def told(self) -> Told | None:
        """Return what was given out last; None when no stage drives the query."""
        try:
            entry = json.loads(self._told.read_bytes())
        except FileNotFoundError:
            return None
        return Told(Offset.from_json(entry["offset"]), int(entry["answered"]), bool(entry["final"]))

    def ask(self, number: int) -> None:
        """Ask for an answer that knows of this question."""
        write_over(self._asked, str(number).encode(), durable=False)


@dataclass(frozen=True, slots=True)
class ControlSource(Rowless):
    """The source that moves Spark's own watermark in a driven query.

    It has no log of its own, and keeps nothing of a run.
    """

    directory: str
    """Where the value lies that it gives out next."""

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return "the control of lws.drive()"

    @property
    def kind(self) -> str:
        """A control."""
        return FORMAT

    def waiting_for(self, inputs: frozenset[str]) -> ControlSource:
        """Return it: it has no rows of anybody."""
        return self

    def check_writers(self) -> None:
        """Do nothing: it has no rows of anybody."""

    def open(self, manifest: Manifest, number: int) -> ControlSource:
        """Return it for one run of a query."""
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


def check_version(spark: SparkSession, what: str) -> None:
    """Raise Unsupported, of ``what``, for a Spark whose Python data sources cannot go on where a query stands."""
    version = tuple(int(part) for part in spark.version.split(".")[:2])
    if version < (4, 2):
        raise Unsupported(
            f"{what} on Spark {spark.version}",
            "a Python data source is told from where it goes on only since 4.2 (SPARK-55304); before, it could go back after a restart",
            "Use Spark 4.2 or newer; lws.attach() and tracked stages work with older ones.",
        )
