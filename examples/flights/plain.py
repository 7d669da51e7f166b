"""The three jobs in plain Python: what each does with records, what it may say about event times.

No clock, no threads, no network: a turn at a time, so that the same stages run against a real
authority (:mod:`examples.flights.year`) and against its arithmetic alone
(:mod:`examples.flights.simulate`). Times are microseconds since the Unix epoch, UTC.

Every turn of a stage with inputs keeps one order: read the watermarks of the inputs, then take
every record that is there, then report. Whatever the watermark promised has then been taken. And
whoever hands records on, hands them on before reporting that they are done.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from examples.flights.data import HOUR
from examples.flights.expected import Hourly, Window
from examples.flights.replay import Beat, Row
from lowwater.watermark import MAX, MIN, Watermark

FLIGHTS: Final = "flights"
ENRICHED: Final = "enriched"
HOURLY: Final = "hourly"
INPUTS: Final[Mapping[str, tuple[str, ...]]] = {FLIGHTS: (), ENRICHED: (FLIGHTS,), HOURLY: (ENRICHED,)}
SHARE: Final = 0.99
BUDGET: Final = 0.01
"""The lateness budget of enriched."""

ORIGINS: Final = ("EWR", "JFK", "LGA")
ORIGIN_BOUNDS: Final = (b"", b"JFK", b"LGA", b"")
"""Key ranges of flights and of hourly, by origin: one each."""
CARRIER_BOUNDS: Final = (b"", b"B6", b"EV", b"UA", b"")
"""Key ranges of enriched, by carrier: four of about the same size."""


class Seen(Protocol):
    """The watermarks of a stage's inputs, as read at one time."""

    @property
    def low(self) -> Watermark:
        """Least of the inputs' low watermarks."""
        ...

    @property
    def heuristic(self) -> Mapping[float, Watermark]:
        """Least of the inputs' heuristic watermarks, by share."""
        ...


class Lease(Protocol):
    """A claim over key ranges: the calls of ``lowwater.Lease`` that the stages make."""

    def advance(
        self,
        seen: Any,
        *,
        oldest: Sequence[int | None] | int | None,
        frontier: int | None = None,
        pending: Iterable[int] | None = None,
        finished: int = 0,
    ) -> None:
        """Report the state of a claim.

        It has the oldest work, an injector's frontier, pending event times, and the number of
        records just finished.
        """

    def finish(self) -> None:
        """Say that nothing will ever come."""


class Record(NamedTuple):
    """A flight on its way through the jobs."""

    id: int
    carrier: str
    origin: str
    dest: str
    sched_dep: int
    dep_delay: int | None
    airline: str | None = None
    destination: str | None = None


Send = Callable[[Sequence[Record]], None]
"""Hands records on: they are there for the receiver when it returns."""


