"""Bookmarks of the readers of an output, beside its batches, for the writer that removes batches.

If a batch were removed before a reader has read it, its rows would be lost without a word. So
neither side relies on the other's timing:

* A reader writes its bookmark durably before its first batch, and moves it after each durable
  commit. Only then it reads how far batches were removed. A reader that has not read all of them is
  refused at its start; a running one holds.
* The writer first notes durably how far it will remove, and then reads the bookmarks again. A batch
  that one of them has not passed stays.

So when a reader starts during a removal, either the writer sees the bookmark or the reader sees the
note. A bookmark that is behind only keeps more batches. The reader's own checkpoint has the truth:
an older copy of it has read less.

Numbers alone would also fit another directory in the output's place, or an output that began again
in the old one. So each number is stored with the digest of that batch; when the batch in the
directory has another digest, nothing of it was read.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lowwater_spark.checkpoint.durable import NotDurable, make_directory, sync_directory, sync_file, write_over
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.files.source_log import NOTHING
from lowwater_spark.sources.files.writers import digest_of

__all__ = [
    "BOOKMARKS",
    "Bookmark",
    "Bookmarks",
    "Extent",
    "Output",
    "ReadRecord",
    "Removed",
    "Scan",
    "batch_number",
    "bookmarks",
    "note_removed",
    "removed",
    "sync_commit",
    "unread",
]

logger = logging.getLogger("lowwater.spark")

BOOKMARKS: Final = "_lowwater_readers"
"""Folder of the bookmarks and the note, beside the batches. Spark and others skip a folder of such
a name."""

_REMOVED: Final = "removed.json"

_FORMAT: Final = 1

_PAUSE = 5.0
"""Least seconds between two listings that only move bookmarks: a late bookmark harms nothing."""

Place = tuple[int, str]
"""Number of a source, and path of an output in it."""


def batch_number(name: str) -> int | None:
    """Return the number in a batch's directory name; None for any other name.

    >>> [batch_number(name) for name in ("batch=7", "batch=07", "batch=", "year=7")]
    [7, None, None, None]
    """
    digits = name.removeprefix("batch=")
    return int(digits) if digits != name and digits.isdecimal() and str(int(digits)) == digits else None


class Removed(NamedTuple):
    """Note of an output's writer: how far it removes batches."""

    through: int = NOTHING
    """Last batch that may be removed already."""
    cleared: int = NOTHING
    """Last batch up to which the writer has removed all that it may."""


def removed(folder: str) -> Removed:
    """Return how far batches were removed from an output.

    Raises OSError when the note cannot be read.
    """
    try:
        content = _content(Path(folder, BOOKMARKS, _REMOVED))
        return Removed(int(content["through"]), int(content["cleared"]))
    except FileNotFoundError:
        return Removed()


def note_removed(folder: Path, note: Removed) -> None:
    """Write the note of how far batches may be removed from now on.

    Durable when it returns; costs two fsyncs.
    """
    make_directory(folder / BOOKMARKS)
    write_over(folder / BOOKMARKS / _REMOVED, json.dumps({"format": _FORMAT, **note._asdict()}).encode())


class Bookmark(NamedTuple):
    """Bookmark of one reader of an output."""

    path: Path
    reader: str
    """Full name of the reader's computation."""
    read: int
    """Last batch that the reader has committed, with all before; NOTHING before the first, and for
    a bookmark of another output."""


def bookmarks(folder: Path) -> list[Bookmark]:
    """Return the bookmarks of an output.

    Raises OSError when one cannot be read: then no batch may be removed.
    """
    try:
        paths = sorted(path for path in (folder / BOOKMARKS).iterdir() if path.suffix == ".json")
    except FileNotFoundError:
        return []
    marks = []
    for path in paths:
        if path.name == _REMOVED or path.name.startswith("."):
            continue
        with contextlib.suppress(FileNotFoundError):  # the bookmark was deleted since the listing
            content = _content(path)
            read = int(content["read"])
            same = content["digest"] == _digest(folder, read)
            marks.append(Bookmark(path, str(content["reader"]), read if same else NOTHING))
    return marks


def _digest(folder: Path, number: int) -> str:
    return "" if number == NOTHING else digest_of(folder / f"batch={number}")


def _content(path: Path) -> Mapping[str, str | int]:
    try:
        content: dict[str, str | int] = json.loads(path.read_bytes())
        if content["format"] == _FORMAT and (
            {"through", "cleared"} <= content.keys() or {"reader", "read", "digest"} <= content.keys()
        ):
            return content
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OSError(_DAMAGED.format(path=path)) from error
    if content.get("format") == _FORMAT:
        raise OSError(_DAMAGED.format(path=path))
    msg = f"{path} is of format {content['format']}; this release reads {_FORMAT}. Use a newer lowwater-spark."
    raise OSError(msg)


_DAMAGED: Final = "{path} is damaged, so lowwater cannot tell which batches were removed, or may be; restore it"


