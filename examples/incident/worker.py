"""One worker of the flights pipeline as a process, which can be paused like an executor.

``python -m examples.incident.worker FOLDER ADDRESS ROLE NUMBER START``. The three jobs are those of
:mod:`examples.flights.plain`; records go from process to process through files that only grow. The
replay is paced by the clock, :data:`PACE` of event time a second, and shifted so that its flights
are of today.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final

import lowwater
from examples.flights import data
from examples.flights.data import HOUR, MINUTE, Flight
from examples.flights.plain import (
    CARRIER_BOUNDS,
    ENRICHED,
    FLIGHTS,
    HOURLY,
    ORIGIN_BOUNDS,
    ORIGINS,
    EnrichedStage,
    FlightsStage,
    HourlyStage,
    Inbox,
    Record,
    range_of,
)
from examples.flights.replay import beats

PACE: Final = MINUTE
"""Event time that passes in a second."""
TURN_SECONDS: Final = 0.1
LANDED: Final = 2 * HOUR
"""Only flights whose record came within two hours of their departure: the injectors' watermark then
moves every few seconds."""
BEFORE: Final = LANDED + HOUR
"""Event time that is replayed at once, so that everything moves when the pace begins."""
SOURCE_START: Final = datetime(2013, 1, 8, 12, tzinfo=UTC)
"""Where the replay starts in the data: a busy noon."""
SOURCE_DAYS: Final = 2
EXECUTORS: Final = len(CARRIER_BOUNDS) - 1


class FileInbox(Inbox):
    """Records on their way to one process; each sender appends whole lines to a file of its own."""

    def __init__(self, folder: Path, receiver: str) -> None:
        super().__init__()
        self._folder = folder
        self._receiver = receiver
        self._read: dict[Path, int] = {}

    def take(self) -> list[Record]:
        """Return everything that is there now."""
        records = []
        for path in sorted(self._folder.glob(f"*-to-{self._receiver}.jsonl")):
            start = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = start + len(whole) + len(newline)
            records += [Record(*json.loads(line)) for line in whole.splitlines()]
        return records


def hand_over(
    folder: Path, sender: str, receivers: Sequence[str], choose: Callable[[Record], int]
) -> Callable[[Sequence[Record]], None]:
    """Return a function that appends records to the files of their receivers.

    The records are in the files when it returns.
    """
    files = [(folder / f"{sender}-to-{receiver}.jsonl").open("ab", buffering=0) for receiver in receivers]

    def send(records: Sequence[Record]) -> None:
        lines: list[list[str]] = [[] for _ in files]
        for record in records:
            lines[choose(record)].append(json.dumps(record) + "\n")
        for file, some in zip(files, lines, strict=True):
            if some:
                file.write("".join(some).encode())

    return send


def executor(number: int) -> str:
    """Return the name of a worker of *enriched*.

    >>> executor(2)
    'exec-2'
    """
    return f"exec-{number}"


def flights_of_today(start: int) -> list[Flight]:
    """Return flights whose replay starts at an event time, in microseconds, of whole hours."""
    shift = start - data.micros(SOURCE_START)
    flights = data.load(SOURCE_START, SOURCE_START + timedelta(days=SOURCE_DAYS))
    return [
        flight._replace(sched_dep=flight.sched_dep + shift, available=flight.available + shift)
        for flight in flights
        if flight.lateness <= LANDED
    ]


def inject(client: lowwater.Client, folder: Path, start: int) -> None:
    """Replay all origins, a worker each, paced by the clock; end with the data, hours away."""
    flights = flights_of_today(start)
    receivers = [executor(number) for number in range(EXECUTORS)]
    stages = []
    for origin, bounds in zip(ORIGINS, pairwise(ORIGIN_BOUNDS), strict=True):
        lease = client.worker(FLIGHTS, name=origin).claim(bounds=bounds)
        feed = beats([flight for flight in flights if flight.origin == origin], start=start, step=MINUTE)
        send = hand_over(folder, origin, receivers, lambda record: range_of(record.carrier, CARRIER_BOUNDS))
        stages.append(FlightsStage(feed, lease, send))
    began, pause = time.monotonic(), threading.Event()
    while True:
        due = start + BEFORE + (time.monotonic() - began) * PACE
        for stage in stages:
            while stage.clock < due:
                if stage.turn():
                    return
        pause.wait(TURN_SECONDS)


def enrich(client: lowwater.Client, folder: Path, number: int) -> None:
    """Work on one range of carriers until the input is finished."""
    worker = client.worker(ENRICHED, name=executor(number))
    lease = worker.claim(bounds=list(pairwise(CARRIER_BOUNDS))[number])
    send = hand_over(folder, executor(number), [HOURLY], lambda _: 0)
    names = data.airlines(), data.airports()
    _turns(EnrichedStage(worker.inputs, FileInbox(folder, executor(number)), lease, send, names).turn)


def sum_up(client: lowwater.Client, folder: Path) -> None:
    """Close the hours of all origins until the input is finished."""
    worker = client.worker(HOURLY, name=HOURLY)
    lease = worker.claim(bounds=ORIGIN_BOUNDS)
    with (folder / "windows.jsonl").open("a", encoding="utf-8") as file:

        def write(window: object, row: object) -> None:
            file.write(json.dumps([window, row]) + "\n")
            file.flush()

        _turns(HourlyStage(worker.inputs, FileInbox(folder, HOURLY), lease, write).turn)


def _turns(turn: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not turn():
        pause.wait(TURN_SECONDS)


def main(arguments: Sequence[str]) -> None:
    """Run one worker until its input is finished or it is stopped."""
    folder, address, role, number, start = arguments
    with lowwater.connect(address) as client:
        if role == FLIGHTS:
            inject(client, Path(folder), int(start))
        elif role == ENRICHED:
            enrich(client, Path(folder), int(number))
        else:
            sum_up(client, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
