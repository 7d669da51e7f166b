"""Tracked stages from end to end: a real authority, real queries."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from tests.kit.eventually import eventually
from tests.kit.times import at, mark
from tests.process.serving import Serving
from tests.spark.flow import HOUR, Flow
from tests.spark.proxy import Proxy
from tests.spark.support import Follower, Upstream, low, row
from tests.spark.updates import HOURLY, hourly


def alive(query: lws.TrackedQuery) -> bool:
    return query.query.isActive


def test_a_stage_that_keeps_nothing_follows_its_inputs(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9), row("b", 9, 30)])
    upstream.at(10)
    query = flow.start(flow.plain)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the stage has read all that 10:00 covers")
    assert flow.batches == [(0, "2013-01-09T10:00:00Z", False)]
    # Idle: no batch comes, and the stage still follows within five seconds.
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "idle", seconds=5)
    assert len(flow.batches) == 1
    assert (query.stage_status().batch, query.stage_status().ticks, query.stage_status().late_rows) == (0, 0, 0)
    flow.feed.put([row("a", 10, 59)])
    flow.eventually(lambda: query.stage_status().late_rows == 1, "a broken promise is seen")
    assert query.stage_status().late_example == "2013-01-09T10:59:00Z in batch 1"
    assert low(lw, "stage") == mark(11)
    out = flow.folder / "out"
    assert sorted(path.name for path in out.iterdir()) == ["_lowwater_writers", "batch=0", "batch=1"]
    assert flow.spark.read.option("recursiveFileLookup", "true").parquet(str(out)).count() == 3


def test_windows_close_exactly_and_without_rows(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9), row("a", 9, 30), row("b", 9, 10), row("c", 10, 5)])
    upstream.at(9, 45)
    query = flow.start(flow.windows, stamp=HOUR)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "floored to the start of the window, for empty ranges too")
    assert flow.out == []
    # No more rows: the windows close because the watermark passes, in a batch that the stage asks for.
    upstream.at(10, 20)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the window of nine is written")
    assert flow.closed() == [("09:00", "a", 2), ("09:00", "b", 1)]
    upstream.at(12)
    flow.eventually(lambda: low(lw, "stage") == mark(12), "nothing is held any more")
    assert flow.closed()[2:] == [("10:00", "c", 1)]
    assert query.stage_status().ticks == 2, "one batch per window that closes, none for a watermark that closes nothing"
    assert lw.get("stage")["stage"].heuristic[0.99] == mark(12)


def test_one_range_that_stalls_holds_the_whole_and_is_named(
    flow: Flow, lw: lowwater.Client, upstream: Upstream
) -> None:
    flow.feed.put([row("a", 9)] * 300 + [row("stuck", 9, 30)])
    upstream.at(11, 30)
    flow.start(flow.windows, stamp=HOUR)
    flow.eventually(lambda: flow.closed() == [("09:00", "a", 300)], "the other range closes")
    flow.eventually(lambda: low(lw, "stage") == mark(9), "held by what is stuck")
    values = sorted(str(each.watermark) for each in lw.ranges("stage"))
    assert values == ["2013-01-09T09:00:00Z"] + ["2013-01-09T11:00:00Z"] * 3
    held = lw.complete("stage", at(10))
    assert not held
    assert [str(each.watermark) for each in held.holders] == ["2013-01-09T09:00:00Z"]
    flow.eventually(lambda: lw.get("stage")["stage"].heuristic[0.99] == mark(11), "one record of 301 is no 1 %")
    # It goes on being the only one, without a batch for each step of the inputs that closes nothing new.
    upstream.at(12, 30)
    flow.eventually(lambda: max(each.watermark for each in lw.ranges("stage")) == mark(12), "the others go on")
    assert low(lw, "stage") == mark(9)
    flow.feed.put([row("stuck", 12, 45)])
    flow.eventually(lambda: low(lw, "stage") == mark(12), "set free")
    assert flow.closed() == [("09:00", "a", 300), ("09:00", "stuck", 1)]


def test_backlog_latest_first_counts_w_only_when_all_is_read(
    flow: Flow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """C1a: each batch takes the newest file only, and W covers rows in all of them."""
    for hour in (9, 10, 11, 8):
        flow.feed.put([row("a", hour)], mtime=1_700_000_000 + hour)
    upstream.at(12)
    lw.register("stage", inputs=["source"], key_hash="xxhash64")
    follower = Follower(flow.address, flow.folder / "ck", mark(12))
    stream = flow.read(maxFilesPerTrigger="1", latestFirst="true")
    query = flow.start(flow.plain, stream=stream)
    early = [lows for lows, batch in follower.seen(query) if not lows.unknown and (batch is None or batch < 3)]
    assert early == []
    assert [batch for batch, *_ in flow.batches] == [0, 1, 2, 3]
    assert [lows for _, lows, _ in flow.batches] == ["unknown"] * 3 + ["2013-01-09T12:00:00Z"]


def test_tasks_that_fail_die_or_are_cut_off(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    """A failing and retried task; a killed Python worker; a task whose report never arrives (C2)."""

    def once(name: str) -> bool:
        try:
            (tmp_path / name).open("x").close()
        except FileExistsError:
            return False
        return True

    def fragile(handle: int, state: pa.Table | None, rows: pa.Table, low: lowwater.Watermark) -> Any:
        result = hourly(handle, state, rows, low)
        keys = rows["key"].to_pylist()
        if "fails" in keys and once("failed"):
            msg = "the first attempt fails"
            raise RuntimeError(msg)
        if "dies" in keys and once("died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def windows(rows: DataFrame, batch: lws.Batch) -> None:
        closed = batch.stateful(rows, fragile, HOURLY)
        flow.out.extend((batch.id, r.hour.isoformat()[11:16], r.key, r.n) for r in closed.collect())

    cutting = threading.Event()
    with Proxy(flow.address, lambda request: cutting.is_set() and request.task.partition == 0) as proxy:
        flow.address = proxy.address
        upstream.at(9)
        query = flow.start(windows, stamp=HOUR)
        flow.feed.put([row("fails", 9)])
        flow.eventually(lambda: query.stage_status().batch == 0, "the batch with a failing task")
        flow.feed.put([row("dies", 9)])
        flow.eventually(lambda: query.stage_status().batch == 1, "the batch with a dying worker")
        assert (tmp_path / "failed").exists()
        assert (tmp_path / "died").exists()
        flow.eventually(lambda: low(lw, "stage") == mark(9), "both were staged again by the attempt that succeeded")
        assert query.stage_status().holding == ""

        cutting.set()
        flow.feed.put([row("a", 9)])
        flow.eventually(lambda: query.stage_status().holding, "the batch is committed, but one part is missing")
        upstream.at(11)
        assert "never arrived" in query.stage_status().holding
        assert low(lw, "stage") == mark(9)
        assert len({(each.batch, each.task.attempt) for each in proxy.lost}) >= 1
        cutting.clear()
        flow.eventually(lambda: low(lw, "stage") == mark(11), "an empty batch stages it again")
        assert query.stage_status().holding == ""
        assert query.stage_status().ticks >= 1
        assert flow.closed() == [("09:00", "a", 1), ("09:00", "dies", 1), ("09:00", "fails", 1)]
        query.stop()


def test_rule11_the_pipeline_goes_on_without_the_authority(
    flow: Flow, lw: lowwater.Client, authority: Serving, upstream: Upstream
) -> None:
    """Rule 11: batches go on, watermarks stop; afterwards they are right."""
    flow.feed.put([row("a", 9)])
    upstream.at(9, 30)
    query = flow.start(flow.windows, stamp=HOUR)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "tracked")
    authority.kill()
    flow.feed.put([row("b", 9)])
    flow.eventually(lambda: query.stage_status().batch == 1, "a batch without the authority")
    flow.feed.put([row("c", 9)])
    flow.eventually(lambda: query.stage_status().batch == 2, "and another one")
    assert query.stage_status().holding
    authority.start()
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "it is found again")
    assert flow.closed() == [("09:00", key, 1) for key in "abc"]
    assert query.stage_status().holding == ""


def test_two_queries_of_one_name(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    """C9c: the second is refused, unless it adopts the name; then the first stops."""
    upstream.at(9)
    first = flow.start(flow.plain)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "the first runs")
    with pytest.raises(ValueError, match="is running in this session"):
        flow.start(flow.plain, checkpoint="ck2")
    with pytest.raises(ValueError, match="is running in this process"):
        flow.start(flow.plain, query_name="again")
    (flow.folder / "link").symlink_to(flow.folder / "ck")
    with pytest.raises(ValueError, match="is running in this process"):
        flow.start(flow.plain, checkpoint="link", query_name="again")
    with pytest.raises(lowwater.IdentityMismatch):
        flow.start(flow.plain, checkpoint="ck2", query_name="again")
    assert alive(first)
    second = flow.start(lambda rows, batch: rows.count(), checkpoint="ck2", query_name="again", adopt=True)
    with pytest.raises(lowwater.StaleSequencer):
        first.await_termination(30)
    assert not alive(first)
    eventually(lambda: low(lw, "stage") == mark(9), "the second runs, in a new incarnation")
    assert lw.get("stage")["stage"].incarnation == 2
    assert alive(second)


def test_c9b_a_copy_of_an_older_checkpoint_is_refused(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(9)
    query = flow.start(flow.plain)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "batch 0")
    query.stop()
    shutil.copytree(flow.folder / "ck", flow.folder / "older")
    flow.feed.put([row("a", 10)])
    upstream.at(10)
    query = flow.start(flow.plain)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "batch 1")
    query.stop()
    with pytest.raises(lowwater.Rewound, match="batch 1 of stage is committed"):
        flow.start(flow.plain, checkpoint="older")
    # The true one goes on.
    query = flow.start(flow.plain)
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "restarted")
    assert [batch for batch, *_ in flow.batches] == [0, 1]


def test_a_commit_that_the_disk_lost_is_a_replay_and_no_rewind(
    flow: Flow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Spark does not sync its commit log: the authority may know a batch that the checkpoint has forgotten."""
    flow.feed.put([row("a", 9)])
    upstream.at(9)
    query = flow.start(flow.windows)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "batch 0")
    query.stop()
    for name in ("0", ".0.crc"):
        (flow.folder / "ck/commits" / name).unlink()
    upstream.at(11)
    flow.start(flow.windows)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "the same batch, with the same digest")
    assert [(batch, replayed) for batch, _, replayed in flow.batches][:2] == [(0, False), (0, True)]
    assert flow.closed() == [("09:00", "a", 1)]


