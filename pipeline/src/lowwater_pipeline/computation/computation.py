"""The classes from which a user builds a computation: inputs, outputs, hooks (MillWheel 4.1, 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from lowwater.watermark import MAX
from lowwater_pipeline.computation.codec import StateCodec

if TYPE_CHECKING:
    from pyspark.sql import Column

    from lowwater_pipeline.computation.turn import Context

__all__ = [
    "DAY",
    "END",
    "HOUR",
    "MINUTE",
    "SECOND",
    "Computation",
    "Input",
    "Output",
    "Record",
    "Strong",
    "Timer",
    "Weak",
    "column_named",
    "floor",
    "length_of",
    "order_of",
]

SECOND: Final = 1_000_000
"""A second in microseconds, the unit of all times in a computation."""
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
END: Final = MAX - 1
"""The end of time: a timer set for it fires when the inputs are finished."""


def floor(micros: int, length: int) -> int:
    """Return the start of the window of ``length`` that a time is in. Both in microseconds.

    Windows start at whole multiples of the length since 1970 in UTC.

    >>> floor(150 * SECOND, MINUTE) == 2 * MINUTE, floor(-1, MINUTE) == -MINUTE
    (True, True)
    """
    return micros - micros % length


def column_named(name: Any, columns: Sequence[str]) -> str:
    """Return the column with a name; case does not matter, as in Spark. Raises KeyError."""
    matches = [name] if name in columns else [column for column in columns if column.lower() == str(name).lower()]
    if len(matches) != 1:
        msg = f"the rows have no column {name}; they have {', '.join(columns)}"
        raise KeyError(msg)
    return str(matches[0])


def order_of(inputs: Sequence[Input]) -> Callable[[Record], Any]:
    """Return the sort key of one key's records: time, place of the input, id."""
    if len(inputs) == 1:
        return attrgetter("timestamp", "id") if inputs[0].id else attrgetter("timestamp")
    places = {source.label: place for place, source in enumerate(inputs)}
    return lambda record: (record.timestamp, places[record.input], record.id)


def length_of(stamp: timedelta | None) -> int:
    """Return a length in microseconds. None gives 1, of which every time is a multiple."""
    return 1 if stamp is None else stamp // timedelta(microseconds=1)


@dataclass(frozen=True)
class Input:
    """An input of a computation: the rows of one frame, and how they become records."""

    name: str | Sequence[str]
    """Name of the computation that writes the rows, or the names of all that do."""
    key: str | Callable[[], Column]
    """The key of a row: text, bytes or a whole number. Give SQL, mostly the name of a column, or a
    function that returns a column; the function runs on the driver only, because executors that
    import the class cannot build a column. Another consumer may key the same rows differently."""
    event_time: str
    """Name of the event-time column, a timestamp."""
    id: str | None = None
    """Name of the column of record ids: text, bytes or whole numbers. Records of one key and time
    come in the order of their ids; without ids in any order."""
    once: bool = False
    """True gives only the first record of each id a turn (MillWheel 6.1.1). All copies must have
    the same key and event time. Ids are forgotten when the low watermark has passed them. A record
    below it may be a copy or not: it goes into the output ``undecidable``, with the columns input,
    key, event_time, and row, which has the other columns as JSON."""
    slack: timedelta = timedelta(0)
    """Extra time for which ids are remembered, so that late records can be told from copies."""
    alias: str | None = None
    """Label of the input in ``record.input`` and in the frames of
    :func:`~lowwater_pipeline.computation.start`. Default: its names, joined by ``+``. Labels of
    inputs must differ."""
    output: str | None = None
    """Name of the output that is read, in a :class:`~lowwater_pipeline.graph.Pipeline` or a fused
    computation. Needed when the writer has several outputs."""

    @property
    def label(self) -> str:
        """The input's name in records and frames: ``alias``, or the names joined by ``+``."""
        return "+".join(self.names) if self.alias is None else self.alias

    @property
    def names(self) -> tuple[str, ...]:
        """The computations that write the rows."""
        return (self.name,) if isinstance(self.name, str) else tuple(self.name)

    def __getstate__(self) -> dict[str, Any]:
        # Executors get the keys with the rows, so the function that makes the column stays behind.
        return {**self.__dict__, "key": self.key if isinstance(self.key, str) else ""}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@dataclass(frozen=True)
