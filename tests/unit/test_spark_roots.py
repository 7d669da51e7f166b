"""By what a source's directory is known again, and what is written down of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lowwater_spark.sources import files, roots
from lowwater_spark.sources.files import FileSource, OpenFiles
from lowwater_spark.sources.head import Heads
from lowwater_spark.sources.source_log import File
from tests.spark.support import Log, begun, lines


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
        """A new run of the checkpoint."""
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
        """A batch reads files, and is committed."""
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
    """It stays in the mount point while newer batches read the volume, which is then missing again."""
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
    """Number all directories alike, as ext4 does with the roots of its volumes."""
    monkeypatch.setattr(files, "identity_of", lambda path: roots.Identity(2, birth(path)))


def test_head_of_w_another_volume_whose_root_has_the_same_inode_is_noticed(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(
        roots, "_is_same", lambda known, identity, head: known.identity == identity or bool(head.settled)
    )


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