def test_c1b_targets_fixed_at_the_start_leave_rows_behind(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    """AvailableNow reads what was there at its start: W that was read later does not count, although the query has ended."""
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    waited: list[object] = []

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        flow.plain(rows, batch)
        if batch.id == 0:
            flow.feed.put([row("b", 13, 59)])
            upstream.at(14)
            waited.append(
                flow.eventually(
                    lambda: flow.queries and flow.queries[-1].stage_status().waiting_for, "W=14:00 has been read"
                )
            )

    query = flow.start(write_batch, trigger={"availableNow": True})
    assert query.await_termination(60)
    assert low(lw, "stage") == mark(10)
    assert query.stage_status().waiting_for == waited[0] == (str(flow.feed.folder / "00002.json"),)
    query = flow.start(flow.plain, trigger={"availableNow": True})
    assert query.await_termination(60)
    assert low(lw, "stage") == mark(14)


def test_c5_a_reset_of_an_input_stops_the_query_and_its_checkpoint(
    flow: Flow, lw: lowwater.Client, upstream: Upstream
) -> None:
    upstream.at(9)
    flow.feed.put([row("a", 9)])
    query = flow.start(flow.plain)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "the first incarnation")
    lw.reset("source")
    with pytest.raises(lowwater.StaleSequencer):
        query.await_termination(30)
    with pytest.raises(lowwater.IncarnationChanged, match="new checkpoint"):
        flow.start(flow.plain)
    assert low(lw, "stage").unknown


