"""Empty batches on demand: a source of the query that gives no rows, but makes Spark run a batch.

Spark runs no batch while its sources give nothing new, so a window that could close would wait for
the next row. The stage therefore unites the data with a text source over
``CHECKPOINT/lowwater/ticks``, all of its columns null and no row let through; a file renamed into
that directory makes Spark plan a batch with nothing else in it. The source must be part of the
query from its first checkpoint on, because Spark numbers the sources of a checkpoint for good.

A tick is forgotten when its batch is committed: its file is deleted, the driver drops its name, and
Spark drops it from memory after an hour (``maxFileAge``). Spark's log of the source never forgets:
each compacted entry repeats all before it. So the driver takes old ticks out of the newest
compacted entry now and then. Otherwise a stage that asks for a tick each second would have a log of
86,400 lines a day, which Spark reads at each start and rewrites at each tenth batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lowwater_spark.checkpoint.durable import make_directory, sync_directory, write_over
from lowwater_spark.checkpoint.location import Location, spark_path
from lowwater_spark.sources.base import Line, Rowless
from lowwater_spark.sources.files.source_log import Compacted, SourceLog, log_files, log_offset
from lowwater_spark.sources.nulls import nulls_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Ticks", "tick_directory", "with_ticks"]

_PATIENCE: Final = 60.0
"""Least seconds before another tick replaces one that Spark has not taken. When the clock of a file
system was set back, and the time of a file cannot be set, Spark skips each tick that is older than
the newest one by more than an hour."""

_MANY: Final = 500
"""Number of committed ticks after which old lines are removed from the log; up to so many may be in
it beside the newest ones."""


def tick_directory(checkpoint: Location) -> Location:
    """Return the directory of a checkpoint's ticks."""
    return checkpoint / "lowwater" / "ticks"


def with_ticks(spark: SparkSession, frame: DataFrame, checkpoint: Location) -> DataFrame:
    """Return the stream with the tick source as its last source, which adds no rows."""
    from pyspark.sql import functions as sf

    folder = tick_directory(checkpoint)
    make_directory(folder)
    # With maxFileAge Spark forgets a tick after an hour: each listing looks at all that it
    # remembers. It also skips a new tick that is older than the newest one by an hour, as after the
    # clock was set back. For a local file force() prevents that; for others see ``_PATIENCE``.
    stream = spark.readStream.option("maxFileAge", "1h").text(spark_path(folder).text)
    ticks = stream.select(*nulls_of(frame.schema.fields)).where(sf.lit(col=False))
    return frame.union(ticks)


class Ticks(Rowless):
    """The source of ticks, and their writer. At most one tick is not committed yet.

    The source gives no rows, so no reading waits for it. ``number`` is its place among the query's
    sources, ``ordinal`` the run's. The ordinal is part of each file name, because Spark takes a
    path only once.
    """

    def __init__(
        self, checkpoint: Location, number: int, ordinal: int, *, elapsed: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = tick_directory(checkpoint)
        make_directory(self._folder)
        self._ordinal = ordinal
        self._entries = checkpoint / "sources" / str(number)
        # root=None: SourceLog accepts ticks from any directory. After a checkpoint was moved, its
        # log still names the old one: with a root, read_to() would raise CheckpointMismatch. A tick
        # has no rows, so its directory does not matter.
        self._log = SourceLog(self._entries, None, columns=None)
        self._count = 0
        self._outstanding = ""
        self._elapsed = elapsed
        self.trigger = 0.0
        """Seconds from one batch of the query to the next by its trigger; 0.0: none, or not known.
        """
        self._since = 0.0
        """When the outstanding tick was written, in seconds of a clock that does not go back."""
        self._passed_over: list[Location] = []
        """Ticks that Spark did not take in time, and that later ones have replaced."""
        self._forgotten = _MANY
        """Number of ticks that were forgotten since the log was cleaned. A new run cleans it at
        once.
        """

    @property
    def remembered(self) -> int:
        """Number of ticks whose names are held."""
        return len(self._log.taken)

    # -- a writer ----------------------------------------------------------------------------------

    def outstanding(self, line: Line) -> bool:
        """Return whether the newest tick is not committed yet, by the last committed line."""
        taken = self._log.taken.get(self._outstanding)
        if taken is not None and taken.batch <= log_offset(line):
            self._outstanding = ""
        return bool(self._outstanding)

    def force(self, line: Line) -> bool:
        """Write a tick, so that Spark runs a batch; return False when one is still outstanding.

        A tick that Spark has not taken for a minute, and for two triggers, is replaced by another.
        """
        if self.outstanding(line):
            patience = max(_PATIENCE, 2 * self.trigger)
            if self._outstanding in self._log.taken or self._elapsed() - self._since < patience:
                return False
            self._passed_over.append(self._folder / self._outstanding.rpartition("/")[2])
        self._count += 1
        path = self._folder / f"{self._ordinal}-{self._count}"
        write_over(path, b"", durable=False)
        # If the clock was set back by more than maxFileAge, Spark would skip this tick as too old.
        # So a local file gets the time of the newest tick that Spark has taken. On HDFS and S3
        # Spark skips the ticks until the clock has caught up.
        newest = self._log.newest * 1_000_000
        if isinstance(path, Path) and path.stat().st_mtime_ns < newest:
            os.utime(path, ns=(newest, newest))
        self._outstanding, self._since = str(path), self._elapsed()
        return True

    def clean(self, line: Line) -> None:
        """Delete and forget the ticks of committed batches, except those of the newest entry.

        A restarted query looks at the files of that entry again. Costs a listing of a few files,
        and every 500 ticks one of the log, whose newest compacted entry may be rewritten. Raises
        OSError.
        """
        committed = log_offset(line)
        self.outstanding(line)
        old = [path for path, tick in self._log.taken.items() if tick.batch < committed]
        files = {str(path): path for path in self._folder.iterdir()} if old else {}
        deleted = [files[path] for path in old if path in files]
        if not self._outstanding:
            # The newest tick is committed. ``_passed_over`` are the ticks before it that Spark had
            # not taken in time. The listing that found the newest one found them too: those that it
            # did not take were older than maxFileAge, and stay so. So delete their files. Before
            # that commit a batch could still name such a file, and would fail without it. One that
            # Spark has taken is in ``taken``, and is deleted as any other tick, by ``old``.
            deleted += [path for path in self._passed_over if str(path) not in self._log.taken]
            self._passed_over = []
        for path in deleted:
            path.unlink(missing_ok=True)
        if deleted:
            sync_directory(self._folder)
        self._log.drop(old)
        self._forgotten += len(old)
        # compacted.drop_before() shortens Spark's log of ticks only after their files are deleted.
        # If the driver died between the two in the other order, the next run's Spark would find
        # files that its log does not name: it would take them for new ticks, and run a needless
        # batch.
        if self._forgotten >= _MANY and (compacted := Compacted.newest(self._entries, committed)):
            compacted.drop_before(committed)
            self._forgotten = 0

    # -- a source ----------------------------------------------------------------------------------

    def read_to(self, line: Line) -> None:
        """Read Spark's log of the ticks up to a planned batch."""
        self._log.read_to(log_offset(line))

    def evidence(self, line: Line) -> list[Location]:
        """Return the log's entry of a batch."""
        return log_files(self._entries, line)
