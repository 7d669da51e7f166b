"""The simulator in short: worlds without a violation, the same world twice, planted bugs found, failures shrunk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import chaos, mutants, points
from tests.simulation.runs import moves_of
from tests.simulation.shrink import shrink

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.timeout(400)  # forty seconds of processor time, beside whatever else runs


def command(*arguments: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    """Run the simulator as a program."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=380,
    )


def test_worlds_under_chaos_keep_every_promise() -> None:
    """The command that users run, with a seed that never changes; CI must not depend on luck."""
    done = command("run", "--seed", "2013", "--steps", "1200")
    told = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, told["violations"]) == (0, 0), done.stdout + done.stderr
    assert told["fault_points_reached"] >= 0.9 * told["fault_points"], done.stdout
    assert told["faults"] > 1500
    assert told["observations_checked"] > 100_000
    assert told["simulated_hours"] > 0.5


def test_a_world_is_the_same_whatever_the_hash_seed(tmp_path: Path) -> None:
    file = tmp_path / "moves.json"
    file.write_text(chaos.dump(7, moves_of(7), 90.0))
    first, second = (command("replay", str(file), hash_seed=seed) for seed in ("1", "2"))
    assert first.returncode == 0, first.stdout + first.stderr
    assert json.loads(first.stdout.splitlines()[-1])["digest"] == json.loads(second.stdout.splitlines()[-1])["digest"]


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.long)])
def test_every_planted_bug_is_found(half: int) -> None:
    names = list(mutants.MUTANTS)[half::2]
    done = command("mutants", *names)
    assert json.loads(done.stdout.splitlines()[-1]) == {"mutants": len(names), "found": len(names)}, done.stdout
    assert done.returncode == 0


def test_a_failing_world_names_its_seed_and_is_shrunk() -> None:
    with mutants.Planted.context() as planted:
        mutants.silence_counts_as_idle(planted)
        moves, result = shrink(mutants.FIRST, moves_of(mutants.FIRST, 20), lambda line: None, attempts=12)
    assert result.violations
    assert len(moves) <= 10


def test_a_run_that_reaches_too_few_fault_points_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.simulation import __main__ as program

    monkeypatch.setattr(points, "POINTS", tuple(f"point {number}" for number in range(50)))
    monkeypatch.setattr(program, "LONG", 10)
    assert program.run(program.parser().parse_args(["run", "--seed", "3", "--steps", "10", "--jobs", "1"])) == 1
    out, err = capsys.readouterr()
    assert "too few fault points" in err
    assert json.loads(out.splitlines()[-1])["fault_points_reached"] == 0


def test_the_points_are_named_once() -> None:
    assert len(set(points.POINTS)) == len(points.POINTS)