def test_an_error_of_the_users_function_ends_the_query_and_holds(
    flow: Flow, lw: lowwater.Client, upstream: Upstream
) -> None:
    def fails(rows: DataFrame, batch: lws.Batch) -> None:
        batch.write(rows, flow.folder / "out")
        msg = "of the user"
        raise KeyError(msg)

    flow.feed.put([row("a", 9)])
    upstream.at(10)
    query = flow.start(fails)
    with pytest.raises(KeyError, match="of the user"):
        query.await_termination(60)
    with pytest.raises(KeyError, match="of the user"):
        flow.eventually(lambda: low(lw, "stage") == mark(10), "what will never come: the wait ends at once")
    assert low(lw, "stage").unknown
    flow.start(flow.plain)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "mended")
    assert [batch for batch, *_ in flow.batches] == [0]
    out = flow.spark.read.option("recursiveFileLookup", "true").parquet(str(flow.folder / "out"))
    assert out.count() == 1, "S6: written by the run that failed, skipped by the replay"


def test_rule6_a_batch_that_has_built_its_state_and_written_nothing_is_replayed_with_the_w_of_its_plan(
    flow: Flow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """S5: W has passed both hours meanwhile. Were it seen by the replay, windows would close in a batch that is planned without them."""

    def fails(rows: DataFrame, batch: lws.Batch) -> None:
        flow.windows(rows, batch)
        msg = "before anything is written"
        raise KeyError(msg)

    flow.feed.put([row("a", 9), row("b", 9), row("c", 10)])
    upstream.at(9, 30)
    query = flow.start(fails, stamp=HOUR)
    with pytest.raises(KeyError, match="before anything is written"):
        query.await_termination(60)
    flow.feed.put([row("a", 10)])
    upstream.at(12)
    flow.start(flow.windows, stamp=HOUR)
    flow.eventually(lambda: low(lw, "stage") == mark(12), "everything is closed")
    planned = "2013-01-09T09:30:00Z"
    assert flow.batches[:2] == [(0, planned, False), (0, planned, True)]
    assert flow.out[0][0] == 1, "batch 0 closes nothing, at no attempt"
    assert flow.closed() == [("09:00", "a", 1), ("09:00", "b", 1), ("10:00", "a", 1), ("10:00", "c", 1)]


def test_a_restart_with_other_key_ranges(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    """Claims cross the borders of the old ones."""
    flow.feed.put([row("a", 9)])
    upstream.at(9)
    query = flow.start(flow.plain)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "four ranges")
    query.stop()
    flow.start(flow.plain, ranges=3)
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "three ranges")
    assert lw.ranges("stage").total == 3


