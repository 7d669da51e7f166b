"""Removes the rows of handed-over batches that every reader has read.

Only a batch's files go. Its directory stays, with the file that says that lowwater has made it:
Spark lists a source directory by directory, and its listing ends the query of a neighbour when a
directory is gone that it has just seen. Files may go meanwhile. A replay finds the batch, too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from lowwater_spark.checkpoint.durable import sync_directory
from lowwater_spark.complete.folder import WATERMARK
from lowwater_spark.sources.bookmarks import Bookmark, Removed, bookmarks, note_removed, removed
from lowwater_spark.sources.source_log import NOTHING
from lowwater_spark.sources.writers import HANDED_OVER

__all__ = ["Removal"]

logger = logging.getLogger("lowwater.spark")


@dataclass(slots=True)
class Removal:
    """Removes from one output, in one run, the rows that nobody needs any more."""

    folder: Path
    probe: Callable[[str], None] = lambda _point: None
    batches: int = 0
    """Batches that it has removed."""
    size: int = 0
    """Bytes of their files."""
    _held: float | None = None
    """Since when the oldest batch that is kept for a reader alone could have gone; None: there is
    none."""
    _told: set[str] = field(default_factory=set)

    AT_ONCE: ClassVar[int] = 1_000
    """Batches that one call looks at: an output from which nothing was ever removed holds no batch
    of the query up for long."""

    def remove(self, keep: timedelta, committed: int, now: float) -> list[int]:
        """Remove the files of batches that are older than ``keep`` and that every reader has read, and return their numbers.

        ``committed`` is the last batch that the writer has committed: later ones stay. ``now`` is in seconds since the epoch. Without any
        bookmark nothing is removed: nobody is known to have read anything. Costs a stat of the first batch that is left; if there is
        anything to remove, a stat for each number that is looked at, seven fsyncs at most, and one more for each batch. Raises OSError when nobody can tell what may go.
        """
        before = removed(os.fspath(self.folder))
        self._held = None
        cleared, made = self._old(before.cleared, committed, now - keep.total_seconds())
        old = list(made)
        if not old:
            if cleared - before.cleared == self.AT_ONCE:  # that many batches in a row have written nothing here
                self.probe("passed")
                if not self.is_overtaken(before):
                    note_removed(self.folder, before._replace(cleared=cleared))
            return []
        # Until somebody says what is read, all of it is kept.
        self._choose(made, NOTHING, keep)
        readers = bookmarks(self.folder)
        self.probe("looked")
        self._tell(old, readers)
        chosen = self._choose(made, _least(readers), keep)
        if not chosen:
            return []
        note = before._replace(through=max(before.through, chosen[-1]))
        if self.is_overtaken(before):
            return []
        note_removed(self.folder, note)
        self.probe("noted")
        # Who has left its bookmark since the first look may not have seen the note.
        least = _least(bookmarks(self.folder))
        if least < chosen[-1]:
            chosen = self._choose(made, least, keep)
            if self.is_overtaken(note):
                return []
            # Nothing beyond is removed: who needs it may begin.
            note = before._replace(through=max([before.through, *chosen[-1:]]))
            note_removed(self.folder, note)
        self.probe("chosen")
        if chosen:
            size = self.size
            for number in chosen:
                if self.is_overtaken(note):
                    return []
                self._empty(number)
            self.probe("emptied")
            if self.is_overtaken(note):
                return []
            note_removed(self.folder, note._replace(cleared=cleared if chosen == old else chosen[-1]))
            text = "removed %d batches of %s, %d to %d, %d bytes, that all readers have read"
            logger.info(text, len(chosen), self.folder, chosen[0], chosen[-1], self.size - size)
        return chosen

    def is_overtaken(self, note: Removed) -> bool:
        """Return whether another run has changed the note since this one read or wrote it.

        If a frozen run wrote its older note over it, a reader would begin that needs what the other
        run has removed. Where the output was begun anew meanwhile, it would empty the new batches.
        """
        overtaken = removed(os.fspath(self.folder)) != note
        if overtaken:
            logger.warning("nothing more is removed from %s now: another run removes from it", self.folder)
        return overtaken

    def held_back(self, now: float) -> float:
        """Return for how many seconds the oldest batch has been kept beyond ``keep`` because a reader has not read it; 0: there was none at the last look."""
        held = self._held
        return 0.0 if held is None else max(0.0, now - held)

    def _choose(self, old: Mapping[int, float], least: int, keep: timedelta) -> list[int]:
        """Return those of the old batches that all readers have read."""
        chosen = [n for n in old if n <= least]
        self._held = next((made + keep.total_seconds() for n, made in old.items() if n > least), None)
        return chosen

    def _old(self, cleared: int, committed: int, before: float) -> tuple[int, dict[int, float]]:
        """Return the last number that was looked at, and when the old batches were handed over, in order: those before a moment, if all before them are old."""
        old: dict[int, float] = {}
        for number in range(cleared + 1, min(committed, cleared + self.AT_ONCE) + 1):
            folder = self.folder / f"batch={number}"
            try:
                made = (folder / HANDED_OVER).stat().st_mtime
            except FileNotFoundError:
                pass  # it has written nothing here; or somebody else has made the directory, and it is not ours to remove
            else:
                if made >= before:
                    break
                if not folder.is_symlink():
                    old[number] = made
            cleared = number
        return cleared, old

    def _empty(self, number: int) -> None:
        """Remove the files of a batch."""
        folder = self.folder / f"batch={number}"
        with os.scandir(folder) as listing:
            files = [
                entry
                for entry in listing
                if entry.name not in (HANDED_OVER, WATERMARK) and not entry.is_dir(follow_symlinks=False)
            ]
        for file in files:
            size = file.stat(follow_symlinks=False).st_size
            Path(file.path).unlink()
            self.size += size
            self.probe("removed")
        sync_directory(folder)
        self.batches += 1

    def _tell(self, old: Sequence[int], readers: Sequence[Bookmark]) -> None:
        """Say once of each reader that old batches are kept for it."""
        if not readers:
            text = "%s keeps all batches: keep= removes what its readers have read, and none has left a bookmark"
            self._tell_once("", text, self.folder)
        for mark in readers:
            if mark.read < old[0]:
                text = "%s keeps batches from %d on longer than keep=: %s has read %s. If it is gone for good, delete its bookmark %s"
                had = "nothing" if mark.read == NOTHING else f"up to batch {mark.read}"
                self._tell_once(os.fspath(mark.path), text, self.folder, old[0], mark.reader, had, mark.path)

    def _tell_once(self, of: str, text: str, *arguments: object) -> None:
        if of not in self._told:
            logger.warning(text, *arguments)
        self._told.add(of)


def _least(readers: Sequence[Bookmark]) -> int:
    return min((mark.read for mark in readers), default=NOTHING)
