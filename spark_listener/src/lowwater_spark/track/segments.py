"""State of a key range in *segments*: immutable tables.

A batch writes new segments and links the others, so it pays for what it changes, not for what is
held. A version names the segments of each range. The update decides what they contain and when they
are merged or dropped; this module writes them, links them from the version before, and reads them
by memory map. A segment has a few whole numbers of the update, and perhaps a filter: bytes that say
what it surely does not contain, stored in the segment's file so that both belong to one version.

A batch writes all new segments of a range with one schema into one file, since a sync takes longer
than writing a small file. A file is linked while its live segments are at least half of it; after
that they are copied into the batch's file. So files take at most about twice the bytes of the
segments, and no more is copied in all than is written.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import lowwater
from lowwater.watermark import MIN

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "MICROS",
    "PLACE",
    "Due",
    "FreshSegment",
    "NextSegments",
    "Parent",
    "RelaidUpdate",
    "Segment",
    "SegmentUpdate",
    "Segments",
    "SendingUpdate",
    "Unsent",
    "load",
    "write_segments",
]

PLACE: Final = "lowwater_place"
MICROS: Final = "lowwater_micros"
"""Columns that a :class:`RelaidUpdate`'s rows have besides their own: the place of the key, and the
event time in microseconds."""

_SUFFIX: Final = ".segments"
_FILTER: Final = b"filter"


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a version."""

    name: str
    """Name of the segment's file in the version's directory."""
    part: int
    """Index of the segment in the file, from 0."""
    rows: int
    size: int
    of: int
    """Bytes of all segments in the file."""
    facts: tuple[int, ...] = ()
    """Numbers that the update notes of the segment, such as its least and greatest event time."""


@dataclass(frozen=True, slots=True)
class FreshSegment:
    """A segment that will be written."""

    table: pa.Table
    facts: tuple[int, ...] = ()
    filter: bytes = b""
    """Filter of the segment; empty: none."""


@dataclass(frozen=True, slots=True)
class Segments:
    """The state of a key range in the version that a batch builds on."""

    folder: str
    segments: Sequence[Segment] = ()
    facts: Sequence[int] = ()
    """Numbers that the update has noted about the range."""
    whole: str = ""
    """Path of the state in one file, from an update without segments; empty without one."""
    _files: dict[str, pa.RecordBatchFileReader] = field(default_factory=dict, init=False, repr=False, compare=False)

    def read(self, segment: Segment) -> pa.Table:
        """Return a segment, mapped into memory: only what is used is read."""
        import pyarrow as pa

        return pa.Table.from_batches([self._file(segment.name).get_batch(segment.part)])

    def filter(self, segment: Segment) -> bytes:
        """Return a segment's filter, empty without one. O(filter); the rows are not read."""
        metadata = self._file(segment.name).get_batch_with_custom_metadata(segment.part).custom_metadata
        return b"" if metadata is None else metadata.get(_FILTER, b"")

    def _file(self, name: str) -> pa.RecordBatchFileReader:
        import pyarrow as pa

        if name not in self._files:
            self._files[name] = pa.ipc.open_file(pa.memory_map(f"{self.folder}/{name}"))
        return self._files[name]


class Due(NamedTuple):
    """Times at which a key range acts without any row, microseconds; None: never."""

    low: int | None = None
    """Low watermark at which the range acts."""
    wall: int | None = None
    """Time of the driver's clock at which the range acts."""


@dataclass(frozen=True, slots=True)
class NextSegments:
    """The state of a key range in the version that a batch makes."""

    segments: Sequence[Segment | FreshSegment]
    """Segments of the version before that stay, and new ones."""
    facts: Sequence[int] = ()
    due: Due | None = None
    """Times at which the range acts; None: unknown, and held rows are due by the low watermark."""


@runtime_checkable
class SegmentUpdate(Protocol):
    """An update that keeps its state in segments; ``batch.stateful()`` accepts it as a function."""

    def update_segments(
        self, before: Segments, rows: pa.Table, low: lowwater.Watermark
    ) -> tuple[NextSegments, pa.Table | None, lowwater.EventTime | None, Iterable[Any]]:
        """Return the result of a ``stateful`` function, with the segments as the state.

        The result must be the same in every attempt and run with the same arguments.
        """
        ...


