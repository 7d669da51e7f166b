"""A source without a known head: anything that Spark reads and that no other module here knows.

An injector needs no head: it reports by its frontier how far its committed batches have read. So
any source may begin a pipeline: Kafka, Kinesis, a table, a Python data source. A stage with inputs
must know what was in its source when W was read, so it refuses such a source
(:meth:`OpaqueSource.waiting_for`). Without the refusal the stage would hold: no offset reaches the
head.

Only the source understands its lines in ``offsets/N``. Three checks apply to all of them:

* The source of a checkpoint keeps its kind, by its name (:mod:`lowwater_spark.checkpoint.identity`)
  and by the JSON type of its lines.
* A plain number, like that of ``rate``, does not go down, nor does the offset of a partition in
  Kafka. If it did, the place was emptied or created again, and rows with the same numbers would be
  read twice, or never.
* Files that the source has written in ``CHECKPOINT/sources/<number>`` are made durable with the
  batch: ``rate`` keeps its start time there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.location import Location
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import NONE, Line, Rowless, Source

if TYPE_CHECKING:
    from lowwater_spark.checkpoint.manifest import Manifest

__all__ = ["OpaqueSource", "OpenOpaque"]

_ONCE: Final[Mapping[str, str]] = {
    "socket": "it gives its rows once, and a batch that runs again after a crash would lack them",
    "textsocket": "it gives its rows once, and a batch that runs again after a crash would lack them",
}
"""Reason why a source cannot repeat its rows, by the source's format."""

_WORDS: Final[Mapping[type, str]] = {dict: "an object", list: "a list", int: "a number", float: "a number"}


@dataclass(frozen=True, slots=True)
class OpaqueSource(Source):
    """Any source that Spark reads, by its format in the query's plan."""

    kind: str
    """Format of the source: ``rate``, ``kafka``."""

    def __post_init__(self) -> None:
        once = _ONCE.get(self.kind.lower())
        if once is not None:
            raise Unsupported(
                f"The source {self.kind}", once, "Bring the rows in by files, or by a source that keeps them."
            )

    @property
    def name(self) -> str:
        """Name of the source in errors."""
        return f"the source {self.kind}"

    def waiting_for(self, inputs: frozenset[str]) -> OpaqueSource:
        """Return the source for an injector, which has no inputs.

        Raises Unsupported for a stage.
        """
        if inputs:
            raise Unsupported(
                f"The source {self.kind} in a stage with inputs ({', '.join(sorted(inputs))})",
                "this release does not know where it ends, so rows that the inputs' watermark covers could still be unread",
                "Begin the pipeline here with lws.injector(), which reports how far it is; or let an injector write its rows to files, and track "
                "the query that reads them.",
            )
        return self

    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no JSON."""
        _value(self.kind, line)

    def open(self, manifest: Manifest, number: int) -> OpenOpaque:
        """Return the source for one run of a query."""
        return OpenOpaque(self.kind, manifest.checkpoint / "sources" / str(number))


class OpenOpaque(Rowless):
    """A source without a known head in a running query. ``folder`` has the source's own files.

    ``order`` returns in words how a line is below the one before; empty when it is not. By default
    only plain numbers have an order.
    """

    def __init__(self, kind: str, folder: Location, order: Callable[[Line, Line], str] | None = None) -> None:
        self._kind = kind
        self._order = _went_back if order is None else order
        self._folder = folder
        self._committed: Line = NONE
        self._noted: set[Location] = set()
        """Files of the source that are durable."""
        self._named: set[Location] = set()
        """All files of the source at the last :meth:`evidence`: durable when the batch counts."""

    def reached(self, head: None, offset: Line | None) -> bool:
        """Return False: a stage that waited for this source would hold."""
        return False

    def missing(self, head: None, limit: int) -> list[str]:
        """Return the reason why no newer watermark counts."""
        return [f"the source {self._kind} (lowwater does not know where it ends)"]

    def read_to(self, line: Line) -> None:
        """Compare a planned line with the committed one.

        Raises CheckpointMismatch for a line of another kind, or below the committed one.
        """
        before, now = _value(self._kind, self._committed), _value(self._kind, line)
        if before is None:
            return
        if _word(before) != _word(now):
            msg = (
                f"the offset of the source {self._kind} was {_word(before)} ({self._committed}) and is {_word(now)} ({line}): another source is in its "
                "place. Start the query with its first source, or with another one from a new checkpoint, with adopt=True."
            )
            raise CheckpointMismatch(msg)
        if back := self._order(self._committed, line):
            msg = (
                f"the offset of the source {self._kind} has gone back, {back}: the source was emptied or created again, and the checkpoint has read "
                "the old one. Restore the source, or start from a new checkpoint, with adopt=True."
            )
            raise CheckpointMismatch(msg)

    def confirm(self, line: Line) -> None:
        """Take a line as the committed one, with which later lines are compared."""
        self._committed = line
        self._noted = set(self._named)

    def evidence(self, line: Line) -> list[Location]:
        """Return the source's own files since the last committed batch."""
        try:
            files = {path for path in self._folder.rglob("*") if path.suffix != ".tmp" and path.is_file()}
        except FileNotFoundError:
            files = set()
        self._named = files
        return sorted(files - self._noted)


def _went_back(before: Line, now: Line) -> str:
    old, new = json.loads(before), json.loads(now)
    numbers = isinstance(old, int | float) and isinstance(new, int | float)
    return f"from {old} to {new}" if numbers and new < old else ""


def _value(kind: str, line: Line) -> Any:
    """Return a line as JSON values; None for the line before the first rows.

    Raises CheckpointMismatch.
    """
    if line == NONE:
        return None
    try:
        return json.loads(line)
    except ValueError as error:
        msg = (
            f"{line!r} is no offset of {kind}, whose offsets are JSON: the checkpoint is damaged, or belongs to another source. Restore it as a whole, "
            "or start from a new one, with adopt=True."
        )
        raise CheckpointMismatch(msg) from error


def _word(value: Any) -> str:
    return "nothing" if value is None else _WORDS.get(type(value), "a text")
