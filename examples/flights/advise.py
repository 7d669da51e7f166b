"""What waiting costs and loses: four days of flights, asked by ``lowwater advise``.

``python -m examples.flights.advise``, some minutes. A query of Spark's own counts the flights of
each hour with a delay of two hours, and is attached. Injectors report beside it which flights are
still out. So the same hours have a constant delay and an exact low watermark.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import lowwater
import lowwater_spark as lws
from examples.flights import data
from examples.flights.data import HOUR
from examples.flights.plain import FLIGHTS, ORIGIN_BOUNDS, ORIGINS, FlightsStage
from examples.flights.replay import FEED_DDL, Beat, beats, write_beat
from examples.flights.server import serving
from examples.session import clear, spark_session
from lowwater.cli import main as command

QUERY: Final = "by_hour"
SPARK: Final = {"spark.sql.adaptive.enabled": "false", "spark.sql.streaming.numRecentProgressUpdates": "10000"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the flights hour by hour, and ask for advice; returns the exit code of the command."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.advise", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/advise"), help="progress, picture and files of the run")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    clear(out, "advise", parser)
    start, end = (int(time.timestamp() * 1_000_000) for time in (data.SLICE_START, data.SLICE_END))
    flights = [flight for flight in data.load() if start <= flight.sched_dep < end]
    feeds = [
        list(beats([flight for flight in flights if flight.origin == origin], start=start, step=HOUR))
        for origin in ORIGINS
    ]
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(serving(out / "authority"))
        spark = stack.enter_context(spark_session("advise", out, SPARK))
        stack.enter_context(lws.attach(spark, address))
        client = stack.enter_context(lowwater.connect(address))
        client.register(FLIGHTS, heuristics=(0.99,))
        feed = out / "feed"
        feed.mkdir()
        query = (
            spark.readStream.schema(FEED_DDL)
            .parquet(str(feed))
            .selectExpr("sched_dep", "origin")
            .withWatermark("sched_dep", "2 hours")
            .groupBy("origin", "window(sched_dep, '1 hour')")
            .count()
            .writeStream.queryName(QUERY)
            .format("noop")
            .option("checkpointLocation", str(out / "checkpoint"))
            .start()
        )
        leases = [
            client.worker(FLIGHTS, name=origin).claim(bounds=bounds)
            for origin, bounds in zip(ORIGINS, pairwise(ORIGIN_BOUNDS), strict=True)
        ]
        stages = [
            FlightsStage(iter(of_origin), lease, lambda _: None) for of_origin, lease in zip(feeds, leases, strict=True)
        ]
        for number in range(max(map(len, feeds))):
            rows = [row for beat in feeds for each in beat[number : number + 1] for row in each.rows]
            landed = tuple(row for row in rows if row.kind == "flight")
            if landed:
                write_beat(feed, Beat(number, start + (number + 1) * HOUR, landed))
                query.processAllAvailable()
            stages = [stage for stage in stages if not stage.turn()]
            for lease in leases:
                lease.flush()
        progress = out / "progress.jsonl"
        progress.write_text("".join(f"{each.json}\n" for each in query.recentProgress), "utf-8")
        query.stop()
        asked = ["advise", FLIGHTS, "--progress", str(progress), "--window", "1h", "--delay", "1h", "--delay", "2h"]
        asked += ["--delay", "6h", "--picture", str(out / "advise.svg"), "--address", address]
        return command(asked)


if __name__ == "__main__":
    sys.exit(main())
