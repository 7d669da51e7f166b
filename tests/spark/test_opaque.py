"""An injector over a source of which nobody can say where it ends: it begins a pipeline all the same. A stage over it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater.watermark import MIN
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.head import Candidates, Heads
from lowwater_spark.sources.kafka import went_back
from lowwater_spark.sources.opaque import OpaqueSource, OpenOpaque
from tests.kit.times import mark
from tests.spark.flow import HOUR, Flow
from tests.spark.support import begun, low, row
from tests.spark.tape import Tape, TapeSource

pytestmark = pytest.mark.spark

DAY = "2013-01-09T00:00:00Z"


@pytest.fixture
def tape(flow: Flow) -> Tape:
    flow.spark.dataSource.register(TapeSource)
    return Tape(flow.folder / "tape")


def taped(flow: Flow) -> DataFrame:
    return flow.spark.readStream.format("tape").load(str(flow.folder / "tape"))


def newest(rows: DataFrame, batch: lws.Batch) -> lowwater.Watermark:
    [[micros]] = rows.agg(sf.unix_micros(sf.max("t"))).collect()
    return max(batch.previous_frontier, lowwater.Watermark(MIN if micros is None else micros))


class Beginning:
    """An injector whose rows come in order, and which hands them over."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.stage = lws.injector(flow.spark, "begin", key="key", event_time="t", ranges=2, address=flow.address)
        self.ran: list[tuple[int, bool, str]] = []

    def write(self, rows: DataFrame, batch: lws.Batch) -> None:
        batch.frontier(newest(rows, batch))
        batch.write(rows, self._flow.folder / "out")
        self.ran.append((batch.id, batch.replayed, str(batch.previous_frontier)))

    def start(self, frame: DataFrame, **options: object) -> lws.TrackedQuery:
        checkpoint = self._flow.folder / "ck-begin"
        query = self.stage.foreach_batch(frame, self.write, checkpoint=checkpoint, **options)  # type: ignore[arg-type]
        self._flow.queries.append(query)
        return query


def lines(flow: Flow, batch: int) -> list[str]:
    plan = CheckpointLog(flow.folder / "ck-begin").plan(batch)
    assert plan is not None
    return [*plan.lines]


def test_a_python_data_source_begins_a_pipeline(flow: Flow, lw: lowwater.Client, tape: Tape) -> None:
    (flow.folder / "out").mkdir()
    begin = Beginning(flow)
    tape.put(row("a", 9), row("a", 9, 30), row("b", 10, 15))
    query = begin.start(taped(flow))
    flow.eventually(lambda: low(lw, "begin") == mark(10, 15), "the frontier of what was read")
    handed_over = flow.spark.readStream.schema("key string, t timestamp").option("recursiveFileLookup", "true")
    stage = lws.stage(
        flow.spark, "hourly", inputs=["begin"], key="key", event_time="t", ranges=2, stamp=HOUR, address=flow.address
    )
    flow.queries.append(
        stage.foreach_batch(
            handed_over.parquet(str(flow.folder / "out")), flow.windows, checkpoint=flow.folder / "ck-hourly"
        )
    )
    flow.eventually(lambda: low(lw, "hourly") == mark(10), "what reads it follows")
    assert flow.closed() == [("09:00", "a", 2)]
    query.stop()
    tape.put(row("a", 11))
    begin.start(taped(flow))
    flow.eventually(lambda: low(lw, "hourly") == mark(11), "and goes on after a restart")
    assert flow.closed() == [("09:00", "a", 2), ("10:00", "b", 1)]
    assert begin.ran[-1][1:] == (False, str(mark(10, 15)))
    assert low(lw, "begin") == mark(11)
    assert json.loads(lines(flow, 0)[0]) == {"tape": {"line": 3}}


REFUSED: dict[str, Callable[[Flow, lws.Stage], object]] = {
    "a plain query": lambda flow, stage: stage.start(taped(flow), checkpoint=flow.folder / "ck", format="noop"),
    "a function": lambda flow, stage: stage.foreach_batch(taped(flow), flow.plain, checkpoint=flow.folder / "ck"),
    "beside files": lambda flow, stage: stage.foreach_batch(
        flow.read().union(taped(flow)), flow.plain, checkpoint=flow.folder / "ck"
    ),
    "driven": lambda flow, stage: stage.foreach_batch(
        lws.drive(taped(flow), inputs=["source"], event_time="t"), flow.plain, checkpoint=flow.folder / "ck"
    ),
    "behind an injector": lambda flow, stage: Beginning(flow).stage.foreach_batch(
        taped(flow), flow.plain, checkpoint=flow.folder / "ck", also=[stage]
    ),
}


def test_a_stage_that_reads_inputs_is_refused_and_touches_nothing(flow: Flow, tape: Tape) -> None:
    stage = lws.stage(flow.spark, "stage", inputs=["source"], key="key", event_time="t", address=flow.address)
    for start in REFUSED.values():
        with pytest.raises(Unsupported, match=r"The source tape in a stage with inputs \(.*source\)") as refusal:
            start(flow, stage)
        assert "lws.injector()" in refusal.value.fix
    assert not (flow.folder / "ck").exists()


def test_a_source_that_gives_its_rows_once_is_refused(flow: Flow) -> None:
    spelt = "org.apache.spark.sql.execution.streaming.sources.TextSocketSourceProvider"
    frame = flow.spark.readStream.format(spelt).options(host="127.0.0.1", port="1").load()
    with pytest.raises(Unsupported, match=r"The source \S*socket cannot .* gives its rows once"):
        Beginning(flow).start(frame.selectExpr("value as key", f"timestamp'{DAY}' as t"))


@pytest.mark.parametrize(
    ("kind", "before", "now", "text"),
    [
        ("rate", "9", "8", "the offset of the source rate has gone back, from 9 to 8: .* adopt=True"),
        ("kafka", '{"t":{"0":5}}', '{"t":5}', "is no offset of Kafka"),
        ("tape", '{"line":4}', "4", "was an object .* and is a number .*another source is in its place"),
        ("tape", "-", "{", "is no offset of tape"),
    ],
)
def test_an_offset_that_goes_back_or_differs_fails(kind: str, before: str, now: str, text: str, tmp_path: Path) -> None:
    source = OpenOpaque(kind, tmp_path, went_back if kind == "kafka" else None)
    source.read_to(before)
    source.confirm(before)
    with pytest.raises(CheckpointMismatch, match=text):
        source.read_to(now)


def test_unknown_holds_whoever_would_wait_for_such_a_source(tmp_path: Path) -> None:
    source = OpaqueSource("rate").open(begun(tmp_path), 0)
    heads = Heads([source]).list_heads(["7"])
    assert heads is not None
    waiting = Candidates[str]([source])
    waiting.add("W", heads)
    assert waiting.newest_reached(["9"], forget=False) is None
    assert waiting.missing() == ["the source rate (lowwater does not know where it ends)"]


def test_what_a_source_has_noted_is_named_until_a_batch_with_it_is_committed(tmp_path: Path) -> None:
    source = OpenOpaque("rate", tmp_path / "0")
    assert source.evidence("1") == []
    (tmp_path / "0").mkdir()
    (tmp_path / "0/0").touch()
    (tmp_path / "0/.0.1.tmp").touch()
    assert source.evidence("1") == source.evidence("1") == [tmp_path / "0/0"], "it may have failed to be synced"
    source.confirm("1")
    (tmp_path / "0/1").touch()
    assert source.evidence("2") == [tmp_path / "0/1"]
