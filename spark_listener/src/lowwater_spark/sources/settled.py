"""What of a source needs no further look: what committed batches have taken, as it is now.

A file may be written again in its place, which leaves no trace in its directory, so each is asked for its modification time in each listing. But what
lowwater itself has handed over as ``batch=N`` appears whole and is not changed by it: when all of such a directory is taken, its name is enough.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Container

from lowwater_spark.sources.bookmarks import Output, Scan, batch_number
from lowwater_spark.sources.source_log import NOTHING, File, SourceLog
from lowwater_spark.track.handover import HANDED_OVER

__all__ = ["Settled"]


class Settled:
    """What a listing of one source leaves out. Holds two numbers for each handed-over batch that is in the directory."""

    def __init__(self, log: SourceLog) -> None:
        self._log = log
        self._offset = NOTHING
        self._batches: dict[str, tuple[int, int]] = {}
        """By their paths: the inode, and the number of files."""
        self._seen: dict[str, tuple[int, int]] = {}
        self._of: object = None
        self.files = 0
        """How many files are in the batches of this listing that were not looked at."""
        self.outputs: dict[str, Output] = {}
        """The directories that lowwater writes into, by their paths, as far as they were met by the newest listing that is whole."""
        self._scans: dict[str, Scan] = {}
        self._met: set[str] = set()

    @property
    def batches(self) -> Container[str]:
        """The paths of the batches that this listing has met and that need no further look."""
        return self._seen

    def begin(self, offset: int, of: object = None) -> None:
        """Begin a listing. What has been taken up to this offset of the source's log counts: no batch behind it can be taken back.

        ``of`` tells directories apart: of another one than in the last listing everything is looked at again.
        """
        if of != self._of:
            self._batches = {}
            self.outputs.clear()
        self._of = of
        self._offset = offset
        self._seen = {}
        self._scans = {}
        self._met = set()
        self.files = 0

    def meet(self, folder: str) -> None:
        """Take note of a directory that lowwater writes into."""
        self._met.add(folder)

    def end(self) -> None:
        """The listing is whole: what it did not meet is gone."""
        self._batches = self._seen
        for gone in self.outputs.keys() - self._met:
            del self.outputs[gone]
        for folder in self._met:
            self.outputs.setdefault(folder, Output(folder)).take(self._scans.get(folder, Scan()))

    def has(self, file: File) -> bool:
        """Return whether a file is taken, as it is now."""
        batch = self._log.batch_of(file)
        return batch is not None and batch <= self._offset

    def knows(self, folder: os.DirEntry[str]) -> bool:
        """Return whether a sub-directory is a batch that needs no look: it is the one of which all was taken."""
        known = self._batches.get(folder.path)
        if known is None or known[0] != folder.inode():
            return False
        self._seen[folder.path] = known
        self.files += known[1]
        # By hand: this runs for each batch that was ever handed over.
        name = folder.name
        self._scan(folder.path[: -len(name) - 1]).sure.append(int(name[6:]))
        return True

    def _scan(self, folder: str) -> Scan:
        scan = self._scans.get(folder)
        if scan is None:
            scan = self._scans[folder] = Scan()
        return scan

    def learn(self, folder: os.DirEntry[str], found: Collection[object]) -> None:
        """Take note of what was found in a sub-directory: if it is a batch, and all of it is taken, it needs no look from the next listing on.

        Costs one look more at it, once.
        """
        whole = self._is_whole(folder, found)
        if whole:
            self._seen[folder.path] = (folder.inode(), len(found))
        # One with files was taken by a batch before this listing; one without may have come while we walked.
        number = batch_number(folder.name)
        if number is not None:
            self._scan(folder.path[: -len(folder.name) - 1]).add(number, settled=whole, sure=bool(found))

    def _is_whole(self, folder: os.DirEntry[str], found: Collection[object]) -> bool:
        if batch_number(folder.name) is None or folder.is_symlink():
            return False
        if not all(isinstance(each, File) and self.has(each) for each in found):
            return False
        try:
            with os.scandir(folder.path) as listing:
                entries = {entry.name: entry.is_dir() for entry in listing}
        except FileNotFoundError:
            return False  # removed meanwhile
        # What has directories in it was changed by somebody, and may be again.
        return HANDED_OVER in entries and not any(entries.values())
