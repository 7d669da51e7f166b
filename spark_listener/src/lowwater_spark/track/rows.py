"""Counts the rows of a batch that keeps nothing, and finds those of them that are late.

The low watermark needs none of it: every range of such a stage stands at W when the batch is
committed. The heuristic watermarks need the number of rows, as a weight, and a broken promise must
be seen. Both are read off the user's own jobs: a metric on the frame counts the rows that come by
and keeps the least of their event times, which costs a fraction of a job of its own (benchmark
``spark_overhead``). Whether any is late the driver decides: Spark writes the numbers of a metric
into the code that it generates for it, and with the promise in it, it would compile that anew
whenever the promise has moved.

Of several actions each counts the same rows, so the greatest count stands. It is a lower bound. An
action that does not read to the end, such as ``take``, ``limit`` or a Python iterator, counts what
it has read: the rows that no action has read are not counted, and a late one among them is not
seen. When no action has told of a row, one job counts them all, in the JVM, and reads the source
again for it. A job that looks for the oldest late row and its key range runs only when an action
has read a late row; it looks at all rows of the batch.

A retried or doubled task counts once: the accepted attempt's. Before PySpark 4.3 two things may
count rows again: a sort (``orderBy``), which takes a sample of its rows by a job of its own first,
and a stage that is run again because an executor was lost with its shuffle files. Both shift the
weight of the batch in the heuristic watermarks, and count its rows again in a lateness budget; they
shift nothing else.

Of a stage with a lateness budget the metric also has how many rows lie in each bucket of lateness,
of the action that has read most rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import math
import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from lowwater import Arrived
from lowwater.core.lateness import EDGES
from lowwater.watermark import MIN
from lowwater_spark.columns import column_of, columns_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from lowwater_spark.track.batch import Keyed

__all__ = ["Actions", "Counted", "Rows", "event_micros"]

logger = logging.getLogger("lowwater.spark")

_PATIENCE_MS: Final = 1000
"""How long a batch waits for Spark to hand out its events, at most; then it counts by a job."""

_SOON: Final = 0.005
"""Seconds within which an action that has just ended is told of, as a rule. Spark's own wait looks
every ten milliseconds, so it is asked when it need not wait."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What a batch has read."""

    rows: int
    """At least as many as this, unless a job has counted them: then just as many."""
    late: int = 0
    late_example: int | None = None
    """Event time of the oldest late row, microseconds."""
    late_handle: int | None = None
    """Its key range."""
    arrived: Arrived | None = None
    """How late they were; None when nobody asks, or nothing is known that lateness counts from."""
    untimed: int = 0
    """Number of them that had no event time."""


_GROWTH: Final = math.log(1.05)
_EDGES: Final = f"array({', '.join(f'{edge}L' for edge in EDGES[:-1])})"
"""As SQL: hundreds of literals would be as many calls of the JVM in each batch."""
_BINS: Final = 1024
"""More than there are buckets, so that the aggregate merges equal ones only. (What it makes of two
equal ones may be off by a rounding.)"""
_FAR: Final = 2**62
"""Microseconds. What is later is as late as this: a difference of two times may not fit into 64
bits."""


def lateness_of(micros: Column, reference: int) -> Column:
    """Return how late a time is, microseconds; null for none."""
    from pyspark.sql import functions as sf

    return sf.lit(reference) - sf.when(micros < reference - _FAR, sf.lit(reference - _FAR)).otherwise(micros)


def bucket(lateness: Column) -> Column:
    """Return the bucket of a lateness in microseconds, as :func:`lowwater.core.lateness.bucket_of` does, exactly; null for null."""
    from pyspark.sql import functions as sf

    edges = sf.expr(_EDGES)
    # The edges are rounded down, by less than a bucket in all, so that the logarithm is right or
    # one too low.
    near = sf.ceil(sf.log(lateness / sf.lit(1000.0)) / sf.lit(_GROWTH) - sf.lit(1e-9)).cast("int") + 1
    exact = near + sf.when(sf.element_at(edges, sf.least(near, sf.lit(len(EDGES) - 2)) + 1) < lateness, 1).otherwise(0)
    # ``least`` would pass a null over.
    known = sf.when(lateness.isNotNull(), sf.least(exact, sf.lit(len(EDGES) - 1)))
    return sf.when(lateness <= 0, 0).when(lateness <= 1000, 1).otherwise(known)


