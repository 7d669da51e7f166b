"""Attach, tracked stages and drive, once through, on another PySpark: ``smoke.py FOLDER ADDRESS EXPECTED STEP...``."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.control import ClockValue, Control, Offset
from lowwater_spark.track.plan.checked import check_plan

HOUR = timedelta(hours=1)
SCHEMA = "key string, t timestamp"
HOURLY = "hour timestamp, key string, n long"
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A JVM of a minute: optimising what it runs would cost more than it saves. Hadoop starts a program for each file whose mode it sets: at once, not by another program.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    + (" -Djdk.lang.Process.launchMechanism=VFORK" if sys.platform == "linux" else ""),
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
PATIENCE = 120.0
"""Seconds that anything may take, on a busy machine."""


def at(hour: int, minute: int = 0) -> dt.datetime:
    return dt.datetime(2013, 1, 9, hour, minute, tzinfo=dt.UTC)


def mark(hour: int, minute: int = 0) -> lowwater.Watermark:
    return lowwater.Watermark.of(at(hour, minute))


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.02)


def await_stage(query: lws.TrackedQuery, condition: Callable[[], object], what: str) -> None:
    """Do the same of a stage that runs; what has ended its query is raised."""

    def come() -> bool:
        if not query.query.isActive:
            query.await_termination()
        return bool(condition())

    until(come, what)


def tell(what: str) -> None:
    print(what, flush=True)


class Feed:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._count = 0

    def put(self, *rows: tuple[str, dt.datetime]) -> None:
        self._count += 1
        beside = self.folder.parent / f".{self.folder.name}.tmp"
        beside.write_text("".join(json.dumps({"key": key, "t": t.isoformat()}) + "\n" for key, t in rows))
        beside.rename(self.folder / f"{self._count:05}.json")


class Smoke:
    def __init__(self, spark: SparkSession, folder: Path, address: str) -> None:
        self.spark = spark
        self.folder = folder
        self.attachment = lws.attach(spark, address or None)
        self.address = self.attachment.address
        self.lw = lowwater.connect(self.address)
        self.lw.register("source", heuristics=[0.99])
        self._lease = self.lw.worker("source", identity="smoke").claim()

    def close(self) -> None:
        for query in self.spark.streams.active:
            query.stop()
        self.lw.close()
        self.attachment.stop()

    def promise(self, moment: dt.datetime) -> None:
        """Say that nothing older will come; durable when it returns."""
        self._lease.advance(None, oldest=None, frontier=moment)
        self._lease.flush(20)

    def low(self, name: str) -> lowwater.Watermark:
        return self.lw.get(name)[name].low

    def feed(self, name: str) -> tuple[Feed, DataFrame]:
        feed = Feed(self.folder / name)
        stream = self.spark.readStream.schema(SCHEMA).option("recursiveFileLookup", "true")
        return feed, stream.json(str(feed.folder))

    def stage(self, name: str, **declared: Any) -> lws.Stage:
        declared = {"inputs": ["source"], "key": "key", "event_time": "t", "ranges": 4, **declared}
        return lws.stage(self.spark, name, address=self.address, **declared)

    def attach(self) -> None:
        feed, rows = self.feed("attached")
        feed.put(("fast", at(12)), ("slow", at(9)))
        counted = rows.withWatermark("t", "10 minutes").groupBy(sf.window("t", "1 hour")).count()
        writer = counted.writeStream.queryName("hourly").format("noop")
        query = writer.option("checkpointLocation", str(self.folder / "attached.ck")).start()
        until(lambda: self.low("spark.hourly") == mark(11, 50), "its watermark")
        feed.put(("slow", at(7)))
        until(lambda: self.attachment.status().query("hourly").late_rows == 1, "what Spark has dropped")
        view = self.lw.get("spark.hourly")["spark.hourly"]
        assert view.estimated
        query.stop()
        until(lambda: self.attachment.status().query("hourly").state == "ended", "its end")
        status = self.attachment.status()
        assert (status.swallowed, status.authority) == (0, "answers"), status
        tell("attach: Spark's watermark is published as estimated, the dropped row is seen, and the end of the query")

    def counted(self) -> None:
        feed, rows = self.feed("enriched.in")
        out = self.folder / "enriched"
        feed.put(("a", at(9)), ("b", at(9, 30)))
        self.promise(at(10))
        stage = self.stage("enriched")
        query = stage.foreach_batch(
            rows, lambda frame, batch: batch.write(frame, out), checkpoint=self.folder / "enriched.ck"
        )
        await_stage(query, lambda: self.low("enriched") == mark(10), "all that 10:00 covers is read")
        feed.put(("a", at(11)), ("late", at(9, 59)))
        await_stage(query, lambda: query.stage_status().late_rows == 1, "a broken promise is seen")
        assert query.stage_status().late_example == "2013-01-09T09:59:00Z in batch 1"
        self.promise(at(11))
        await_stage(query, lambda: self.low("enriched") == mark(11), "it follows its input without a batch")
        query.stop()
        written = self.spark.read.schema(SCHEMA).option("recursiveFileLookup", "true").parquet(str(out))
        assert sorted(row.key for row in written.collect())[-3:] == ["a", "b", "late"]
        tell("foreach_batch: the stage follows its input, and the late row is counted")

    def windows(self) -> None:
        feed, rows = self.feed("hourly.in")
        closed: list[tuple[str, str, int]] = []

        def write(frame: DataFrame, batch: lws.Batch) -> None:
            emitted = batch.stateful(frame, close_hours, HOURLY).collect()
            closed.extend((f"{row.hour.astimezone(dt.UTC):%H:%M}", row.key, row.n) for row in emitted)

        def start() -> lws.TrackedQuery:
            return self.stage("windows", stamp=HOUR).foreach_batch(
                rows, write, checkpoint=self.folder / "windows.ck", name="windows"
            )

        feed.put(("a", at(11)), ("a", at(11, 30)), ("b", at(11, 10)), ("c", at(12, 5)))
        query = start()
        await_stage(query, lambda: query.stage_status().batch == 0, "the rows are in")
        assert closed == [], "the hour is not over"
        self.promise(at(12))
        await_stage(query, lambda: self.low("windows") == mark(12), "the hour is over, and no row was needed to say so")
        assert sorted(closed) == [("11:00", "a", 2), ("11:00", "b", 1)]
        query.stop()
        closed.clear()
        query = start()
        feed.put(("c", at(12, 20)))
        self.promise(at(13))
        await_stage(query, lambda: self.low("windows") == mark(13), "it goes on from its checkpoint")
        query.stop()
        assert closed == [("12:00", "c", 2)], closed
        tell("stateful: windows close exactly, also without rows and after a restart")

    def plain(self) -> None:
        feed, rows = self.feed("plain.in")
        counts = rows.withWatermark("t", "10 minutes").groupBy(sf.window("t", "1 hour"), "key").count()
        frame = counts.select("key", sf.col("window.start").alias("t"), "count")
        feed.put(("a", at(12)), ("a", at(12, 30)), ("b", at(13, 5)))
        query = self.stage("plain", retention=HOUR).start(
            frame, checkpoint=self.folder / "plain.ck", format="json", path=self.folder / "plain"
        )
        # Spark's watermark is 12:55 then, and windows that start an hour before it can still come out.
        await_stage(query, lambda: self.low("plain") == mark(11, 55), "what Spark may still hold is held back")
        feed.put(("b", at(14, 30)))
        await_stage(query, lambda: self.low("plain") == mark(13), "the input: Spark's own watermark is past it")
        query.stop()
        written = self.spark.read.schema("key string, t timestamp, count long").json(str(self.folder / "plain"))
        counted = sorted((row.key, row["count"]) for row in written.collect())
        assert counted == [("a", 2), ("b", 1)], counted
        tell("start: a plain query with windows of Spark's own reports no more than it has let go of")

    def refused(self) -> None:
        """Before 4.2 a driven query that ends by itself, and a plan that no test runs, are refused with the reason and the way out."""
        _, rows = self.feed("ending.in")
        hourly = lws.drive(rows, inputs=["source"], event_time="t").groupBy(sf.window("t", "1 hour"), "key").count()
        frame = hourly.select("key", sf.col("window.start").alias("t"), "count")
        checkpoint, out = self.folder / "ending.ck", self.folder / "ending"
        _, others = self.feed("others.in")
        other = lws.drive(others, inputs=["source"], event_time="t").selectExpr("key AS other", "t AS u")
        joined = lws.drive(rows, inputs=["source"], event_time="t").join(other, sf.expr("key = other AND t = u"))
        hours = self.stage("ending", stamp=HOUR)
        cases: list[tuple[lws.Stage, DataFrame, dict[str, bool] | None, str, str]] = [
            (hours, frame, {"availableNow": True}, "asks a Python data source only once", "lw.wait("),
            (hours, frame, {"once": True}, "runs a single batch", "lw.wait("),
            (self.stage("ending", retention=HOUR), joined, None, "of several driven frames", "batch.stateful()"),
        ]
        for stage, rows_out, trigger, why, fix in cases:
            refusal = ""
            try:
                stage.start(rows_out, format="json", checkpoint=checkpoint, path=out, trigger=trigger)
            except Unsupported as unsupported:
                refusal = str(unsupported)
            assert why in refusal, refusal or "nothing is refused"
            assert fix in refusal, refusal
            assert not checkpoint.exists()
            assert "ending" not in self.lw.get(), "a stage that is refused is not registered"
            tell(f"drive: refused: {refusal}")

    def one_sided(self) -> None:
        """Batches with rows of one side, with control rows alone, and with nothing: a join of driven frames loses and adds no row in them."""
        (left_feed, lefts), (right_feed, rights) = self.feed("left.in"), self.feed("right.in")
        frames = [lws.drive(rows, inputs=["source"], event_time="t") for rows in (lefts, rights)]
        controls = []
        for frame in frames:
            [source] = check_plan(self.spark, frame).controls.values()
            controls.append(Control(source.directory))
            controls[-1].reserve()

        def join(left: DataFrame, right: DataFrame) -> DataFrame:
            other = right.selectExpr("key AS other", "t AS u")
            near = sf.expr("key = other AND u >= t AND u <= t + INTERVAL 1 HOUR")
            return left.join(other, near, "fullOuter").select("key", "t", "other", "u")

        steps: list[tuple[list[tuple[str, dt.datetime]], list[tuple[str, dt.datetime]], dt.datetime | None]] = [
            ([("a", at(9)), ("alone", at(9, 5)), ("same", at(9, 10))], [], None),
            ([], [("a", at(9, 30)), ("same", at(9, 10))], None),
            ([], [("b", at(9, 40)), ("single", at(9, 50))], at(8)),
            ([("b", at(9, 20)), ("a", at(9, 25))], [], None),
            ([], [], at(9)),
            ([("c", at(10, 20))], [], at(9, 15)),
            ([], [("c", at(10, 20)), ("a", at(9, 59))], None),
            ([("d", at(11))], [("d", at(11, 10))], None),
            ([], [], at(23)),
        ]
        run, out = 0, list[Any]()

        def take() -> None:
            nonlocal run
            left, right, watermark = steps.pop(0)
            if left:
                left_feed.put(*left)
            if right:
                right_feed.put(*right)
            if watermark is not None or run == 0:
                run += 1
                moment = 0 if watermark is None else int(watermark.timestamp() * 1_000)
                for control in controls:
                    control.write_value(ClockValue(Offset(moment, {}, run)))

        def write(rows: DataFrame, _: int) -> None:
            out.extend(tuple(row) for row in rows.collect())
            if steps:
                take()

        take()
        driven = join(frames[0], frames[1]).writeStream.option("checkpointLocation", str(self.folder / "join.ck"))
        query = driven.foreachBatch(write).start()
        query.processAllAvailable()
        query.stop()
        for control in controls:
            control.close()
        assert not steps, f"the query stands still before {steps[0]}"
        read = self.spark.read.schema(SCHEMA)
        answer = join(read.json(str(left_feed.folder)), read.json(str(right_feed.folder)))
        expected = sorted(repr(tuple(row)) for row in answer.collect())
        assert sorted(map(repr, out)) == expected, (sorted(map(repr, out)), expected)
        tell(f"one-sided: {len(expected)} rows of a full join, as in the batch answer")

    def behind(self) -> None:
        """A clock that is behind Spark's log moves nothing back: the control knows the query's last offset."""
        feed, rows = self.feed("behind.in")
        frame = lws.drive(rows, inputs=["source"], event_time="t")
        checkpoint = self.folder / "behind.ck"
        [source] = check_plan(self.spark, frame).controls.values()
        control = Control(source.directory)
        control.reserve()
        logged = []
        for hour in (10, 9, 11):
            control.write_value(ClockValue(Offset(hour * 3_600_000)))
            feed.put(("a", at(hour)))
            hourly = frame.groupBy(sf.window("t", "1 hour")).count()
            query = hourly.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
            query.processAllAvailable()
            query.stop()
            plan = CheckpointLog(checkpoint).newest()
            assert plan is not None
            logged.append(Offset.of_line(plan.lines[0]).watermark // 3_600_000)
        control.close()
        assert logged == [10, 10, 11], logged
        tell("behind: what Spark has logged is never taken back")

    def driven(self) -> None:
        """Spark's own windows follow the input: exactly, over a restart, without rows, and to the end."""
        feed, rows = self.feed("driven.in")

        def start() -> lws.TrackedQuery:
            hourly = lws.drive(rows, inputs=["source"], event_time="t").groupBy(sf.window("t", "1 hour"), "key").count()
            frame = hourly.select("key", sf.col("window.start").alias("t"), "count")
            return self.stage("driven", stamp=HOUR).start(
                frame, checkpoint=self.folder / "driven.ck", format="json", path=self.folder / "driven"
            )

        def counts() -> list[tuple[str, int, int]]:
            written = self.spark.read.schema("key string, t timestamp, count long").json(str(self.folder / "driven"))
            return sorted((row.key, row.t.astimezone(dt.UTC).hour, row["count"]) for row in written.collect())

        feed.put(("a", at(9)), ("a", at(9, 59)), ("b", at(10)), ("c", at(13)))
        query = start()
        self.promise(at(10))
        await_stage(query, lambda: self.low("driven") == mark(10), "the hour from nine is stamped by its start")
        assert counts() == [("a", 9, 2)], "what the rows say of the time closes nothing"
        query.stop()
        # A new run goes on from the value that Spark has logged; a row exactly at the watermark is none that it has passed.
        feed.put(("b", at(10)), ("b", at(10, 30)))
        query = start()
        self.promise(at(11))
        await_stage(query, lambda: self.low("driven") == mark(11), "the hour from ten, over a restart")
        assert counts() == [("a", 9, 2), ("b", 10, 3)]
        self._lease.finish()
        await_stage(query, lambda: self.low("driven").finished, "the input is finished, and so is all that was open")
        assert counts() == [("a", 9, 2), ("b", 10, 3), ("c", 13, 1)]
        assert query.stage_status().dropped_rows == 0
        query.stop()
        tell("drive: Spark's windows follow the input exactly, over a restart and to the end")


