"""State of a key range in *segments*, tables that are never changed: a batch writes new ones and links the others, so that it pays for what it changes and not for what is held.

A version names the segments of each range. What they hold and when they are merged or dropped is the update's affair: here they are written, linked from the version before, and read by
memory map. With each go a few whole numbers of the update, and perhaps a filter: bytes that say what it surely does not hold. It stands in the segment's file, so it cannot be of another version
than what it speaks of.

A batch writes all new segments of a range that have one schema into one file, since a file has to be synced, which takes longer than to write a small one. A file is linked as long as the segments that are still named are
half of it; then those that are left go into the file of the batch. So files take at most about twice what the segments do, and no more is copied in all than is written.
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
"""What rows of a :class:`RelaidUpdate` have beside their own columns: the place of the key, and the
event time in microseconds."""

_SUFFIX: Final = ".segments"
_FILTER: Final = b"filter"


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment that is in a version."""

    name: str
    """Of its file, in the version's directory."""
    part: int
    """Which one in the file it is, from 0."""
    rows: int
    size: int
    """Bytes of the table and its filter, about."""
    of: int
    """Bytes of all segments in the file."""
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
    """The path of the state in one file, as updates that know no segments keep it; empty when there
    is none."""
    _files: dict[str, pa.RecordBatchFileReader] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Those that were looked into."""

    def read(self, segment: Segment) -> pa.Table:
        """Return a segment, mapped into memory: what is not looked at is not read."""
        import pyarrow as pa

        return pa.Table.from_batches([self._file(segment.name).get_batch(segment.part)])

    def filter(self, segment: Segment) -> bytes:
        """Return its filter, empty when it has none. O(filter); the rows are not read."""
        metadata = self._file(segment.name).get_batch_with_custom_metadata(segment.part).custom_metadata
        return b"" if metadata is None else metadata.get(_FILTER, b"")

    def _file(self, name: str) -> pa.RecordBatchFileReader:
        import pyarrow as pa

        if name not in self._files:
            self._files[name] = pa.ipc.open_file(pa.memory_map(f"{self.folder}/{name}"))
        return self._files[name]


class Due(NamedTuple):
    """When a key range has something to do without any row, microseconds; None: never."""

    low: int | None = None
    """When the low watermark is there, or beyond."""
    wall: int | None = None
    """When the driver's clock is."""


@dataclass(frozen=True, slots=True)
class NextSegments:
    """The state of a key range in the version that a batch makes."""

    segments: Sequence[Segment | FreshSegment]
    """Those of the version before that stay, and those that are new."""
    facts: Sequence[int] = ()
    due: Due | None = None
    """None: the update does not tell, and what is held is taken to close when W has passed it."""


@runtime_checkable
class SegmentUpdate(Protocol):
    """An update whose state is in segments; :meth:`lowwater_spark.Batch.stateful` takes it in the place of a function."""

    def update_segments(
        self, before: Segments, rows: pa.Table, low: lowwater.Watermark
    ) -> tuple[NextSegments, pa.Table | None, lowwater.EventTime | None, Iterable[Any]]:
        """Return what the function of ``stateful`` returns, with the segments as the state.

        The same from the same, whatever attempt or run calls it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Parent:
    """A range of the version before, in a cut of the key space that has changed since."""

    segments: Segments
    places: tuple[int, int] | None = None
    """The keys that the new range has of it: those whose place, the signed xxhash64 of the stage's
    key, is from the first to before the second. None: all."""


@runtime_checkable
class RelaidUpdate(SegmentUpdate, Protocol):
    """An update whose ranges can be cut otherwise between two batches: it can tell which keys of its state are of which places.

    Its rows have the columns :data:`PLACE` and :data:`MICROS` as well.
    """

    def update_relaid(
        self, parents: Sequence[Parent], rows: pa.Table, low: lowwater.Watermark
    ) -> tuple[NextSegments, pa.Table | None, lowwater.EventTime | None, Iterable[Any]]:
        """Return what ``update_segments`` returns, of a range that has its keys from several ranges, or a part of one.

        Segments of parents may stand in what is returned. No key is in two parents. It must hold no records that it tells as pending.
        """
        ...


class Unsent(NamedTuple):
    """Rows that an update keeps in its state until another store has taken them."""

    rows: int
    oldest: int
    """The least of their stamps, microseconds: the low watermark does not pass it."""
    since: int
    """The clock of the batch that has kept the first of them, microseconds; MIN when nobody has
    noted it."""
    to: str
    """The store, in words."""

    def __str__(self) -> str:
        """Return it as an operator reads it."""
        many = f"{self.rows} unacknowledged productions" if self.rows > 1 else "an unacknowledged production"
        since = "" if self.since == MIN else f" since {lowwater.Watermark(self.since)}"
        return f"{many} to {self.to}{since}, the oldest of {lowwater.Watermark(self.oldest)}"


@runtime_checkable
class SendingUpdate(SegmentUpdate, Protocol):
    """An update that sends rows by itself, and keeps those that were not taken."""

    def unsent(self, segments: Iterable[Segment]) -> Sequence[Unsent]:
        """Return what is kept of them, in all segments of a version.

        It runs in the driver, and reads no segment.
        """
        ...


def write_segments(after: NextSegments, before: Segments, folder: str, prefix: str) -> tuple[Segment, ...]:
    """Write or link the segments of a range into a version that is being made, in files whose names begin with ``prefix``. O(what is written + segments).

    Each attempt has a prefix of its own, so two of them do not meet. Nothing is durable before the version is.
    """
    live: Counter[str] = Counter()
    for each in after.segments:
        if isinstance(each, Segment):
            live[each.name] += each.size
    links: dict[str, str] = {}
    for each in after.segments:
        if isinstance(each, Segment) and each.name not in links and 2 * live[each.name] >= each.of:
            links[each.name] = f"{prefix}-{len(links) + 1}{_SUFFIX}"
            os.link(f"{before.folder}/{each.name}", f"{folder}/{links[each.name]}")
    files: dict[pa.Schema, str] = {}
    fresh: dict[str, list[FreshSegment]] = {}
    placed: list[Segment] = []
    for each in after.segments:
        if isinstance(each, Segment) and each.name in links:
            placed.append(replace(each, name=links[each.name]))
            continue
        if isinstance(each, Segment):
            written, size = FreshSegment(before.read(each), each.facts, before.filter(each)), each.size
        else:
            written, size = each, each.table.nbytes + len(each.filter)
        own = files.setdefault(written.table.schema, f"{prefix}-new{len(files)}{_SUFFIX}")
        parts = fresh.setdefault(own, [])
        placed.append(Segment(own, len(parts), written.table.num_rows, size, 0, written.facts))
        parts.append(written)
    sizes: Counter[str] = Counter()
    for each in placed:
        sizes[each.name] += each.size
    for name, parts in fresh.items():
        _save(parts, f"{folder}/{name}")
    return tuple(replace(each, of=sizes[each.name]) if each.name in fresh else each for each in placed)


def _save(segments: Sequence[FreshSegment], path: str) -> None:
    """Write segments into a file, each as a batch of its own. O(rows)."""
    import pyarrow as pa

    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, segments[0].table.schema) as writer:
        for each in segments:
            [batch] = each.table.combine_chunks().to_batches()
            writer.write_batch(batch, {_FILTER: each.filter} if each.filter else None)


def load(path: str) -> pa.Table | None:
    """Return the table of a file, None without a path. O(table)."""
    import pyarrow as pa

    if not path:
        return None
    with pa.OSFile(path) as file:
        return pa.ipc.open_file(file).read_all()
