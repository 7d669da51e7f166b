"""The feed: flights of the past, replayed as files at so many hours of event time a second.

The replay clock runs in steps; each step is a beat, and each beat is one Parquet file::

    beat-000042-20130108T1045.parquet      beat number, and the replay clock at the end of the step
    (UTC)

A file has rows of four kinds, in this order:

``board``
    A flight scheduled within the step appears on the departure board. ``dep_delay``, ``air_time``,
    ``arr_delay``, ``tailnum`` and ``available`` are not known yet.
``flight``
    A flight's record, in the step in which it becomes available. Some come twice, exactly alike: in
    the same beat, or a few beats later.
``beat``
    One row: everything scheduled before ``clock`` is on the board, in this file or an earlier one.
``end``
    One row instead, in the last file: nothing will ever come. It follows when every record has
    become available.

A flight is never on the board after its record: no record is available before its scheduled
departure.

Which rows come in which beat depends on the flights and the arguments alone, never on the wall
clock.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from examples.flights import data
from examples.flights.data import HOUR, MINUTE, Flight

STEP: Final = 15 * MINUTE
DUPLICATES: Final = 0.02
SEED: Final = 2013
DUPLICATE_BEATS: Final = (0, 0, 1, 2, 4, 8)
"""Possible numbers of beats from a record to its duplicate, equally likely."""

_TIME: Final = pa.timestamp("us", tz="UTC")
FEED_SCHEMA: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("beat", pa.int64()),
        pa.field("clock", _TIME),
        pa.field("id", pa.int64()),
        pa.field("carrier", pa.string()),
        pa.field("flight", pa.int32()),
        pa.field("tailnum", pa.string()),
        pa.field("origin", pa.string()),
        pa.field("dest", pa.string()),
        pa.field("sched_dep", _TIME),
        pa.field("dep_delay", pa.int32()),
        pa.field("air_time", pa.int32()),
        pa.field("arr_delay", pa.int32()),
        pa.field("distance", pa.int32()),
        pa.field("available", _TIME),
    ]
)
FEED_DDL: Final = (
    "kind STRING, beat BIGINT, clock TIMESTAMP, id BIGINT, carrier STRING, flight INT, tailnum STRING, origin STRING, "
    "dest STRING, sched_dep TIMESTAMP, dep_delay INT, air_time INT, arr_delay INT, distance INT, available TIMESTAMP"
)
"""The same as :data:`FEED_SCHEMA`, for Spark. ``beat`` and ``clock`` are set on beat and end rows
only."""


class Row(NamedTuple):
    """One row of the feed, in the order of :data:`FEED_SCHEMA`.

    Times are in microseconds, delays in minutes.
    """

    kind: str
    beat: int | None = None
    clock: int | None = None
    id: int | None = None
    carrier: str | None = None
    flight: int | None = None
    tailnum: str | None = None
    origin: str | None = None
    dest: str | None = None
    sched_dep: int | None = None
    dep_delay: int | None = None
    air_time: int | None = None
    arr_delay: int | None = None
    distance: int | None = None
    available: int | None = None


class Beat(NamedTuple):
    """One step of the replay clock."""

    number: int
    clock: int
    """The replay clock at the end of the step."""
    rows: tuple[Row, ...]

    @property
    def file_name(self) -> str:
        """The name of its file: sorts by number, tells the clock."""
        return f"beat-{self.number:06d}-{data.moment(self.clock):%Y%m%dT%H%M}.parquet"


def beats(
    flights: Sequence[Flight],
    *,
    start: int,
    step: int = STEP,
    duplicates: float = DUPLICATES,
    seed: int = SEED,
) -> Iterator[Beat]:
    """Yield the beats of these flights, at least one, in order; the last one holds the end row.

    Args:
        flights: In any order.
        start: Where the replay clock starts, microseconds; no flight is scheduled before it.
        step: Event time per beat, microseconds, whole minutes.
        duplicates: Share of the records that come twice, 0 to 1.
        seed: Chooses which ones, and how much later.

    Raises:
        ValueError: A flight is scheduled before ``start``, or the step is not whole minutes.
    """
    if step <= 0 or step % MINUTE:
        raise ValueError(f"step={step} must be whole minutes, in microseconds: the file names tell the clock")
    boards, records = _plan(flights, start, step, duplicates, random.Random(seed))
    last = max(*boards, *records)
    for number in range(last + 1):
        clock = start + (number + 1) * step
        rows = [_board(flight) for flight in boards.get(number, ())]
        rows += [_record(flight) for flight in records.get(number, ())]
        rows.append(Row("beat", beat=number, clock=clock))
        yield Beat(number, clock, tuple(rows))
    clock = start + (last + 2) * step
    yield Beat(last + 1, clock, (Row("end", beat=last + 1, clock=clock),))


def _plan(
    flights: Iterable[Flight], start: int, step: int, duplicates: float, chance: random.Random
) -> tuple[dict[int, list[Flight]], dict[int, list[Flight]]]:
    """Return the flights to put on the board, and the records, by beat."""
    boards: defaultdict[int, list[Flight]] = defaultdict(list)
    records: defaultdict[int, list[Flight]] = defaultdict(list)
    for flight in sorted(flights, key=lambda flight: (flight.sched_dep, flight.id)):
        if flight.sched_dep < start:
            raise ValueError(f"flight {flight.id} is scheduled before start={start}; start no later than it")
        boards[(flight.sched_dep - start) // step].append(flight)
        landed = (flight.available - start) // step
        records[landed].append(flight)
        if chance.random() < duplicates:
            records[landed + chance.choice(DUPLICATE_BEATS)].append(flight)
    for landing in records.values():
        landing.sort(key=lambda flight: (flight.available, flight.id))
    return boards, records


def _board(flight: Flight) -> Row:
    return Row(
        "board",
        id=flight.id,
        carrier=flight.carrier,
        flight=flight.flight,
        origin=flight.origin,
        dest=flight.dest,
        sched_dep=flight.sched_dep,
        distance=flight.distance,
    )


def _record(flight: Flight) -> Row:
    return Row("flight", **flight._asdict())


def write_beat(folder: Path, beat: Beat) -> Path:
    """Write a beat's file under a hidden name, then rename it, so that readers see it whole."""
    columns = zip(*beat.rows, strict=True)
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, FEED_SCHEMA, strict=True)]
    path = folder / beat.file_name
    hidden = folder / f".{beat.file_name}.writing"
    pq.write_table(pa.Table.from_arrays(arrays, schema=FEED_SCHEMA), hidden)
    return hidden.rename(path)


