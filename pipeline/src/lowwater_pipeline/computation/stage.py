"""A computation in a tracked stage of Spark: state, timers and productions of a batch are one version of the stage's state, durable before the output.

The rows of a version are its outbox: what was produced is in it before anybody gets it (MillWheel 6.1.2, strong productions). A batch that runs again finds the version, and takes the rows from it; or
it finds none, and computes the same with the low watermark, the clock and the rows of its first run. It needs ``lowwater-spark`` and, in the executors, pyarrow and numpy.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import lowwater
import lowwater_spark as lws
from lowwater_pipeline.computation.computation import Computation, Input, Output, Record, length_of
from lowwater_pipeline.computation.keys import Changed, Form, Keys, Piece, PieceFacts, Refs, sorted_keys
from lowwater_pipeline.computation.productions import OUTPUT, Outputs, column_of
from lowwater_pipeline.computation.turn import Kept, Turns
from lowwater_spark.track.rows import event_micros
from lowwater_spark.track.segments import Due, FreshSegment, NextSegments, Parent, Segments
from lowwater_spark.track.update import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    WriteOutputs = Callable[[Mapping[str, DataFrame], lws.Batch], object]
    """write(outputs, batch): outputs by name."""

__all__ = ["ComputationUpdate", "pieces_of", "start", "written"]

_PLACE: Final = "lowwater_place"
_KEY: Final = "lowwater_key"
_TIME: Final = "lowwater_micros"
_ID: Final = "lowwater_id"
_OWN: Final = (_PLACE, _KEY, _TIME, _ID)

_FORMAT: Final = 0x636F6D70_01
"""The first fact of a range: what has made it, and how."""


_COLLECT: Final = 200_000
"""So many more objects there are before the next look for cycles."""


@contextlib.contextmanager
def _rare_collector() -> Iterator[None]:
    """Look for cycles seldom in the batch of a range: a turn makes none, and to look for some among all its records takes as long as all turns. What the hooks leave is still found."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(max(_COLLECT, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Row(Mapping[str, Any]):
    """A row of a table whose columns are converted when the first row is asked for them."""

    __slots__ = ("_at", "_columns")

    def __init__(self, columns: _Columns, at: int) -> None:
        self._columns = columns
        self._at = at

    def __getitem__(self, name: str) -> Any:
        return self._columns[name][self._at]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.names)

    def __len__(self) -> int:
        return len(self._columns.names)


class _Columns(dict[str, list[Any]]):
    """Columns as lists of Python's values."""

    def __init__(self, rows: pa.Table) -> None:
        super().__init__()
        self._rows = rows
        self.names = [name for name in rows.column_names if name not in _OWN]

    def __missing__(self, name: str) -> list[Any]:
        # As for Spark, large and small letters are the same.
        found = [name] if name in self.names else [each for each in self.names if each.lower() == str(name).lower()]
        if len(found) != 1:
            msg = f"the rows have no column {name}; they have {', '.join(self.names)}"
            raise KeyError(msg)
        values: list[Any] = self._rows[found[0]].to_pylist()
        self[name] = values
        return values


