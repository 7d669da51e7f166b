"""Three Spark queries in a row, with and without lowwater, for ``pipeline`` and ``streams``."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lowwater
import lowwater_spark as lws
from benchmarks.pipeline_between import PATIENCE, Made

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

EVERY_BATCH: Final = {"processingTime": "0 seconds"}
RANGES: Final = 64
STAGES: Final = 3
SECOND: Final = timedelta(seconds=1)
"""Event time by which each step moves on, and length of a window."""
START: Final = dt.datetime(2013, 1, 9, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Step:
    """When each stage had come to the end of one step, seconds from its beginning."""

    stages: Sequence[float]
    claim: float = 0.0
    """Seconds from the beginning until the injector's claim, that all up to here is complete, was
    acknowledged: a part of the first stage's."""

    @property
    def added(self) -> list[float]:
        """Milliseconds that each stage added to the one before."""
        before = (0.0, *self.stages[:-1])
        return [(after - start) * 1000 for start, after in zip(before, self.stages, strict=True)]


class Pipeline(AbstractContextManager["Pipeline"]):
    """Three queries: each reads what the one before it has written.

    One step is some records at the front, all at once.
    """

    def __init__(self, spark: SparkSession, folder: Path, rows: int, factory: Made) -> None:
        folder.mkdir()
        self.spark = spark
        self.folder = folder
        self.rows = rows
        self.queries: list[StreamingQuery] = []
        self._stop = ExitStack()
        self.between = factory(spark, folder, rows)
        self._stop.callback(self.between.close)
        self._steps = 0
        self._put = 0

    def checkpoint(self, stage: int) -> Path:
        """Return a stage's checkpoint."""
        return self.folder / f"checkpoint-{stage}"

    def frame(self, stage: int) -> DataFrame:
        """Return what a stage does with what it reads."""
        return self.between.read(self.spark, stage).where("v >= 0")

    def put(self) -> None:
        """Bring in the records of a step."""
        begin = START + self._steps * SECOND
        self.between.put(
            self._put,
            [
                json.dumps({"key": f"k{i % 50}", "t": (begin + i * SECOND / self.rows).isoformat(), "v": i / self.rows})
                for i in range(self.rows)
            ],
        )
        self._put += 1

    @abstractmethod
    def step(self, *, records: bool = True) -> Step:
        """Move on by a second of event time and wait until all stages have."""

    def batches(self) -> list[float]:
        """Return the milliseconds of each batch with rows, from trigger to commit."""
        progress = (progress_ for query in self.queries for progress_ in query.recentProgress)
        return [entry.durationMs["triggerExecution"] for entry in progress if entry.numInputRows]

    def check(self) -> None:
        """Check that every record has come through, once."""
        rows_out = self.between.out(self.spark, STAGES)
        count = (
            rows_out.selectExpr("sum(n)").first()
            if "n" in rows_out.columns
            else rows_out.selectExpr("count(*)").first()
        )
        assert count is not None
        if count[0] != self._put * self.rows:
            msg = f"{count[0]} records of {self._put * self.rows} have come out of {self.folder}"
            raise RuntimeError(msg)

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self._stop.close()


