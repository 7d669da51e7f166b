"""Two plain stages, chained through the output of Spark's own file sink, which is read by the sink's log."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lowwater
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.files.sink_log import list_sink
from lowwater_spark.sources.files.source import FileSource, list_head
from lowwater_spark.sources.files.source_log import File
from lowwater_spark.track.plan.checked import check_plan
from tests.kit.times import mark
from tests.spark.flow import PlainFlow
from tests.spark.support import Upstream, low, row

FLOW = PlainFlow


def entry(path: str, action: str = "add", *, folder: bool = False) -> str:
    fields = {"path": f"file://{path}", "size": 1, "isDir": folder, "modificationTime": 1, "action": action}
    return json.dumps(fields)


def paths(root: Path) -> set[str]:
    return {file.path for file in list_sink(str(root))}


def write(log: Path, name: str, *lines: str) -> None:
    log.mkdir(parents=True, exist_ok=True)
    (log / name).write_text("\n".join(["v1", *lines]), encoding="utf-8")


def test_the_log_names_the_files_across_its_compaction(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    assert list_sink(str(tmp_path)) == set(), "a writer has begun, and has written nothing"
    write(log, "0", entry("/out/a%20b"), entry("/out/sub", folder=True))
    write(log, "1", entry("/out/c"))
    (log / ".2.tmp").write_text("half")
    assert paths(tmp_path) == {"/out/a b", "/out/c"}
    write(log, "2.compact", entry("/out/a%20b"), entry("/out/c"), entry("/out/d"))
    write(log, "3", entry("/out/e"), entry("/out/c", "delete"))
    assert paths(tmp_path) == {"/out/a b", "/out/d", "/out/e"}
    for name in ("0", "1"):
        (log / name).unlink()
    assert paths(tmp_path) == {"/out/a b", "/out/d", "/out/e"}
    written = tmp_path / "x"
    written.write_text("1")
    modified = written.stat().st_mtime_ns // 1_000_000
    as_it_was = entry(str(written)).replace('"modificationTime": 1', f'"modificationTime": {modified}')
    write(log, "4", as_it_was)
    assert File(str(written), modified) in list_sink(str(tmp_path))
    written.write_text("22")
    os.utime(written, ns=(modified * 1_000_000, modified * 1_000_000))
    assert File(str(written), modified) not in list_sink(str(tmp_path)), "of another size: written again"
    os.utime(written, ns=(0, 0))
    assert File(str(written), 0) in list_sink(str(tmp_path)), "no reader has taken it as it is now"
    (tmp_path / "stray").touch()
    assert "stray" not in str(list_head(FileSource(str(tmp_path), recursive=False, sink_log=True)))


@pytest.mark.parametrize("broken", ["gap", "version", "gone"])
def test_a_log_that_cannot_be_read_as_a_whole_says_nothing(tmp_path: Path, broken: str) -> None:
    log = tmp_path / "_spark_metadata"
    if broken != "gone":
        write(log, "0", entry("/out/a"))
        write(log, "2", entry("/out/b"))
    if broken == "version":
        (log / "1").write_text("v2")
    with pytest.raises(OSError, match=r"v2|No such file"):
        list_sink(str(tmp_path))


@pytest.fixture
def compacted(spark: SparkSession) -> Iterator[None]:
    """The sink's log is compacted every three batches, and its old files are deleted at once."""
    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "3")
    spark.conf.set("spark.sql.streaming.fileSink.log.cleanupDelay", "0")
    yield
    for name in ("compactInterval", "cleanupDelay"):
        spark.conf.unset(f"spark.sql.streaming.fileSink.log.{name}")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("compacted")
@pytest.mark.timeout(400)
def test_two_stages_through_sparks_own_file_sink(flow: PlainFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    writing: dict[str, Any] = {"path": flow.folder / "mid", "partition_by": "key"}
    first = flow.start(stage=flow.stage("first"), checkpoint="ck1", **writing)
    flow.eventually((flow.folder / "mid/_spark_metadata").is_dir, "the sink has begun")
    # Spark matches columns by their place, and puts those it reads from directory names last.
    between = flow.spark.readStream.schema("t timestamp, key string").json(str(flow.folder / "mid"))
    flow.start(between, stage=flow.stage("second", "first"), checkpoint="ck2")
    keys: list[str] = []

    def step(hour: int) -> None:
        keys.append(f"k{hour}")
        flow.feed.put([row(keys[-1], hour)])
        upstream.at(hour, 30)
        flow.eventually(lambda: low(lw, "second") == mark(hour, 30), f"{hour}:30 has come through both")
        assert flow.out() == sorted(keys)

    for hour in range(1, 5):
        step(hour)
    names = {path.name for path in (flow.folder / "mid/_spark_metadata").iterdir()}
    assert "2.compact" in names, names
    # The driver of the first dies after its sink has batch 3, before the commit log does; a task had left a file behind.
    first.stop()
    for name in ("commits/3", "commits/.3.crc"):
        (flow.folder / "ck1" / name).unlink()
    Manifest(flow.folder / "ck1").keep("reading", None)
    stray = flow.folder / "mid/key=stray"
    stray.mkdir()
    (stray / "part-00000-stray.json").write_text(json.dumps(row("stray", 5)))
    flow.start(stage=flow.stage("first"), checkpoint="ck1", **writing)
    for hour in range(5, 8):
        step(hour)


@pytest.mark.spark
def test_the_log_of_a_sink_must_be_what_spark_reads(flow: PlainFlow) -> None:
    (flow.folder / "in/_spark_metadata").mkdir()
    name = "spark.sql.streaming.fileStreamSink.ignoreMetadata"
    [source] = check_plan(flow.spark, flow.read()).sources
    assert isinstance(source, FileSource)
    assert source.sink_log
    flow.spark.conf.set(name, "true")
    try:
        with pytest.raises(Unsupported, match="ignoreMetadata"):
            check_plan(flow.spark, flow.read())
    finally:
        flow.spark.conf.unset(name)
