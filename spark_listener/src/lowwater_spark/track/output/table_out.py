"""An output that is a versioned table: one batch is one version, with a mark in its metadata.

A table counts the batches of each writer under a name, the writer's *app*. The mark has the digest
of the batch's plan, and says how far the table is complete (:mod:`lowwater_spark.complete.mark`).
Rows and mark become visible in one commit, which the table's own format makes at most once for a
batch of an app. Several computations may write to one table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowwater_spark.checkpoint.durable import sync_directory, sync_file
from lowwater_spark.complete.mark import COMPLETE, History, Mark, Standing, follow
from lowwater_spark.sources.tables.versioned import app_id
from lowwater_spark.track.output.outputs import BatchOutput, FoundBatch, OutputTurn, remember, remembered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["TableOut", "sync_files"]

logger = logging.getLogger("lowwater.spark")


class TableOut(BatchOutput):
    """A table whose versions are kept in a log, on any file system or in a catalog."""

    says_complete = True

    def __init__(self, log: Any, name: str, turn: OutputTurn) -> None:
        self.log = log
        self.name = name
        """Name of the table in the call."""
        self.app = app_id(turn.writer, turn.checkpoint)
        self.head: Any = log.table()
        """The table as it was last read."""
        self.newest = -1
        """Newest batch that the checkpoint has noted for the table; -1: none."""
        self._key = turn.writer, str(self.head.location)

    @property
    def key(self) -> tuple[str, str]:
        """Computation and location: two computations of a query may write to one table."""
        return self._key

    def resume(self, earlier: BatchOutput) -> None:
        """Begin anew in each batch: a name of the catalog may mean another table by then."""

    def find(self, turn: OutputTurn) -> FoundBatch | None:
        """Return the last batch of the app, if it is the turn's or a later one."""
        self.head = self.log.table()
        noted = remembered(turn.section.manifest, turn.writer, self._key[1])
        self.newest = -1 if noted is None else noted
        return self.counted(turn)

    def append(self, frame: DataFrame, turn: OutputTurn, standing: Standing | None) -> bool:
        """Append the rows as one version."""
        assert standing is not None
        complete, news = follow(self.app, standing, self.history())
        if news:
            logger.warning("%s no longer says how far it is complete: %s", self.name, news)
        mark = {"checkpoint": turn.checkpoint, "run": turn.run, "batch": turn.facts.batch, "digest": turn.facts.digest}
        written = self.commit(frame, turn, {**mark, COMPLETE: self.named(complete)})
        if written:
            self._note(turn)
        return written

    def finish(self, frame: DataFrame, turn: OutputTurn) -> bool:
        """Sync the version: its writer may have died before the sync."""
        self.sync()
        self._note(turn)
        return False

    def _note(self, turn: OutputTurn) -> None:
        if self.newest < turn.facts.batch:
            remember(turn.section.manifest, turn.writer, self._key[1], turn.facts.batch)

    # -- what differs between formats of tables ----------------------------------------------------

    def counted(self, turn: OutputTurn) -> FoundBatch | None:
        """Return the app's last batch if it is the turn's or a later one.

        Raises Unsupported if a batch could be written twice, or written unnoticed, and
        CheckpointMismatch if the table counts a batch that it no longer has.
        """
        raise NotImplementedError

    def history(self) -> History:
        """Return the versions up to the head, for the mark of the next one."""
        raise NotImplementedError

    def named(self, mark: Mark) -> Mapping[str, Any]:
        """Return the mark as JSON, naming versions as the table does."""
        return mark.to_json()

    def commit(self, frame: DataFrame, turn: OutputTurn, mark: Mapping[str, Any]) -> bool:
        """Commit rows and mark as one durable version; False if another run has committed them."""
        raise NotImplementedError

    def sync(self) -> None:
        """Make the version that was found durable."""
        raise NotImplementedError


def sync_files(root: Path, rows: Iterable[Path], log: Path, entries: Iterable[Path]) -> None:
    """Make files of a table in a local directory durable: rows, and entries of its ``log``.

    Other stores keep what they have acknowledged.
    """
    rows = list(rows)
    files = {*rows, *entries}
    for path in files | {path.with_name(f".{path.name}.crc") for path in files}:
        if path.is_file():
            sync_file(path)
    folders = {log, root, root.parent}
    for path in rows:
        folders |= {parent for parent in path.parents if root in parent.parents}
    for parent in folders:
        sync_directory(parent)
