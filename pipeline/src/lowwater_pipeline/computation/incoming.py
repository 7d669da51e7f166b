"""The frames of a computation's inputs as one frame, and the rows of a batch as records.

A single input keeps its columns and gets some beside them. Several inputs are united: each row is a
struct in a column of its input's own, so that inputs share no columns. One query reads them all: a
batch has rows of each, and its low watermark is the least of the inputs'.
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
from lowwater_spark.columns import column_of, event_micros
from lowwater_spark.track.plan.operators import items
from lowwater_spark.track.segments import MICROS as TIME
from lowwater_spark.track.segments import PLACE

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    Frames = DataFrame | Mapping[str, DataFrame]
    """The frame of the one input, or the frames of all inputs by label."""

__all__ = ["KEY", "PLACE", "TIME", "Read", "checked", "parts", "records", "united", "waiting"]

KEY: Final = "lowwater_key"
_ID: Final = "lowwater_id"
_INPUT: Final = "lowwater_input"
"""Column with the number of a row's input, when there are several inputs."""
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
    """One frame with the rows of all inputs, and the columns by which a stage reads it."""

    frame: DataFrame
    key: Column | str
    event_time: str
    more: Sequence[Column] = ()
    """Columns that :func:`records` needs beside those of the frame."""
    named: Sequence[tuple[str, str]] = ()
    """Needed columns that are plain columns of the frame, as (name here, name in the frame): they
    need not be sent twice."""


def united(computation: Computation, frames: Frames) -> Read:
    """Return one frame with what a computation reads.

    Raises ValueError and TypeError, naming what to change, for frames that do not fit the declared
    inputs; what Spark raises for a missing column.
    """
    from pyspark.sql import functions as sf

    by_label = _by_label(computation, frames)
    inputs = computation.inputs
    keys = [_key(source) for source in inputs]
    for source, key in zip(inputs, keys, strict=True):
        try:
            _check_frame(_called(computation, source), source, by_label[source.label], key)
        except Exception as failure:
            if len(inputs) > 1:
                failure.add_note(f"in {_called(computation, source)}")
            raise
    if len(inputs) == 1:
        return _alone(computation, inputs[0], by_label[inputs[0].label], keys[0])
    _check_together(computation, by_label, keys)
    schemas = [by_label[source.label].schema for source in inputs]
    ids = [
        None if source.id is None else _kind(column_of(by_label[source.label], source.id), by_label[source.label])
        for source in inputs
    ]

    def selection(place: int) -> DataFrame:
        declared, frame = inputs[place], by_label[inputs[place].label]
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

    frame = reduce(lambda before, after: before.union(after), [selection(place) for place in range(len(inputs))])
    return Read(frame, KEY, _EVENT_TIME)


def _alone(computation: Computation, declared: Input, frame: DataFrame, key: Column) -> Read:
    """Return the frame of a single input, which keeps its columns."""
    reserved = [name for name in frame.columns if name.lower() in (*_OWN, OUTPUT)]
    if reserved:
        msg = f"the frame has a column {reserved[0]} already; rename it before {computation.name} reads it"
        raise ValueError(msg)

    needed = {KEY: key} if declared.id is None else {KEY: key, _ID: column_of(frame, declared.id)}
    named = [(what, name) for what, column in needed.items() if (name := _plain(column, frame)) is not None]
    more = [_cast(column, frame).alias(what) for what, column in needed.items() if what not in dict(named)]
    return Read(frame, key, declared.event_time, more, named)


def _plain(column: Column, frame: DataFrame) -> str | None:
    """Return the column of the frame that an expression is; None for any other expression."""
    [reference] = items(frame.select(column)._jdf.queryExecution().analyzed().projectList())
    if reference.getClass().getSimpleName() != "AttributeReference":
        return None
    # Spark spells the name as the expression did; the column's own spelling may differ in case.
    same = [name for name in frame.columns if name.lower() == str(reference.name()).lower()]
    return same[0] if len(same) == 1 else None


def _by_label(computation: Computation, frames: Frames) -> dict[str, DataFrame]:
    """Return the frames by the labels of their inputs. Raises ValueError and TypeError."""
    labels = [source.label for source in computation.inputs]
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
    """Return the words for an input in messages; a single input goes by its computation."""
    return computation.name if len(computation.inputs) == 1 else f"the input {declared.label} of {computation.name}"


def _key(declared: Input) -> Column:
    from pyspark.sql import Column
    from pyspark.sql import functions as sf

    key: Any = declared.key
    if isinstance(key, str):
        return sf.expr(key)
    result = key() if callable(key) and not isinstance(key, Column) else None
    if not isinstance(result, Column):
        msg = f'key= is {key!r}: give SQL, as key="upper(name)", or a function that returns a column, as key=lambda: sf.upper("name"); executors that import the class cannot make a column'
        raise TypeError(msg)
    return result


def _cast(column: Column, rows: DataFrame) -> Column:
    return _whole(column, _kind(column, rows))


