"""The thread that reads the rows of committed batches again, and counts those that Spark dropped.

It follows the sidecar's clock and never delays it: a watermark does not depend on these counts. The
tally is one file in the sidecar's state directory, with the last batch that is in it, so a killed
sidecar counts no batch twice, and goes on behind that batch. A count is believed only after the
source has confirmed that it still has what the batch has read, and the checkpoint that it is still
the same query's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater.watermark import Watermark
from lowwater_spark.checkpoint.durable import write_over
from lowwater_spark.checkpoint.log import CheckpointLog, Plan
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sidecar.dropped import HOUR, Dropped, DroppedRow, Tally
from lowwater_spark.sidecar.evidence import query_id
from lowwater_spark.sources.base import POSITION, ReadBefore, RowsGone
from lowwater_spark.track.run.hook import PATIENCE
from lowwater_spark.track.run.status import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lowwater_spark.checkpoint.manifest import Manifest
    from lowwater_spark.sources.base import Source

__all__ = ["Recount", "stored_tally"]

logger = logging.getLogger("lowwater.spark")

_FILE: Final = "dropped.json"

_NAMED: Final = 3
"""Number of hours that a line of the log names."""

_TIME: Final = "lowwater_time"


class Recount:
    """The dropped rows of one query, counted by a thread of its own.

    ``committed`` is the newest batch in the commit log, -1 for none: without a stored tally those
    before are not counted. ``session`` makes the session that reads, when there is something to
    read. Each batch with rows costs a job of one task, which reads each row once more.
    """

    def __init__(
        self,
        name: str,
        declared: Sequence[Dropped],
        sources: Sequence[Source],
        manifest: Manifest,
        session: Callable[[], SparkSession],
        committed: int,
    ) -> None:
        self._name = name
        self._declared = declared
        self._sources = sources
        self._manifest = manifest
        self._session = session
        self._log = CheckpointLog(manifest.checkpoint)
        self._query = query_id(manifest.checkpoint)
        self._home = Path(str(manifest.home))
        self._digest = hashlib.sha256(repr(declared).encode()).hexdigest()
        tally = stored_tally(self._home, self._digest)
        self._tally = Tally(name, committed) if tally is None else tally
        self._target = committed
        self._used: SparkSession | None = None
        """The session, once it was needed."""
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._news.set()
        self._stopping = threading.Event()
        if tally is None:
            self._save()  # so that the next start does not leave out the batches until then
        logger.info("the rows of %s that Spark drops are counted from batch %d on", name, self._tally.batch + 1)
        self._thread = threading.Thread(target=self._run, name="lowwater-spark-dropped", daemon=True)
        self._thread.start()

    def follow(self, committed: int) -> None:
        """Count the batches up to this one, later. Does not wait."""
        if committed > self._target:
            self._target = committed
            self._news.set()

    def stop(self) -> None:
        """Stop counting. What is not counted by then is counted after the next start."""
        self._stopping.set()
        self._news.set()
        if self._used is not None and self._thread.is_alive():
            with contextlib.suppress(Exception):  # whatever py4j raises when the JVM is gone
                self._used.sparkContext.cancelJobGroup(self._thread.name)
        self._thread.join(10)

    def shown(self) -> Mapping[str, Any]:
        """Return the fields of a status. From any thread."""
        with self._lock:
            return self._tally.shown()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        pauses = iter(PATIENCE)
        while not self._stopping.is_set():
            self._news.wait()
            self._news.clear()
            while self._tally.batch < self._target and not self._stopping.is_set():
                batch = self._tally.batch + 1
                try:
                    self._next(batch)
                    pauses = iter(PATIENCE)
                except RowsGone as failure:
                    self._give_up(batch, str(failure))
                except Exception as failure:  # noqa: BLE001 - whatever Spark or py4j raise
                    # After a minute without success each batch is tried once: a reader that lags
                    # for long would lose the offsets of later batches too.
                    pause = None if _is_final(failure) else next(pauses, None)
                    if pause is None:
                        self._give_up(batch, first_line(failure))
                    else:
                        self._stopping.wait(pause)

    def _next(self, batch: int) -> None:
        """Count one batch. Raises RowsGone if that is impossible, and what Spark raises."""
        before = None if batch == 0 else self._log.plan(batch - 1)
        plan = self._log.plan(batch)
        if plan is None or (before is None and batch):
            first = self._log.first_planned()
            self._give_up(batch if first is None else max(batch, first), "Spark has deleted its offsets by now")
            return
        hours, example = self._count(before, plan)
        if query_id(self._log.checkpoint) != self._query:
            self._stopping.set()  # the clock finds that out as well, and ends the sidecar
            return
        with self._lock:
            self._tally.add(batch, hours, example)
        if hours or batch >= self._target:
            self._save()
        if example is not None:
            logger.warning(
                "Spark has dropped %d rows of batch %d of %s as late: %s; the oldest: %s",
                sum(hours.values()),
                batch,
                self._name,
                _in_words(hours),
                example,
            )

    def _count(self, before: Plan | None, plan: Plan) -> tuple[dict[int, int], DroppedRow | None]:
        """Return the dropped rows of a batch by hour, and the oldest of them."""
        hours: dict[int, int] = {}
        oldest: list[DroppedRow] = []
        if before is None or before.watermark <= 0:
            return hours, None
        for number, (source, declared) in enumerate(zip(self._sources, self._declared, strict=True)):
            read = ReadBefore(self._manifest, number, before.lines[number], plan.lines[number])
            if read.before == read.line:
                continue
            for hour, rows, micros, position in self._rows(
                source, declared, read, declared.bound(before.watermark * 1_000)
            ):
                hours[hour] = hours.get(hour, 0) + rows
                oldest.append(DroppedRow(micros, position, plan.batch))
        return hours, min(oldest, default=None)

    def _rows(self, source: Source, declared: Dropped, read: ReadBefore, bound: int) -> list[tuple[int, int, int, str]]:
        """Return hour, number, least event time and its position of the rows below a bound."""
        import pyspark.sql.functions as sf
        from pyspark.sql.types import TimestampType

        self._used = spark = self._session()
        spark.sparkContext.setJobGroup(self._thread.name, f"rows that {self._name} has dropped", interruptOnCancel=True)
        rows = source.again(spark, read, declared.options)
        if rows is None:
            return []
        times = rows.frame.where(declared.where).select(sf.expr(declared.event_time).alias(_TIME), POSITION)
        if (kind := times.schema[_TIME].dataType) != TimestampType():
            msg = f"event_time of dropped is of type {kind.simpleString()}, and withWatermark takes a timestamp"
            raise RowsGone(msg)
        dropped = times.select(sf.expr(f"unix_micros({_TIME})").alias("micros"), POSITION).where(f"micros < {bound}")
        hours = dropped.coalesce(1).groupBy(sf.expr(f"micros - pmod(micros, {HOUR})").alias("hour"))
        found = hours.agg(sf.count("*").alias("rows"), sf.min(sf.struct("micros", POSITION)).alias("oldest")).collect()
        rows.confirm()
        return [(row["hour"], row["rows"], row["oldest"]["micros"], row["oldest"][POSITION]) for row in found]

    def _give_up(self, batch: int, reason: str) -> None:
        if self._stopping.is_set():
            return
        known = self._tally.reason == reason
        with self._lock:
            self._tally.give_up(batch, reason)
        self._save()
        if not known:
            logger.warning(
                "the rows of batch %d of %s that Spark has dropped are not counted: %s", batch, self._name, reason
            )

    def _save(self) -> None:
        content = {"declared": self._digest, "tally": self._tally.to_json()}
        try:
            write_over(self._home / _FILE, json.dumps(content).encode())
        except OSError as failure:  # the next batch saves its rows as well
            logger.warning("the dropped rows of %s are not saved: %s", self._name, failure)


def stored_tally(home: Path, digest: str = "") -> Tally | None:
    """Return the tally in the state directory of a query; None without one.

    With ``digest`` also None for one of other declarations. Raises CheckpointMismatch, OSError.
    """
    try:
        content = json.loads((home / _FILE).read_bytes())
        return Tally.from_json(content["tally"]) if digest in ("", content["declared"]) else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as failure:
        msg = f"{home / _FILE} is damaged; delete it, and the dropped rows are counted from now on"
        raise CheckpointMismatch(msg) from failure


def _is_final(failure: Exception) -> bool:
    """Return True if another attempt would fail as well."""
    # A sidecar may run without PySpark until it needs a session, so this imports nothing.
    loaded = sys.modules.get("pyspark.errors")
    analysis = () if loaded is None else (loaded.AnalysisException,)
    return isinstance(failure, (CheckpointMismatch, ImportError, ValueError, *analysis))


def _in_words(hours: Mapping[int, int]) -> str:
    """Return numbers of rows by hour in words.

    >>> _in_words({0: 2, 3_600_000_000: 1})
    '2 of 1970-01-01T00:00:00Z, 1 of 1970-01-01T01:00:00Z'
    """
    named = [f"{hours[hour]} of {Watermark(hour)}" for hour in sorted(hours)[:_NAMED]]
    return ", ".join([*named, *([f"and {len(hours) - _NAMED} more hours"] if len(hours) > _NAMED else [])])
