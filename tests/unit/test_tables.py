"""The table of a function, kept in segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater_spark.track.segments import NextSegments, Segment, Segments, write_segments
from lowwater_spark.track.state.spread import by_handle
from lowwater_spark.track.state.tables import TABLE, read_table, split_table

KEEP, APPEND, PREPEND, FILTER, AROUND, TWICE, NOTHING = range(7)


def rows(start: int, n: int) -> pa.Table:
    numbers = range(start, start + n)
    pairs = [{"n": i, "few": [i, None]} for i in numbers]
    return pa.table({"n": pa.array(numbers, pa.int64()), "text": [f"t{i}" for i in numbers], "pair": pairs})


class Range:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.last = Segments(str(folder))
        self.written = 0
        """Rows in all."""

    @property
    def state(self) -> pa.Table | None:
        return read_table(self.last)

    def batch(self, name: str, change: Any) -> NextSegments:
        state = read_table(self.last)
        after = split_table(change(state), state, self.last)
        folder = self._folder / name
        folder.mkdir()
        self.last = Segments(str(folder), write_segments(after, self.last, str(folder), "00000-1"), after.facts)
        assert self.last.facts == ((TABLE,) if self.last.segments else ())
        self.written += sum(segment.table.num_rows for segment in after.segments if not isinstance(segment, Segment))
        return after


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 40)), max_size=12))
def test_a_function_gets_the_table_that_it_has_returned(tmp_path_factory: Any, steps: list[tuple[int, int]]) -> None:
    """Against a plain table, whatever was kept, moved, merged or left out."""
    range_ = Range(tmp_path_factory.mktemp("range"))
    expected: pa.Table | None = None
    for at, (kind, n) in enumerate(steps):
        new = rows(1000 * at, n)

        def change(state: pa.Table | None, kind: int = kind, n: int = n, new: pa.Table = new) -> pa.Table | None:
            if state is None or kind == NOTHING:
                return None if kind == NOTHING else new
            return {
                KEEP: lambda: state,
                APPEND: lambda: pa.concat_tables([state, new]),
                PREPEND: lambda: pa.concat_tables([new, state]),
                FILTER: lambda: state.filter(pa.array([i % n != 0 for i in range(state.num_rows)])),
                AROUND: lambda: pa.concat_tables([state.slice(n), new, state.slice(0, n)]),
                TWICE: lambda: pa.concat_tables([state, new, state]) if state.num_rows < 1000 else state,
            }[kind]()

        expected = change(expected)
        range_.batch(f"{at}", change)
        if expected is not None and not expected.num_rows:
            expected = None
        assert (range_.state is None) == (expected is None)
        assert range_.state is None or range_.state.equals(expected)


@pytest.mark.parametrize("at_end", [True, False])
def test_who_appends_writes_what_is_new_and_has_few_pieces(tmp_path: Path, at_end: bool) -> None:
    """64 batches: a row is written a few times in all, and not once in each of them."""
    range_ = Range(tmp_path)
    range_.batch("first", lambda _: rows(0, 10_000))
    first = range_.last.segments[0]
    for at in range(64):
        new = rows(10_000 + 10 * at, 10)
        range_.batch(f"{at}", lambda state, new=new: pa.concat_tables([state, new] if at_end else [new, state]))
        assert len(range_.last.segments) <= 8
    state = range_.state
    assert state is not None
    assert state.num_rows == 10_640
    segment = range_.last.segments[0 if at_end else -1]
    assert (segment.rows, segment.size) == (first.rows, first.size)
    assert Path(range_.last.folder, segment.name).stat().st_nlink == 65
    assert range_.written < 10_000 + 640 * 8


def test_the_state_of_an_older_release_goes_on(tmp_path: Path) -> None:
    """An older release's state is one file, and in segments as soon as it changes."""
    old = tmp_path / "00000-7.state"
    with pa.OSFile(str(old), "wb") as file, pa.ipc.new_file(file, rows(0, 5).schema) as writer:
        writer.write_table(rows(0, 5))
    range_ = Range(tmp_path)
    range_.last = Segments(str(tmp_path), whole=str(old))
    range_.batch("0", lambda state: pa.concat_tables([state, rows(5, 1)]))
    assert range_.state == rows(0, 6)


ROWS = st.lists(st.lists(st.integers(0, 5) | st.just(65_535), max_size=20), max_size=6)


@given(ROWS, st.sampled_from([0, 300, 1 << 20]))
def test_each_range_has_its_rows_in_their_order_whatever_went_to_the_file(batches: list[list[int]], most: int) -> None:
    """Against a dictionary. With ``most`` 0 every batch goes to a file of its own."""
    parts_told: list[tuple[Any, pa.RecordBatch]] = []
    expected: dict[int, list[str]] = {}
    for handles in batches:
        texts = [f"{len(parts_told)} {i}" for i in range(len(handles))]
        rows = {"text": pa.array(texts, pa.string()), "pair": [{"a": i, "b": [None, i]} for i in range(len(handles))]}
        parts_told.append((np.array(handles, np.uint16), pa.RecordBatch.from_pydict(rows, schema=_SCHEMA)))
        for handle, text in zip(handles, texts, strict=True):
            expected.setdefault(handle, []).append(text)
    tables = [(handle, pa.Table.from_batches(parts)) for handle, parts in by_handle(parts_told, most)]
    assert [handle for handle, _ in tables] == sorted(expected)
    for handle, rows in tables:
        assert rows["text"].to_pylist() == expected[handle]
        assert [row["b"][1] for row in rows["pair"].to_pylist()] == [int(t.split()[1]) for t in expected[handle]]


_SCHEMA = pa.schema([("text", pa.string()), ("pair", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))]))])


def test_what_waits_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range is read by itself from what has been written: all of a task would not fit."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    rows = pa.RecordBatch.from_pydict({"n": np.arange(100_000)})
    handles = (np.arange(100_000) % 50).astype(np.uint16)
    stream = by_handle([(handles, rows)] * 10, most=rows.nbytes)
    most = 0
    before = pa.total_allocated_bytes()
    for _, parts in stream:
        assert sum(part.num_rows for part in parts) == 20_000
        most = max(most, pa.total_allocated_bytes() - before)
        del parts
    assert most < 3 * rows.nbytes
    assert list(tmp_path.iterdir()) == []
