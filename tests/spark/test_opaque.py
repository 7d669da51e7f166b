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
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import NONE
from lowwater_spark.sources.head import Candidates, Heads
from lowwater_spark.sources.kafka import went_back
from lowwater_spark.sources.opaque import OpaqueSource, OpenOpaque
from tests.kit.times import at, mark
from tests.spark.flow import HOUR, Flow
from tests.spark.support import begun, low, row
from tests.spark.tape import Tape, TapeSource
from tests.spark.updates import HOURLY, hourly

pytestmark = pytest.mark.spark

DAY = "2013-01-09T00:00:00Z"


@pytest.fixture
def tape(flow: Flow) -> Tape:
    flow.spark.dataSource.register(TapeSource)
    return Tape(flow.folder / "tape")


def taped(flow: Flow) -> DataFrame:
    return flow.spark.readStream.format("tape").load(str(flow.folder / "tape"))


def counted(flow: Flow) -> DataFrame:
    """Ten rows a batch, all of one minute, each batch a minute later."""
    options = {"rowsPerBatch": 10, "startTimestamp": at(9).timestamp() * 1000, "advanceMillisPerBatch": 60_000}
    source = flow.spark.readStream.format("rate-micro-batch").options(**{k: str(int(v)) for k, v in options.items()})
    return source.load().selectExpr("string(value % 3) as key", "timestamp as t")


def newest(rows: DataFrame, batch: lws.Batch) -> lowwater.Watermark:
    [[found]] = rows.agg(sf.unix_micros(sf.max("t"))).collect()
    return max(batch.previous_frontier, lowwater.Watermark(MIN if found is None else found))


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


def test_durable_before_reported_a_batch_that_runs_again_finds_the_same_rows_and_frontier(
    flow: Flow, lw: lowwater.Client, tape: Tape
) -> None:
    """Whether it dies when it has begun, is written, staged or prepared: one batch after the other, each of one row."""
    begin = Beginning(flow)
    steps = ["begun", "written", "staged", "prepared"]

    def fail(reached: str, number: int) -> None:
        if 0 < number <= len(steps) and reached == steps[number - 1] and number not in died:
            died.append(number)
            tape.put(row(f"{number + 1}", 10 + number))  # the next run must not take it for a part of this batch
            raise ConnectionResetError(reached)

    died: list[int] = []
    tape.put(row("0", 9))
    query = begin.start(taped(flow), probe=fail)
    flow.eventually(lambda: low(lw, "begin") == mark(9), "the first batch")
    tape.put(row("1", 10))
    for number, step in enumerate(steps, start=1):
        with pytest.raises(Exception, match=step):
            query.await_termination(120)
        assert low(lw, "begin") <= mark(8 + number), "what is not committed is not reported"
        flow.queries.clear()
        query = begin.start(taped(flow), probe=fail)
    flow.eventually(lambda: low(lw, "begin") == mark(14), "the rest")
    assert [json.loads(lines(flow, batch)[0])["tape"]["line"] for batch in range(6)] == [1, 2, 3, 4, 5, 6]
    for number in range(1, 5):
        assert [each for each in begin.ran if each[0] == number][-1] == (number, True, str(mark(8 + number)))
    out = flow.spark.read.option("basePath", str(flow.folder / "out")).parquet(str(flow.folder / "out"))
    assert sorted((r.batch, r.key) for r in out.collect()) == [(number, f"{number}") for number in range(6)]


