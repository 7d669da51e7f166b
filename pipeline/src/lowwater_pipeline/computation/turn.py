"""One key's turn in a batch: its records and its timers in one order. Pure: no Spark, Arrow, clock.

Records come by time, input and id. Before a record at *t* fire the due timers of the low watermark
that are not later than *t*; after the last record the other due ones, then those of the clock. So a
timer at *t* has seen all records before *t*, and none at *t* of its batch or of a later one. The
earliest timer fires first. A timer that a hook sets, and that is due, fires in the same turn.

A timer *holds*: until it has fired, the computation's low watermark does not pass its hold, so its
productions are not below the reported watermark. Each production, and each hold, comes from a
record, from the firing timer or from another set timer, and is not below that one's time or hold.
That alone keeps every production at or above what was reported.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from lowwater.watermark import MAX, MIN, Watermark, to_micros
from lowwater_pipeline.computation.computation import Computation, Output, Record, Timer, length_of, order_of

__all__ = ["Context", "Held", "Kept", "Production", "TimerId", "Turns"]

TimerId = tuple[int, str]
"""Time and tag of a timer. Two timers with the same time and tag are one timer."""

Production = tuple[str, Mapping[str, Any], int]
"""Output, row, timestamp."""

_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes, datetime, date, Decimal})
"""Types whose values cannot change, so that they need no copy."""

MOST_DESCENDANTS: Final = 1_000_000
"""Greatest number of timers that may fire in one turn after timers set them for no later time. A
chain that goes on in time ends at the low watermark, unless that is MAX."""


@dataclass(slots=True)
class Kept:
    """The state of a key between batches. A key whose state is empty is not stored."""

    state: bytes | None = None
    """Encoded state; None for the initial one."""
    timers: dict[TimerId, int] = field(default_factory=dict[TimerId, int])
    """Timers of the low watermark, each with its hold, microseconds."""
    wall_timers: dict[TimerId, int] = field(default_factory=dict[TimerId, int])
    """Timers of the clock, each with its hold, microseconds."""
    waiting: list[Record] = field(default_factory=list[Record])
    """Records that wait for the low watermark, in order."""

    def __bool__(self) -> bool:
        return self.state is not None or bool(self.timers or self.wall_timers or self.waiting)

    @property
    def due(self) -> int:
        """Low watermark of the key's next turn without a record, microseconds; MAX for none."""
        due = min(self.timers)[0] if self.timers else MAX
        # A record at W waits until W has passed it: another one at W may still come.
        return min(due, self.waiting[0].timestamp + 1) if self.waiting else due

    @property
    def wall(self) -> int:
        """The clock at which the key has its next turn, microseconds; MAX when it has none."""
        return min(self.wall_timers)[0] if self.wall_timers else MAX

    def hold(self, length: int) -> int:
        """Return the least hold of the key, microseconds; MAX when it has none.

        A waiting record holds the start of its window of ``length`` microseconds.
        """
        least = min(self.timers.values()) if self.timers else MAX
        if self.wall_timers:
            least = min(least, *self.wall_timers.values())
        if self.waiting:
            first = self.waiting[0].timestamp
            least = min(least, first - first % length)
        return least


class Held:
    """The set timers of one kind while a key has its turn."""

    __slots__ = ("heap", "holds")

    def __init__(self) -> None:
        self.holds: dict[TimerId, int] = {}
        self.heap: list[TimerId] = []
        """Heap of all set timers; cleared ones are among them."""

    def load(self, holds: Mapping[TimerId, int]) -> None:
        """Begin a turn with the stored timers of a key."""
        self.holds = dict(holds)
        self.heap = list(holds)
        if len(self.heap) > 1:
            heapq.heapify(self.heap)

    def add(self, timer: TimerId, hold: int) -> None:
        """Set a timer; a timer that is set already keeps the lower of the two holds."""
        before = self.holds.get(timer)
        if before is None:
            heapq.heappush(self.heap, timer)
        if before is None or hold < before:
            self.holds[timer] = hold

    def pop(self, through: int) -> tuple[TimerId, int] | None:
        """Remove the first timer at or before ``through``; return it with its hold, or None."""
        while self.heap and self.heap[0][0] <= through:
            timer = heapq.heappop(self.heap)
            hold = self.holds.pop(timer, None)
            if hold is not None:
                return timer, hold
        return None


