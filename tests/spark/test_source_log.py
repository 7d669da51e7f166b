"""head(W) and the checkpoint's logs, against what real queries write."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.base import NONE
from lowwater_spark.sources.files.source import FileSource, list_head
from lowwater_spark.sources.files.source_log import File, SourceLog, log_offset
from lowwater_spark.sources.head import Candidates
from lowwater_spark.sources.ticks import Ticks, with_ticks
from lowwater_spark.track.plan.checked import check_plan
from tests.kit.eventually import eventually
from tests.spark.support import Feed, begun, lines

pytestmark = pytest.mark.spark

SCHEMA = "key string, t long"
ODD_NAMES = [
    *("plain.json", "a b.json", "a%20b.json", "ü+#;=.json", "pct%.json", "back\\slash.json", "line\nbreak.json"),
    *("line\u2028break.json", "_a=1.json", "deep/batch=3/y.json", "_s=2/z.json", "_metadata_x/z.json"),
    "_common_metadata_x/z.json",
]
HIDDEN_NAMES = [
    *("_metadata", "_common_metadata.json", "_common_metadata", "_tmp.json", ".dot.json", "c.json._COPYING_"),
    *("_SUCCESS", "_sub/z.json", ".h/z.json", "deep/_x/z.json"),
]


class Batches:
    def __init__(self, frame: DataFrame, checkpoint: Path) -> None:
        self.keys: dict[int, list[str]] = {}
        self.log = CheckpointLog(checkpoint)
        self.query = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint)).start()

    def _take(self, batch: DataFrame, number: int) -> None:
        self.keys[number] = sorted(row.key for row in batch.collect())


@pytest.fixture
def stream(spark: SparkSession) -> Callable[..., DataFrame]:
    def load(feed: Feed, **options: str) -> DataFrame:
        return spark.readStream.schema(SCHEMA).options(recursiveFileLookup="true", **options).json(str(feed.folder))

    return load


def test_the_listing_and_the_log_agree_with_spark_on_every_name(
    stream: Callable[..., DataFrame], feed: Callable[[str], Feed], tmp_path: Path
) -> None:
    source = feed("in dir+x%20")
    for name in ODD_NAMES + HIDDEN_NAMES:
        source.put([{"key": name, "t": 1}], name)
    source.put([], "empty.json")
    run = Batches(stream(source), tmp_path / "ck")
    run.query.processAllAvailable()
    run.query.stop()

    head = list_head(FileSource(str(source.folder), recursive=True))
    plan = run.log.plan(0)
    assert plan is not None
    log = SourceLog(tmp_path / "ck/sources/0")
    log.read_to(log_offset(plan.lines[0]))
    assert {file.path for file in head} == {str(source.folder / name) for name in [*ODD_NAMES, "empty.json"]}
    logged = {File(path, entry.modified) for path, entry in log.taken.items()}
    summaries = {file for file in logged if Path(file.path).name in HIDDEN_NAMES}
    assert logged == head | summaries, "Spark logs summary files, and reads no rows from them"
    assert run.keys[0] == sorted(ODD_NAMES)


def test_hive_partitions_are_listed(spark: SparkSession, feed: Callable[[str], Feed], tmp_path: Path) -> None:
    source = feed("in")
    for name in ("year=2013/month=1/a.json", "year=2013/_tmp/x.json", "year=2012/month=2/y.json"):
        source.put([{"key": name, "t": 1}], name)
    frame = spark.readStream.schema(SCHEMA).json(str(source.folder))
    [files] = check_plan(spark, frame).sources
    assert isinstance(files, FileSource)
    assert files.columns == ("year", "month")
    run = Batches(frame, tmp_path / "ck")
    run.query.processAllAvailable()
    source.put([{"key": "later", "t": 1}], "year=2014/month=12/b.json")
    run.query.processAllAvailable()
    run.query.stop()
    log = files.log_in(tmp_path / "ck/sources/0")
    log.read_to(1)
    assert list_head(files) == {File(path, entry.modified) for path, entry in log.taken.items()}
    assert run.keys == {0: ["year=2012/month=2/y.json", "year=2013/month=1/a.json"], 1: ["later"]}
    for name in ("sub/c.json", "day=3/d.json"):
        source.put([{"key": name, "t": 1}], name)
    assert {file.path for file in list_head(files) - {File(p, t.modified) for p, t in log.taken.items()}} == {
        f"{source.folder}/sub/",
        f"{source.folder}/day=3/",
    }
    for folder in ("sub", "day=3"):
        shutil.rmtree(source.folder / folder)
    source.put([{"key": "in", "t": 1}], "year=2014/month=12/c.json")
    root = source.put([{"key": "root", "t": 1}], "root.json")
    assert (str(root), -1) in list_head(files)
    run = Batches(frame, tmp_path / "ck")
    run.query.processAllAvailable()
    run.query.stop()
    assert run.keys == {2: ["in"]}, "Spark has taken the other file as well, and read no rows from it"
    with pytest.raises(CheckpointMismatch, match=r"has taken .*/root.json, .* by: year, month"):
        log.read_to(2)


@pytest.mark.parametrize("age", ["7d", "3650d"])
def test_old_files_are_read_or_told(spark: SparkSession, feed: Callable[[str], Feed], tmp_path: Path, age: str) -> None:
    """Files that come with an old time, as rsync and tar leave it: Spark passes over what is older than maxFileAge."""
    source = feed("in")
    now = 1_700_000_000
    source.put([{"key": "new", "t": 1}], mtime=now)
    options = {} if age == "7d" else {"maxFileAge": age}
    frame = spark.readStream.schema(SCHEMA).options(**options).json(str(source.folder))
    checked = check_plan(spark, frame)
    run = Batches(frame, tmp_path / "ck")
    run.query.processAllAvailable()
    old = source.put([{"key": "old", "t": 1}], mtime=now - 8 * 86_400)
    source.put([{"key": "newer", "t": 1}], mtime=now + 1)
    [source_read] = checked.sources
    opened = source_read.open(begun(tmp_path / "ck"), 0)
    waiting = Candidates[str]([opened])
    waiting.add("W", [opened.head(NONE)])
    run.query.processAllAvailable()
    run.query.stop()
    opened.read_to(*lines(1))
    reached = waiting.newest_reached(lines(1), forget=False)
    if age == "7d":
        assert (reached, run.keys[1]) == (None, ["newer"])
        assert waiting.missing() == [f"{old} (older than the newest file by more than maxFileAge)"]
    else:
        assert (reached, run.keys[1], waiting.missing()) == ("W", ["newer", "old"], [])


def test_a_later_sub_directory_holds(spark: SparkSession, feed: Callable[[str], Feed], tmp_path: Path) -> None:
    source = feed("in")
    source.put([{"key": "a", "t": 1}])
    run = Batches(spark.readStream.schema(SCHEMA).json(str(source.folder)), tmp_path / "ck")
    run.query.processAllAvailable()
    source.put([{"key": "b", "t": 1}], "sub/b.json")
    source.put([{"key": "c", "t": 1}])
    run.query.processAllAvailable()
    run.query.stop()
    assert run.keys == {0: ["a"], 1: ["c"]}, "Spark passes over the sub-directory, silently"
    log = SourceLog(tmp_path / "ck/sources/0")
    log.read_to(1)
    waiting = Candidates[str]([log])
    waiting.add("W", [list_head(FileSource(str(source.folder), recursive=False))])
    assert waiting.newest_reached([1], forget=True) is None
    assert waiting.missing() == [f"{source.folder}/sub/"]


def test_spark_goes_on_with_a_log_that_has_forgotten_old_ticks(spark: SparkSession, tmp_path: Path) -> None:
    """The driver takes old lines out of a compacted entry while the query runs. Spark compacts the rest, and starts again with it."""
    checkpoint = tmp_path / "ck"
    (tmp_path / "in").mkdir()
    frame = with_ticks(spark, spark.readStream.schema(SCHEMA).json(str(tmp_path / "in")), checkpoint)
    batch = 0
    for _ in range(2):
        run = Batches(frame, checkpoint)
        for _ in range(8):
            ticks = Ticks(checkpoint, 1, batch + 1)  # a new one looks at the log at once
            if batch:
                ticks.read_to(*lines(batch - 1))
            assert ticks.force(*lines(batch - 1))
            eventually(partial(run.log.committed, batch), "a batch of the tick")
            ticks.read_to(*lines(batch))
            ticks.clean(*lines(batch))
            assert ticks.remembered == 1
            batch += 1
        run.query.stop()
        assert sorted(run.keys) == list(range(batch - 8, batch)), "a batch for each tick, and no other"
    newest = max((checkpoint / "sources/1").glob("*.compact"), key=lambda path: int(path.stem))
    assert newest.read_text(encoding="utf-8").count("\n") <= 1, "it has the newest tick at most"
