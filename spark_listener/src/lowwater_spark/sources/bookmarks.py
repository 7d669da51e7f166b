"""Who has read how far into what is handed over: bookmarks beside the output, which its writer looks at before it removes a batch.

A batch that is removed before a reader has read it is silent data loss, so neither side trusts the other's timing:

* A reader leaves its bookmark, durable, before its first batch, and moves it when a commit is durable. Only after that it reads how far batches
  were removed: one that has not read all of them is refused, or holds if it runs already.
* The writer notes how far it removes, durable, and then looks at the bookmarks again: what one of them has not read stays.

So of a reader that comes while batches are removed, either the writer sees the bookmark or the reader sees the note. A bookmark that is behind
only keeps more. What a reader has really read stands in its own checkpoint: a copy of that from an older day knows no more than it did then.

Numbers alone would also fit another directory that somebody has put in the output's place, or an output that was begun anew in the old one. So
wherever it is said how far an output was read, the digest of that batch goes with it; where the directory's batch has another one, nothing was read.
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
from lowwater_spark.sources.source_log import NOTHING
from lowwater_spark.sources.writers import digest_of

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
"""The folder of the bookmarks and of the note, beside the batches: Spark and others read no rows
from a folder of such a name."""

_REMOVED: Final = "removed.json"

_FORMAT: Final = 1

_PAUSE = 5.0
"""Seconds between two listings that are made for the bookmarks alone: one that is behind harms
nothing."""

Place = tuple[int, str]
"""The number of a source, and an output in it."""


def batch_number(name: str) -> int | None:
    """Return the number of a directory's batch, None for any other name.

    >>> [batch_number(name) for name in ("batch=7", "batch=07", "batch=", "year=7")]
    [7, None, None, None]
    """
    digits = name.removeprefix("batch=")
    return int(digits) if digits != name and digits.isdecimal() and str(int(digits)) == digits else None


class Removed(NamedTuple):
    """How far an output's writer removes."""

    through: int = NOTHING
    """The last batch whose rows may be gone."""
    cleared: int = NOTHING
    """The last batch that needs no look any more: up to it, all is gone that the writer may remove.
    """


def removed(folder: str) -> Removed:
    """Return how far batches were removed from an output. Raises OSError when nobody can tell."""
    try:
        content = _content(Path(folder, BOOKMARKS, _REMOVED))
        return Removed(int(content["through"]), int(content["cleared"]))
    except FileNotFoundError:
        return Removed()


def note_removed(folder: Path, note: Removed) -> None:
    """Note how far batches may be removed from now on.

    Durable when it returns; costs two fsyncs.
    """
    make_directory(folder / BOOKMARKS)
    write_over(folder / BOOKMARKS / _REMOVED, json.dumps({"format": _FORMAT, **note._asdict()}).encode())


class Bookmark(NamedTuple):
    """How far a reader has read an output."""

    path: Path
    reader: str
    """Its full name."""
    read: int
    """The last batch that it has committed, with all before; NOTHING before the first, and when it
    is of another output."""


def bookmarks(folder: Path) -> list[Bookmark]:
    """Return the bookmarks of an output.

    Raises OSError when one cannot be read: then nobody can tell what may be removed.
    """
    try:
        paths = sorted(path for path in (folder / BOOKMARKS).iterdir() if path.suffix == ".json")
    except FileNotFoundError:
        return []
    found = []
    for path in paths:
        if path.name == _REMOVED or path.name.startswith("."):
            continue
        with contextlib.suppress(FileNotFoundError):  # somebody has taken it away meanwhile
            content = _content(path)
            read = int(content["read"])
            same = content["digest"] == _digest(folder, read)
            found.append(Bookmark(path, str(content["reader"]), read if same else NOTHING))
    return found


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


_DAMAGED: Final = "{path} cannot be understood, so nobody can tell what was removed, or may be; restore it"


def unread(folder: str, through: int, read: int) -> str:
    """Return what a reader waits for, in vain, when batches were removed that it has not read."""
    had = "none of them" if read == NOTHING else f"those up to {read}"
    return f"{Path(folder, BOOKMARKS, _REMOVED)} (batches up to {through} were removed, and this query has read {had})"


class Extent(NamedTuple):
    """What of an output a checkpoint has."""

    read: int = NOTHING
    """The last batch that it has committed, with all before; NOTHING before the first."""
    skipped: int = NOTHING
    """The last batch that may be missing from the beginning: the checkpoint has begun at what was
    left."""
    digest: str = ""
    """Of the plan of the later of both."""

    @property
    def last(self) -> int:
        """The later of both: of the batches up to it none is needed any more."""
        return max(self.read, self.skipped)

    def lacks(self, through: int) -> bool:
        """Return whether rows are missing when batches up to this one were removed."""
        return through > self.last


class Scan:
    """What one listing finds of the batches in a directory."""

    __slots__ = ("sure", "unsettled")

    def __init__(self) -> None:
        self.sure: list[int] = []
        """Settled batches that stood here before the listing began: those before them did, too, so
        all of them are in the listing."""
        self.unsettled: int | None = None
        """The first batch of which not all is taken."""

    def add(self, number: int, *, settled: bool, sure: bool) -> None:
        """Take in a batch.

        ``settled``: it can be no news any more. ``sure``: and it stood here before the listing.
        """
        if not settled:
            self.unsettled = number if self.unsettled is None else min(number, self.unsettled)
        elif sure:
            self.sure.append(number)


