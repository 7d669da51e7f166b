"""Ids that pass once: against an oracle that has one row at a time, and what breaks when one number does not decide both ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater.watermark import MAX, MIN
from lowwater_pipeline.dedup.bloom import bloom, hashed, is_bloom, perhaps_in
from lowwater_pipeline.dedup.seen import Seen
from lowwater_pipeline.dedup.sieve import ROUTE, Counts, Sieve, Window, WindowFull
from tests.kit.times import SECOND

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = tuple[str, int]
"""An id and its event time, in microseconds."""


def table(rows: Sequence[Row]) -> pa.Table:
    times = [EPOCH + timedelta(microseconds=micros) for _, micros in rows]
    columns = {"id": [name for name, _ in rows], "t": times, "n": [*range(len(rows))]}
    return pa.table(
        columns, schema=pa.schema([("id", pa.string()), ("t", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    )


def sieve(window: str = "watermark", slack: int = 0, most: int = 0, *, forget: bool = False) -> Sieve:
    return Sieve("id", "t", Window(window), timedelta(seconds=slack), most, forget)


@dataclass
class Oracle:
    """The right outcome for each row, one at a time: a dict, and no slices, filters or pieces."""

    sieve: Sieve
    entries: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Id: event time, and number of its arrival."""
    arrivals: int = 0

    def decide(self, rows: Sequence[Row], low: int) -> list[str]:
        """Raises WindowFull."""
        by_size = self.sieve.window == "size"
        floor = MIN if by_size else self.sieve.floor(low)
        routes = []
        # Within a batch the oldest copy of an id is the one that passes.
        first = {name: min(t for other, t in rows if other == name and t >= floor) for name, t in rows if t >= floor}
        admitted: dict[str, int] = {}
        remembered = {name for name, (t, _) in self.entries.items() if t >= floor}
        for name, t in rows:
            if t < floor:
                routes.append("undecidable")
            elif name in remembered or name in admitted or t != first[name]:
                routes.append("")
            else:
                admitted[name] = t
                routes.append("main" if t >= low else "late")
        memory = {name: self.entries[name] for name in remembered}
        for t, name in sorted((t, name) for name, t in admitted.items()):
            memory[name] = (t, self.arrivals + len(memory) - len(remembered))
        if self.sieve.most and len(memory) > self.sieve.most and not by_size and not self.sieve.forget:
            raise WindowFull
        self.arrivals += len(admitted)
        newest = sorted(memory, key=lambda name: memory[name][1])[-self.sieve.most :]
        least = low if by_size else floor
        self.early = len([name for name in memory.keys() - set(newest) if memory[name][0] >= least])
        self.entries = {name: memory[name] for name in newest}
        return routes


def remembered(memory: Seen, floor: int) -> dict[str, tuple[int, int]]:
    entries: dict[str, tuple[int, int]] = {}
    for piece in memory.pieces:
        for row in piece.read().filter(pa.array(piece.live(floor, memory.since))).to_pylist():
            assert row["id"] not in entries
            entries[row["id"]] = row["micros"], row["arrival"]
    return entries


def check(memory: Seen, floor: int) -> None:
    for piece in memory.pieces:
        out = piece.read()
        assert out["hash"].to_pylist() == sorted(out["hash"].to_pylist()) == sorted(hashed(out["id"].chunk(0)).tolist())
        assert (min(out["micros"].to_pylist()), max(out["micros"].to_pylist())) == piece.facts[:2]
        assert (min(out["arrival"].to_pylist()), max(out["arrival"].to_pylist())) == piece.facts[2:4]
        assert piece.rows == out.num_rows
        assert not piece.gone(floor, memory.since)
        before = [other for other in memory.pieces if other.facts.slice == piece.facts.slice]
        for larger, smaller in pairwise(before):
            assert larger.rows >= 4 * smaller.rows, "a slice has few pieces"


TIMES = {f"id{number}": number * 37 % 101 * SECOND for number in range(40)}
"""Every copy has the same event time."""

steps = st.lists(
    st.tuples(st.lists(st.sampled_from(sorted(TIMES)), max_size=20), st.integers(0, 40)), min_size=1, max_size=8
)
sieves = st.one_of(
    st.builds(partial(sieve, "watermark"), st.integers(0, 30)),
    st.builds(partial(sieve, "size", 0), st.integers(1, 12)),
    st.builds(partial(sieve, "both", forget=True), st.integers(0, 30), st.integers(1, 12)),
    st.builds(partial(sieve, "both"), st.integers(0, 30), st.integers(10, 20)),
)


