"""What a computation reads: the frames of its inputs as one frame of Spark's, and its rows in a batch as records.

One input is read as it is, with some columns beside its own. The frames of several are united, each row of one as a struct in a column of its own, so that they share no columns. One query reads
them all: a batch has rows of each, and the low watermark is the least of the inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lowwater_pipeline.computation.computation import Computation, Input, Record, column_named
from lowwater_pipeline.computation.productions import OUTPUT
from lowwater_spark.columns import column_of
from lowwater_spark.track.operators import items
from lowwater_spark.track.rows import event_micros
from lowwater_spark.track.segments import MICROS as TIME
from lowwater_spark.track.segments import PLACE

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    Frames = DataFrame | Mapping[str, DataFrame]
    """The frame of the one input, or those of all by what they are called."""

__all__ = ["KEY", "PLACE", "TIME", "Read", "checked", "parts", "records", "united", "waiting"]

KEY: Final = "lowwater_key"
_ID: Final = "lowwater_id"
_INPUT: Final = "lowwater_input"
"""The place of a row's input in the list, if there are several."""
_EVENT_TIME: Final = "lowwater_event_time"
_OWN: Final = (PLACE, KEY, TIME, _ID)

_WHOLE: Final = ("byte", "short", "integer", "long")
_KINDS: Final = ("string", "binary", *_WHOLE)


def _id_of(place: int) -> str:
    return f"lowwater_id_{place}"


def _row_of(place: int) -> str:
    return f"lowwater_row_{place}"


# -- in the driver ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Read:
    """One frame that has what all inputs read, and the columns by which a stage reads it."""

    frame: DataFrame
    key: Column | str
    event_time: str
    more: Sequence[Column] = ()
    """What :func:`records` needs beside the columns of the frame."""
    named: Sequence[tuple[str, str]] = ()
    """What it needs and is a column of the frame as it is, so that it need not be sent twice: what
    it is called here, and there."""


def united(computation: Computation, frames: Frames) -> Read:
    """Return what a computation reads.

    Raises ValueError and TypeError, naming what to change, for frames that are not what its inputs
    declare; what Spark does for a column that is not there.
    """
    from pyspark.sql import functions as sf

    given = _by_label(computation, frames)
    inputs = computation.inputs
    keys = [_key(each) for each in inputs]
    for each, key in zip(inputs, keys, strict=True):
        try:
            _check_frame(_called(computation, each), each, given[each.label], key)
        except Exception as failure:
            if len(inputs) > 1:
                failure.add_note(f"in {_called(computation, each)}")
            raise
    if len(inputs) == 1:
        return _alone(computation, inputs[0], given[inputs[0].label], keys[0])
    _check_together(computation, given, keys)
    schemas = [given[each.label].schema for each in inputs]
    ids = [
        None if each.id is None else _kind(column_of(given[each.label], each.id), given[each.label]) for each in inputs
    ]

    def one(place: int) -> DataFrame:
        declared, frame = inputs[place], given[inputs[place].label]
        columns = [
            sf.lit(place).alias(_INPUT),
            _cast(keys[place], frame).alias(KEY),
            column_of(frame, declared.event_time).alias(_EVENT_TIME),
        ]
        for other, (kind, schema) in enumerate(zip(ids, schemas, strict=True)):
            if kind is not None:
                identity = column_of(frame, str(declared.id)) if other == place else sf.lit(None).cast(kind)
                columns.append(_whole(identity, kind).alias(_id_of(other)))
            row = sf.struct(sf.col("*")) if other == place else sf.lit(None).cast(schema)
            columns.append(row.alias(_row_of(other)))
        return frame.select(*columns)

    frame = reduce(lambda before, after: before.union(after), [one(place) for place in range(len(inputs))])
    return Read(frame, KEY, _EVENT_TIME)


def _alone(computation: Computation, declared: Input, frame: DataFrame, key: Column) -> Read:
    """Return the frame of the one input, which keeps its columns."""
    taken = [name for name in frame.columns if name.lower() in (*_OWN, OUTPUT)]
    if taken:
        msg = f"the frame has a column {taken[0]} already; rename it before {computation.name} reads it"
        raise ValueError(msg)

    needed = {KEY: key} if declared.id is None else {KEY: key, _ID: column_of(frame, declared.id)}
    named = [(what, name) for what, column in needed.items() if (name := _plain(column, frame)) is not None]
    more = [_cast(column, frame).alias(what) for what, column in needed.items() if what not in dict(named)]
    return Read(frame, key, declared.event_time, more, named)