def _whole(column: Column, kind: DataType) -> Column:
    """Return a column of whole numbers as long; other columns unchanged."""
    return column.cast("long") if kind.typeName() in _WHOLE else column


def _kind(column: Column, rows: DataFrame) -> DataType:
    return rows.select(column).schema.fields[0].dataType


def _check_frame(called: str, declared: Input, frame: DataFrame, key: Column) -> None:
    """Raise ValueError or TypeError, or what Spark raises, for a frame that lacks a column."""
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
    """Raise ValueError or TypeError unless one query can read all frames, with keys of one type."""
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
    """Columns as lists of Python values, converted when first read."""

    def __init__(self, rows: pa.Table) -> None:
        super().__init__()
        self._rows = rows
        self.names: Sequence[str] = rows.column_names

    def __missing__(self, name: str) -> list[Any]:
        values: list[Any] = self._rows[column_named(name, self.names)].to_pylist()
        self[name] = values
        return values


class _Row(Mapping[str, Any]):
    """A row of a table; its columns are converted for all rows when one of them is read."""

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
    """Yield for each input its row numbers, its rows with its own columns, and its id column."""
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
    """Return each key's records; its rows are in ``order`` and begin at ``starts``. O(rows)."""
    import pyarrow as pa

    times, ordered = np.asarray(rows[TIME])[order], list[Record]()
    for declared, at, own, identity in parts(inputs, rows):
        columns, label = _Columns(own), declared.label
        ids = rows[identity].take(pa.array(at)).to_pylist() if identity in rows.column_names else [None] * len(at)
        rank = np.full(rows.num_rows, -1)
        rank[at] = np.arange(len(at))
        rank = rank[order]
        here = np.flatnonzero(rank >= 0)
        own_records = [
            Record(time, ids[i], _Row(columns, i), label)
            for time, i in zip(times[here].tolist(), rank[here].tolist(), strict=True)
        ]
        if len(inputs) == 1:
            ordered = own_records
        else:
            ordered = ordered or [Record(0)] * rows.num_rows
            for i, record in zip(here.tolist(), own_records, strict=True):
                ordered[i] = record
    return [ordered[start:end] for start, end in pairwise([*starts.tolist(), len(ordered)])]


def waiting(inputs: Sequence[Input], rows: pa.Table) -> pa.DataType:
    """Return the type of waiting records, see :class:`~lowwater_pipeline.computation.keys.Form`."""
    import pyarrow as pa

    content: dict[str, list[tuple[str, pa.DataType]]] = {}
    for declared, _, own, identity in parts(inputs, rows.slice(0, 0)):
        row = pa.struct([field.remove_metadata() for field in own.schema])
        kind = rows.schema.field(identity).type if identity in rows.column_names else pa.null()
        content[declared.label] = [("id", kind), ("row", row)]
    timestamp = ("timestamp", pa.int64())
    if len(inputs) == 1:
        return pa.list_(pa.struct([timestamp, *content[inputs[0].label]]))
    struct = pa.struct([(label, pa.struct(fields)) for label, fields in content.items()])
    return pa.list_(pa.struct([timestamp, ("input", pa.string()), ("of", struct)]))


def checked(computation: Computation, rows: pa.Table, named: Sequence[tuple[str, str]] = ()) -> pa.Table:
    """Return the rows in one chunk, with all needed columns, and times in UTC.

    ``named`` as in :class:`Read`. Raises ValueError for a row without key, time or id.
    """
    import pyarrow as pa

    inputs = computation.inputs
    for what, name in named:
        column = rows[name]
        rows = rows.append_column(what, column.cast(pa.int64()) if pa.types.is_integer(column.type) else column)
    nulls = [name for name in rows.column_names if name in (KEY, TIME, _ID) and rows[name].null_count]
    nulls += [name for name in map(_id_of, range(len(inputs))) if name in rows.column_names]
    for declared, at, _, identity in parts(inputs, rows) if nulls else ():
        for name, what, column_name in (
            (KEY, "key", declared.key),
            (TIME, "event time", declared.event_time),
            (identity, "id", declared.id),
        ):
            count = rows[name].take(pa.array(at)).null_count if name in nulls else 0
            if count:
                msg = (
                    f"{count} of {len(at)} rows of {_called(computation, declared)} have no {what} ({column_name or 'an expression'}). Give each record one, or filter these rows "
                    "out of the frame; nothing of the batch is lost meanwhile"
                )
                raise ValueError(msg)
    for i, field in enumerate(rows.schema):
        # The type of a timestamp has the session's time zone, which may have been another one in an
        # earlier run. In UTC the types of all runs are equal.
        kind = _in_utc(field.type)
        if kind != field.type:
            rows = rows.set_column(i, field.name, rows[field.name].cast(kind))
    return rows.combine_chunks()


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type in which every zone of a timestamp is UTC."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return kind if kind.tz in (None, "UTC") else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct(
            [field.with_type(_in_utc(field.type)) for field in (kind.field(i) for i in range(kind.num_fields))]
        )
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_in_utc(key.type)), item.with_type(_in_utc(item.type)))
    return kind
