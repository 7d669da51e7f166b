"""The example of two regions as it is shown, in small: a kill whose rest is given up, one that comes back with everything, and a planned move."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from examples.regions import __main__ as command
from examples.regions.answer import ARRIVED, MOVE, WRITE_OFF

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_region_is_killed_at_random_and_all_hours_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A move, a kill that is returned from, and one whose rest is given up, at other points of the work in every run; the seed is in the output."""
    seed, kept = random.randrange(1_000_000), tmp_path / "kept.jsonl"
    told = ["--out", str(tmp_path / "out"), "--kills", "2", "--moves", "1", "--seed", str(seed), "--json", str(kept)]
    code = command.main(told)
    said = capsys.readouterr().out
    assert code == 0, said
    assert "over 3 take-overs" in said
    takes = [json.loads(each) for each in kept.read_text("utf-8").splitlines()]
    assert [(each["how"], each["from"]) for each in takes] == [(MOVE, "A"), (ARRIVED, "B"), (WRITE_OFF, "A")]
    for each in takes:
        assert each["wrong"] == 0
        assert each["hours"] > 0, "the new owner had nothing to do"
        assert each["refused"] == (1 if each["how"] == MOVE else 4)
        assert each["lost"] == 0 or each["how"] == WRITE_OFF
    assert command.main(["--sum", str(kept)]) == 0
    metrics = {json.loads(each)["metric"] for each in capsys.readouterr().out.splitlines()}
    assert {"written_off_above", "arrived_above", "moved_committed"} <= metrics
