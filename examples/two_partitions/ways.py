"""The same hourly counts in three ways: Spark alone, attached, driven.

Each replays all records through a query of its own.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import lowwater
import lowwater_spark as lws
from examples.two_partitions.records import BEHIND, HOUR, STALL, Step, micros, put
from lowwater.watermark import MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DELAY: Final = "2 hours"
"""Delay of Spark's own watermark."""

ALONE: Final = "alone"
ATTACHED: Final = "attached"
DRIVEN: Final = "driven"

PATIENCE: Final = 120.0
"""Seconds that a step may take; then the run gives up and says where it stands."""

INPUTS: Final = {partition: f"partition-{partition}" for partition in BEHIND}
"""The computations that the injectors report, by partition."""


class Stand(NamedTuple):
    """Watermark of a way after a step."""

    mark: int
    """The watermark that windows close by."""
    dropped: int
    """Rows dropped as late until then, as Spark counts them."""


Settle = Callable[[Step], Stand]
"""Waits until everything that follows from a step is written, and says how things stand then."""


class Written(NamedTuple):
    """A row that a query has written."""

    window: int
    """Start of the hour."""
    rows: int
    clock: int
    """Replay clock of the step after which it was there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one way."""

    written: Sequence[Written]
    stands: Sequence[Stand]
    """After each step."""
    seconds: float
    note: str = ""
    """Answer of ``lowwater why`` in the middle of the stall; empty for Spark alone."""

    @property
    def dropped(self) -> int:
        """Rows dropped as late in the whole run, as Spark counts them."""
        return self.stands[-1].dropped


class Stuck(Exception):
    """A step was not finished in time."""


def alone(spark: SparkSession, folder: Path, steps: Sequence[Step]) -> Outcome:
    """Spark's own watermark, and nothing of lowwater."""
    began = time.monotonic()
    with _query(spark, folder, ALONE) as query:

        def settle(_step: Step) -> Stand:
            query.processAllAvailable()
            # Spark remembers a hundred batches; the replay has fewer.
            operators = [operator for progress in query.recentProgress for operator in progress["stateOperators"]]
            dropped = sum(operator["numRowsDroppedByWatermark"] for operator in operators)
            return Stand(micros(_progress(query)["eventTime"]["watermark"]), dropped)

        written, stands = _replay(folder, steps, settle)
    return Outcome(written, stands, time.monotonic() - began)


def attached(spark: SparkSession, folder: Path, steps: Sequence[Step], address: str) -> Outcome:
    """Run the query in an attached session, whose figures come from the attachment's reports."""
    began = time.monotonic()
    note = ""
    with (
        lws.attach(spark, address) as attachment,
        lowwater.connect(address) as lw,
        _query(spark, folder, ATTACHED) as query,
    ):

        def settle(step: Step) -> Stand:
            nonlocal note
            query.processAllAvailable()
            last = int(_progress(query)["batchId"])
            # Spark tells its listeners a little later, and the attachment the authority.
            _until(lambda: _has_published(attachment.status(), last), lambda: f"{ATTACHED}: {attachment.status()}")
            shown = attachment.status().query(ATTACHED)
            view = lw.get(shown.computation)[shown.computation]
            if step.clock < STALL[1]:
                note = f"{view.computation} stands at {view.low}{', estimated' if view.estimated else ''}"
            return Stand(view.low.micros, shown.late_rows)

        written, stands = _replay(folder, steps, settle)
    return Outcome(written, stands, time.monotonic() - began, note)


