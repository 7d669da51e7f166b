"""A source reads the log of a file source, ticks, lines, and listings of folders that change meanwhile."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lowwater_spark.checkpoint.lines import last_lines, lines_of
from lowwater_spark.sources.files.folders import Entry
from lowwater_spark.sources.files.source import FileSource, Settled, list_head
from lowwater_spark.sources.files.source_log import SourceLog
from lowwater_spark.sources.tables.delta_log import Commit
from lowwater_spark.sources.tables.versioned import app_id, marked
from lowwater_spark.sources.ticks import Ticks, tick_directory

EVERY = 10


def line_of(path: str, batch: int) -> str:
    return json.dumps({"path": f"file://{path}", "timestamp": 1_000 + batch, "batchId": batch})


class Log:
    """The log of a source, as Spark writes it: each tenth entry repeats what the newest compacted one has, and those since."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.batch = -1
        self.copied = 0
        """Lines that the newest compacted entry was made of."""

    def write(self, *paths: str) -> int:
        self.batch += 1
        lines = [line_of(path, self.batch) for path in paths]
        if (self.batch + 1) % EVERY:
            (self.folder / str(self.batch)).write_text("\n".join(["v1", *lines]), encoding="utf-8")
            return self.batch
        names = [f"{self.batch - EVERY}.compact", *(str(n) for n in range(self.batch - EVERY + 1, self.batch))]
        before = [line for name in names if (self.folder / name).exists() for line in self._lines(name)]
        self.copied = len(before)
        (self.folder / f"{self.batch}.compact").write_text("\n".join(["v1", *before, *lines]), encoding="utf-8")
        return self.batch

    def _lines(self, name: str) -> list[str]:
        return (self.folder / name).read_text(encoding="utf-8").split("\n")[1:]


def offset(batch: int) -> str:
    return json.dumps({"logOffset": batch})


def test_each_line_is_parsed_once_also_at_compacted_entries(tmp_path: Path) -> None:
    spark, log = Log(tmp_path / "0"), SourceLog(tmp_path / "0", "/in")
    for n in range(200):
        log.read_to(spark.write(f"/in/{n}"))
    # Of each compacted entry one line more is looked at: the one where the new lines end.
    assert log.parsed <= 200 + 200 // EVERY
    assert len(log.taken) == 200
    late = SourceLog(tmp_path / "0", "/in")
    late.read_to(199)
    assert late.taken == log.taken
    assert late.parsed == 200


def test_a_compacted_entry_beyond_the_offset_stands_in_for_those_that_are_gone(tmp_path: Path) -> None:
    spark, log = Log(tmp_path / "0"), SourceLog(tmp_path / "0", "/in")
    for n in range(40):
        spark.write(f"/in/{n}", f"/in/{n}b")
        if n == 21:
            log.read_to(n)
    for path in (tmp_path / "0").iterdir():
        if path.name != "39.compact":
            path.unlink()
    before = log.parsed
    log.read_to(25)
    assert {entry.batch for entry in log.taken.values()} == set(range(40))
    assert log.parsed - before == 2 * 18 + 1


def test_the_lines_of_a_file_come_from_its_end(tmp_path: Path) -> None:
    chance = random.Random(7)
    for size in (0, 1, 5, 40_000, 200_000):
        data = bytes(chance.choice(b"a\nb\r\x85") for _ in range(size))
        (tmp_path / "file").write_bytes(data)
        assert list(last_lines(tmp_path / "file")) == data.split(b"\n")[::-1]
    (tmp_path / "file").write_bytes(long := b"x" * 300_000 + b"\n" + b"y" * 70_000)
    assert list(last_lines(tmp_path / "file")) == long.split(b"\n")[::-1]


def run_ticks(ticks: Ticks, spark: Log, folder: Path, count: int) -> None:
    for _ in range(count):
        committed, before = offset(spark.batch), {*folder.iterdir()} if folder.exists() else set()
        assert ticks.force(committed)
        [new] = {*folder.iterdir()} - before
        planned = offset(spark.write(str(new)))
        ticks.read_to(planned)
        assert ticks.outstanding(committed)
        ticks.clean(committed)
        assert not ticks.outstanding(planned)
        ticks.clean(planned)


