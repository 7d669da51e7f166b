"""What waiting costs and loses: four days of flights, asked by ``lowwater advise``.

``python -m examples.flights.advise``, without Spark, some seconds. The flights are replayed in
beats of 15 minutes. For each beat a report is written as Spark writes it of a micro-batch that
reads the flights which have landed, and one of the batch without rows that follows. Injectors
report to an authority which flights are still out. So the same hours have a constant delay and an
exact low watermark.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import lowwater
from examples.flights import data
from examples.flights.data import HOUR
from examples.flights.plain import FLIGHTS, ORIGIN_BOUNDS, ORIGINS, FlightsStage
from examples.flights.replay import beats
from examples.flights.server import serving
from examples.session import clear
from lowwater.cli import main as command

QUERY: Final = "by_hour"
HOURS: Final = (1, 2, 6)
"""Delays that are asked for."""


def report(batch: int, started: float, times: Sequence[int]) -> dict[str, Any]:
    """Return Spark's report of a batch that has just ended, with event times in microseconds."""
    rounded = [at // 1_000 * 1_000 for at in times]
    return {
        "id": QUERY,
        "name": QUERY,
        "batchId": batch,
        "timestamp": datetime.fromtimestamp(started, UTC).isoformat(),
        "batchDuration": round((time.time() - started) * 1_000),
        "numInputRows": len(times),
        "eventTime": {
            "min": text(min(rounded)),
            "avg": text(sum(rounded) // len(rounded)),
            "max": text(max(rounded)),
        }
        if times
        else {},
    }


def text(micros: int) -> str:
    """Return an event time as Spark writes it."""
    return data.moment(micros).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def dropped(batches: Sequence[Sequence[int]], delay: int) -> int:
    """Return the rows of closed hours, row by row: a batch drops by the watermark of all before it.

    A batch without rows follows each batch, so the watermark of the batch before is of that one.
    """
    greatest = lost = 0
    for batch in batches:
        lost += sum((at // HOUR + 1) * HOUR <= greatest - delay for at in batch)
        greatest = max(greatest, *batch)
    return lost


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the flights, and ask for advice; returns the exit code of the command."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.advise", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/advise"), help="reports, picture and files of the run")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    clear(out, "advise", parser)
    start, end = (int(moment.timestamp() * 1_000_000) for moment in (data.SLICE_START, data.SLICE_END))
    flights = [flight for flight in data.load() if start <= flight.sched_dep < end]
    feeds = [list(beats([flight for flight in flights if flight.origin == origin], start=start)) for origin in ORIGINS]
    reports: list[dict[str, Any]] = []
    batches: list[list[int]] = []
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(serving(out / "authority"))
        client = stack.enter_context(lowwater.connect(address))
        client.register(FLIGHTS)
        leases = [
            client.worker(FLIGHTS, name=origin).claim(bounds=bounds)
            for origin, bounds in zip(ORIGINS, pairwise(ORIGIN_BOUNDS), strict=True)
        ]
        stages = {
            origin: FlightsStage(iter(feed), lease, lambda _: None)
            for origin, feed, lease in zip(ORIGINS, feeds, leases, strict=True)
        }
        for number in range(max(map(len, feeds))):
            started = time.time()
            rows = [row for feed in feeds for beat in feed[number : number + 1] for row in beat.rows]
            landed = [row.sched_dep for row in rows if row.kind == "flight" and row.sched_dep is not None]
            if landed:
                reports.append(report(len(reports), started, landed))
                reports.append(report(len(reports), time.time(), ()))
                batches.append(landed)
            for origin, stage in tuple(stages.items()):
                if stage.turn():
                    del stages[origin]
            for lease in leases:
                lease.flush()
        progress = out / "progress.jsonl"
        progress.write_text("".join(f"{json.dumps(each)}\n" for each in reports), "utf-8")
        delays = [part for hours in HOURS for part in ("--delay", f"{hours}h")]
        arguments = ["advise", FLIGHTS, "--progress", str(progress), "--window", "1h", *delays, "--address", address]
        code = command([*arguments, "--picture", str(out / "advise.svg")])
    rows_read = sum(map(len, batches))
    shares = ", ".join(f"{dropped(batches, hours * HOUR) / rows_read:.2%} with {hours} h" for hours in HOURS)
    print(f"Row by row, Spark would have dropped {shares}.")
    return code


if __name__ == "__main__":
    sys.exit(main())
