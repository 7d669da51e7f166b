"""``make two-partitions``: a day in two partitions, one three hours behind, through Spark alone, attached, and driven."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights.server import serving
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
    clear(out, parser)
    with serving(out / "authority") as address, spark_session(out) as spark:
        outcomes = run(spark, address, out)
    return conclude(outcomes, out, as_json=options.json)


def conclude(outcomes: Mapping[str, ways.Outcome], out: Path, *, as_json: bool) -> int:
    """Check the windows, draw and report; return the exit code."""
    steps = records.steps()
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


def run(spark: SparkSession, address: str, out: Path) -> dict[str, ways.Outcome]:
    """Replay the records through each way, one after the other, and return what came of it."""
    steps = records.steps()
    return {
        ways.ALONE: ways.alone(spark, out / ways.ALONE, steps),
        ways.ATTACHED: ways.attached(spark, out / ways.ATTACHED, steps, address),
        ways.DRIVEN: ways.driven(spark, out / ways.DRIVEN, steps, address),
    }


def clear(out: Path, parser: argparse.ArgumentParser) -> None:
    """Empty the folder of an earlier run; refuse one that holds anything else."""
    mark = out / ".lowwater-two-partitions"
    if out.exists() and any(out.iterdir()) and not mark.exists():
        parser.error(f"--out {out} holds something that is no earlier run; name an empty folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    mark.touch()


@contextlib.contextmanager
def spark_session(out: Path) -> Iterator[SparkSession]:
    """A small local Spark."""
    from pyspark.sql import SparkSession

    # Workers are this interpreter, also when its environment is not activated.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("lowwater two partitions")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(out / "warehouse"))
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        # Plans of a hundred rows, a JVM of a minute: compiling them, or optimising it, would cost more than running them.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()


if __name__ == "__main__":
    sys.exit(main())