class Context:
    """The argument of a computation's hooks: the key, its state, its timers, and its productions.

    Valid while the hook runs. All times are whole microseconds since the epoch.
    """

    def __init__(
        self, computation: Computation, outputs: Mapping[str, frozenset[str]], low: int = MIN, now: int = MIN
    ) -> None:
        self.key: Any = None
        """The key: text, bytes or a whole number."""
        self.low: Final = low
        """The low watermark of the batch: records below it are complete, those of the batch
        included. MIN when it is unknown, MAX when it is finished."""
        self.now: Final = now
        """The clock of the batch, the same in every replay, and never below that of the batch
        before."""
        self._name: Final = computation.name
        self._codec: Final = computation.state
        self._outputs: Final = outputs
        self._event_times: Final = _event_times(computation, outputs)
        self._fires: Final = getattr(computation.process_timer, "__func__", None) is not Computation.process_timer
        self._stamped: Final = computation.stamp is not None
        self._length: Final = length_of(computation.stamp)
        self._timers: Final = Held()
        self._wall: Final = Held()
        self._productions: Final[list[Production]] = []
        self._doing: Record | Timer | None = None
        self._firing = False
        self._base = 0
        """Least timestamp that the hook may produce, unless a set timer has a lower hold."""
        self._stored: bytes | None = None
        self._state: Any = None
        self._opened = False
        self._reached = [MIN, MIN]
        """Latest times of the timers that have fired in this turn: low watermark, clock."""
        self._again: set[tuple[bool, TimerId]] = set()
        """Timers that timers have set for no later time."""
        self._fired = 0

    @property
    def finished(self) -> bool:
        """True when all inputs are finished. Then every timer of the low watermark is due."""
        return self.low == MAX

    @property
    def state(self) -> Any:
        """State of the key, to change or replace; initial if there is none. Decoded when read."""
        if not self._opened:
            if self._codec is None:
                msg = f"{self._name} declares no state: write state = Codec(...) in the class"
                raise ValueError(msg)
            self._state = self._codec.initial() if self._stored is None else self._codec.decode(self._stored)
            self._opened = True
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        if self._codec is None:
            msg = f"{self._name} declares no state: write state = Codec(...) in the class"
            raise ValueError(msg)
        self._state, self._opened = state, True

    def set_timer(self, tag: str, at: int, *, hold: int | None = None) -> None:
        """Have ``process_timer`` called once, when the low watermark has reached ``at``.

        Until then the computation's low watermark does not pass ``hold``, and the timer may produce
        nothing below it. Default: the later of ``at`` and the time of the record (or the hold of
        the timer) that sets it. With ``stamp``: the start of the record's window, or the hold of
        the timer that sets it; give a later ``hold`` if the timer produces nothing that old. A
        timer with an equal tag and time is the same timer; the lower of its two holds counts.

        Raises ValueError for a hold below what this hook may produce, for a time beyond ``END``,
        and in a class without ``process_timer``; TypeError for a tag that is no text or a time that
        is no whole number.
        """
        if hold is None:
            hold = at if not self._stamped and type(at) is int and at > self._base else self._base
        # Most records set a timer that is set already. If its hold is the same, it was checked.
        if self._firing or type(at) is not int or self._timers.holds.get((at, tag)) != hold:
            self._set(self._timers, tag, at, hold, wall=False)

    def set_wall_timer(self, tag: str, at: int, *, hold: int | None = None) -> None:
        """Have ``process_timer`` called once, when the driver's clock has reached ``at``.

        Count from :attr:`now`. ``hold`` as for :meth:`set_timer`. Default: the time of the record
        (with ``stamp`` the start of its window), or the hold of the timer, that sets it. Raises
        what :meth:`set_timer` raises.
        """
        if hold is None:
            hold = self._base
        self._set(self._wall, tag, at, hold, wall=True)

    def clear_timer(self, tag: str, at: int) -> None:
        """Forget a timer and its hold. Does nothing when there is no such timer."""
        self._timers.holds.pop((at, tag), None)

    def clear_wall_timer(self, tag: str, at: int) -> None:
        """Forget a timer of the clock and its hold. Does nothing when there is no such timer."""
        self._wall.holds.pop((at, tag), None)

    def produce(self, output: str, row: Mapping[str, Any], timestamp: int | None = None) -> None:
        """Send a row into an output: exactly the columns of its schema, None for null.

        Times are microseconds or aware datetimes. The row's timestamp is the column that the output
        declares as ``event_time``. For an output without one it is ``timestamp``, by default the
        record's time, or the timer's ``at`` (of the clock: its ``hold``).

        Raises ValueError for a timestamp below the record's time (with ``stamp``, the start of its
        window) or below the firing timer's hold; for a ``timestamp`` that differs from the column;
        for an output or columns that are not declared. Raises TypeError for a row that is no
        mapping, and for an event time that is no time.
        """
        fields = self._outputs.get(output)
        if fields is None:
            msg = f"{self._name} has no output {output!r}; it declares {', '.join(self._outputs)}"
            raise ValueError(msg)
        candidate: Any = row
        if not isinstance(candidate, Mapping):
            msg = f"a row for {self._name}'s output {output} is a dict of its columns, not {row!r}"
            raise TypeError(msg)
        if row.keys() != fields:
            row = self._named(output, row, fields)
        if timestamp is not None:
            self._check_time("timestamp", timestamp)
        column = self._event_times.get(output)
        if column is not None:
            timestamp = self._event_time(output, column, row[column], timestamp)
        elif timestamp is None:
            timestamp = self._default_stamp()
        self._check_stamp(f"{output} a row of timestamp", timestamp)
        # A hook may go on changing a list that it has put into the row.
        own = {name: value if type(value) in _PLAIN else copy.deepcopy(value) for name, value in row.items()}
        self._productions.append((output, own, timestamp))

    def _named(self, output: str, row: Mapping[Any, Any], fields: frozenset[str]) -> Mapping[str, Any]:
        """Return a row with its columns named as declared: case does not matter, as in Spark."""
        declared = {name.lower(): name for name in fields}
        named: dict[Any, Any] = {declared.get(str(name).lower(), name): value for name, value in row.items()}
        if named.keys() == fields and len(named) == len(row):
            return named
        wrong = [f"{name} is missing" for name in sorted(fields - named.keys())]
        wrong += [f"{name} is not declared" for name in sorted(map(str, named.keys() - fields))]
        wrong = wrong or ["one is there twice"]
        msg = f"a row for {self._name}'s output {output} does not have its columns: {', '.join(wrong)}. Give each column, None for null, or declare outputs = otherwise"
        raise ValueError(msg)

    def _event_time(self, output: str, column: str, value: Any, timestamp: int | None) -> int:
        """Return the event time that consumers read from a row, microseconds."""
        what = f"column {column} of {self._name}'s output {output}, its event time,"
        if type(value) is not int:
            if not isinstance(value, datetime) or value.tzinfo is None:
                msg = f"{what} got {value!r}: give microseconds since the epoch, or an aware datetime, or declare event_time=None"
                raise TypeError(msg)
            value = to_micros(value)
        if not MIN < value < MAX:
            msg = f"{what} got {value}; times are above MIN and below MAX"
            raise ValueError(msg)
        if timestamp is not None and timestamp != value:
            msg = f"{what} is {Watermark(value)}, and timestamp= is {Watermark(timestamp)}: leave timestamp= out, it is taken from the column"
            raise ValueError(msg)
        return int(value)

    def _default_stamp(self) -> int:
        doing = self._doing
        if isinstance(doing, Record):
            return doing.timestamp
        assert doing is not None
        return doing.hold if doing.wall else max(doing.at, doing.hold)

    def _set(self, timers: Held, tag: str, at: int, hold: int, *, wall: bool) -> None:
        # Every record may call this method, so that one condition accepts a correct timer. Only for
        # a wrong one _check_timer() finds out what is wrong.
        if not (
            self._fires
            and type(tag) is str
            and type(at) is type(hold) is int
            and MIN < at < MAX
            and self._base <= hold < MAX
        ):
            self._check_timer(tag, at, hold)
        if self._firing and (at <= self._reached[wall] or (self.low == MAX and not wall)):
            self._again.add((wall, (at, tag)))
        timers.add((at, tag), hold)

    def _check_timer(self, tag: str, at: int, hold: int) -> None:
        if not self._fires:
            msg = f"{self._name} sets timers and does not say what they do: write process_timer(self, ctx, timer) in the class"
            raise ValueError(msg)
        if type(tag) is not str:
            msg = f"the tag of a timer of {self._name} is a text, not {tag!r}"
            raise TypeError(msg)
        self._check_time("at", at)
        self._check_time("hold", hold)
        self._check_stamp(f"the timer {tag!r} a hold", hold)

    def _check_time(self, what: str, micros: int) -> None:
        if type(micros) is not int:
            msg = f"{what}= of {self._name} is {micros!r}; times are microseconds since the epoch, whole numbers: lowwater.Watermark.of(...).micros makes them of datetimes"
            raise TypeError(msg)
        if not MIN < micros < MAX:
            msg = f"{what}= of {self._name} is {micros}; times are above MIN and below MAX. For the end of all input take END, of lowwater_pipeline.computation"
            raise ValueError(msg)

    def _check_stamp(self, what: str, micros: int) -> None:
        if micros < self._base and micros < self._least():
            doing, bound = self._doing, Watermark(min(self._base, self._least()))
            fix = (
                "set the timer with the lowest timestamp that it may produce as hold=. For those that stand already stamp what they produce by timer.hold or later, or produce nothing"
                if isinstance(doing, Timer)
                else "stamp it by the record's time or later, or declare stamp=, the length of the windows, if it is stamped by their start"
            )
            msg = f"{self._name} gives {what} {Watermark(micros)}, below {bound}, which the low watermark may have passed: {fix}"
            raise ValueError(msg)

    def _least(self) -> int:
        """Return the least hold of the set timers; MAX when there is none."""
        return min(
            min(self._timers.holds.values(), default=MAX),
            min(self._wall.holds.values(), default=MAX),
        )


