"""Who writes into what a stage reads: its inputs must name them all, and Spark must go by the log of a sink that it reads."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.durable import write_over
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources import writers
from lowwater_spark.sources.control import ControlSource
from lowwater_spark.sources.files import FileSource, Intruder, hidden, intruders, list_head
from lowwater_spark.sources.sink_log import refuse_sink
from lowwater_spark.sources.writers import MARKS, mark_sink, mark_writer, strangers
from lowwater_spark.track.batch import Batch
from lowwater_spark.track.plan import Checked, check_plan
from tests.kit.eventually import eventually
from tests.kit.times import at
from tests.process.serving import Serving
from tests.spark.support import Feed, Upstream, low, row

SCHEMA = "key string, t timestamp"


def reading(folder: Path, *inputs: str, recursive: bool = True, sink_log: bool = False) -> FileSource:
    return FileSource(str(folder), recursive, "json", sink_log, frozenset(inputs) if inputs else None)


def named(source: FileSource) -> list[str]:
    return sorted(found.writer for found in intruders(source) if found.writer)


def test_a_mark_says_who_writes_and_is_no_row(tmp_path: Path) -> None:
    assert hidden(MARKS, folder=True), "neither Spark nor anybody else reads rows from it"
    assert strangers(str(tmp_path), set()) == []
    for name in ("a/b", "a/b", "c"):
        mark_writer(tmp_path, name)
    assert sorted(name for _, name in strangers(str(tmp_path), {"d"})) == ["a/b", "c"]
    [(mark, name)] = strangers(str(tmp_path), {"a/b"})
    assert (name, Path(mark).parent) == ("c", tmp_path / MARKS)
    Path(mark).write_text('{"format": 2}')
    with pytest.raises(OSError, match="of format 2"):
        strangers(str(tmp_path), set())


def test_of_the_file_sinks_of_one_directory_one_gets_the_mark(tmp_path: Path) -> None:
    assert len(winners(tmp_path)) == 1


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when a mark is left and not taken")
def test_a_mark_breaks_when_it_is_left_and_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def left(path: Path, data: bytes) -> bool:
        write_over(path.with_name(f"{hash(data)}.json"), data)
        return True

    monkeypatch.setattr(writers, "write_once", left)
    monkeypatch.setattr(writers, "check_alone", lambda *_: None)
    assert len(winners(tmp_path)) == 1


def winners(folder: Path) -> list[str]:
    """Those of several that may write, when all ask at once."""
    together, won = threading.Barrier(8), list[str]()

    def ask(name: str) -> None:
        together.wait(60)
        with contextlib.suppress(Unsupported):
            mark_sink(folder, name, "identity", adopt=False)
            won.append(name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, "abcdefgh"))
    return won


def test_the_mark_of_a_file_sink_is_of_one_checkpoint(tmp_path: Path) -> None:
    mark_sink(tmp_path, "a", "one", adopt=False)
    mark_sink(tmp_path, "a", "one", adopt=False)
    with pytest.raises(Unsupported, match="a writes there"):
        mark_sink(tmp_path, "a", "two", adopt=False)
    mark_sink(tmp_path, "a", "two", adopt=True)
    for name, identity in (("a", "one"), ("b", "two")):
        with pytest.raises(Unsupported, match="a writes there"):
            mark_sink(tmp_path, name, identity, adopt=name == "b")
    # Nobody hands over into what a sink has taken, though it has written nothing yet; nor the other way round.
    for folder in (tmp_path, tmp_path / "deep/er"):
        with pytest.raises(Unsupported, match=f"file sink writes to {tmp_path}"):
            refuse_sink(folder)
    mark_writer(tmp_path / "other", "c")
    with pytest.raises(Unsupported, match="c writes there"):
        mark_sink(tmp_path / "other", "a", "one", adopt=False)
    (tmp_path / MARKS / "sink.json").write_text('{"format": 1}')
    with pytest.raises(OSError, match="no mark of a writer"):
        mark_sink(tmp_path, "a", "two", adopt=True)


def test_a_reader_knows_the_writers_of_all_that_it_reads(tmp_path: Path) -> None:
    for folder, name in (("out", "a"), ("out/deep/er", "b"), ("out/_tmp", "hidden"), ("other", "d")):
        mark_writer(tmp_path / folder, name)
    (tmp_path / "out/year=2013/month=1").mkdir(parents=True)
    (tmp_path / "out/raw").mkdir()
    assert named(reading(tmp_path / "out", "x")) == ["a", "b"]
    assert named(reading(tmp_path / "out", "a", "b")) == []
    assert named(reading(tmp_path / "out")) == [], "an injector waits for nobody"
    assert named(reading(tmp_path / "out", "x", recursive=False)) == ["a"]
    assert named(reading(tmp_path / "out/year=2013/month=1", "x")) == ["a"], "a partition of what it writes"
    assert named(reading(tmp_path / "out/raw", "x")) == [], "what stands in a directory of its own is nobody else's"
    [held] = [file for file in list_head(reading(tmp_path / "out", "b")) if MARKS in file.path]
    assert held.path.endswith(".json (a writes here, and the inputs do not name it)")


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when writers and inputs are not compared")
def test_a_forgotten_writer_breaks_when_nobody_is_compared(tmp_path: Path) -> None:
    mark_writer(tmp_path, "forgotten")
    assert list_head(reading(tmp_path)), "its rows are waited for, or the reader holds"


def test_the_log_of_a_sink_that_is_not_read_by_is_an_intruder(tmp_path: Path) -> None:
    log = tmp_path / "all/out/_spark_metadata"
    log.mkdir(parents=True)
    (tmp_path / "all/out/year=2013").mkdir()
    (tmp_path / "all/raw").mkdir()
    assert intruders(reading(tmp_path / "all")) == [Intruder(str(log))]
    assert [file.path for file in list_head(reading(tmp_path / "all"))] == [str(log)], "it holds if it comes later"
    assert intruders(reading(tmp_path / "all/out/year=2013")) == [Intruder(str(log))]
    assert intruders(reading(tmp_path / "all/out")) == [Intruder(str(log))], "it was not there at the start"
    assert intruders(reading(tmp_path / "all/out", sink_log=True)) == []
    assert intruders(reading(tmp_path / "all/raw")) == []


LINKS = {
    "a partition of a sink": ("sink/year=2013", ""),
    "a file of a sink": ("sink/year=2013/a.json", "in/a.json"),
    "a folder in a partition": ("sink/year=2013", "in/deep"),
    "a sink": ("sink", "in/deep"),
    "a batch of a writer": ("out/batch=0", ""),
    "a batch among others": ("out/batch=0", "in/deep"),
    "a file of a batch": ("out/batch=0/b.json", "in/b.json"),
    "all of a writer": ("out", "in/deep"),
}
"""What a symbolic link leads to, and where it stands below what is read; empty: it is read itself."""


@pytest.mark.parametrize("what", list(LINKS))
def test_a_writer_is_known_by_whatever_links_its_files_are_read(what: str, tmp_path: Path) -> None:
    assert found_by_links(tmp_path, what) == linked_to(tmp_path, what)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when links are taken for what they are called")
def test_a_writer_breaks_when_links_are_taken_for_what_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "realpath", lambda path: path)
    assert found_by_links(tmp_path, "a partition of a sink") == linked_to(tmp_path, "a partition of a sink")


def linked_to(folder: Path, what: str) -> list[Intruder]:
    if "sink" in what or "partition" in what:
        log = "in/deep" if what == "a sink" else "sink"
        return [Intruder(str(folder / log / "_spark_metadata"))]
    at = folder / ("in/deep" if what == "all of a writer" else "out")
    return [Intruder(path, name) for path, name in strangers(str(at), set())]


def found_by_links(folder: Path, what: str) -> list[Intruder]:
    (folder / "sink/_spark_metadata").mkdir(parents=True)
    (folder / "sink/year=2013").mkdir()
    (folder / "sink/year=2013/a.json").touch()
    (folder / "out/batch=0").mkdir(parents=True)
    (folder / "out/batch=0/b.json").touch()
    mark_writer(folder / "out", "a")
    (folder / "in").mkdir()
    leads_to, name = LINKS[what]
    link = folder / (name or "link")
    link.symlink_to(folder / leads_to)
    (folder / "in/nowhere").symlink_to(folder / "sink/year=2013/missing")
    return intruders(reading(folder / "in" if name else link, "x"))


def test_a_driven_frame_waits_for_its_own_inputs() -> None:
    def waited_for(found: Checked) -> list[set[str]]:
        return [set(each.inputs or ()) for each in found.sources if isinstance(each, FileSource)]

    a, b, c = (FileSource(root, recursive=False) for root in ("/a", "/b", "/c"))
    driven = Checked([ControlSource("/one"), a, b, ControlSource("/two"), c])
    assert waited_for(driven.waiting_for(["x", "y"], {0: ["x"], 3: ["y"]})) == [{"x"}, {"x"}, {"y"}]
    assert waited_for(Checked([a, b]).waiting_for(["x", "y"], {})) == [{"x", "y"}] * 2


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_stage_is_refused_that_forgets_a_writer_and_holds_when_one_comes_later(
    spark: SparkSession,
    authority: Serving,
    lw: lowwater.Client,
    upstream: Upstream,
    feed: Callable[[str], Feed],
    tmp_path: Path,
) -> None:
    """Two stages hand over into one directory; who reads it waits for both, or not at all."""
    queries: list[lws.TrackedQuery] = []

    def stage(name: str, *inputs: str) -> lws.Stage:
        return lws.stage(spark, name, inputs=inputs, key="key", event_time="t", ranges=2, address=authority.address)

    def stream(folder: str) -> DataFrame:
        frame = spark.readStream.schema(SCHEMA).option("recursiveFileLookup", "true")
        return frame.json(str(tmp_path / folder))

    def writes(rows: DataFrame, batch: Batch) -> None:
        batch.write(rows, tmp_path / "out/daily", file_format="json")

    def read(name: str, *inputs: str, folder: str = "out") -> lws.TrackedQuery:
        query = stage(name, *inputs).start(stream(folder), checkpoint=tmp_path / name, format="noop")
        queries.append(query)
        return query

    try:
        feed("in").put([row("a", 9)])
        upstream.at(10)
        queries.append(stage("daily", "source").foreach_batch(stream("in"), writes, checkpoint=tmp_path / "ck1"))
        eventually(lambda: low(lw, "daily") == lowwater.Watermark.of(at(10)), "the first writer")
        with pytest.raises(Unsupported, match="daily writes there, and the inputs do not name it"):
            read("wrong", "source")
        assert not (tmp_path / "wrong").exists()
        one, both = read("one", "daily"), read("both", "daily", "corrections")
        eventually(lambda: low(lw, "one") == lowwater.Watermark.of(at(10)), "all writers are named")
        # The other writer comes: a plain query, with a sink log of its own beside the hand-over.
        feed("fixes").put([row("b", 8)])
        mark_writer(tmp_path / "out/daily", "corrections")
        Upstream(lw, "corrections").at(9)
        upstream.at(11)
        eventually(lambda: low(lw, "daily") == lowwater.Watermark.of(at(11)), "the first writer goes on")
        eventually(lambda: "corrections writes here" in str(one.stage_status().waiting_for), "the reader names it")
        assert low(lw, "one") == lowwater.Watermark.of(at(10))
        eventually(lambda: low(lw, "both") == lowwater.Watermark.of(at(9)), "who waits for both goes on")
        assert both.stage_status().waiting_for == ()
        assert one.query.isActive
        driven = lws.drive(stream("out"), inputs=["daily"], event_time="t")
        with pytest.raises(Unsupported, match="corrections writes there"):
            stage("driven", "daily").start(driven, checkpoint=tmp_path / "driven", format="noop")
        plain = stage("plain", "source").start(
            stream("in"), checkpoint=tmp_path / "ck2", format="json", path=tmp_path / "plain"
        )
        queries.append(plain)
        assert strangers(str(tmp_path / "plain"), set())[0][1] == "plain"
        eventually((tmp_path / "plain/_spark_metadata").is_dir, "its sink has begun")
        eventually((tmp_path / "plain/_spark_metadata/0").exists, "its first batch")
        (tmp_path / "link").symlink_to(tmp_path / "plain")
        with pytest.raises(
            Unsupported, match=f"names its files by another path: {tmp_path}/plain/part-.* Read it by the path"
        ):
            check_plan(spark, stream("link"))
        (tmp_path / "link").unlink()
        (tmp_path / "linked").mkdir()
        (tmp_path / "linked/deep").symlink_to(tmp_path / "out/daily/batch=0")
        with pytest.raises(Unsupported, match="corrections, daily writes there"):
            read("wrong", "source", folder="linked")
        rows = spark.read.schema(SCHEMA).option("recursiveFileLookup", "true").json(str(tmp_path / "linked"))
        assert rows.count() == 1, "Spark follows the link"
        above = spark.readStream.schema(SCHEMA).option("recursiveFileLookup", "true").json(str(tmp_path))
        with pytest.raises(
            Unsupported, match=f"Spark's file sink writes to {tmp_path}/plain, .* Read {tmp_path}/plain by"
        ):
            check_plan(spark, above)
    finally:
        for query in queries:
            query.stop()