def driven(spark: SparkSession, folder: Path, steps: Sequence[Step], address: str) -> Outcome:
    """Run windows that wait for the low watermark of both partitions, with an injector each."""
    began = time.monotonic()
    note = ""
    with contextlib.ExitStack() as stack:
        lw = stack.enter_context(lowwater.connect(address))
        leases = {}
        for partition, name in INPUTS.items():
            lw.register(name)
            leases[partition] = stack.enter_context(lw.worker(name, name=f"injector-{partition}")).claim()
        from pyspark.sql import functions as sf

        stage = lws.stage(
            spark,
            DRIVEN,
            inputs=list(INPUTS.values()),
            key="start",
            event_time="t",
            heuristics=(),
            stamp=sf.col("start"),
            address=address,
        )
        hourly = _hourly(stage.drive(_read(spark, folder)))
        query = stage.start(hourly, checkpoint=folder / "checkpoint", format="json", path=folder / "windows")
        stack.callback(query.stop)

        def settle(step: Step) -> Stand:
            nonlocal note
            for partition, lease in leases.items():  # the records are there: now say so
                if step.frontiers[partition] == MAX:
                    lease.finish()
                else:
                    lease.advance(None, oldest=None, frontier=step.frontiers[partition])
                lease.flush(PATIENCE)
            come = min(step.frontiers.values())
            # Hours that end at or before the low watermark are written; the stage stands at the
            # start of the last one.
            reached = lowwater.Watermark(MAX if come == MAX else come // HOUR * HOUR - HOUR)
            _until(lambda: _has_reached(lw, query, reached), lambda: f"{lw.why(DRIVEN)}; {query.stage_status()}")
            if step.clock < STALL[1]:
                note = str(lw.why(DRIVEN))
            low = min(view.low for view in lw.get(*INPUTS.values()).values())
            return Stand(low.micros, query.stage_status().dropped_rows)

        written, stands = _replay(folder, steps, settle)
        query.stop()  # what Spark says of its last batches is in the status then
        stands[-1] = stands[-1]._replace(dropped=query.stage_status().dropped_rows)
    return Outcome(written, stands, time.monotonic() - began, note)


def _read(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the stream of a folder's records."""
    (folder / "records").mkdir(parents=True)
    stream = spark.readStream.schema("partition string, t timestamp").option("recursiveFileLookup", "true")
    return stream.json(str(folder / "records"))


def _hourly(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    return frame.groupBy(sf.window("t", "1 hour")).count().select(sf.col("window.start").alias("start"), "count")


@contextlib.contextmanager
def _query(spark: SparkSession, folder: Path, name: str) -> Iterator[StreamingQuery]:
    """Run the query that lowwater has no part in."""
    writer = _hourly(_read(spark, folder).withWatermark("t", DELAY)).writeStream.outputMode("append").format("json")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "windows"))
    query = writer.queryName(name).start()
    try:
        yield query
    finally:
        query.stop()


def _replay(folder: Path, steps: Sequence[Step], settle: Settle) -> tuple[list[Written], list[Stand]]:
    """Write the records step by step; return the outputs with their steps, and the stands."""
    written: list[Written] = []
    stands = []
    read_paths: set[Path] = set()
    for step in steps:
        put(step, folder / "records")
        stands.append(settle(step))
        for path in sorted(set((folder / "windows").glob("part-*.json")) - read_paths):
            read_paths.add(path)
            rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            written += [Written(micros(row["start"]), row["count"], step.clock) for row in rows]
    return written, stands


def _progress(query: StreamingQuery) -> dict[str, Any]:
    """Return what Spark says of its last batch."""
    last = query.lastProgress
    if last is None:
        raise Stuck(f"{query.name} has run no batch")
    progress: dict[str, Any] = json.loads(last.json)
    return progress


def _has_published(status: lws.AttachStatus, batch: int) -> bool:
    """Return whether the authority has Spark's report of a batch."""
    query = next((candidate for candidate in status.queries if candidate.name == ATTACHED), None)
    return query is not None and (query.batch or 0) >= batch and query.published == query.watermark


def _has_reached(lw: lowwater.Client, query: lws.TrackedQuery, mark: lowwater.Watermark) -> bool:
    """Return whether a driven query has reached the watermark. Raises the error that ended it."""
    try:
        lw.wait(DRIVEN, until=mark, timeout=1)
    except lowwater.Timeout:
        query.await_termination(0.001)
        return False
    return True


def _until(condition: Callable[[], bool], where: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise Stuck(f"a step was not finished within {PATIENCE:.0f} s: {where()}")
        time.sleep(0.01)
