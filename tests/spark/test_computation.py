"""Computations in a tracked stage: windows by timers are what a batch would compute, timers fire once and in order, and what is wrong is named and loses nothing, whatever dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_pipeline.computation import Computation, Output, start
from lowwater_spark.track.batch_log import BatchLog
from lowwater_spark.track.hook import Hook
from tests.kit.times import MIN, SECOND, at, mark, micros
from tests.spark.computations import Broken, Busiest, Counts, Rings
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


def test_windows_by_timers_are_what_a_batch_computes_whatever_dies(
    computed: Computed, lw: lowwater.Client, upstream: Upstream
) -> None:
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


def test_what_is_wrong_ends_the_query_by_name_and_loses_nothing(
    computed: Computed, lw: lowwater.Client, upstream: Upstream
) -> None:
    flow = computed.flow
    with pytest.raises(
        TypeError, match=r"the key of counts is of timestamp; take text, bytes or a whole number: cast it"
    ):
        computed.start(Counts(), flow.read().withColumn("key", sf.col("t")))
    declares = Counts()
    declares.outputs = {"out": Output("a int", event_time="a")}  # type: ignore[misc]
    with pytest.raises(ValueError, match="has no timestamp 'a' for its event time; it has none"):
        computed.start(declares)
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
