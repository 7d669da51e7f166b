"""State updates that the tests run in executors, and the drivers that crash on purpose."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import lowwater

HOURLY = "hour timestamp, key string, n long"


def hourly(
    handle: int, state: pa.Table | None, rows: pa.Table, low: lowwater.Watermark
) -> tuple[pa.Table, pa.Table | None, Any, pa.Array]:
    """Counts per key and hour, in windows that close when the low watermark passes their end.

    The windows of the key "stuck" close only after a second row of it has come, whatever the watermark says.
    """
    rows = rows.select(["key", "t"])
    if state is not None:
        rows = pa.concat_tables([state, rows])
    starts = pc.floor_temporal(rows["t"], unit="hour")
    closed = _passed(pc.add(starts, pa.scalar(timedelta(hours=1))), low)
    if rows["key"].to_pylist().count("stuck") == 1:
        closed = pc.and_(closed, pc.not_equal(rows["key"], "stuck"))
    done = pa.table({"hour": starts, "key": rows["key"]}).filter(closed)
    counted = done.group_by(["hour", "key"]).aggregate([([], "count_all")]).rename_columns(["hour", "key", "n"])
    open_ = pc.invert(closed)
    unchanged = state is not None and rows.num_rows == state.num_rows and not done.num_rows
    rest = state if unchanged else rows.filter(open_)
    assert rest is not None
    return rest, counted, pc.min(starts.filter(open_)).as_py(), rest["t"]


def _passed(ends: pa.ChunkedArray, low: lowwater.Watermark) -> pa.Array:
    if low.unknown or low.finished:
        return pa.chunked_array([[low.finished] * len(ends)], pa.bool_())
    return pc.less_equal(ends, pa.scalar(low.datetime(), ends.type))
