"""Removes the rows of handed-over batches that every reader has read.

Only a batch's files are removed. Its directory stays, with lowwater's mark: Spark lists a source
directory by directory, and a listing fails, and ends the reader's query, if a directory vanishes
meanwhile. Files may vanish. And a replay still finds the batch.
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
from lowwater_spark.sources.files.bookmarks import Bookmark, Removed, bookmarks, note_removed, removed
from lowwater_spark.sources.files.source_log import NOTHING
from lowwater_spark.sources.files.writers import HANDED_OVER

__all__ = ["Removal"]

logger = logging.getLogger("lowwater.spark")


@dataclass(slots=True)
class Removal:
    """Removes from one output, in one run, the rows that no reader needs."""

    folder: Path
    probe: Callable[[str], None] = lambda _point: None
    batches: int = 0
    size: int = 0
    """Bytes of the removed files."""
    _kept_since: float | None = None
    """Time from which only a reader has kept the oldest batch that stays; None: no reader keeps
    one longer than ``keep``."""
    _logged: set[str] = field(default_factory=set)

    AT_ONCE: ClassVar[int] = 1_000
    """Greatest number of batches that one call looks at, so that the first call of an old output
    does not delay a batch for long."""

    def remove(self, keep: timedelta, committed: int, now: float) -> list[int]:
        """Remove the files of batches older than ``keep`` that all readers have read.

        Returns the numbers of the batches.

        Batches after ``committed``, the writer's last committed one, stay. ``now`` is epoch
        seconds. Without bookmarks nothing is removed, because no reader is known. Costs a stat of
        the first batch that is left; with something to remove, a stat a number, at most seven
        fsyncs, and one a batch. Raises OSError if it is unknown what may be removed.
        """
        before = removed(os.fspath(self.folder))
        self._kept_since = None
        cleared, handed_over = self._old(before.cleared, committed, now - keep.total_seconds())
        old = list(handed_over)
        if not old:
            # If AT_ONCE numbers in a row have no batch here, note that: otherwise each call would
            # look at the same numbers, and never get to the batches after them.
            if cleared - before.cleared == self.AT_ONCE:
                self.probe("passed")
                if not self.is_overtaken(before):
                    note_removed(self.folder, before._replace(cleared=cleared))
            return []
        # Set _kept_since as if no reader had read any batch: if bookmarks() raises, held_back()
        # shows that old batches are kept.
        self._choose(handed_over, NOTHING, keep)
        readers = bookmarks(self.folder)
        self.probe("looked")
        self._tell(old, readers)
        chosen = self._choose(handed_over, _least(readers), keep)
        if not chosen:
            return []
        note = before._replace(through=max(before.through, chosen[-1]))
        if self.is_overtaken(before):
            return []
        note_removed(self.folder, note)
        self.probe("noted")
        # A reader that wrote its first bookmark after bookmarks() above may have started without
        # seeing the note, and may still need a chosen batch, whose files are deleted below: so the
        # bookmarks are read again.
        least = _least(bookmarks(self.folder))
        if least < chosen[-1]:
            chosen = self._choose(handed_over, least, keep)
            if self.is_overtaken(note):
                return []
            # Lower ``through`` to the last batch that is removed now. A greater number would refuse
            # a new reader for batches that stay.
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

        Example: a run freezes, and another run of its checkpoint removes batches 5 to 9. If the
        frozen run then wrote its older note, a reader that still needs batch 5 could begin. If the
        output was deleted and begun anew meanwhile, the frozen run would empty the new batches.
        """
        overtaken = removed(os.fspath(self.folder)) != note
        if overtaken:
            logger.warning("stopped removing batches from %s for now: another run removes from it", self.folder)
        return overtaken

    def held_back(self, now: float) -> float:
        """Return the seconds for which a reader has kept a batch beyond ``keep``; 0: none."""
        since = self._kept_since
        return 0.0 if since is None else max(0.0, now - since)

    def _choose(self, old: Mapping[int, float], least: int, keep: timedelta) -> list[int]:
        """Return the old batches that all readers have read."""
        chosen = [n for n in old if n <= least]
        self._kept_since = next(
            (handed_over + keep.total_seconds() for n, handed_over in old.items() if n > least), None
        )
        return chosen

    def _old(self, cleared: int, committed: int, before: float) -> tuple[int, dict[int, float]]:
        """Return the last examined number, and when each old batch before it was handed over.

        Batches are in order; the first one that is not older than ``before`` ends the search.
        """
        old: dict[int, float] = {}
        for number in range(cleared + 1, min(committed, cleared + self.AT_ONCE) + 1):
            folder = self.folder / f"batch={number}"
            try:
                handed_over = (folder / HANDED_OVER).stat().st_mtime
            except FileNotFoundError:
                pass  # lowwater wrote no such batch here; another program's directory would stay
            else:
                if handed_over >= before:
                    break
                if not folder.is_symlink():
                    old[number] = handed_over
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
        """Log once for each reader that old batches are kept for it."""
        if not readers:
            text = "%s keeps all batches: keep= removes only what readers have read, and no reader has left a bookmark"
            self._tell_once("", text, self.folder)
        for mark in readers:
            if mark.read < old[0]:
                text = "%s keeps batches from %d on longer than keep=: %s has read %s. If that reader is gone for good, delete its bookmark %s"
                had = "nothing" if mark.read == NOTHING else f"up to batch {mark.read}"
                self._tell_once(os.fspath(mark.path), text, self.folder, old[0], mark.reader, had, mark.path)

    def _tell_once(self, subject: str, text: str, *arguments: object) -> None:
        if subject not in self._logged:
            logger.warning(text, *arguments)
        self._logged.add(subject)


def _least(readers: Sequence[Bookmark]) -> int:
    return min((mark.read for mark in readers), default=NOTHING)
