"""Rows below what the inputs had promised: a broken promise must be seen, with an example and its key range, and nothing may lead for it."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql import DataFrame

import lowwater
import lowwater_spark as lws
from lowwater_spark.track.ranges import range_bounds, range_column
from lowwater_spark.track.status import KeyRange
from tests.kit.times import mark
from tests.spark.flow import HOUR, Flow
from tests.spark.support import Upstream, low, row
from tests.spark.updates import HOURLY, hourly


def range_of(flow: Flow, key: str) -> KeyRange:
    """The key range of a key, by Spark and by the bounds that are claimed."""
    [[handle]] = flow.spark.createDataFrame([(key,)], "key string").select(range_column(["key"], 4)).collect()
    bounds = range_bounds(4)
    return KeyRange(handle, bounds[handle], bounds[handle + 1])


@pytest.mark.parametrize("state", [False, True], ids=["keeps nothing", "keeps state"])
def test_late_rows_are_counted_with_the_oldest_and_its_range(
    state: bool, flow: Flow, lw: lowwater.Client, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(11)
    query = flow.start(flow.windows if state else flow.plain, stamp=HOUR)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "all is read")
    assert query.stage_status().late_range is None
    with caplog.at_level(logging.WARNING, "lowwater.spark"):
        flow.feed.put([row("a", 12), row("b", 8, 30), row("c", 10, 59), row("d", 11)])
        flow.eventually(lambda: query.stage_status().late_rows == 2, "two promises are broken")
        flow.feed.put([row("e", 9), *([] if state else [{"key": "f", "t": None}, {"key": "g", "t": None}])])
        flow.eventually(lambda: query.stage_status().late_rows == 3, "and a third one, not older")
    status = query.stage_status()
    assert status.untimed_rows == (0 if state else 2), "rows without a time are counted apart"
    assert ("has 2 rows without an event time" in caplog.text) is not state
    flow.eventually(
        lambda: ("Its worker has read 2 rows without an event time" in str(lw.why("stage"))) is not state,
        "why tells of them",
    )
    assert status.late_example == "2013-01-09T08:30:00Z in batch 1"
    assert status.late_range == range_of(flow, "b")
    said = [record.getMessage() for record in caplog.records if "promised" in record.getMessage()]
    assert said[0] == (
        f"batch 1 of stage has 2 rows below what its inputs had promised, the oldest at 2013-01-09T08:30:00Z, in key range {range_of(flow, 'b')}"
    )
    assert str(range_of(flow, "e")) in said[1]
    assert low(lw, "stage") == mark(11), "what was promised stays promised"
    if state:
        flow.eventually(lambda: ("08:00", "b", 1) in flow.closed(), "a late row is processed all the same")


def test_a_replay_says_again_which_row_was_late(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    """A version of the state that an interrupted run has made tells it, without the rows."""
    fails = [True]

    def windows(rows: DataFrame, batch: lws.Batch) -> None:
        batch.stateful(rows, hourly, HOURLY)
        if batch.id == 1 and fails:
            fails.clear()
            msg = "after the version was made"
            raise RuntimeError(msg)

    flow.feed.put([row("a", 9)])
    upstream.at(11)
    query = flow.start(windows, stamp=HOUR)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "all is read")
    flow.feed.put([row("b", 8, 30)])
    with pytest.raises(RuntimeError, match="after the version"):
        query.await_termination(60)
    assert query.stage_status().late_rows == 0
    told = lw.ranges("stage").ranges[0].remarks
    assert (told.ended, told.failure) == (True, "after the version was made"), "a failed query is told from a hang"
    query = flow.start(windows, stamp=HOUR)
    flow.eventually(lambda: query.stage_status().batch == 1, "run again")
    assert (query.stage_status().late_rows, query.stage_status().late_range) == (1, range_of(flow, "b"))
