"""Records of several inputs, without Spark: each has the columns of its own frame, they come in one order, and those that wait keep where they are from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from lowwater_pipeline.computation.computation import Computation, Input, Output, Record
from lowwater_pipeline.computation.incoming import waiting
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
    records = []
    for time, place, identity in events:
        row: dict[str, Any] = {"lowwater_input": place, "lowwater_key": key, "lowwater_place": 7}
        row["lowwater_micros"] = time
        if place:
            row["lowwater_row_1"] = {"q": key, "n": str(identity), "lowwater_key": True}
        else:
            row |= {"lowwater_id_0": identity, "lowwater_row_0": {"query": key, "N": identity}}
        records.append(row)
    half = len(records) // 2
    return pa.concat_tables([pa.Table.from_pylist(part, SCHEMA) for part in (records[:half], records[half:])])


def met(events: Sequence[Event]) -> list[str]:
    return [f"{('searches', 'clicks')[place]} {time} {('int', 'str')[place]} {value}" for time, place, value in events]


@pytest.mark.parametrize("in_order", [False, True])
def test_records_come_by_time_input_and_id_and_those_that_wait_keep_their_input(tmp_path: Path, in_order: bool) -> None:
    chance = Random(7)
    events = [(time, place, number) for time in range(5) for place in (0, 1) for number in range(2)]
    # Clicks have no ids: those of one time come in any order, so there is one of each.
    events = [event for event in events if not (event[1] and event[2])]
    shuffled = list(events)
    chance.shuffle(shuffled)
    disk = Range(tmp_path, Both(in_order=in_order), OUT)
    batches = [shuffled[:6], shuffled[6:]]
    for batch in batches:
        disk.run(rows("a", batch), 0, killed=True)
    disk.run(rows("a", []), MAX)
    assert disk.logs() == {"a": met(events if in_order else [one for batch in batches for one in sorted(batch)])}


def test_one_input_is_kept_as_it_was_before_there_were_several(tmp_path: Path) -> None:
    action = pa.struct([("what", pa.string()), ("tag", pa.string()), ("later", pa.int64()), ("other", pa.int64())])
    before = pa.struct([("timestamp", pa.int64()), ("id", pa.int64()), ("row", pa.struct([("do", pa.list_(action))]))])
    assert waiting(Rows.inputs, table([ONE])) == pa.list_(before)
    inputs: list[str] = []

    class Names(Rows):
        def process_record(self, ctx: Context, record: Record) -> None:
            inputs.append(record.input)
            super().process_record(ctx, record)

    disk = Range(tmp_path, Names(in_order=True))
    disk.run(table([ONE]), 0)
    assert inputs == []
    disk.run(table([]), MAX)
    assert inputs == ["source"]
