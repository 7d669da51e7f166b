"""One key's turn in a batch: its records and its timers in one order, and what is kept of it afterwards. Pure: no Spark, no Arrow, no clock.

The order: records by time, input and id, and before each the timers of the low watermark that are due and not later than it; then the other ones that are due; then those of the clock. So a timer at *t* has
seen all records before *t*, and none at *t* that came in its batch or after it. Of the timers that stand, the earliest fires first. One that is set meanwhile, and is due, fires in the same turn; one of the low watermark comes before any of the clock.

A timer *holds*: until it has fired, the low watermark of the computation does not pass its hold, so that what it produces is not below what was reported. What is produced, and each hold, comes from
a record, from the timer that fires or from another that stands, and is not below it. By this alone nothing can come out below what was reported.
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
"""Time and tag: an equal timer is the same one, and one of another time is another."""

Production = tuple[str, Mapping[str, Any], int]
"""Output, row, timestamp."""

_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes, datetime, date, Decimal})
"""Types of values that cannot change."""

MOST_DESCENDANTS: Final = 1_000_000
"""So often fire in one turn, at most, timers that timers have set and that do not go on in time.
What goes on in time comes to the low watermark, if that is not MAX."""


@dataclass(slots=True)
class Kept:
    """What is kept of a key between batches. One that has nothing is not kept."""

    state: bytes | None = None
    """None: the initial one."""
    timers: dict[TimerId, int] = field(default_factory=dict[TimerId, int])
    """Those of the low watermark, each with its hold."""
    wall_timers: dict[TimerId, int] = field(default_factory=dict[TimerId, int])
    """Those of the clock."""
    waiting: list[Record] = field(default_factory=list[Record])
    """Records that wait for the low watermark, in order."""

    def __bool__(self) -> bool:
        return self.state is not None or bool(self.timers or self.wall_timers or self.waiting)

    @property
    def due(self) -> int:
        """The low watermark at which the key has its next turn without a record, microseconds; MAX when it has none."""
        due = min(self.timers)[0] if self.timers else MAX
        # One at W may be followed by another at W.
        return min(due, self.waiting[0].timestamp + 1) if self.waiting else due

    @property
    def wall(self) -> int:
        """The same by the clock."""
        return min(self.wall_timers)[0] if self.wall_timers else MAX

    def hold(self, length: int) -> int:
        """Return what the low watermark waits for, microseconds; MAX when for nothing.

        Of a record that waits, it is the start of its window of ``length``.
        """
        least = min(self.timers.values()) if self.timers else MAX
        if self.wall_timers:
            least = min(least, *self.wall_timers.values())
        if self.waiting:
            first = self.waiting[0].timestamp
            least = min(least, first - first % length)
        return least


class Held:
    """The timers of one kind that stand while a key has its turn."""

    __slots__ = ("heap", "holds")

    def __init__(self) -> None:
        self.holds: dict[TimerId, int] = {}
        self.heap: list[TimerId] = []
        """Of all of them, and of some that are gone."""

    def load(self, holds: Mapping[TimerId, int]) -> None:
        """Begin with what is kept."""
        self.holds = dict(holds)
        self.heap = list(holds)
        if len(self.heap) > 1:
            heapq.heapify(self.heap)

    def add(self, timer: TimerId, hold: int) -> None:
        """Set a timer; of two holds of an equal one the lower stays."""
        before = self.holds.get(timer)
        if before is None:
            heapq.heappush(self.heap, timer)
        if before is None or hold < before:
            self.holds[timer] = hold

    def pop(self, through: int) -> tuple[TimerId, int] | None:
        """Remove and return the first that is not later, with its hold. O(log timers)."""
        while self.heap and self.heap[0][0] <= through:
            timer = heapq.heappop(self.heap)
            hold = self.holds.pop(timer, None)
            if hold is not None:
                return timer, hold
        return None


class Context:
    """What a computation's hooks get: the key whose turn it is, its state, its timers, and where productions go. Valid while the hook runs.

    All times are microseconds since the epoch, whole numbers.
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
        """What nothing that comes now is below, but for what stands."""
        self._stored: bytes | None = None
        self._state: Any = None
        self._opened = False
        self._reached = [MIN, MIN]
        """The latest time of the timers that have fired in this turn, of both kinds."""
        self._again: set[tuple[bool, TimerId]] = set()
        """Timers that timers have set, and that do not go on in time."""
        self._fired = 0

    @property
    def finished(self) -> bool:
        """Whether the inputs are finished: nothing comes any more, and every timer of the low watermark is due."""
        return self.low == MAX

    @property
    def state(self) -> Any:
        """The state of the key, to be changed or replaced; the initial one when it has none.

        Read at the first look.
        """
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
        """Have ``process_timer`` called once, when the low watermark has come to ``at``.

        Until then the computation's low watermark does not pass ``hold``: what the timer will
        produce is not below it. By default that is ``at``, or the time of the record or the hold of
        the timer that sets it if that is later. With ``stamp`` it is the start of the record's
        window, or the hold of the timer that sets it: a timer that produces nothing that is so old
        has a later ``hold``. An equal tag and time are the same timer: of two holds the lower one
        stays.

        Raises ValueError for a hold below what this hook may produce, for a time beyond ``END`` and
        without a ``process_timer``, TypeError for what is no text and no whole number.
        """
        if hold is None:
            hold = at if not self._stamped and type(at) is int and at > self._base else self._base
        # Most are set again by each record. Held as low they were right, and are.
        if self._firing or type(at) is not int or self._timers.holds.get((at, tag)) != hold:
            self._set(self._timers, tag, at, hold, wall=False)

    def set_wall_timer(self, tag: str, at: int, *, hold: int | None = None) -> None:
        """Have ``process_timer`` called once, when the driver's clock has come to ``at``; count from :attr:`now`.

        ``hold`` as for :meth:`set_timer`, by default the time of the record (with ``stamp``, the start of its window), or the hold of the timer, that sets it. Raises what that raises.
        """
        if hold is None:
            hold = self._base
        self._set(self._wall, tag, at, hold, wall=True)

    def clear_timer(self, tag: str, at: int) -> None:
        """Forget a timer, and what it holds; nothing happens when there is none."""
        self._timers.holds.pop((at, tag), None)

    def clear_wall_timer(self, tag: str, at: int) -> None:
        """Forget a timer of the clock; nothing happens when there is none."""
        self._wall.holds.pop((at, tag), None)

    def produce(self, output: str, row: Mapping[str, Any], timestamp: int | None = None) -> None:
        """Send a row into an output: exactly the columns of its schema, None for null, times as microseconds or aware datetimes.

        The row's timestamp is the column that the output declares as ``event_time``. Of an output without one it is ``timestamp``, by default the record's time, or the timer's ``at``, of the clock ``hold``.
        Raises ValueError for one below the record's time (the start of its window, if ``stamp`` is declared), or below the hold of the timer that fires; for a ``timestamp`` that is not in the column; for an output or
        columns that are not declared. Raises TypeError for a row that is no mapping, and an event time that is no time.
        """
        fields = self._outputs.get(output)
        if fields is None:
            msg = f"{self._name} has no output {output!r}; it declares {', '.join(self._outputs)}"
            raise ValueError(msg)
        given: Any = row
        if not isinstance(given, Mapping):
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
        # What changes after this call, as a list of the state may, does not change the row.
        own = {name: value if type(value) in _PLAIN else copy.deepcopy(value) for name, value in row.items()}
        self._productions.append((output, own, timestamp))

    def _named(self, output: str, row: Mapping[Any, Any], fields: frozenset[str]) -> Mapping[str, Any]:
        """Return a row with names as they are declared: large and small letters are the same, as for Spark."""
        declared = {name.lower(): name for name in fields}
        named: dict[Any, Any] = {declared.get(str(name).lower(), name): value for name, value in row.items()}
        if named.keys() == fields and len(named) == len(row):
            return named
        wrong = [f"{name} is missing" for name in sorted(fields - named.keys())]
        wrong += [f"{name} is not declared" for name in sorted(map(str, named.keys() - fields))]
        wrong = wrong or ["one is there twice"]
        msg = f"a row for {self._name}'s output {output} does not have its columns: {', '.join(wrong)}. Give each column, None for null, or declare outputs = otherwise"
        raise ValueError(msg)

    def _event_time(self, output: str, column: str, value: Any, given: int | None) -> int:
        """Return the event time that a consumer reads from a row, microseconds."""
        what = f"column {column} of {self._name}'s output {output}, its event time,"
        if type(value) is not int:
            if not isinstance(value, datetime) or value.tzinfo is None:
                msg = f"{what} got {value!r}: give microseconds since the epoch, or an aware datetime, or declare event_time=None"
                raise TypeError(msg)
            value = to_micros(value)
        if not MIN < value < MAX:
            msg = f"{what} got {value}; times are above MIN and below MAX"
            raise ValueError(msg)
        if given is not None and given != value:
            msg = f"{what} is {Watermark(value)}, and timestamp= is {Watermark(given)}: leave timestamp= out, it is taken from the column"
            raise ValueError(msg)
        return int(value)

    def _default_stamp(self) -> int:
        doing = self._doing
        if isinstance(doing, Record):
            return doing.timestamp
        assert doing is not None
        return doing.hold if doing.wall else max(doing.at, doing.hold)

    def _set(self, timers: Held, tag: str, at: int, hold: int, *, wall: bool) -> None:
        # It is called for every record, so what is right is found by one condition.
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
        """Return the least hold that stands."""
        return min(
            min(self._timers.holds.values(), default=MAX),
            min(self._wall.holds.values(), default=MAX),
        )


