"""A listing leaves out files that committed batches have taken, and handed-over batches of which all is taken."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowwater_spark.sources.files import folders as files
from lowwater_spark.sources.files import roots
from lowwater_spark.sources.files.source import FileSource, OpenFiles, Settled
from lowwater_spark.sources.files.source_log import NOTHING, File, Head
from lowwater_spark.sources.files.writers import HANDED_OVER
from lowwater_spark.sources.head import Heads
from lowwater_spark.track.state.handover import publish_directory
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
        """Return the files that are waited for, and the sub-directories that were looked into."""
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
def test_head_of_w_foreign_directories_are_looked_into_each_time(reader: Reader, tmp_path: Path, what: str) -> None:
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


class LeavesOutPlanned(Settled):
    def has(self, file: File) -> bool:
        return self._log.batch_of(file) is not None


class GoesByPaths(Settled):
    def has(self, file: File) -> bool:
        return file.path in self._log.taken and self._offset != NOTHING


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when more is left out than is taken for good")
@pytest.mark.parametrize("trap", [LeavesOutPlanned, GoesByPaths])
def test_head_of_w_breaks_with_more_out(reader: Reader, monkeypatch: pytest.MonkeyPatch, trap: type[Settled]) -> None:
    monkeypatch.setattr(Settled, "has", trap.has)
    test_head_of_w_a_plain_file_is_asked_for_its_time_in_each_listing(reader)


class Query:
    """A query over one directory, by its source log and its checkpoint."""

    def __init__(self, base: Path) -> None:
        self.folder, self.checkpoint = base / "in", base / "ck"
        self.folder.mkdir()
        self.record = self.checkpoint / "lowwater/manifest"
        self.manifest = begun(self.checkpoint)
        self.log = Log()
        self.read = -1
        self.heads = self.again()

    def again(self) -> Heads:
        self.manifest = begun(self.checkpoint)
        return self.shared()

    def shared(self) -> Heads:
        """Another source of the run, over the same directory."""
        return Heads([OpenFiles(FileSource(os.fspath(self.folder), recursive=True), 0, self.manifest, self.log)])

    def put(self, name: str) -> Path:
        path = self.folder / name
        path.write_text("{}")
        return path

    def take(self, *names: str) -> None:
        self.read += 1
        for name in names:
            self.log.take(self.put(name), self.read)

    def holds(self, looker: Heads | None = None) -> bool:
        return (looker or self.heads).list_heads(lines(self.read)) is None

    def replace_again(self) -> None:
        self.folder.rename(self.folder.with_name("another"))
        self.folder.mkdir()

    def replace(self) -> Path:
        """Put an empty directory in its place, as where a volume is not mounted; return where the volume is."""
        volume = self.folder.rename(self.folder.with_name("volume"))
        self.folder.mkdir()
        return volume


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def test_head_of_w_what_is_read_of_a_mount_point_ends_no_hold(query: Query) -> None:
    """Somebody goes on writing where the volume is missing, and Spark reads that."""
    query.take("a.json")
    assert not query.holds()
    query.put("b.json")  # on the volume, and read by nobody
    volume = query.replace()
    assert query.holds()
    query.take("c.json")
    assert query.holds()
    query.heads = query.again()
    assert query.holds(), "killed and started again"
    shutil.rmtree(query.folder)
    volume.rename(query.folder)
    assert query.heads.list_heads(lines(query.read)) == [
        {File(os.fspath(query.folder / "b.json"), (query.folder / "b.json").stat().st_mtime_ns // 1_000_000)}
    ]
    query.take("d.json")
    assert not query.holds()
    query.replace()
    shutil.copy2(query.folder.with_name("volume") / "d.json", query.folder)
    assert not query.holds(), "a copy"


def test_head_of_w_what_was_read_of_a_mount_point_is_no_witness_later(query: Query) -> None:
    """The witness stays in the mount point while newer batches read the volume, which is then missing again."""
    query.take("a.json")
    assert not query.holds()
    volume = query.replace()
    query.take("c.json")
    mount_point = query.folder.rename(query.folder.with_name("mount-point"))
    volume.rename(query.folder)
    query.take("d.json")
    assert not query.holds()
    query.folder.rename(volume)
    mount_point.rename(query.folder)
    assert query.holds()


def numbered(monkeypatch: pytest.MonkeyPatch, birth: Callable[[str], int | None]) -> None:
    monkeypatch.setattr(files, "identity_of", lambda path: roots.Identity(2, birth(path)))


def test_head_of_w_another_volume_with_the_same_inode_is_noticed(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    numbered(monkeypatch, lambda path: Path(path).stat().st_ino)
    query.take("a.json")
    assert not query.holds()
    query.put("b.json")
    assert not query.holds(), "it is still the same one"
    query.replace()
    assert query.holds()
    replaced = query.checkpoint / "lowwater/replaced"
    assert f"touch {replaced}" in query.heads.lost
    replaced.touch()
    assert not query.holds()
    assert not replaced.exists(), "it is of this one alone"
    query.replace_again()
    assert query.holds()


def witnesses_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file that was read vouch wherever it stands."""
    monkeypatch.setattr(roots, "_is_same", lambda root, identity, head: root.identity == identity or bool(head.settled))


def no_births(monkeypatch: pytest.MonkeyPatch) -> None:
    """Know directories by their inodes alone."""
    numbered(monkeypatch, lambda _: None)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when too much vouches for a directory")
@pytest.mark.parametrize("trap", [witnesses_anywhere, no_births])
def test_head_of_w_breaks_when_too_much_vouches_for_a_directory(
    query: Query, monkeypatch: pytest.MonkeyPatch, trap: Callable[[pytest.MonkeyPatch], None]
) -> None:
    trap(monkeypatch)
    test_head_of_w_what_is_read_of_a_mount_point_ends_no_hold(query)


def test_head_of_w_a_checkpoint_that_is_away_with_its_source_holds(query: Query, tmp_path: Path) -> None:
    """Both are on the volume that is not mounted. That nothing is known of the directory then is no reason to take it as it is."""
    query.take("a.json")
    assert not query.holds()
    volume = query.replace()
    query.checkpoint.rename(tmp_path / "ck-aside")
    query.checkpoint.mkdir()
    for _ in range(2):
        assert query.holds()
        assert str(query.record) in query.heads.lost
    assert not query.record.exists()
    query.checkpoint.rmdir()
    (tmp_path / "ck-aside").rename(query.checkpoint)
    query.folder.rmdir()
    volume.rename(query.folder)
    assert not query.holds()
