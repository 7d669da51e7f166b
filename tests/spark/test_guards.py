"""What a user's function can get wrong without noticing: each is refused before anything is promised."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import lowwater
import lowwater_spark as lws
from lowwater.watermark import MIN
from lowwater_spark.batch import Batch, Keyed
from lowwater_spark.batchlog import BatchEntry, BatchLog
from lowwater_spark.errors import CheckpointMismatch, StateLost, Unsupported
from lowwater_spark.handover import publish_directory
from lowwater_spark.reading import Reading
from lowwater_spark.staging import Destination
from lowwater_spark.state import StateStore
from lowwater_spark.tracking import Rows
from tests.process.serving import Serving
from tests.spark.proxy import Proxy
from tests.spark.support import Upstream, low, row, until
from tests.spark.test_stage import HOUR, Flow, mark
from tests.spark.updates import HOURLY, hourly

NO_FRAME = cast(DataFrame, None)
"""Nothing is asked of the rows before the refusal."""


def a_batch(checkpoint: Path, *, replayed: bool) -> Batch:
    return Batch(
        BatchEntry(3, "aa", Reading(14), MIN),
        Keyed(["key"], "t", 2, injector=False),
        checkpoint,
        BatchLog(checkpoint),
        Destination(None, "stage", 1, 3),
        replayed=replayed,
        previous_frontier=MIN,
        ordinal=1,
        swept=set(),
        probe=lambda _point, _batch: None,
    )


def test_a_batch_that_had_not_begun_does_not_skip_its_write(tmp_path: Path) -> None:
    out = tmp_path / "out"
    publish_directory(out, "batch=3", "aa", lambda folder: (folder / "rows").touch(), ordinal=1)
    assert not a_batch(tmp_path / "ck", replayed=True).write(NO_FRAME, out)
    with pytest.raises(CheckpointMismatch, match="no run of this checkpoint had begun batch 3"):
        a_batch(tmp_path / "ck", replayed=False).write(NO_FRAME, out)


def test_a_second_write_to_one_directory_is_found_under_any_name(tmp_path: Path) -> None:
    out = tmp_path / "out"
    publish_directory(out, "batch=3", "aa", lambda folder: (folder / "rows").touch(), ordinal=1)
    (tmp_path / "link").symlink_to(out)
    batch = a_batch(tmp_path / "ck", replayed=True)
    batch.write(NO_FRAME, out)
    for other in (tmp_path / "link", tmp_path / "x/../out"):
        with pytest.raises(ValueError, match="has been written to"):
            batch.write(NO_FRAME, other)


@pytest.mark.parametrize("mark", "{}[]*?\\")
def test_paths_that_spark_takes_for_patterns(tmp_path: Path, mark: str) -> None:
    batch = a_batch(tmp_path / "ck", replayed=False)
    with pytest.raises(Unsupported, match="pattern"):
        batch.write(NO_FRAME, tmp_path / f"a{mark}")
    with pytest.raises(Unsupported, match="pattern"):
        batch.stateful(NO_FRAME, hourly, StructType([]), tmp_path / f"a{mark}/state")
    assert not list(tmp_path.glob("a*"))


def test_a_stage_with_state_must_say_what_it_holds_in_every_batch(tmp_path: Path) -> None:
    StateStore.opened(tmp_path / "ck", tmp_path / "state", 2, batch=0, ordinal=1)
    with pytest.raises(StateLost, match=r"call batch\.stateful\(\) in every batch, also an empty one"):
        a_batch(tmp_path / "ck", replayed=False)._close(cast(Rows, NO_FRAME))


@pytest.fixture
def flow(spark: SparkSession, authority: Serving, tmp_path: Path) -> Iterator[Flow]:
    made = Flow(spark, authority.address, tmp_path)
    yield made
    for query in made.queries:
        query.stop()


@pytest.mark.parametrize("how", ["returns early", "swallows errors"])
def test_a_function_that_forgets_its_state_stops_the_query_and_holds(
    how: str, flow: Flow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """The empty batch that should close the window of nine must not let the watermark pass it."""

    def fails(*_: Any) -> Any:
        msg = "swallowed"
        raise RuntimeError(msg)

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        if how == "returns early" and rows.isEmpty():
            return
        try:
            flow.out += [
                (batch.id, "", r.key, r.n)
                for r in batch.stateful(rows, fails if batch.id else hourly, HOURLY).collect()
            ]
        except Exception:  # noqa: BLE001 - the mistake under test
            return

    flow.feed.put([row("a", 9)])
    upstream.at(9, 30)
    query = flow.start(write_batch, stamp=HOUR)
    until(lambda: low(lw, "stage") == mark(9), "the window of nine is held")
    upstream.at(11)
    with pytest.raises(StateLost, match="batch 1 ended without"):
        query.await_termination(60)
    assert low(lw, "stage") == mark(9)
    assert flow.out == []
    # A function that minds its state goes on from the same batch.
    flow.start(flow.windows, stamp=HOUR)
    until(lambda: low(lw, "stage") == mark(11), "mended")
    assert flow.closed() == [("09:00", "a", 1)]


def test_a_wrong_stamp_is_found_and_not_promised(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    """Windows of an hour, declared as if they were stamped by event time."""
    upstream.at(9, 15)
    query = flow.start(flow.windows)
    until(lambda: low(lw, "stage") == mark(9, 15), "nothing is there")
    flow.feed.put([row("a", 9, 30)])
    with pytest.raises(
        ValueError, match=r"holds a stamp of 2013-01-09T09:00:00Z.*lowest possible is 2013-01-09T09:15:00Z"
    ):
        query.await_termination(60)
    assert low(lw, "stage") == mark(9, 15)


def test_s4_a_task_that_dies_after_it_has_staged(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    """Its part says that nothing is held. The attempt that Spark accepts says what is, and that one counts."""

    def forgets_once(handle: int, state: pa.Table | None, rows: pa.Table, low: lowwater.Watermark) -> Any:
        kept, emitted, oldest, pending = hourly(handle, state, rows, low)
        if rows.num_rows and not (tmp_path / "worker").exists():
            (tmp_path / ".worker").write_text(str(os.getpid()))
            (tmp_path / ".worker").rename(tmp_path / "worker")
            return kept, emitted, None, []
        return kept, emitted, oldest, pending

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        flow.out += [(batch.id, "", r.key, r.n) for r in batch.stateful(rows, forgets_once, HOURLY).collect()]

    died: list[int] = []

    def die(request: Any) -> None:
        # The part with the row is the one of the task whose worker has said who it is.
        if not died and (tmp_path / "worker").exists() and stuck in request.handles:
            died.append(request.task.attempt)
            os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)

    flow.feed.put([row("stuck", 9, 30)])
    stuck = flow.read().sparkSession.sql(_HANDLE_OF_STUCK).collect()[0][0]
    upstream.at(11, 30)
    with Proxy(flow.address, lambda _: False, arrived=die) as proxy:
        flow.address = proxy.address
        query = flow.start(write_batch, stamp=HOUR)
        until(lambda: low(lw, "stage") != lowwater.Watermark(MIN), "batch 0")
        assert low(lw, "stage") == mark(9), "held by the row"
        assert len(died) == 1
        assert (query.status().batch, query.status().holding) == (0, "")
        query.stop()


_HANDLE_OF_STUCK = "SELECT CAST(shiftrightunsigned(xxhash64('stuck') ^ (-9223372036854775807 - 1), 62) AS int)"
"""Of four ranges: the two highest bits of the key's place."""
