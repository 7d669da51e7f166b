"""The example of two regions as it is shown, in small: a kill whose rest is given up, one that comes back with everything, and a planned move."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from examples.regions import __main__ as command
from examples.regions.answer import ARRIVED, MOVE, WRITE_OFF

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_region_is_killed_at_random_and_every_hour_is_what_was_promised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another point of the work in every run; the seed is in the output."""
    seed, kept = random.randrange(1_000_000), tmp_path / "kept.jsonl"
    told = ["--out", str(tmp_path / "out"), "--kills", "2", "--moves", "1", "--seed", str(seed), "--json", str(kept)]
    assert command.main(told) == 0, capsys.readouterr().out
    assert "3 of 3 runs" in capsys.readouterr().out
    runs = [json.loads(each) for each in kept.read_text("utf-8").splitlines()]
    assert sorted(each["how"] for each in runs) == sorted([WRITE_OFF, ARRIVED, MOVE])
    for each in runs:
        assert each["wrong"] == 0
        assert 0 < each["hours_of_b"] < each["hours"], "one of the regions had nothing to do"
        assert each["watermarks"] > 0
        assert each["refused"] == (1 if each["how"] == MOVE else 4)
        assert each["lost"] == 0 or each["how"] == WRITE_OFF
    assert command.main(["--sum", str(kept)]) == 0
    metrics = {json.loads(each)["metric"] for each in capsys.readouterr().out.splitlines()}
    assert {"written_off_above", "arrived_above", "moved_committed"} <= metrics
