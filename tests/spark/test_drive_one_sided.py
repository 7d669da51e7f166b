"""Batches with rows of one side, with nothing but control rows, and with nothing at all: no operator under drive() loses or adds a row in them.

What each operator gives is compared with Spark's batch answer over all rows. The controls are moved by hand, so no authority takes part,
and each step is put in by the batch before it, so that the batches are the same in every run.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater_spark as lws
from lowwater_spark.sources.control import END, ClockValue, Control, Offset
from lowwater_spark.sources.nulls import nulls_of
from lowwater_spark.track.plan.checked import check_plan
from tests.kit.times import at
from tests.spark.drive_support import millis
from tests.spark.support import Feed

pytestmark = pytest.mark.timeout(200)

LEFT, RIGHT = "key string, t timestamp, n int", "other string, u timestamp, m map<string, int>"

Operator = Callable[[DataFrame, DataFrame], DataFrame]


@dataclass
class Step:
    left: Sequence[tuple[str, dt.datetime]] = ()
    right: Sequence[tuple[str, dt.datetime]] = ()
    watermark: int | None = None


STEPS = [
    Step(left=[("a", at(9)), ("alone", at(9, 5)), ("same", at(9, 10))], watermark=0),
    Step(right=[("a", at(9, 30)), ("same", at(9, 10))]),
    Step(right=[("b", at(9, 40)), ("single", at(9, 50))], watermark=millis(at(8))),
    Step(left=[("b", at(9, 20)), ("a", at(9, 25))]),
    Step(watermark=millis(at(9))),
    Step(),
    Step(left=[("c", at(10, 20))], watermark=millis(at(9, 15))),
    Step(right=[("c", at(10, 20)), ("a", at(9, 59))]),
    Step(left=[("d", at(11))], right=[("d", at(11, 10))]),
    Step(watermark=END),
    Step(),
]
"""Steps with the left side alone first, then the right one; beside a moved watermark and without it; controls alone; and batches without anything."""


def joined(how: str) -> Operator:
    return lambda left, right: left.join(right, sf.expr("key = other AND u >= t AND u <= t + INTERVAL 1 HOUR"), how)


def counted(frame: DataFrame, key: str = "key", time: str = "t") -> DataFrame:
    return frame.groupBy(sf.window(time, "1 hour"), key).count()


def window_join(left: DataFrame, right: DataFrame) -> DataFrame:
    one = counted(left).select(sf.col("window").alias("w"), "key", sf.col("count").alias("lefts"))
    other = counted(right, "other", "u").select(sf.col("window").alias("v"), "other", sf.col("count").alias("rights"))
    return one.join(other, sf.expr("key = other AND w = v"))


OPERATORS: dict[str, Operator] = {
    "inner": joined("inner"),
    "full": joined("fullOuter"),
    "semi": joined("leftSemi"),
    "windows over a join": lambda left, right: counted(joined("inner")(left, right)),
    "windows over a left join": lambda left, right: counted(joined("leftOuter")(left, right)),
    "join of windows": window_join,
    "windows over a union": lambda left, right: counted(left.select("key", "t").union(right.select("other", "u"))),
    "duplicates": lambda left, right: left.select("key", "t").union(right.select("other", "u")).dropDuplicates(),
}


@dataclass
class Sides:
    """Two feeds, what a query over them has written, and the steps that are still to be taken."""

    spark: SparkSession
    folder: Path
    controls: list[Control] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    out: list[Any] = field(default_factory=list)
    run: int = 0

    def __post_init__(self) -> None:
        self.left, self.right = Feed(self.folder / "left"), Feed(self.folder / "right")

    def streams(self) -> tuple[DataFrame, DataFrame]:
        read = self.spark.readStream
        return read.schema(LEFT).json(f"{self.folder}/left"), read.schema(RIGHT).json(f"{self.folder}/right")

    def driven(self) -> tuple[DataFrame, DataFrame]:
        left, right = self.streams()
        frames = lws.drive(left, inputs=["left"], event_time="t"), lws.drive(right, inputs=["right"], event_time="u")
        controls = [control for frame in frames for control in check_plan(self.spark, frame).controls.values()]
        self.controls = [Control(control.directory) for control in controls]
        for control in self.controls:
            control.reserve()
        return frames

    def batch(self) -> tuple[DataFrame, DataFrame]:
        read = self.spark.read
        return read.schema(LEFT).json(f"{self.folder}/left"), read.schema(RIGHT).json(f"{self.folder}/right")

    def take(self) -> None:
        step = self.steps.pop(0)
        if step.left:
            self.left.put([{"key": key, "t": time.isoformat(), "n": 1} for key, time in step.left])
        if step.right:
            self.right.put([{"other": key, "u": time.isoformat(), "m": {"x": 1}} for key, time in step.right])
        if step.watermark is not None:
            self.run += 1
            for control in self.controls:
                control.write_value(ClockValue(Offset(step.watermark, {}, self.run)))

    def follow(self, frame: DataFrame, steps: Sequence[Step]) -> None:
        """Run a query over the steps, one a batch, to their end."""
        self.steps = list(steps)
        self.take()

        def write(rows: DataFrame, _: int) -> None:
            self.out += [tuple(row) for row in rows.collect()]
            if self.steps:
                self.take()

        query = frame.writeStream.option("checkpointLocation", f"{self.folder}/ck").foreachBatch(write).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        assert not self.steps, f"the query stands still before {self.steps[0]}"


@pytest.fixture
def sides(spark: SparkSession, tmp_path: Path) -> Iterator[Sides]:
    sides_ = Sides(spark, tmp_path)
    yield sides_
    for control in sides_.controls:
        control.close()


def in_order(rows: Sequence[Any]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.parametrize(
    "name",
    [name if name == "windows over a left join" else pytest.param(name, marks=pytest.mark.long) for name in OPERATORS],
)
def test_a_batch_of_one_side_keeps_every_row(name: str, sides: Sides) -> None:
    operator = OPERATORS[name]
    sides.follow(operator(*sides.driven()), STEPS)
    expected = [tuple(row) for row in operator(*sides.batch()).collect()]
    assert expected
    assert in_order(sides.out) == in_order(expected)


def test_nulls_have_the_types_of_all_columns(spark: SparkSession) -> None:
    """A frame with a type that cannot be made null could not be driven."""
    schema = (
        "a string, b binary, c decimal(20, 3), d date, e timestamp, f timestamp_ntz, g array<int>, h map<string, struct<x: double>>, "
        "i struct<x: int, y: array<string>>, j interval day to second, k interval year to month, l variant, m boolean, n tinyint"
    )
    fields = spark.createDataFrame([], schema).schema.fields
    frame = spark.range(2).select(*nulls_of(fields))
    assert [field.dataType for field in frame.schema.fields] == [field.dataType for field in fields]
    assert frame.where(" AND ".join(f"{field.name} IS NULL" for field in fields)).count() == 2
