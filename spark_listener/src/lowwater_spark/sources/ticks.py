"""Empty batches on demand: a source of the query that gives no rows, only reasons to run.

Spark runs no batch while its sources give nothing new, so a window that could close would wait for the next row. The stage therefore
unites the data with a text source over ``CHECKPOINT/lowwater/ticks``, all of its columns null and no row let through; a file
renamed into that directory makes Spark plan a batch with nothing else in it. The source must be part of the query from its first
checkpoint on, because Spark numbers the sources of a checkpoint for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowwater_spark.checkpoint.durable import make_directory, sync_directory, write_over
from lowwater_spark.checkpoint.location import Location, spark_path
from lowwater_spark.sources.base import Line, Rowless
from lowwater_spark.sources.source_log import SourceLog, log_files, log_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Ticks", "tick_directory", "with_ticks"]


def tick_directory(checkpoint: Location) -> Location:
    """Return where the ticks of a checkpoint lie."""
    return checkpoint / "lowwater" / "ticks"


def with_ticks(spark: SparkSession, frame: DataFrame, checkpoint: Location) -> DataFrame:
    """Return the stream with the tick source as its last source. It adds no rows."""
    from pyspark.sql import functions as sf

    folder = tick_directory(checkpoint)
    make_directory(folder)
    nulls = [sf.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    ticks = spark.readStream.text(spark_path(folder).text).select(*nulls).where(sf.lit(col=False))
    return frame.union(ticks)


class Ticks(Rowless):
    """The source of ticks, and who writes them, at most one that is not committed yet. It gives no rows, so it is never waited for.

    ``number`` is its place among the query's sources, ``ordinal`` the run's: names are never used twice, since Spark takes each path once.
    """

    def __init__(self, checkpoint: Location, number: int, ordinal: int) -> None:
        self._folder = tick_directory(checkpoint)
        make_directory(self._folder)
        self._ordinal = ordinal
        self._entries = checkpoint / "sources" / str(number)
        self._log = SourceLog(self._entries, str(self._folder), columns=())
        self._count = 0
        self._outstanding = ""

    # -- a writer -------------------------------------------------------------------------------------------------------

    def outstanding(self, line: Line) -> bool:
        """Return whether the newest tick is still to be committed, given the source's offset in the last committed batch."""
        taken = self._log.taken.get(self._outstanding)
        return bool(self._outstanding) and (taken is None or taken.batch > log_offset(line))

    def force(self, line: Line) -> bool:
        """Make Spark run a batch, unless one was asked for and is not committed yet; return whether a tick was written."""
        if self.outstanding(line):
            return False
        self._count += 1
        path = self._folder / f"{self._ordinal}-{self._count}"
        write_over(path, b"", durable=False)
        self._outstanding = str(path)
        return True

    def clean(self, line: Line) -> None:
        """Delete the ticks of committed batches, but for the newest entry: a restarted query looks at that one again."""
        taken = self._log.taken
        old = [
            path for path in self._folder.iterdir() if (tick := taken.get(str(path))) and tick.batch < log_offset(line)
        ]
        for path in old:
            path.unlink(missing_ok=True)
        if old:
            sync_directory(self._folder)

    # -- a source -------------------------------------------------------------------------------------------------------

    def read_to(self, line: Line) -> None:
        """Read which ticks Spark has taken up to a planned batch."""
        self._log.read_to(log_offset(line))

    def evidence(self, line: Line) -> list[Location]:
        """Return the log's entry of a batch."""
        return log_files(self._entries, line)
