"""The example of dips and spikes on Spark: what the low watermark lets pass is the batch answer, as soon as it can be; and Spark's own watermark takes a late feed for an empty one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from examples.flights.data import HOUR
from examples.zeitgeist import report
from examples.zeitgeist.__main__ import conclude
from examples.zeitgeist.replay import CLOCKS, STALL, STALLED, START, Step, departures, steps
from examples.zeitgeist.run import Run, run
from tests.process.serving import serving

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]


class Finished(NamedTuple):
    """A run, its steps, the batch answer, and the folder that it has left."""

    found: Run
    steps: list[Step]
    batch: report.Answer
    out: Path


@pytest.fixture(scope="module")
def finished(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run for all tests, of real queries against a real authority."""
    out = tmp_path_factory.mktemp("zeitgeist")
    (out / "authority").mkdir()
    replayed = steps(departures(), CLOCKS)
    with serving(out / "authority") as authority:
        found = run(spark, authority.address, out, replayed, ask=STALL[1])
    return Finished(found, replayed, report.batch_answer(replayed), out)


def test_the_low_watermark_tells_late_from_absent(finished: Finished) -> None:
    low = finished.found.low
    assert report.differences(low, finished.batch) == ""
    passed = {step.clock: min(step.frontiers.values()) for step in finished.steps}
    assert [(stand.clock, stand.low) for stand in finished.found.stands] == list(passed.items())
    due = {change: min(at for at, low in passed.items() if low >= change.at + HOUR) for change, _ in low.changes}
    assert dict(low.changes) == due
    blizzard = {(change.origin, change.kind) for change, _ in low.changes if change.open and change.at >= STALL[1]}
    assert {("EWR", "dip"), ("JFK", "dip"), ("LGA", "dip")} <= blizzard
    assert "feed-lga" in finished.found.why.splitlines()[0]


def test_sparks_own_watermark_reports_a_dip_that_was_none(finished: Finished) -> None:
    """Of the feed that stands still, whose departures it then drops; and of the dips before the first step it has all, so the rules are the same."""
    before = [change for change, _ in finished.found.spark.changes if change.at < START]
    assert sorted(before) == sorted(change for change in finished.batch.changes if change.at < START)
    score = report.score(finished.found.spark, finished.batch)
    assert [(each.origin, each.kind, each.at) for each in score.false] == [(STALLED, "dip", STALL[0])]
    # By the rule: windows that end at or before "the greatest seen, less an hour" are closed.
    lost, mark, marks = 0, 0, list[int]()
    for step in finished.steps:
        lost += sum(each.at // HOUR * HOUR + HOUR <= mark for each in step.arriving)
        mark = max(mark, max((each.at for each in step.arriving), default=0) - HOUR)
        marks.append(mark)
    assert [stand.spark for stand in finished.found.stands] == marks
    assert score.dropped == lost > 100


def test_a_right_run_is_reported_and_a_wrong_one_ends_with_one(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    found, replayed, batch, out = finished
    assert conclude(found, replayed, out) == 0
    assert f"all {len(batch.hours):,} hours" in capsys.readouterr().out
    assert (out / "zeitgeist.png").read_bytes().startswith(b"\x89PNG")
    first, *others = found.low.hours
    for wrong in (
        replace(found.low, hours=others),
        replace(found.low, hours=[first, first, *others]),
        replace(found.low, dropped=1),
    ):
        assert conclude(replace(found, low=wrong), replayed, out) == 1
        assert "WRONG" in capsys.readouterr().err
