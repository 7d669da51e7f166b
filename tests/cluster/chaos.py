"""``python -m tests.cluster.chaos``: the pipeline of :mod:`tests.cluster.streams` under counted faults, every window and every watermark checked.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.oracle import hours_of
from tests.cluster.shipping import Shipped, ship
from tests.cluster.streams import streams


def run(
    folder: Path, faults: int, seed: int, *, shipped: Shipped | None = None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run until so many faults have taken effect; return the result. Stops at the first round in which anything is wrong."""
    began = time.monotonic()
    with streams(folder, seed, ship(folder / "shipped") if shipped is None else shipped) as pipeline:
        pipeline.start()
        pipeline.put()
        pipeline.promise()
        pipeline.recovered()
        tally = pipeline.tally
        wrong: list[str] = []
        rounds = 0
        while tally.total < faults and not wrong and tally.missed.total() <= faults:
            kinds = pipeline.plan(faults)
            since = time.monotonic()
            pipeline.round(kinds)
            wrong = pipeline.wrong()
            rounds += 1
            say(f"round {rounds} {'+'.join(kinds)}: {tally.total} counted, {time.monotonic() - since:.1f} s")
        if not wrong:
            pipeline.finish()
            wrong = pipeline.wrong(finished=True)
        for line in wrong[:20]:
            say(f"WRONG: {line}")
        return {
            "seed": seed,
            **tally.summary(),
            "rows": len(pipeline.puts),
            "windows": len(hours_of(pipeline.puts)),
            "batches": sum(output.commits() for output in pipeline.outputs.values()),
            "published": sum(len(values) for values in pipeline.watching.published.values()),
            "violations": len(wrong),
            "seconds": round(time.monotonic() - began, 1),
        }


def main() -> int:
    parse = argparse.ArgumentParser(
        prog="python -m tests.cluster.chaos",
        description="Tracked queries over Kafka and Delta on a standalone Spark cluster under faults that are counted when they took effect.",
        epilog="example: python -m tests.cluster.chaos --faults 20 --seed 7",
    )
    parse.add_argument("--faults", type=int, default=20, help="how many must have taken effect (default: %(default)s)")
    parse.add_argument("--seed", type=int, help="of rows and faults (default: a random one, printed)")
    parse.add_argument("--folder", type=Path, help="where everything is written, and stays (default: a temporary one)")
    args = parse.parse_args()
    seed = secrets.randbelow(1_000_000) if args.seed is None else args.seed
    folder = Path(tempfile.mkdtemp(prefix="lowwater-chaos-")) if args.folder is None else args.folder
    folder.mkdir(parents=True, exist_ok=True)
    result = run(folder, args.faults, seed, say=lambda line: print(line, file=sys.stderr, flush=True))
    if args.folder is None and not result["violations"]:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(result))
    return 1 if result["violations"] or result["faults"] < args.faults else 0


if __name__ == "__main__":
    sys.exit(main())
