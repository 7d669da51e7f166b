"""Counts the rows of a batch of a stage without state, and finds the late ones.

The low watermark does not need the counts: every range of such a stage is at the inputs' low
watermark W when the batch is committed.
The heuristic watermarks need the number of rows as a weight, and late rows must be noticed. Both
are measured within the user's own jobs: a metric on the frame counts the rows and keeps their least
event time, at a fraction of a job's cost (benchmark ``spark_overhead``). The driver then decides
whether a row is late: Spark compiles a metric's constants into the job, so with the promise in it
Spark would compile the metric anew whenever the promise moves.

Several actions count the same rows, so the greatest count is used. It is a lower bound: an action
that stops early, such as ``take``, ``limit`` or a Python iterator, counts only the rows that it has
read, and a late row among the others is missed. If no action has counted a row, one job in the JVM
counts them all and reads the source again. A job that finds the oldest late row and its key range
reads all rows of the batch; it runs only if an action has read a late row.

For a retried or duplicated task only the accepted attempt counts. Before PySpark 4.3 two things may
count rows twice: a sort (``orderBy``), which first samples its rows in a job of its own, and a
stage that runs again because an executor was lost with its shuffle files. Both change the batch's
weight in the heuristic watermarks and its counts in a lateness budget, nothing else.

For a stage with a lateness budget the metric also has the number of rows in each lateness bucket,
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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowwater import Arrived
from lowwater.core.lateness import EDGES
from lowwater.watermark import MIN
from lowwater_spark.columns import columns_of, event_micros

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from lowwater_spark.track.rows.keyed import Keyed

__all__ = ["Actions", "Counted", "Rows"]

logger = logging.getLogger("lowwater.spark")

_PATIENCE_MS: Final = 1000
"""Milliseconds that a batch waits for Spark's listener events; then it counts by a job."""

_SOON: Final = 0.005
"""Seconds within which the event of a finished action usually arrives. Spark's own wait polls every
ten milliseconds, so this module waits here first."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of a batch's rows in one stage."""

    finished: int = 0
    """Number of rows that the stage need not see again. Without state these are the rows read:
    exact if a job has counted them, otherwise a lower bound."""
    late: int = 0
    """Number of rows below the promised watermark."""
    late_example: int | None = None
    """Event time of the oldest late row, microseconds."""
    late_handle: int | None = None
    """Key range of the oldest late row."""
    arrived: Arrived | None = None
    """Lateness of the rows read (of an injector with state: emitted); None without a budget, or
    while there is no time to count it from."""
    untimed: int = 0
    """Number of rows without an event time."""


_GROWTH: Final = math.log(1.05)
_EDGES: Final = f"array({', '.join(f'{edge}L' for edge in EDGES[:-1])})"
"""The edges as SQL, since hundreds of literals would be as many calls into the JVM a batch."""
_BINS: Final = 1024
"""Bins of the aggregate: more than there are buckets, so that it merges equal ones only. (The
position of two merged equal ones may be off by a rounding.)"""
_FAR: Final = 2**62
"""Greatest lateness that is counted, microseconds: the difference of two times can overflow."""


def lateness_of(micros: Column, reference: int) -> Column:
    """Return the lateness of a time, microseconds; null for null."""
    from pyspark.sql import functions as sf

    return sf.lit(reference) - sf.when(micros < reference - _FAR, sf.lit(reference - _FAR)).otherwise(micros)


def bucket(lateness: Column) -> Column:
    """Return the bucket of a lateness as lowwater.core.lateness.bucket_of; null for null."""
    from pyspark.sql import functions as sf

    edges = sf.expr(_EDGES)
    # ``near`` is the bucket by the logarithm, less 1e-9: a rounding of log() must not make it one
    # too high, because below only one too low is corrected. It may be that: each edge is 1.05 times
    # the edge before it, rounded down, so the edges lag behind the powers of 1.05, by less than a
    # bucket. ``exact`` compares the lateness with edge ``near`` itself, at near + 1 as element_at()
    # counts from 1. Beyond the last edge, least() takes that one: element_at() would find none.
    near = sf.ceil(sf.log(lateness / sf.lit(1000.0)) / sf.lit(_GROWTH) - sf.lit(1e-9)).cast("int") + 1
    exact = near + sf.when(sf.element_at(edges, sf.least(near, sf.lit(len(EDGES) - 2)) + 1) < lateness, 1).otherwise(0)
    # least() ignores nulls: without this condition a null lateness would get the last bucket.
    bounded = sf.when(lateness.isNotNull(), sf.least(exact, sf.lit(len(EDGES) - 1)))
    return sf.when(lateness <= 0, 0).when(lateness <= 1000, 1).otherwise(bounded)


