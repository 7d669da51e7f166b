"""A computation whose key ranges are cut otherwise between batches, without Spark: each key against an oracle that knows of no ranges."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import lowwater
from lowwater_pipeline.computation.computation import Record
from lowwater_pipeline.computation.stage import ComputationUpdate, pieces_of
from lowwater_spark.track.segments import Due, Parent, Segments, write_segments
from tests.kit.times import MIN
from tests.pipeline.test_computation import OUT, Row, Rows, table
from tests.pipeline.test_turn import LOG, Action, Oracle, actions

END = 2**63
PLACES = {"a": -END, "b": -7, "c": -7, "d": 0, "e": 1, "f": 2**40, "g": END - 1}
"""At both ends, at the borders, and two keys at one place."""

BORDERS = (-END + 1, -7, -6, 0, 1, 2, END - 1)

Span = tuple[int, int]


class Stage:
    """All key ranges of a computation, each with its versions on disk."""

    def __init__(self, folder: Path, computation: Rows) -> None:
        self.folder, self.computation, self.batch = folder, computation, 0
        self.ranges: dict[Span, Segments] = {(-END, END): Segments(str(folder))}
        self.held: dict[Span, tuple[lowwater.Watermark | None, Due | None]] = {}

    def run(self, rows: pa.Table, low: int, now: int, inner: Sequence[int]) -> list[str]:
        """Make the next version, in ranges with these borders."""
        self.batch += 1
        folder = self.folder / str(self.batch)
        folder.mkdir()
        update = ComputationUpdate(self.computation, OUT, now)
        produced: list[str] = []
        made: dict[Span, Segments] = {}
        self.held = {}
        for handle, span in enumerate(zip((-END, *inner), (*inner, END), strict=True)):
            parents = [
                Parent(segments, None if old == span or (span[0] <= old[0] and old[1] <= span[1]) else overlap)
                for old, segments in self.ranges.items()
                if (overlap := (max(span[0], old[0]), min(span[1], old[1])))[0] < overlap[1]
            ]
            places = np.asarray(rows["lowwater_place"])
            mine = rows.filter(pa.array((places >= span[0]) & (places <= span[1] - 1)))
            after, emitted, hold, _ = update.update_relaid(parents, mine, lowwater.Watermark(low))
            before = parents[0].segments
            written = write_segments(after, before, str(folder), f"{handle:05}-0")
            made[span] = Segments(str(folder), written, tuple(after.facts))
            self.held[span] = hold, after.due
            produced += [] if emitted is None else emitted["out/what"].to_pylist()
        self.ranges = made
        return produced

    def logs(self) -> Iterator[tuple[Span, Any, list[str]]]:
        for span, segments in self.ranges.items():
            found: dict[Any, list[str]] = {}
            for piece in pieces_of(segments):
                for row in piece.read().to_pylist():
                    found[row["key"]] = [] if row.get("state") is None else LOG.decode(row["state"])
            for key, log in found.items():
                if log:
                    yield span, key, log


steps = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(0, 40), actions), max_size=6),
        st.integers(0, 15),
        st.integers(0, 15),
        st.sets(st.sampled_from(BORDERS)),
    ),
    min_size=1,
    max_size=7,
)
Steps = list[tuple[list[tuple[str, int, list[Action]]], int, int, set[int]]]


@settings(max_examples=60)
@given(steps, st.sampled_from([1, 5]), st.booleans())
def test_every_key_meets_what_its_oracle_does_however_its_range_is_cut(
    history: Steps, length: int, in_order: bool
) -> None:
    oracles = {key: Oracle(length) for key in PLACES}
    waiting: list[Row] = []
    low, now, number = MIN, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), Rows(length, in_order=in_order))
        for i, (given_rows, step, tick, inner) in enumerate(history):
            low = max(low, 0) + step if i else MIN
            now += tick
            rows = [(key, micros, number + j, do) for j, (key, micros, do) in enumerate(given_rows)]
            number += len(rows)
            waiting += rows
            ready = [row for row in waiting if not in_order or row[1] < low]
            waiting = [row for row in waiting if row not in ready]
            made = table(rows)
            at = made.schema.get_field_index("lowwater_place")
            made = made.set_column(
                at, "lowwater_place", pa.array([PLACES[key] for key in made["lowwater_key"].to_pylist()], pa.int64())
            )
            produced = stage.run(made, low, now, sorted(inner))
            expected = []
            for key, oracle in oracles.items():
                oracle.turn([Record(t, each, {"do": do}) for name, t, each, do in ready if name == key], low, now)
                expected += oracle.out
                oracle.out.clear()
            assert len(produced) == len(expected)
            logs = list(stage.logs())
            assert sorted((key, log) for _, key, log in logs) == sorted((k, o.log) for k, o in oracles.items() if o.log)
            for span, key, _ in logs:
                assert span[0] <= PLACES[key] < span[1], "a key is in the range of its place"
            for span, (hold, due) in stage.held.items():
                mine = [oracle for key, oracle in oracles.items() if span[0] <= PLACES[key] < span[1]]
                timers = [each for oracle in mine for each in oracle.timers["set"]]
                rings = [each for oracle in mine for each in oracle.timers["wall"]]
                late = [micros for key, micros, _, _ in waiting if span[0] <= PLACES[key] < span[1]]
                holds = [*(held for _, _, held in [*timers, *rings]), *(micros // length * length for micros in late)]
                least = min(holds, default=None)
                assert hold == (None if least is None else lowwater.Watermark(least))
                assert due == Due(
                    min([*(at for at, _, _ in timers), *(micros + 1 for micros in late)], default=None),
                    min((at for at, _, _ in rings), default=None),
                )
