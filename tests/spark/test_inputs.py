"""A computation with several inputs on Spark: one query reads all of them, its low watermark is the least of theirs, and what does not go together is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_pipeline.computation import HOUR, Codec, Computation, Context, Input, Output, Record, Timer, floor, start
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from tests.kit.times import at, mark
from tests.spark.flow import Flow
from tests.spark.support import Feed, Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Together(Computation):
    """What came of one key in each hour, in the order in which it came."""

    name = "together"
    inputs: ClassVar[Sequence[Input]] = [
        Input("searches", key="key", event_time="t", id="key"),
        Input("clicks", key=lambda: sf.lower("Name"), event_time="clicked"),
    ]
    outputs: ClassVar[Mapping[str, str | Output]] = {
        "hours": Output("key string, start timestamp, what string", event_time="start")
    }
    state = Codec(dict[int, list[str]])
    in_order = True

    def process_record(self, ctx: Context, record: Record) -> None:
        start = floor(record.timestamp, HOUR)
        said = record["KEY"] if record.input == "searches" else record["key"]["n"]
        ctx.state.setdefault(start, []).append(f"{record.input}:{said}")
        ctx.set_timer("end", start + HOUR)

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        start = timer.at - HOUR
        ctx.produce("hours", {"key": ctx.key, "start": timer.at, "what": " ".join(ctx.state.pop(start))})


class Fed(Flow):
    """Two directories."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.clicks = Feed(self.folder / "clicks")

    def frames(self) -> dict[str, DataFrame]:
        """Their columns share names and not types."""
        stream = self.spark.readStream.schema("Name string, clicked timestamp, key struct<n: int>")
        return {"clicks": stream.json(str(self.clicks.folder)), "searches": self.read()}

    def run(
        self, frames: Mapping[str, DataFrame] | None = None, computation: Computation | None = None, **options: Any
    ) -> lws.TrackedQuery:
        def write(outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
            batch.write(outputs["hours"], self.folder / "hours")

        query = start(
            computation or Together(),
            self.frames() if frames is None else frames,
            write,
            checkpoint=self.folder / "ck",
            ranges=2,
            address=self.address,
            **options,
        )
        self.queries.append(query)
        return query

    def hours(self) -> list[tuple[str, int, str]]:
        (self.folder / "hours").mkdir(exist_ok=True)
        read = self.spark.read.option("recursiveFileLookup", "true").schema("key string, start timestamp, what string")
        return sorted((r.key, r.start.hour, r.what) for r in read.parquet(str(self.folder / "hours")).collect())


FLOW = Fed


def click(name: str, n: int, hour: int, minute: int = 0) -> dict[str, Any]:
    return {"Name": name, "clicked": at(hour, minute).isoformat(), "key": {"n": n}}


def test_a_key_meets_what_all_inputs_have_in_one_order_whatever_dies(flow: Fed, lw: lowwater.Client) -> None:
    searches, clicks = Upstream(lw, "searches"), Upstream(lw, "clicks")
    flow.feed.put([row("a", 9, 30), row("b", 9)])
    flow.clicks.put([click("A", 1, 9, 30), click("A", 2, 9, 10), click("A", 3, 10)])
    left = ["state", "written"]

    def fail(reached: str, _number: int) -> None:
        if left and reached == left[0]:
            left.pop(0)
            raise ConnectionResetError(reached)

    for reached in left:
        flow.run(probe=fail)
        with pytest.raises(Exception, match=reached):
            flow.queries[-1].await_termination(120)
        flow.queries.clear()
    query = flow.run()
    searches.at(10)
    clicks.at(9, 45)
    flow.eventually(lambda: low(lw, "together") == mark(9, 45), "the least of the inputs")
    assert flow.hours() == [], "nine o'clock is open, since clicks of it may come"
    flow.clicks.put([click("a", 4, 9, 59)])
    clicks.at(10)
    flow.eventually(lambda: low(lw, "together") == mark(10), "both are there")
    expected = [("a", 10, "clicks:2 searches:a clicks:1 clicks:4"), ("b", 10, "searches:b")]
    assert flow.hours() == expected
    query.stop()
    flow.queries.clear()
    # A click of ten o'clock waits in the state, with its input.
    flow.run()
    flow.feed.put([row("a", 10)])
    for each in (searches, clicks):
        each.at(11)
    flow.eventually(lambda: low(lw, "together") == mark(11), "the next hour")
    assert flow.hours() == [expected[0], ("a", 11, "searches:a clicks:3"), expected[1]]
    flow.stop()
    swapped = Together()
    swapped.inputs = [*Together.inputs][::-1]  # type: ignore[misc]
    with pytest.raises(CheckpointMismatch, match=r"sources/0 has taken .*, but this source of the query reads"):
        flow.run(computation=swapped)


def test_what_does_not_go_together_is_refused_by_name(flow: Fed) -> None:
    frames = flow.frames()
    searches, clicks = frames["searches"], frames["clicks"]
    for given, error, said in (
        (searches, TypeError, "together has the inputs searches, clicks, and one frame was given: pass one for each"),
        ({"searches": searches}, ValueError, "together reads searches, clicks: no frame was given for clicks"),
        ({**frames, "other": clicks}, ValueError, "it has no input other. Pass one frame for each"),
        (
            frames | {"clicks": clicks.select("*", sf.lit(1).alias("n"), sf.lit(1).alias("N"))},
            ValueError,
            "the frame of the input clicks of together has the column n twice",
        ),
        (
            frames | {"clicks": flow.spark.createDataFrame([], clicks.schema)},
            ValueError,
            "input clicks of together is not streaming",
        ),
        (
            frames | {"clicks": clicks.withColumn("clicked", sf.lit("x"))},
            TypeError,
            "event_time clicked is of type string",
        ),
        (
            {"searches": searches, "clicks": searches.selectExpr("key as Name", "t as clicked", "key")},
            Unsupported,
            "A stream that is used twice",
        ),
    ):
        with pytest.raises(error, match=said):
            flow.run(given)  # type: ignore[arg-type]
    by_number = Together()
    by_number.inputs = [Together.inputs[0], Input("clicks", key="key.n", event_time="clicked")]  # type: ignore[misc]
    with pytest.raises(TypeError, match="inputs searches and clicks of together are of string and bigint: one key"):
        flow.run(computation=by_number)
    twice = Together()
    twice.inputs = [Together.inputs[0], Together.inputs[0]]  # type: ignore[misc]
    with pytest.raises(ValueError, match=r"two inputs of together are called searches: .* Input\('searches', alias="):
        flow.run(computation=twice)
    assert not (flow.folder / "ck").exists()


def test_two_inputs_may_read_one_directory_that_one_computation_writes(flow: Fed, lw: lowwater.Client) -> None:
    """Each loads it for itself, and has a name by which it is told from the other."""

    class Twice(Together):
        inputs: ClassVar[Sequence[Input]] = [
            Input("searches", key="key", event_time="t"),
            Input("searches", key="reverse(key)", event_time="t", alias="mirrored"),
        ]

        def process_record(self, ctx: Context, record: Record) -> None:
            ctx.produce("hours", {"key": ctx.key, "start": record["t"], "what": record.input})

    source = Upstream(lw, "searches")
    flow.feed.put([row("ab", 9)])
    source.at(10)
    flow.run({"searches": flow.read(), "mirrored": flow.read()}, Twice())
    flow.eventually(lambda: low(lw, "together") == mark(10), "it is read")
    assert flow.hours() == [("ab", 9, "searches"), ("ba", 9, "mirrored")]