def _plain(column: Column, frame: DataFrame) -> str | None:
    """Return which column of the frame an expression is; None for one that is made of columns, or has its name in common with another one."""
    [found] = items(frame.select(column)._jdf.queryExecution().analyzed().projectList())
    if found.getClass().getSimpleName() != "AttributeReference":
        return None
    # Spark gives it the letters that it was asked by, which may be others than the column's.
    same = [each for each in frame.columns if each.lower() == str(found.name()).lower()]
    return same[0] if len(same) == 1 else None


def _by_label(computation: Computation, frames: Frames) -> dict[str, DataFrame]:
    """Return the frames by what their inputs are called. Raises ValueError and TypeError."""
    labels = [each.label for each in computation.inputs]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        msg = f"two inputs of {computation.name} are called {twice}: give one of them another name by which it is told from the other, Input({twice!r}, alias=NAME, ...)"
        raise ValueError(msg)
    if not isinstance(frames, Mapping):
        if len(labels) > 1:
            msg = f"{computation.name} has the inputs {', '.join(labels)}, and one frame was given: pass one for each, as {{{labels[0]!r}: FRAME, {labels[1]!r}: FRAME}}"
            raise TypeError(msg)
        return {labels[0]: frames}
    missing = [label for label in labels if label not in frames]
    unknown = [str(label) for label in frames if label not in labels]
    if missing or unknown:
        wrong = [f"no frame was given for {', '.join(missing)}"] if missing else []
        wrong += [f"it has no input {', '.join(unknown)}"] if unknown else []
        msg = f"{computation.name} reads {', '.join(labels)}: {', and '.join(wrong)}. Pass one frame for each, by what its input is called"
        raise ValueError(msg)
    return {label: frames[label] for label in labels}


def _called(computation: Computation, declared: Input) -> str:
    """Return the input in words; the computation alone, if it is the only one."""
    return computation.name if len(computation.inputs) == 1 else f"the input {declared.label} of {computation.name}"


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


def _cast(column: Column, rows: DataFrame) -> Column:
    return _whole(column, _kind(column, rows))


def _whole(column: Column, kind: DataType) -> Column:
    """Return a column of whole numbers as the longest ones."""
    return column.cast("long") if kind.typeName() in _WHOLE else column


def _kind(column: Column, rows: DataFrame) -> DataType:
    return rows.select(column).schema.fields[0].dataType


def _check_frame(called: str, declared: Input, frame: DataFrame, key: Column) -> None:
    """Refuse a frame that has not what is declared.

    Raises ValueError, TypeError, and what Spark does for a column that is not there.
    """
    event_micros(frame, declared.event_time)
    named: Sequence[tuple[str, Column]] = [("key", key)]
    if declared.id is not None:
        named = [*named, ("id", column_of(frame, declared.id))]
    for what, column in named:
        kind = _kind(column, frame)
        if kind.typeName() not in _KINDS:
            msg = f"the {what} of {called} is of {kind.simpleString()}; take text, bytes or a whole number: cast it, as by F.col(...).cast('string')"
            raise TypeError(msg)