def test_a_frontier_too_far_ahead_is_refused_and_shown(flow: Flow, lw: lowwater.Client) -> None:
    """H9: one bad timestamp must not poison the watermark; nor may it make batch after batch."""

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        batch.frontier(dt.datetime(2099, 1, 1, tzinfo=dt.UTC))

    declared = lws.injector(flow.spark, "flights", key="key", event_time="t", ranges=2, address=flow.address)
    query = declared.foreach_batch(flow.read(), write_batch, checkpoint=flow.folder / "ck")
    flow.queries.append(query)
    flow.feed.put([row("a", 9)])
    flow.eventually(lambda: "TOO_FAR_AHEAD" in query.stage_status().holding, "refused")
    assert low(lw, "flights").unknown
    assert query.stage_status().ticks == 0


def test_an_injector_reports_what_is_outstanding(flow: Flow, lw: lowwater.Client) -> None:
    """Announced records hold the watermark until they arrive; the frontier comes from the rows alone."""

    def update(handle: int, state: pa.Table | None, rows: pa.Table, low: lowwater.Watermark) -> Any:
        outstanding = {} if state is None else dict(zip(state["id"].to_pylist(), state["t"].to_pylist(), strict=True))
        arrived = []
        for entry in rows.to_pylist():
            if entry["kind"] == "board":
                outstanding[entry["id"]] = entry["t"]
            elif entry["kind"] == "flight":
                outstanding.pop(entry["id"], None)
                arrived.append({"id": entry["id"], "t": entry["t"]})
        schema = pa.schema([("id", pa.string()), ("t", pa.timestamp("us", "UTC"))])
        kept = pa.Table.from_pylist([{"id": i, "t": t} for i, t in outstanding.items()], schema)
        return (
            kept,
            pa.Table.from_pylist(arrived, schema),
            min(outstanding.values(), default=None),
            outstanding.values(),
        )

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        [last] = rows.where("kind = 'beat'").select(sf.unix_micros(sf.max("t"))).collect()
        if last[0] is not None:
            batch.frontier(max(lowwater.Watermark(last[0]), batch.previous_frontier))
        flights = batch.stateful(rows.where("kind <> 'beat'"), update, "id string, t timestamp")
        batch.write(flights, flow.folder / "flights")

    def entry(kind: str, id_: str, hour: int, minute: int = 0) -> dict[str, str]:
        return {"kind": kind, "id": id_, "t": at(hour, minute).isoformat()}

    declared = lws.injector(flow.spark, "flights", key="id", event_time="t", ranges=4, stamp=HOUR, client=lw)
    stream = flow.read("kind string, id string, t timestamp")
    query = declared.foreach_batch(stream, write_batch, checkpoint=flow.folder / "ck")
    flow.queries.append(query)
    flow.feed.put([entry("board", "x", 9), entry("board", "y", 10), entry("beat", "", 11)])
    flow.eventually(lambda: low(lw, "flights") == mark(9), "x is outstanding")
    flow.feed.put([entry("flight", "x", 9)])
    flow.eventually(lambda: low(lw, "flights") == mark(10), "y is outstanding")
    flow.feed.put([entry("flight", "y", 10)])
    flow.eventually(lambda: low(lw, "flights") == mark(11), "the frontier")
    query.stop()
    query = declared.foreach_batch(stream, write_batch, checkpoint=flow.folder / "ck")
    flow.queries.append(query)
    flow.feed.put([entry("beat", "", 12, 30)])
    flow.eventually(
        lambda: low(lw, "flights") == mark(12), "a restarted injector goes on from its last frontier, of whole hours"
    )
    assert query.stage_status().batch == 3