@dataclass(frozen=True, slots=True)
class Parent:
    """A range of the version before, under an earlier cut of the key space."""

    segments: Segments
    places: tuple[int, int] | None = None
    """Places of the keys that the new range receives, from the first to before the second; None:
    all. A place is the signed xxhash64 of the stage's key."""


@runtime_checkable
class RelaidUpdate(SegmentUpdate, Protocol):
    """An update whose ranges can be cut again, because it knows its keys' places.

    Its rows also have the columns :data:`PLACE` and :data:`MICROS`.
    """

    def update_relaid(
        self, parents: Sequence[Parent], rows: pa.Table, low: lowwater.Watermark
    ) -> tuple[NextSegments, pa.Table | None, lowwater.EventTime | None, Iterable[Any]]:
        """Return the result of ``update_segments`` for a range with keys of several parents.

        The result may contain segments of the parents. A key is in one parent only. The update must
        hold no pending records.
        """
        ...


class Unsent(NamedTuple):
    """Rows that an update keeps in its state until another store has accepted them."""

    rows: int
    oldest: int
    """Least stamp of the rows, microseconds: it holds the low watermark."""
    since: int
    """Clock of the batch that has kept the first row, microseconds; MIN if unknown."""
    to: str
    """Name of the store, in words."""

    def __str__(self) -> str:
        """Return the rows in an operator's words."""
        many = f"{self.rows} unacknowledged productions" if self.rows > 1 else "an unacknowledged production"
        since = "" if self.since == MIN else f" since {lowwater.Watermark(self.since)}"
        return f"{many} to {self.to}{since}, the oldest of {lowwater.Watermark(self.oldest)}"


@runtime_checkable
class SendingUpdate(SegmentUpdate, Protocol):
    """An update that sends rows itself, and keeps those that were not accepted."""

    def unsent(self, segments: Iterable[Segment]) -> Sequence[Unsent]:
        """Return the unsent rows in all segments of a version.

        Runs in the driver, and reads no segment.
        """
        ...


def write_segments(after: NextSegments, before: Segments, folder: str, prefix: str) -> tuple[Segment, ...]:
    """Write or link the segments of a range into a version that is being made.

    O(written + segments).

    ``prefix`` begins the names of the files; every attempt has one of its own, so attempts do not
    collide. The files become durable with the version.
    """
    live: Counter[str] = Counter()
    for segment in after.segments:
        if isinstance(segment, Segment):
            live[segment.name] += segment.size
    links: dict[str, str] = {}
    for segment in after.segments:
        if isinstance(segment, Segment) and segment.name not in links and 2 * live[segment.name] >= segment.of:
            links[segment.name] = f"{prefix}-{len(links) + 1}{_SUFFIX}"
            os.link(f"{before.folder}/{segment.name}", f"{folder}/{links[segment.name]}")
    files: dict[pa.Schema, str] = {}
    fresh: dict[str, list[FreshSegment]] = {}
    placed: list[Segment] = []
    for segment in after.segments:
        if isinstance(segment, Segment) and segment.name in links:
            placed.append(replace(segment, name=links[segment.name]))
            continue
        if isinstance(segment, Segment):
            written, size = FreshSegment(before.read(segment), segment.facts, before.filter(segment)), segment.size
        else:
            written, size = segment, segment.table.nbytes + len(segment.filter)
        own = files.setdefault(written.table.schema, f"{prefix}-new{len(files)}{_SUFFIX}")
        parts = fresh.setdefault(own, [])
        placed.append(Segment(own, len(parts), written.table.num_rows, size, 0, written.facts))
        parts.append(written)
    sizes: Counter[str] = Counter()
    for segment in placed:
        sizes[segment.name] += segment.size
    for name, parts in fresh.items():
        _save(parts, f"{folder}/{name}")
    return tuple(replace(segment, of=sizes[segment.name]) if segment.name in fresh else segment for segment in placed)


def _save(segments: Sequence[FreshSegment], path: str) -> None:
    """Write segments into a file, each as one batch. O(rows)."""
    import pyarrow as pa

    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, segments[0].table.schema) as writer:
        for segment in segments:
            [batch] = segment.table.combine_chunks().to_batches()
            writer.write_batch(batch, {_FILTER: segment.filter} if segment.filter else None)


def load(path: str) -> pa.Table | None:
    """Return the table in a file; None without a path. O(table)."""
    import pyarrow as pa

    if not path:
        return None
    with pa.OSFile(path) as file:
        return pa.ipc.open_file(file).read_all()