def event_micros(frame: DataFrame, event_time: str | Column) -> Column:
    """Return a column of event times in microseconds.

    Raises TypeError when it is no timestamp with time zone.
    """
    from pyspark.sql import functions as sf

    _check_time(frame, event_time)
    return sf.unix_micros(column_of(frame, event_time))


def _is_name(event_time: str | Column, frame: DataFrame) -> TypeGuard[str]:
    """Return whether an event time is the name of a column of the frame, as the frame itself has it."""
    return isinstance(event_time, str) and event_time.isidentifier() and frame.schema.names.count(event_time) == 1


def _check_time(frame: DataFrame, event_time: str | Column) -> None:
    """Raise TypeError when an event time is no timestamp with time zone."""
    from pyspark.sql.types import TimestampType

    # What the frame itself tells needs no plan.
    if _is_name(event_time, frame):
        field = frame.schema[event_time]
    else:
        field = frame.select(column_of(frame, event_time)).schema.fields[0]
    if not isinstance(field.dataType, TimestampType):
        msg = (
            f"event_time {field.name} is of type {field.dataType.simpleString()}; an event time is a point on the time line: "
            "use a timestamp column, for example sf.timestamp_micros(...)"
        )
        raise TypeError(msg)


class Rows:
    """The rows of one batch, and how many of them there are.

    ``promised``: rows below it are late, microseconds; with MIN none is. ``reference``: what their
    lateness counts from; MIN: nobody asks.
    """

    def __init__(self, frame: DataFrame, keyed: Keyed, promised: int, actions: Actions, reference: int = MIN) -> None:
        self._frame = frame
        self._keyed = keyed
        self._promised = promised
        self._reference = reference
        self._actions = actions
        self._observed: DataFrame | None = None
        self._metric = ""
        self._counted: Counted | None = None

    def observed(self) -> DataFrame:
        """Return the frame with the metric on it: the same rows, for the user's function."""
        self._metric = self._actions.expect(self._frame)
        if self._metric:
            self._observed = self._frame.observe(self._metric, *self._measures())
        return self._frame if self._observed is None else self._observed

    def counted(self) -> Counted:
        """Return the count, from the actions that have run on the frame by now, or from a job.

        Cheap after the first call.
        """
        if self._counted is None:
            self._counted = self._count()
        return self._counted

    def _measures(self) -> list[Column]:
        from pyspark.sql import functions as sf

        measures = [self._actions.all_rows(), self._actions.untimed(self._frame, self._keyed.event_time)]
        if self._promised != MIN:
            measures.append(self._actions.oldest(self._frame, self._keyed.event_time))
        if self._reference != MIN:
            lateness = lateness_of(event_micros(self._frame, self._keyed.event_time), self._reference)
            found = sf.to_json(sf.histogram_numeric(bucket(lateness).cast("double"), sf.lit(_BINS)))
            measures.append(found.alias("arrived"))
        return measures

    def _count(self) -> Counted:
        found = self._actions.take(self._frame, self._metric) if self._metric else None
        # An action may have read nothing at all, because the other side of a join was empty.
        if found is None or found.rows == 0:
            [row] = self._source().agg(*self._measures()).collect()
            found = _measured(row.asDict())
        late = found.oldest is not None and found.oldest < self._promised
        counted = self._find_late(found.rows) if late else Counted(found.rows)
        return dataclasses.replace(counted, arrived=self._arrived(found.arrived), untimed=found.untimed)

    def _arrived(self, found: str | None) -> Arrived | None:
        if found is None:
            return None
        counts: dict[int, int] = {}
        # One bucket may come twice.
        for each in json.loads(found):
            counts[round(each["x"])] = counts.get(round(each["x"]), 0) + round(each["y"])
        return Arrived(self._reference, counts)

    def _source(self) -> DataFrame:
        """Return the frame, or what the user has persisted of it."""
        observed = self._observed
        if observed is None:
            return self._frame
        level = observed.storageLevel
        return observed if level.useMemory or level.useDisk else self._frame

    def _find_late(self, rows: int) -> Counted:
        """Count the rows below the promise, and find the oldest: a job."""
        from pyspark.sql import functions as sf

        frame = self._source()
        time = event_micros(frame, self._keyed.event_time)
        handle = self._keyed.cut.handle(sf.xxhash64(*columns_of(frame, self._keyed.key)))
        late = frame.select(time.alias("micros"), handle.alias("handle")).where(
            sf.col("micros") < sf.lit(self._promised)
        )
        [[count, oldest]] = late.agg(sf.count(sf.lit(1)), sf.min(sf.struct("micros", "handle"))).collect()
        # The source gave other rows this time: nothing can be said of them.
        return Counted(rows) if oldest is None else Counted(rows, count, oldest.micros, oldest.handle)


