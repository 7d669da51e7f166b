"""Copies of records over the batches of a key range: those that have a turn are what an oracle lets through, which keeps all ids in a set; and the rest is as if no copy had come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import lowwater
from lowwater_pipeline.computation.computation import Computation, Input, Output
from lowwater_pipeline.computation.once import UNDECIDABLE, UNDECIDABLE_OUTPUT, copies_of
from lowwater_pipeline.computation.productions import OUTPUT, Outputs
from lowwater_pipeline.computation.stage import ComputationUpdate, start
from lowwater_spark.track.segments import Parent, Segments, write_segments
from tests.pipeline.test_computation import Range, Row, Rows, table
from tests.pipeline.test_turn import Action

ASIDE = ("input", "key", "event_time", "row")
OUT = Outputs(
    "script",
    {"out": ["what"], UNDECIDABLE: [*ASIDE]},
    pa.schema(
        [
            (OUTPUT, pa.string()),
            ("out/what", pa.string()),
            *((f"{UNDECIDABLE}/{name}", pa.int64() if name == "event_time" else pa.string()) for name in ASIDE),
        ]
    ),
)


class Once(Rows):
    """Does as :class:`Rows` does, with the first record of each id alone."""

    inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t", id="id", once=True)]


def history(seed: int) -> list[tuple[list[Row], int, list[Row], int, int]]:
    """Batches: the rows, W, those that have a turn, how many are copies, and of how many nobody can say."""
    chance = Random(seed)
    records: list[Row] = []
    done: set[int] = set()
    batches = []
    low = floor = 0
    for _ in range(15):
        for _ in range(chance.randrange(6)):
            do: list[Action] = [("set", "loud", chance.randrange(12), None)] if chance.random() < 0.7 else []
            records.append((chance.choice("abc"), max(0, low + chance.randrange(-15, 30)), len(records), do))
        rows = [chance.choice(records) for _ in range(chance.randrange(8))] if records else []
        floor = max(floor, low)
        undecidable = [row for row in rows if row[1] < floor]
        turns = []
        for row in rows:
            if row[1] >= floor and row[2] not in done:
                done.add(row[2])
                turns.append(row)
        batches.append((rows, low, turns, len(rows) - len(undecidable) - len(turns), len(undecidable)))
        low += chance.randrange(12)
    return batches


def check(folder: Path, seed: int) -> None:
    (folder / "once").mkdir()
    (folder / "plain").mkdir()
    disk, plain = Range(folder / "once", Once(), OUT), Range(folder / "plain", Rows(), OUT)
    chance = Random(seed)
    for rows, low, turns, copies, undecidable in history(seed):
        produced = disk.run(table(rows), low, killed=chance.random() < 0.4)
        aside = [row for row in produced if row[OUTPUT] == UNDECIDABLE]
        assert [row for row in produced if row[OUTPUT] != UNDECIDABLE] == plain.run(table(turns), low)
        assert (disk.logs(), disk.hold, disk.due) == (plain.logs(), plain.hold, plain.due)
        noted: Any = SimpleNamespace(noted=[disk.last.facts])
        counts = copies_of(noted)
        assert (counts.main + counts.late, counts.duplicates, len(aside)) == (len(turns), copies, undecidable)
        assert counts.undecidable == undecidable


@pytest.mark.parametrize("seed", range(6))
def test_of_each_id_the_first_record_has_its_turn_whatever_dies(tmp_path: Path, seed: int) -> None:
    check(tmp_path, seed)


def test_records_in_time_that_are_read_together_with_a_newer_low_watermark_have_their_turn(tmp_path: Path) -> None:
    disk = Range(tmp_path, Once(), OUT)
    assert disk.run(table([("a", 5, 1, []), ("a", 5, 1, [])]), 10, promised=5) == []
    assert disk.logs() == {"a": ["record 1 5"]}
    assert [row[OUTPUT] for row in disk.run(table([("a", 5, 1, [])]), 10, promised=10)] == [UNDECIDABLE]
    assert disk.logs() == {"a": ["record 1 5"]}


def test_ids_are_known_in_whatever_ranges_their_keys_are(tmp_path: Path) -> None:
    whole = Range(tmp_path, Once(), OUT)
    first: list[Row] = [("a", 5, 1, []), ("b", 6, 2, []), ("c", 7, 3, [])]
    whole.run(table(first), 0)
    low, high = (-(2**63), 0), (0, 2**63)

    def run(parents: Sequence[Parent], rows: Sequence[Row], promised: int, name: str) -> tuple[Segments, list[Any]]:
        update = ComputationUpdate(Once(), OUT, 0, promised)
        after, emitted, _, _ = update.update_relaid(parents, table(rows), lowwater.Watermark(promised))
        folder = tmp_path / name
        folder.mkdir()
        written = write_segments(after, parents[0].segments, str(folder), "0")
        return Segments(str(folder), written, tuple(after.facts)), [] if emitted is None else emitted.to_pylist()

    places = {record[0]: place for record, place in zip(first, table(first)["lowwater_place"].to_pylist(), strict=True)}
    parts = []
    for span in (low, high):
        mine = [record for record in first if span[0] <= places[record[0]] < span[1]]
        part, out = run([Parent(whole.last, span)], [*mine, (mine[0][0], 8, 9, [])], 5, f"part{span[0]}")
        assert out == []
        noted: Any = SimpleNamespace(noted=[part.facts])
        assert (copies_of(noted).duplicates, copies_of(noted).main) == (len(mine), 1)
        parts.append(Parent(part))
    again, out = run(parts, first, 6, "one")
    assert [row[f"{UNDECIDABLE}/event_time"] for row in out] == [5]
    noted = SimpleNamespace(noted=[again.facts])
    assert (copies_of(noted).duplicates, copies_of(noted).main) == (2, 0)


class NoId(Rows):
    inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t", once=True)]


class Slack(Rows):
    inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t", slack=timedelta(1))]


class Named(Once):
    outputs: ClassVar[Mapping[str, str | Output]] = {UNDECIDABLE: UNDECIDABLE_OUTPUT}


@pytest.mark.parametrize(
    ("computation", "text"),
    [
        (NoId(), "they are known by their ids: declare id="),
        (Slack(), "slack of the input source of script is .* with once=True"),
        (Named(), "call yours otherwise"),
    ],
)
def test_what_is_declared_is_looked_at(computation: Computation, text: str) -> None:
    frame: Any = None
    with pytest.raises(ValueError, match=text):
        start(computation, frame, None, checkpoint="nowhere")
