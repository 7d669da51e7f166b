"""What reading the log of a file source costs: each line is parsed once, however long the log has become."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from lowwater_spark.checkpoint.lines import last_lines
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.source_log import SourceLog
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
        before = [each for name in names if (self.folder / name).exists() for each in self._lines(name)]
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
    assert {taken.batch for taken in log.taken.values()} == set(range(40))
    assert log.parsed - before == 2 * 18 + 1


def test_a_compacted_entry_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "9.compact").write_text(f"v2\n{line_of('/in/a', 9)}", encoding="utf-8")
    with pytest.raises(CheckpointMismatch, match="version 'v2'"):
        SourceLog(tmp_path, "/in").read_to(9)


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
        committed = offset(spark.batch)
        assert ticks.force(committed)
        [new] = [path for path in folder.iterdir() if str(path) not in ticks._log.taken]
        planned = offset(spark.write(str(new)))
        ticks.read_to(planned)
        assert ticks.outstanding(committed)
        ticks.clean(committed)
        assert not ticks.outstanding(planned)
        ticks.clean(planned)


def test_a_log_may_name_files_of_another_file_system(tmp_path: Path) -> None:
    """Spark writes their whole URIs, and the source is named with its scheme."""
    root = "hdfs://one:8020/ck a/lowwater/ticks"
    entry = {"path": "hdfs://one:8020/ck%20a/lowwater/ticks/1-1", "timestamp": 1, "batchId": 0}
    (tmp_path / "0").write_text(f"v1\n{json.dumps(entry)}", encoding="utf-8")
    log = SourceLog(tmp_path, root, columns=())
    log.read_to(0)
    assert [*log.taken] == [f"{root}/1-1"]


def test_ticks_are_forgotten(tmp_path: Path) -> None:
    """By the driver, in their folder, and in Spark's own log of them; a run that comes later finds none either."""
    spark, folder = Log(tmp_path / "sources/1"), Path(str(tick_directory(tmp_path)))
    ticks = Ticks(tmp_path, 1, 1)
    copied = []
    for _ in range(12):
        run_ticks(ticks, spark, folder, 100)
        copied.append(spark.copied)
        assert ticks.remembered <= 2
        assert len([*folder.iterdir()]) <= 2
    assert max(copied) <= 600, "Spark's compacted entries stay short"
    assert ticks._log.parsed <= 1_200 + 120 + 30
    later = Ticks(tmp_path, 1, 2)
    later.read_to(offset(spark.batch))
    assert later.remembered <= 600
    later.clean(offset(spark.batch))
    assert later.remembered <= 1
    run_ticks(later, spark, folder, 20)


def test_a_log_of_ticks_from_an_older_release_becomes_short(tmp_path: Path) -> None:
    spark, folder = Log(tmp_path / "sources/1"), Path(str(tick_directory(tmp_path)))
    for n in range(10_000):
        (tmp_path / "sources/1" / str(n - 1)).unlink(missing_ok=True)
        spark.batch = n
    lines = [line_of(f"{folder}/0-{n}", n) for n in range(9_999 + 1)]
    (tmp_path / "sources/1/9999.compact").write_text("\n".join(["v1", *lines]), encoding="utf-8")
    (tmp_path / "sources/1/.9999.compact.crc").write_bytes(b"crc\0 of the old content")
    ticks = Ticks(tmp_path, 1, 1)
    ticks.read_to(offset(9_999))
    ticks.clean(offset(9_999))
    assert ticks.remembered == 1
    assert (tmp_path / "sources/1/9999.compact").read_text(encoding="utf-8").split("\n") == ["v1", lines[-1]]
    assert not (tmp_path / "sources/1/.9999.compact.crc").exists()


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


def test_a_tick_has_two_triggers_of_time(tmp_path: Path) -> None:
    """A trigger of ten minutes: Spark looks at the ticks once in that time."""
    spark, folder, clock = Log(tmp_path / "sources/1"), Path(str(tick_directory(tmp_path))), [0.0]
    ticks = Ticks(tmp_path, 1, 1, elapsed=lambda: clock[0])
    ticks.trigger = 600.0
    written = []
    for minute in range(21):
        clock[0] = 60.0 * minute
        written.append(ticks.force(offset(-1)))
    assert [minute for minute, new in enumerate(written) if new] == [0, 20]
    # Spark has been away, and takes both in one batch. The files of its newest entry stay.
    planned = offset(spark.write(str(folder / "1-1"), str(folder / "1-2")))
    ticks.read_to(planned)
    ticks.clean(planned)
    assert {path.name for path in folder.iterdir()} == {"1-1", "1-2"}
    assert ticks.force(planned)
    following = offset(spark.write(str(folder / "1-3")))
    ticks.read_to(following)
    ticks.clean(following)
    assert {path.name for path in folder.iterdir()} == {"1-3"}


def test_ticks_of_a_checkpoint_that_was_moved_are_known(tmp_path: Path) -> None:
    (tmp_path / "sources/1").mkdir(parents=True)
    (tmp_path / "sources/1/0").write_text(f"v1\n{line_of('/old/ck/lowwater/ticks/1-1', 0)}", encoding="utf-8")
    ticks = Ticks(tmp_path, 1, 2)
    ticks.read_to(offset(0))
    assert not ticks.outstanding(offset(0))
    assert ticks.force(offset(0))
