"""What a skew limit is worth: the rows that were read and that no window can close yet, while one partition of Kafka falls further and further behind.

In each step one partition of a real topic gets four hours of event time, the other one hour. The topic is read to where the source plans it, once with ``skew_limit`` and once
without, and the frontier follows by the rule of the injector. Rows at or after the hour of the frontier are what hourly windows behind it hold. Spark does not run: it is
the planning that is measured, and not the bytes of a state store.

``python -m benchmarks.skew PICTURE.png`` draws it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from benchmarks.result import Result, Spread
from lowwater_spark.sources.kafka import PACE
from lowwater_spark.sources.paced import LIMIT, Pace
from lowwater_spark.sources.paced_reader import PacedReader
from lowwater_spark.track.frontier import Bounds, Found, Seen
from tests.kit.kafka import Kafka, Row

HOUR: Final = 3_600_000_000
BEGIN: Final = int(datetime(2013, 1, 9, tzinfo=UTC).timestamp() * 1_000_000)
FAST: Final = 4
"""Hours that the fast partition gets while the other one gets one."""
HOURS: Final = 2
"""The limit."""
TOPIC: Final = "skew"


def run(folder: Path, *, quick: bool = False) -> list[Result]:
    """Return how many rows were held at the end, against the same without a limit."""
    steps, keys = (2, 20) if quick else (12, 1000)
    held = measure(folder, steps, keys)
    ours, theirs = Spread((float(held["with skew_limit"][-1]),)), Spread((float(held["without"][-1]),))
    facts = {
        "ranges": 0,
        "steps": steps,
        "rows_an_hour": keys,
        "limit_hours": HOURS,
        "hours_behind": steps * (FAST - 1),
    }
    return [Result("skew", "rows_held", ours, "rows", "without a limit", theirs, facts)]


def measure(folder: Path, steps: int, keys: int) -> dict[str, list[int]]:
    """Return how many rows were held after each step, by the way of reading."""
    with Kafka(folder / "kafka") as kafka:
        kafka.create(TOPIC, 2, retention_ms="-1")
        readers = {
            "with skew_limit": _Reading(kafka, folder / "limited", HOURS * HOUR // 1000),
            "without": _Reading(kafka, folder / "unlimited", 1 << 50),
        }
        held: dict[str, list[int]] = {way: [] for way in readers}
        for step in range(steps):
            fast = [
                BEGIN + (step * FAST + hour) * HOUR + HOUR * key // keys for hour in range(FAST) for key in range(keys)
            ]
            slow = [BEGIN + step * HOUR + HOUR * key // keys for key in range(keys)]
            for partition, times in enumerate((fast, slow)):
                kafka.put(TOPIC, [Row(b"", partition=partition, time=each // 1000) for each in times])
            for way, reading in readers.items():
                held[way].append(reading.on())
            print(f"skew: step {step}: {[each[-1] for each in held.values()]} rows", file=sys.stderr, flush=True)
        return held


class _Reading:
    """One way to read the topic."""

    def __init__(self, kafka: Kafka, folder: Path, limit: int) -> None:
        self._pace = Pace(str(folder))
        told = {"kafka.bootstrap.servers": kafka.address, "subscribe": TOPIC, PACE: str(folder), LIMIT: str(limit)}
        self._reader = PacedReader(told)
        self._bounds = Bounds(timedelta(minutes=1) // timedelta(microseconds=1))
        self._offset = self._reader.initialOffset()
        self._seen = Seen()
        self._open: list[int] = []

    def on(self) -> int:
        """Read all that is planned, batch after batch; return how many rows are held then."""
        names = [f"partition {number} of {TOPIC}" for number in range(2)]
        while (planned := self._reader.latestOffset(self._offset, None)) != self._offset:
            rows = {name: [*self._rows(planned, number)] for number, name in enumerate(names)}
            found = {name: Found(max(times)) for name, times in rows.items() if times}
            self._seen = self._bounds.advanced(self._seen, found, names, (), 0)
            self._pace.tell(self._bounds.standing(self._seen), idle=True)
            self._open += [time for times in rows.values() for time in times]
            self._offset = planned
        closed = self._seen.frontier // HOUR * HOUR
        self._open = [time for time in self._open if time >= closed]
        return len(self._open)

    def _rows(self, planned: dict[str, object], number: int) -> Iterator[int]:
        for part in self._reader.partitions(self._offset, planned):
            if getattr(part, "number", None) == number:
                for batch in self._reader.read(part):
                    yield from batch.column("timestamp").cast("int64").to_pylist()


def draw(held: dict[str, list[int]], path: Path) -> None:
    """Draw what was held after each step into a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6), dpi=130, layout="constrained", facecolor="white")
    axes = figure.subplots()
    for (way, rows), colour in zip(held.items(), ("#0072B2", "#C4390B"), strict=True):
        behind = [(step + 1) * (FAST - 1) for step in range(len(rows))]
        axes.plot(behind, rows, color=colour, marker="o", label=way)
    axes.set_xlabel("hours of event time that one partition is behind the other")
    axes.set_ylabel("rows read that no hourly window can close yet")
    axes.set_ylim(bottom=0)
    axes.set_title("A skew limit leaves rows of the fast partition in Kafka", loc="left")
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="lowwater-skew-") as there:
        draw(measure(Path(there), 12, 1000), Path(sys.argv[1]))
