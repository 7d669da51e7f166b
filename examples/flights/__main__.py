"""``make demo``: four days of real flights through three Spark jobs, and their watermarks.

``make demo-kafka`` is the same through topics of Kafka and tables of Delta.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lowwater
from examples.flights import compare, data, expected, picture, pipeline, table
from examples.flights.expected import Hourly
from examples.flights.pipeline import Folders
from examples.flights.plain import ENRICHED, FLIGHTS, HOURLY
from examples.flights.replay import replay_clock
from examples.flights.server import serving
from examples.session import clear, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lowwater_spark import TrackedQuery

PATIENCE: Final = 420.0
"""Seconds after which the demo gives up and says where it stands."""

EVERY: Final = 0.25
"""Seconds between looks at the watermarks."""

SPARK: Final = {
    "spark.sql.adaptive.enabled": "false",  # plans that run once: it would cost more than it saves
    # A job per listing of more than 32 small files would cost more than the batch.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}


Reached = Callable[[Mapping[str, lowwater.WatermarkView]], bool]
"""Test of the watermarks: True once they have come far enough."""


class Stuck(Exception):
    """The jobs did not finish in time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay real flights through three Spark jobs; compare five ways to close their windows."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="report, picture and all files of the run")
    parser.add_argument("--rate", type=float, default=1.0, help="hours of event time a second (default: %(default)s)")
    parser.add_argument(
        "--kafka", action="store_true", help="through topics of Kafka and tables of Delta; starts a broker"
    )
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    clear(out, "demo", parser)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folders, settings = Folders(out), dict(SPARK)
        if options.kafka:
            from examples.flights.streams import SESSION, Streams  # needs more packages

            say("starting a broker of Kafka ...")
            folders = stack.enter_context(Streams.over(out))
            settings |= SESSION
        say("starting the authority and Spark ...")
        address = stack.enter_context(serving(out / "authority"))
        spark = stack.enter_context(spark_session("flights", out, settings))
        folders.make(spark)
        queries = pipeline.start(spark, folders, address)
        for query in queries:
            stack.callback(query.stop)
        client = stack.enter_context(lowwater.connect(address))
        demo = Demo(client, folders, queries, stack.enter_context(replayer(folders, options.rate)))
        say("running the first beat through all three, so that their first batches are not the slow ones ...")
        demo.wait_for(lambda views: not views[HOURLY].low.unknown)
        last = data.SLICE_END - timedelta(days=1)
        say(
            f"replaying {data.SLICE_START:%-d} to {last:%-d %B %Y} at {options.rate:g} h/s through "
            f"{FLIGHTS} -> {ENRICHED} -> {HOURLY}\n"
        )
        demo.go()
        table.show(demo.snapshots(lambda views: views[HOURLY].low.finished), sys.stdout)
        rows = closed_windows(spark, folders)
        late = sum(query.stage_status().late_rows for query in queries)
    say(f"\nall three have finished after {time.monotonic() - began:.0f} s; checking against pandas on the CSV ...")
    return report(folders, rows, late)


def say(text: str) -> None:
    """Tell the user."""
    print(text, flush=True)


@contextlib.contextmanager
def replayer(folders: Folders, rate: float) -> Iterator[subprocess.Popen[bytes]]:
    """The feed, dropped by a process of its own; it waits behind the first beat."""
    command = [sys.executable, "-m", "examples.flights.replay", "--hold"]
    command += ["--out", str(folders.feed), "--rate", str(rate), *folders.replayed]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


@dataclass(frozen=True)
class Demo:
    """The running demo."""

    client: lowwater.Client
    folders: Folders
    queries: Sequence[TrackedQuery]
    feed: subprocess.Popen[bytes]

    def go(self) -> None:
        """Let the replay clock run."""
        assert self.feed.stdin is not None
        self.feed.stdin.write(b"\n")
        self.feed.stdin.flush()

    def wait_for(self, reached: Reached) -> None:
        """Wait until the watermarks have reached something."""
        for _ in self.snapshots(reached):
            pass

    def snapshots(self, reached: Reached) -> Iterator[table.Snapshot]:
        """Yield where everything stands until something is reached.

        Raises what stopped a query, and Stuck.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            views = self.client.get(FLIGHTS, ENRICHED, HOURLY)
            yield table.Snapshot(replay_clock(self.folders.feed), tuple(map(table.line_of, views.values())))
            if reached(views):
                return
            for query in self.queries:
                if query.await_termination(0.001):
                    raise Stuck(f"{query.query.name} has ended early")
            if self.feed.poll():
                raise Stuck(f"the replayer ended with exit code {self.feed.returncode}")
            if time.monotonic() > deadline:
                raise Stuck(f"not finished after {PATIENCE:.0f} s. {self.client.why(HOURLY)}")
            time.sleep(EVERY)


def closed_windows(spark: SparkSession, folders: Folders) -> list[tuple[expected.Window, Hourly]]:
    """Return what hourly wrote."""
    frame = folders.result(spark, HOURLY)
    rows: list[Any] = frame.selectExpr(
        "origin", "unix_micros(start)", "flights", "cancelled", "delayed", "delay_minutes"
    ).collect()
    return [((row[0], row[1]), Hourly(*row[2:])) for row in rows]


def report(folders: Folders, rows: list[tuple[expected.Window, Hourly]], late: int) -> int:
    """Check every window, compare, draw; returns the exit code."""
    try:
        compare.require_exact(rows, expected.hourly(data.SLICE_START, data.SLICE_END))
    except compare.WrongWindowsError as error:
        print(f"WRONG: the windows closed by the low watermark are not the batch answer\n{error}", file=sys.stderr)
        return 1
    batches = compare.read_batches(folders.batches)
    comparisons = compare.compare(batches)
    broken = [
        late,
        comparisons[0].missing_records,
        comparisons[0].windows_never_closed,
        len(rows) - comparisons[0].windows,
    ]
    if any(broken):
        print(
            "WRONG: the low watermark broke its promise: {} late rows, {} missing records, {} windows never closed, {} "
            "windows that the record of the run does not know".format(*broken),
            file=sys.stderr,
        )
        return 1
    compare.write_report(folders.root / "report.json", comparisons)
    picture.draw(batches, folders.root / "report.png")
    say(f"all {len(rows)} windows closed by the low watermark are exactly the batch answer.\n")
    say(f"{'windows closed by':<20}{'windows':>9}{'missing records':>17}{'median wait':>13}{'p99 wait':>10}")
    for one in comparisons:
        waits = (hours(one.median_wait_seconds), hours(one.p99_wait_seconds))
        say(f"{one.name:<20}{one.windows:>9}{one.missing_records:>17}{waits[0]:>13}{waits[1]:>10}")
    say(
        f"\none batch of hourly spanned {hours(comparisons[0].batch_span_seconds_median)} of event time at the median, "
        f"{hours(comparisons[0].batch_span_seconds_max)} at most.\nreport: {folders.root / 'report.json'}\npicture: "
        f"{folders.root / 'report.png'}"
    )
    return 0


def hours(seconds: float | None) -> str:
    """Return seconds as hours, for people."""
    return "never" if seconds is None else f"{seconds / 3600:.2f} h"


if __name__ == "__main__":
    sys.exit(main())