@dataclass(frozen=True, slots=True)
class ComputationUpdate:
    """What every key range does with its rows of a batch; see ``Batch.stateful``. Travels in the closure."""

    computation: Computation
    outputs: Outputs
    now: int
    """The clock of the batch, microseconds."""

    def update_segments(
        self, before: Segments, rows: pa.Table, low: lowwater.Watermark
    ) -> tuple[NextSegments, pa.Table | None, lowwater.Watermark | None, list[Any]]:
        """Return the keys after the batch, what was produced, and the least hold.

        The records held are not told: a computation has no heuristic watermarks of its own. O((rows + keys that have a turn) x log keys), and the hooks.
        """
        return self.update_relaid([Parent(before)], rows, low)

    def update_relaid(
        self, parents: Sequence[Parent], rows: pa.Table, low: lowwater.Watermark
    ) -> tuple[NextSegments, pa.Table | None, lowwater.Watermark | None, list[Any]]:
        """Return what :meth:`update_segments` does, of a range that has its keys from several ranges, or some of one; these are copied, once."""
        rows = self._checked(rows)
        kept = [self._keys(each, rows) for each in parents]
        keys = replace(kept[0], pieces=[piece for each in kept for piece in each.pieces])
        due = keys.due(low.micros, self.now)
        emitted = None
        if rows.num_rows or len(due.rows):
            outputs = {name: frozenset(columns) for name, columns in self.outputs.columns.items()}
            turns = Turns(self.computation, outputs, low.micros, self.now)
            with _rare_collector():
                keys = keys.changed(self._turns(keys, rows, due, turns), low.micros, self.now)
                emitted = self.outputs.table(turns.productions)
        hold = keys.least("hold")
        return written(keys), emitted, None if hold is None else lowwater.Watermark(hold), []

    def _turns(self, keys: Keys, rows: pa.Table, due: Refs, turns: Turns) -> Changed:
        """Give each key with records, or with something due, its turn."""
        import pyarrow as pa

        places, names = np.asarray(rows[_PLACE]), _whole(rows, _KEY)
        times = np.asarray(rows[_TIME])
        order, first = sorted_keys(places, names, times)
        starts = np.flatnonzero(first)
        groups = _records(rows, order, starts)
        at = order[starts]
        places, names = places[at], names.take(pa.array(at))
        found = keys.find(places, names)
        due = _without(due, found)
        idle = keys.rows(due)
        if idle is not None:
            places = np.concatenate([places, np.asarray(idle["place"])])
            names = pa.concat_arrays([names, idle["key"].chunk(0)])
        refs = Refs(np.concatenate([found.pieces, due.pieces]), np.concatenate([found.rows, due.rows]))
        kept: list[Kept] = [Kept()] * len(places)
        known = np.flatnonzero(refs.pieces >= 0)
        table = keys.rows(Refs(refs.pieces[known], refs.rows[known]))
        if table is not None:
            for i, each in zip(known.tolist(), keys.form.kept(table), strict=True):
                kept[i] = each
        changed: list[int] = []
        then: list[Kept] = []
        for i, (key, each) in enumerate(zip(names.to_pylist(), kept, strict=True)):
            new = turns.take(key, each, groups[i] if i < len(groups) else ())
            if new != each:
                changed.append(i)
                then.append(new)
        index = pa.array(changed, pa.int64())
        return Changed(
            keys.form.table(places[changed], names.take(index), then), Refs(refs.pieces[changed], refs.rows[changed])
        )

    def _keys(self, parent: Parent, rows: pa.Table) -> Keys:
        """Return the keys that the batch before has left there. Raises ValueError when something else has left them, or they are of another form."""
        form = Form(
            _whole(rows, _KEY).type,
            length_of(self.computation.stamp),
            self._waiting(rows) if self.computation.in_order else None,
        )
        before = parent.segments
        if before.whole or (before.facts and before.facts[0] != _FORMAT):
            msg = (
                f"the state of this stage is not that of a computation: something else has run in it. Give {self.computation.name} a checkpoint of its own, or begin a new one, "
                "with adopt=True"
            )
            raise ValueError(msg)
        keys = Keys(form, pieces_of(before))
        for kind in keys.kinds():
            if kind != form.key:
                msg = f"the keys of {self.computation.name} are of {form.key} now, and those that are kept are of {kind}. Cast the key as it was, or begin a new checkpoint"
                raise ValueError(msg)
        keys, waiting = keys.as_declared()
        if waiting is not None:
            msg = (
                f"records of {self.computation.name} wait for the low watermark, and the frame has other columns now, or in_order= has changed: {waiting} is kept, and {form.waiting} "
                "comes. Give the frame the columns that it had, in their order, and in_order= as it was, until none waits any more, or begin a new checkpoint"
            )
            raise ValueError(msg)
        return keys if parent.places is None else keys.within(*parent.places)

    @staticmethod
    def _waiting(rows: pa.Table) -> pa.DataType:
        import pyarrow as pa

        row = pa.struct([each.remove_metadata() for each in rows.schema if each.name not in _OWN])
        identity = rows.schema.field(_ID).type if _ID in rows.column_names else pa.null()
        return pa.list_(pa.struct([("timestamp", pa.int64()), ("id", identity), ("row", row)]))

    def _checked(self, rows: pa.Table) -> pa.Table:
        """Return the rows in one piece, with times in UTC. Raises ValueError for a row without key, time or id."""
        declared = self.computation.inputs[0]
        for name, what, said in (
            (_KEY, "key", declared.key),
            (_TIME, "event time", declared.event_time),
            (_ID, "id", declared.id),
        ):
            if name in rows.column_names and rows[name].null_count:
                msg = (
                    f"{rows[name].null_count} of {rows.num_rows} rows of {self.computation.name} have no {what} ({said or 'an expression'}). Give each record one, or filter these rows "
                    "out of the frame; nothing of the batch is lost meanwhile"
                )
                raise ValueError(msg)
        for i, field in enumerate(rows.schema):
            # Spark gives them the zone of the session, which another run may have set otherwise.
            kind = _in_utc(field.type)
            if kind != field.type:
                rows = rows.set_column(i, field.name, rows[field.name].cast(kind))
        return rows.combine_chunks()


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type with UTC as the zone of all times in it that have one."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return kind if kind.tz in (None, "UTC") else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct(
            [each.with_type(_in_utc(each.type)) for each in (kind.field(i) for i in range(kind.num_fields))]
        )
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_in_utc(key.type)), item.with_type(_in_utc(item.type)))
    return kind


