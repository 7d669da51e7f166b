"""Keys of a range on disk, as a stage of Spark keeps them, without Spark: against a dict, with attempts that die, and what each batch reads and writes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater_pipeline.computation.keys import Changed, Form, Keys, Piece, Refs
from lowwater_pipeline.computation.stage import pieces_of, written
from lowwater_pipeline.computation.turn import Kept
from lowwater_spark.track.segments import Segments, write_segments
from tests.kit.times import MAX

FORM = Form(pa.large_string())

Touch = dict[str, Kept]
"""The state of each key after a batch."""


def place(key: str) -> int:
    """Place a key. There are so few places that two of the first keys often share one."""
    number = int(key)
    return number % 5 - 2 if number < 40 else number


@dataclass
class Disk:
    folder: Path
    keys: type[Keys] = Keys
    batch: int = -1
    last: Segments = field(init=False)

    def __post_init__(self) -> None:
        self.last = Segments(str(self.folder))

    def read(self) -> Keys:
        return self.keys(FORM, pieces_of(self.last))

    def run(self, touched: Touch, low: int, now: int, *, killed: bool = False) -> None:
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


def entries(keys: Keys, names: Sequence[str]) -> dict[str, Kept]:
    refs = keys.find(np.array([place(name) for name in names], np.int64), pa.array(names, pa.large_string()))
    present = np.flatnonzero(refs.pieces >= 0)
    table = keys.rows(Refs(refs.pieces[present], refs.rows[present]))
    if table is None:
        return {}
    states = dict(zip([names[i] for i in present.tolist()], keys.form.entries(table), strict=True))
    return {name: state for name, state in states.items() if state}


def check(keys: Keys) -> None:
    newer: set[str] = set()
    live = rows = 0
    for number, piece in reversed([*enumerate(keys.pieces)]):
        table = piece.read()
        assert table["place"].to_pylist() == sorted(table["place"].to_pylist())
        assert table.num_rows == piece.rows
        counts = [row for row in table.to_pylist() if row["key"] not in newer]
        for name in ("due", "wall", "hold"):
            least = min((MAX if (time := row.get(name)) is None else time for row in counts), default=MAX)
            assert getattr(piece.facts, name) == least, (number, name)
        assert piece.facts.live == len([row for row in counts if not row["gone"]])
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
    """Let each key that is due have its turn: its timers up to then are gone."""
    return {
        name: Kept(
            entry.state,
            {timer: hold for timer, hold in entry.timers.items() if timer[0] > low},
            {timer: hold for timer, hold in entry.wall_timers.items() if timer[0] > now},
        )
        for name, entry in {**dict.fromkeys(due, Kept(b"fired")), **touched}.items()
    }


def follow(disk: Disk, steps: list[tuple[Touch, int, int]], chance: Random) -> None:
    oracle: dict[str, Kept] = {}
    low = now = 0
    for touched, step, tick in steps:
        low, now = low + step, now + tick
        keys = disk.read()
        due = sorted(name for name, entry in oracle.items() if entry.due <= low or entry.wall <= now)
        assert names_of(keys, keys.due(low, now)) == due
        touched = then(touched, due, low, now)
        disk.run(touched, low, now, killed=chance.random() < 0.3)
        oracle = {name: entry for name, entry in {**oracle, **touched}.items() if entry}
        keys = disk.read()
        check(keys)
        assert entries(keys, [str(number) for number in range(31)]) == oracle
        assert keys.count == len(oracle)
        assert keys.least("due") == min((entry.due for entry in oracle.values() if entry.due != MAX), default=None)
        assert keys.least("wall") == min((entry.wall for entry in oracle.values() if entry.wall != MAX), default=None)
        holds = [entry.hold(1) for entry in oracle.values()]
        assert keys.least("hold") == min((hold for hold in holds if hold != MAX), default=None)
    cut_anew(disk.read(), oracle, chance)


def cut_anew(keys: Keys, oracle: Touch, chance: Random) -> None:
    """Key ranges that begin at the place of a key, or behind it, have each key once; so has what they become together."""
    names = [str(number) for number in range(31)]
    spans = [*pairwise([-(2**63), *sorted(chance.sample(range(-2, 4), 3)), 2**63])]
    parts = [keys.within(*span) for span in spans]
    for part, (start, end) in zip(parts, spans, strict=True):
        check(part)
        assert entries(part, names) == {name: entry for name, entry in oracle.items() if start <= place(name) < end}
    assert entries(Keys.union(parts), names) == oracle
    row = FORM.table(np.array([99]), pa.array(["99"], pa.large_string()), [Kept(b"another")])
    beside = replace(keys, pieces=(Piece.of(row),))
    assert entries(Keys.union([beside, keys]), [*names, "99"]) == {**oracle, "99": Kept(b"another")}


@settings(max_examples=60)
@given(steps, st.randoms(use_true_random=False))
def test_keys_are_found_and_due_as_in_a_dict_whatever_dies(steps: list[tuple[Touch, int, int]], chance: Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        follow(Disk(Path(folder)), steps, chance)


def test_a_batch_writes_what_has_changed_and_links_the_rest(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.run({str(number): Kept(b"x", {(1000 + number, "a"): number}) for number in range(10_000)}, 0, 0)
    [large] = disk.files()
    inode = large.stat().st_ino
    assert large.stat().st_size < 100 * 10_000
    for batch in range(1, 4):
        disk.run({str(number): Kept(b"y", {(5000, "a"): 5000}) for number in range(batch * 10, batch * 10 + 10)}, 0, 0)
        assert [segment.rows for segment in disk.last.segments] == [10_000, *[[10], [20], [20, 10]][batch - 1]]
        assert Path(disk.last.folder, disk.last.segments[0].name).stat().st_ino == inode
    keys = disk.read()
    assert (keys.count, keys.least("hold"), keys.least("due")) == (10_000, 0, 1000)
    disk.run({str(number): Kept() for number in range(6000)}, 0, 0)
    assert [segment.rows for segment in disk.last.segments] == [4000], "most are gone, so they go from the disk as well"
    assert disk.read().least("hold") == 6000
    disk.run({str(number): Kept() for number in range(6000, 10_000)}, 0, 0)
    assert (disk.last.segments, disk.files()) == ((), [])
