"""Sorts the rows of a task by key range. Pure, except for a file without a name.

The task sorts them, not Spark: a stable sort by a small number takes a few milliseconds in the
worker, but Spark's of whole rows a sixth of the batch. Large inputs are spilled to disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["by_handle"]

MOST: Final = 128 << 20
"""Bytes of rows in memory before they go to a file. Sorting needs twice as much besides."""

Handles = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class _Run:
    """A part of the rows, sorted by handle."""

    numbers: dict[int, int]
    """Index of the part with the rows of each handle."""
    read: Callable[[int], pa.RecordBatch]
    """Reader of a part by its index."""


def by_handle(
    batches: Iterable[tuple[Handles, pa.RecordBatch]], most: int = MOST
) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Yield each handle that has rows, in order, with its rows in their order. O(rows).

    ``batches`` has the rows, and a handle for each row. Rows beyond ``most`` bytes are kept in a
    file, and read again one handle at a time.
    """
    with ExitStack() as stack:
        runs: list[_Run] = []
        waiting: list[tuple[Handles, pa.RecordBatch]] = []
        size = 0
        for handles, batch in batches:
            # Spill before ``batch`` is added: _sorted() makes one Arrow batch of the waiting rows,
            # which has room for 2 GB of text a column.
            if waiting and size + batch.nbytes > most:
                runs.append(_spilled(waiting, stack))
                waiting, size = [], 0
            waiting.append((handles, batch))
            size += batch.nbytes
        if waiting:
            runs.append(_in_memory(waiting))
            waiting = []
        for handle in sorted({handle for run in runs for handle in run.numbers}):
            yield handle, [run.read(run.numbers[handle]) for run in runs if handle in run.numbers]


def _sorted(waiting: Sequence[tuple[Handles, pa.RecordBatch]]) -> list[tuple[int, pa.RecordBatch]]:
    """Return the rows of each handle, as consecutive slices of one piece of memory."""
    import pyarrow as pa

    handles = np.concatenate([batch_handles for batch_handles, _ in waiting])
    if not len(handles):
        return []
    order = np.argsort(handles, kind="stable")
    handles = handles[order]
    [rows] = pa.Table.from_batches([batch for _, batch in waiting]).combine_chunks().to_batches()
    rows = rows.take(pa.array(order))
    starts = [0, *(np.flatnonzero(np.diff(handles)) + 1).tolist()]
    return [
        (int(handles[start]), rows.slice(start, end - start))
        for start, end in zip(starts, [*starts[1:], len(handles)], strict=True)
    ]


def _in_memory(waiting: Sequence[tuple[Handles, pa.RecordBatch]]) -> _Run:
    parts = _sorted(waiting)
    return _Run({handle: i for i, (handle, _) in enumerate(parts)}, lambda i: parts[i][1])


def _spilled(waiting: Sequence[tuple[Handles, pa.RecordBatch]], stack: ExitStack) -> _Run:
    import pyarrow as pa

    # Spark's Python worker may end by os._exit(), without clean-up: a file without a name vanishes
    # with its process, and a named one would stay.
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    unnamed = tempfile.TemporaryFile(dir=folder if folder and Path(folder).is_dir() else None)  # noqa: SIM115  # the stack closes it
    file: Any = stack.enter_context(unnamed)
    numbers: dict[int, int] = {}
    with pa.ipc.new_file(pa.PythonFile(file, "w"), waiting[0][1].schema) as writer:
        for handle, rows in _sorted(waiting):
            numbers[handle] = len(numbers)
            writer.write_batch(rows)
    file.seek(0)
    return _Run(numbers, pa.ipc.open_file(pa.PythonFile(file, "r")).get_batch)
