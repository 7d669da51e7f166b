"""``make demo-regions``: one region is killed at random points, and the other takes over.

Every closed hour must be as promised.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.result import Result, Spread, machine
from examples.regions.answer import ARRIVED, MOVE, WRITE_OFF, Run, Take, wrong
from examples.regions.world import SUSPECT_AFTER, run
from examples.session import clear

STEPS: Final = {
    "adopted": "the operator's adoption is taken, or the move has ended",
    "raised": "the next owner has raised its number in the sink",
    "committed": "the next owner has committed by it",
    "returned": "the lost region is started again",
    "decided": "the operator has decided about what only the lost region had",
    "above": "the next owner has closed an hour above R",
    "published": "readers are told of more than R: of two regions, the lost one has to be back and keep a replica",
}
"""Steps of a take-over, timed in seconds from the kill."""


IN_ONE: Final = 3
"""Take-overs in one world at most."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill the region that owns a reference, again and again, and move from it as planned.

    Compare every hour, and print the time of each step.
    """
    parser = argparse.ArgumentParser(prog="python -m examples.regions", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/regions"), help="files of the runs")
    parser.add_argument("--kills", type=int, default=2, help="how often a region is killed (default: %(default)s)")
    parser.add_argument("--moves", type=int, default=1, help="planned moves (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the first world; the others count on from it. At random without")
    parser.add_argument("--json", type=Path, help="append a line for each take-over to this file")
    parser.add_argument(
        "--sum", type=Path, help="run nothing; sum up the lines of such a file, as those of a benchmark"
    )
    options = parser.parse_args(arguments)
    if options.sum is not None:
        return summed(options.sum)
    out = options.out.resolve()
    clear(out, "regions", parser)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # all processes end with it
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    print(f"seed {seed}; a region is suspect after {SUSPECT_AFTER}, and the operator adopts then\n", flush=True)
    all_lines: list[dict[str, Any]] = []
    bad = 0
    for number, hows in enumerate(worlds(options.kills, options.moves)):
        began = time.monotonic()
        outcome = run(out / str(number), hows, seed + number)
        bad += report(outcome, time.monotonic() - began)
        lines = [line(outcome, take) for take in outcome.takes]
        all_lines += lines
        if options.json is not None:
            with options.json.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(entry) + "\n" for entry in lines)
        shutil.rmtree(out / str(number))
    for result in figures(all_lines):
        print(result.text())
    if bad:
        print(f"\nWRONG: {bad} problems")
        return 1
    print(f"\nevery closed hour is what was promised, over {len(all_lines)} take-overs")
    return 0


def worlds(kills: int, moves: int) -> list[list[str]]:
    """Return the take-overs of each world.

    The last kill of a world is written off, which nobody returns from within it.

    >>> worlds(5, 1)
    [['moved', 'arrived', 'written off'], ['arrived', 'arrived', 'written off']]
    """
    plan = [MOVE] * moves + [ARRIVED] * kills
    plans = [plan[first : first + IN_ONE] for first in range(0, len(plan), IN_ONE)]
    return [[*hows[:-1], WRITE_OFF] if hows[-1] == ARRIVED else hows for hows in plans]


def line(outcome: Run, take: Take) -> dict[str, Any]:
    """Return what is kept of a take-over."""
    return {
        "example": "regions",
        "how": take.how,
        "seed": outcome.seed,
        "from": take.owner,
        "number": take.number,
        "hours": sum(hour.number == take.number for hour in outcome.hours.values()),
        "lost": len(outcome.lost(take) - outcome.closed_before(take)),
        "closed_before": len(outcome.closed_before(take)),
        "refused": take.tries,
        "wrong": len(wrong(outcome)),
        "seconds": {step: round(take.times[step] - take.times["struck"], 3) for step in STEPS if step in take.times},
    }


def report(outcome: Run, seconds: float) -> int:
    """Say how a world was; return how much was wrong."""
    print(
        f"seed {outcome.seed}: {len(outcome.clicks)} clicks in {len(outcome.hours)} hours, {len(outcome.readings)} watermarks read, {seconds:.0f} s"
    )
    for take in outcome.takes:
        entry = line(outcome, take)
        steps = "  ".join(f"{step} {after:.1f}" for step, after in entry["seconds"].items())
        print(
            f"    {take.owner} to {take.to}, {take.how}: {steps};  {entry['hours']} hours by {take.number}, {entry['lost']} clicks given up, "
            f"{entry['closed_before']} above R in hours that were closed before, the old number refused {take.tries} times"
        )
    problems = wrong(outcome)
    for problem in problems:
        print(f"    WRONG: {problem}")
    sys.stdout.flush()
    return len(problems)


def figures(entries: Sequence[dict[str, Any]]) -> list[Result]:
    """Return each step of the take-over as a figure over all runs of one kind."""
    results = []
    for how in (WRITE_OFF, ARRIVED, MOVE):
        runs = [entry for entry in entries if entry["how"] == how]
        for step in STEPS:
            rounds = tuple(entry["seconds"][step] for entry in runs if step in entry["seconds"])
            if rounds:
                name = f"{how.replace(' ', '_')}_{step}"
                facts = {
                    "what": STEPS[step],
                    "suspect_after": SUSPECT_AFTER,
                    "wrong": sum(entry["wrong"] for entry in runs),
                }
                results.append(Result("regions", name, Spread(rounds), "s", facts=facts))
    return results


def summed(path: Path) -> int:
    """Print the figures over the lines of a file, one JSON object a line."""
    entries = [entry for entry in map(json.loads, path.read_text("utf-8").splitlines()) if "example" in entry]
    for result in figures(entries):
        print(json.dumps(result.line(machine()) | {"rounds_s": list(result.value.rounds)}))
    return int(any(entry["wrong"] for entry in entries))


if __name__ == "__main__":
    sys.exit(main())
