"""What a listing leaves out: files that committed batches have taken, and handed-over batches of which all is taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowwater_spark.sources.files import FileSource, OpenFiles, Settled
from lowwater_spark.sources.head import Heads
from lowwater_spark.sources.source_log import NOTHING, File, Head
from lowwater_spark.sources.writers import HANDED_OVER
from lowwater_spark.track.handover import publish_directory
from tests.spark.support import Log, begun, lines


class Reader:
    """Lists a directory, and notes which sub-directories it looks into."""

    def __init__(self, base: Path, log: Log, patch: pytest.MonkeyPatch) -> None:
        self.out, self.log = base / "out", log
        self.out.mkdir()
        source = FileSource(os.fspath(self.out), recursive=True)
        self.heads = Heads([OpenFiles(source, 0, begun(base / "ck"), log)])
        self.looked: set[str] = set()
        scandir = os.scandir

        def spied(folder: Any = ".") -> Any:
            self.looked.add(Path(os.fsdecode(folder)).name)
            return scandir(folder)

        patch.setattr(os, "scandir", spied)

    def hand_over(self, number: int, *files: str) -> Path:
        def fill(folder: Path) -> None:
            for name in files:
                (folder / name).write_text("{}")

        publish_directory(self.out, f"batch={number}", "digest", fill, ordinal=1)
        return self.out / f"batch={number}"

    def head(self, offset: int) -> tuple[set[str], set[str]]:
        """What is waited for, and which sub-directories were looked into."""
        self.looked.clear()
        [head] = self.heads.list_heads(lines(offset)) or [Head()]
        return {os.path.relpath(file.path, self.out) for file in head}, self.looked - {"out"}


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    return Reader(tmp_path, Log(), monkeypatch)


def test_head_of_w_a_plain_file_is_asked_for_its_time_in_each_listing(reader: Reader) -> None:
    file = reader.out / "daily.json"
    file.write_text("{}")
    reader.log.take(file, 0)
    assert reader.head(NOTHING) == ({"daily.json"}, set()), "what is planned is not committed"
    assert reader.head(0) == (set(), set())
    with file.open("a") as rows:
        rows.write("{}")
    os.utime(file, (1, 1))
    assert reader.head(0) == ({"daily.json"}, set())


def test_head_of_w_a_handed_over_batch_is_looked_into_until_all_of_it_is_committed(reader: Reader) -> None:
    folder = reader.hand_over(0, "a.json", "b.json")
    reader.log.take(folder / "a.json", 0)
    for _ in range(2):
        assert reader.head(0) == ({"batch=0/b.json"}, {"batch=0"})
    reader.log.take(folder / "b.json", 1)
    for _ in range(2):
        assert reader.head(0) == ({"batch=0/b.json"}, {"batch=0"}), "its batch is planned, and may be lost"
    assert reader.head(1) == (set(), {"batch=0"})
    assert reader.head(1) == (set(), set())
    # One without files is done with at once; the next is news.
    reader.hand_over(1)
    assert reader.head(1) == (set(), {"batch=1"})
    reader.hand_over(2, "c.json")
    assert reader.head(1) == ({"batch=2/c.json"}, {"batch=2"})


def test_head_of_w_another_directory_of_a_batchs_name_is_looked_into(reader: Reader, tmp_path: Path) -> None:
    folder = reader.hand_over(0, "a.json")
    reader.log.take(folder / "a.json", 0)
    reader.head(0)
    assert reader.head(0) == (set(), set())
    folder.rename(tmp_path / "aside")
    again = reader.hand_over(0, "a.json", "b.json")
    os.utime(again / "a.json", (1, 1))
    assert reader.head(0) == ({"batch=0/a.json", "batch=0/b.json"}, {"batch=0"})


@pytest.mark.parametrize("what", ["without the mark", "another name", "a directory in it", "a link"])
def test_head_of_w_what_lowwater_has_not_made_is_looked_into_each_time(
    reader: Reader, tmp_path: Path, what: str
) -> None:
    folder = reader.hand_over(0, "a.json")
    if what == "without the mark":
        (folder / HANDED_OVER).unlink()
    elif what == "another name":
        folder = folder.rename(reader.out / "year=2013")
    elif what == "a directory in it":
        (folder / "more").mkdir()
    else:
        folder.rename(tmp_path / "aside")
        folder.symlink_to(tmp_path / "aside", target_is_directory=True)
    reader.log.take(folder / "a.json", 0)
    for _ in range(3):
        missing, looked = reader.head(0)
        assert (missing, folder.name in looked) == (set(), True)
    added = folder / ("more/b.json" if what == "a directory in it" else "b.json")
    added.write_text("{}")
    assert reader.head(0)[0] == {os.path.relpath(added, reader.out)}


TRAPS: dict[str, Callable[[Settled, File], bool]] = {
    "what is planned is left out": lambda settled, file: settled._log.batch_of(file) is not None,
    "files are known by their paths alone": lambda settled, file: (
        file.path in settled._log.taken and settled._offset != NOTHING
    ),
}


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when more is left out than is taken for good")
@pytest.mark.parametrize("trap", TRAPS)
def test_head_of_w_breaks_when_more_is_left_out(reader: Reader, monkeypatch: pytest.MonkeyPatch, trap: str) -> None:
    monkeypatch.setattr(Settled, "has", TRAPS[trap])
    test_head_of_w_a_plain_file_is_asked_for_its_time_in_each_listing(reader)
