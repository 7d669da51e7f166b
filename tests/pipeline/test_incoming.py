"""Records of several inputs, without Spark: each has the columns of its own frame, they come in one order, and those that wait keep where they are from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from lowwater_pipeline.computation.computation import Computation, Input, Output, Record
from lowwater_pipeline.computation.incoming import records, waiting
from lowwater_pipeline.computation.productions import OUTPUT, Outputs
from lowwater_pipeline.computation.turn import Context
from tests.kit.times import MAX
from tests.pipeline.test_computation import ONE, Range, Rows, table
from tests.pipeline.test_turn import LOG

SEARCHES = pa.struct([("query", pa.string()), ("N", pa.int64())])
CLICKS = pa.struct([("q", pa.string()), ("n", pa.string()), ("lowwater_key", pa.bool_())])
SCHEMA = pa.schema(
    [
        ("lowwater_input", pa.int32()),
        ("lowwater_key", pa.string()),
        ("lowwater_id_0", pa.int64()),
        ("lowwater_row_0", SEARCHES),
        ("lowwater_row_1", CLICKS),
        ("lowwater_place", pa.int64()),
        ("lowwater_micros", pa.int64()),
    ]
)
OUT = Outputs("both", {"out": ["what"]}, pa.schema([(OUTPUT, pa.string()), ("out/what", pa.string())]))

Event = tuple[int, int, int]
"""Time, place of the input, and id."""


class Both(Computation):
    """Notes what it meets. Clicks have no ids; theirs is in a column."""

    name = "both"
    inputs: ClassVar[Sequence[Input]] = [
        Input("searches", key="query", event_time="t", id="id"),
        Input(["web", "phone"], key="q", event_time="t", alias="clicks"),
    ]
    outputs: ClassVar[Mapping[str, str | Output]] = {"out": "what string"}
    state = LOG

    def __init__(self, *, in_order: bool = False) -> None:
        self.in_order = in_order  # type: ignore[misc]

    def process_record(self, ctx: Context, record: Record) -> None:
        clicked = record.input == "clicks"
        number = record["n"] if clicked else record["N"]
        ctx.state.append(f"{record.input} {record.timestamp} {type(number).__name__} {number}")
        assert ctx.key == record["q" if clicked else "query"]
        assert record.id == (None if clicked else number)


def rows(key: str, events: Sequence[Event]) -> pa.Table:
    """In two chunks."""
    made = []
    for time, place, identity in events:
        row: dict[str, Any] = {"lowwater_input": place, "lowwater_key": key, "lowwater_place": 7}
        row["lowwater_micros"] = time
        if place:
            row["lowwater_row_1"] = {"q": key, "n": str(identity), "lowwater_key": True}
        else:
            row |= {"lowwater_id_0": identity, "lowwater_row_0": {"query": key, "N": identity}}
        made.append(row)
    half = len(made) // 2
    return pa.concat_tables([pa.Table.from_pylist(part, SCHEMA) for part in (made[:half], made[half:])])


def met(events: Sequence[Event]) -> list[str]:
    """What is noted of events in this order."""
    return [
        f"{('searches', 'clicks')[place]} {time} {('int', 'str')[place]} {number}" for time, place, number in events
    ]


@pytest.mark.parametrize("in_order", [False, True])
def test_records_come_by_time_input_and_id_and_those_that_wait_keep_their_input(tmp_path: Path, in_order: bool) -> None:
    chance = Random(7)
    events = [(time, place, number) for time in range(5) for place in (0, 1) for number in range(2)]
    # Clicks have no ids: those of one time come in any order, so there is one of each.
    events = [each for each in events if not (each[1] and each[2])]
    shuffled = list(events)
    chance.shuffle(shuffled)
    disk = Range(tmp_path, Both(in_order=in_order), OUT)
    batches = [shuffled[:6], shuffled[6:]]
    for batch in batches:
        disk.run(rows("a", batch), 0, killed=True)
    disk.run(rows("a", []), MAX)
    assert disk.logs() == {"a": met(events if in_order else [one for each in batches for one in sorted(each)])}


def test_without_the_place_of_the_input_the_order_is_another(tmp_path: Path) -> None:
    class ByTime(Both):
        inputs: ClassVar[Sequence[Input]] = [*Both.inputs][::-1]

    same = [(5, 1, 0), (5, 0, 1)]
    here, there = Range(tmp_path / "a", Both(), OUT), Range(tmp_path / "b", ByTime(), OUT)
    for disk in (here, there):
        disk.folder.mkdir()
    here.run(rows("a", same), 0)
    assert here.logs() == {"a": met([(5, 0, 1), (5, 1, 0)])}
    swapped = {"lowwater_id_0": "lowwater_id_1", "lowwater_row_0": "lowwater_row_1", "lowwater_row_1": "lowwater_row_0"}
    other = rows("a", same)
    other = other.rename_columns([swapped.get(name, name) for name in other.column_names])
    at = other.column_names.index("lowwater_input")
    other = other.set_column(at, "lowwater_input", pa.chunked_array([pa.array([0, 1], pa.int32())]))
    there.run(other, 0)
    assert there.logs() == {"a": met([(5, 1, 0), (5, 0, 1)])}


def test_a_row_without_what_its_input_declares_is_named_with_the_input(tmp_path: Path) -> None:
    disk = Range(tmp_path, Both(), OUT)
    good = rows("a", [(1, 0, 1), (2, 1, 1), (3, 1, 1)])
    for column, nulls, said in (
        ("lowwater_id_0", 0, r"1 of 1 rows of the input searches of both have no id \(id\)"),
        ("lowwater_key", 2, r"1 of 2 rows of the input clicks of both have no key \(q\)"),
        ("lowwater_micros", 1, r"1 of 2 rows of the input clicks of both have no event time \(t\)"),
    ):
        values = [None if i == nulls else value for i, value in enumerate(good[column].to_pylist())]
        at = good.column_names.index(column)
        broken = good.set_column(at, column, pa.chunked_array([pa.array(values, good.schema.field(column).type)]))
        with pytest.raises(ValueError, match=said):
            disk.run(broken, 0)


def test_one_input_is_kept_as_it_was_before_there_were_several(tmp_path: Path) -> None:
    """A checkpoint with records that wait goes on, and they are told their input."""
    action = pa.struct([("what", pa.string()), ("tag", pa.string()), ("later", pa.int64()), ("other", pa.int64())])
    before = pa.struct([("timestamp", pa.int64()), ("id", pa.int64()), ("row", pa.struct([("do", pa.list_(action))]))])
    assert waiting(Rows.inputs, table([ONE])) == pa.list_(before)
    seen: list[str] = []

    class Names(Rows):
        def process_record(self, ctx: Context, record: Record) -> None:
            seen.append(record.input)
            super().process_record(ctx, record)

    disk = Range(tmp_path, Names(in_order=True))
    disk.run(table([ONE]), 0)
    assert seen == []
    disk.run(table([]), MAX)
    assert seen == ["source"]


def test_only_columns_that_are_asked_for_are_converted() -> None:
    """Each input has its own columns, so a name of the other one is not there."""
    found = rows("a", [(1, 0, 3), (2, 1, 4)])
    [[search, click]] = records(
        Both.inputs, found.combine_chunks(), pa.array([0, 1]).to_numpy(), pa.array([0]).to_numpy()
    )
    assert (list(search), list(click)) == (["query", "N"], ["q", "n", "lowwater_key"])
    assert (search["n"], click["Q"], search.input, click.input) == (3, "a", "searches", "clicks")
    with pytest.raises(KeyError, match="the rows have no column q; they have query, N"):
        search["q"]
