"""The ids on disk, as a stage of Spark keeps them, without Spark: versions, attempts that die, filters that are lost."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import lowwater
from lowwater_pipeline.dedup.bloom import is_bloom
from lowwater_pipeline.dedup.sieve import ROUTE, Counts, Sieve, WindowFull
from lowwater_pipeline.dedup.stage import IdUpdate
from lowwater_spark.track.segments import Segments, write_segments
from tests.kit.times import MAX, SECOND
from tests.pipeline.test_sieve import TIMES, Oracle, Row, sieve, sieves, steps, table


class Disk:
    """A key range's versions, each in a directory. Only the last two stay."""

    def __init__(self, folder: Path, sieve: Sieve) -> None:
        self.folder = folder
        self.sieve = sieve
        self.batch = -1
        self.last = Segments(str(folder))

    def run(self, rows: Sequence[Row], low: int, *, killed: bool = False) -> tuple[Counter[tuple[str, str]], Counts]:
        """Make the next version, once more after an attempt that was killed. Returns the rows by route, and the counts."""
        self.batch += 1
        (self.folder / str(self.batch)).mkdir()
        if killed:
            self._attempt(rows, low, 0)
        self.last, emitted = self._attempt(rows, low, 1)
        shutil.rmtree(self.folder / str(self.batch - 2), ignore_errors=True)
        counts = Counts(*self.last.facts[-len(Counts._fields) :])
        return Counter((row["id"], row[ROUTE]) for row in emitted.to_pylist()), counts

    def _attempt(self, rows: Sequence[Row], low: int, number: int) -> tuple[Segments, pa.Table]:
        folder = str(self.folder / str(self.batch))
        update = IdUpdate(self.sieve, low)
        after, emitted, _, _ = update.update_segments(self.last, table(rows), lowwater.Watermark(MAX))
        written = write_segments(after, self.last, folder, f"00000-{number}")
        return Segments(folder, written, tuple(after.facts)), emitted

    def files(self) -> list[Path]:
        return sorted(Path(self.last.folder).glob("*.segments"))


@settings(max_examples=60)
@given(steps, sieves, st.randoms(use_true_random=False))
def test_ids_are_found_again_whatever_dies(steps: list[tuple[list[str], int]], sieve: Sieve, chance: Random) -> None:
    """Every version is read from its files. Attempts die behind their last file, and some segments have no filters."""
    with tempfile.TemporaryDirectory() as folder:
        disk, oracle = Disk(Path(folder), sieve), Oracle(sieve)
        low = 0
        for names, step in steps:
            rows = [(name, TIMES[name]) for name in names]
            low += step * SECOND
            try:
                expected = oracle.decide(rows, low)
            except WindowFull:
                return
            routed, counts = disk.run(rows, low, killed=chance.random() < 0.3)
            assert routed == Counter((name, said) for (name, _), said in zip(rows, expected, strict=True) if said)
            assert counts.remembered == len(oracle.seen)
            disk.sieve = replace(sieve, filters=chance.random() < 0.7)


def test_a_batch_writes_what_is_new_and_links_the_rest(tmp_path: Path) -> None:
    disk = Disk(tmp_path, sieve())
    _, counts = disk.run([(f"old{number}", number) for number in range(10_000)], 0)
    [large] = disk.files()
    inode, size = large.stat().st_ino, large.stat().st_size
    assert abs(counts.state_bytes - size) < size / 100
    for batch in range(3):
        disk.run([(f"new{batch}-{number}", number) for number in range(10)], 0)
        small = [[10], [20], [30]][batch]
        assert [each.rows for each in disk.last.segments] == [10_000, *small]
        assert Path(disk.last.folder, disk.last.segments[0].name).stat().st_ino == inode
        assert len(disk.files()) == 2, "of one batch in one file"
    routed, counts = disk.run([("old1", 1), ("new0-1", 1), ("new2-1", 1), ("other", 1)], 0)
    assert (routed, counts.duplicates) == (Counter({("other", "main"): 1}), 3)
    _, counts = disk.run([], 10_001)
    assert (disk.last.segments, counts.remembered, counts.state_bytes) == ((), 0, 0), "forgotten as a whole"
    assert disk.last.facts[:2] == (10_001, 10_001)
    routed, _ = disk.run([("old1", 1)], 5)
    assert routed == Counter({("old1", "undecidable"): 1}), "for what was forgotten stays"


def test_files_are_at_most_twice_what_is_named_in_them(tmp_path: Path) -> None:
    """Ids of many slices come in one batch, long ones first, and most slices are forgotten or merged later: what is left of a file is written anew, with its filters."""
    disk = Disk(tmp_path, sieve())
    ids = [f"old{number}".ljust(2000 if number < 50 else 1) for number in range(200)]
    disk.run([(name, (number + 1) * 60 * SECOND) for number, name in enumerate(ids)], 0)
    assert len(disk.files()) == 1
    assert len(disk.last.segments) > 10
    copied = 0
    for minute in range(10, 200, 10):
        before = {each.facts for each in disk.last.segments}
        disk.run([(f"new{minute}", 300 * 60 * SECOND)], minute * 60 * SECOND)
        copied += sum("-new" in each.name and each.facts in before for each in disk.last.segments)
        named = Counter[str]()
        for each in disk.last.segments:
            named[each.name] += each.size
            assert disk.last.read(each).num_rows == each.rows
            assert is_bloom(disk.last.filter(each), each.rows)
        assert all(2 * named[each.name] >= each.of for each in disk.last.segments)
        assert len(named) == len(disk.files())
        on_disk = sum(file.stat().st_size for file in disk.files())
        assert on_disk < 2 * sum(named.values()) + 2_000 * len(disk.last.segments), "twice, and what Arrow adds to each"
        routed, counts = disk.run([("old198", 199 * 60 * SECOND), ("old199", 200 * 60 * SECOND)], minute * 60 * SECOND)
        assert (routed, counts.duplicates) == (Counter(), 2)
    assert copied


def test_without_filters_there_are_none(tmp_path: Path) -> None:
    disk = Disk(tmp_path, Sieve("id", "t", filters=False))
    disk.run([("a", 1)], 0)
    _, counts = disk.run([("a", 1), ("b", 1)], 0)
    assert (counts.duplicates, counts.looks, counts.passed, counts.found) == (1, 0, 0, 0)
    assert [disk.last.filter(each) for each in disk.last.segments] == [b""]