class Output:
    """An output with its event time: ``Output("query string, start timestamp", "start")``."""

    schema: str
    """The columns, as DDL."""
    event_time: str | None
    """Name of the timestamp column that consumers declare as their event time. It is never null,
    and never below what the low watermark may have passed. None: consumers read no event time from
    this output, or it differs from row to row."""


@dataclass(frozen=True)
class Strong:
    """Productions that are durable before any reader gets them (MillWheel 6.1.2)."""


@dataclass(frozen=True)
class Weak:
    """Productions sent to Kafka before their batch is durable (MillWheel 6.1.3).

    This saves a job for each batch, but rows may come twice. Use it when the rows depend only on
    the records and the state, and readers drop copies. Each message has an id in the header
    ``lowwater-id``, the same whenever its batch is computed. Its key is the key that produced it,
    its value the row as JSON. Messages that no broker acknowledges within the patience are kept
    with the state and sent again; the low watermark does not pass them.
    """

    topics: Mapping[str, str]
    """The topic of each output that is sent. No other writer may put marks into the topic, as
    ``batch.write_kafka`` does."""
    options: Mapping[str, object]
    """Options of Kafka's client, named as in Spark; ``kafka.bootstrap.servers`` is required."""
    patience: timedelta = timedelta(seconds=1)
    """Longest time for which a key range waits for acknowledgements in each batch."""


@dataclass(slots=True)
class Record:
    """A record of the key whose turn it is."""

    timestamp: int
    """Event time, microseconds since the epoch."""
    id: Any = None
    row: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Columns of the frame; ``record["n"]`` reads one. Only columns that are read are converted."""
    input: str = ""
    """Label of the input."""

    def __getitem__(self, name: str) -> Any:
        return self.row[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.row)


class Timer(NamedTuple):
    """A timer that fires, as ``process_timer`` gets it."""

    tag: str
    at: int
    """Time for which it was set, microseconds: event time, or with ``wall`` the driver's clock."""
    hold: int
    """Timestamp at which the timer held the computation's low watermark, microseconds. The hook may
    produce nothing below it."""
    wall: bool = False


class Computation:
    """Code that runs for one key at a time, over records and timers, with state of that key's own.

    Derive a class, and start it with :func:`~lowwater_pipeline.computation.start`. Executors get a
    pickled copy of the instance: its fields must be picklable and must not change. Keep everything
    to be remembered in ``ctx.state``. The hooks may depend on nothing but their arguments and the
    state, because an interrupted batch calls them again. One task at a time runs code for a key.
    """

    name: ClassVar[str]
    """The computation's name, under which others read it."""
    inputs: ClassVar[Sequence[Input]]
    """One or several inputs, with keys of one type. Records of one key and time come in the order
    of their inputs."""
    outputs: ClassVar[Mapping[str, str | Output]]
    """Outputs by name. A DDL schema instead of an :class:`Output` will do without timestamps."""
    state: ClassVar[StateCodec[Any] | None] = None
    """Codec that turns the state into bytes, see
    :class:`~lowwater_pipeline.computation.codec.Codec`; None when there is no state."""
    stamp: ClassVar[timedelta | None] = None
    """Length of the tumbling windows whose starts stamp the productions, see ``stamp`` of
    :func:`lowwater_spark.stage`. None: a record produces nothing below its own time."""
    productions: ClassVar[Strong | Weak] = Strong()
    """:class:`Strong`: rows are durable before they are sent. :class:`Weak`: rows may be sent
    twice."""
    in_order: ClassVar[bool] = False
    """True makes records wait until the low watermark has passed them, so that they come in the
    order of time whatever the batches are. A late record comes at once."""

    def process_record(self, ctx: Context, record: Record) -> None:
        """Handle a record of the key."""
        raise NotImplementedError

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        """Handle a timer of the key, which is removed already. Needed when timers are set."""
        msg = f"{self.name} sets timers and does not say what they do: write process_timer(self, ctx, timer)"
        raise NotImplementedError(msg)
