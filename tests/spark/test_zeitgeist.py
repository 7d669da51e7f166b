"""The example of dips and spikes on Spark: what the low watermark lets pass is the batch answer, as soon as it can be; and Spark's own watermark takes a late feed for an empty one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.flights.data import HOUR
from examples.zeitgeist import report
from examples.zeitgeist.__main__ import conclude
from examples.zeitgeist.replay import CLOCKS, STALL, STALLED, START, departures, steps
from examples.zeitgeist.run import run
from tests.process.serving import Serving

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_low_watermark_tells_late_from_absent(spark: SparkSession, authority: Serving, tmp_path: Path) -> None:
    replayed = steps(departures(), CLOCKS)
    found, batch = run(spark, authority.address, tmp_path, replayed, ask=STALL[1]), report.batch_answer(replayed)
    assert conclude(found, replayed, tmp_path) == 0
    assert conclude(replace(found, low=replace(found.low, hours=found.low.hours[1:])), replayed, tmp_path) == 1
    passed = {step.clock: min(step.frontiers.values()) for step in replayed}
    assert [(stand.clock, stand.low) for stand in found.stands] == list(passed.items())
    due = {change: min(at for at, low in passed.items() if low >= change.at + HOUR) for change, _ in found.low.changes}
    assert dict(found.low.changes) == due
    blizzard = {(item.origin, item.kind) for item, _ in found.low.changes if item.open and item.at >= STALL[1]}
    assert {("EWR", "dip"), ("JFK", "dip"), ("LGA", "dip")} <= blizzard
    assert "feed-lga" in found.why.splitlines()[0]

    # Of the dips before the first step Spark has all, so the rules are the same.
    before = [item for item, _ in found.spark.changes if item.at < START]
    assert sorted(before) == sorted(item for item in batch.changes if item.at < START)
    score = report.score(found.spark, batch)
    assert [(change.origin, change.kind, change.at) for change in score.false] == [(STALLED, "dip", STALL[0])]
    # By the rule: windows that end at or before "the greatest seen, less an hour" are closed.
    lost, mark, marks = 0, 0, list[int]()
    for step in replayed:
        lost += sum(flight.at // HOUR * HOUR + HOUR <= mark for flight in step.arriving)
        mark = max(mark, max((flight.at for flight in step.arriving), default=0) - HOUR)
        marks.append(mark)
    assert [stand.spark for stand in found.stands] == marks
    assert score.dropped == lost > 100