def pieces_of(before: Segments) -> list[Piece]:
    """Return the pieces that the segments of a range are. Nothing is read."""
    return [Piece(each.rows, PieceFacts(*each.facts), partial(before.read, each), each) for each in before.segments]


def written(keys: Keys) -> NextSegments:
    """Return keys as the segments of a version: pieces that were there stay, with what is known of them now."""
    segments = [
        FreshSegment(piece.read(), tuple(piece.facts))
        if piece.source is None
        else replace(piece.source, facts=tuple(piece.facts))
        for piece in keys.pieces
    ]
    return NextSegments(segments, (_FORMAT,), Due(keys.least("due"), keys.least("wall")))


def _records(rows: pa.Table, order: NDArray[np.int64], starts: NDArray[np.int64]) -> list[list[Record]]:
    """Return the records of each key."""
    columns = _Columns(rows)
    times = np.asarray(rows[_TIME])[order].tolist()
    at = order.tolist()
    if _ID in rows.column_names:
        ids = rows[_ID].to_pylist()
        made = [Record(time, ids[i], _Row(columns, i)) for time, i in zip(times, at, strict=True)]
    else:
        made = [Record(time, None, _Row(columns, i)) for time, i in zip(times, at, strict=True)]
    bounds = [*starts.tolist(), len(made)]
    return [made[start:end] for start, end in pairwise(bounds)]


def _without(due: Refs, found: Refs) -> Refs:
    """Return the keys that are due and have no records."""
    if not len(due.rows):
        return due
    taken = set(zip(found.pieces.tolist(), found.rows.tolist(), strict=True))
    left = [i for i, each in enumerate(zip(due.pieces.tolist(), due.rows.tolist(), strict=True)) if each not in taken]
    return Refs(due.pieces[left], due.rows[left])


def _whole(rows: pa.Table, name: str) -> pa.Array:
    """Return a column of keys in one array, of the type that keys of its kind are kept in."""
    import pyarrow as pa

    column = rows[name]
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        kind = pa.large_string()
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        kind = pa.large_binary()
    else:
        kind = pa.int64()
    if not column.num_chunks:
        return pa.array([], kind)
    array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    return array.cast(kind)


