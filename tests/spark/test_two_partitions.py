"""The example of two partitions: what it says of Spark is what Spark's rule makes of the records, and what it says of driven windows is checked."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from examples.two_partitions import records, report
from examples.two_partitions.__main__ import conclude, run
from examples.two_partitions.records import HOUR, Step
from examples.two_partitions.ways import ALONE, ATTACHED, DRIVEN, Outcome
from lowwater.watermark import MAX
from tests.process.serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Outcomes = dict[str, Outcome]


class Finished(NamedTuple):
    """A run, the folder that it has left, and its steps."""

    outcomes: Outcomes
    out: Path
    steps: list[Step]


@pytest.fixture(scope="module")
def finished(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run for all tests, of real queries against a real authority; the records of the example in five steps."""
    out = tmp_path_factory.mktemp("two-partitions")
    (out / "authority").mkdir()
    steps = records.steps(8 * HOUR)
    with serving(out / "authority") as authority:
        outcomes = run(spark, authority.address, out, steps)
    return Finished(outcomes, out, steps)


class Rule(NamedTuple):
    """What Spark's watermark makes of the records, by the rule: windows that end at or before "the greatest seen, less two hours" are closed."""

    lost: Counter[int]
    """Rows by window."""
    groups: int
    """Those rows, a file's rows of one window counted once."""
    marks: list[int]
    """The watermark after each step."""


def by_the_rule(steps: list[Step]) -> Rule:
    lost: Counter[int] = Counter()
    groups, mark, marks = 0, 0, []
    for step in steps:
        for times in step.arriving.values():
            hours = Counter(time // HOUR * HOUR for time in times)
            late = {hour: rows for hour, rows in hours.items() if hour + HOUR <= mark}
            lost.update(late)
            groups += len(late)
        greatest = max((time for times in step.arriving.values() for time in times), default=0)
        mark = max(mark, greatest - 2 * HOUR)
        marks.append(mark)
    return Rule(lost, groups, marks)


def test_spark_alone_drops_what_its_rule_says(finished: Finished) -> None:
    batch = records.batch_answer(finished.out / ALONE / "records")
    assert batch == Counter(
        time // HOUR * HOUR for step in finished.steps for each in step.arriving.values() for time in each
    )
    rule = by_the_rule(finished.steps)
    table = report.lines(finished.outcomes[ALONE], batch)
    lost = Counter({line.start: line.batch - line.rows for line in table if line.rows is not None})
    assert lost == rule.lost
    assert [line.start for line in table if line.rows is None] == [
        hour for hour in batch if hour + HOUR > rule.marks[-1]
    ]
    found = report.account(finished.outcomes[ALONE], batch)
    assert (found.lost, found.counted) == (rule.lost.total(), rule.groups)
    assert found.counted * 10 < found.lost
    assert [stand.mark for stand in finished.outcomes[ALONE].stands] == rule.marks


def test_attached_it_is_seen(finished: Finished) -> None:
    alone, attached = finished.outcomes[ALONE], finished.outcomes[ATTACHED]
    assert attached.stands == alone.stands
    assert attached.written == alone.written
    assert attached.note.endswith("estimated")


def test_driven_none_is_dropped(finished: Finished) -> None:
    driven = finished.outcomes[DRIVEN]
    batch = records.batch_answer(finished.out / DRIVEN / "records")
    assert {one.window: one.rows for one in driven.written} == batch
    assert len(driven.written) == len(batch)
    passed = {step.clock: min(step.frontiers.values()) for step in finished.steps}
    due = {hour: min(clock for clock, low in passed.items() if low >= hour + HOUR) for hour in batch}
    assert {one.window: one.clock for one in driven.written} == due
    assert [stand.mark for stand in driven.stands] == list(passed.values())
    assert (driven.stands[-1].mark, driven.dropped) == (MAX, 0)
    assert "partition-b" in driven.note


def test_a_right_run_is_reported_and_a_wrong_one_ends_with_one(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conclude(finished.outcomes, finished.out, finished.steps, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    lost = by_the_rule(finished.steps).lost.total()
    assert (told["ways"][ALONE]["lost"], told["ways"][DRIVEN]["lost"]) == (lost, 0)
    assert (finished.out / "two-partitions.png").read_bytes().startswith(b"\x89PNG")
    driven, attached = finished.outcomes[DRIVEN], finished.outcomes[ATTACHED]
    first, *others = driven.written
    less, *same = attached.written
    dropped = [*driven.stands[:-1], driven.stands[-1]._replace(dropped=1)]
    for name, wrong in (
        (DRIVEN, dataclasses.replace(driven, written=[first._replace(rows=first.rows - 1), *others])),
        (DRIVEN, dataclasses.replace(driven, written=[first, *driven.written])),
        (ATTACHED, dataclasses.replace(attached, written=[less._replace(rows=less.rows - 1), *same])),
        (DRIVEN, dataclasses.replace(driven, stands=dropped)),
    ):
        assert conclude(finished.outcomes | {name: wrong}, finished.out, finished.steps, as_json=False) == 1
        assert "WRONG" in capsys.readouterr().err