class _Measured(NamedTuple):
    """What a metric on a batch's frame came to."""

    rows: int
    oldest: int | None
    """The least event time, microseconds; None when no row has one, or none can be late."""
    arrived: str | None
    """The buckets of lateness, as JSON; None when nobody asks."""
    untimed: int = 0
    """Number of rows without an event time."""


def _measured(values: Mapping[str, Any]) -> _Measured:
    return _Measured(values["rows"], values.get("oldest"), values.get("arrived"), values["untimed"])


class Actions:
    """Hears of the actions on the batches' frames, through Spark's listener of query executions.

    Spark hands these events out on a thread of its own; nothing here raises, since a batch can
    always count by a job. Batches of one run come one after the other, so one metric is expected at
    a time.
    """

    class Java:
        """What py4j shows to the JVM."""

        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._prefix = f"lowwater-{uuid.uuid4().hex[:8]}"
        self._metric = ""
        self._found: list[_Measured] = []
        self._heard = threading.Event()
        """Set when an action has told of the metric."""
        self._unread: dict[str, bool] = {}
        """By the metric on the rows that a stage has emitted in this batch: whether no action on
        them has been heard of."""
        self._told: set[str] = set()
        self._manager: Any = None
        self._listener: Any = None
        self._all_rows: Column | None = None
        self._oldest: Column | None = None
        self._untimed: Column | None = None

    def all_rows(self) -> Column:
        """Return the measure of all rows: the same for all batches."""
        from pyspark.sql import functions as sf

        if self._all_rows is None:
            self._all_rows = sf.expr("count(1) AS rows")
        return self._all_rows

    def oldest(self, frame: DataFrame, event_time: str | Column) -> Column:
        """Return the measure of the least event time: the same for all batches, whose frames have the columns of the first one's. Raises as :func:`event_micros`."""
        from pyspark.sql import functions as sf

        if self._oldest is None:
            self._oldest = sf.min(event_micros(frame, event_time)).alias("oldest")
        return self._oldest

    def untimed(self, frame: DataFrame, event_time: str | Column) -> Column:
        """Return the measure of rows without an event time: the same for all batches, as :meth:`oldest` is. Raises as :func:`event_micros`."""
        from pyspark.sql import functions as sf

        if self._untimed is None:
            self._untimed = sf.count_if(event_micros(frame, event_time).isNull()).alias("untimed")
        return self._untimed

    def expect(self, frame: DataFrame) -> str:
        """Return the name of the metric to put on a batch's frame; empty when nobody would hear of it."""
        self._found = []
        self._heard.clear()
        self._metric = f"{self._prefix}-{next(self._numbers)}"
        if not self._listen(frame):
            self._metric = ""
        return self._metric

    def watch(self, emitted: DataFrame) -> tuple[DataFrame, str]:
        """Return rows that a batch has emitted, with a metric on them that tells whether an action reads them, and its name; empty: none."""
        from pyspark.sql import functions as sf

        metric = f"{self._prefix}-{next(self._numbers)}"
        if not self._listen(emitted):
            return emitted, ""
        self._unread[metric] = True
        return emitted.observe(metric, sf.count(sf.lit(1)).alias("rows")), metric

    def tell_unread(self, emitted: DataFrame, metric: str, stage: str, batch: int) -> None:
        """Warn, once for each stage of a run, when no action has read what a batch emitted.

        A warning and no error: Spark tells of no action on ``rdd``, so that nothing was heard
        proves nothing.
        """
        unread = self._drained(emitted) and self._unread.get(metric, False)
        self._unread.pop(metric, None)
        if unread and stage not in self._told:
            self._told.add(stage)
            logger.warning(_UNREAD, batch, stage)

    def _listen(self, frame: DataFrame) -> bool:
        """Register with the session that runs the batch; False when nobody would hear of it."""
        try:
            # Spark runs the batches of a query in one session, a copy of the user's; nothing
            # promises that it stays the same.
            manager: Any = frame.sparkSession._jsparkSession.listenerManager()
            if self._manager is None or not manager.equals(self._manager):
                self.close()
                # Each time that py4j passes a Python object on it is another object in the JVM, and
                # only the same one can be unregistered.
                jvm: Any = frame.sparkSession._jvm
                listener = jvm.java.util.Collections.singletonList(self).get(0)
                manager.register(listener)
                self._manager, self._listener = manager, listener
        except Exception as failure:  # noqa: BLE001 - whatever py4j raises
            logger.debug("actions cannot be observed, so batches are counted by a job: %s", failure)
            return False
        return True

    def take(self, frame: DataFrame, metric: str) -> _Measured | None:
        """Return the greatest that each measure of the metric came to in an action; None when there was none, or it is not known."""
        self._heard.wait(_SOON)
        # There may be further ones, and they count as well.
        if not self._drained(frame):
            return None
        found, self._found = (self._found if metric == self._metric else []), []
        self._metric = ""
        if not found:
            return None
        # Each by itself: the late row may be one that only the smaller of two actions has read.
        most = max(found, key=lambda each: each.rows)
        oldest = min((each.oldest for each in found if each.oldest is not None), default=None)
        return _Measured(most.rows, oldest, most.arrived, most.untimed)

    def _drained(self, frame: DataFrame) -> bool:
        """Wait until Spark has handed out its events; False when that takes too long."""
        try:
            context: Any = frame.sparkSession.sparkContext._jsc
            context.sc().listenerBus().waitUntilEmpty(_PATIENCE_MS)
        except Exception as failure:  # noqa: BLE001 - TimeoutException, or whatever py4j raises
            logger.debug("Spark's events are late, so they say nothing of the batch: %s", failure)
            return False
        return True

    def close(self) -> None:
        """Stop hearing."""
        manager, self._manager = self._manager, None
        try:
            if manager is not None:
                manager.unregister(self._listener)
        except Exception as failure:  # noqa: BLE001 - the session may be gone
            logger.debug("the listener stays: %s", failure)

    def onSuccess(self, function: str, execution: Any, _duration: int) -> None:  # noqa: N802 - Spark's name
        """See QueryExecutionListener.

        Costs four calls of the JVM when the metric is in the plan, else two, and one for each frame
        of emitted rows.

        The batch waits for it: all measures come in one call.
        """
        metric = self._metric
        try:
            metrics = execution.observedMetrics()
            # A copy: the batch's thread may add another one meanwhile.
            for emitted in tuple(self._unread):
                if metrics.contains(emitted):
                    self._unread[emitted] = False
            if not metric or not metrics.contains(metric):
                return
            found = _measured(json.loads(metrics.apply(metric).json()))
            # It has read one row at most. Who asks this first, and then reads by ``rdd`` or
            # ``foreachPartition``, of which Spark tells nothing, would have one row counted and no
            # late one seen: a job has to count.
            if function == "isEmpty":
                found = _Measured(0, found.oldest, None)
            self._found.append(found)
            self._heard.set()
        except Exception as failure:  # noqa: BLE001 - it runs in Spark's thread
            logger.debug("an action cannot be read: %s", failure)

    def onFailure(self, _function: str, _execution: Any, _failure: Any) -> None:  # noqa: N802 - Spark's name
        """See QueryExecutionListener. What an action saw before it failed is no count."""


_UNREAD: Final = (
    "batch %d of %s has emitted rows by batch.stateful() that no action has read: they are in no output, and the next batch does not have them. "
    "Write the frame that batch.stateful() returns, with batch.write() for example; if nobody wants the rows, return None for them. (Spark "
    "does not tell of actions on the frame's rdd: if you write it by foreachPartition, all is well.)"
)
