"""A source of which nobody can say where it ends: anything that Spark reads and that no other module here knows.

An injector needs no head. What it has brought in is what its committed batches have read, and it says itself, by its frontier, how far that is. So any
source may begin a pipeline: Kafka, Kinesis, a table, a Python data source. A stage with inputs has to know what stood in its source when W was read, so
it is refused (:meth:`OpaqueSource.waiting_for`), and if it were not, it would hold: no head of such a source is ever reached.

Three things are asked of its lines in ``offsets/N``, which else only the source understands:

* The source of a checkpoint stays of one kind, by its name (:mod:`lowwater_spark.checkpoint.identity`) and by the JSON of its lines.
* A plain number, as that of ``rate``, and the offset of a partition, as those of Kafka, do not go back: the place was emptied or made anew, and rows that
  have the same numbers would be read again, or never.
* What the source has noted for itself in ``CHECKPOINT/sources/<number>`` is made durable with the batch: ``rate`` keeps there since when it counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.location import Location
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import NONE, Line, Rowless

if TYPE_CHECKING:
    from lowwater_spark.checkpoint.manifest import Manifest

__all__ = ["OpaqueSource", "OpenOpaque"]

_ONCE: Final[Mapping[str, str]] = {
    "socket": "it gives its rows once, and a batch that runs again after a crash would be without them",
    "textsocket": "it gives its rows once, and a batch that runs again after a crash would be without them",
}
"""Sources, by their names, that Spark itself cannot ask twice."""

_WORDS: Final[Mapping[type, str]] = {dict: "an object", list: "a list", int: "a number", float: "a number"}


@dataclass(frozen=True, slots=True)
class OpaqueSource:
    """Any source that Spark reads, as the plan names it."""

    kind: str
    """The name of its format: ``rate``, ``kafka``."""

    def __post_init__(self) -> None:
        once = _ONCE.get(self.kind.lower())
        if once is not None:
            raise Unsupported(
                f"The source {self.kind}", once, "Bring the rows in by files, or by a source that keeps them."
            )

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return f"the source {self.kind}"

    def waiting_for(self, inputs: frozenset[str]) -> OpaqueSource:
        """Return it for an injector, which waits for nobody. Raises Unsupported for a stage."""
        if inputs:
            raise Unsupported(
                f"The source {self.kind} in a stage with inputs ({', '.join(sorted(inputs))})",
                "this release does not know where it ends, so rows that the inputs' watermark covers could still be unread",
                "Begin the pipeline here with lws.injector(), which says itself how far it has come; or let an injector write what it gives to "
                "files, and track the query that reads them.",
            )
        return self

    def check_writers(self) -> None:
        """Do nothing: nobody leaves a mark in it."""

    def check(self, line: Line) -> None:
        """Raise CheckpointMismatch for a line that is no JSON."""
        _value(self.kind, line)

    def open(self, manifest: Manifest, number: int) -> OpenOpaque:
        """Return it for one run of a query."""
        return OpenOpaque(self.kind, manifest.checkpoint / "sources" / str(number))


class OpenOpaque(Rowless):
    """Such a source of a query that runs. ``folder`` is where it notes what it likes.

    ``order`` says where a line is below the one before, in words; empty where it is not. By default
    plain numbers have an order, and nothing else.
    """

    def __init__(self, kind: str, folder: Location, order: Callable[[Line, Line], str] | None = None) -> None:
        self._kind = kind
        self._order = _went_back if order is None else order
        self._folder = folder
        self._committed: Line = NONE
        self._noted: set[Location] = set()
        """What it has noted, and is durable."""
        self._named: set[Location] = set()
        """The same, and what :meth:`evidence` has named since."""

    def reached(self, head: None, offset: Line | None) -> bool:
        """Return False: whoever waited for it would hold."""
        return False

    def missing(self, head: None, limit: int) -> list[str]:
        """Return why nothing newer counts."""
        return [f"the source {self._kind} (nobody can say where it ends)"]

    def read_to(self, line: Line) -> None:
        """Compare a planned line with the committed one.

        Raises CheckpointMismatch when it is of another kind, or has gone back.
        """
        before, now = _value(self._kind, self._committed), _value(self._kind, line)
        if before is None:
            return
        if _word(before) != _word(now):
            msg = (
                f"the offset of the source {self._kind} was {_word(before)} ({self._committed}) and is {_word(now)} ({line}): another source stands in "
                "its place. Start the query with the source that it was begun with, or another one from a new checkpoint, with adopt=True."
            )
            raise CheckpointMismatch(msg)
        if back := self._order(self._committed, line):
            msg = (
                f"the offset of the source {self._kind} has gone back, {back}: it was emptied or made anew, and what the checkpoint has read is of "
                "the old one. Restore the source, or start from a new checkpoint, with adopt=True."
            )
            raise CheckpointMismatch(msg)

    def confirm(self, line: Line) -> None:
        """Compare later lines with this one."""
        self._committed = line
        self._noted = set(self._named)

    def evidence(self, line: Line) -> list[Location]:
        """Return what the source has noted for itself since the last committed batch."""
        try:
            found = {path for path in self._folder.rglob("*") if path.suffix != ".tmp" and path.is_file()}
        except FileNotFoundError:
            found = set()
        self._named = found
        return sorted(found - self._noted)


def _went_back(before: Line, now: Line) -> str:
    old, new = json.loads(before), json.loads(now)
    numbers = isinstance(old, int | float) and isinstance(new, int | float)
    return f"from {old} to {new}" if numbers and new < old else ""


def _value(kind: str, line: Line) -> Any:
    """Return a line as JSON, None for a source that has given nothing yet.

    Raises CheckpointMismatch.
    """
    if line == NONE:
        return None
    try:
        return json.loads(line)
    except ValueError as error:
        msg = (
            f"{line!r} is no offset of {kind}, which are JSON: the checkpoint was damaged, or begun with another source. Restore it as a whole, or "
            "start from a new one, with adopt=True."
        )
        raise CheckpointMismatch(msg) from error


def _word(value: Any) -> str:
    return "nothing" if value is None else _WORDS.get(type(value), "a text")