class Output:
    """A directory that batches are handed over into, as a reader knows it."""

    __slots__ = ("_next", "_unsettled", "extent", "folder")

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.extent = Extent()
        self._next = NOTHING
        self._unsettled: int | None = None

    def take(self, scan: Scan) -> None:
        """Take over what a listing has found. Costs a read of one small file. Raises OSError."""
        first = self._unsettled = scan.unsettled
        self._next = max((n for n in scan.sure if first is None or n < first), default=NOTHING)
        if not self._has(self.extent):
            self.extent = Extent()  # another directory stands in its place
        elif first is not None and first <= self.extent.read:
            self._count(self._next, self.extent.skipped)

    def believe(self, record: Extent) -> None:
        """Take over what a record says, unless it is of another directory: this one has no such batch, or news before it. Raises OSError."""
        if self._has(record) and (self._unsettled is None or record.read < self._unsettled):
            self._count(max(self.extent.read, record.read), max(self.extent.skipped, record.skipped))

    def advance(self) -> None:
        """Count what the listing has found as read.

        Only when nothing had been removed before that was not read. Raises OSError.
        """
        if self._next > self.extent.read:
            self._count(self._next, self.extent.skipped)

    def skip(self, through: int) -> None:
        """Go without the batches up to this one. Raises OSError."""
        self._count(self.extent.read, through)

    def _count(self, read: int, skipped: int) -> None:
        self.extent = Extent(read, skipped, _digest(Path(self.folder), max(read, skipped)))

    def _has(self, extent: Extent) -> bool:
        """Return whether a statement is of this directory."""
        return extent.digest == _digest(Path(self.folder), extent.last)


class ReadRecord:
    """How far a checkpoint has read each output: in its manifest, so that a copy of the checkpoint knows what it has."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._log = CheckpointLog(manifest.checkpoint)

    def load(self) -> dict[Place, Extent]:
        """Return what it has of each output; of a record that is ahead of Spark's commits: nothing.

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
        """Keep it, as of a committed batch that is durable, and what is known of outputs that cannot be seen now. Durable when it returns."""
        places = [[*place, *extent] for place, extent in sorted({**self.load(), **read}.items())]
        self._manifest.keep("read", {"batch": batch, "read": places})


def sync_commit(checkpoint: Location, batch: int) -> None:
    """Make it durable that a batch is committed. Raises FileNotFoundError when it is not."""
    sync_file(checkpoint / "commits" / str(batch))
    sync_directory(checkpoint / "commits")


class Bookmarks:
    """The bookmarks of one query, one for each output in each of its sources.

    The thread that lists the sources keeps them.

    ``outputs`` are what the listings have found, by source; ``reader`` is the computation's full
    name, ``identity`` the checkpoint's.
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
        self._left: dict[Place, Extent] = {}
        """What the record and the bookmarks say."""
        self._refused: set[str] = set()
        self._looked = (NOTHING, 0.0)

    def check(self, batch: int) -> None:
        """Raise CheckpointMismatch when batches were removed that the checkpoint has not read.

        After a first listing; raises OSError.

        ``batch`` is the last that is committed. With ``skip_removed`` a checkpoint without one
        begins at what is left.
        """
        known = self._record.load()
        for place, output in self._places():
            output.believe(known.get(place, Extent()))
            self._check(output, batch)

    def begin(self, batch: int, now: float) -> None:
        """Leave the bookmarks, after a listing and before the query's first batch, which comes after ``batch``. Raises as :meth:`check`."""
        self.check(batch)
        fresh = [path for path in (self._path(place) for place, _ in self._places()) if not path.exists()]
        self.keep_up(batch, now)
        try:
            for _, output in self._places():
                self._check(output, batch)
        except CheckpointMismatch:
            # They would keep everything for a query that does not run, also in the outputs of which
            # nothing is missing.
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
        """Return whether the sources must be listed for the bookmarks: after a commit, now and then, and when the query has ended."""
        looked, since = self._looked
        return batch != looked and any(self._outputs) and (last or now - since >= _PAUSE)

    def keep_up(self, batch: int, now: float) -> None:
        """Move the bookmarks to what the last listing has found read, as of this committed batch.

        Costs four fsyncs, and two for each bookmark that moves, nothing when none does. A place
        where none can be left is told of, once: its writer does not wait for this query.
        """
        self._looked = (batch, now)
        read = {place: output.extent for place, output in self._places()}
        moved = {place: extent for place, extent in read.items() if self._left.get(place) != extent}
        if not moved:
            return
        if batch != NOTHING:
            sync_commit(self._checkpoint, batch)
        self._record.save(batch, read)
        self._probe("recorded")
        for place, extent in moved.items():
            self._leave(place, extent)
            self._probe("marked")

    def _places(self) -> Iterator[tuple[Place, Output]]:
        for source, outputs in enumerate(self._outputs):
            for folder, output in outputs.items():
                yield (source, folder), output

    def _path(self, place: Place) -> Path:
        source, folder = place
        return Path(folder, BOOKMARKS, f"{self._identity}-{source}.json")

    def _leave(self, place: Place, extent: Extent) -> None:
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
                    "%s cannot say in %s what it has read, so keep= of its writer does not wait for it: %s",
                    self._reader,
                    path.parent,
                    error,
                )
            self._refused.add(place[1])
        self._left[place] = extent


_GONE: Final = (
    "{unread}: rows would be missing. Start from the checkpoint that has read them; or, to go without these rows, from a new one with "
    "skip_removed=True."
)