def unread(folder: str, through: int, read: int) -> str:
    """Return in words that batches were removed which a reader has not read."""
    had = "none of them" if read == NOTHING else f"those up to {read}"
    return f"{Path(folder, BOOKMARKS, _REMOVED)} (batches up to {through} were removed, and this query has read {had})"


class Extent(NamedTuple):
    """Part of an output that a checkpoint has read or skipped."""

    read: int = NOTHING
    """Last batch that the checkpoint has committed, with all before; NOTHING before the first."""
    skipped: int = NOTHING
    """Last batch that was removed before the checkpoint began, and that it does without."""
    digest: str = ""
    """Digest of the plan of batch ``last``."""

    @property
    def last(self) -> int:
        """Last batch that the checkpoint does not need any more: the later of both."""
        return max(self.read, self.skipped)

    def lacks(self, through: int) -> bool:
        """Return whether the checkpoint misses rows when batches up to ``through`` were removed."""
        return through > self.last


class Scan:
    """Batches of one directory in one listing."""

    __slots__ = ("sure", "unsettled")

    def __init__(self) -> None:
        self.sure: list[int] = []
        """Settled batches that were there before the listing began. Earlier batches were there too,
        so the listing has all of them."""
        self.unsettled: int | None = None
        """First batch with files that no committed batch has taken; None: there is none."""

    def add(self, number: int, *, settled: bool, sure: bool) -> None:
        """Add a batch.

        ``settled``: committed batches have taken all of it. ``sure``: the batch was there before
        the listing.
        """
        if not settled:
            self.unsettled = number if self.unsettled is None else min(number, self.unsettled)
        elif sure:
            self.sure.append(number)


class Output:
    """A directory into which lowwater hands batches over, and the extent that a reader has read."""

    __slots__ = ("_next", "_unsettled", "extent", "folder")

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.extent = Extent()
        self._next = NOTHING
        """Last settled batch of the newest listing, with all before; :meth:`advance` counts it."""
        self._unsettled: int | None = None
        """First batch in the newest listing that is not settled; None: there is none."""

    def take(self, scan: Scan) -> None:
        """Take the batches of a listing. Costs a read of one small file. Raises OSError."""
        first = self._unsettled = scan.unsettled
        self._next = max((n for n in scan.sure if first is None or n < first), default=NOTHING)
        if not self._has(self.extent):
            # The last batch of ``self.extent`` is not here, or has another digest: another
            # directory is in this one's place, or the output began again. Nothing in it counts as
            # read until believe() or advance() says so.
            self.extent = Extent()
        elif first is not None and first <= self.extent.read:
            self._count(self._next, self.extent.skipped)

    def believe(self, record: Extent) -> None:
        """Take the extent of a record, unless the record is of another directory. Raises OSError.

        A record is of another directory when its last batch is missing here, has another digest, or
        comes after an unread batch.
        """
        if self._has(record) and (self._unsettled is None or record.read < self._unsettled):
            self._count(max(self.extent.read, record.read), max(self.extent.skipped, record.skipped))

    def advance(self) -> None:
        """Count the settled batches of the listing as read. Raises OSError.

        The caller has checked that no unread batch was removed before the listing.
        """
        if self._next > self.extent.read:
            self._count(self._next, self.extent.skipped)

    def skip(self, through: int) -> None:
        """Do without the batches up to ``through``. Raises OSError."""
        self._count(self.extent.read, through)

    def _count(self, read: int, skipped: int) -> None:
        self.extent = Extent(read, skipped, _digest(Path(self.folder), max(read, skipped)))

    def _has(self, extent: Extent) -> bool:
        """Return whether an extent is of this directory, by the digest of its last batch."""
        return extent.digest == _digest(Path(self.folder), extent.last)


class ReadRecord:
    """The extent of each output that a checkpoint has read, stored in its manifest.

    A copy of the checkpoint so has the record that fits it.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._log = CheckpointLog(manifest.checkpoint)

    def load(self) -> dict[Place, Extent]:
        """Return the extent of each output; nothing when the record is ahead of Spark's commits.

        Raises OSError.
        """
        content = self._manifest["read"]
        if content is None:
            return {}
        last = self._log.last_committed()
        if content["batch"] > (NOTHING if last is None else last):
            return {}
        return {
            (int(source), str(folder)): Extent(int(read), int(skipped), str(digest))
            for source, folder, read, skipped, digest in content["read"]
        }

    def save(self, batch: int, read: Mapping[Place, Extent]) -> None:
        """Store the extents as of a durably committed batch. Durable when it returns.

        Outputs that are not in ``read``, because they cannot be seen now, keep their extents.
        """
        places = [[*place, *extent] for place, extent in sorted({**self.load(), **read}.items())]
        self._manifest.keep("read", {"batch": batch, "read": places})


def sync_commit(checkpoint: Location, batch: int) -> None:
    """Make a batch's commit durable. Raises FileNotFoundError when the batch is not committed."""
    sync_file(checkpoint / "commits" / str(batch))
    sync_directory(checkpoint / "commits")


