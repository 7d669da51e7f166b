"""Several tracked stages in one query: one W and one batch, what each holds is its own, and what one emits the next may read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater.watermark import MAX, MIN
from lowwater_spark.checkpoint.identity import check_names
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.stages import Declared, check_together
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.run.progress import AfterBatch, passed_on
from tests.kit.times import mark
from tests.spark.flow import HOUR, Flow
from tests.spark.support import Upstream, as_before, begun, low, row
from tests.spark.updates import HOURLY, hourly


def declared(
    name: str,
    *inputs: str,
    heuristics: Sequence[float] = (0.99,),
    client: object = "a",
    retention: timedelta | None = None,
) -> Declared:
    return Declared(name, inputs, heuristics, client, retention)


def test_which_stages_stand_together() -> None:
    a, b, c = declared("a", "x", "y"), declared("b", "y", "x"), declared("c", "a", "b")
    assert check_together([a, b, c]) == [[], [], ["a", "b"]]
    assert check_together([declared("in"), declared("out", "in"), declared("more", "z")]) == [[], ["in"], []]
    assert check_together([declared("a", "x", retention=HOUR), declared("in")]) == [[], []], "Spark holds no injector"


@pytest.mark.parametrize(
    ("stages", "text"),
    [
        ([declared("a", "x"), declared("a", "x")], "two stages of the query are named 'a'"),
        ([declared("a", "x"), declared("b", "x", client="b")], "different clients"),
        ([declared("a", "x"), declared("b", "y")], "stages of one query read the same"),
        ([declared("a", "b"), declared("b", "x")], "name b first"),
        ([declared("a", "x"), declared("b", "a", "x")], "b, which reads a of the same query and x from outside"),
        ([declared("a", "x"), declared("b", "x", heuristics=[0.9])], "different heuristics"),
        ([declared("a", "x"), declared("b", "x", retention=HOUR)], "b has the retention 1:00:00 and a, .* None"),
        ([declared("a", "x", retention=HOUR), declared("b", "a")], "declare the largest one in all"),
    ],
)
def test_which_do_not(stages: list[Declared], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_together(stages)


def test_a_checkpoint_keeps_its_stages(tmp_path: Path) -> None:
    check_names(tmp_path, ["a", "b"])
    check_names(tmp_path, ["a", "c"])  # nothing has been planned yet
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").touch()
    check_names(tmp_path, ["a", "c"])
    for other in (["a"], ["a", "b"], ["c", "a"], ["a", "c", "d"]):
        with pytest.raises(CheckpointMismatch, match="begun by the stages a, c"):
            check_names(tmp_path, other)
    begun(tmp_path).keep("stages", None)
    check_names(tmp_path, ["any"])  # a checkpoint of one stage, also of a release without the list
    with pytest.raises(CheckpointMismatch, match="begun by one stage"):
        check_names(tmp_path, ["a", "b"])


@pytest.mark.parametrize(
    ("holds", "window", "reading", "passed"),
    [
        ([], None, Reading(14, {1: 20}), Reading(14, {1: 20})),
        ([None, 9], None, Reading(14, {1: 20}), Reading(9, {1: 9})),
        ([None, 17], None, Reading(14, {1: 20}), Reading(14, {1: 14})),
        ([5], None, Reading(MAX, {1: MAX}), Reading(5, {1: 5})),
        ([], None, Reading(MIN), Reading(MIN)),
        ([], HOUR, Reading(3_600_000_001, {1: 3_600_000_002}), Reading(3_600_000_000, {1: 3_600_000_000})),
    ],
)
def test_what_a_stage_passes_on(holds: list[int | None], window: Any, reading: Reading, passed: Reading) -> None:
    assert passed_on(AfterBatch(0, [0], reading, held=holds), reading, window) == passed


class Pair(Flow):
    """A query of two stages. The second is called "rejected", or reads the first."""

    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        super().__init__(spark, address, folder)
        self.lows: list[tuple[int, str, str]] = []

    def declare(self, name: str, *inputs: str, **options: Any) -> lws.Stage:
        settings: dict[str, Any] = {"key": "key", "event_time": "t", "ranges": 4} | options
        return lws.stage(self.spark, name, inputs=inputs or ["source"], address=self.address, **settings)

    def run(self, write: Any, *also: lws.Stage, checkpoint: str = "ck", **options: Any) -> lws.TrackedQuery:
        first = self.declare("enriched", **options)
        query = first.foreach_batch(self.read(), write, checkpoint=self.folder / checkpoint, also=also)
        self.queries.append(query)
        return query

    def both(self, rows: DataFrame, batch: lws.Batch) -> None:
        """Good rows are written at once, the others are counted by the hour."""
        other = batch.of("rejected")
        self.lows.append((batch.id, str(batch.low), str(other.low)))
        assert (other.id, other.replayed) == (batch.id, batch.replayed)
        batch.write(rows.where("key not like 'bad%'"), self.folder / "enriched")
        closed = other.stateful(rows.where("key like 'bad%'"), hourly, HOURLY)
        other.write(closed, self.folder / "rejected")
        self.out.extend((batch.id, r.hour.isoformat()[11:16], r.key, r.n) for r in closed.collect())

    def chain(self, rows: DataFrame, batch: lws.Batch) -> None:
        """The first holds what is stuck and passes the rest on; the second counts by the hour."""
        passed = batch.stateful(rows, wait_for_second, "key string, t timestamp")
        last = batch.of("hourly")
        self.lows.append((batch.id, str(batch.low), str(last.low)))
        closed = last.stateful(passed, hourly, HOURLY)
        last.write(closed, self.folder / "hourly")
        self.out.extend((batch.id, r.hour.isoformat()[11:16], r.key, r.n) for r in closed.collect())


def wait_for_second(handle: int, state: pa.Table | None, rows: pa.Table, low: lowwater.Watermark) -> Any:
    """Pass every row on at once; those of the key "pair" in twos."""
    rows = rows.select(["key", "t"])
    if state is not None:
        rows = pa.concat_tables([state, rows])
    waits = rows["key"].to_pylist().count("pair") == 1
    mask = pa.array([waits and key == "pair" for key in rows["key"].to_pylist()], pa.bool_())
    rest = rows.filter(mask)
    times = rest["t"].to_pylist()
    return rest, rows.filter(pa.array([not v for v in mask.to_pylist()], pa.bool_())), min(times, default=None), times


FLOW = Pair


def test_two_outputs_of_a_query_have_own_ranges_and_state(flow: Pair, lw: lowwater.Client, upstream: Upstream) -> None:
    rejected = flow.declare("rejected", key=sf.upper("key"), ranges=3, stamp=HOUR)
    flow.feed.put([row("a", 9), row("bad", 9, 30), row("bad", 10)])
    upstream.at(9, 45)
    query = flow.run(flow.both, rejected)
    flow.eventually(lambda: low(lw, "enriched") == mark(9, 45), "nothing is held")
    flow.eventually(lambda: low(lw, "rejected") == mark(9), "the window of nine is open")
    assert flow.lows == [(0, "2013-01-09T09:45:00Z", "2013-01-09T09:45:00Z")], "one W for both"
    assert (lw.ranges("enriched").total, lw.ranges("rejected").total) == (4, 3)
    upstream.at(10, 30)
    flow.eventually(lambda: low(lw, "rejected") == mark(10), "closed in an empty batch")
    flow.eventually(lambda: low(lw, "enriched") == mark(10, 30), "which the other one goes along with")
    assert flow.closed() == [("09:00", "bad", 1)]
    assert query.stage_status("rejected").reported == mark(10)
    assert query.stage_status().reported == mark(10, 30)
    with pytest.raises(ValueError, match="it has enriched, rejected"):
        query.stage_status("other")
    query.stop()
    # A restart begins from both states, also of a checkpoint that a release without the manifest has left.
    as_before(flow.folder / "ck")
    query = flow.run(flow.both, rejected)
    assert query.stage_status("rejected").reported == mark(10)
    upstream.lease.finish()
    flow.eventually(lambda: low(lw, "rejected").finished and low(lw, "enriched").finished, "nothing is held any more")
    assert flow.closed() == [("09:00", "bad", 1), ("10:00", "bad", 1)]
    query.stop()
    for also in ([], [flow.declare("more")]):
        with pytest.raises(CheckpointMismatch, match="begun by the stages enriched, rejected"):
            flow.run(flow.plain, *also)


def test_all_stages_follow_an_input_registered_after_them(flow: Pair, lw: lowwater.Client, upstream: Upstream) -> None:
    first = flow.declare("enriched", "source", "later")
    flow.feed.put([row("a", 9), row("bad", 9, 30)])
    upstream.at(11)
    also = [flow.declare("hourly", "enriched", stamp=HOUR)]
    query = first.foreach_batch(flow.read(), flow.chain, checkpoint=flow.folder / "ck", also=also)
    flow.queries.append(query)
    Upstream(lw, "later").at(10)
    flow.eventually(lambda: [low(lw, name) for name in query.stages] == [mark(10)] * 2, "both know both inputs")
    assert {key for _, key, _ in flow.closed()} == {"a", "bad"}


def test_m4_a_later_stage_follows_the_earlier_in_one_batch(flow: Pair, lw: lowwater.Client, upstream: Upstream) -> None:
    last = flow.declare("hourly", "enriched", ranges=2, stamp=HOUR)
    flow.feed.put([row("a", 9), row("pair", 9, 20), row("b", 10, 5)])
    upstream.at(10, 30)
    query = flow.run(flow.chain, last)
    flow.eventually(lambda: low(lw, "enriched") == mark(9, 20), "the first holds one of a pair")
    flow.eventually(lambda: low(lw, "hourly") == mark(9), "and the second cannot close nine")
    assert flow.lows == [(0, "2013-01-09T10:30:00Z", "2013-01-09T09:20:00Z")]
    assert flow.closed() == []
    flow.feed.put([row("pair", 10, 40)])
    flow.eventually(lambda: low(lw, "hourly") == mark(10), "the pair is whole")
    assert flow.lows[1] == (1, "2013-01-09T10:30:00Z", "2013-01-09T10:30:00Z"), "the same batch, not the next one"
    assert flow.closed() == [("09:00", "a", 1), ("09:00", "pair", 1)]
    upstream.at(11)
    flow.eventually(lambda: low(lw, "hourly") == mark(11), "idle: a window of the second closes")
    assert flow.closed()[2:] == [("10:00", "b", 1), ("10:00", "pair", 1)]
    assert query.stage_status("hourly").late_rows == 0


@pytest.mark.parametrize(
    ("early", "text"),
    [
        (True, "a later stage of the query, or an output, says already what enriched holds"),
        (False, "give each stage an output of its own"),
    ],
)
def test_what_a_function_of_several_stages_can_get_wrong(
    early: bool, text: str, flow: Pair, lw: lowwater.Client, upstream: Upstream
) -> None:
    def misuse(rows: DataFrame, batch: lws.Batch) -> None:
        other = batch.of("hourly")
        if early:
            assert other.low is not None
            batch.stateful(rows, hourly, HOURLY)
        batch.write(rows, flow.folder / "out")
        other.write(rows, flow.folder / "out")

    upstream.at(9)
    flow.feed.put([row("a", 9)])
    query = flow.run(misuse, flow.declare("hourly", "enriched"))
    with pytest.raises(ValueError, match=text):
        query.await_termination(60)
    assert low(lw, "enriched").unknown


def test_an_injector_and_what_reads_it_in_one_query(flow: Pair, lw: lowwater.Client) -> None:
    first = lws.injector(flow.spark, "flights", key="key", event_time="t", ranges=2, address=flow.address)
    last = flow.declare("hourly", "flights", stamp=HOUR)

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        [[newest]] = rows.agg(sf.unix_micros(sf.max("t"))).collect()
        batch.frontier(max(batch.previous_frontier, lowwater.Watermark(MIN if newest is None else newest)))
        closed = batch.of("hourly").stateful(rows, hourly, HOURLY)
        flow.out.extend((batch.id, r.hour.isoformat()[11:16], r.key, r.n) for r in closed.collect())

    flow.queries.append(first.foreach_batch(flow.read(), write_batch, checkpoint=flow.folder / "ck", also=[last]))
    flow.feed.put([row("a", 9), row("a", 10, 30)])
    flow.eventually(lambda: low(lw, "flights") == mark(10, 30), "the frontier")
    flow.eventually(lambda: low(lw, "hourly") == mark(10), "closed by the frontier of its own batch")
    assert flow.closed() == [("09:00", "a", 1)]
