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
from lowwater_pipeline.dedup.bloom import bloom, hashed, perhaps_in
from lowwater_pipeline.dedup.seen import Seen
from lowwater_pipeline.dedup.sieve import ROUTE, Counts, Sieve, Window, WindowFull
from tests.kit.times import SECOND

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
IDS = [f"id{number}" for number in range(6)]
Row = tuple[str, int]
"""An id and its event time, in microseconds."""


def table(rows: Sequence[Row]) -> pa.Table:
    times = [EPOCH + timedelta(microseconds=micros) for _, micros in rows]
    columns = {"id": [name for name, _ in rows], "t": times, "n": [*range(len(rows))]}
    return pa.table(
        columns, schema=pa.schema([("id", pa.string()), ("t", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    )


def sieve(window: str = "watermark", slack: int = 0, most: int = 0, *, forget: bool = False) -> Sieve:
    """Of a slack in seconds."""
    return Sieve("id", "t", Window(window), timedelta(seconds=slack), most, forget)


@dataclass
class Oracle:
    """What has to become of each row, one at a time: a dict, and no slices, filters or pieces."""

    sieve: Sieve
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Id: event time, and number of its arrival."""
    arrivals: int = 0

    def decide(self, rows: Sequence[Row], low: int) -> list[str]:
        """Raises WindowFull."""
        by_size = self.sieve.window == "size"
        floor = MIN if by_size else self.sieve.floor(low)
        said = []
        # Within a batch the oldest copy of an id is the one that passes.
        first = {name: min(t for other, t in rows if other == name and t >= floor) for name, t in rows if t >= floor}
        taken: dict[str, int] = {}
        known = {name for name, (t, _) in self.seen.items() if t >= floor}
        for name, t in rows:
            if t < floor:
                said.append("undecidable")
            elif name in known or name in taken or t != first[name]:
                said.append("")
            else:
                taken[name] = t
                said.append("main" if t >= low else "late")
        seen = {name: self.seen[name] for name in known}
        for t, name in sorted((t, name) for name, t in taken.items()):
            seen[name] = (t, self.arrivals + len(seen) - len(known))
        if self.sieve.most and len(seen) > self.sieve.most and not by_size and not self.sieve.forget:
            raise WindowFull
        self.arrivals += len(taken)
        newest = sorted(seen, key=lambda name: seen[name][1])[-self.sieve.most :]
        least = low if by_size else floor
        self.early = len([name for name in seen.keys() - set(newest) if seen[name][0] >= least])
        self.seen = {name: seen[name] for name in newest}
        return said


def remembered(seen: Seen, floor: int) -> dict[str, tuple[int, int]]:
    """Return what the pieces have of what is remembered, each id once."""
    found: dict[str, tuple[int, int]] = {}
    for piece in seen.pieces:
        for row in piece.read().filter(pa.array(piece.live(floor, seen.since))).to_pylist():
            assert row["id"] not in found
            found[row["id"]] = row["micros"], row["arrival"]
    return found


def check(seen: Seen, floor: int) -> None:
    """Every invariant of the pieces."""
    for piece in seen.pieces:
        rows = piece.read()
        assert (
            rows["hash"].to_pylist() == sorted(rows["hash"].to_pylist()) == sorted(hashed(rows["id"].chunk(0)).tolist())
        )
        assert (min(rows["micros"].to_pylist()), max(rows["micros"].to_pylist())) == piece.facts[:2]
        assert (min(rows["arrival"].to_pylist()), max(rows["arrival"].to_pylist())) == piece.facts[2:4]
        assert piece.rows == rows.num_rows
        assert not piece.gone(floor, seen.since)
        before = [each for each in seen.pieces if each.facts.slice == piece.facts.slice]
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
    """W only grows, and may begin unknown and end finished. Every batch runs twice, with its rows in another order, and makes the same."""
    oracle = Oracle(sieve)
    seen, low = Seen(), MIN
    for number, (names, step) in enumerate([*steps, (["id0"], 0)]):
        rows = [(name, TIMES[name]) for name in names]
        low = end if end is not None and number == len(steps) else max(low, 0) + step * SECOND if number else low
        try:
            expected = oracle.decide(rows, low)
        except WindowFull:
            with pytest.raises(WindowFull):
                sieve.sift(seen, table(rows), low)
            return
        before = seen
        seen, out, counts = sieve.sift(before, table(rows), low)
        floor = MIN if sieve.window == "size" else seen.floor
        routes = Counter(zip(out["id"].to_pylist(), out[ROUTE].to_pylist(), strict=True))
        assert routes == Counter((name, said) for (name, _), said in zip(rows, expected, strict=True) if said)
        check(seen, floor)
        assert remembered(seen, floor) == oracle.seen
        main, late, undecidable, copies = (expected.count(each) for each in ("main", "late", "undecidable", ""))
        told = Counts(main, late, undecidable, copies, oracle.early, len(oracle.seen), seen.size, *counts[7:])
        assert counts == told
        assert counts.looks >= counts.passed >= counts.found
        chance.shuffle(rows)
        again, _, counted = sieve.sift(before, table(rows), low)
        assert (again.facts, counted) == (seen.facts, counts)
        assert [each.read() for each in again.pieces] == [each.read() for each in seen.pieces]


@given(steps, st.integers(1, 12))
def test_a_window_by_size_asks_no_event_time(steps: list[tuple[list[str], int]], most: int) -> None:
    """Copies may have other event times there."""
    by_size = sieve("size", most=most)
    oracle, seen = Oracle(by_size), Seen()
    for number, (names, step) in enumerate(steps):
        rows = [(name, (TIMES[name] + number * step) * SECOND) for name in names]
        expected = oracle.decide(rows, step * SECOND)
        oracle_low = step * SECOND
        seen, out, _ = by_size.sift(replace(seen, highest=MIN), table(rows), oracle_low)
        assert sorted(out[ROUTE].to_pylist()) == sorted(route for route in expected if route)
        assert remembered(seen, MIN) == oracle.seen


class Sender:
    """Sends records until they are acknowledged: its low watermark is its oldest one that is not."""

    def __init__(self, records: dict[str, int]) -> None:
        self.records = records
        self.pending = set(records)

    @property
    def low(self) -> int:
        return min((self.records[name] for name in self.pending), default=MAX)


@given(st.data())
def test_behind_a_sender_that_repeats_each_record_passes_once_and_none_is_undecidable(data: st.DataObject) -> None:
    """Whatever is sent again, in whatever batch, as long as it is sent before it is acknowledged; W is read before the batch."""
    passed, undecidable, _ = through(Sieve("id", "t"), data)
    assert undecidable == 0
    assert passed == dict.fromkeys(passed, 1)


def through(sieve: Sieve, data: Any) -> tuple[dict[str, int], int, int]:
    """Return how often each record has passed, of those that were acknowledged; how many were undecidable; and how many ids were remembered at most."""
    sender = Sender(dict(zip(IDS, data.draw(st.lists(st.integers(0, 9), min_size=6, max_size=6)), strict=True)))
    passed: dict[str, int] = {}
    seen, undecidable, most = Seen(), 0, 0
    arrived: set[str] = set()
    for _ in range(data.draw(st.integers(1, 6))):
        low = sender.low
        names = data.draw(st.lists(st.sampled_from(sorted(sender.pending)), max_size=4)) if sender.pending else []
        seen, out, counts = sieve.sift(seen, table([(name, sender.records[name]) for name in names]), low)
        for name, route in zip(out["id"].to_pylist(), out[ROUTE].to_pylist(), strict=True):
            passed[name] = passed.get(name, 0) + (route == "main")
        undecidable += counts.undecidable
        most = max(most, counts.remembered)
        arrived |= set(names)
        sender.pending -= set(data.draw(st.lists(st.sampled_from(sorted(arrived)), max_size=4))) if arrived else set()
    return passed, undecidable, most


def test_once_breaks_when_ids_are_forgotten_by_a_newer_watermark_than_rows_are_admitted_by() -> None:
    """The sender has one record still unacknowledged, and sends it again."""

    class Ahead(Sieve):
        def floor(self, low: int) -> int:
            return low + 1

    def twice(sieve: Sieve) -> list[str]:
        rows = table([("a", 5)])
        seen, first, _ = sieve.sift(Seen(), rows, 5)
        _, second, _ = sieve.sift(seen, rows, 5)
        return [*first[ROUTE].to_pylist(), *second[ROUTE].to_pylist()]

    assert twice(Sieve("id", "t")) == ["main"]
    assert twice(Ahead("id", "t")) == ["undecidable", "undecidable"], "the original is called late"


def test_what_was_forgotten_is_not_admitted_again_with_more_slack_or_by_a_lower_watermark() -> None:
    """A stage may be started with more slack, or with other inputs, whose low watermark is not known yet. The state says what was forgotten; without that, it would come twice."""
    row = table([("a", 10 * SECOND)])
    seen, first, _ = sieve().sift(Seen(), row, 10 * SECOND)
    assert first[ROUTE].to_pylist() == ["main"]
    seen, _, counts = sieve().sift(seen, table([]), 20 * SECOND)
    assert counts.remembered == 0
    for slack, low in ((15, 20 * SECOND), (0, MIN)):
        _, again, _ = sieve(slack=slack).sift(seen, row, low)
        assert again[ROUTE].to_pylist() == ["undecidable"]
    _, new, _ = sieve(slack=15).sift(seen, table([("b", 20 * SECOND - 1), ("c", 20 * SECOND)]), MIN)
    assert new[ROUTE].to_pylist() == ["undecidable", "main"]
    _, twice, _ = sieve().sift(replace(seen, floor=MIN, highest=MIN), row, MIN)
    assert twice[ROUTE].to_pylist() == ["main"]


def test_what_is_forgotten_decides_nothing_while_it_is_still_there() -> None:
    """Pieces go as a whole, so they have ids for a while that are forgotten. Here one was pushed out, or is below W: it is new again."""
    rows = table([(f"id{number}", number) for number in range(8)])
    by_size = sieve("size", most=5)
    seen, _, _ = sieve().sift(Seen(), rows, MIN)
    seen, _, _ = by_size.sift(seen, table([]), MIN)
    assert ([each.rows for each in seen.pieces], seen.since) == ([8], 3)
    _, out, counts = by_size.sift(seen, rows, MIN)
    assert out["id"].to_pylist() == ["id0", "id1", "id2"]
    assert counts.remembered == 5
    _, out, _ = by_size.sift(replace(seen, since=0), rows, MIN)
    assert out.num_rows == 0, "it would be called a copy"
    seen, _, counts = sieve().sift(sieve().sift(Seen(), rows, MIN)[0], table([]), 4)
    assert ([each.rows for each in seen.pieces], counts.remembered) == ([8], 4)
    anew = table([("id0", 5), ("id5", 5)])
    assert sieve().sift(seen, anew, 4)[1]["id"].to_pylist() == ["id0"]
    assert sieve().sift(replace(seen, floor=MIN), anew, MIN)[1].num_rows == 0


@pytest.mark.parametrize("slack", [0, 3])
def test_a_copy_that_was_stamped_anew_within_the_slack_is_known(slack: int) -> None:
    """Wherever the stamps of its neighbours are. The twin has no slack, and lets it through."""
    once = sieve(slack=slack)
    seen, _, _ = once.sift(Seen(), table([("a", 10 * SECOND)]), 0)
    for apart in (-3, -1, 1, 3):
        _, _, counts = once.sift(seen, table([("a", (10 + apart) * SECOND)]), 0)
        assert counts.duplicates == (slack > 0)
    _, _, counts = once.sift(seen, table([("a", 14 * SECOND)]), 0)
    assert counts.main == 1, "further than the slack"


@given(st.data())
def test_a_sender_that_stamps_anew_within_the_slack_gets_each_record_into_main_once(data: st.DataObject) -> None:
    """As long as a stamp is at or above what it has promised, and within the slack of the first one that came."""
    slack = data.draw(st.integers(0, 4))
    once, seen, low = sieve(slack=slack), Seen(), 0
    first: dict[str, int] = {}
    passed: Counter[str] = Counter()
    for _ in range(data.draw(st.integers(1, 8))):
        low += data.draw(st.integers(0, 3))
        rows = []
        for name in data.draw(st.lists(st.sampled_from(IDS), unique=True)):
            at = first.setdefault(name, data.draw(st.integers(low, low + 5)))
            rows.append((name, (at + data.draw(st.integers(-slack, slack)) if name in passed else at) * SECOND))
        seen, out, _ = once.sift(seen, table(rows), low * SECOND)
        for name, route in zip(out["id"].to_pylist(), out[ROUTE].to_pylist(), strict=True):
            passed[name] += route == "main"
        for name, _ in rows:
            passed.setdefault(name, 0)
    assert not passed or max(passed.values()) <= 1


def test_a_batch_that_is_larger_than_a_window_by_size_makes_a_few_pieces() -> None:
    """What the rest of its batch pushes out is not written first."""
    by_size = sieve("size", most=16)
    seen, _, counts = by_size.sift(Seen(), table([(f"{number}", number) for number in range(5_000)]), 4_900)
    assert (counts.main, counts.late, counts.remembered, counts.forgotten_early) == (100, 4_900, 16, 84)
    assert (len(seen.pieces), seen.arrivals, seen.since) == (8, 5_000, 4_984)


def test_what_a_bound_pushes_out_within_the_slack_is_counted() -> None:
    """A copy of it is late once more."""
    bounded = sieve("both", slack=100, most=1, forget=True)
    seen, _, counts = bounded.sift(Seen(), table([("a", 50 * SECOND)]), 100 * SECOND)
    seen, _, counts = bounded.sift(seen, table([("b", 150 * SECOND)]), 100 * SECOND)
    assert counts.forgotten_early == 1
    _, out, _ = bounded.sift(seen, table([("a", 50 * SECOND)]), 100 * SECOND)
    assert out[ROUTE].to_pylist() == ["late"]


def test_a_copy_that_was_stamped_anew_passes() -> None:
    """An id is looked for where its event time can be. In one batch, and in a window by size, the id alone counts."""
    rows, anew = table([("a", SECOND)]), table([("a", 1000 * SECOND)])
    assert sieve().sift(sieve().sift(Seen(), rows, 0)[0], anew, 0)[2].duplicates == 0
    assert sieve().sift(Seen(), pa.concat_tables([rows, anew]), 0)[2].duplicates == 1
    by_size = sieve("size", most=2)
    assert by_size.sift(by_size.sift(Seen(), rows, 0)[0], anew, 0)[2].duplicates == 1


def test_a_filter_is_the_one_of_what_it_speaks_of() -> None:
    """Of an older version it lacks the newest ids, and their copies would pass. One that is cut off, or missing, says nothing."""
    first, second = ([(f"{batch}-{number}", SECOND + number) for number in range(3)] for batch in "ab")
    seen, _, _ = sieve().sift(Seen(), table(first), 0)
    [old] = seen.pieces
    seen, _, _ = sieve().sift(seen, table(second), 0)
    [piece] = seen.pieces
    assert piece.rows == 6
    rows = table([*first, *second])

    def copies(data: Any) -> tuple[int, int]:
        _, _, counts = sieve().sift(replace(seen, pieces=[replace(piece, filter=lambda: data)]), rows, 0)
        return counts.duplicates, counts.looks

    assert copies(piece.filter()) == (6, 6)
    for useless in (b"", piece.filter()[:-1], old.filter()):
        assert copies(useless) == (6, 0), "all of them may be there, and are looked for"
    assert copies(bloom(np.tile(np.asarray(old.read()["hash"]), 2))) == (3, 6), "so a filter that is older doubles"


def test_what_a_filter_excludes_is_not_read() -> None:
    seen, _, _ = sieve().sift(Seen(), table([(f"old{number}", number) for number in range(1000)]), 0)
    [piece] = seen.pieces

    def closed() -> pa.Table:
        raise AssertionError("it was read")

    shut = replace(seen, pieces=[replace(piece, read=closed)])
    looked = [(f"new{number}", 0) for number in range(1000)]
    spared = [row for row in looked if not perhaps_in(piece.filter(), hashed(pa.array([row[0]], pa.large_string())))[0]]
    assert len(spared) > 980
    found, _, looks = 0, 0, shut.known(*asked(spared), MIN, 0)[1]
    assert (looks.asked, looks.passed, looks.found) == (len(spared), 0, found)
    with pytest.raises(AssertionError, match="it was read"):
        shut.known(*asked([("old1", 1)]), MIN, 0)
    _, looks = seen.known(*asked([("old1", 1), *looked]), MIN, 0)
    assert (looks.asked, looks.found) == (1001, 1)
    counts = Counts(looks=1001, passed=looks.passed, found=1)
    assert counts.filter_hit_rate > 0.98
    assert counts.false_positive_rate < 0.02


def asked(rows: Sequence[Row]) -> tuple[pa.Array, Any, Any]:
    ids = pa.array([name for name, _ in rows], pa.large_string())
    return ids, hashed(ids), np.array([t for _, t in rows])


@pytest.mark.parametrize("lag", [20, 300])
def test_what_stays_longer_than_it_has_to_is_an_eighth_and_little_is_written_anew(lag: int) -> None:
    """Records come for half an hour, W follows at a distance of so many seconds, stands for five minutes, and goes on."""
    seen, counts = Seen(), Counts()
    written = pieces = most = longest = 0
    for now in range(0, 1800, 2):
        at = max((600 if 600 <= now < 900 else now) - lag, 0)
        longest = max(longest, now - at)
        rows = [(f"{now}-{number}", now * SECOND + number) for number in range(20)]
        before = seen.pieces
        seen, _, counts = sieve().sift(seen, table(rows), at * SECOND)
        written += sum(each.rows for each in seen.pieces if each not in before)
        held = sum(each.rows for each in seen.pieces)
        assert counts.remembered <= held <= counts.remembered + 10 * max(longest / 8, 2)
        pieces, most = max(pieces, len(seen.pieces)), max(most, counts.remembered)
        assert counts.state_bytes == sum(each.facts.size for each in seen.pieces)
    assert pieces < 60
    assert written < 18_000 * 5
    assert most > counts.remembered, "W stood, and went on"


@pytest.mark.parametrize("window", ["size", "both"])
def test_a_bound_bounds_what_is_kept(window: str) -> None:
    """While W stands."""
    bounded = sieve(window, most=400, forget=window == "both")
    seen = Seen()
    for now in range(600):
        seen, _, counts = bounded.sift(seen, table([(f"{now}-{number}", now * SECOND) for number in range(10)]), 0)
        assert counts.remembered == min(400, 10 * (now + 1))
        assert sum(each.rows for each in seen.pieces) <= 400 * (5 / 4 if window == "size" else 2)
    assert len(seen.pieces) < 60


def test_a_window_by_size_is_for_the_last_arrivals_whatever_the_watermark() -> None:
    """Below W there is nothing undecidable, and nothing goes into main."""
    by_size = sieve("size", most=2)
    seen, out, counts = by_size.sift(Seen(), table([("a", 1), ("b", 2)]), 10)
    assert out[ROUTE].to_pylist() == ["late", "late"]
    _, out, counts = by_size.sift(seen, table([("a", 1), ("b", 2), ("c", 12)]), 10)
    assert (out["id"].to_pylist(), out[ROUTE].to_pylist()) == (["c"], ["main"])
    seen, _, counts = by_size.sift(seen, table([("c", 12), ("d", 13), ("e", 14)]), 10)
    assert (counts.remembered, counts.forgotten_early) == (2, 1), "those that are late would be late again"
    _, out, _ = by_size.sift(seen, table([("a", 1), ("c", 12), ("e", 14)]), 10)
    assert (out["id"].to_pylist(), out[ROUTE].to_pylist()) == (["a", "c"], ["late", "main"]), "they pass once more"


def test_a_stage_may_get_another_window() -> None:
    """What it remembers stays, and what it forgot by W is not admitted again, whatever window it has meanwhile."""
    rows = [("a", 5), ("b", 15)]
    seen, _, _ = sieve().sift(Seen(), table(rows), 0)
    seen, _, _ = sieve().sift(seen, table([]), 10)
    seen, out, _ = sieve("size", most=9).sift(seen, table([("b", 15), ("c", 12), ("d", 7)]), 10)
    assert dict(zip(out["id"].to_pylist(), out[ROUTE].to_pylist(), strict=True)) == {"c": "main", "d": "late"}
    for number in range(4):
        seen, out, _ = sieve("size", most=9).sift(seen, table([(f"late{number}", number)]), 10)
    assert set(remembered(seen, MIN)) == {"a", "b", "c", "d", "late0", "late1", "late2", "late3"}
    seen, out, _ = sieve(slack=9).sift(seen, table([*rows, ("c", 12), ("d", 7)]), 10)
    assert dict(zip(out["id"].to_pylist(), out[ROUTE].to_pylist(), strict=True)) == dict.fromkeys("ad", "undecidable")


@pytest.mark.parametrize(
    ("columns", "said"),
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
def test_a_column_of_another_type_is_refused(columns: dict[str, pa.Array], said: str) -> None:
    seen, _, _ = Sieve("id", "t").sift(Seen(), table([("a", 1)]), 0)
    with pytest.raises(ValueError, match=said):
        Sieve("id", "t").sift(seen, pa.table(columns), 0)


def test_a_bound_refuses_or_forgets_and_counts() -> None:
    rows = table([("a", 1), ("b", 2), ("c", 3)])
    with pytest.raises(WindowFull, match="3 ids are to be remembered in a key range, and most allows 2"):
        sieve("both", most=2).sift(Seen(), rows, 0)
    bounded = sieve("both", most=2, forget=True)
    seen, _, counts = bounded.sift(Seen(), rows, 0)
    assert (counts.main, counts.forgotten_early, counts.remembered) == (3, 1, 2)
    _, out, _ = bounded.sift(seen, rows, 0)
    assert out["id"].to_pylist() == ["a"], "its id was pushed out, so a copy passes once more"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(None, 1), ("a", 1)], r"1 of 2 rows have no id \(column id\)"),
        ([("a", None)], r"1 of 1 rows have no event time \(column t\)"),
    ],
)
def test_a_row_without_id_or_time_is_refused(rows: list[Any], said: str) -> None:
    times = [None if micros is None else EPOCH for _, micros in rows]
    given = pa.table(
        {"id": pa.array([name for name, _ in rows], pa.string()), "t": pa.array(times, pa.timestamp("us", "UTC"))}
    )
    with pytest.raises(ValueError, match=said):
        Sieve("id", "t").sift(Seen(), given, 0)
    with pytest.raises(ValueError, match="have no column name, which is to be their id; they have id, t"):
        Sieve("name", "t").sift(Seen(), given, 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
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
def test_what_means_nothing_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Sieve("id", "t", **wrong)
    with pytest.raises(ValueError, match="window is one of watermark, size, both: 'time'"):
        Window.of("time")