def close_hours(
    _handle: int, state: pa.Table | None, rows: pa.Table, low: lowwater.Watermark
) -> tuple[pa.Table, pa.Table, Any, pa.ChunkedArray]:
    """Count per key and hour, emit the hours that are complete, keep the rows of the others."""
    rows = rows.select(["key", "t"])
    if state is not None:
        rows = pa.concat_tables([state, rows])
    hours = pc.floor_temporal(rows["t"], unit="hour")
    ends = pc.add(hours, pa.scalar(HOUR))
    over = pc.less_equal(ends, pa.scalar(at(0) if low.unknown else low.datetime(), ends.type))
    done = pa.table({"hour": hours, "key": rows["key"]}).filter(over)
    counted = done.group_by(["hour", "key"]).aggregate([([], "count_all")]).rename_columns(["hour", "key", "n"])
    open_hours = pc.invert(over)
    rest = rows.filter(open_hours)
    return rest, counted, pc.min(hours.filter(open_hours)).as_py(), rest["t"]


def quick(pyspark: str) -> dict[str, str]:
    """Return what has a checkpoint written without programs that are started for it; other versions have it elsewhere. Both ways write the same files, whole, by a rename."""
    if tuple(int(part) for part in pyspark.split(".")[:2]) < (4, 2):
        return {}
    manager = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    return {"spark.sql.streaming.checkpointFileManagerClass": manager}


def main() -> None:
    place, address, expected, *steps = sys.argv[1:]
    started = time.monotonic()
    for name, version in (word.split("==") for word in expected.split(",")):
        installed = importlib.metadata.version(name)
        assert installed == version, f"the environment has {name} {installed}"
    builder = SparkSession.builder.master("local[2]").appName("lowwater-floor")
    for name, value in {**SETTINGS, **quick(importlib.metadata.version("pyspark"))}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    tell(f"{expected}: a session after {time.monotonic() - started:.1f} s")
    smoke = Smoke(spark, Path(place), address)
    for step in steps:
        began = time.monotonic()
        getattr(smoke, step)()
        tell(f"  {time.monotonic() - began:.1f} s")
    smoke.close()
    spark.stop()
    tell(f"passed in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