def test_two_sources_in_one_query(flow: Flow, lw: lowwater.Client, tape: Tape) -> None:
    begin = Beginning(flow)
    tape.put(row("x", 8))
    query = begin.start(counted(flow).union(taped(flow)))
    flow.eventually(lambda: low(lw, "begin") >= mark(9, 2), "a minute each batch")
    tape.put(row("y", 8, 30))
    flow.eventually(
        lambda: json.loads(lines(flow, query.stage_status().batch or 0)[1]) == {"tape": {"line": 2}}, "the other"
    )
    query.stop()
    before = query.stage_status().batch
    reached = low(lw, "begin")
    assert before is not None
    query = begin.start(counted(flow).union(taped(flow)))
    flow.eventually(lambda: low(lw, "begin") > reached, "and on after a restart")
    query.stop()
    last = query.stage_status().batch
    assert last is not None
    out = flow.spark.read.option("basePath", str(flow.folder / "out")).parquet(str(flow.folder / "out"))
    rows = out.where(f"batch <= {last}").groupBy("key").count().collect()
    counts = {r.key: r["count"] for r in rows}
    assert (counts.pop("x"), counts.pop("y")) == (1, 1)
    assert sum(counts.values()) == 10 * (last + 1), "each row once"


def test_rate_is_told_from_when_it_counts(flow: Flow, lw: lowwater.Client) -> None:
    """What the source has noted for itself is made durable with its batch, like the plan."""
    begin = Beginning(flow)
    frame = flow.spark.readStream.format("rate").load().selectExpr("string(value) as key", "timestamp as t")
    query = begin.start(frame)
    flow.eventually(lambda: not low(lw, "begin").unknown, "the first seconds")
    query.stop()
    checkpoint = flow.folder / "ck-begin"
    source = OpaqueSource("rate").open(begun(checkpoint, 99), 0)
    assert {path.name for path in source.evidence(NONE)} >= {"0"}
    assert isinstance(json.loads(lines(flow, 0)[0]), int)


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


@pytest.mark.parametrize("how", REFUSED)
def test_a_stage_that_reads_inputs_is_refused_and_touches_nothing(how: str, flow: Flow, tape: Tape) -> None:
    stage = lws.stage(flow.spark, "stage", inputs=["source"], key="key", event_time="t", address=flow.address)
    with pytest.raises(Unsupported, match=r"The source tape in a stage with inputs \(.*source\)") as refusal:
        REFUSED[how](flow, stage)
    assert "lws.injector()" in refusal.value.fix
    assert not (flow.folder / "ck").exists()


def test_what_reads_the_injector_in_its_own_query_is_taken(flow: Flow, lw: lowwater.Client, tape: Tape) -> None:
    last = lws.stage(
        flow.spark, "hourly", inputs=["begin"], key="key", event_time="t", ranges=2, stamp=HOUR, address=flow.address
    )

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        batch.frontier(newest(rows, batch))
        closed = batch.of("hourly").stateful(rows, hourly, HOURLY)
        flow.out.extend((batch.id, r.hour.isoformat()[11:16], r.key, r.n) for r in closed.collect())

    tape.put(row("a", 9), row("a", 10, 30))
    flow.queries.append(
        Beginning(flow).stage.foreach_batch(taped(flow), write, checkpoint=flow.folder / "ck", also=[last])
    )
    flow.eventually(lambda: low(lw, "hourly") == mark(10), "closed by the frontier of its own batch")
    assert flow.closed() == [("09:00", "a", 1)]


@pytest.mark.parametrize(
    "spelt", ["socket", "org.apache.spark.sql.execution.streaming.sources.TextSocketSourceProvider"]
)
def test_a_source_that_gives_its_rows_once_is_refused(spelt: str, flow: Flow) -> None:
    frame = flow.spark.readStream.format(spelt).options(host="127.0.0.1", port="1").load()
    with pytest.raises(Unsupported, match=r"The source \S*socket cannot .* gives its rows once"):
        Beginning(flow).start(frame.selectExpr("value as key", f"timestamp'{DAY}' as t"))