class Rows:
    """The rows of one batch, and their counts.

    Rows below ``promised``, microseconds, are late; MIN: no row is. ``reference`` is the time from
    which lateness is counted; MIN: it is not counted.
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
        """Return the frame with the metric on it, for the user's function: the same rows."""
        self._metric = self._actions.expect(self._frame)
        if self._metric:
            self._observed = self._frame.observe(self._metric, *self._measures())
        return self._frame if self._observed is None else self._observed

    def counted(self) -> Counted:
        """Return the counts, from the actions on the frame so far, or from a job.

        Later calls return the same at no cost.
        """
        if self._counted is None:
            self._counted = self._count()
        return self._counted

    def _measures(self) -> list[Column]:
        from pyspark.sql import functions as sf

        measures = [*self._actions.measures(self._frame, self._keyed.event_time)]
        if self._promised == MIN:
            measures.pop()  # the least event time, which shows late rows: without a promise none is late
        if self._reference != MIN:
            lateness = lateness_of(event_micros(self._frame, self._keyed.event_time), self._reference)
            histogram = sf.to_json(sf.histogram_numeric(bucket(lateness).cast("double"), sf.lit(_BINS)))
            measures.append(histogram.alias("arrived"))
        return measures

    def _count(self) -> Counted:
        measured = self._actions.take(self._frame, self._metric) if self._metric else None
        # No result, or zero rows, is no proof of an empty batch: an action may have read no row at
        # all, such as a join whose other side is empty. So a job counts the rows.
        if measured is None or measured.rows == 0:
            [row] = self._source().agg(*self._measures()).collect()
            measured = _Measured(**row.asDict())
        late = measured.oldest is not None and measured.oldest < self._promised
        counted = self._find_late(measured.rows) if late else Counted(measured.rows)
        return dataclasses.replace(counted, arrived=self._arrived(measured.arrived), untimed=measured.untimed)

    def _arrived(self, histogram: str | None) -> Arrived | None:
        if histogram is None:
            return None
        counts: dict[int, int] = {}
        # Spark's histogram_numeric may return one bucket in two bins. Their counts are added: else
        # the second bin would replace the first.
        for bin_ in json.loads(histogram):
            counts[round(bin_["x"])] = counts.get(round(bin_["x"]), 0) + round(bin_["y"])
        return Arrived(self._reference, counts)

    def _source(self) -> DataFrame:
        """Return the frame, or the observed frame if the user has persisted it."""
        observed = self._observed
        if observed is None:
            return self._frame
        level = observed.storageLevel
        return observed if level.useMemory or level.useDisk else self._frame

    def _find_late(self, rows: int) -> Counted:
        """Count the rows below the promise, and find the oldest. Costs a job."""
        from pyspark.sql import functions as sf

        frame = self._source()
        time = event_micros(frame, self._keyed.event_time)
        handle = self._keyed.cut.handle(sf.xxhash64(*columns_of(frame, self._keyed.key)))
        late = frame.select(time.alias("micros"), handle.alias("handle")).where(
            sf.col("micros") < sf.lit(self._promised)
        )
        [[count, oldest]] = late.agg(sf.count(sf.lit(1)), sf.min(sf.struct("micros", "handle"))).collect()
        # No row is late now, though an action saw one: the source returned other rows this time. So
        # the late rows of the first reading are unknown, and only its number of rows counts.
        return Counted(rows) if oldest is None else Counted(rows, count, oldest.micros, oldest.handle)


class _Measured(NamedTuple):
    """The result of a metric on a batch's frame."""

    rows: int
    oldest: int | None = None
    """Least event time, microseconds; None if no row has one, or none can be late."""
    arrived: str | None = None
    """Lateness buckets as JSON; None without a budget."""
    untimed: int = 0
    """Number of rows without an event time."""


