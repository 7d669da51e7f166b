"""A stage reads by one column, and stamps its output with another: two names for two things."""

from __future__ import annotations

import contextlib
import functools
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import Unsupported
from lowwater_spark.track.plan.checked import check_arriving, check_windows
from tests.kit.times import mark
from tests.spark.flow import PlainFlow
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FLOW = PlainFlow


def hourly(stage: lws.Stage, frame: DataFrame, **options: Any) -> DataFrame:
    return stage.drive(frame, **options).groupBy(sf.window("t", "1 hour"), "key").count()


def closed(flow: PlainFlow) -> list[tuple[int, str, int]]:
    windows = flow.spark.read.schema("window struct<start: timestamp>, key string, count long").json(
        str(flow.folder / "out")
    )
    return sorted((row.window.start.hour, row.key, row["count"]) for row in windows.collect())


def run(flow: PlainFlow, stage: lws.Stage, windows: DataFrame, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9), row("a", 9, 30), row("b", 10)])
    upstream.at(10)
    flow.start(windows, stage=stage)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "what begins before ten comes no more")
    assert closed(flow) == [(9, "a", 2)]


def test_a_frame_of_windows_has_a_stamp_of_its_own(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    stage = flow.stage(event_time="t", stamp=sf.col("window.start"))
    run(flow, stage, hourly(stage, flow.read()), lw, upstream)


def test_windows_without_a_stamp_are_told_how_to_say_it(flow: PlainFlow) -> None:
    stage = flow.stage(event_time="t")
    with pytest.raises(ValueError, match=r'has no t any more: declare .* stamp=F.col\("window.start"\)'):
        flow.start(hourly(stage, flow.read()), stage=stage)


def test_what_is_no_stamp_and_no_event_time_is_refused(flow: PlainFlow) -> None:
    with pytest.raises(ValueError, match='stamp is "event", a column'):
        flow.stage(stamp="window.start")
    with pytest.raises(TypeError, match="is an expression; declare it by a column's name"):
        flow.stage(event_time=sf.col("t")).drive(flow.read())


def test_a_truncated_event_time_is_no_stamp_of_rows_that_arrive(flow: PlainFlow) -> None:
    """A row of 14:25 would be stamped with midnight, when 14:00 is published."""
    days, day = flow.read().withColumn("day", sf.date_trunc("day", "t")), sf.date_trunc("day", "t")
    for frame, stamp in (
        (days, sf.col("day")),
        (flow.read(), day),
        (days.union(flow.read().withColumn("day", sf.col("t"))), sf.col("day")),
    ):
        with pytest.raises(Unsupported, match="which date_trunc"):
            flow.start(frame, stage=flow.stage(event_time="t", stamp=stamp))
    with pytest.raises(Unsupported, match="which date_trunc"):
        flow.stage().foreach_batch(
            flow.read(), lambda _rows, _batch: None, checkpoint=flow.folder / "ck", also=[flow.stage("days", stamp=day)]
        )


def test_every_way_to_lower_an_event_time_is_found(flow: PlainFlow) -> None:
    rows = flow.read().withColumn("struct", sf.struct(sf.col("t").alias("own"), sf.date_trunc("day", "t").alias("day")))
    hours = rows.select("*", sf.window("t", "1 hour").alias("w"))
    sliding = rows.select(sf.window("t", "1 hour", "20 minutes").alias("w")).withColumnRenamed("w", "v")
    gap = sf.expr("make_interval(0, 0, 0, 0, length(key))")
    york = functools.partial(sf.from_utc_timestamp, tz="America/New_York")
    berlin = functools.partial(sf.to_utc_timestamp, tz="Europe/Berlin")
    local = rows.select("key", "t", sf.to_timestamp("key").alias("text"), sf.from_json("key", "t timestamp").alias("e"))
    local = local.withColumn("both", sf.struct("text", "t"))
    parts = rows.select(sf.expr("cast(struct(t, t as u) as struct<timestamp: date, time: timestamp>)").alias("e"))
    lowered: list[tuple[DataFrame, Any]] = [
        (rows, sf.date_trunc("day", sf.to_timestamp("t"))),
        (rows, sf.to_timestamp(sf.to_date("t"))),
        (rows, sf.timestamp_seconds(sf.floor(sf.unix_timestamp("t") / 3600) * 3600)),
        (rows, sf.timestamp_micros(sf.unix_micros("t") - 1)),
        (rows, sf.to_timestamp(sf.date_format("t", "yyyy-MM-dd HH:00"))),
        (rows, sf.make_timestamp(*(sf.lit(0) if n else sf.year("t") for n in range(6)))),
        (rows, sf.expr("t - interval 1 hour")),
        (rows, sf.expr("t + (date'2099-01-01' - current_date())")),  # later less than nothing
        (rows, sf.from_utc_timestamp("t", "America/New_York")),
        (rows, sf.from_utc_timestamp("t", sf.col("key"))),
        (rows, sf.to_utc_timestamp("t", sf.lit("Nowhere/Land"))),
        *((rows, york(time)) for time in ("struct.own", sf.array("t")[0])),
        (rows, sf.expr("transform(array(t), x -> from_utc_timestamp(x, 'America/New_York'))[0]")),
        (hours, york("w.end")),
        (local, berlin("e.t")),
        (local, berlin("both.t")),
        (parts, sf.col("e.timestamp").cast("timestamp")),
        (rows, sf.explode(sf.expr("sequence(t, timestamp'1970-01-01', interval -1 day)"))),
        (rows, sf.expr("timestampadd(HOUR, -1, t)")),
        (rows, sf.get_json_object(sf.to_json(sf.struct("t")), "$.t").cast("timestamp")),
        (rows, sf.col("struct.day")),
        (hours, sf.col("w.start")),
        (sliding, sf.col("v.start")),
        (rows.select("t").union(hours.select("w.start")), "t"),
        (hours.dropDuplicates(["key"]), sf.col("w.start")),
        (rows.select(sf.session_window(sf.date_trunc("day", "t"), gap).alias("w")), sf.col("w.end")),
    ]
    if rows.sparkSession.catalog.functionExists("time_bucket"):  # from Spark 4.2 on
        lowered.append((rows, sf.expr("time_bucket(interval 1 hour, t)")))
    for frame, stamp in lowered:
        with pytest.raises(Unsupported, match="which date_trunc"):
            check_arriving(frame, stamp)
    texts = flow.read().withColumn("s", sf.to_timestamp(sf.to_date("key")))
    for frame, stamp in (
        (hours, sf.col("w.end")),
        (hours, sf.window_time("w")),
        (rows, sf.col("struct.own")),
        (rows, sf.to_timestamp("t")),
        (rows, sf.when(sf.hour("t") > 5, sf.col("t")).otherwise(sf.col("struct.own"))),
        (rows, sf.expr("t + interval 1 hour")),
        (rows, sf.explode(sf.expr("sequence(t, t + interval 1 day, interval 1 hour)"))),
        (rows, sf.from_utc_timestamp("t", "Asia/Tokyo")),
        (rows, sf.to_utc_timestamp("t", "America/New_York")),
        (rows, sf.to_utc_timestamp("key", "Asia/Tokyo")),
        *((rows, sf.from_utc_timestamp("t", city)) for city in ("Europe/London", "Europe/Madrid", "Asia/Manila")),
        (local, berlin("text")),
        (local, berlin("both.text")),
        (local, sf.to_utc_timestamp("text", sf.col("key"))),
        (parts, sf.col("e.time")),
        (rows, sf.expr("cast(struct(t, t as timestamp, 1) as struct<ts: timestamp, second: timestamp, n: bigint>).ts")),
        (rows, sf.expr("cast(struct(t, 1 as event_timestamp) as struct<t: timestamp, n: bigint>).t")),
        (rows, sf.col("t").cast("timestamp_ntz").cast("timestamp")),
        (rows, sf.get_json_object(sf.to_json(sf.struct("key")), "$.key").cast("timestamp")),
        (rows.select(sf.session_window("t", "1 hour").alias("w")), sf.col("w.end")),
        (texts, sf.col("s")),  # the day is what the source has, and so what its inputs promise by
        (rows, sf.col("made_by_a_function")),
    ):
        check_arriving(frame, stamp)
    flow.spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:  # where clocks are put back, the second 2:30 becomes the first one
        with pytest.raises(Unsupported, match="which date_trunc"):
            check_arriving(rows, sf.col("t").cast("timestamp_ntz").cast("timestamp"))
    finally:
        flow.spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_windows_that_begin_below_the_declared_ones_are_refused(flow: PlainFlow, upstream: Upstream) -> None:
    """The watermark at 10:10 is floored to 10:00, and a window shifted by 20 minutes begins at 9:20."""
    frame, hour = flow.read(), timedelta(hours=1)
    for cut, fits in (
        (("1 hour",), True),
        (("20 minutes",), True),
        (("1 hour", "1 hour", "20 minutes"), False),
        (("1 hour", "20 minutes"), False),
        (("2 hours",), False),
    ):
        windows = frame.select(sf.window("t", *cut).alias("w")).select(sf.col("w").alias("v"))
        check_windows(windows, None)
        with contextlib.nullcontext() if fits else pytest.raises(Unsupported, match="shifted by"):
            check_windows(windows, hour)
    batch = flow.spark.createDataFrame([], "key string, t timestamp")
    labelled = frame.withColumn("day", sf.window("t", "1 day")["start"])
    days = batch.groupBy("key", sf.window("t", "1 day").alias("d")).count()
    sliding = frame.select(sf.window("t", "1 hour", "20 minutes").alias("w"))
    for rows, fits in (
        (labelled, False),
        (labelled.drop("day"), True),
        (labelled.withColumn("w", sf.window("t", "1 hour")), True),
        (sliding.select("w.end"), True),
        (sliding.select(sf.array("w.start")), False),
        (frame.join(days, "key"), True),  # of rows that are there before the query
        (days, False),
        (days.groupBy("key").agg(sf.min("d.start")), False),
        (days.select(sf.to_json(sf.struct("key", "d.start"))), False),
        (days.select(sf.to_json(sf.struct("key", "d.end"))), True),
        (days.select("key", "count"), True),
        (days.mapInArrow(lambda batches: batches, "key string, s timestamp"), False),
        (days.withColumn("n", sf.min("d.start").over(Window.partitionBy("key"))).select("n"), False),
        (days.withColumn("n", sf.min("d.end").over(Window.partitionBy("d.start"))).select("n"), True),
        (days.select("d.end").union(days.select("d.start")), False),
    ):
        with contextlib.nullcontext() if fits else pytest.raises(Unsupported, match="shifted by"):
            check_windows(rows, hour)

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        shifted = sf.window("t", "1 hour", startTime="20 minutes")
        batch.write(rows.groupBy(shifted.alias("w")).count(), str(flow.folder / "out"))

    stage = flow.stage(stamp=hour)
    with pytest.raises(Unsupported, match="shifted by 0:20:00"):
        stage.start(
            frame.select("*", sf.window("t", "1 hour", startTime="20 minutes")),
            checkpoint=flow.folder / "ck",
            format="parquet",
            path=str(flow.folder / "out"),
        )
    query = stage.foreach_batch(frame, write, checkpoint=flow.folder / "ck")
    flow.queries.append(query)
    upstream.at(10, 10)
    flow.feed.put([row("a", 10, 15)])
    with pytest.raises(Unsupported, match="shifted by 0:20:00"):
        query.await_termination(120)


def test_a_later_stage_has_the_times_of_the_first(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    """Its rows come from the earlier stage, and not from the frame, whose column of that name is a day."""
    frame = flow.read().withColumn("day", sf.date_trunc("day", "t"))
    later = flow.stage("later", "stage", event_time="day")
    query = flow.stage().foreach_batch(frame, lambda *_: None, checkpoint=flow.folder / "ck", also=[later], name="both")
    flow.queries.append(query)
    with pytest.raises(Unsupported, match="which date_trunc"):
        flow.stage("other").foreach_batch(
            frame,
            lambda _rows, _batch: None,
            checkpoint=flow.folder / "other",
            also=[flow.stage("late", "other", event_time="t", stamp=sf.col("day"))],
        )
