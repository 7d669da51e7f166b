"""Who writes into what a stage reads: its inputs must name them all, and Spark must go by the log of a sink that it reads."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.control import ControlSource
from lowwater_spark.sources.files.sink_log import refuse_sink
from lowwater_spark.sources.files.source import FileSource, Intruder, hidden, intruders, list_head
from lowwater_spark.sources.files.writers import MARKS, mark_sink, mark_writer, strangers
from lowwater_spark.track.plan.checked import Checked


def reading(folder: Path, *inputs: str, recursive: bool = True, sink_log: bool = False) -> FileSource:
    return FileSource(str(folder), recursive, "json", sink_log, frozenset(inputs) if inputs else None)


def named(source: FileSource) -> list[str]:
    return sorted(intruder.writer for intruder in intruders(source) if intruder.writer)


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


def winners(folder: Path) -> list[str]:
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
    [marker] = [file for file in list_head(reading(tmp_path / "out", "b")) if MARKS in file.path]
    assert marker.path.endswith(".json (a writes here, and the inputs do not name it)")


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
"""The target of a symbolic link, and where it stands below what is read; empty: it is read itself."""


@pytest.mark.parametrize("what", list(LINKS))
def test_a_writer_is_known_by_whatever_links_its_files_are_read(what: str, tmp_path: Path) -> None:
    assert found_by_links(tmp_path, what) == linked_to(tmp_path, what)


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
    def waited_for(checked: Checked) -> list[set[str]]:
        return [set(source.inputs or ()) for source in checked.sources if isinstance(source, FileSource)]

    a, b, c = (FileSource(root, recursive=False) for root in ("/a", "/b", "/c"))
    driven = Checked([ControlSource("/one"), a, b, ControlSource("/two"), c])
    assert waited_for(driven.waiting_for(["x", "y"], {0: ["x"], 3: ["y"]})) == [{"x"}, {"x"}, {"y"}]
    assert waited_for(Checked([a, b]).waiting_for(["x", "y"], {})) == [{"x", "y"}] * 2
