"""Whether the directories that a query reads are still those that it has read before.

Where a volume is not mounted, there is its mount point: a directory, and empty. A listing of it says that nothing is left to be read, and every
low watermark would count. So a checkpoint remembers the inode of each directory. Under another inode a directory is taken for the same one
only if a file stands in it that the query has read. Device numbers say nothing here: each mount of NFS may give another one, and
each start of a container.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lowwater_spark.durable import make_directory, write_over
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.head import FileSource, Head, Source, list_head
from lowwater_spark.settled import Settled
from lowwater_spark.sourcelog import NOTHING, SourceLog

__all__ = ["Roots"]

logger = logging.getLogger("lowwater.spark")

_FORMAT: Final = 1


class _Replaced(OSError):
    """A directory is not the one that was read before. Only who has replaced it, or who mounts the right one, can help."""


def _any_taken(head: Head, log: SourceLog) -> bool:
    return bool(head.settled) or any(log.batch_of(file) is not None for file in head)


class Roots:
    """The directories that a query reads, and in ``CHECKPOINT/lowwater/roots.json`` their inodes.

    ``logs`` are those of the sources, in their order; they may be read on by others. A directory of which nothing is known, as in a new
    checkpoint, is taken as it is found.
    """

    def __init__(self, checkpoint: Path, sources: Sequence[Source], logs: Sequence[SourceLog]) -> None:
        self._path = checkpoint / "lowwater" / "roots.json"
        self._sources = [(source, log, Settled(log)) for source, log in zip(sources, logs, strict=False)]
        self._inodes = self._load()
        self._error: OSError | None = None

    @property
    def lost(self) -> str:
        """Why no newer low watermark counts; empty: the newest listing has succeeded."""
        return "" if self._error is None else str(self._error)

    def list_heads(self, offsets: Sequence[int] = ()) -> list[Head] | None:
        """Return the head of each source; None, and a warning once, when one cannot be known: then no newer low watermark counts.

        ``offsets`` are how far the batches go that can no more be taken back, of whoever counts what is committed the committed ones. What has been
        taken up to there, and is as it was, is left out.

        Costs as :func:`~lowwater_spark.head.list_head`, two looks at each directory, and an fsync when one has a new inode.
        """
        try:
            known = itertools.chain(offsets, itertools.repeat(NOTHING))
            heads = [self._list(*each, offset) for each, offset in zip(self._sources, known, strict=False)]
        except OSError as error:
            if str(error) != self.lost:
                logger.warning("a source cannot be listed, so no newer watermark counts: %s", error)
            self._error = error
            return None
        self._error = None
        return heads

    def forgive(self) -> None:
        """Forget that a listing failed: none is needed any more."""
        self._error = None

    def fail_again(self) -> None:
        """Raise what the newest listing has failed with, if a later look may help without anybody's doing. For a look that is the last one."""
        if self._error is not None and not isinstance(self._error, _Replaced):
            raise self._error

    def _list(self, source: Source, log: SourceLog, settled: Settled, offset: int) -> Head:
        if not isinstance(source, FileSource):
            return list_head(source)
        inode = Path(source.root).stat().st_ino
        if self._inodes.get(source.root) != inode:
            settled.forget()
        settled.begin(offset)
        head = list_head(source, settled)
        if Path(source.root).stat().st_ino != inode:
            msg = f"{source.root} was replaced while it was listed"
            raise OSError(msg)
        if self._inodes.get(source.root) != inode:
            self._check(source.root, inode, known=_any_taken(head, log))
        settled.end()
        return head

    def _check(self, root: str, inode: int, *, known: bool) -> None:
        """Take note of another inode of a directory, or refuse it. ``known``: a file that was read before stands in it."""
        if not known:
            self._inodes = self._load()  # whoever has replaced the directory may have deleted the file since
            if self._inodes.get(root, inode) != inode:
                msg = (
                    f"{root} is not the directory that was read before, and no file that was read is in it: mount its volume. If it was replaced on "
                    f"purpose, delete {self._path}"
                )
                raise _Replaced(msg)
        self._inodes[root] = inode
        make_directory(self._path.parent)
        write_over(self._path, json.dumps({"format": _FORMAT, "inodes": self._inodes}).encode())

    def _load(self) -> dict[str, int]:
        try:
            content = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        if content.get("format") != _FORMAT:
            msg = f"{self._path} is of format {content.get('format')}; this release reads {_FORMAT}. Use the release that wrote it, or a newer one."
            raise CheckpointMismatch(msg)
        return dict(content["inodes"])