class Bookmarks:
    """The bookmarks of one query, one for each output in each of its sources.

    Only the thread that lists the sources uses this object. ``outputs`` are those of the listings,
    by source; ``reader`` is the computation's full name, ``identity`` the checkpoint's.
    """

    def __init__(
        self,
        manifest: Manifest,
        outputs: Sequence[Mapping[str, Output]],
        reader: str,
        identity: str,
        *,
        skip_removed: bool = False,
        probe: Callable[[str], None] = lambda _point: None,
    ) -> None:
        self._checkpoint = manifest.checkpoint
        self._outputs = outputs
        self._reader = reader
        self._identity = identity
        self._skip_removed = skip_removed
        self._probe = probe
        self._record = ReadRecord(manifest)
        self._written: dict[Place, Extent] = {}
        """Extents that the record and the bookmarks have."""
        self._refused: set[str] = set()
        self._looked = (NOTHING, 0.0)

    def check(self, batch: int) -> None:
        """Raise CheckpointMismatch when batches were removed that the checkpoint has not read.

        Call it after a first listing. ``batch`` is the last committed one. With ``skip_removed`` a
        checkpoint without a committed batch does without the removed ones. Raises OSError.
        """
        recorded = self._record.load()
        for place, output in self._places():
            output.believe(recorded.get(place, Extent()))
            self._check(output, batch)

    def begin(self, batch: int, now: float) -> None:
        """Write the bookmarks, after a listing and before the run's first batch.

        ``batch`` is the last committed one. Raises as :meth:`check`.
        """
        self.check(batch)
        fresh = [path for path in (self._path(place) for place, _ in self._places()) if not path.exists()]
        self.keep_up(batch, now)
        try:
            for _, output in self._places():
                self._check(output, batch)
        except CheckpointMismatch:
            # The query is refused and will not run. If its new bookmarks stayed, the writers of all
            # outputs would keep every batch for it.
            for path in fresh:
                path.unlink(missing_ok=True)
            raise
        self.keep_up(batch, now)

    def _check(self, output: Output, batch: int) -> None:
        through = removed(output.folder).through
        if not output.extent.lacks(through):
            return
        if not self._skip_removed or batch != NOTHING:
            raise CheckpointMismatch(_GONE.format(unread=unread(output.folder, through, output.extent.read)))
        logger.warning(
            "%s begins after batch %d of %s: those up to it were removed", self._reader, through, output.folder
        )
        output.skip(through)

    def due(self, batch: int, now: float, *, last: bool = False) -> bool:
        """Return whether the sources must be listed to move the bookmarks.

        They must be listed after a commit, every :data:`_PAUSE` seconds, and when the query has
        ended.
        """
        looked, since = self._looked
        return batch != looked and any(self._outputs) and (last or now - since >= _PAUSE)

    def keep_up(self, batch: int, now: float) -> None:
        """Move the bookmarks to the batches that the last listing found read, as of a commit.

        Costs four fsyncs and two for each bookmark that moves; nothing when none does. A bookmark
        that cannot be written is logged once: that output's writer does not wait for this query.
        """
        self._looked = (batch, now)
        read = {place: output.extent for place, output in self._places()}
        moved = {place: extent for place, extent in read.items() if self._written.get(place) != extent}
        if not moved:
            return
        if batch != NOTHING:
            sync_commit(self._checkpoint, batch)
        self._record.save(batch, read)
        self._probe("recorded")
        for place, extent in moved.items():
            self._write(place, extent)
            self._probe("marked")

    def _places(self) -> Iterator[tuple[Place, Output]]:
        for source, outputs in enumerate(self._outputs):
            for folder, output in outputs.items():
                yield (source, folder), output

    def _path(self, place: Place) -> Path:
        source, folder = place
        return Path(folder, BOOKMARKS, f"{self._identity}-{source}.json")

    def _write(self, place: Place, extent: Extent) -> None:
        path = self._path(place)
        try:
            digest = extent.digest if extent.last == extent.read else _digest(Path(place[1]), extent.read)
            content = {
                "format": _FORMAT,
                "reader": self._reader,
                "checkpoint": str(self._checkpoint),
                "read": extent.read,
                "digest": digest,
            }
            make_directory(path.parent)
            write_over(path, json.dumps(content).encode())
        except (OSError, NotDurable) as error:
            if place[1] not in self._refused:
                logger.warning(
                    "%s cannot write its bookmark in %s, so keep= of the output's writer does not wait for it: %s",
                    self._reader,
                    path.parent,
                    error,
                )
            self._refused.add(place[1])
        self._written[place] = extent


_GONE: Final = (
    "{unread}: rows would be missing. Start from the checkpoint that has read them; or, to do without these rows, from a new one with "
    "skip_removed=True."
)