def test_ticks_are_forgotten(tmp_path: Path) -> None:
    """The driver forgets them in its memory, in their folder, and in Spark's own log; a run that comes later finds none either."""
    spark, folder = Log(tmp_path / "sources/1"), Path(str(tick_directory(tmp_path)))
    ticks = Ticks(tmp_path, 1, 1)
    copied = []
    for _ in range(12):
        run_ticks(ticks, spark, folder, 100)
        copied.append(spark.copied)
        assert ticks.remembered <= 2
        assert len([*folder.iterdir()]) <= 2
    assert max(copied) <= 600, "Spark's compacted entries stay short"
    later = Ticks(tmp_path, 1, 2)
    later.read_to(offset(spark.batch))
    assert later.remembered <= 600
    later.clean(offset(spark.batch))
    assert later.remembered <= 1
    run_ticks(later, spark, folder, 20)


def test_ticks_of_a_checkpoint_that_was_moved_are_known(tmp_path: Path) -> None:
    Log(tmp_path / "sources/1").write("/old/ck/lowwater/ticks/1-1")
    ticks = Ticks(tmp_path, 1, 2)
    ticks.read_to(offset(0))
    assert not ticks.outstanding(offset(0))
    assert ticks.force(offset(0))


def test_a_tick_is_never_older_than_the_newest_one(tmp_path: Path) -> None:
    """Spark passes over a file that is older than the newest one by more than an hour: after the clock was put back no tick would count."""
    (tmp_path / "sources/1").mkdir(parents=True)
    ahead = 4_000_000_000_000
    line = json.dumps({"path": f"file://{tick_directory(tmp_path)}/0-1", "timestamp": ahead, "batchId": 0})
    (tmp_path / "sources/1/0").write_text(f"v1\n{line}", encoding="utf-8")
    ticks = Ticks(tmp_path, 1, 1)
    ticks.read_to(offset(0))
    assert ticks.force(offset(0))
    assert Path(str(tick_directory(tmp_path)), "1-1").stat().st_mtime_ns == ahead * 1_000_000


def test_a_tick_that_spark_passes_over_is_written_again(tmp_path: Path) -> None:
    """Its file system's clock was put back, and Spark finds it too old. The second one counts, and takes the first with it."""
    spark, folder, clock = Log(tmp_path / "sources/1"), Path(str(tick_directory(tmp_path))), [0.0]
    ticks = Ticks(tmp_path, 1, 1, elapsed=lambda: clock[0])
    assert ticks.force(offset(-1))
    clock[0] = 59
    assert not ticks.force(offset(-1))
    clock[0] = 60
    assert ticks.force(offset(-1))
    planned = offset(spark.write(str(folder / "1-2")))
    ticks.read_to(planned)
    clock[0] = 600
    assert not ticks.force(offset(-1)), "its batch takes long"
    ticks.clean(planned)
    assert [path.name for path in folder.iterdir()] == ["1-2"]
    assert ticks.force(planned)


ROOT = Path(__file__).parents[2]
PRODUCT = (
    *("client/src", "server/src", "authority/src", "page/src", "regions/src", "spark_listener/src", "pipeline/src"),
    "integrations",
)
FOR_PEOPLE = {
    "server/src/lowwater_server/logging.py": "a traceback, of which each line becomes a field of a log record",
    "client/src/lowwater/cli/live.py": "an answer that is wrapped for a terminal",
    "pipeline/src/lowwater_pipeline/graph/running.py": "the first line of an exception",
    "authority/src/lowwater_authority/embedded.py": "the end of the log of a process that did not start",
}
"""Files that may break a text at more than line feeds: the text is only shown."""

BREAKS = re.compile(r"\.(splitlines|readlines)\(|\bStringIO\b")

