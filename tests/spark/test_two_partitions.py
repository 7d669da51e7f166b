"""The example of two partitions: what it says of Spark is what Spark's rule makes of the records, and what it says of driven windows is checked."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from examples.two_partitions import records, report, ways
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


@pytest.fixture(
    scope="module", params=[8 * HOUR, pytest.param(HOUR, marks=pytest.mark.long)], ids=["in a few steps", "as shown"]
)
def finished(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run for all tests, of real queries against a real authority; the same records in five steps or in twenty-eight."""
    out = tmp_path_factory.mktemp("two-partitions")
    (out / "authority").mkdir()
    steps = records.steps(request.param)
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


def replace(outcomes: Outcomes, name: str, written: list[ways.Written]) -> Outcomes:
    return outcomes | {name: dataclasses.replace(outcomes[name], written=written)}


def test_spark_alone_drops_what_its_rule_says(finished: Finished) -> None:
    """N is counted from what was written, and follows from the records alone; Spark's counter is far below it."""
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
    """The authority has Spark's watermark after each step, as an estimate, and the count; and the same rows come out."""
    alone, attached = finished.outcomes[ALONE], finished.outcomes[ATTACHED]
    assert attached.stands == alone.stands
    assert attached.written == alone.written
    assert attached.note.endswith("estimated")


def test_driven_none_is_dropped(finished: Finished) -> None:
    """Every window is the batch answer, in the step in which the slower partition passed its end, and no earlier."""
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


def test_the_files_are_what_a_reader_of_the_sink_gets(finished: Finished, spark: SparkSession) -> None:
    """The windows are read as plain files after each step; Spark reads the same by its sink's log."""
    for name, outcome in finished.outcomes.items():
        rows = spark.read.json(str(finished.out / name / "windows")).collect()
        found = sorted((records.micros(row["start"]), row["count"]) for row in rows)
        assert found == sorted((one.window, one.rows) for one in outcome.written)


def test_a_right_run_is_reported(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert conclude(finished.outcomes, finished.out, finished.steps, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    lost = by_the_rule(finished.steps).lost.total()
    assert (told["ways"][ALONE]["lost"], told["ways"][DRIVEN]["lost"]) == (lost, 0)
    assert len(told["windows"]) == 24
    assert len(told["steps"]) == len(finished.steps)
    assert (finished.out / "two-partitions.png").read_bytes().startswith(b"\x89PNG")
    assert conclude(finished.outcomes, finished.out, finished.steps, as_json=False) == 0
    assert f"Spark alone drops {lost} of 5644 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "how"), [(DRIVEN, "fewer"), (DRIVEN, "missing"), (DRIVEN, "twice"), (DRIVEN, "more"), (ATTACHED, "fewer")]
)
def test_a_wrong_run_ends_with_one(name: str, how: str, finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    """A window with a row too few or too many, one that is missing or there twice, and an attached query that writes something else."""
    first, *others = finished.outcomes[name].written
    changed = {
        "fewer": [first._replace(rows=first.rows - 1)],
        "missing": [],
        "twice": [first, first],
        "more": [first._replace(rows=first.rows + 1)],
    }[how]
    wrong = replace(finished.outcomes, name, [*changed, *others])
    assert conclude(wrong, finished.out, finished.steps, as_json=False) == 1
    assert "WRONG" in capsys.readouterr().err


def test_a_dropped_row_ends_with_one(finished: Finished) -> None:
    """Also when Spark alone says so, and all windows are right."""
    driven = finished.outcomes[DRIVEN]
    stands = [*driven.stands[:-1], driven.stands[-1]._replace(dropped=1)]
    wrong = finished.outcomes | {DRIVEN: dataclasses.replace(driven, stands=stands)}
    assert conclude(wrong, finished.out, finished.steps, as_json=False) == 1
