"""A computation over the batches of a key range, without Spark: many keys against one oracle each, through versions on disk; and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import lowwater
from lowwater_pipeline.computation.computation import Computation, Input, Output, Record
from lowwater_pipeline.computation.productions import OUTPUT, Outputs
from lowwater_pipeline.computation.stage import ComputationUpdate, pieces_of, start
from lowwater_pipeline.computation.turn import Context
from lowwater_spark.track.segments import Due, Segments, write_segments
from tests.kit.times import MAX, MINUTE
from tests.pipeline.test_turn import LOG, Action, Script

ACTION = pa.struct([("what", pa.string()), ("tag", pa.string()), ("later", pa.int64()), ("other", pa.int64())])
SCHEMA = pa.schema(
    [
        ("do", pa.list_(ACTION)),
        ("lowwater_place", pa.int64()),
        ("lowwater_key", pa.string()),
        ("lowwater_micros", pa.int64()),
        ("lowwater_id", pa.int64()),
    ]
)
OUT = Outputs("script", {"out": ["what"]}, pa.schema([(OUTPUT, pa.string()), ("out/what", pa.string())]))

Row = tuple[str, int, int, list[Action]]
"""Key, event time, id, and what to do."""


class Rows(Script):
    """Takes what to do from a column, and says in its rows which key it is."""

    def process_record(self, ctx: Context, record: Record) -> None:
        actions = [(action["what"], action["tag"], action["later"], action["other"]) for action in record["do"]]
        super().process_record(ctx, Record(record.timestamp, record.id, {"do": actions}))


def table(rows: Sequence[Row]) -> pa.Table:
    records = [
        {
            "do": [dict(zip(("what", "tag", "later", "other"), action, strict=True)) for action in do],
            "lowwater_place": ord(key) % 3 - 1,
            "lowwater_key": key,
            "lowwater_micros": micros,
            "lowwater_id": identity,
        }
        for key, micros, identity, do in rows
    ]
    half = len(records) // 2
    return pa.concat_tables([pa.Table.from_pylist(part, SCHEMA) for part in (records[:half], records[half:])])


@dataclass
class Range:
    folder: Path
    computation: Computation
    outputs: Outputs = OUT
    batch: int = -1
    last: Segments = field(init=False)
    due: Due | None = None
    hold: lowwater.Watermark | None = None

    def __post_init__(self) -> None:
        self.last = Segments(str(self.folder))

    def run(
        self, rows: pa.Table, low: int, now: int = 0, *, killed: bool = False, promised: int | None = None
    ) -> list[dict[str, Any]]:
        self.batch += 1
        folder = self.folder / str(self.batch)
        folder.mkdir()
        update = ComputationUpdate(self.computation, self.outputs, now, low if promised is None else promised)
        attempts = []
        for attempt in range(1 + killed):
            after, emitted, hold, pending = update.update_segments(self.last, rows, lowwater.Watermark(low))
            assert pending == []
            written = write_segments(after, self.last, str(folder), f"00000-{attempt}")
            segments = Segments(str(folder), written, tuple(after.facts))
            attempts.append(([] if emitted is None else emitted.to_pylist(), hold, after.due, segments))
        assert attempts[0][:3] == attempts[-1][:3], "the same from the same"
        produced, self.hold, self.due, self.last = attempts[-1]
        shutil.rmtree(self.folder / str(self.batch - 2), ignore_errors=True)
        return produced

    def logs(self) -> dict[Any, list[str]]:
        logs: dict[Any, list[str]] = {}
        for piece in pieces_of(self.last):
            for row in piece.read().to_pylist():
                logs[row["key"]] = [] if row.get("state") is None else LOG.decode(row["state"])
        return {key: log for key, log in logs.items() if log}


def test_the_computation_of_the_documentation_counts(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/computations.md").read_text(encoding="utf-8")
    block = page.split("```python\n")[1].split("def write(")[0]
    named: dict[str, Any] = {}
    exec(block, named)
    kinds = [
        (OUTPUT, pa.string()),
        ("buckets/query", pa.string()),
        ("buckets/start", pa.int64()),
        ("buckets/n", pa.int64()),
    ]
    outputs = Outputs("counts", {"buckets": ["query", "start", "n"]}, pa.schema(kinds))
    disk = Range(tmp_path, named["Counts"](), outputs)
    first = table([("a", 5, 1, []), ("a", MINUTE + 5, 2, []), ("b", 7, 3, []), ("a", 6, 4, [])])
    counts, holds = [], []
    for rows, low in ((first, 0), (table([("b", MINUTE, 5, [])]), MINUTE), (table([]), MAX)):
        produced = disk.run(rows, low)
        counts.append(sorted((row["buckets/query"], row["buckets/start"], row["buckets/n"]) for row in produced))
        holds.append(disk.hold)
    assert counts == [[], [("a", 0, 2), ("b", 0, 1)], [("a", MINUTE, 1), ("b", MINUTE, 1)]]
    assert holds == [lowwater.Watermark(0), lowwater.Watermark(MINUTE), None]
    assert disk.last.segments == ()


@pytest.fixture
def disk(tmp_path: Path) -> Range:
    return Range(tmp_path, Rows())


RING: Action = ("set", "quiet", 100, None)
ONE: Row = ("a", 5, 1, [RING])


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("lowwater_key", r"1 of 2 rows of script have no key \(key\)"),
        ("lowwater_micros", r"1 of 2 rows of script have no event time \(t\)"),
        ("lowwater_id", r"1 of 2 rows of script have no id \(id\)"),
    ],
)
def test_a_row_without_key_time_or_id_is_refused_by_name(disk: Range, column: str, text: str) -> None:
    rows = table([ONE, ONE])
    at = rows.column_names.index(column)
    broken = pa.chunked_array([pa.array([None, *rows[column].to_pylist()[1:]], SCHEMA.field(column).type)])
    with pytest.raises(ValueError, match=f"{text}. Give each record one, or filter these rows out of the frame"):
        disk.run(rows.set_column(at, column, broken), 0)


def moments(zone: str) -> pa.DataType:
    """Times in a struct, in a list and in a map."""
    moment = pa.timestamp("us", zone)
    return pa.struct([("at", pa.list_(moment)), ("map", pa.map_(pa.string(), moment))])


def test_records_that_wait_come_back_as_they_were(tmp_path: Path) -> None:
    waiting: list[dict[str, Any]] = []

    class Waits(Types):
        in_order = True

        def process_record(self, ctx: Context, record: Record) -> None:
            waiting.append({name: record[name] for name in record})

    columns: dict[str, tuple[Any, pa.DataType]] = {
        "moment": (MOMENT, pa.timestamp("us", "UTC")),
        "local": (MOMENT.replace(tzinfo=None), pa.timestamp("us")),
        "day": (MOMENT.date(), pa.date32()),
        "amount": (Decimal("1.50"), pa.decimal128(10, 2)),
        "data": (b"\xff", pa.binary()),
        "map": ([("a", 1)], pa.map_(pa.string(), pa.int64())),
        "nested": (
            {"list": [1.5, None], "none": None},
            pa.struct([("list", pa.list_(pa.float64())), ("none", pa.int8())]),
        ),
        "moments": ({"at": [MOMENT], "map": [("a", MOMENT)]}, moments("UTC")),
        "length": (timedelta(microseconds=3), pa.duration("us")),
    }
    rows = table([ONE]).select(["lowwater_place", "lowwater_key", "lowwater_micros"])
    for name, (value, kind) in columns.items():
        rows = rows.append_column(name, pa.array([value], kind))
    disk = Range(tmp_path, Waits({}), TYPES)
    # The session's zone is another one in the next run.
    typed = rows
    for name, kind in (("moment", pa.timestamp("us", "Europe/Berlin")), ("moments", moments("Europe/Berlin"))):
        typed = typed.set_column(typed.column_names.index(name), name, rows[name].cast(kind))
    disk.run(typed, 5)
    assert (waiting, disk.due) == ([], Due(6, None))
    disk.run(rows.slice(0, 0), 6)
    assert waiting == [{name: value for name, (value, _) in columns.items()}]
    assert disk.last.segments == ()


def test_keys_of_another_type_and_the_state_of_something_else_are_refused(disk: Range) -> None:
    disk.run(table([ONE]), 0)
    at = SCHEMA.get_field_index("lowwater_key")
    other = table([]).set_column(at, "lowwater_key", pa.array([], pa.int64()))
    with pytest.raises(ValueError, match="of script are of int64 now, and those that are kept are of large_string"):
        disk.run(other, 0)
    disk.last = Segments(disk.last.folder, disk.last.segments, (5, 5, 5, 5, 5))
    with pytest.raises(ValueError, match="is not that of a computation: something else has run in it"):
        disk.run(table([]), 0)


def test_while_records_wait_the_frame_keeps_its_columns(tmp_path: Path) -> None:
    disk = Range(tmp_path, Rows(in_order=True))
    disk.run(table([ONE]), 0)
    wider = table([]).append_column("more", pa.array([], pa.int64()))
    with pytest.raises(ValueError, match="wait for the low watermark, and the frame has other columns now"):
        disk.run(wider, 0)
    disk.computation = Rows()
    with pytest.raises(ValueError, match="or in_order= has changed"):
        disk.run(table([]), 0)


class Types(Computation):
    name = "types"
    inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t")]
    outputs: ClassVar[Mapping[str, str | Output]] = {"one": "", "two": ""}

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row

    def process_record(self, ctx: Context, record: Record) -> None:
        ctx.produce("one", self.row)
        ctx.produce("two", {"n": None})


class Half(Computation):
    """Says nothing but what is given."""

    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)


class Declares(Types):
    """Declares in its fields what is given."""

    def __init__(self, members: dict[str, Any]) -> None:
        self.__dict__.update({"outputs": {"out": "a int"}} | members)


class Texts:
    def initial(self) -> str:
        return ""

    encode = decode = lambda _, state: state


WHOLE = {"name": "half", "inputs": [Input("source", key="key", event_time="t")], "outputs": {"out": "a int"}}


@pytest.mark.parametrize(
    ("computation", "error", "text"),
    [
        (Script, TypeError, r"is no computation: pass an instance .*, as start\(Counts\(\), ...\)"),
        (Half(name="half"), ValueError, "Half does not say its inputs, outputs: write inputs = "),
        (Half(**WHOLE), ValueError, "half does not say what it does with a record: write process_record"),
        (Declares({"state": dict[str, int]}), TypeError, r"which is no codec: declare state = Codec\(TYPE\)"),
        (Declares({"state": Texts()}), TypeError, "makes str of the initial state: its encode returns bytes"),
        (Types({"lock": Lock()}), TypeError, "types cannot travel to the executors: let its class and its fields hold"),
    ],
)
def test_a_broken_computation_is_refused(computation: Any, error: type[Exception], text: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=text):
        start(computation, None, print, checkpoint=tmp_path)  # type: ignore[arg-type]


TYPES = Outputs(
    "types",
    {"one": ["t", "n"], "two": ["n"]},
    pa.schema(
        [(OUTPUT, pa.string()), ("one/t", pa.timestamp("us", "UTC")), ("one/n", pa.int64()), ("two/n", pa.float64())]
    ),
)
MOMENT = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=7)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"t": MOMENT.replace(tzinfo=None), "n": 1}, "column t of types's output one got .*, which names no moment"),
        ({"t": 1, "n": "x"}, "column n of types's output one is of int64, and a value is not"),
        ({"t": 1, "n": 2**70}, "column n of types's output one is of int64, and a value is not"),
    ],
)
def test_a_value_that_is_not_of_its_column_is_refused_by_name(tmp_path: Path, row: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Range(tmp_path, Types(row), TYPES).run(table([ONE]), 0)


def test_when_none_waits_the_frame_may_have_other_columns(tmp_path: Path) -> None:
    disk = Range(tmp_path, Rows(in_order=True))
    disk.run(table([(key, 5, 1, [("set", "quiet", 200, 200)]) for key in "abcdefgh"]), 0)
    disk.run(table([]), 6)
    disk.run(table([("a", 7, 2, [])]), 6)
    disk.run(table([]), 8)
    more = table([("b", 9, 3, []), ("z", 9, 4, [])])
    wider = more.append_column("more", pa.array([1, 2], pa.int64()))
    disk.run(wider, 8)
    disk.run(wider.slice(0, 0), 10)
    disk.computation = Rows()
    disk.run(table([("c", 11, 5, [])]), 11)
    disk.run(table([]), 1000)
    quiet = "timer quiet 205 205"
    assert disk.logs() == {
        "a": ["record 1 5", "record 2 7", quiet],
        "b": ["record 1 5", "record 3 9", quiet],
        "c": ["record 1 5", "record 5 11", quiet],
        **{key: ["record 1 5", quiet] for key in "defgh"},
        "z": ["record 4 9"],
    }


def test_a_column_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    class Asks(Types):
        def process_record(self, ctx: Context, record: Record) -> None:
            record["missing"]

    with pytest.raises(KeyError, match="the rows have no column missing; they have do") as refused:
        Range(tmp_path, Asks({}), TYPES).run(table([ONE]), 0)
    assert refused.value.__notes__ == ["in types, key 'a', the record of 1970-01-01T00:00:00.000005Z with the id 1"]
