"""Computations in a tracked stage: windows by timers are what a batch would compute, timers fire once and in order, and what is wrong is named and loses nothing, whatever dies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_pipeline.computation import Computation, Input, Output, start
from tests.kit.times import mark
from tests.spark.computations import Busiest, Counts, Rings
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Computed:
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


def test_fused_computations_go_on_whatever_dies(computed: Computed, lw: lowwater.Client, upstream: Upstream) -> None:
    flow = computed.flow
    came: dict[str, dict[int, int]] = {"counts": {}, "busiest": {}}
    died: list[int] = []

    def fail(reached: str, number: int) -> None:
        if reached == "written" and not died:
            died.append(number)
            raise ConnectionResetError(reached)

    def writes(name: str, output: str) -> Any:
        def write(outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
            for closed in outputs[output].select("start").collect():
                came[name].setdefault(closed.start.hour, batch.id)
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
    flow.feed.put([row(name, 9) for name in ["a"] * 9 + ["b"] * 11])
    upstream.at(10)
    with pytest.raises(Exception, match="written"):
        flow.queries[-1].await_termination(120)
    flow.queries.clear()
    begin()
    flow.eventually(lambda: low(lw, "busiest") == mark(10), "nine o'clock is closed")
    assert low(lw, "counts") == mark(10)
    assert came["busiest"] == came["counts"], "an hour is closed by both in one batch"
    [busiest] = computed.out(Busiest, "busiest")
    assert (busiest[0].hour, *busiest[1:]) == (9, "b", 11, 2)
    assert len(computed.out(Counts, "hours")) == 2


def test_timers_fire_without_rows_and_hold_before(computed: Computed, lw: lowwater.Client, upstream: Upstream) -> None:
    flow = computed.flow
    computed.start(Rings())
    flow.feed.put([row("a", 10), row("A", 10), row("b", 10, 1)])
    upstream.at(9, 50)
    flow.eventually(lambda: len(computed.out(Rings, "rings")) == 2, "those of the clock")
    flow.feed.put([row("c", 10)])
    upstream.at(10, 10)
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


def test_what_only_spark_knows_is_refused_at_the_start(computed: Computed) -> None:
    flow = computed.flow
    with pytest.raises(TypeError, match=r"key of counts is of timestamp; take text, bytes or a whole number: cast it"):
        computed.start(Counts(), flow.read().withColumn("key", sf.col("t")))
    declares = Counts()
    declares.outputs = {"out": Output("a int", event_time="a")}  # type: ignore[misc]
    with pytest.raises(ValueError, match="has no timestamp 'a' for its event time; it has none"):
        computed.start(declares)
    with pytest.raises(ValueError, match="the frame has a column lowwater_key already; rename it"):
        computed.start(Counts(), flow.read().withColumn("lowwater_key", sf.lit(1)))


def test_fused_computations_that_do_not_go_together_are_refused(computed: Computed) -> None:
    def write(outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
        """Never called."""

    def reading(name: str, event_time: str = "start", output: str | None = "hours") -> Computation:
        computation = Busiest()
        computation.inputs = [Input(name, key="'all'", event_time=event_time, output=output)]  # type: ignore[misc]
        return computation

    frame, both = computed.flow.read(), {"counts": write, "busiest": write}
    wrong: list[tuple[Computation, Any, str]] = [
        (Counts(), both, "two computations of the query are called counts"),
        (reading("source"), both, "it has one Input, that names a computation before it, of counts"),
        (reading("counts", output=None), both, "does not say which of its outputs: .* one of hours, keys"),
        (reading("counts", "t"), both, "has event_time='t', and the output hours of counts is stamped by start"),
        (Busiest(), write, "with then= there is a write"),
        (Busiest(), both | {"other": write}, "write= names other, and the query has counts, busiest"),
        (Busiest(), {"busiest": write}, "the outputs keys of counts have no writer"),
    ]
    for then, writes, text in wrong:
        with pytest.raises((ValueError, TypeError), match=text):
            start(Counts(), frame, writes, checkpoint=computed.flow.folder / "ck", then=[then])
