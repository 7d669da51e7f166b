"""A file that stands in a source all the time is in its head, also when it is renamed while the source is listed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lowwater_spark.sources.files import FileSource, Settled, list_head
from lowwater_spark.sources.source_log import SourceLog


class Disturbed(Settled):
    """Lets something happen in the middle of a listing: before the second directory is looked into."""

    def __init__(self, log: SourceLog, disturb: Callable[[str, str], None]) -> None:
        super().__init__(log)
        self._disturb = disturb
        self._last = ""

    def knows(self, folder: os.DirEntry[str]) -> bool:
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
            [path] = [each for each in Path(coming).iterdir() if each.name != "other.json"]
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

    with pytest.raises(OSError, match="renamed or removed"):
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

    found = names(root, Disturbed(read, come_and_go))
    assert {"other.json", "new-0.json"} <= found <= {"other.json", "new-0.json", "new-1.json"}
    assert len(listings) == 2, "listed again once, since files had gone"


def test_a_file_that_was_written_again_and_is_renamed_is_found(root: Path, tmp_path: Path) -> None:
    """Its path was read, and its rows were not."""
    log = tmp_path / "log"
    log.mkdir()
    for folder, name in (("a", "one.json"), ("b", "two.json")):
        (root / folder / name).write_text("again")
    entries = [
        json.dumps({"path": f"file://{path}", "timestamp": 1, "batchId": 0})
        for path in (root / "a" / "one.json", root / "b" / "two.json")
    ]
    (log / "0").write_text("\n".join(["v1", *entries]))
    read = SourceLog(log, str(root))
    read.read_to(0)
    moved: list[str] = []

    def move(listed: str, coming: str) -> None:
        if not moved:
            [path] = [each for each in Path(coming).iterdir() if each.name != "other.json"]
            moved.append(f"renamed-{path.name}")
            path.rename(Path(listed, moved[0]))

    found = names(root, Disturbed(read, move))
    assert set(moved) < found
    assert len(moved) == 1


def test_a_link_to_nothing_does_not_disturb_a_listing(root: Path, tmp_path: Path) -> None:
    (root / "a" / "link.json").symlink_to(root / "nowhere")
    assert names(root, Settled(SourceLog(tmp_path / "log"))) == {"other.json"}
