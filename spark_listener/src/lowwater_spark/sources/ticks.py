"""Empty batches on demand: a source of the query that gives no rows, only reasons to run.

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
from lowwater_spark.sources.nulls import nulls_of
from lowwater_spark.sources.source_log import Compacted, SourceLog, log_files, log_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Ticks", "tick_directory", "with_ticks"]

_PATIENCE: Final = 60.0
"""Seconds after which another tick is written for one that Spark has not taken, at the least. Where
the clock of a file system was put back, and the time of a file cannot be set, Spark passes over
each tick that is older than the newest one by more than an hour, until the clock is there again."""

_MANY: Final = 500
"""Number of committed ticks after which the log is looked at: up to so many may stand in it beside
the newest ones."""


def tick_directory(checkpoint: Location) -> Location:
    """Return where the ticks of a checkpoint lie."""
    return checkpoint / "lowwater" / "ticks"


def with_ticks(spark: SparkSession, frame: DataFrame, checkpoint: Location) -> DataFrame:
    """Return the stream with the tick source as its last source. It adds no rows."""
    from pyspark.sql import functions as sf

    folder = tick_directory(checkpoint)
    make_directory(folder)
    # Spark looks at each tick that it remembers whenever it lists them. No tick is ever older than
    # the newest one, see Ticks.force.
    stream = spark.readStream.option("maxFileAge", "1h").text(spark_path(folder).text)
    ticks = stream.select(*nulls_of(frame.schema.fields)).where(sf.lit(col=False))
    return frame.union(ticks)


class Ticks(Rowless):
    """The source of ticks, and who writes them, at most one that is not committed yet.

    It gives no rows, so it is never waited for.

    ``number`` is its place among the query's sources, ``ordinal`` the run's: names are never used
    twice, since Spark takes each path once.
    """

    def __init__(
        self, checkpoint: Location, number: int, ordinal: int, *, elapsed: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = tick_directory(checkpoint)
        make_directory(self._folder)
        self._ordinal = ordinal
        self._entries = checkpoint / "sources" / str(number)
        # Of a checkpoint that was moved, the log names ticks by their old place. It is this
        # source's all the same, and no row of it is read.
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
        """Ticks that Spark did not take in time, and that others stand in for."""
        self._forgotten = _MANY
        """Number of ticks that were forgotten since the log was looked at. A new run looks at once.
        """

    @property
    def remembered(self) -> int:
        """Number of ticks whose names are held."""
        return len(self._log.taken)

    # -- a writer ----------------------------------------------------------------------------------

    def outstanding(self, line: Line) -> bool:
        """Return whether the newest tick is still to be committed, given the source's offset in the last committed batch."""
        taken = self._log.taken.get(self._outstanding)
        if taken is not None and taken.batch <= log_offset(line):
            self._outstanding = ""
        return bool(self._outstanding)

    def force(self, line: Line) -> bool:
        """Make Spark run a batch, unless one was asked for and is not committed yet; return whether a tick was written.

        One that Spark has not taken for a minute, and for two triggers, is written again, under another name.
        """
        if self.outstanding(line):
            patience = max(_PATIENCE, 2 * self.trigger)
            if self._outstanding in self._log.taken or self._elapsed() - self._since < patience:
                return False
            self._passed_over.append(self._folder / self._outstanding.rpartition("/")[2])
        self._count += 1
        path = self._folder / f"{self._ordinal}-{self._count}"
        write_over(path, b"", durable=False)
        # If the clock was put back, Spark would pass over the tick for its age.
        newest = self._log.newest * 1_000_000
        if isinstance(path, Path) and path.stat().st_mtime_ns < newest:
            os.utime(path, ns=(newest, newest))
        self._outstanding, self._since = str(path), self._elapsed()
        return True

    def clean(self, line: Line) -> None:
        """Delete and forget the ticks of committed batches, but for the newest entry: a restarted query looks at that one again.

        Costs a listing of the few files that are there; and after each 500 ticks one of the log, of which a part may be written anew. Raises OSError.
        """
        committed = log_offset(line)
        self.outstanding(line)
        old = [path for path, tick in self._log.taken.items() if tick.batch < committed]
        there = {str(path): path for path in self._folder.iterdir()} if old else {}
        deleted = [there[path] for path in old if path in there]
        if not self._outstanding:
            # Spark has taken a later one, so those that it has not taken are too old for it for
            # ever. One that it has taken with the later one is in the newest entry: a restarted
            # query looks at that file, and it is deleted as the others are.
            deleted += [path for path in self._passed_over if str(path) not in self._log.taken]
            self._passed_over = []
        for path in deleted:
            path.unlink(missing_ok=True)
        if deleted:
            sync_directory(self._folder)
        self._log.drop(old)
        self._forgotten += len(old)
        # Only now: a file whose name is in no log would be taken for a new tick.
        if self._forgotten >= _MANY and (compacted := Compacted.newest(self._entries, committed)):
            compacted.drop_before(committed)
            self._forgotten = 0

    # -- a source ----------------------------------------------------------------------------------

    def read_to(self, line: Line) -> None:
        """Read which ticks Spark has taken up to a planned batch."""
        self._log.read_to(log_offset(line))

    def evidence(self, line: Line) -> list[Location]:
        """Return the log's entry of a batch."""
        return log_files(self._entries, line)
