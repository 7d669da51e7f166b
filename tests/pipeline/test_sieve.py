"""Ids that pass once: against an oracle that has one row at a time, and what breaks when one number does not decide both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater.watermark import MAX, MIN
from lowwater_pipeline.dedup.sieve import ROUTE, Counts, Sieve, WindowFull

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


@dataclass
class Oracle:
    """What has to become of each row, one at a time."""

    slack: int
    seen: dict[str, int]

    def decide(self, rows: Sequence[Row], low: int) -> list[str]:
        floor = low if low in (MIN, MAX) else low - self.slack
        said = []
        # Within a batch the oldest copy of an id is the one that passes.
        first = {name: min(t for other, t in rows if other == name and t >= floor) for name, t in rows if t >= floor}
        taken: set[str] = set()
        for name, t in rows:
            if t < floor:
                said.append("undecidable")
            elif name in self.seen or name in taken or t != first[name]:
                said.append("")
            else:
                taken.add(name)
                said.append("main" if t >= low else "late")
        self.seen |= {name: first[name] for name in taken}
        self.seen = {name: t for name, t in self.seen.items() if t >= floor}
        return said


batches = st.lists(
    st.tuples(st.lists(st.tuples(st.sampled_from(IDS), st.integers(0, 9)), max_size=8), st.integers(0, 4)), max_size=6
)


@given(batches, st.integers(0, 3), st.sampled_from([None, MAX]))
def test_every_row_goes_where_the_oracle_says(steps: list[tuple[list[Row], int]], slack: int, end: int | None) -> None:
    """W only grows, and may begin unknown and end finished."""
    sieve, oracle = Sieve("id", "t", timedelta(microseconds=slack)), Oracle(slack, {})
    state, low = None, MIN
    for number, (rows, step) in enumerate([*steps, ([("id0", 5)], 0)]):
        low = end if end is not None and number == len(steps) else max(low, 0) + step if number else low
        expected, floor = oracle.decide(rows, low), sieve.floor(low)
        state, out, counts = sieve.sift(state, table(rows), low, number)
        assert sorted(out[ROUTE].to_pylist()) == sorted(route for route in expected if route)
        if len({name for name, _ in rows}) == len(rows):
            routes = dict(zip(out["n"].to_pylist(), out[ROUTE].to_pylist(), strict=True))
            assert [routes.get(row, "") for row in range(len(rows))] == expected
        known = dict(zip(state["id"].to_pylist(), state["micros"].to_pylist(), strict=True))
        assert known.pop(None) == max(floor, MIN), "and up to where ids are forgotten"
        assert known == oracle.seen
        main, late, undecidable, copies = (expected.count(each) for each in ("main", "late", "undecidable", ""))
        assert counts == Counts(main, late, undecidable, copies, remembered=len(oracle.seen))


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
    state, undecidable, most = None, 0, 0
    arrived: set[str] = set()
    for number in range(data.draw(st.integers(1, 6))):
        low = sender.low
        names = data.draw(st.lists(st.sampled_from(sorted(sender.pending)), max_size=4)) if sender.pending else []
        state, out, counts = sieve.sift(state, table([(name, sender.records[name]) for name in names]), low, number)
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
        state, first, _ = sieve.sift(None, rows, 5, 0)
        _, second, _ = sieve.sift(state, rows, 5, 1)
        return [*first[ROUTE].to_pylist(), *second[ROUTE].to_pylist()]

    assert twice(Sieve("id", "t")) == ["main"]
    assert twice(Ahead("id", "t")) == ["undecidable", "undecidable"], "the original is called late"


def test_what_was_forgotten_is_not_admitted_again_with_more_slack_or_by_a_lower_watermark() -> None:
    """A stage may be started with more slack, or with other inputs, whose low watermark is not known yet."""
    row = table([("a", 10)])
    state, first, _ = Sieve("id", "t").sift(None, row, 10, 0)
    assert first[ROUTE].to_pylist() == ["main"]
    state, _, counts = Sieve("id", "t").sift(state, table([]), 20, 1)
    assert counts.remembered == 0
    for slack, low in ((15, 20), (0, MIN)):
        _, again, _ = Sieve("id", "t", timedelta(microseconds=slack)).sift(state, row, low, 2)
        assert again[ROUTE].to_pylist() == ["undecidable"]
    _, new, _ = Sieve("id", "t", timedelta(microseconds=15)).sift(state, table([("b", 19), ("c", 20)]), MIN, 2)
    assert new[ROUTE].to_pylist() == ["undecidable", "main"]


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
    state, _, _ = Sieve("id", "t").sift(None, table([("a", 1)]), 0, 0)
    with pytest.raises(ValueError, match=said):
        Sieve("id", "t").sift(state, pa.table(columns), 0, 1)


def test_a_bound_refuses_or_forgets_and_counts() -> None:
    rows = table([("a", 1), ("b", 2), ("c", 3)])
    with pytest.raises(WindowFull, match="3 ids are to be remembered in a key range, and most allows 2"):
        Sieve("id", "t", most=2).sift(None, rows, 0, 0)
    sieve = Sieve("id", "t", most=2, forget=True)
    state, _, counts = sieve.sift(None, rows, 0, 0)
    assert counts == Counts(main=3, forgotten_early=1, remembered=2)
    _, out, _ = sieve.sift(state, rows, 0, 1)
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
        Sieve("id", "t").sift(None, given, 0, 0)
    with pytest.raises(ValueError, match="have no column name, which is to be their id; they have id, t"):
        Sieve("name", "t").sift(None, given, 0, 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"slack": timedelta(seconds=-1)}, "cannot be negative"),
        ({"most": -1}, "0 for no bound: -1"),
        ({"forget": True}, "pass most as well"),
    ],
)
def test_what_means_nothing_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Sieve("id", "t", **wrong)