class Turns(Context):
    """The turns of all keys of a batch, one after another: the shell gives what is kept of each, and takes what is to be kept."""

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
        """What all turns have produced."""
        return self._productions

    def take(self, key: Any, kept: Kept, records: Sequence[Record]) -> Kept:
        """Return what is to be kept of a key: an equal one when nothing has changed.

        O((records + timers) x log), and the hooks.

        What a hook raises comes out with a note of the key and of what it was called for.
        """
        self.key, self._doing = key, None
        self._stored, self._state, self._opened = kept.state, None, False
        self._timers.load(kept.timers)
        self._wall.load(kept.wall_timers)
        if self._again:
            self._again = set()
        self._reached = [MIN, MIN]
        self._fired = 0
        records, waiting = self._ready(kept.waiting, records)
        try:
            self._run(records)
            state = self._stored
            if self._opened:
                assert self._codec is not None
                state = self._codec.encode(self._state)
                state = None if state == self._nothing else state
        except Exception as failure:
            failure.add_note(f"in {self._name}, key {key!r}, {_told(self._doing)}")
            raise
        return Kept(state, self._timers.holds, self._wall.holds, waiting)

    def _ready(self, waiting: list[Record], records: Sequence[Record]) -> tuple[Sequence[Record], list[Record]]:
        """Return the records that have their turn, in order, and those that wait."""
        if waiting:
            records = [*waiting, *records]
        if len(records) > 1:
            records = sorted(records, key=self._order)
        if not self._computation.in_order:
            return records, []
        ready = next((i for i, each in enumerate(records) if each.timestamp >= self.low), len(records))
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
        """Fire the timers of the low watermark that are not later.

        Returns whether there were any.
        """
        fired = False
        while (found := self._timers.pop(through)) is not None:
            self._timer(*found, wall=False)
            fired = True
        return fired

    def _fire_wall(self) -> bool:
        """Fire one timer of the clock. Returns whether there was one."""
        found = self._wall.pop(self.now)
        if found is not None:
            self._timer(*found, wall=True)
        return found is not None

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
        """Return what is wrong with timers that set each other without end, in words."""
        timer = self._doing
        assert isinstance(timer, Timer)
        said = f"{self._name}, key {self.key!r}: timers that timers have set fired {self._most:,} times in one batch, the last one {timer.tag!r} at {Watermark(timer.at)}. "
        if self.finished and not timer.wall:
            return said + (
                "The inputs are finished, so every timer is due at once, and a chain of them does not end: in process_timer set the next one only while not ctx.finished, or while the key still "
                "has something. If it is as long as that, do several of its steps in one timer. The batch is run again by the next start, and nothing is lost"
            )
        return (
            said
            + "One is set anew for no later time: set it for a later one. The batch is run again by the next start, and nothing is lost"
        )


def _event_times(computation: Computation, outputs: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Return the column of the event times of each output that declares one, as its columns are written."""
    found: dict[str, str] = {}
    for output, fields in outputs.items():
        declared = computation.outputs[output]
        if isinstance(declared, Output) and declared.event_time is not None:
            found[output] = next(name for name in fields if name.lower() == declared.event_time.lower())
    return found


def _told(doing: Record | Timer | None) -> str:
    if isinstance(doing, Record):
        return f"the record of {Watermark(doing.timestamp)}" + (
            "" if doing.id is None else f" with the id {doing.id!r}"
        )
    if isinstance(doing, Timer):
        clock = ", by the clock" if doing.wall else ""
        return f"the timer {doing.tag!r} at {Watermark(doing.at)}{clock}"
    return "before the first hook"