def test_a_checkpoint_keeps_the_kinds_of_its_sources(flow: Flow, lw: lowwater.Client, tape: Tape) -> None:
    begin = Beginning(flow)
    tape.put(row("a", 9))
    query = begin.start(taped(flow))
    flow.eventually(lambda: low(lw, "begin") == mark(9), "the first batch")
    query.stop()
    flow.queries.clear()
    for other in (counted(flow), flow.read()):
        with pytest.raises(
            CheckpointMismatch, match=r"begun with foreach_batch\(\), 1 source\(s\) \(tape\), .*adopt=True"
        ):
            begin.start(other)
    # A release that kept no kinds knew none but files and controls.
    manifest = Manifest(flow.folder / "ck-begin")
    query_section = {**manifest["query"], "kinds": None}
    manifest.keep("query", query_section)
    with pytest.raises(CheckpointMismatch, match=r"1 source\(s\) \(tape\)"):
        begin.start(taped(flow))


def test_a_line_that_is_no_offset_is_refused_before_the_claim(flow: Flow, lw: lowwater.Client, tape: Tape) -> None:
    begin = Beginning(flow)
    tape.put(row("a", 9))
    query = begin.start(taped(flow))
    flow.eventually(lambda: low(lw, "begin") == mark(9), "the first batch")
    query.stop()
    flow.queries.clear()
    plan = flow.folder / "ck-begin/offsets/0"
    version, settings, _, ticks = plan.read_text().splitlines()
    plan.write_text("\n".join([version, settings, "???", ticks]))
    before = lw.ranges("begin")
    with pytest.raises(CheckpointMismatch, match=r"'\?\?\?' is no offset of tape, which are JSON"):
        begin.start(taped(flow))
    assert lw.ranges("begin") == before, "nothing was claimed"


@pytest.mark.parametrize(
    ("kind", "before", "now", "said"),
    [
        ("rate", "9", "8", "the offset of the source rate has gone back, from 9 to 8: .* adopt=True"),
        ("kafka", '{"t":{"0":5,"1":7}}', '{"t":{"0":6,"1":6}}', "gone back, partition 1 of t from 7 to 6"),
        ("kafka", '{"t":{"0":5}}', '{"t":5}', "is no offset of Kafka"),
        ("tape", '{"line":4}', "4", "was an object .* and is a number .*another source stands in its place"),
        ("tape", "[1]", '"end"', "was a list .* and is a text"),
        ("tape", '{"line":4}', "-", "was an object .* and is nothing"),
        ("tape", "-", "{", "is no offset of tape"),
    ],
)
def test_an_offset_that_goes_back_or_changes_its_kind_is_refused(
    kind: str, before: str, now: str, said: str, tmp_path: Path
) -> None:
    source = OpenOpaque(kind, tmp_path, went_back if kind == "kafka" else None)
    source.read_to(before)
    source.confirm(before)
    with pytest.raises(CheckpointMismatch, match=said):
        source.read_to(now)


@pytest.mark.parametrize(
    ("kind", "before", "now"),
    [
        ("rate", "8", "8"),
        ("rate", "-", "0"),
        ("kafka", '{"t":{"0":5}}', '{"t":{"0":5,"1":1}}'),
        ("kafka", '{"t":{"0":5},"u":{"0":3}}', '{"t":{"0":6}}'),
        ("tape", '{"file":7,"line":3}', '{"file":8,"line":0}'),
    ],
)
def test_what_only_the_source_understands_is_taken(kind: str, before: str, now: str, tmp_path: Path) -> None:
    source = OpenOpaque(kind, tmp_path, went_back if kind == "kafka" else None)
    source.confirm(before)
    source.read_to(now)


def test_unknown_holds_whoever_would_wait_for_such_a_source(tmp_path: Path) -> None:
    """Rule 1: if a reading waited for it all the same, it would wait for ever, and say for what."""
    source = OpaqueSource("rate").open(begun(tmp_path), 0)
    heads = Heads([source]).list_heads(["7"])
    assert heads is not None
    waiting = Candidates[str]([source])
    waiting.add("W", heads)
    assert waiting.newest_reached(["9"], forget=False) is None
    assert waiting.missing() == ["the source rate (nobody can say where it ends)"]


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
