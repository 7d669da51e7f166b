"""Queries that end by themselves: what they have committed is reported before their handle closes, and ending is not finishing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lowwater
from tests.process.serving import Serving
from tests.spark.support import Upstream, low, row
from tests.spark.test_stage import HOUR, Flow, mark

TRIGGERS: list[dict[str, Any]] = [{"availableNow": True}, {"once": True}]


@pytest.fixture
def flow(spark: SparkSession, authority: Serving, tmp_path: Path) -> Iterator[Flow]:
    made = Flow(spark, authority.address, tmp_path)
    yield made
    for query in made.queries:
        query.stop()


@pytest.mark.parametrize("trigger", TRIGGERS, ids=["available now", "once"])
def test_what_is_committed_is_reported_before_the_handle_closes(
    trigger: dict[str, Any], flow: Flow, lw: lowwater.Client, upstream: Upstream
) -> None:
    flow.feed.put([row("a", 9), row("b", 11)])
    upstream.at(10, 30)
    query = flow.start(flow.windows, stamp=HOUR, trigger=trigger)
    assert query.await_termination(60)
    assert low(lw, "stage") == mark(10), "no waiting: it was flushed"
    assert flow.closed() == [("09:00", "a", 1)]
    assert not low(lw, "stage").finished, "that a query has ended says nothing of what is still to come"
    # The next run finds nothing new in the source, but the watermark has moved on: it asks for the batch that closes the window.
    upstream.at(12)
    query = flow.start(flow.windows, stamp=HOUR, trigger=trigger)
    assert query.await_termination(60)
    assert low(lw, "stage") == query.status().reported == mark(12)
    assert flow.closed() == [("09:00", "a", 1), ("11:00", "b", 1)]


@pytest.mark.parametrize("trigger", TRIGGERS, ids=["available now", "once"])
def test_only_finished_inputs_finish_a_query_that_has_ended(
    trigger: dict[str, Any], flow: Flow, lw: lowwater.Client, upstream: Upstream
) -> None:
    flow.feed.put([row("stuck", 9), row("b", 11)])
    upstream.at(10)
    upstream.lease.finish()
    query = flow.start(flow.windows, stamp=HOUR, trigger=trigger)
    assert query.await_termination(60)
    assert low(lw, "stage") == mark(9), "the inputs are finished, and one window is still held"
    flow.feed.put([row("stuck", 9)])
    query = flow.start(flow.windows, stamp=HOUR, trigger=trigger)
    assert query.await_termination(60)
    assert low(lw, "stage").finished
    assert flow.closed() == [("09:00", "stuck", 2), ("11:00", "b", 1)]