class Actions:
    """Observes the actions on the batches' frames, through Spark's listener of query executions.

    Spark calls the listener on a thread of its own. The listener never raises an error, since a
    batch can always count by a job. Batches are sequential, so one metric is expected at a time.
    """

    class Java:
        """Interfaces that py4j shows to the JVM."""

        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._prefix = f"lowwater-{uuid.uuid4().hex[:8]}"
        self._metric = ""
        self._results: list[_Measured] = []
        self._delivered = threading.Event()
        """Set when an action has delivered the metric."""
        self._unread: dict[str, bool] = {}
        """Metrics on the batch's emitted rows; True until an action reads the rows."""
        self._warned_stages: set[str] = set()
        self._manager: Any = None
        self._listener: Any = None
        self._measures: Sequence[Column] = ()

    def measures(self, frame: DataFrame, event_time: str | Column) -> Sequence[Column]:
        """Return the measures of all rows, of rows without an event time, and of the least one.

        They are the same for all batches, whose frames have the same columns. Raises as
        :func:`event_micros`.
        """
        from pyspark.sql import functions as sf

        if not self._measures:
            time = event_micros(frame, event_time)
            untimed = sf.count_if(time.isNull()).alias("untimed")
            self._measures = [sf.expr("count(1) AS rows"), untimed, sf.min(time).alias("oldest")]
        return self._measures

    def expect(self, frame: DataFrame) -> str:
        """Return the name of the metric for a batch's frame; empty without a listener."""
        self._results = []
        self._delivered.clear()
        self._metric = f"{self._prefix}-{next(self._numbers)}"
        if not self._listen(frame):
            self._metric = ""
        return self._metric

    def watch(self, emitted: DataFrame) -> tuple[DataFrame, str]:
        """Return the emitted rows with a metric that notices actions, and its name or empty."""
        from pyspark.sql import functions as sf

        metric = f"{self._prefix}-{next(self._numbers)}"
        if not self._listen(emitted):
            return emitted, ""
        self._unread[metric] = True
        return emitted.observe(metric, sf.count(sf.lit(1)).alias("rows")), metric

    def tell_unread(self, emitted: DataFrame, metric: str, stage: str, batch: int) -> None:
        """Warn, once for each stage of a run, if no action has read a batch's emitted rows.

        It is a warning and no error: Spark has no events for actions on ``rdd``, so a missing event
        proves nothing.
        """
        unread = self._drained(emitted) and self._unread.get(metric, False)
        self._unread.pop(metric, None)
        if unread and stage not in self._warned_stages:
            self._warned_stages.add(stage)
            logger.warning(_UNREAD, batch, stage)

    def _listen(self, frame: DataFrame) -> bool:
        """Register with the session that runs the batch; False if that fails."""
        try:
            # Each session has its own listeners, and Spark runs a batch in a copy of the user's
            # session. If this copy is another one than before, the listener is registered anew, or
            # it would hear of no action.
            manager: Any = frame.sparkSession._jsparkSession.listenerManager()
            if self._manager is None or not manager.equals(self._manager):
                self.close()
                # py4j makes a new JVM object each time it passes ``self``, and close() must
                # unregister the very object that was registered. singletonList() returns it.
                jvm: Any = frame.sparkSession._jvm
                listener = jvm.java.util.Collections.singletonList(self).get(0)
                manager.register(listener)
                self._manager, self._listener = manager, listener
        except Exception as failure:  # noqa: BLE001 - whatever py4j raises
            logger.debug("actions cannot be observed, so batches are counted by a job: %s", failure)
            return False
        return True

    def take(self, frame: DataFrame, metric: str) -> _Measured | None:
        """Return the counts of the action that has read most rows, and the least time of all.

        None if they are unknown.
        """
        self._delivered.wait(_SOON)
        # The first event sets _delivered, but the function may have run several actions, which all
        # count: wait for the events of the others too.
        if not self._drained(frame):
            return None
        results, self._results = (self._results if metric == self._metric else []), []
        self._metric = ""
        if not results:
            return None
        # The least event time is that of all actions: perhaps only one that has read fewer rows has
        # read the late row. The other measures are those of the action that has read most rows.
        most = max(results, key=lambda result: result.rows)
        oldest = min((result.oldest for result in results if result.oldest is not None), default=None)
        return _Measured(most.rows, oldest, most.arrived, most.untimed)

    def _drained(self, frame: DataFrame) -> bool:
        """Wait until Spark has delivered its events; False if that takes too long."""
        try:
            context: Any = frame.sparkSession.sparkContext._jsc
            context.sc().listenerBus().waitUntilEmpty(_PATIENCE_MS)
        except Exception as failure:  # noqa: BLE001 - TimeoutException, or whatever py4j raises
            logger.debug("Spark's events are late, so they say nothing of the batch: %s", failure)
            return False
        return True

    def close(self) -> None:
        """Unregister the listener."""
        manager, self._manager = self._manager, None
        try:
            if manager is not None:
                manager.unregister(self._listener)
        except Exception as failure:  # noqa: BLE001 - the session may be gone
            logger.debug("the listener stays: %s", failure)

    def onSuccess(self, function: str, execution: Any, _duration: int) -> None:  # noqa: N802 - Spark's name
        """See QueryExecutionListener.

        All measures come in one call, because the batch waits for it. Costs four calls into the JVM
        if the metric is in the plan, otherwise two, and one for each frame of emitted rows.
        """
        metric = self._metric
        try:
            metrics = execution.observedMetrics()
            # tuple() copies the names: watch(), on the batch's thread, may add one meanwhile, and a
            # loop over the dict itself would raise RuntimeError.
            for emitted in tuple(self._unread):
                if metrics.contains(emitted):
                    self._unread[emitted] = False
            if not metric or not metrics.contains(metric):
                return
            result = _Measured(**json.loads(metrics.apply(metric).json()))
            # isEmpty() reads one row at most. The function may call it, and then read all rows by
            # ``rdd`` or ``foreachPartition``, which send no events: one row would be counted, and
            # late ones missed. With zero rows here, _count() runs a job instead.
            if function == "isEmpty":
                result = _Measured(0, result.oldest)
            self._results.append(result)
            self._delivered.set()
        except Exception as failure:  # noqa: BLE001 - it runs in Spark's thread
            logger.debug("an action cannot be read: %s", failure)

    def onFailure(self, _function: str, _execution: Any, _failure: Any) -> None:  # noqa: N802 - Spark's name
        """See QueryExecutionListener. A failed action is not counted: it read only some rows."""


_UNREAD: Final = (
    "batch %d of %s has emitted rows by batch.stateful() that no action has read: they are in no output, and the next batch does not have them. "
    "Write the frame that batch.stateful() returns, with batch.write() for example; if the rows are not needed, return None for them. (Spark "
    "has no events for actions on the frame's rdd: if you write it by foreachPartition, ignore this.)"
)