def start(
    computation: Computation,
    frame: DataFrame,
    write: WriteOutputs,
    *,
    checkpoint: str | os.PathLike[str],
    ranges: int = 64,
    state: str | os.PathLike[str] | None = None,
    address: str | None = None,
    client: lowwater.Client | None = None,
    balance: bool = False,
    **options: Any,
) -> lws.TrackedQuery:
    """Run a computation as a tracked stage of Spark, over a streaming frame.

    Args:
        computation: An instance of a class derived from :class:`Computation`.
        frame: What it reads; what its input names must be all that is written there.
        write: ``write(outputs, batch)`` is called in each batch with a frame for each output, by name, also without rows. What it writes with the batch's methods (``batch.write``, ``write_kafka``,
            ``write_table``) is written once. It must write in the same batch what is to be kept.
        checkpoint: Spark's checkpoint, a directory of the computation's own.
        ranges: Key ranges; a checkpoint keeps its number.
        state: Where the state is, by default in the checkpoint: an absolute directory on a local or NFS file system that all executors see.
        address: As for :func:`lowwater_spark.stage`.
        client: The same.
        balance: The same.
        options: Those of ``Stage.foreach_batch``: trigger, adopt, name.

    Raises ValueError and TypeError, naming what to change, for a computation that is not whole or does not go with the frame; what ``Stage.foreach_batch`` raises.
    """
    declared = _declared(computation)
    columns, schema = _outputs(computation)
    key = _key(declared)
    _check_frame(computation, declared, frame, key)
    update = partial(ComputationUpdate, computation, Outputs(computation.name, columns, arrow_schema(schema)))

    def run(rows: DataFrame, batch: lws.Batch) -> None:
        from pyspark.sql import functions as sf

        emitted = batch.stateful(_prepared(declared, rows, key), update(batch.now), schema, state)
        outputs = {
            output: emitted.where(sf.col(OUTPUT) == output).select(
                *[sf.col(f"`{column_of(output, name)}`").alias(name) for name in names]
            )
            for output, names in columns.items()
        }
        write(outputs, batch)

    stage = lws.stage(
        frame.sparkSession,
        computation.name,
        inputs=declared.names,
        key=key,
        event_time=declared.event_time,
        ranges=ranges,
        heuristics=(),
        stamp="event" if computation.stamp is None else computation.stamp,
        address=address,
        client=client,
        balance=balance,
    )
    return stage.foreach_batch(frame, run, checkpoint=checkpoint, **options)


def _declared(computation: object) -> Input:
    """Return the input. Raises ValueError for a computation that is not whole."""
    if not isinstance(computation, Computation):
        msg = f"{computation!r} is no computation: pass an instance of a class derived from Computation, as start(Counts(), ...)"
        raise TypeError(msg)
    missing = [name for name in ("name", "inputs", "outputs") if not hasattr(computation, name)]
    if missing:
        msg = (
            f"{type(computation).__name__} does not say its {', '.join(missing)}: write {missing[0]} = ... in the class"
        )
        raise ValueError(msg)
    inputs: Any = computation.inputs
    if not isinstance(inputs, Sequence) or not all(isinstance(each, Input) for each in inputs):
        msg = f"inputs of {computation.name} is {inputs!r}: declare a list, inputs = [Input(...)]"
        raise TypeError(msg)
    if len(inputs) != 1:
        msg = f"{computation.name} has {len(computation.inputs)} inputs, and a computation reads one frame: declare inputs = [Input(...)]; several writers of the frame are Input([NAME, NAME], ...)"
        raise ValueError(msg)
    if type(computation).process_record is Computation.process_record:
        msg = f"{computation.name} does not say what it does with a record: write process_record(self, ctx, record) in the class"
        raise ValueError(msg)
    if not computation.outputs:
        msg = f'{computation.name} has no outputs: declare outputs = {{"NAME": "SCHEMA"}}, or nobody would see what it does'
        raise ValueError(msg)
    stamp: Any = computation.stamp
    if stamp is not None and (not isinstance(stamp, timedelta) or stamp <= timedelta(0)):
        msg = f"stamp of {computation.name} is {stamp!r}: declare the length of the windows, as stamp = timedelta(minutes=1), or None"
        raise TypeError(msg)
    _check_state(computation)
    from pyspark.serializers import CloudPickleSerializer

    try:
        CloudPickleSerializer().dumps(computation)
    except Exception as failure:
        msg = f"{computation.name} cannot travel to the executors: let its class and its fields hold plain values, and make what else it needs in process_record ({failure})"
        raise TypeError(msg) from failure
    return computation.inputs[0]


def _check_state(computation: Computation) -> None:
    """Refuse a state that is no codec, or one that makes no bytes. Raises TypeError."""
    codec: Any = computation.state
    if codec is None:
        return
    missing = [name for name in ("initial", "encode", "decode") if not callable(getattr(codec, name, None))]
    if missing or isinstance(codec, type):
        msg = f"state of {computation.name} is {codec!r}, which is no codec: declare state = Codec(TYPE), or an object with initial, encode and decode"
        raise TypeError(msg)
    try:
        data = codec.encode(codec.initial())
        if type(data) is bytes:
            codec.decode(data)
    except Exception as failure:
        msg = f"the codec of {computation.name} does not write and read the initial state ({failure}): mend its initial, encode and decode"
        raise TypeError(msg) from failure
    if type(data) is not bytes:
        msg = f"the codec of {computation.name} makes {type(data).__name__} of the initial state: its encode returns bytes"
        raise TypeError(msg)