class Untracked(Pipeline):
    """The queries by themselves. A stage is there when what it writes can be read."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int, factory: Made) -> None:
        super().__init__(spark, folder, rows, factory)
        for stage in range(1, STAGES + 1):
            query = self.between.alone(self.frame(stage), stage, self._writer(self.checkpoint(stage)))
            self._stop.callback(query.stop)
            self.queries.append(query)

    @staticmethod
    def _writer(checkpoint: Path) -> Callable[[DataFrame], DataStreamWriter]:
        return lambda frame: frame.writeStream.trigger(**EVERY_BATCH).option("checkpointLocation", str(checkpoint))

    def step(self, *, records: bool = True) -> Step:
        """See Pipeline: each batch writes something new that is looked for."""
        assert records, "without records nothing is to be seen of a query by itself"
        self.put()
        begin = time.perf_counter()
        number, self._steps = self._steps, self._steps + 1
        return Step([self.between.await_step(stage, number) - begin for stage in range(1, STAGES + 1)])


class Tracked(Pipeline):
    """The same queries as tracked stages, behind an injector in plain Python.

    A stage is there when a subscriber sees its watermark.

    A watermark beyond what the injector has claimed ends the run.
    """

    def __init__(
        self, spark: SparkSession, folder: Path, rows: int, factory: Made, address: str, *, driven: bool = False
    ) -> None:
        super().__init__(spark, folder, rows, factory)
        self._names = [f"{folder.name}-{stage}" for stage in range(STAGES + 1)]
        client = self._stop.enter_context(lowwater.connect(address))
        client.register(self._names[0])
        self._lease = self._stop.enter_context(client.worker(self._names[0], identity="benchmark")).claim()
        self._arrivals = self._stop.enter_context(Arrivals(address, self._names[1:]))
        self._tracked: list[lws.TrackedQuery] = []
        for stage in range(1, STAGES + 1):
            last = driven and stage == STAGES
            declared = lws.stage(
                spark,
                self._names[stage],
                inputs=[self._names[stage - 1]],
                key="key",
                event_time="t",
                ranges=RANGES,
                retention=timedelta() if last else None,
                address=address,
            )
            frame = self._windows(self.between.read(spark, stage)) if last else self.frame(stage)
            query = self.between.tracked(stage, declared, frame, self.checkpoint(stage))
            self._stop.callback(query.stop)
            self._tracked.append(query)
            self.queries.append(query.query)

    def _windows(self, frame: DataFrame) -> DataFrame:
        """Count by windows of a second, which close on the low watermark of the stage before.

        The rows are stamped by the end of their window.
        """
        from pyspark.sql import functions as sf

        driven = lws.drive(frame, inputs=[self._names[STAGES - 1]], event_time="t")
        counts = driven.groupBy(sf.window("t", "1 second"), "key").agg(sf.count("v").alias("n"))
        return counts.select("key", sf.col("window.end").alias("t"), "n")

    def step(self, *, records: bool = True) -> Step:
        """Run a step, as in Pipeline.

        A step with records begins when its input is there, as without lowwater; another one begins
        with the injector's claim.
        """
        if records:
            self.put()
        begin = time.perf_counter()
        self._steps += 1
        target = lowwater.Watermark.of(START + self._steps * SECOND)
        self._arrivals.expect(target)
        self._lease.advance(None, oldest=None, frontier=target)
        self._lease.flush(PATIENCE)
        claimed = time.perf_counter()
        try:
            arrivals = self._arrivals.wait()
        except RuntimeError:
            for query in self._tracked:
                query.await_termination(0.001)  # raises what has ended it
            raise
        return Step([arrivals[name] - begin for name in self._names[1:]], claimed - begin)


class Arrivals(AbstractContextManager["Arrivals"]):
    """A subscriber with a client of its own: when each computation came to a watermark."""

    def __init__(self, address: str, names: Sequence[str]) -> None:
        self._client = lowwater.connect(address)
        self._names = names
        self._changed = threading.Condition()
        self._target = lowwater.Watermark.UNKNOWN
        self._arrived_at: dict[str, float] = {}
        self._ahead = ""
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def expect(self, target: lowwater.Watermark) -> None:
        """Look for a watermark that nobody has claimed yet."""
        with self._changed:
            self._target, self._arrived_at = target, {}

    def wait(self) -> Mapping[str, float]:
        """Return when each came to it, on the performance counter.

        Raises RuntimeError when one does not, or goes beyond.
        """
        with self._changed:
            come = self._changed.wait_for(lambda: self._ahead or len(self._arrived_at) == len(self._names), PATIENCE)
            if self._ahead or not come:
                msg = self._ahead or f"only {sorted(self._arrived_at)} came to {self._target} in {PATIENCE:g} s"
                raise RuntimeError(msg)
            return dict(self._arrived_at)

    def _follow(self) -> None:
        for view in self._client.watch(*self._names):
            now = time.perf_counter()
            with self._changed:
                if view.low > self._target:
                    self._ahead = (
                        f"{view.computation} is at {view.low}, and nobody has claimed more than {self._target}"
                    )
                elif view.low == self._target:
                    self._arrived_at.setdefault(view.computation, now)
                self._changed.notify_all()

    def __exit__(self, *_: object) -> None:
        """End the subscription."""
        self._client.close()
        self._thread.join()
