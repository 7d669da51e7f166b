"""Keys of a range on disk, as a stage of Spark keeps them, without Spark: against a dict, with attempts that die, and what each batch reads and writes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater_pipeline.computation.keys import Changed, Form, Keys, Piece, PieceFacts, Refs, sorted_keys
from lowwater_pipeline.computation.stage import pieces_of, written
from lowwater_pipeline.computation.turn import Kept
from lowwater_spark.track.segments import Segments, write_segments
from tests.kit.times import MAX

FORM = Form(pa.large_string())

Touch = dict[str, Kept]
"""What becomes of keys in a batch."""


def place(key: str) -> int:
    """So few places that two of the first keys often have one."""
    number = int(key)
    return number % 5 - 2 if number < 40 else number


@dataclass
class Disk:
    """The keys of a range in versions, each in a directory. Only the last two stay."""

    folder: Path
    keys: type[Keys] = Keys
    batch: int = -1
    last: Segments = field(init=False)

    def __post_init__(self) -> None:
        self.last = Segments(str(self.folder))

    def read(self) -> Keys:
        return self.keys(FORM, pieces_of(self.last))

    def run(self, touched: Touch, low: int, now: int, *, killed: bool = False) -> None:
        """Make the next version, once more after an attempt that was killed."""
        self.batch += 1
        (self.folder / str(self.batch)).mkdir()
        if killed:
            self._attempt(touched, low, now, 0)
        self.last = self._attempt(touched, low, now, 1)
        shutil.rmtree(self.folder / str(self.batch - 2), ignore_errors=True)

    def _attempt(self, touched: Touch, low: int, now: int, number: int) -> Segments:
        keys = self.read()
        names = pa.array(list(touched), pa.large_string())
        places = np.array([place(name) for name in touched], np.int64)
        refs = keys.find(places, names)
        after = keys.changed(Changed(FORM.table(places, names, list(touched.values())), refs), low, now)
        folder = str(self.folder / str(self.batch))
        return Segments(folder, write_segments(written(after), self.last, folder, f"00000-{number}"))

    def files(self) -> list[Path]:
        return sorted(Path(self.last.folder).glob("*.segments"))


def names_of(keys: Keys, refs: Refs) -> list[str]:
    table = keys.rows(refs)
    return [] if table is None else sorted(table["key"].to_pylist())


def found(keys: Keys, names: Sequence[str]) -> dict[str, Kept]:
    refs = keys.find(np.array([place(name) for name in names], np.int64), pa.array(names, pa.large_string()))
    known = np.flatnonzero(refs.pieces >= 0)
    table = keys.rows(Refs(refs.pieces[known], refs.rows[known]))
    if table is None:
        return {}
    held = dict(zip([names[i] for i in known.tolist()], keys.form.kept(table), strict=True))
    return {name: kept for name, kept in held.items() if kept}


def check(keys: Keys) -> None:
    """Every invariant of the pieces."""
    newer: set[str] = set()
    live = rows = 0
    for number, piece in reversed([*enumerate(keys.pieces)]):
        table = piece.read()
        assert table["place"].to_pylist() == sorted(table["place"].to_pylist())
        assert table.num_rows == piece.rows
        counts = [each for each in table.to_pylist() if each["key"] not in newer]
        for name in ("due", "wall", "hold"):
            least = min((MAX if (time := each.get(name)) is None else time for each in counts), default=MAX)
            assert getattr(piece.facts, name) == least, (number, name)
        assert piece.facts.live == len([each for each in counts if not each["gone"]])
        newer.update(table["key"].to_pylist())
        live, rows = live + piece.facts.live, rows + piece.rows
        if number + 1 < len(keys.pieces):
            assert piece.rows >= 2 * keys.pieces[number + 1].rows
    if keys.pieces:
        assert not keys.pieces[0].column("gone").any(), "there is nothing that they hide"


states = st.one_of(st.none(), st.binary(max_size=3))
timers = st.dictionaries(st.tuples(st.integers(0, 60), st.sampled_from(["a", "ü"])), st.integers(0, 60), max_size=2)
kepts = st.builds(Kept, states, timers, timers)
steps = st.lists(
    st.tuples(st.dictionaries(st.integers(0, 30).map(str), kepts, max_size=12), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=10,
)


def then(touched: Touch, due: Sequence[str], low: int, now: int) -> Touch:
    """What is due has its turn: what it has by then is later."""
    return {
        name: Kept(
            kept.state,
            {each: hold for each, hold in kept.timers.items() if each[0] > low},
            {each: hold for each, hold in kept.wall_timers.items() if each[0] > now},
        )
        for name, kept in {**dict.fromkeys(due, Kept(b"fired")), **touched}.items()
    }


def follow(disk: Disk, steps: list[tuple[Touch, int, int]], chance: Random) -> None:
    oracle: dict[str, Kept] = {}
    low = now = 0
    for touched, step, tick in steps:
        low, now = low + step, now + tick
        keys = disk.read()
        due = sorted(name for name, kept in oracle.items() if kept.due <= low or kept.wall <= now)
        assert names_of(keys, keys.due(low, now)) == due
        touched = then(touched, due, low, now)
        disk.run(touched, low, now, killed=chance.random() < 0.3)
        oracle = {name: kept for name, kept in {**oracle, **touched}.items() if kept}
        keys = disk.read()
        check(keys)
        assert found(keys, [str(number) for number in range(31)]) == oracle
        assert keys.count == len(oracle)
        assert keys.least("due") == min((kept.due for kept in oracle.values() if kept.due != MAX), default=None)
        assert keys.least("wall") == min((kept.wall for kept in oracle.values() if kept.wall != MAX), default=None)
        holds = [kept.hold(1) for kept in oracle.values()]
        assert keys.least("hold") == min((hold for hold in holds if hold != MAX), default=None)


@settings(max_examples=100)
@given(steps, st.randoms(use_true_random=False))
def test_keys_are_found_and_due_as_in_a_dict_whatever_dies(steps: list[tuple[Touch, int, int]], chance: Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        follow(Disk(Path(folder)), steps, chance)


class ShadowedCount(Keys):
    """Takes every row for the newest of its key."""

    __slots__ = ()

    def _live(self, number: int, rows: np.typing.NDArray[np.int64]) -> np.typing.NDArray[np.bool_]:
        return np.ones(len(rows), np.bool_)


class NothingHides(Keys):
    """Does not look at what a batch has hidden."""

    __slots__ = ()

    def _facts(self, number: int, hidden: object, live: int, low: int, now: int) -> PieceFacts:
        return self.pieces[number].facts


MANY: Touch = {str(number): Kept(b"x", {(50, "a"): 40}) for number in range(1, 31)} | {"0": Kept(b"x", {(60, "a"): 3})}


@pytest.mark.parametrize(
    ("twin", "steps"),
    [
        # Its timer is set later than that of the old row, which stays.
        (ShadowedCount, [(MANY, 0, 0), ({"0": Kept(b"x", {(70, "b"): 61})}, 0, 0), ({}, 65, 0)]),
        # It holds nothing any more.
        (NothingHides, [(MANY, 0, 0), ({"0": Kept(b"x")}, 0, 0)]),
    ],
)
def test_without_the_rule_a_row_that_does_not_count_is_due_or_holds(
    twin: type[Keys], steps: list[tuple[Touch, int, int]], tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    follow(Disk(tmp_path / "a"), steps, Random(0))
    (tmp_path / "b").mkdir()
    with pytest.raises(AssertionError):
        follow(Disk(tmp_path / "b", twin), steps, Random(0))


def test_a_batch_writes_what_has_changed_and_links_the_rest(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.run({str(number): Kept(b"x", {(1000 + number, "a"): number}) for number in range(10_000)}, 0, 0)
    [large] = disk.files()
    inode = large.stat().st_ino
    assert large.stat().st_size < 100 * 10_000
    for batch in range(1, 4):
        disk.run({str(number): Kept(b"y", {(5000, "a"): 5000}) for number in range(batch * 10, batch * 10 + 10)}, 0, 0)
        assert [each.rows for each in disk.last.segments] == [10_000, *[[10], [20], [20, 10]][batch - 1]]
        assert Path(disk.last.folder, disk.last.segments[0].name).stat().st_ino == inode
    keys = disk.read()
    assert (keys.count, keys.least("hold"), keys.least("due")) == (10_000, 0, 1000)
    disk.run({str(number): Kept() for number in range(6000)}, 0, 0)
    assert [each.rows for each in disk.last.segments] == [4000], "most are gone, so they go from the disk as well"
    assert disk.read().least("hold") == 6000
    disk.run({str(number): Kept() for number in range(6000, 10_000)}, 0, 0)
    assert (disk.last.segments, disk.files()) == ((), [])


def test_when_less_than_half_counts_all_is_merged(tmp_path: Path) -> None:
    """Keys change in small batches, whose pieces stay smaller than half of the old one: what does not count any more is in that."""
    disk = Disk(tmp_path)
    disk.run({str(number): Kept(b"x") for number in range(10_000)}, 0, 0)
    rows = []
    for batch in range(16):
        disk.run({str(number): Kept(b"y") for number in range(batch * 600, batch * 600 + 600)}, 0, 0)
        rows.append(sum(each.rows for each in disk.last.segments))
        assert rows[-1] <= 2 * disk.read().count + 600
    assert min(rows[8:]) == 10_000


def test_keys_of_one_place_are_sorted_by_name_and_stay_apart() -> None:
    places = np.array([1, 0, 1, 1, 0], np.int64)
    keys = pa.array(["b", "z", "a", "b", "z"], pa.large_string())
    times = np.array([2, 9, 1, 1, 3], np.int64)
    order, first = sorted_keys(places, keys, times)
    assert order.tolist() == [4, 1, 2, 3, 0]
    assert first.tolist() == [True, False, True, True, False]
    order, first = sorted_keys(places[:1], keys[:1], times[:1])
    assert (order.tolist(), first.tolist()) == ([0], [True])


@pytest.mark.parametrize(
    ("kind", "names"),
    [(pa.large_string(), ["a", "é", ""]), (pa.large_binary(), [b"a", b"\xff", b""]), (pa.int64(), [-1, 0, 2**62])],
    ids=str,
)
def test_keys_of_one_place_are_found_apart_in_all_pieces(kind: pa.DataType, names: list[object]) -> None:
    form, place = Form(kind), 7
    keys = Keys(form)
    expected: dict[object, bytes] = {}
    for number in range(5):
        at = [number % 3, (number + 1) % 3]
        column = pa.array([names[i] for i in at], kind)
        places = np.full(2, place, np.int64)
        states = [f"{number} {i}".encode() for i in at]
        changed = Changed(form.table(places, column, [Kept(each) for each in states]), keys.find(places, column))
        keys = keys.changed(changed, 0, 0)
        expected |= {names[i]: state for i, state in zip(at, states, strict=True)}
        asked = [each for each in names if each in expected]
        found = keys.rows(keys.find(np.full(len(asked), place, np.int64), pa.array(asked, kind)))
        assert found is not None
        assert dict(zip(found["key"].to_pylist(), found["state"].to_pylist(), strict=True)) == expected
        assert keys.count == len(expected)


def test_the_least_that_counts_is_found_behind_many_that_do_not(tmp_path: Path) -> None:
    """More than are looked at at once, all of them below what counts, and many of one value."""
    disk = Disk(tmp_path)
    disk.run({str(number): Kept(b"x", {(10**6, "a"): number // 3}) for number in range(40_000)}, 0, 0)
    disk.run({str(number): Kept(b"x") for number in range(1, 14_000)}, 0, 0)
    assert disk.read().least("hold") == 0
    disk.run({"0": Kept(b"x")}, 0, 0)
    assert len(disk.last.segments) == 3
    assert disk.read().least("hold") == 14_000 // 3
    check(disk.read())


def test_a_union_of_ranges_has_few_pieces_and_looks_only_where_a_key_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = []
    for number in range(16):
        keys = Keys(FORM)
        for batch, many in enumerate((40, 20, 10, 5, 2)):
            # All are due; those of later batches have a place of their own, so all pieces of a range overlap.
            names = [str(number * 1000 + 100 + batch + 7 * i) for i in range(many)]
            places = np.array([place(name) for name in names], np.int64)
            kept = [Kept(b"x", {(5, "a"): 5})] * many
            refs = keys.find(places, pa.array(names, pa.large_string()))
            keys = keys.changed(Changed(FORM.table(places, pa.array(names, pa.large_string()), kept), refs), 0, 0)
        ranges.append(keys)
    apart = [sorted(names_of(each, each.due(5, 0))) for each in ranges]
    assert max(len(each.pieces) for each in ranges) > 2
    union = Keys.union(ranges)
    assert len(union.pieces) == 16
    looked: list[int] = []
    find = Piece.find

    def counted(piece: Piece, places: np.typing.NDArray[np.int64], keys: pa.Array) -> np.typing.NDArray[np.int64]:
        looked.append(len(places))
        return find(piece, places, keys)

    monkeypatch.setattr(Piece, "find", counted)
    assert names_of(union, union.due(5, 0)) == sorted(name for names in apart for name in names)
    assert len(looked) <= 2 * len(union.pieces), "a piece is looked into for the keys that may be in it"
    assert sum(looked) <= 2 * union.count
    # What a range has changed after another one stays the newer.
    changed = FORM.table(np.array([8100]), pa.array(["8100"], pa.large_string()), [Kept(b"y")])
    refs = union.find(np.array([8100]), pa.array(["8100"], pa.large_string()))
    after = union.changed(Changed(changed, refs), 5, 0)
    assert found(after, ["8100"]) == {"8100": Kept(b"y")}
    assert after.count == union.count
