"""Queries that end by themselves: what they have committed is reported before their handle closes, and ending is not finishing."""

from __future__ import annotations

from typing import Any

import pytest

import lowwater
from tests.kit.times import mark
from tests.spark.flow import HOUR, Flow
from tests.spark.support import Upstream, low, row

TRIGGERS = pytest.mark.parametrize(
    "trigger",
    [{"availableNow": True}, pytest.param({"once": True}, marks=pytest.mark.long)],
    ids=["available now", "once"],
)


@TRIGGERS
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
    assert low(lw, "stage") == query.stage_status().reported == mark(12)
    assert flow.closed() == [("09:00", "a", 1), ("11:00", "b", 1)]


@TRIGGERS
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
