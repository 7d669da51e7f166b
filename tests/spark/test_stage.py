"""Tracked stages from end to end: a real authority, real queries."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import DataFrame

import lowwater
import lowwater_spark as lws
from tests.kit.eventually import eventually
from tests.kit.times import at, mark
from tests.process.serving import Serving
from tests.spark.flow import HOUR, Flow
from tests.spark.proxy import Proxy
from tests.spark.support import Follower, Upstream, low, row


def alive(query: lws.TrackedQuery) -> bool:
    return query.query.isActive


def test_a_stage_that_keeps_nothing_follows_its_inputs(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9), row("b", 9, 30)])
    upstream.at(10)
    query = flow.start(flow.plain)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the stage has read all that 10:00 covers")
    assert flow.batches == [(0, "2013-01-09T10:00:00Z", False)]
    # Idle: no batch comes, and the stage still follows.
    upstream.at(11)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "idle")
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


def test_one_range_that_stalls_holds_all_and_is_named(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9)] * 300 + [row("stuck", 9, 30)])
    upstream.at(11, 30)
    flow.start(flow.windows, stamp=HOUR)
    flow.eventually(lambda: flow.closed() == [("09:00", "a", 300)], "the other range closes")
    flow.eventually(lambda: low(lw, "stage") == mark(9), "held by what is stuck")
    values = sorted(str(entry.watermark) for entry in lw.ranges("stage"))
    assert values == ["2013-01-09T09:00:00Z"] + ["2013-01-09T11:00:00Z"] * 3
    answer = lw.complete("stage", at(10))
    assert not answer
    assert [str(holder.watermark) for holder in answer.holders] == ["2013-01-09T09:00:00Z"]
    flow.eventually(lambda: lw.get("stage")["stage"].heuristic[0.99] == mark(11), "one record of 301 is no 1 %")
    # It goes on being the only one, without a batch for each step of the inputs that closes nothing new.
    upstream.at(12, 30)
    flow.eventually(lambda: max(entry.watermark for entry in lw.ranges("stage")) == mark(12), "the others go on")
    assert low(lw, "stage") == mark(9)
    flow.feed.put([row("stuck", 12, 45)])
    flow.eventually(lambda: low(lw, "stage") == mark(12), "set free")
    assert flow.closed() == [("09:00", "a", 300), ("09:00", "stuck", 1)]


def test_latest_first_counts_w_only_when_all_is_read(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
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


def test_a_part_that_never_arrives_holds_until_staged(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    cutting = threading.Event()
    with Proxy(flow.address, lambda request: cutting.is_set() and request.task.partition == 0) as proxy:
        flow.address = proxy.address
        upstream.at(9)
        query = flow.start(flow.windows, stamp=HOUR)
        flow.feed.put([row("b", 9)])
        flow.eventually(lambda: low(lw, "stage") == mark(9), "tracked")
        assert query.stage_status().holding == ""
        cutting.set()
        flow.feed.put([row("a", 9)])
        flow.eventually(lambda: query.stage_status().holding, "the batch is committed, but one part is missing")
        upstream.at(11)
        assert "never arrived" in query.stage_status().holding
        assert low(lw, "stage") == mark(9)
        assert proxy.lost
        cutting.clear()
        flow.eventually(lambda: low(lw, "stage") == mark(11), "an empty batch stages it again")
        assert query.stage_status().holding == ""
        assert query.stage_status().ticks >= 1
        assert flow.closed() == [("09:00", "a", 1), ("09:00", "b", 1)]
        query.stop()


def test_rule11_the_pipeline_goes_on_without_the_authority(
    flow: Flow, lw: lowwater.Client, authority: Serving, upstream: Upstream
) -> None:
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


def test_rule6_the_next_claim_applies_no_uncommitted_batch(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    prepared: list[tuple[int, lowwater.Watermark]] = []

    def fails_once(step: str, number: int) -> None:
        if step == "prepared":
            prepared.append((number, low(lw, "stage")))
            if len(prepared) == 1:
                raise ConnectionResetError(step)

    flow.feed.put([row("a", 9)])
    upstream.at(9)
    with pytest.raises(Exception, match="prepared"):
        flow.start(flow.plain, probe=fails_once).await_termination(60)
    flow.queries.clear()
    upstream.at(11)
    flow.start(flow.plain, probe=fails_once)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "it is committed")
    assert prepared[:2] == [(0, lowwater.Watermark.UNKNOWN)] * 2
    planned = "2013-01-09T09:00:00Z"
    assert flow.batches[:2] == [(0, planned, False), (0, planned, True)], "the replay has the W of its plan"


def test_two_queries_of_one_name(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
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


AVAILABLE_NOW = {"availableNow": True}


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

    query = flow.start(write_batch, trigger=AVAILABLE_NOW)
    assert query.await_termination(60)
    assert low(lw, "stage") == mark(10)
    assert query.stage_status().waiting_for == waited[0] == (str(flow.feed.folder / "00002.json"),)
    query = flow.start(flow.plain, trigger=AVAILABLE_NOW)
    assert query.await_termination(60)
    assert low(lw, "stage") == mark(14)


def test_a_restart_with_other_key_ranges(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(9)
    query = flow.start(flow.plain)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "four ranges")
    query.stop()
    flow.start(flow.plain, ranges=3)
    upstream.at(10)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "three ranges")
    assert lw.ranges("stage").total == 3