class Inbox:
    """Records on their way to one stage. Many may put, one takes; both are safe from any thread."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque()

    def put(self, records: Iterable[Record]) -> None:
        """Add records; they are there when this returns."""
        self._records.extend(records)

    def take(self) -> list[Record]:
        """Return everything that is there now."""
        return [self._records.popleft() for _ in range(len(self._records))]


class FlightsStage:
    """Injects the records of one origin.

    Its pending work is what is on the departure board and has not landed. So its low watermark is
    exact: nothing older than the oldest flight that is out, and nothing older than the board
    itself, will come.
    """

    def __init__(self, feed: Iterator[Beat], lease: Lease, send: Send) -> None:
        self._feed = feed
        self._lease = lease
        self._send = send
        self._out: dict[int, int] = {}
        self._by_time: list[tuple[int, int]] = []
        self.clock = MIN
        """The replay clock of the last beat."""

    def turn(self) -> bool:
        """Inject one beat; return whether the feed has ended."""
        beat = next(self._feed, None)
        if beat is None:
            return True
        landed, records = 0, []
        for row in beat.rows:
            if row.kind == "board":
                self._board(row)
            elif row.kind == "flight":
                record = _record(row)
                landed += self._out.pop(record.id, None) is not None
                records.append(record)
        self.clock = beat.clock
        self._send(records)
        if beat.rows[-1].kind == "end":
            self._lease.finish()
            return True
        self._lease.advance(
            None, oldest=self._oldest(), frontier=beat.clock, pending=self._out.values(), finished=landed
        )
        return False

    def _board(self, row: Row) -> None:
        if row.id is None or row.sched_dep is None:
            raise ValueError(f"a board row needs id and sched_dep: {row}")
        self._out[row.id] = row.sched_dep
        heapq.heappush(self._by_time, (row.sched_dep, row.id))

    def _oldest(self) -> int | None:
        while self._by_time and self._by_time[0][1] not in self._out:
            heapq.heappop(self._by_time)
        return self._by_time[0][0] if self._by_time else None


class EnrichedStage:
    """Adds the names of airline and destination, and removes duplicates on arrival.

    Ids are remembered only until the low watermark has passed: a record that arrives behind it can
    only be one that came before.
    """

    def __init__(
        self,
        read: Callable[[], Seen],
        inbox: Inbox,
        lease: Lease,
        send: Send,
        names: tuple[Mapping[str, str], Mapping[str, str]],
    ) -> None:
        self._read = read
        self._inbox = inbox
        self._lease = lease
        self._send = send
        self._airlines, self._airports = names
        self._ids: dict[int, int] = {}
        self._complete = MIN
        self.duplicates = 0
        """Number of duplicates that were removed."""

    def turn(self) -> bool:
        """Pass on what is there; return whether the inputs have finished."""
        inputs = self._read()
        records = []
        for record in self._inbox.take():
            if record.sched_dep < self._complete or record.id in self._ids:
                self.duplicates += 1
                continue
            self._ids[record.id] = record.sched_dep
            records.append(
                record._replace(airline=self._airlines[record.carrier], destination=self._airports.get(record.dest))
            )
        self._send(records)
        if inputs.low.micros > self._complete:
            # Only now: what this very watermark covers may have been taken in this turn.
            self._complete = inputs.low.micros
            self._ids = {number: time for number, time in self._ids.items() if time >= self._complete}
        self._lease.advance(inputs, oldest=None, finished=len(records))
        return inputs.low.finished


class HourlyStage:
    """Sums the delays of each scheduled hour.

    A window closes when the low watermark has passed its end.
    """

    def __init__(
        self,
        read: Callable[[], Seen],
        inbox: Inbox,
        lease: Lease,
        write: Callable[[Window, Hourly], None],
        watch: Callable[[Seen, Sequence[Record]], None] | None = None,
    ) -> None:
        """Make the stage.

        Args:
            read: Gives the inputs' watermarks.
            inbox: Where enriched puts its records.
            lease: Over the ranges of :data:`ORIGIN_BOUNDS`.
            write: Called with each closed window, once.
            watch: Called each turn with the watermarks it runs with and the records it took.
        """
        self._read = read
        self._inbox = inbox
        self._lease = lease
        self._write = write
        self._watch = watch
        self._open: dict[Window, Hourly] = {}
        self._closed = MIN
        self.late = 0
        """Records of windows that had closed: stays 0, or the low watermark led."""

    def turn(self) -> bool:
        """Take what is there, close what is complete; return whether the inputs have finished."""
        inputs = self._read()
        records = self._inbox.take()
        for record in records:
            self._add(record)
        if self._watch is not None:
            self._watch(inputs, records)
        low = inputs.low.micros
        done = sorted((window for window in self._open if window[1] + HOUR <= low), key=lambda window: window[1])
        closed = [(window, self._open.pop(window)) for window in done]
        for window, row in closed:
            self._write(window, row)
        self._closed = max(self._closed, low)
        self._lease.advance(
            inputs,
            oldest=[self._oldest(origin, low) for origin in ORIGINS],
            pending=[start for (_, start), row in self._open.items() for _ in range(row.flights)],
            finished=sum(row.flights for _, row in closed),
        )
        return inputs.low.finished

    def _add(self, record: Record) -> None:
        window = record.origin, record.sched_dep // HOUR * HOUR
        if window[1] + HOUR <= self._closed:
            self.late += 1
            return
        flights, cancelled, delayed, minutes = self._open.get(window, (0, 0, 0, 0))
        if record.dep_delay is None:
            cancelled += 1
        else:
            delayed += 1
            minutes += record.dep_delay
        self._open[window] = Hourly(flights + 1, cancelled, delayed, minutes)

    def _oldest(self, origin: str, low: int) -> int | None:
        """Return the least stamp this range can still write: windows are stamped by their start.

        Also without an open window: a record at the watermark opens the hour that the watermark
        stands in.
        """
        if low in (MIN, MAX):
            return None
        starts = [start for name, start in self._open if name == origin]
        return min([low // HOUR * HOUR, *starts])


def _record(row: Row) -> Record:
    if row.id is None or row.carrier is None or row.origin is None or row.dest is None or row.sched_dep is None:
        raise ValueError(f"a flight row needs id, carrier, origin, dest and sched_dep: {row}")
    return Record(row.id, row.carrier, row.origin, row.dest, row.sched_dep, row.dep_delay)


def range_of(key: str, bounds: Sequence[bytes]) -> int:
    """Return the index of the range that a key falls into.

    >>> [range_of(carrier, CARRIER_BOUNDS) for carrier in ("9E", "B6", "UA", "YV")]
    [0, 1, 3, 3]
    """
    text = key.encode()
    return sum(bound <= text for bound in bounds[1:-1])


def by_carrier(inboxes: Sequence[Inbox]) -> Send:
    """Return what hands records to the inbox of their carrier's range."""

    def send(records: Sequence[Record]) -> None:
        for record in records:
            inboxes[range_of(record.carrier, CARRIER_BOUNDS)].put([record])

    return send
