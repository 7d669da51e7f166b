"""A query that cannot be tracked exactly is refused before anything starts, with the reason and the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater_spark as lws
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.files.source import FileSource
from lowwater_spark.sources.ticks import with_ticks
from lowwater_spark.track.plan.checked import check_plan
from tests.spark.support import Feed

pytestmark = pytest.mark.spark

SCHEMA = "key string, t long"


def read(spark: SparkSession, feed: Feed, *, schema: str = SCHEMA, **options: str) -> DataFrame:
    return spark.readStream.schema(schema).options(**options).json(str(feed.folder))


def having(feed: Feed, *names: str) -> Feed:
    for name in names:
        feed.put([], name)
    return feed


def with_later_partitions(spark: SparkSession, feed: Feed) -> DataFrame:
    frame = read(spark, feed)
    having(feed, "year=2013/a.json")
    return frame


def with_sink_log(feed: Feed) -> Feed:
    (feed.folder / "_spark_metadata").mkdir()
    (feed.folder / "_spark_metadata/1").write_text("v1")
    return feed


REFUSED: dict[str, tuple[Callable[[SparkSession, Feed], DataFrame], str]] = {
    "a batch frame": (lambda spark, _: spark.range(3).toDF("key"), "not streaming"),
    "a pattern": (lambda spark, feed: spark.readStream.schema(SCHEMA).json(f"{feed.folder}*"), "pattern"),
    "pathGlobFilter": (lambda spark, feed: read(spark, feed, pathGlobFilter="*.json"), "pathglobfilter"),
    "sub-directories of partitions": (
        lambda spark, feed: read(spark, having(feed, "year=2013/sub/a.json")),
        r"sub-directory \(sub\) .* recursiveFileLookup",
    ),
    "later partitions": (
        with_later_partitions,
        "year=2013 has files with the partition columns year, and the frame was made with none",
    ),
    "beside partitions": (
        lambda spark, feed: read(spark, having(feed, "year=2013/a.json", "a.json")),
        "in has files with the partition columns none, and the frame was made with year",
    ),
    "a sink's log": (lambda spark, feed: read(spark, with_sink_log(feed)), "the sink's log cannot be read"),
    "an aggregation": (
        lambda spark, feed: read(spark, feed).groupBy("key").count(),
        "The streaming operator aggregation",
    ),
    "a join of streams": (
        lambda spark, feed: read(spark, feed).join(read(spark, feed, schema="key string, u long"), "key"),
        "The streaming operator join of two streams",
    ),
    "a limit": (lambda spark, feed: read(spark, feed).limit(3), "Limit"),
}


@pytest.mark.parametrize(("frame", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_exact_is_refused_with_the_way_out(
    frame: Callable[[SparkSession, Feed], DataFrame], reason: str, spark: SparkSession, feed: Callable[[str], Feed]
) -> None:
    with pytest.raises(Unsupported, match=reason) as refusal:
        check_plan(spark, frame(spark, feed("in")))
    assert refusal.value.fix


def test_emission_at_once_is_taken_in_order(spark: SparkSession, feed: Callable[[str], Feed], tmp_path: Path) -> None:
    one, two = feed("one"), feed("two")
    left = spark.readStream.schema(SCHEMA).json(str(one.folder))
    right = spark.readStream.schema(SCHEMA).option("recursiveFileLookup", "true").json(f"file:{two.folder}/../two/")
    names = spark.createDataFrame([("a", "Anna")], "key string, name string")
    frame = left.union(right).where("t > 0").dropDuplicates(["key", "t"]).join(names, "key", "left")
    sources = check_plan(spark, with_ticks(spark, frame, tmp_path / "ck")).sources
    assert sources == [
        FileSource(str(one.folder), recursive=False, format="json"),
        FileSource(str(two.folder), recursive=True, format="json"),
        FileSource(str(tmp_path / "ck/lowwater/ticks"), recursive=False, format="text", max_age=3_600_000),
    ]


def start(
    spark: SparkSession, feed: Feed, checkpoint: Path | str, *, reader: SparkSession | None = None, **options: object
) -> object:
    stream = (reader or spark).readStream.schema("key string, t timestamp").json(str(feed.folder))
    stage = lws.stage(spark, "stage", inputs=["source"], key="key", event_time="t", address="127.0.0.1:1")
    return stage.foreach_batch(stream, lambda rows, batch: None, checkpoint=checkpoint, **options)  # type: ignore[arg-type]


def test_an_inexact_start_touches_nothing(spark: SparkSession, feed: Callable[[str], Feed], tmp_path: Path) -> None:
    checkpoint, ignoring = tmp_path / "ck", spark.newSession()
    ignoring.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    with pytest.raises(Unsupported, match=r"The checkpoint .*ck\[1\] cannot .* pattern"):
        start(spark, feed("in"), f"{checkpoint}[1]")
    with pytest.raises(Unsupported, match="ignoreCorruptFiles"):
        start(spark, feed("in"), checkpoint, reader=ignoring)
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(Unsupported, match="ignoreCorruptFiles"):
            start(spark, feed("in"), checkpoint)
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert not list(tmp_path.glob("ck*"))


def test_wrong_arguments_are_named_at_first(spark: SparkSession, feed: Callable[[str], Feed], tmp_path: Path) -> None:
    source = feed("in")
    stream = spark.readStream.schema(SCHEMA).json(str(source.folder))
    stage = lws.stage(spark, "stage", inputs=["source"], key="key", event_time="t")
    with pytest.raises(TypeError, match="event_time t is of type bigint"):
        stage.foreach_batch(stream, lambda rows, batch: None, checkpoint=tmp_path / "ck")
    hidden = lws.stage(spark, "stage", inputs=["source"], key=sf.col("_metadata.file_name"), event_time="t")
    with pytest.raises(ValueError, match=r'hidden column _metadata: read .*select\("\*", "_metadata\.file_name"\)'):
        hidden.foreach_batch(stream, lambda rows, batch: None, checkpoint=tmp_path / "ck")
    with pytest.raises(ValueError, match=r"lws\.injector"):
        lws.stage(spark, "stage", inputs=[], key="key", event_time="t")
    with pytest.raises(ValueError, match="ranges must be"):
        lws.stage(spark, "stage", inputs=["source"], key="key", event_time="t", ranges=0)
    with pytest.raises(ValueError, match="stamp"):
        lws.stage(spark, "stage", inputs=["source"], key="key", event_time="t", stamp="hour")
    assert not (tmp_path / "ck").exists()
