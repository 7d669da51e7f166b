"""What cannot be tracked exactly is refused before anything starts, with the reason and the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater_spark as lws
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.files import FileSource
from lowwater_spark.sources.ticks import with_ticks
from lowwater_spark.track.plan import check_plan
from tests.spark.support import Feed

pytestmark = pytest.mark.spark

SCHEMA = "key string, t long"


class Refusals:
    """What check_plan refuses, each with a frame that has just that in it."""

    @staticmethod
    def batch_frame(spark: SparkSession, _: Feed) -> DataFrame:
        return spark.range(3).toDF("key")

    @staticmethod
    def glob(spark: SparkSession, feed: Feed) -> DataFrame:
        return spark.readStream.schema(SCHEMA).json(f"{feed.folder}*")

    @staticmethod
    def path_glob_filter(spark: SparkSession, feed: Feed) -> DataFrame:
        return spark.readStream.schema(SCHEMA).option("pathGlobFilter", "*.json").json(str(feed.folder))

    @staticmethod
    def modified_after(spark: SparkSession, feed: Feed) -> DataFrame:
        return spark.readStream.schema(SCHEMA).option("modifiedAfter", "2013-01-01T00:00:00").json(str(feed.folder))

    @staticmethod
    def sub_directories(spark: SparkSession, feed: Feed) -> DataFrame:
        feed.put([], "sub/a.json")
        return spark.readStream.schema(SCHEMA).json(str(feed.folder))

    @staticmethod
    def sub_directories_of_partitions(spark: SparkSession, feed: Feed) -> DataFrame:
        feed.put([], "year=2013/sub/a.json")
        return spark.readStream.schema(SCHEMA).json(str(feed.folder))

    @staticmethod
    def later_partitions(spark: SparkSession, feed: Feed) -> DataFrame:
        frame = spark.readStream.schema(SCHEMA).json(str(feed.folder))
        feed.put([], "year=2013/a.json")
        return frame

    @staticmethod
    def beside_partitions(spark: SparkSession, feed: Feed) -> DataFrame:
        feed.put([], "year=2013/a.json")
        feed.put([], "a.json")
        return spark.readStream.schema(SCHEMA).json(str(feed.folder))

    @staticmethod
    def sink_log(spark: SparkSession, feed: Feed) -> DataFrame:
        (feed.folder / "_spark_metadata").mkdir()
        (feed.folder / "_spark_metadata/1").write_text("v1")
        return spark.readStream.schema(SCHEMA).json(str(feed.folder))

    @staticmethod
    def aggregate(spark: SparkSession, feed: Feed) -> DataFrame:
        return spark.readStream.schema(SCHEMA).json(str(feed.folder)).groupBy("key").count()

    @staticmethod
    def watermark(spark: SparkSession, feed: Feed) -> DataFrame:
        stream = spark.readStream.schema("key string, t timestamp").json(str(feed.folder))
        return stream.withWatermark("t", "1 hour").groupBy(sf.session_window("t", "1 hour"), "key").count()

    @staticmethod
    def stream_join(spark: SparkSession, feed: Feed) -> DataFrame:
        stream = spark.readStream.schema(SCHEMA).json(str(feed.folder))
        return stream.join(spark.readStream.schema("key string, u long").json(str(feed.folder)), "key")

    @staticmethod
    def used_twice(spark: SparkSession, feed: Feed) -> DataFrame:
        stream = spark.readStream.schema(SCHEMA).json(str(feed.folder))
        return stream.where("t > 0").union(stream.where("t < 0"))

    @staticmethod
    def limit(spark: SparkSession, feed: Feed) -> DataFrame:
        return spark.readStream.schema(SCHEMA).json(str(feed.folder)).limit(3)


REASONS = {
    "batch_frame": "not streaming",
    "glob": "pattern",
    "path_glob_filter": "pathglobfilter",
    "modified_after": "modifiedafter",
    "sub_directories": "recursiveFileLookup",
    "sub_directories_of_partitions": r"sub-directory \(sub\) .* recursiveFileLookup",
    "later_partitions": "year=2013 has files with the partition columns year, and the frame was made with none",
    "beside_partitions": "in has files with the partition columns none, and the frame was made with year",
    "sink_log": "the sink's log cannot be read",
    "aggregate": "The streaming operator aggregation",
    "watermark": "withWatermark",
    "stream_join": "The streaming operator join of two streams",
    "used_twice": "used twice",
    "limit": "Limit",
}


@pytest.mark.parametrize("what", list(REASONS))
def test_what_cannot_be_exact_is_refused_with_the_way_out(
    what: str, spark: SparkSession, feed: Callable[[str], Feed]
) -> None:
    with pytest.raises(Unsupported, match=REASONS[what]) as refusal:
        check_plan(spark, getattr(Refusals, what)(spark, feed("in")))
    assert refusal.value.fix


def test_what_emits_on_arrival_is_taken_and_sources_come_in_order(
    spark: SparkSession, feed: Callable[[str], Feed], tmp_path: Path
) -> None:
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


class Starts:
    """What foreach_batch refuses beside the plan."""

    @staticmethod
    def continuous(spark: SparkSession, feed: Feed, ck: Path) -> object:
        return start(spark, feed, ck, trigger={"continuous": "1 second"})

    @staticmethod
    def real_time(spark: SparkSession, feed: Feed, ck: Path) -> object:
        return start(spark, feed, ck, trigger={"realTime": "5 seconds"})

    @staticmethod
    def remote_checkpoint(spark: SparkSession, feed: Feed, ck: Path) -> object:
        return start(spark, feed, "s3a://bucket/ck")

    @staticmethod
    def pattern_checkpoint(spark: SparkSession, feed: Feed, ck: Path) -> object:
        return start(spark, feed, f"{ck}[1]")

    @staticmethod
    def ignored_files(spark: SparkSession, feed: Feed, ck: Path) -> object:
        spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
        try:
            return start(spark, feed, ck)
        finally:
            spark.conf.unset("spark.sql.files.ignoreCorruptFiles")

    @staticmethod
    def ignored_files_in_the_frames_session(spark: SparkSession, feed: Feed, ck: Path) -> object:
        other = spark.newSession()
        other.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
        return start(spark, feed, ck, reader=other)


def start(
    spark: SparkSession, feed: Feed, checkpoint: Path | str, *, reader: SparkSession | None = None, **options: object
) -> object:
    stream = (reader or spark).readStream.schema("key string, t timestamp").json(str(feed.folder))
    stage = lws.stage(spark, "stage", inputs=["source"], key="key", event_time="t", address="127.0.0.1:1")
    return stage.foreach_batch(stream, lambda rows, batch: None, checkpoint=checkpoint, **options)  # type: ignore[arg-type]


START_REASONS = {
    "continuous": "continuous processing",
    "real_time": "real-time mode",
    "remote_checkpoint": "The checkpoint s3a://bucket/ck",
    "pattern_checkpoint": r"The checkpoint .*ck\[1\] cannot .* pattern",
    "ignored_files": "ignoreCorruptFiles",
    "ignored_files_in_the_frames_session": "ignoreCorruptFiles",
}


@pytest.mark.parametrize("what", list(START_REASONS))
def test_a_start_that_cannot_be_exact_touches_nothing(
    what: str, spark: SparkSession, feed: Callable[[str], Feed], tmp_path: Path
) -> None:
    with pytest.raises(Unsupported, match=START_REASONS[what]):
        getattr(Starts, what)(spark, feed("in"), tmp_path / "ck")
    assert not list(tmp_path.glob("ck*"))


def test_wrong_arguments_are_named_before_the_start(
    spark: SparkSession, feed: Callable[[str], Feed], tmp_path: Path
) -> None:
    source = feed("in")
    stream = spark.readStream.schema(SCHEMA).json(str(source.folder))
    stage = lws.stage(spark, "stage", inputs=["source"], key="key", event_time="t")
    with pytest.raises(TypeError, match="event_time t is of type bigint"):
        stage.foreach_batch(stream, lambda rows, batch: None, checkpoint=tmp_path / "ck")
    with pytest.raises(ValueError, match=r"lws\.injector"):
        lws.stage(spark, "stage", inputs=[], key="key", event_time="t")
    with pytest.raises(ValueError, match="ranges must be"):
        lws.stage(spark, "stage", inputs=["source"], key="key", event_time="t", ranges=0)
    with pytest.raises(ValueError, match="stamp"):
        lws.stage(spark, "stage", inputs=["source"], key="key", event_time="t", stamp="hour")
    assert not (tmp_path / "ck").exists()