class Turns(Context):
    """The turns of all keys of a batch, one after another."""

    def __init__(
        self,
        computation: Computation,
        outputs: Mapping[str, frozenset[str]],
        low: int = MIN,
        now: int = MIN,
        most: int = MOST_DESCENDANTS,
    ) -> None:
        super().__init__(computation, outputs, low, now)
        self._most: Final = most
        self._computation = computation
        self._order: Final = order_of(computation.inputs)
        self._nothing = None if self._codec is None else self._codec.encode(self._codec.initial())

    @property
    def productions(self) -> Sequence[Production]:
        """Productions of all turns so far."""
        return self._productions

    def take(self, key: Any, before: Kept, records: Sequence[Record]) -> Kept:
        """Run a key's turn and return its new state, equal to ``before`` when nothing has changed.

        O((records + timers) x log), and the hooks. An exception of a hook gets a note that names
        the key and the record or timer.
        """
        self.key, self._doing = key, None
        self._stored, self._state, self._opened = before.state, None, False
        self._timers.load(before.timers)
        self._wall.load(before.wall_timers)
        if self._again:
            self._again = set()
        self._reached = [MIN, MIN]
        self._fired = 0
        records, waiting = self._ready(before.waiting, records)
        try:
            self._run(records)
            state = self._stored
            if self._opened:
                assert self._codec is not None
                state = self._codec.encode(self._state)
                state = None if state == self._nothing else state
        except Exception as failure:
            failure.add_note(f"in {self._name}, key {key!r}, {_occasion(self._doing)}")
            raise
        return Kept(state, self._timers.holds, self._wall.holds, waiting)

    def _ready(self, waiting: list[Record], records: Sequence[Record]) -> tuple[Sequence[Record], list[Record]]:
        """Return the records whose turn it is, in order, and those that still wait."""
        if waiting:
            records = [*waiting, *records]
        if len(records) > 1:
            records = sorted(records, key=self._order)
        if not self._computation.in_order:
            return records, []
        ready = next((i for i, record in enumerate(records) if record.timestamp >= self.low), len(records))
        return records[:ready], list(records[ready:])

    def _run(self, records: Sequence[Record]) -> None:
        heap, low, length, process = self._timers.heap, self.low, self._length, self._computation.process_record
        self._firing = False
        for record in records:
            at = record.timestamp
            if heap and heap[0][0] <= at:
                self._fire(min(at, low))
                self._firing = False
            self._doing, self._base = record, at - at % length
            process(self, record)
        while self._fire(low) or self._fire_wall():
            pass

    def _fire(self, through: int) -> bool:
        """Fire the low watermark's timers at or before ``through``. Returns True if any fired."""
        fired = False
        while (entry := self._timers.pop(through)) is not None:
            self._timer(*entry, wall=False)
            fired = True
        return fired

    def _fire_wall(self) -> bool:
        """Fire one timer of the clock. Returns True when one fired."""
        entry = self._wall.pop(self.now)
        if entry is not None:
            self._timer(*entry, wall=True)
        return entry is not None

    def _timer(self, timer: TimerId, hold: int, *, wall: bool) -> None:
        at, tag = timer
        self._doing, self._firing = Timer(tag, at, hold, wall), True
        self._base = hold
        self._reached[wall] = max(self._reached[wall], at)
        if self._again and (wall, timer) in self._again:
            self._again.discard((wall, timer))
            self._fired += 1
            if self._fired > self._most:
                raise ValueError(self._endless())
        self._computation.process_timer(self, self._doing)

    def _endless(self) -> str:
        """Return the error message for timers that set each other without end."""
        timer = self._doing
        assert isinstance(timer, Timer)
        problem = f"{self._name}, key {self.key!r}: timers that timers have set fired {self._most:,} times in one batch, the last one {timer.tag!r} at {Watermark(timer.at)}. "
        if self.finished and not timer.wall:
            return problem + (
                "The inputs are finished, so every timer is due at once, and a chain of them does not end: in process_timer set the next one only while not ctx.finished, or while the key still "
                "has something. If it is as long as that, do several of its steps in one timer. The batch is run again by the next start, and nothing is lost"
            )
        return (
            problem
            + "One is set anew for no later time: set it for a later one. The batch is run again by the next start, and nothing is lost"
        )


def _event_times(computation: Computation, outputs: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Return, by output, the name of its event-time column in the case of its declaration."""
    columns: dict[str, str] = {}
    for output, fields in outputs.items():
        declared = computation.outputs[output]
        if isinstance(declared, Output) and declared.event_time is not None:
            columns[output] = next(name for name in fields if name.lower() == declared.event_time.lower())
    return columns


def _occasion(doing: Record | Timer | None) -> str:
    if isinstance(doing, Record):
        return f"the record of {Watermark(doing.timestamp)}" + (
            "" if doing.id is None else f" with the id {doing.id!r}"
        )
    if isinstance(doing, Timer):
        clock = ", by the clock" if doing.wall else ""
        return f"the timer {doing.tag!r} at {Watermark(doing.at)}{clock}"
    return "before the first hook"