@given(steps, sieves, st.sampled_from([None, MAX]), st.randoms(use_true_random=False))
def test_every_row_goes_where_the_oracle_says(
    steps: list[tuple[list[str], int]], sieve: Sieve, end: int | None, chance: Random
) -> None:
    oracle = Oracle(sieve)
    memory, low = Seen(), MIN
    for number, (names, step) in enumerate([*steps, (["id0"], 0)]):
        rows = [(name, TIMES[name]) for name in names]
        low = end if end is not None and number == len(steps) else max(low, 0) + step * SECOND if number else low
        try:
            expected = oracle.decide(rows, low)
        except WindowFull:
            with pytest.raises(WindowFull):
                sieve.sift(memory, table(rows), low)
            return
        before = memory
        memory, out, counts = sieve.sift(before, table(rows), low)
        floor = MIN if sieve.window == "size" else memory.floor
        routes = Counter(zip(out["id"].to_pylist(), out[ROUTE].to_pylist(), strict=True))
        assert routes == Counter((name, route) for (name, _), route in zip(rows, expected, strict=True) if route)
        check(memory, floor)
        assert remembered(memory, floor) == oracle.entries
        main, late, undecidable, copies = (expected.count(route) for route in ("main", "late", "undecidable", ""))
        right = Counts(main, late, undecidable, copies, oracle.early, len(oracle.entries), memory.size, *counts[7:])
        assert counts == right
        assert counts.looks >= counts.passed >= counts.found
        chance.shuffle(rows)
        again, _, counted = sieve.sift(before, table(rows), low)
        assert (again.facts, counted) == (memory.facts, counts)
        assert [piece.read() for piece in again.pieces] == [piece.read() for piece in memory.pieces]


def test_what_was_forgotten_is_not_admitted_again_with_more_slack_or_by_a_lower_watermark() -> None:
    row = table([("a", 10 * SECOND)])
    memory, first, _ = sieve().sift(Seen(), row, 10 * SECOND)
    assert first[ROUTE].to_pylist() == ["main"]
    memory, _, counts = sieve().sift(memory, table([]), 20 * SECOND)
    assert counts.remembered == 0
    for slack, low in ((15, 20 * SECOND), (0, MIN)):
        _, again, _ = sieve(slack=slack).sift(memory, row, low)
        assert again[ROUTE].to_pylist() == ["undecidable"]
    _, new, _ = sieve(slack=15).sift(memory, table([("b", 20 * SECOND - 1), ("c", 20 * SECOND)]), MIN)
    assert new[ROUTE].to_pylist() == ["undecidable", "main"]
    _, twice, _ = sieve().sift(replace(memory, floor=MIN, highest=MIN), row, MIN)
    assert twice[ROUTE].to_pylist() == ["main"]


@pytest.mark.parametrize("slack", [0, 3])
def test_a_copy_that_was_stamped_anew_within_the_slack_is_known(slack: int) -> None:
    once = sieve(slack=slack)
    memory, _, _ = once.sift(Seen(), table([("a", 10 * SECOND)]), 0)
    for apart in (-3, -1, 1, 3):
        _, _, counts = once.sift(memory, table([("a", (10 + apart) * SECOND)]), 0)
        assert counts.duplicates == (slack > 0)
    _, _, counts = once.sift(memory, table([("a", 14 * SECOND)]), 0)
    assert counts.main == 1, "further than the slack"


