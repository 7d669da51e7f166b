"""``make demo-zeitgeist``: a feed stands still, and a blizzard comes.

Five weeks of departures before teach the usual counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.flights.server import serving
from examples.session import QUICK, clear, spark_session
from examples.zeitgeist import picture, replay, report
from examples.zeitgeist.run import Run, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Find dips and spikes of real departures by the low watermark, and by Spark's own."""
    parser = argparse.ArgumentParser(prog="python -m examples.zeitgeist", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/zeitgeist"), help="picture and files of the run")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    clear(out, "zeitgeist", parser)
    departures = replay.departures()
    steps = replay.steps(departures)
    print(f"replaying {len(departures):,} departures in {len(steps)} steps, some minutes ...", flush=True)
    with serving(out / "authority") as address, spark_session("zeitgeist", out, QUICK) as spark:
        outcome = run(spark, address, out, steps, ask=replay.STALL[1])
    return conclude(outcome, steps, out)


def conclude(outcome: Run, steps: Sequence[replay.Step], out: Path) -> int:
    """Check what the low watermark has let pass, draw and report; return the exit code."""
    batch = report.batch_answer(steps)
    wrong = report.differences(outcome.low, batch)
    if wrong:
        print(f"WRONG: what the computations say is not the batch answer\n  {wrong}", file=sys.stderr)
        return 1
    drawing = out / "zeitgeist.png"
    picture.draw(outcome, batch, drawing)
    print(f"{report.as_text(outcome, batch)}\npicture: {drawing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
