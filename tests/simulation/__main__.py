"""``python -m tests.simulation``: worlds under chaos, or worlds with planted bugs. Each ends with one JSON object as its last line."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from collections import Counter
from pathlib import Path

from tests.simulation import chaos, points
from tests.simulation.runs import MOVES, moves_of, outcomes
from tests.simulation.shrink import shrink
from tests.simulation.world import Result, World

ENOUGH = 0.9

LONG = 1200


def positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        msg = f"{text!r} is no number from 1 up"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Run the authority and its clients in simulated worlds where everything goes wrong, and check every value.",
        epilog="example: python -m tests.simulation run --seed 7 --steps 1200",
    )
    commands = parse.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run worlds; a failing one names its seed and is shrunk")
    run.add_argument("--seed", type=int, help="seed of the first world (default: a random one, printed)")
    run.add_argument("--steps", type=positive, default=1200, help=f"moves of chaos, {MOVES} a world (%(default)s)")
    run.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, help="worlds at a time (%(default)s)")
    run.add_argument(
        "--harsh",
        action="store_true",
        help="let messages come late, and the replica of the store lag, in each world and not in every other one",
    )
    run.add_argument("--no-shrink", action="store_true", help="do not look for the few moves that matter")
    replay = commands.add_parser("replay", help="run one world again from a file of moves, as a failure left it")
    replay.add_argument("file", type=Path)
    mutants = commands.add_parser("mutants", help="plant bugs, one at a time; the simulator must find each")
    mutants.add_argument("names", nargs="*", help="which ones (default: all)")
    mutants.add_argument(
        "--jobs", type=positive, default=os.cpu_count() or 1, help="mutants at a time (default: %(default)s)"
    )
    mutants.add_argument(
        "--keep", action="store_true", help="keep which world found each, so that `make test` begins with it"
    )
    return parse


def run(args: argparse.Namespace) -> int:
    seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed
    worlds: list[tuple[int, int]] = []
    remaining: int = args.steps
    while remaining > 0:
        worlds.append((seed + len(worlds), min(MOVES, remaining)))
        remaining -= MOVES
    print(f"seed {seed}: {len(worlds)} worlds", flush=True)
    reached: Counter[str] = Counter()
    seconds, faults, observations = 0.0, 0, 0
    violations: list[str] = []
    for (_, count), outcome in zip(worlds, outcomes(worlds, args.jobs, harsh=args.harsh or None), strict=False):
        seconds += outcome.seconds
        faults += outcome.faults
        observations += outcome.observations
        reached.update(outcome.points)
        print(
            f"world {outcome.seed}: {outcome.seconds:.0f} s, {outcome.faults} faults, {outcome.observations} values checked, "
            f"at the truth after {outcome.settled:.1f} s of peace",
            flush=True,
        )
        if outcome.violations:
            violations += outcome.violations
            report_failure(outcome, count, shrinks=not args.no_shrink, harsh=args.harsh)
            break
    missing = sorted(set(points.POINTS) - reached.keys())
    result = {
        "seed": seed,
        "simulated_hours": round(seconds / 3600, 3),
        "faults": faults,
        "fault_points_reached": len(points.POINTS) - len(missing),
        "fault_points": len(points.POINTS),
        "observations_checked": observations,
        "violations": len(violations),
    }
    too_few = args.steps >= LONG and len(missing) > (1 - ENOUGH) * len(points.POINTS)
    if missing:
        print(f"not reached: {'; '.join(missing)}")
    if too_few and not violations:
        print("too few fault points were reached: this run proves little", file=sys.stderr)
    print(json.dumps(result))
    return int(bool(violations) or too_few)


def report_failure(outcome: Result, count: int, *, shrinks: bool, harsh: bool = False) -> None:
    print(f"\nworld {outcome.seed} broke a promise:")
    for violation in outcome.violations[:10]:
        print(f"  {violation}")
    print(f"again: make simulate SEED={outcome.seed} STEPS={count}{' ARGS=--harsh' if harsh else ''}")
    if not shrinks:
        return
    print("looking for the moves that matter ...", flush=True)
    moves = moves_of(outcome.seed, count, harsh=harsh or None)
    fewer, last = shrink(outcome.seed, moves, lambda line: print(f"  {line}", flush=True))
    if not last.violations:
        print("  it broke no promise when it was run again: something in it does not come from its seed\n")
        return
    for move in fewer:
        print(f"  {move}")
    for violation in last.violations[:3]:
        print(f"  {violation}")
    path = Path("build") / "simulation" / f"{outcome.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(chaos.dump(outcome.seed, fewer, chaos.length(moves)))
    print(f"again, these only: python -m tests.simulation replay {path}\n")


def again(args: argparse.Namespace) -> int:
    outcome = World(*chaos.load(args.file.read_text())).run()
    for violation in outcome.violations:
        print(violation)
    print(json.dumps({"seed": outcome.seed, "digest": outcome.digest, "violations": len(outcome.violations)}))
    return int(bool(outcome.violations))


def plant(args: argparse.Namespace) -> int:
    from tests.simulation import mutants

    return mutants.main(args.names, args.jobs, keep=args.keep)


def main() -> int:
    args = parser().parse_args()
    return {"run": run, "replay": again, "mutants": plant}[args.command](args)


if __name__ == "__main__":
    sys.exit(main())
