"""``make two-partitions``: a day in two partitions, one three hours behind, in three ways.

Spark alone, attached, and driven.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights.server import serving
from examples.session import QUICK, clear, spark_session
from examples.two_partitions import picture, records, report, ways

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(arguments: Sequence[str] | None = None) -> int:
    """Count records by the hour in three ways and compare them with the batch answer."""
    parser = argparse.ArgumentParser(prog="python -m examples.two_partitions", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/two-partitions"), help="picture and files of the run")
    parser.add_argument("--json", action="store_true", help="write the report as one JSON object")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    clear(out, "two-partitions", parser)
    with serving(out / "authority") as address, spark_session("two partitions", out, QUICK) as spark:
        outcomes = run(spark, address, out, records.steps())
    return conclude(outcomes, out, records.steps(), as_json=options.json)


def conclude(outcomes: Mapping[str, ways.Outcome], out: Path, steps: Sequence[records.Step], *, as_json: bool) -> int:
    """Check the windows, draw and report; return the exit code."""
    batch = records.batch_answer(out / ways.DRIVEN / "records")
    try:
        report.require_exact(outcomes, batch)
    except report.WrongWindowsError as error:
        print(f"WRONG: the run does not show what it should\n  {error}", file=sys.stderr)
        return 1
    drawing = out / "two-partitions.png"
    picture.draw(outcomes, batch, drawing)
    if as_json:
        print(json.dumps(report.as_json(outcomes, batch, steps)))
    else:
        print(f"{report.as_text(outcomes, batch, steps)}\npicture: {drawing}")
    return 0


def run(spark: SparkSession, address: str, out: Path, steps: Sequence[records.Step]) -> dict[str, ways.Outcome]:
    """Replay the records through each way, one after the other, and return what came of it."""
    return {
        ways.ALONE: ways.alone(spark, out / ways.ALONE, steps),
        ways.ATTACHED: ways.attached(spark, out / ways.ATTACHED, steps, address),
        ways.DRIVEN: ways.driven(spark, out / ways.DRIVEN, steps, address),
    }


if __name__ == "__main__":
    sys.exit(main())
