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
    seed, out = random.randrange(1_000_000), tmp_path / "kept.jsonl"
    options = ["--out", str(tmp_path / "out"), "--kills", "2", "--moves", "1", "--seed", str(seed), "--json", str(out)]
    code = command.main(options)
    text = capsys.readouterr().out
    assert code == 0, text
    assert "over 3 take-overs" in text
    takes = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [(take["how"], take["from"]) for take in takes] == [(MOVE, "A"), (ARRIVED, "B"), (WRITE_OFF, "A")]
    for take in takes:
        assert take["wrong"] == 0
        assert take["hours"] > 0, "the new owner had nothing to do"
        assert take["refused"] == (1 if take["how"] == MOVE else 4)
        assert take["lost"] == 0 or take["how"] == WRITE_OFF
    assert command.main(["--sum", str(out)]) == 0
    metrics = {json.loads(line)["metric"] for line in capsys.readouterr().out.splitlines()}
    assert {"written_off_above", "arrived_above", "moved_committed"} <= metrics
