"""An output that is a directory: each batch appears in it at once, whole, as ``batch=N``.

If the name exists, the batch is a replay and was handed over before: the write is skipped. If it
appended instead, a replay's rows would get new file names, and a reader would read both; if it
overwrote files, no reader would see it, since Spark never re-reads a path. Readers use
``recursiveFileLookup``.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.durable import NotDurable, remove_tree, rename_once, sync_directory, write_over
from lowwater_spark.checkpoint.location import Location, local, location_of, real, refuse_pattern, spark_path
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.complete.folder import WATERMARK, first_of, say
from lowwater_spark.complete.mark import Standing
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.files.bookmarks import removed
from lowwater_spark.sources.files.sink_log import refuse_sink
from lowwater_spark.sources.files.writers import digest_of, mark_writer
from lowwater_spark.track.output.outputs import BatchOutput, FoundBatch, OutputTurn, remember, remembered
from lowwater_spark.track.output.removal import Removal
from lowwater_spark.track.output.times import check_times, exact_times
from lowwater_spark.track.state.handover import publish_directory, sweep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FolderOut"]

logger = logging.getLogger("lowwater.spark")

_SMALL: Final = 1 << 20
"""Greatest size, in bytes, of a remote file that is fetched to test whether it has rows."""


@dataclass(slots=True)
class FolderOut(BatchOutput):
    """A directory with one writer."""

    says_complete = True
    folder: Location
    """The directory, with all symbolic links resolved."""
    named: Location
    """The directory as the user names it."""
    file_format: str
    keep: timedelta | None
    """Least time that a batch stays; None: no batch is removed."""
    removal: Removal | None = None

    @classmethod
    def at(
        cls,
        frame: DataFrame,
        turn: OutputTurn,
        place: str,
        *,
        file_format: str = "parquet",
        keep: timedelta | None = None,
    ) -> FolderOut:
        """Return the output in a directory.

        Raises ValueError for a relative path and a negative ``keep``, Unsupported for a file system
        without renames, for a path with pattern characters, and for a removal on a remote one.
        """
        if SparkPath.of_text(place).local is None:
            fix = "Write it with batch.write_table(), or with Spark's file sink by Stage.start(); or use a directory on one of these."
            named = location_of(frame.sparkSession, place, "The path", fix)
        else:
            named = Path(SparkPath.of_text(place).path)
            if not named.is_absolute():
                msg = f"{place} is not an absolute path of a local directory or of HDFS. Pass an absolute path, or hdfs://... for HDFS"
                raise ValueError(msg)
        if keep is not None and keep < timedelta(0):
            msg = f"keep is the least time that a batch stays, so it must not be negative: {keep!r}"
            raise ValueError(msg)
        refuse_pattern(str(named), "The path")
        if keep is not None:
            fix = "Leave keep= out, and remove old batches outside of Spark, by age."
            named = local(named, "The removal of batches in", fix)
        return cls(real(named), named, file_format, keep)

    @property
    def key(self) -> Location:
        """The directory."""
        return self.folder

    def resume(self, earlier: BatchOutput) -> FolderOut | None:
        """Return this output, with the removal that the run's earlier batches have used."""
        if not isinstance(earlier, FolderOut):
            return None
        self.removal = earlier.removal
        return self

    def begin(self, frame: DataFrame, turn: OutputTurn) -> None:
        """Delete half filled directories, and leave the mark of the writer.

        Raises Unsupported for the directory of a Spark file sink; CheckpointMismatch if the removal
        has passed this batch and ``batch=N`` is missing: removed batches leave their directories.
        """
        refuse_sink(self.named)
        sweep(self.folder, turn.run)
        mark_writer(self.folder, turn.writer)
        # A Spark file sink may have started here since the first refuse_sink(): by now its mark or
        # its log is there. A stage's sink that starts later finds mark_writer()'s mark, and is
        # refused. If both wrote here, readers that go by the sink's log would miss these rows.
        refuse_sink(self.named)
        if isinstance(self.folder, Path):
            through = removed(os.fspath(self.folder)).through
            if turn.facts.batch <= through and not (self.folder / f"batch={turn.facts.batch}").exists():
                msg = (
                    f"{self.folder} has had the batches up to {through}, which were removed when all readers had read them, and not this batch {turn.facts.batch}: the "
                    "checkpoint is older than its output, or another one's. Use a directory of its own for each checkpoint; restore both from one moment."
                )
                raise CheckpointMismatch(msg)
        # _first() notes the directory's first batch in the manifest. append() calls it too, but is
        # not called in a replay whose batch is there already. If the manifest had no note then, as
        # one that was restored, the next batch would find this one, and take 0 for the first: the
        # output would read as incomplete, "batch 0 is missing".
        self._first(turn)

    def find(self, turn: OutputTurn) -> FoundBatch | None:
        """Return the batch, if its directory exists."""
        target = self.folder / f"batch={turn.facts.batch}"
        return FoundBatch(turn.facts.batch, digest_of(target), str(target)) if target.exists() else None

    def append(self, frame: DataFrame, turn: OutputTurn, standing: Standing | None) -> bool:
        """Write the rows to ``batch=N``. Without rows the directory has no data files."""
        assert standing is not None
        mark = say(self.folder, turn.writer, turn.facts.batch, self._first(turn), standing)

        def fill(folder: Location) -> None:
            check_times(frame, self.file_format)
            writer = frame.write.format(self.file_format).options(**exact_times(self.file_format))
            writer.save(spark_path(folder / "rows").text)
            for file in (folder / "rows").iterdir():
                if not file.name.startswith((".", "_")) and not _is_empty(file, self.file_format):
                    rename_once(file, folder / file.name)
            remove_tree(folder / "rows")
            turn.probe("files written")
            write_over(folder / WATERMARK, mark, durable=False)

        written = publish_directory(self.folder, f"batch={turn.facts.batch}", turn.facts.digest, fill, ordinal=turn.run)
        turn.probe("files handed over")
        return written

    def _first(self, turn: OutputTurn) -> int:
        """Return the first batch in the directory, noting it before the first write."""
        manifest, output = turn.section.manifest, str(self.folder)
        first: int | None = remembered(manifest, turn.writer, output)
        if first is None:
            first = first_of(self.folder, turn.facts.batch)
            remember(manifest, turn.writer, output, first)
        return first

    def finish(self, frame: DataFrame, turn: OutputTurn) -> bool:
        """Sync the batch's name: its writer may have died before the sync."""
        sync_directory(self.folder)
        return False

    def remove(self, turn: OutputTurn) -> None:
        """Remove the batches that no reader needs. If that fails, the files stay."""
        if self.keep is None or not isinstance(self.folder, Path):
            return
        removal = self.removal = self.removal or Removal(self.folder)
        removal.probe = turn.probe
        try:
            # Batch N runs, so N - 1 is the newest batch that Spark has surely committed. N itself
            # stays: Spark may still run it again.
            removal.remove(self.keep, turn.facts.batch - 1, time.time())
        except (OSError, NotDurable) as error:
            logger.warning("stopped removing old batches from %s for now: %s", self.folder, error)

    @classmethod
    def sink_options(cls, frame: DataFrame, name: str, options: Mapping[str, Any], writer: str) -> dict[str, str]:
        """Return the formats of times that keep microseconds. Raises Unsupported as check_times."""
        check_times(frame, name, options)
        return exact_times(name, options)


def _is_empty(file: Location, file_format: str) -> bool:
    size = file.stat().st_size if isinstance(file, Path) else file.size()
    if file_format != "parquet":
        return size == 0
    import pyarrow.parquet

    if isinstance(file, Path):
        return bool(pyarrow.parquet.read_metadata(file).num_rows == 0)
    # To count the rows of a remote file, all of it must be fetched. A Parquet file without rows is
    # little more than its schema, so a larger one counts as having rows. If it has none, it stays
    # in the batch, and readers read one file more.
    return size < _SMALL and bool(pyarrow.parquet.read_metadata(io.BytesIO(file.read_bytes())).num_rows == 0)
