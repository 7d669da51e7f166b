"""State of a key range as immutable files, its *segments*: a batch adds a small one and links the others, so that it pays for what it changes and not for what is held.

A version names the segments of each range. What they hold and when they are merged or dropped is the update's affair: here they are written, linked from the version before, and read by
memory map. With each go a few whole numbers of the update, and perhaps a filter: bytes that say what it surely does not hold. It stands in the segment's file, so it cannot be of another version
than what it speaks of.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

    import lowwater

__all__ = ["FreshSegment", "NextSegments", "Segment", "SegmentUpdate", "Segments", "load", "save", "write_segments"]

_SEGMENT: Final = ".segment"
_FILTER: Final = b"filter"


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment that is in a version."""

    name: str
    """Of its file, in the version's directory."""
    rows: int
    facts: tuple[int, ...] = ()
    """What the update has noted of it, such as the least and greatest event time in it."""


@dataclass(frozen=True, slots=True)
class FreshSegment:
    """A segment that is to be written."""

    table: pa.Table
    """At least one row."""
    facts: tuple[int, ...] = ()
    filter: bytes = b""
    """Empty: it gets none."""


@dataclass(frozen=True, slots=True)
class Segments:
    """The state of a key range in the version that a batch builds on."""

    folder: str
    """The version's directory."""
    segments: Sequence[Segment] = ()
    facts: Sequence[int] = ()
    """What the update has noted of the range."""
    whole: str = ""
    """The path of the state in one file, as updates that know no segments keep it; empty when there is none."""

    def table(self) -> pa.Table | None:
        """Return the state in one file, None when there is none."""
        return load(self.whole)

    def read(self, segment: Segment) -> pa.Table:
        """Return a segment, mapped into memory: what is not looked at is not read."""
        import pyarrow as pa

        with pa.memory_map(f"{self.folder}/{segment.name}") as file:
            return pa.ipc.open_file(file).read_all()

    def filter(self, segment: Segment) -> bytes:
        """Return its filter, empty when it has none. O(filter); the rows are not read."""
        import pyarrow as pa

        with pa.memory_map(f"{self.folder}/{segment.name}") as file:
            metadata = pa.ipc.open_file(file).get_batch_with_custom_metadata(0).custom_metadata
            return b"" if metadata is None else metadata.get(_FILTER, b"")


@dataclass(frozen=True, slots=True)
class NextSegments:
    """The state of a key range in the version that a batch makes."""

    segments: Sequence[Segment | FreshSegment]
    """Those of the version before that stay, and those that are new."""
    facts: Sequence[int] = ()


@runtime_checkable
class SegmentUpdate(Protocol):
    """An update whose state is in segments; :meth:`lowwater_spark.Batch.stateful` takes it in the place of a function."""

    def update_segments(
        self, before: Segments, rows: pa.Table, low: lowwater.Watermark
    ) -> tuple[NextSegments, pa.Table | None, lowwater.EventTime | None, Iterable[Any]]:
        """Return what the function of ``stateful`` returns, with the segments as the state. The same from the same, whatever attempt or run calls it."""
        ...


def write_segments(after: NextSegments, before: Segments, folder: str, prefix: str) -> tuple[Segment, ...]:
    """Write or link the segments of a range into a version that is being made, under names that begin with ``prefix``. O(what is new + segments).

    Each attempt has a prefix of its own, so two of them do not meet. Nothing is durable before the version is.
    """
    written = []
    for number, segment in enumerate(after.segments):
        name = f"{prefix}-{number}{_SEGMENT}"
        if isinstance(segment, Segment):
            os.link(f"{before.folder}/{segment.name}", f"{folder}/{name}")
            rows = segment.rows
        else:
            save(segment.table, Path(folder, name), segment.filter)
            rows = segment.table.num_rows
        written.append(Segment(name, rows, segment.facts))
    return tuple(written)


def load(path: str) -> pa.Table | None:
    """Return the table of a file, None without a path. O(table)."""
    import pyarrow as pa

    if not path:
        return None
    with pa.OSFile(path) as file:
        return pa.ipc.open_file(file).read_all()


def save(table: pa.Table, path: Path, filter_: bytes = b"") -> None:
    """Write a table, in one piece when there is a filter. O(table)."""
    import pyarrow as pa

    with pa.OSFile(os.fspath(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        if filter_:
            [batch] = table.combine_chunks().to_batches()
            writer.write_batch(batch, {_FILTER: filter_})
        else:
            writer.write_table(table)
