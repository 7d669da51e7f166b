"""``make demo-regions``: a region is killed at random points of its work, the other one takes over, and every closed hour is what was promised."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.result import Result, Spread, machine
from examples.regions.answer import ARRIVED, MOVE, WRITE_OFF, Run, wrong
from examples.regions.world import SUSPECT_AFTER, run
from examples.session import clear

STEPS: Final = {
    "adopted": "the operator's adoption is taken",
    "raised": "B has raised its number in the sink",
    "committed": "B has committed by it",
    "decided": "the operator has decided about what only A had",
    "above": "B has closed an hour above R",
    "returned": "A is started again",
    "published": "readers are told of more than R: with two regions, A has to be back and keep a replica",
}
"""Of a take-over, in the order in which they come, counted from the kill."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill a region some times, each time in a new world, then move from it as planned; compare every hour, and say how long each step took."""
    parser = argparse.ArgumentParser(prog="python -m examples.regions", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/regions"), help="files of the runs")
    parser.add_argument("--kills", type=int, default=2, help="how often region A is killed (default: %(default)s)")
    parser.add_argument("--moves", type=int, default=1, help="planned moves (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the first run; the others count on from it. At random without")
    parser.add_argument("--json", type=Path, help="append a line for each run to this file")
    parser.add_argument(
        "--sum", type=Path, help="run nothing, and sum up the lines of such a file, as those of a benchmark"
    )
    options = parser.parse_args(arguments)
    if options.sum is not None:
        return summed(options.sum)
    out = options.out.resolve()
    clear(out, "regions", parser)
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    plan = [(WRITE_OFF, ARRIVED)[number % 2] for number in range(seed, seed + options.kills)] + [MOVE] * options.moves
    bad, told = 0, []
    print(f"seed {seed}; region A is suspect after {SUSPECT_AFTER}, and the operator adopts then\n", flush=True)
    for number, how in enumerate(plan):
        folder = out / str(number)
        began = time.monotonic()
        found = run(folder, how, seed + number)
        told.append(line(found))
        bad += report(found, time.monotonic() - began)
        if options.json is not None:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(told[-1]) + "\n")
        shutil.rmtree(folder)
    for result in figures(told):
        print(result.text())
    if bad:
        print(f"\nWRONG: {bad} of {len(plan)} runs")
        return 1
    print(f"\nevery closed hour is what was promised, in {len(plan)} of {len(plan)} runs")
    return 0


def line(found: Run) -> dict[str, object]:
    """Return what is kept of a run."""
    return {
        "example": "regions",
        "how": found.how,
        "seed": found.seed,
        "clicks": len(found.clicks),
        "hours": len(found.hours),
        "hours_of_b": sum(each.number == 2 for each in found.hours.values()),
        "lost": len(found.lost - found.kept),
        "closed_before": len(found.kept),
        "watermarks": len(found.seen),
        "refused": found.tries,
        "wrong": len(wrong(found)),
        "seconds": {step: round(found.times[step] - found.times["struck"], 3) for step in STEPS if step in found.times},
    }


def report(found: Run, seconds: float) -> bool:
    """Say how a run was, and whether something was wrong."""
    told, problems = line(found), wrong(found)
    steps = "  ".join(f"{step} {after:.1f}" for step, after in told["seconds"].items())  # type: ignore[attr-defined]
    print(f"seed {found.seed}, {found.how}: {steps}  ({seconds:.0f} s)")
    print(
        f"    {told['clicks']} clicks in {told['hours']} hours, {told['hours_of_b']} of B; {told['lost']} given up, "
        f"{told['watermarks']} watermarks seen, the old number refused {told['refused']} times"
    )
    for problem in problems:
        print(f"    WRONG: {problem}")
    sys.stdout.flush()
    return bool(problems)


def figures(told: Iterable[dict[str, object]]) -> list[Result]:
    """Return each step of the take-over as a figure over all runs of one kind."""
    found, told = [], list(told)
    for how in (WRITE_OFF, ARRIVED, MOVE):
        runs = [each for each in told if each["how"] == how]
        for step in STEPS:
            rounds = tuple(each["seconds"][step] for each in runs if step in each["seconds"])  # type: ignore[index, operator]
            if rounds:
                name = f"{how.replace(' ', '_')}_{step}"
                facts = {
                    "what": STEPS[step],
                    "suspect_after": SUSPECT_AFTER,
                    "wrong": sum(each["wrong"] for each in runs),
                }  # type: ignore[misc]
                found.append(Result("regions", name, Spread(rounds), "s", facts=facts))
    return found


def summed(path: Path) -> int:
    """Print the figures over the lines of a file, one JSON object a line."""
    told = [json.loads(each) for each in path.read_text("utf-8").splitlines()]
    for result in figures(told):
        print(json.dumps(result.line(machine()) | {"rounds_s": list(result.value.rounds)}))
    return int(any(each["wrong"] for each in told))


if __name__ == "__main__":
    sys.exit(main())
