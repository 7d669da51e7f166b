"""A query that cannot be driven is refused before anything starts, with the reason and the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.columns import check_column, columns_of, event_micros, quoted
from lowwater_spark.errors import Unsupported
from lowwater_spark.track.plan.operators import nodes
from tests.kit.times import at
from tests.process.serving import Serving, serving
from tests.spark.drive_support import HOUR, Driven, driven

__all__ = ["driven"]

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """An authority that nobody comes to: what is refused is refused before."""
    with serving(tmp_path_factory.mktemp("idle")) as server:
        yield server
        with lowwater.connect(server.address) as lw:
            assert lw.get() == {}


@pytest.fixture
def refused(spark: SparkSession, idle: Serving, tmp_path: Path) -> Iterator[Driven]:
    driven = Driven(spark, idle.address, tmp_path)
    yield driven
    driven.stop()


SETTINGS = ("noDataMicroBatches.enabled", "multipleWatermarkPolicy")


def under(driven: Driven, setting: str, value: str) -> Driven:
    """The same in a session with a setting of streaming."""
    assert setting in SETTINGS
    driven.spark.conf.set(f"spark.sql.streaming.{setting}", value)
    return driven


def by_another_column(driven: Driven) -> DataFrame:
    frame = driven.drive(driven.read(schema="key string, t timestamp, u timestamp"))
    return frame.groupBy(sf.window("u", "1 hour"), "key").count().withColumn("t", sf.col("window.end"))


REFUSED: dict[str, tuple[Callable[[Driven], DataFrame], str]] = {
    "own_watermark": (
        lambda driven: driven.hourly(driven.drive(driven.read().withWatermark("t", "1 hour"))),
        "withWatermark beside",
    ),
    "state_below": (
        lambda driven: driven.hourly(driven.drive(driven.read().dropDuplicates(["key"]))),
        "below lws.drive",
    ),
    "other_column": (by_another_column, "aggregation that is not grouped by the event time .*Group by window"),
    "no_window": (
        lambda driven: driven.drive().groupBy("key").agg(sf.max("t").alias("t")),
        "aggregation that is not grouped by the event time .*Group by window",
    ),
    "joined_with_undriven": (
        lambda driven: driven.drive().join(driven.read("other").withColumnRenamed("t", "u"), "key"),
        r"A driven join .*Call lws.drive\(\) for each frame",
    ),
    "undriven_beside": (lambda driven: driven.hourly(driven.drive().union(driven.read("other"))), "not driven"),
    "driven_twice": (
        lambda driven: driven.hourly(driven.drive(driven.drive())),
        "inside of a driven frame|withWatermark beside",
    ),
    "duplicates_of_unknown_distance": (
        lambda driven: driven.drive().dropDuplicatesWithinWatermark(["key"]),
        "how far apart duplicates may be",
    ),
    "no_empty_batches": (
        lambda driven: driven.hourly(under(driven, SETTINGS[0], "false").drive()),
        "noDataMicroBatches",
    ),
    "greatest_of_several": (
        lambda driven: driven.hourly(
            under(driven, SETTINGS[1], "max").drive().union(driven.drive(driven.read("other")))
        ),
        "multipleWatermarkPolicy",
    ),
}


@pytest.mark.parametrize(("frame", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_driven_is_refused(frame: Callable[[Driven], DataFrame], reason: str, refused: Driven) -> None:
    try:
        with pytest.raises(Exception, match=reason) as refusal:
            refused.start(frame(refused), stamp=HOUR)
    finally:
        for setting in SETTINGS:
            refused.spark.conf.unset(f"spark.sql.streaming.{setting}")
    assert not isinstance(refusal.value, Unsupported) or refusal.value.fix
    # Its watermark comes from drive(); another one is refused.
    assert "withWatermark" not in getattr(refusal.value, "fix", "") or "withWatermark" in reason
    assert not (refused.folder / "ck").exists()


def test_every_input_is_named_twice(refused: Driven) -> None:
    for inputs in (["other"], ["source", "other"]):
        with pytest.raises(ValueError, match="name every computation whose output the query reads in both"):
            refused.start(refused.hourly(refused.drive()), inputs=inputs, stamp=HOUR)
    late = [refused.drive(refused.read(name), approximate=0.9, late=refused.folder / "late") for name in ("in", "two")]
    with pytest.raises(ValueError, match="give each a directory of its own"):
        refused.start(refused.hourly(late[0].union(late[1])), stamp=HOUR)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"inputs": []}, "inputs is a list"),
        ({"event_time": "u"}, "event_time is 'u', and the frame has no such column; its columns are key, t"),
        ({"step": timedelta(microseconds=1_500)}, "step is a whole number of milliseconds"),
        ({"within": timedelta(-1)}, "within is a whole number"),
        ({"approximate": 99, "late": "/tmp"}, "approximate is a share"),
        ({"approximate": 0.99}, "would drop those without a trace. Pass late=PATH"),
        ({"lateness_budget": 0.01}, "would drop those without a trace. Pass late=PATH"),
        ({"lateness_budget": 0.7, "late": "/tmp"}, "above 0 and at most 0.5"),
        ({"lateness_budget": 0.01, "approximate": 0.99, "late": "/tmp"}, "a frame has one watermark"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], reason: str, refused: Driven) -> None:
    with pytest.raises(ValueError, match=reason):
        lws.drive(refused.read(), **{"inputs": ["source"], "event_time": "t", **options})


@pytest.mark.parametrize(
    ("text", "name"),
    [(text, "Event Time") for text in ("Event Time", "event time", "`Event Time`")]
    + [(text, name) for name in ("a.b", "a`b", "a.`b`") for text in (name, quoted(name))],
)
def test_one_rule_says_which_column_a_text_names(text: str, name: str, refused: Driven) -> None:
    schema = "key string, t struct<u: timestamp>, `Event Time` timestamp, `a.b` timestamp, `a``b` timestamp, `a.``b``` timestamp"
    frame = refused.read(schema=schema)
    driven = lws.drive(frame, inputs=["source"], event_time=text, late=refused.folder / "late")
    plan = driven._jdf.queryExecution().analyzed()
    [watermark] = [node for node in nodes(plan) if node.getClass().getSimpleName() == "EventTimeWatermark"]
    assert watermark.eventTime().name() == name
    assert frame.select(event_micros(frame, text), *columns_of(frame, [text])).schema.names[1].lower() == name.lower()
    for wrong, why in (
        ("Event  Time", "its columns are key, t, Event Time, a.b"),
        ("a.c", "has no such column"),
        ("`a", "has no such column"),
    ):
        with pytest.raises(ValueError, match=why):
            check_column(frame, wrong, "event_time")
    with pytest.raises(ValueError, match="a part of a column"):
        lws.drive(frame, inputs=["source"], event_time="t.u")


def test_an_event_time_that_is_no_moment(refused: Driven) -> None:
    for kind in ("timestamp_ntz", "long"):
        with pytest.raises(TypeError, match="it must be a timestamp"):
            refused.drive(refused.read(schema=f"key string, t {kind}"))
    for cut in (sf.date_trunc("day", "t"), sf.to_timestamp(sf.to_date("t")), sf.window("t", "1 hour").start):
        with pytest.raises(Unsupported, match="The event time t of a driven frame, which date_trunc"):
            refused.drive(refused.read().select("key", cut.alias("t")))
    with pytest.raises(Unsupported, match="not streaming"):
        refused.drive(refused.spark.createDataFrame([("a", at(9))], "key string, t timestamp"))
