"""The rows of a task, by key range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater_spark.track.spread import by_handle

ROWS = st.lists(st.lists(st.integers(0, 5) | st.just(65_535), max_size=20), max_size=6)


@given(ROWS, st.sampled_from([0, 300, 1 << 20]))
def test_each_range_has_its_rows_in_their_order_whatever_went_to_the_file(batches: list[list[int]], most: int) -> None:
    """Against a dictionary. With ``most`` 0 every batch goes to a file of its own."""
    told: list[tuple[Any, pa.RecordBatch]] = []
    expected: dict[int, list[str]] = {}
    for handles in batches:
        texts = [f"{len(told)} {i}" for i in range(len(handles))]
        rows = {"text": pa.array(texts, pa.string()), "pair": [{"a": i, "b": [None, i]} for i in range(len(handles))]}
        told.append((np.array(handles, np.uint16), pa.RecordBatch.from_pydict(rows, schema=_SCHEMA)))
        for handle, text in zip(handles, texts, strict=True):
            expected.setdefault(handle, []).append(text)
    found = [(handle, pa.Table.from_batches(parts)) for handle, parts in by_handle(told, most)]
    assert [handle for handle, _ in found] == sorted(expected)
    for handle, rows in found:
        assert rows["text"].to_pylist() == expected[handle]
        assert [each["b"][1] for each in rows["pair"].to_pylist()] == [int(t.split()[1]) for t in expected[handle]]


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