def _check_together(computation: Computation, frames: Mapping[str, DataFrame], keys: Sequence[Column]) -> None:
    """Refuse frames that one query cannot read, or whose keys differ.

    Raises ValueError and TypeError.
    """
    first = next(iter(frames.values()))
    for label, frame in frames.items():
        called = f"the frame of the input {label} of {computation.name}"
        if not frame.isStreaming:
            msg = f"{called} is not streaming, so it has no batches: read it with spark.readStream"
            raise ValueError(msg)
        if frame.sparkSession is not first.sparkSession:
            msg = f"{called} is of another Spark session than the first: read all of them in one"
            raise ValueError(msg)
        names = [name.lower() for name in frame.columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            msg = f"{called} has the column {twice} twice, large and small letters being the same: rename one"
            raise ValueError(msg)
    kinds = [_kind(_cast(key, frame), frame) for key, frame in zip(keys, frames.values(), strict=True)]
    for label, kind in zip(frames, kinds, strict=True):
        if kind != kinds[0]:
            msg = (
                f"the keys of the inputs {next(iter(frames))} and {label} of {computation.name} are of {kinds[0].simpleString()} and {kind.simpleString()}: "
                "one key would never meet the other. Cast one of them in key="
            )
            raise TypeError(msg)


# -- in the executors ------------------------------------------------------------------------------


class _Columns(dict[str, list[Any]]):
    """Columns as lists of Python's values."""

    def __init__(self, rows: pa.Table) -> None:
        super().__init__()
        self._rows = rows
        self.names: Sequence[str] = rows.column_names

    def __missing__(self, name: str) -> list[Any]:
        values: list[Any] = self._rows[column_named(name, self.names)].to_pylist()
        self[name] = values
        return values


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


def parts(inputs: Sequence[Input], rows: pa.Table) -> Iterator[tuple[Input, NDArray[np.int64], pa.Table, str]]:
    """Yield for each input the places of its rows, a table of them with the columns of its frame, and the name of the column of ids in ``rows``."""
    import pyarrow as pa

    if len(inputs) == 1:
        own = [name for name in rows.column_names if name not in _OWN]
        yield inputs[0], np.arange(rows.num_rows), rows.select(own), _ID
        return
    origins = np.asarray(rows[_INPUT])
    for place, declared in enumerate(inputs):
        at = np.flatnonzero(origins == place)
        structs = rows[_row_of(place)].take(pa.array(at)).combine_chunks()
        names = [field.name for field in structs.type]
        yield declared, at, pa.table(structs.flatten(), names), _id_of(place)


def records(
    inputs: Sequence[Input], rows: pa.Table, order: NDArray[np.int64], starts: NDArray[np.int64]
) -> list[list[Record]]:
    """Return the records of each key, whose rows stand in ``order`` and begin at ``starts``.

    O(rows).
    """
    import pyarrow as pa

    times, ordered = np.asarray(rows[TIME])[order], list[Record]()
    for declared, at, own, identity in parts(inputs, rows):
        columns, label = _Columns(own), declared.label
        ids = rows[identity].take(pa.array(at)).to_pylist() if identity in rows.column_names else [None] * len(at)
        rank = np.full(rows.num_rows, -1)
        rank[at] = np.arange(len(at))
        rank = rank[order]
        here = np.flatnonzero(rank >= 0)
        made = [
            Record(time, ids[i], _Row(columns, i), label)
            for time, i in zip(times[here].tolist(), rank[here].tolist(), strict=True)
        ]
        if len(inputs) == 1:
            ordered = made
        else:
            ordered = ordered or [Record(0)] * rows.num_rows
            for i, record in zip(here.tolist(), made, strict=True):
                ordered[i] = record
    return [ordered[start:end] for start, end in pairwise([*starts.tolist(), len(ordered)])]


def waiting(inputs: Sequence[Input], rows: pa.Table) -> pa.DataType:
    """Return the type in which records wait, see :class:`~lowwater_pipeline.computation.keys.Form`."""
    import pyarrow as pa

    told: dict[str, list[tuple[str, pa.DataType]]] = {}
    for declared, _, own, identity in parts(inputs, rows.slice(0, 0)):
        row = pa.struct([each.remove_metadata() for each in own.schema])
        kind = rows.schema.field(identity).type if identity in rows.column_names else pa.null()
        told[declared.label] = [("id", kind), ("row", row)]
    timestamp = ("timestamp", pa.int64())
    if len(inputs) == 1:
        return pa.list_(pa.struct([timestamp, *told[inputs[0].label]]))
    of = pa.struct([(label, pa.struct(fields)) for label, fields in told.items()])
    return pa.list_(pa.struct([timestamp, ("input", pa.string()), ("of", of)]))


def checked(computation: Computation, rows: pa.Table, named: Sequence[tuple[str, str]] = ()) -> pa.Table:
    """Return the rows in one piece, with all that is needed, and times in UTC; ``named`` as in :class:`Read`. Raises ValueError for a row without key, time or id."""
    import pyarrow as pa

    inputs = computation.inputs
    for what, name in named:
        column = rows[name]
        rows = rows.append_column(what, column.cast(pa.int64()) if pa.types.is_integer(column.type) else column)
    nulls = [name for name in rows.column_names if name in (KEY, TIME, _ID) and rows[name].null_count]
    nulls += [name for name in map(_id_of, range(len(inputs))) if name in rows.column_names]
    for declared, at, _, identity in parts(inputs, rows) if nulls else ():
        for name, what, said in (
            (KEY, "key", declared.key),
            (TIME, "event time", declared.event_time),
            (identity, "id", declared.id),
        ):
            count = rows[name].take(pa.array(at)).null_count if name in nulls else 0
            if count:
                msg = (
                    f"{count} of {len(at)} rows of {_called(computation, declared)} have no {what} ({said or 'an expression'}). Give each record one, or filter these rows "
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
