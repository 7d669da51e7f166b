"""What a user writes: a computation with its input, its outputs and its two hooks (MillWheel 4.1, 5)."""

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
"""Microseconds, as all times in a computation."""
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
END: Final = MAX - 1
"""The end of time: a timer there fires when the inputs are finished."""


def floor(micros: int, length: int) -> int:
    """Return the start of the window of this length that a time is in: windows start at whole multiples since 1970 in UTC. Both in microseconds.

    >>> floor(150 * SECOND, MINUTE) == 2 * MINUTE, floor(-1, MINUTE) == -MINUTE
    (True, True)
    """
    return micros - micros % length


def column_named(name: Any, columns: Sequence[str]) -> str:
    """Return the column that is asked for by a name: as for Spark, large and small letters are the same. Raises KeyError."""
    found = [name] if name in columns else [each for each in columns if each.lower() == str(name).lower()]
    if len(found) != 1:
        msg = f"the rows have no column {name}; they have {', '.join(columns)}"
        raise KeyError(msg)
    return str(found[0])


def order_of(inputs: Sequence[Input]) -> Callable[[Record], Any]:
    """Return by what the records of one key are sorted: time, place of the input, id."""
    if len(inputs) == 1:
        return attrgetter("timestamp", "id") if inputs[0].id else attrgetter("timestamp")
    places = {each.label: place for place, each in enumerate(inputs)}
    return lambda record: (record.timestamp, places[record.input], record.id)


def length_of(stamp: timedelta | None) -> int:
    """Return a length in microseconds; 1, which every time is a multiple of, without one."""
    return 1 if stamp is None else stamp // timedelta(microseconds=1)


@dataclass(frozen=True)
class Input:
    """What a computation reads: rows of one frame, and how they become records."""

    name: str | Sequence[str]
    """The computation that writes them, or all of them when there are several."""
    key: str | Callable[[], Column]
    """The key of a row: text, bytes or a whole number. It is SQL, the name of a column mostly, or a
    function that returns a column: it runs on the driver alone, while a column itself could not be
    made where executors import the class. It is this consumer's own: another one may key the same
    rows otherwise."""
    event_time: str
    """The column of the event times, a timestamp."""
    id: str | None = None
    """The column of the records' ids: text, bytes or whole numbers. Records of one key and time
    come in their order; without one in any."""
    once: bool = False
    """Whether of each id only the first record has its turn (MillWheel 6.1.1). Every copy has the
    same key and event time. Ids are forgotten when the low watermark has passed them; a record
    below that may be a copy or not, and goes into the output ``undecidable``, with the columns
    input, key, event_time, and row, which is the rest as JSON."""
    slack: timedelta = timedelta(0)
    """For how much longer ids are remembered, so that late records can be told from copies."""
    alias: str | None = None
    """What ``record.input`` and the frames of :func:`~lowwater_pipeline.computation.start` call it:
    by default the name, of several ones with ``+`` between them. Two inputs need two."""
    output: str | None = None
    """In a :class:`~lowwater_pipeline.graph.Pipeline`, and of a computation that is fused: which
    output it is, of a computation that has several."""

    @property
    def label(self) -> str:
        """What it is called."""
        return "+".join(self.names) if self.alias is None else self.alias

    @property
    def names(self) -> tuple[str, ...]:
        """The computations that write what is read."""
        return (self.name,) if isinstance(self.name, str) else tuple(self.name)

    def __getstate__(self) -> dict[str, Any]:
        # Executors get the keys with the rows, and what makes a column need not travel.
        return {**self.__dict__, "key": self.key if isinstance(self.key, str) else ""}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@dataclass(frozen=True)
class Output:
    """What a computation writes, with what others read as its event time: ``Output("query string, start timestamp, n long", event_time="start")``."""

    schema: str
    """The columns, as DDL."""
    event_time: str | None
    """The column that consumers declare as their event time: a timestamp, which no row leaves null.
    No row has it below what the low watermark may have passed. None: nobody reads one from it, or
    each row has another."""


@dataclass(frozen=True)
class Strong:
    """Each row is in the version of its batch before anybody gets it (MillWheel 6.1.2)."""


@dataclass(frozen=True)
class Weak:
    """Rows of some outputs are sent to Kafka while the batch runs, before it is durable (MillWheel 6.1.3): a job less, and rows may come twice.

    It is for those whose rows depend on nothing but the records and the state, and whose readers drop copies. Each message has an id in the header ``lowwater-id``, the same whenever its batch is computed;
    its key is the key that has produced it, and its value the row as JSON. What no broker has acknowledged within the patience is kept with the state and sent again, and the low watermark does not pass it.
    """

    topics: Mapping[str, str]
    """The topic of each output that is sent. It has no other writer that marks it, as
    ``batch.write_kafka`` does."""
    options: Mapping[str, object]
    """Of Kafka's client, as Spark names them: ``kafka.bootstrap.servers`` at least."""
    patience: timedelta = timedelta(seconds=1)
    """How long a key range waits for acknowledgements, in each batch."""


@dataclass(slots=True)
class Record:
    """A record of the key whose turn it is."""

    timestamp: int
    """Its event time, microseconds since the epoch."""
    id: Any = None
    row: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The columns of the frame. ``record["n"]`` is one of them; only those that are asked for are
    converted."""
    input: str = ""
    """What its input is called."""

    def __getitem__(self, name: str) -> Any:
        return self.row[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.row)


class Timer(NamedTuple):
    """A timer that fires."""

    tag: str
    at: int
    """Microseconds: of event time, or with ``wall`` of the driver's clock."""
    hold: int
    """What the low watermark of the computation has waited for, microseconds: nothing is produced
    below it."""
    wall: bool = False


class Computation:
    """Code that runs for one key at a time, over records and timers, with state that is the key's own. Derive a class, and start it with :func:`~lowwater_pipeline.computation.start`.

    An instance travels to the executors: what it has in fields can be pickled, and does not change. All that is remembered goes into ``ctx.state``. The hooks depend on nothing but their
    arguments and the state: an interrupted batch calls them again. Code for a key runs in one task at a time.
    """

    name: ClassVar[str]
    """The computation's name, under which others read it."""
    inputs: ClassVar[Sequence[Input]]
    """One or several, with keys of one kind. Records of one key and time come in their order."""
    outputs: ClassVar[Mapping[str, str | Output]]
    """Name to :class:`Output`; the schema alone, as DDL, is enough for one without timestamps."""
    state: ClassVar[StateCodec[Any] | None] = None
    """How the state becomes bytes, see :class:`~lowwater_pipeline.computation.codec.Codec`; None:
    there is none."""
    stamp: ClassVar[timedelta | None] = None
    """The length of tumbling windows by whose start is stamped what is produced, see ``stamp`` of
    :func:`lowwater_spark.stage`; None: a record produces nothing below its own time."""
    productions: ClassVar[Strong | Weak] = Strong()
    """Whether rows are durable before they are sent, :class:`Strong`, or may be sent twice,
    :class:`Weak`."""
    in_order: ClassVar[bool] = False
    """Whether records wait until the low watermark has passed them, and so come in order of time
    whatever makes a batch. A late one comes at once."""

    def process_record(self, ctx: Context, record: Record) -> None:
        """Take a record."""
        raise NotImplementedError

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        """Take a timer of the key, which is gone by now. Needed by those who set one."""
        msg = f"{self.name} sets timers and does not say what they do: write process_timer(self, ctx, timer)"
        raise NotImplementedError(msg)
