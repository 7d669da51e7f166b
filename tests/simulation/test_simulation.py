"""The simulator in short: worlds without a violation, the same world twice, planted bugs found, failures shrunk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowwater_authority.core.computation import Computation
from tests.simulation import chaos, mutants, points
from tests.simulation.__main__ import ENOUGH, LONG
from tests.simulation.runs import moves_of
from tests.simulation.shrink import shrink
from tests.simulation.world import World

ROOT = Path(__file__).parents[2]


STEPS = 300
"""Moves of chaos that are made each time; a long run makes more."""


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


@pytest.mark.parametrize(
    ("steps", "reached"),
    [pytest.param(STEPS, 0.75, id="a few"), pytest.param(LONG, ENOUGH, id="many", marks=pytest.mark.long)],
)
def test_worlds_under_chaos_keep_every_promise(steps: int, reached: float) -> None:
    """The command that users run, with a seed that never changes; CI must not depend on luck."""
    done = command("run", "--seed", "2013", "--steps", str(steps), "--jobs", "1")
    told = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, told["violations"]) == (0, 0), done.stdout + done.stderr
    assert told["fault_points_reached"] >= reached * told["fault_points"], done.stdout
    assert told["faults"] > 1.5 * steps
    assert told["observations_checked"] > 80 * steps
    assert told["simulated_hours"] > steps / 2400


def test_a_world_is_the_same_whatever_the_hash_seed(tmp_path: Path) -> None:
    moves = moves_of(7, 30)
    file = tmp_path / "moves.json"
    file.write_text(chaos.dump(7, moves, chaos.length(moves)))
    done = command("replay", str(file), hash_seed="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["digest"] == World(7, moves).run().digest


@pytest.mark.parametrize("name", mutants.finders())
def test_a_planted_bug_is_found(name: str) -> None:
    """In the world that is known to find it, or in another one when the code has changed since."""
    found = mutants.hunt(name, mutants.finders()[name])
    assert found.seed is not None, found.why


@pytest.mark.long
@pytest.mark.parametrize("half", [0, 1])
def test_every_planted_bug_is_found_whichever_world_is_the_first(half: int) -> None:
    names = list(mutants.MUTANTS)[half::2]
    done = command("mutants", *names)
    assert json.loads(done.stdout.splitlines()[-1]) == {"mutants": len(names), "found": len(names)}, done.stdout
    assert done.returncode == 0


def test_a_bug_that_only_fails_itself_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Because it does not fit to the code into which it is planted; nor is what does no harm."""

    def harmless(planted: mutants.Planted) -> None:
        del planted

    def broken(planted: mutants.Planted) -> None:
        planted.setattr(Computation, "take_record", lambda self: None)

    monkeypatch.setattr(mutants, "MUTANTS", {"harmless": harmless, "broken": broken})
    monkeypatch.setattr(mutants, "MOVES", 3)
    found = {name: mutants.hunt(name, most=1) for name in mutants.MUTANTS}
    assert all((each.seed, each.worlds) == (None, 1) for each in found.values())
    assert "TypeError" in found["broken"].why


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
