"""The example of two partitions: what it says of driven windows is checked, and what it says of Spark is what Spark has dropped."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.two_partitions import records
from examples.two_partitions.__main__ import conclude, run
from examples.two_partitions.records import HOUR
from examples.two_partitions.ways import ALONE, ATTACHED, DRIVEN
from lowwater.watermark import MAX
from tests.process.serving import Serving

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]


def test_spark_alone_drops_and_driven_none_is_dropped(
    spark: SparkSession, authority: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = records.steps(8 * HOUR)
    outcomes = run(spark, authority.address, tmp_path, steps)
    alone, attached, driven = outcomes[ALONE], outcomes[ATTACHED], outcomes[DRIVEN]
    assert (attached.stands, attached.written) == (alone.stands, alone.written)
    assert attached.note.endswith("estimated")
    batch = records.batch_answer(tmp_path / DRIVEN / "records")
    passed = {step.clock: min(step.frontiers.values()) for step in steps}
    due = {hour: min(clock for clock, low in passed.items() if low >= hour + HOUR) for hour in batch}
    assert {one.window: one.clock for one in driven.written} == due
    assert (driven.stands[-1].mark, driven.dropped) == (MAX, 0)
    assert "partition-b" in driven.note
    assert conclude(outcomes, tmp_path, steps, as_json=True) == 0
    data = json.loads(capsys.readouterr().out)
    closed = {one.window for one in alone.written}
    assert data["ways"][ALONE]["lost"] == sum(batch[h] for h in closed) - sum(one.rows for one in alone.written) > 0
    assert data["ways"][DRIVEN]["lost"] == 0
    first, *others = driven.written
    wrong = dataclasses.replace(driven, written=[first._replace(rows=first.rows - 1), *others])
    assert conclude(outcomes | {DRIVEN: wrong}, tmp_path, steps, as_json=False) == 1
