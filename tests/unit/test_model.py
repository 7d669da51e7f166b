"""The models in `tests/model`: spin looks at all their states, finds each planted bug, and comes to each place that is worth a look."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.kit.program import run_program

ROOT = Path(__file__).parents[2]
MODELS = {"lowwater": ROOT / "tests/model/lowwater.pml", "regions": ROOT / "tests/model/regions.pml"}
PAGE = ROOT / "docs/concepts/simulation.md"

BUG = re.compile(r"^#ifn?def (\w+) +/\* BUG", re.MULTILINE)
GOAL = re.compile(r"\bREACHED\(([A-Z_]{2,})\)")
NUMBER = re.compile(r"^#define (\w+) (\d+)$", re.MULTILINE)
VIOLATED = re.compile(r"assertion violated (.*) \(at depth \d+\)")
STORED = re.compile(r"(\d+) states, stored")

DEEP: Final = 10_000
"""Steps of a run at most. The longest have less than 200; a search that is cut there fails."""

ONE_LIFE = ("LIVES=1",)
BACK = ("LIVES=1", "CLAIMS=1", "VIEWS=3", "EPOCHS=3", "NUMBERS=3")
"""A shard is left out, comes back, and takes back what was its own."""

WHOLE = {
    "lowwater": ("lowwater", ()),
    "lowwater, and back": ("lowwater", BACK),
    "lowwater, two ranges": ("lowwater", ("RANGES=2", "LIVES=1", "CLAIMS=3", "VIEWS=1", "EPOCHS=1")),
    "regions": ("regions", ()),
}
"""The searches of whole models: the model and its bounds, where they differ from those in the file."""

WIDE = {
    "two ranges over two shards": ("RANGES=2", "LIVES=1"),
    "back, with a worker that is replaced": ("VIEWS=3", "EPOCHS=3", "LIVES=1"),
}

HARMFUL = {
    "lowwater": ("NO_FENCE", "FENCE_APART", "PUBLISH_BEFORE_APPEND"),
    "regions": ("NO_NUMBER_IN_RECORD", "PUBLISH_L", "SILENT_REPLICA_LEFT_OUT"),
}
"""Bugs that break an assertion which repeats the rule: they must be found without it, too."""


def bugs(model: str) -> list[str]:
    return BUG.findall(MODELS[model].read_text(encoding="utf-8"))


def goals(model: str) -> list[str]:
    return sorted(set(GOAL.findall(MODELS[model].read_text(encoding="utf-8"))))


def bounds(model: str, name: str) -> tuple[str, ...]:
    """Bounds in which a bug or a goal is looked for: as small as it lets them be."""
    if model != "lowwater" or "RESET" in name or "LIFE" in name:
        return ()
    return BACK if name == "TAKEN_BACK" else ONE_LIFE


class Search(NamedTuple):
    output: str

    @property
    def violated(self) -> str:
        match = VIOLATED.search(self.output)
        return match[1] if match else ""

    @property
    def states(self) -> int:
        return int(STORED.findall(self.output)[0])

    def is_whole(self) -> bool:
        """Return True if all states were looked at, and none is wrong: no assertion failed, and no process ended in the middle of a step."""
        cut = ("max search depth too small", "Search not completed", "out of memory", "hash table full", "aborted")
        return "errors: 0" in self.output and not any(word in self.output for word in cut)


def search(model: str, folder: Path, *switches: str, quickly: bool = True) -> Search:
    """Look at the states of a model until there is an error, and at all of them if there is none."""
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            pytest.fail(f"{tool} is missing: run `scripts/setup.sh --tests`, or `apt-get install spin gcc libc6-dev`")

    def run(*command: str) -> str:
        done = run_program(command, cwd=folder)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout

    run("spin", "-a", *(f"-D{switch}" for switch in switches), str(MODELS[model]))
    # To optimise takes longer than most searches do.
    run("gcc", "-O0" if quickly else "-O1", "-w", "-DSAFETY", "-DNOREDUCE", "-o", "pan", "pan.c")
    # The table of states begins small, and grows.
    return Search(run("./pan", f"-m{DEEP}", "-w18"))


@pytest.mark.process
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * ("two" in name)) for name in WHOLE])
def test_every_state_keeps_what_is_promised(name: str, tmp_path: Path) -> None:
    model, switches = WHOLE[name]
    result = search(model, tmp_path, *switches, quickly=False)
    assert result.is_whole(), result.output
    assert f"{result.states:,} states" in PAGE.read_text(encoding="utf-8"), f"say so in {PAGE.name}"


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("name", WIDE)
def test_every_state_within_wider_bounds_does(name: str, tmp_path: Path) -> None:
    result = search("lowwater", tmp_path, *WIDE[name], quickly=False)
    assert result.is_whole(), result.output


@pytest.mark.process
@pytest.mark.parametrize(("model", "bug"), [(model, bug) for model in MODELS for bug in bugs(model)])
def test_a_planted_bug_is_found(model: str, bug: str, tmp_path: Path) -> None:
    result = search(model, tmp_path, bug, *bounds(model, bug))
    assert result.violated, result.output


@pytest.mark.process
@pytest.mark.parametrize(("model", "bug"), [(model, bug) for model in MODELS for bug in HARMFUL[model]])
def test_a_planted_bug_does_harm(model: str, bug: str, tmp_path: Path) -> None:
    result = search(model, tmp_path, bug, "BY_HARM", *bounds(model, bug))
    assert result.violated, result.output


@pytest.mark.process
def test_a_region_that_is_not_asked_does_no_harm_where_numbers_are_compared(tmp_path: Path) -> None:
    assert search("regions", tmp_path, "NO_CONFIRM", "BY_HARM").is_whole()


@pytest.mark.process
@pytest.mark.parametrize(("model", "goal"), [(model, goal) for model in MODELS for goal in goals(model)])
def test_the_search_comes_to_what_is_worth_a_look(model: str, goal: str, tmp_path: Path) -> None:
    number = dict(NUMBER.findall(MODELS[model].read_text(encoding="utf-8")))[goal]
    result = search(model, tmp_path, f"GOAL={goal}", *bounds(model, goal))
    assert result.violated == f"({number}!={number})", result.output