def test_a_filter_is_the_one_of_what_it_speaks_of() -> None:
    first, second = ([(f"{batch}-{number}", SECOND + number) for number in range(3)] for batch in "ab")
    memory, _, _ = sieve().sift(Seen(), table(first), 0)
    [old] = memory.pieces
    memory, _, _ = sieve().sift(memory, table(second), 0)
    [piece] = memory.pieces
    assert piece.rows == 6
    rows = table([*first, *second])

    def copies(data: Any) -> tuple[int, int]:
        _, _, counts = sieve().sift(replace(memory, pieces=[replace(piece, filter=lambda: data)]), rows, 0)
        return counts.duplicates, counts.looks

    assert copies(piece.filter()) == (6, 6)
    for useless in (b"", piece.filter()[:-1], old.filter()):
        assert copies(useless) == (6, 0), "all of them may be there, and are looked for"
    assert copies(bloom(np.tile(np.asarray(old.read()["hash"]), 2))) == (3, 6), "so a filter that is older doubles"


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            {"id": pa.array([1.5]), "t": pa.array([EPOCH])},
            "ids are text, bytes or integers, and the column id is of double",
        ),
        (
            {"id": pa.array(["a"]), "t": pa.array([EPOCH.replace(tzinfo=None)])},
            "timestamps with a zone, and the column t is of timestamp",
        ),
        ({"id": pa.array(["a"]), "t": pa.array([5])}, "timestamps with a zone, and the column t is of int64"),
        (
            {"id": pa.array([5]), "t": pa.array([EPOCH])},
            "of int64 now, and the ids that are remembered are of large_string",
        ),
    ],
)
def test_a_column_of_another_type_is_refused(columns: dict[str, pa.Array], text: str) -> None:
    memory, _, _ = Sieve("id", "t").sift(Seen(), table([("a", 1)]), 0)
    with pytest.raises(ValueError, match=text):
        Sieve("id", "t").sift(memory, pa.table(columns), 0)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([(None, 1), ("a", 1)], r"1 of 2 rows have no id \(column id\)"),
        ([("a", None)], r"1 of 1 rows have no event time \(column t\)"),
    ],
)
def test_a_row_without_id_or_time_is_refused(rows: list[Any], text: str) -> None:
    times = [None if micros is None else EPOCH for _, micros in rows]
    bad = pa.table(
        {"id": pa.array([name for name, _ in rows], pa.string()), "t": pa.array(times, pa.timestamp("us", "UTC"))}
    )
    with pytest.raises(ValueError, match=text):
        Sieve("id", "t").sift(Seen(), bad, 0)
    with pytest.raises(ValueError, match="have no column name, which is to be their id; they have id, t"):
        Sieve("name", "t").sift(Seen(), bad, 0)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"slack": timedelta(seconds=-1)}, "cannot be negative"),
        ({"most": 5}, 'pass window="both", or window="size"'),
        ({"forget": True}, 'pass window="both", or window="size"'),
        ({"window": Window.BOTH}, 'window="both" needs most'),
        ({"window": Window.SIZE, "most": -1}, 'window="size" needs most, .* at least 1: -1'),
        ({"window": Window.SIZE, "most": 5, "slack": timedelta(1)}, "leave slack and forget out"),
        ({"window": Window.SIZE, "most": 5, "forget": True}, "leave slack and forget out"),
    ],
)
def test_what_means_nothing_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Sieve("id", "t", **wrong)
    with pytest.raises(ValueError, match="window is one of watermark, size, both: 'time'"):
        Window.of("time")


def test_what_is_forgotten_decides_nothing_while_it_is_still_there() -> None:
    rows = table([(f"id{number}", number) for number in range(8)])
    by_size = sieve("size", most=5)
    memory, _, _ = sieve().sift(Seen(), rows, MIN)
    memory, _, _ = by_size.sift(memory, table([]), MIN)
    assert ([piece.rows for piece in memory.pieces], memory.since) == ([8], 3)
    _, out, counts = by_size.sift(memory, rows, MIN)
    assert out["id"].to_pylist() == ["id0", "id1", "id2"]
    assert counts.remembered == 5
    _, out, _ = by_size.sift(replace(memory, since=0), rows, MIN)
    assert out.num_rows == 0, "it would be called a copy"
    memory, _, counts = sieve().sift(sieve().sift(Seen(), rows, MIN)[0], table([]), 4)
    assert ([piece.rows for piece in memory.pieces], counts.remembered) == ([8], 4)
    anew = table([("id0", 5), ("id5", 5)])
    assert sieve().sift(memory, anew, 4)[1]["id"].to_pylist() == ["id0"]
    assert sieve().sift(replace(memory, floor=MIN), anew, MIN)[1].num_rows == 0


def test_hashes_and_filters_are_those_of_every_release() -> None:
    ids = ["", "a", "12345678", "123456789", "0b5c8a52-8f6a-4bb6-9a52-6c9e0f6d1c11", "ä"]
    text = hashed(pa.array(ids, pa.large_string()))
    assert [hex(number) for number in text.tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x5e025f9ade9eaf3e",
        "0x83dbec76b33f9ca3",
        "0x7cf46f00f45fa22a",
        "0x6c6e8c73a546e0c7",
        "0xe28fe9e7e601eab3",
    ]
    assert hashed(pa.array([name.encode() for name in ids], pa.large_binary())).tolist() == text.tolist()
    assert [hex(number) for number in hashed(pa.array([0, 1, -1, 2**63 - 1])).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x910a2dec89025cc1",
        "0xe4d971771b652c20",
        "0x2a67d7552e039ea7",
    ]
    assert bloom(text).hex() == "832f4bc70edc2c70"


@given(st.sets(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(0, 2**63 - 1))
def test_a_filter_never_excludes_what_is_there(ids: set[int], other: int) -> None:
    hashes = hashed(pa.array(sorted(ids), pa.int64()))
    data = bloom(hashes)
    assert is_bloom(data, len(ids))
    assert perhaps_in(data, hashes).all()
    assert not is_bloom(data[:-1], len(ids))
    assert perhaps_in(data, hashed(pa.array([other, *ids], pa.int64())))[1:].all()