def _outputs(computation: Computation) -> tuple[dict[str, list[str]], StructType]:
    """Return the columns of each output, and the schema of all of them."""
    from pyspark.sql.types import StringType, StructType, TimestampType

    columns: dict[str, list[str]] = {}
    schema = StructType().add(OUTPUT, StringType())
    for output, given in computation.outputs.items():
        declared = given.schema if isinstance(given, Output) else given
        if output.lower() in map(str.lower, columns) or "`" in output or "/" in output:
            msg = f"{computation.name} cannot have an output {output!r}: take a name without / and `, which no other one has, in small letters or large ones"
            raise ValueError(msg)
        made: Any = StructType.fromDDL(declared)
        if made.typeName() != "struct":
            msg = f'output {output} of {computation.name} is declared as {declared!r}, which names no columns: write them as "NAME TYPE, NAME TYPE"'
            raise ValueError(msg)
        names = [name.lower() for name in made.fieldNames()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            msg = f"output {output} of {computation.name} declares {', '.join(twice)} twice: large and small letters are the same"
            raise ValueError(msg)
        times = [each.name for each in made.fields if isinstance(each.dataType, TimestampType)]
        if not isinstance(given, Output):
            if times:
                msg = (
                    f"output {output} of {computation.name} has the timestamp {times[0]}, and does not say what is the event time of its rows: declare Output({declared!r}, "
                    f"event_time={times[0]!r}), or event_time=None if nobody reads one from it"
                )
                raise ValueError(msg)
        elif given.event_time is not None and given.event_time.lower() not in map(str.lower, times):
            msg = f"output {output} of {computation.name} has no timestamp {given.event_time!r} for its event time; it has {', '.join(times) or 'none'}"
            raise ValueError(msg)
        columns[output] = made.fieldNames()
        for field in made.fields:
            schema.add(column_of(output, field.name), field.dataType)
    return columns, schema


def _key(declared: Input) -> Column:
    from pyspark.sql import Column
    from pyspark.sql import functions as sf

    key: Any = declared.key
    if isinstance(key, str):
        return sf.expr(key)
    made = key() if callable(key) and not isinstance(key, Column) else None
    if not isinstance(made, Column):
        msg = f'key= is {key!r}: give SQL, as key="upper(name)", or a function that returns a column, as key=lambda: sf.upper("name"); executors that import the class cannot make a column'
        raise TypeError(msg)
    return made


def _prepared(declared: Input, rows: DataFrame, key: Column) -> DataFrame:
    """Return the rows with what the update needs beside them."""
    from pyspark.sql import functions as sf

    own = [
        sf.xxhash64(key).alias(_PLACE),
        _cast(key, rows).alias(_KEY),
        event_micros(rows, declared.event_time).alias(_TIME),
    ]
    if declared.id is not None:
        own.append(_cast(sf.col(declared.id), rows).alias(_ID))
    return rows.select("*", *own)


def _cast(column: Column, rows: DataFrame) -> Column:
    kind = _kind(column, rows)
    return column.cast("long") if kind.typeName() in _WHOLE else column


def _kind(column: Column, rows: DataFrame) -> DataType:
    return rows.select(column).schema.fields[0].dataType


_WHOLE: Final = ("byte", "short", "integer", "long")
_KINDS: Final = ("string", "binary", *_WHOLE)


def _check_frame(computation: Computation, declared: Input, frame: DataFrame, key: Column) -> None:
    """Refuse a frame that has not what is declared. Raises ValueError, TypeError, and what Spark does for a column that is not there."""
    from pyspark.sql import functions as sf

    taken = [name for name in frame.columns if name.lower() in (*_OWN, OUTPUT)]
    if taken:
        msg = f"the frame has a column {taken[0]} already; rename it before {computation.name} reads it"
        raise ValueError(msg)
    event_micros(frame, declared.event_time)
    named: Sequence[tuple[str, Column]] = [("key", key)]
    if declared.id is not None:
        named = [*named, ("id", sf.col(declared.id))]
    for what, column in named:
        kind = _kind(column, frame)
        if kind.typeName() not in _KINDS:
            msg = f"the {what} of {computation.name} is of {kind.simpleString()}; take text, bytes or a whole number: cast it, as by F.col(...).cast('string')"
            raise TypeError(msg)
