"""Computations in a tracked stage: windows by timers are what a batch would compute, timers fire once and in order, and what is wrong is named and loses nothing, whatever dies."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_pipeline.computation import Codec, Computation, Context, Input, Output, Record, start
from lowwater_pipeline.computation.incoming import united
from lowwater_pipeline.computation.once import UNDECIDABLE, UNDECIDABLE_OUTPUT
from lowwater_spark.track.batch_log import BatchLog
from lowwater_spark.track.hook import Hook
from tests.kit.times import MIN, SECOND, at, mark, micros
from tests.process.serving import Serving
from tests.spark.computations import Broken, Busiest, Counts, CountsOnce, Rings
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Computed:
    """A computation that writes each output into a directory."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.begun: list[tuple[int, int, bool]] = []
        """Batch, its clock, and whether it ran before."""

    def start(self, computation: Computation, frame: DataFrame | None = None, **options: Any) -> lws.TrackedQuery:
        def write(outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
            self.begun.append((batch.id, batch.now, batch.replayed))
            for name, rows in outputs.items():
                batch.write(rows, self.flow.folder / name)

        query = start(
            computation,
            self.flow.read() if frame is None else frame,
            write,
            checkpoint=self.flow.folder / "ck",
            ranges=2,
            address=self.flow.address,
            **options,
        )
        self.flow.queries.append(query)
        return query

    def out(
        self, computation: type[Computation], output: str, declared: str | Output | None = None
    ) -> list[tuple[Any, ...]]:
        folder = self.flow.folder / output
        folder.mkdir(exist_ok=True)
        declared = declared or computation.outputs[output]
        schema = declared.schema if isinstance(declared, Output) else declared
        read = self.flow.spark.read.option("recursiveFileLookup", "true").schema(schema)
        return sorted(map(tuple, read.parquet(str(folder)).collect()))


@pytest.fixture
def computed(flow: Flow) -> Computed:
    return Computed(flow)


def test_fused_computations_go_on_in_one_batch_whatever_dies(
    computed: Computed, lw: lowwater.Client, upstream: Upstream
) -> None:
    """The second closes an hour in the batch in which the first has closed it: it has that one's rows, and the low watermark that it will report.

    The driver dies between their versions, and when the rows of both are written.
    """
    flow = computed.flow
    came: dict[str, dict[int, int]] = {"counts": {}, "busiest": {}}
    doom: list[tuple[str, int]] = []

    def fail(reached: str, number: int) -> None:
        if doom and doom[0][0] == reached:
            if doom[0][1] == 0:
                doom.clear()
                raise ConnectionResetError(reached)
            doom[0] = reached, doom[0][1] - 1

    def writes(name: str, output: str) -> Any:
        def write(outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
            for each in outputs[output].select("start").collect():
                came[name].setdefault(each.start.hour, batch.id)
            batch.write(outputs[output], flow.folder / output)
            if name == "counts":
                batch.write(outputs["keys"], flow.folder / "keys")

        return write

    def begin() -> None:
        query = start(
            Counts(),
            flow.read(),
            {"counts": writes("counts", "hours"), "busiest": writes("busiest", "busiest")},
            checkpoint=flow.folder / "ck",
            then=[Busiest()],
            ranges=2,
            address=flow.address,
            probe=fail,
        )
        flow.queries.append(query)

    begin()
    for hour, step in ((9, ("state", 0)), (10, ("written", 0))):
        flow.feed.put([row(name, hour) for name in ["a"] * hour + ["b"] * (20 - hour)])
        doom[:] = [step]
        upstream.at(hour + 1)
        with pytest.raises(Exception, match=step[0]):
            flow.queries[-1].await_termination(120)
        flow.queries.clear()
        begin()
        flow.eventually(lambda: low(lw, "busiest") == mark(hour + 1), f"{hour} o'clock is closed")  # noqa: B023
    assert low(lw, "counts") == mark(11)
    assert came["busiest"] == came["counts"], "an hour is closed by both in one batch"
    expected = [(9, "b", 11), (10, "b", 10)]
    assert [(each[0].hour, each[1], each[2], each[3]) for each in computed.out(Busiest, "busiest")] == [
        (*each, 2) for each in expected
    ]
    assert len(computed.out(Counts, "hours")) == 4


def reads(named: str, source: str = "counts", output: str | None = "hours", event_time: str = "start") -> Computation:
    """Another one, that reads otherwise."""
    made = Busiest()
    made.__dict__.update(name=named, inputs=[Input(source, key="key", event_time=event_time, output=output)])
    return made


def test_key_and_id_may_be_written_in_other_letters_than_their_columns(flow: Flow) -> None:
    class Loud(Counts):
        inputs: ClassVar[Sequence[Input]] = [Input("source", key="KEY", event_time="t", id="Key")]

    assert dict(united(Loud(), flow.read()).named) == {"lowwater_key": "key", "lowwater_id": "key"}


def test_what_cannot_be_fused_is_refused_before_anything_starts(flow: Flow) -> None:
    frame = flow.read()
    both: Any = {"counts": print, "b": print}
    wrong: list[tuple[list[Computation], Any, type[Exception], str]] = [
        ([reads("counts")], both, ValueError, "two computations of the query are called counts"),
        (
            [reads("b", "other")],
            both,
            ValueError,
            "b of then= reads other: .* names a computation before it, of counts",
        ),
        (
            [reads("b", output=None)],
            both,
            ValueError,
            "which of its outputs: add output= to the Input, one of hours, keys",
        ),
        ([reads("b", output="days")], both, ValueError, "which of its outputs"),
        (
            [reads("b", event_time="t")],
            both,
            ValueError,
            "event_time='t', and the output hours of counts is stamped by start",
        ),
        ([reads("b")], print, TypeError, r"pass write=\{'counts': \.\.\., 'b': \.\.\.\}"),
        ([reads("b")], {**both, "c": print}, TypeError, "write= names c, and the query has counts, b"),
        ([reads("b")], {"b": print}, TypeError, "nobody writes keys, of counts"),
        ([reads("b")], {"counts": print}, TypeError, "nobody writes busiest, of b"),
    ]
    for then, write, error, said in wrong:
        with pytest.raises(error, match=said):
            start(Counts(), frame, write, checkpoint=flow.folder / "ck", then=then, address=flow.address)
    assert not (flow.folder / "ck").exists()


def test_windows_by_timers_are_what_a_batch_computes_whatever_dies(
    computed: Computed, lw: lowwater.Client, upstream: Upstream
) -> None:
    """A file makes a batch, so W is ahead of what is read. The last windows close though no row comes.

    The driver dies before anything is there, when timers have fired into the state, and when the rows of others are written.
    """
    left = [("begun", MIN), ("state", micros(10, 30)), ("written", micros(12))]
    clocks: dict[int, int] = {}

    def fail(reached: str, number: int) -> None:
        entry = BatchLog(computed.flow.folder / "ck").read(number)
        assert entry is not None
        if (reached, entry.reading.low) in left:
            left.remove((reached, entry.reading.low))
            clocks[number] = entry.now
            raise ConnectionResetError(reached)

    def dies(reached: str) -> None:
        with pytest.raises(Exception, match=reached):
            flow.queries[-1].await_termination(120)
        flow.queries.clear()
        computed.start(Counts(), frame, probe=fail)

    flow = computed.flow
    sent: list[tuple[str, int]] = []
    for hour in range(3):
        names = [f"{number % 9}" for number in range(30)]
        flow.feed.put([row(name, 9 + hour, 30) for name in names])
        # Out of order, and still in time.
        flow.feed.put([row("0", 9 + hour, 59), row("1", 9 + hour, 1)])
        sent += [(name, 9 + hour) for name in [*names, "0", "1"]]
    upstream.at(10, 30)
    frame = flow.read(maxFilesPerTrigger="1")
    computed.start(Counts(), frame, probe=fail)
    dies("begun")
    dies("state")
    flow.eventually(lambda: low(lw, "counts") == mark(10), "the window of ten o'clock is open")
    assert {each[1] for each in computed.out(Counts, "hours")} == {at(9).replace(tzinfo=None)}
    upstream.at(12)
    dies("written")
    flow.eventually(lambda: low(lw, "counts") == mark(12), "nothing older will come")
    assert left == []
    counted = Counter(sent)
    number: Counter[str] = Counter()
    expected = []
    for (key, hour), n in sorted(counted.items(), key=lambda each: each[0][1]):
        expected.append((key, at(hour).replace(tzinfo=None), n, number[key]))
        number[key] += 1
    assert computed.out(Counts, "hours") == sorted(expected)
    assert [key for key, _ in computed.out(Counts, "keys")] == [str(key) for key in range(9)]
    now = [clock for _, clock, _ in computed.begun]
    assert now == sorted(now)
    assert {number: clock for number, clock, replayed in computed.begun if replayed} == clocks


def test_copies_have_no_turn_whatever_dies(computed: Computed, lw: lowwater.Client, upstream: Upstream) -> None:
    """Senders repeat in the same batch, in the next one and after a crash; one does long after everything is forgotten, which nobody can tell from a record that is late."""
    flow = computed.flow
    frame = flow.read("id string, key string, t timestamp")
    records = [{"id": f"{key}{minute}", **row(key, 9, minute)} for key in "abc" for minute in range(3)]
    doom = ["state", "written"]

    def fail(step: str, _: int) -> None:
        if doom and step == doom[0]:
            raise RuntimeError(doom.pop(0))

    upstream.at(9)
    flow.feed.put([*records[:6], *records[:3]])
    for dies in ("state", "written"):
        query = computed.start(CountsOnce(), frame, probe=fail)
        flow.eventually(lambda: not query.query.isActive, f"it dies at {dies}")  # noqa: B023
        flow.feed.put(records)
    computed.start(CountsOnce(), frame)
    flow.eventually(lambda: low(lw, "counts") == mark(9), "all records are read")
    upstream.at(10)
    flow.eventually(lambda: low(lw, "counts") == mark(10), "the window is closed")
    flow.feed.put([records[0]])
    flow.eventually(lambda: computed.out(CountsOnce, UNDECIDABLE, UNDECIDABLE_OUTPUT) != [], "it is put aside")
    [(source, key, t, rest)] = computed.out(CountsOnce, UNDECIDABLE, UNDECIDABLE_OUTPUT)
    assert (source, key, t, json.loads(rest)["id"]) == ("source", "a", at(9).replace(tzinfo=None), "a0")
    assert computed.out(CountsOnce, "hours") == [(key, at(9).replace(tzinfo=None), 3, 0) for key in "abc"]
    assert doom == []


def test_timers_fire_without_rows_and_hold_until_then(
    computed: Computed, lw: lowwater.Client, upstream: Upstream
) -> None:
    """One when W is there to the microsecond, one by the clock, which may go back meanwhile: the batches' clock does not."""
    flow = computed.flow
    query = computed.start(Rings())
    hook = query._run.batches
    assert isinstance(hook, Hook)
    flow.feed.put([row("a", 10), row("A", 10), row("b", 10, 1)])
    upstream.at(9, 50)
    flow.eventually(lambda: len(computed.out(Rings, "rings")) == 2, "those of the clock")
    hook.wall = lambda: 1.0
    flow.feed.put([row("c", 10)])
    upstream.at(10, 10)
    flow.eventually(lambda: low(lw, "rings") == mark(10), "the clock of the third stands, and it holds")
    then = computed.begun[-1][1] + 5 * SECOND
    hook.wall = lambda: then / SECOND
    flow.eventually(lambda: low(lw, "rings") == mark(10, 10), "it has fired")
    upstream.at(10, 20)
    flow.eventually(lambda: len(computed.out(Rings, "rings")) == 5, "the timers of ten o'clock")
    upstream.at(11)
    flow.eventually(lambda: low(lw, "rings") == mark(11), "all have fired")
    rings = computed.out(Rings, "rings")
    assert [(key, t.hour, t.minute, wall) for key, t, _, wall in rings] == [
        ("A", 10, 0, True),
        ("A", 10, 20, False),
        ("B", 10, 1, True),
        ("B", 10, 21, False),
        ("C", 10, 0, True),
        ("C", 10, 20, False),
    ]
    now = [clock for _, clock, _ in computed.begun]
    assert now == sorted(now)
    assert rings[4][2] == then


def test_rule11_timers_that_are_due_do_not_wait_for_the_authority(
    computed: Computed, lw: lowwater.Client, authority: Serving, upstream: Upstream
) -> None:
    """A batch is asked for as ever, and once: that the authority must be told of it asks for none before it answers."""
    flow = computed.flow
    query = computed.start(Rings())
    hook = query._run.batches
    assert isinstance(hook, Hook)
    now = 1.0
    hook.wall, hook.elapsed = lambda: now, lambda: 0.0
    upstream.at(9, 50)
    flow.feed.put([row("a", 10)])
    flow.eventually(lambda: low(lw, "rings") == mark(9, 50), "the first batch is known")
    authority.kill()
    flow.feed.put([row("b", 10, 1)])
    flow.eventually(lambda: query.stage_status().batch == 1, "a batch that nobody is told of")
    assert query.stage_status().holding
    assert computed.out(Rings, "rings") == []
    now = 2.0
    flow.eventually(lambda: len(computed.out(Rings, "rings")) == 2, "the timers of the clock")
    flow.eventually(lambda: query.stage_status().batch == 2, "their batch")
    flow.feed.put([row("c", 10, 2)])
    flow.eventually(lambda: query.stage_status().batch == 3, "the next rows")
    assert [batch for batch, _, _ in computed.begun] == [0, 1, 2, 3]
    authority.start()
    upstream.at(11)
    flow.eventually(lambda: len(computed.out(Rings, "rings")) == 5, "the timers of ten o'clock")
    flow.eventually(lambda: low(lw, "rings") == mark(10, 2), "the clock's timer of the last stands, and it holds")
    assert [(key, wall) for key, _, _, wall in computed.out(Rings, "rings")] == [
        ("A", True),
        ("A", False),
        ("B", True),
        ("B", False),
        ("C", False),
    ]


def test_records_that_wait_come_in_order_of_time_over_batches_and_restarts(
    computed: Computed, lw: lowwater.Client, upstream: Upstream
) -> None:
    """The class is of this function, so it travels whole; its key is a column, and each batch has later records than the next."""

    class Ordered(Computation):
        name = "ordered"
        inputs: ClassVar[Sequence[Input]] = [Input("source", key=lambda: sf.upper("key"), event_time="t")]
        outputs: ClassVar[Mapping[str, str | Output]] = {
            "ordered": Output("key string, t timestamp, number long", event_time="t")
        }
        state = Codec(int)
        in_order = True

        def process_record(self, ctx: Context, record: Record) -> None:
            ctx.produce("ordered", {"key": ctx.key, "t": record["t"], "number": ctx.state})
            ctx.state += 1

    flow = computed.flow
    upstream.at(10)
    query = computed.start(Ordered())
    for minute in (40, 30, 20, 10):
        if minute == 20:
            query = computed.start(Ordered())
        flow.feed.put([row("a", 10, minute), row("B", 10, minute), row("A", 10, minute + 5)])
        flow.eventually(lambda: len(computed.begun) == 5 - minute // 10, "it is read")  # noqa: B023
        if minute == 30:
            query.stop()
            flow.queries.remove(query)
    assert computed.out(Ordered, "ordered") == []
    upstream.at(10, 32)
    flow.eventually(lambda: low(lw, "ordered") == mark(10, 32), "some have passed")
    assert len(computed.out(Ordered, "ordered")) == 8
    upstream.at(11)
    flow.eventually(lambda: low(lw, "ordered") == mark(11), "all have")
    assert [(key, t.minute, number) for key, t, number in computed.out(Ordered, "ordered")] == [
        *(("A", 10 + 5 * number, number) for number in range(8)),
        *(("B", 10 + 10 * number, number) for number in range(4)),
    ]


def test_what_is_wrong_ends_the_query_by_name_and_loses_nothing(
    computed: Computed, lw: lowwater.Client, upstream: Upstream
) -> None:
    flow = computed.flow
    with pytest.raises(
        TypeError, match=r"the key of counts is of timestamp; take text, bytes or a whole number: cast it"
    ):
        computed.start(Counts(), flow.read().withColumn("key", sf.col("t")))
    for outputs, said in (
        ({"out": "a int, A int"}, "output out of counts declares a twice"),
        ({"out": "a timestamp"}, r"declare Output\('a timestamp', event_time='a'\)"),
        ({"out": Output("a int", event_time="a")}, "has no timestamp 'a' for its event time; it has none"),
    ):
        declares = Counts()
        declares.outputs = outputs  # type: ignore[misc]
        with pytest.raises(ValueError, match=said):
            computed.start(declares)
    by_column = Counts()
    by_column.inputs = [Input("source", key=sf.col("key"), event_time="t")]  # type: ignore[arg-type, misc]
    with pytest.raises(TypeError, match="or a function that returns a column, as key=lambda"):
        computed.start(by_column)
    with pytest.raises(ValueError, match="the frame has a column lowwater_key already; rename it"):
        computed.start(Counts(), flow.read().withColumn("lowwater_key", sf.lit(1)))
    flow.feed.put([row("a", 9), row("b", 9)])
    flow.feed.put([row("a", 9), {"t": row("", 9)["t"]}])
    upstream.at(10)
    frame = flow.read()
    for computation, source, said in (
        (Counts(), frame, r"1 of \d rows of counts have no key \(key\). Give each record one"),
        (Broken(), frame.where("key is not null"), "number is missing. Give each column"),
    ):
        query = computed.start(computation, source)
        with pytest.raises(Exception, match=said):
            query.await_termination(120)
        flow.queries.remove(query)
    computed.start(Counts(), frame.where("key is not null"))
    flow.eventually(lambda: low(lw, "counts") == mark(10), "it is right now")
    assert computed.out(Counts, "hours") == [
        ("a", at(9).replace(tzinfo=None), 2, 0),
        ("b", at(9).replace(tzinfo=None), 1, 0),
    ]
    assert micros(10) == low(lw, "counts").micros


def plan(query: lws.TrackedQuery) -> list[str]:
    """The operators of the last batch's plan, as Spark's explain says them, from the last to the first."""
    said: str = query.query._jsq.explainInternal(False)
    return [re.sub(r"^[\s:|+*()\d-]*", "", line) for line in said.splitlines()]


def found(operators: list[str], name: str) -> list[int]:
    return [i for i, each in enumerate(operators) if each.startswith(name)]


def test_spark_fuses_the_filters_and_projections_before_a_computation(
    computed: Computed, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Into one of each, in the tasks that read the source: nothing is shuffled before the one shuffle by key range."""
    flow = computed.flow
    rows = flow.read().where("key <> 'x'").withColumn("n", sf.length("key")).where("n > 0")
    rows = rows.withColumn("m", sf.col("n") + 1).where("m < 9").drop("n")
    query = computed.start(Counts(), rows)
    flow.feed.put([row("a", 9), row("x", 9)])
    upstream.at(10)
    flow.eventually(lambda: low(lw, "counts") == mark(10), "it is counted")
    operators = plan(query)
    assert [len(found(operators, name)) for name in ("Filter", "Project", "FileScan")] == [1, 1, 1], operators
    assert found(operators, "Exchange") == [], operators
    assert [each[0] for each in computed.out(Counts, "keys")] == ["a"]


def test_spark_aggregates_in_parts_before_it_shuffles(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    """Windows of Spark's own in a stage: a task sends one row for each window and key that it has met."""
    counted = flow.read().withWatermark("t", "1 minute").groupBy(sf.window("t", "1 hour"), "key").count()
    frame = counted.select("key", sf.col("window.start").alias("t"), "count")
    query = flow.start(flow.plain, stream=frame)
    flow.feed.put([row("a", 9), row("a", 9), row("b", 9)])
    upstream.at(10)
    flow.eventually(lambda: query.stage_status().batch is not None, "a batch has run")
    operators = plan(query)
    [shuffle] = found(operators, "Exchange")
    aggregates = found(operators, "HashAggregate")
    assert "partial_count" in operators[aggregates[-1]], operators
    assert min(aggregates) < shuffle < aggregates[-1], operators