BREAKING = ["\u0085", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"]


@pytest.mark.parametrize("mark", BREAKING)
def test_only_a_line_feed_ends_a_line(mark: str) -> None:
    assert f"one{mark}line\n".splitlines() == ["one", "line"]
    assert lines_of(f"one{mark}line\nanother\n") == [f"one{mark}line", "another"]


def test_a_commit_of_delta_says_who_has_written_it() -> None:
    txn = json.dumps({"txn": {"appId": app_id("default/hourly", "c0ffee"), "version": 3}})
    info = json.dumps({"commitInfo": {"operation": "WRITE", "userMetadata": marked("default/daily")}})
    foreign = json.dumps({"txn": {"appId": "another's", "version": 3}})
    assert Commit.parse(3, f"{txn}\n{info}\n").writer == "default/hourly"
    assert Commit.parse(3, f"{info}\n{foreign}\n").writer == "default/daily"
    assert not Commit.parse(3, foreign).writer


def test_no_product_code_breaks_data_into_lines_by_other_characters() -> None:
    files = {
        path.relative_to(ROOT).as_posix()
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*.py")
        if not {"v1", "records", "tests"} & {*path.relative_to(ROOT).parts}
        and BREAKS.search(path.read_text(encoding="utf-8"))
    }
    assert files == FOR_PEOPLE.keys(), "use lowwater_spark.checkpoint.lines.lines_of, or say here for whom the text is"


class Disturbed(Settled):
    """Lets something happen in the middle of a listing: before the second directory is looked into."""

    def __init__(self, log: SourceLog, disturb: Callable[[str, str], None]) -> None:
        super().__init__(log)
        self._disturb = disturb
        self._last = ""

    def knows(self, folder: Entry) -> bool:
        if self._last not in ("", folder.path):
            self._disturb(self._last, folder.path)
            self._last = ""
        else:
            self._last = folder.path
        return super().knows(folder)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("in/a", "in/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "other.json").write_text("{}")
    return tmp_path / "in"


def names(root: Path, settled: Settled) -> set[str]:
    settled.begin(7)
    head = list_head(FileSource(str(root), recursive=True), settled)
    settled.end()
    return {Path(file.path).name for file in head}


def test_a_file_that_is_renamed_into_a_directory_already_listed_is_found(root: Path, tmp_path: Path) -> None:
    """Whichever directory is listed second: its file moves into the first one."""
    (root / "a" / "one.json").write_text("{}")
    (root / "b" / "two.json").write_text("{}")
    moved: list[str] = []

    def move(listed: str, coming: str) -> None:
        if not moved:
            [path] = [path for path in Path(coming).iterdir() if path.name != "other.json"]
            moved.append(path.name)
            path.rename(Path(listed, path.name))

    assert names(root, Disturbed(SourceLog(tmp_path / "log"), move)) == {"one.json", "two.json", "other.json"}
    assert len(moved) == 1


def test_files_that_vanish_in_each_listing_hold(root: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        for n in range(5):
            (root / folder / f"{n}.json").write_text("{}")
    listings: list[str] = []

    def remove(listed: str, coming: str) -> None:
        Path(coming, f"{len(listings)}.json").unlink(missing_ok=True)
        listings.append(coming)

    with pytest.raises(OSError, match="renames or removes"):
        names(root, Disturbed(SourceLog(tmp_path / "log"), remove))
    assert len(listings) == 5


def test_new_files_and_the_removal_of_read_ones_do_not_disturb_a_listing(root: Path, tmp_path: Path) -> None:
    """A source is cleaned up all the time: what goes has been read, and what comes is found or came later."""
    log = tmp_path / "log"
    log.mkdir()
    files = [root / folder / f"{n}.json" for folder in "ab" for n in range(20)]
    for path in files:
        path.write_text("{}")
    entries = [
        json.dumps({"path": f"file://{path}", "timestamp": path.stat().st_mtime_ns // 1_000_000, "batchId": 0})
        for path in files
    ]
    (log / "0").write_text("\n".join(["v1", *entries]))
    read = SourceLog(log, str(root))
    read.read_to(0)
    listings: list[str] = []

    def come_and_go(listed: str, coming: str) -> None:
        for folder in (listed, coming):
            Path(folder, f"{len(listings)}.json").unlink()
            Path(folder, f"new-{len(listings)}.json").write_text("{}")
        listings.append(coming)

    listed = names(root, Disturbed(read, come_and_go))
    assert {"other.json", "new-0.json"} <= listed <= {"other.json", "new-0.json", "new-1.json"}
    assert len(listings) == 2, "listed again once, since files had gone"