def replay_clock(folder: Path) -> int | None:
    """Return the replay clock of a feed's newest file, in microseconds; None without a file."""
    newest = max((path.name for path in folder.glob("beat-*.parquet")), default=None)
    if newest is None:
        return None
    stamp = newest.removesuffix(".parquet").rpartition("-")[2]
    return data.micros(datetime.strptime(stamp, "%Y%m%dT%H%M").replace(tzinfo=UTC))


def run(
    feed: Iterable[Beat],
    folder: Path,
    *,
    start: int,
    rate: float,
    now: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
    hold: Callable[[], object] | None = None,
    put: Callable[[Path, Beat], object] = write_beat,
) -> int:
    """Write each beat when its time has come and return how many there were.

    A beat is due when the replay clock, running at ``rate`` hours of event time a second from
    ``start`` on, has reached the end of its step. Lost time is caught up.

    Args:
        feed: From :func:`beats`.
        folder: Must hold no feed yet; made when missing.
        start: Where the replay clock starts, microseconds.
        rate: Above 0; ``inf`` writes all at once.
        now: Seconds, monotonic.
        wait: Called with the seconds until the next beat is due, when above 0.
        hold: Called when the first beat is written; the replay clock runs on from there when it
            returns.
        put: Writes a beat; afterwards the folder has a file of its name.

    Raises:
        FileExistsError: The folder holds a feed: two in one folder would be read as one.
        ValueError: The rate is not above 0.
    """
    if not rate > 0:
        raise ValueError(f"rate={rate} must be above 0 hours a second")
    folder.mkdir(parents=True, exist_ok=True)
    if replay_clock(folder) is not None:
        raise FileExistsError(f"{folder} holds a feed already: remove it or name another folder")
    began, count = now(), 0
    for beat in feed:
        due = began + (beat.clock - start) / HOUR / rate
        remaining = due - now()
        if remaining > 0:
            wait(remaining)
        put(folder, beat)
        count += 1
        if count == 1 and hold is not None:
            hold()
            began = now() - (beat.clock - start) / HOUR / rate
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay a slice of the year into a folder; print one JSON line at the end."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.replay", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the feed's folder; must hold no feed yet")
    parser.add_argument("--rate", type=float, default=1.0, help="hours of event time a second; inf: all at once")
    parser.add_argument("--start", type=_utc, default=data.SLICE_START, help="first scheduled departure, UTC")
    parser.add_argument("--end", type=_utc, default=data.SLICE_END, help="scheduled departures before this, UTC")
    parser.add_argument("--step", type=int, default=STEP // MINUTE, help="minutes of event time a beat")
    parser.add_argument("--duplicates", type=float, default=DUPLICATES, help="share of records that come twice")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--kafka", metavar="HOST:PORT", help="write the rows to the topic feed there, and only empty files to --out"
    )
    parser.add_argument("--hold", action="store_true", help="wait for a line on standard input behind the first beat")
    options = parser.parse_args(arguments)
    flights = data.load(options.start, options.end)
    if not flights:
        parser.error("no flight is scheduled between --start and --end")
    start = data.micros(options.start)
    feed = beats(flights, start=start, step=options.step * MINUTE, duplicates=options.duplicates, seed=options.seed)
    hold = sys.stdin.readline if options.hold else None
    put: Callable[[Path, Beat], object] = write_beat
    if options.kafka is not None:
        from examples.flights.streams import Producing  # it needs more than the feed in files does

        put = Producing(options.kafka).put
    count = run(feed, options.out, start=start, rate=options.rate, hold=hold, put=put)
    print(
        json.dumps({"flights": len(flights), "beats": count, "clock": str(data.moment(replay_clock(options.out) or 0))})
    )
    return 0


def _utc(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


if __name__ == "__main__":
    sys.exit(main())
