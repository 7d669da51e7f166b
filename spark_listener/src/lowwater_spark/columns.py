"""Names of columns as users give them: one rule for stages, injectors, computations and frames.

A text that is the whole name of a column means that column, whatever characters it has. Any other
text is read as Spark reads it: in any case, in backticks, and with a dot before a field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from lowwater.core.text import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    ArrowMap = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

__all__ = [
    "as_timestamp",
    "check_column",
    "column_of",
    "columns_of",
    "event_micros",
    "map_in_arrow",
    "own_name",
    "quoted",
    "unquoted",
]


def quoted(name: str) -> str:
    """Return Spark's expression for the column with this name.

    >>> quoted("Event Time"), quoted("a.`b")
    ('`Event Time`', '`a.``b`')
    """
    return f"`{name.replace('`', '``')}`"


def unquoted(expression: str) -> str:
    """Return the name in the result of :func:`quoted`; any other expression unchanged.

    >>> unquoted(quoted("a.`b")), unquoted("a.b"), unquoted("`a`.`b`")
    ('a.`b', 'a.b', '`a`.`b`')
    """
    name = expression[1:-1].replace("``", "`")
    return name if quoted(name) == expression else expression


def own_name(columns: Sequence[str], text: str, *, any_case: bool = True) -> str | None:
    """Return the column that a text names, as the frame spells it; None unless it is exactly one.

    >>> columns = ["Event Time", "a.b", "k", "K"]
    >>> [own_name(columns, text) for text in ("event time", "`Event Time`", "a.b", "`a.b`", "k")]
    ['Event Time', 'Event Time', 'a.b', 'a.b', 'k']
    >>> [own_name(columns, text) for text in ("a", "A.B", "`k")]
    [None, None, None]
    """
    name = text if text in columns else unquoted(text)
    if name in columns or not any_case or (name == text and "." in text):
        return name if name in columns else None
    same = [column for column in columns if column.lower() == name.lower()]
    return same[0] if len(same) == 1 else None


def column_of(frame: DataFrame, text: str | Column) -> Column:
    """Return the column of a frame that a user has named or made.

    Only a whole name with a dot or a backtick costs a look at the frame.
    """
    from pyspark.sql import functions as sf

    if not isinstance(text, str):
        return text
    return sf.col(quoted(text) if set(text) & set(".`") and text in frame.columns else text)


def columns_of(frame: DataFrame, texts: Sequence[str | Column]) -> list[Column]:
    """Return :func:`column_of` for several names."""
    return [column_of(frame, text) for text in texts]


def check_column(frame: DataFrame, text: str | Column, argument: str) -> None:
    """Raise ValueError for a text that names no column, and for a column that no batch has.

    ``argument`` is the name of the argument that had it.
    """
    from pyspark.errors import AnalysisException

    if isinstance(text, str) and text in frame.columns:
        return
    try:
        frame.select(text)
    except AnalysisException as failure:
        if not isinstance(text, str) or "AMBIGUOUS" in (failure.getCondition() or ""):
            raise
        msg = f"{argument} is {text!r}, and the frame has no such column; its columns are {', '.join(frame.columns)}{did_you_mean(text, frame.columns)}"
        raise ValueError(msg) from failure
    if "_metadata" in str(text):
        _check_hidden(frame, text, argument)


def _check_hidden(frame: DataFrame, column: str | Column, argument: str) -> None:
    """Raise ValueError for the hidden column of files: the streaming frame has it, no batch has."""
    from pyspark.errors import AnalysisException

    try:
        frame.sparkSession.createDataFrame([], frame.schema).select(column)
    except AnalysisException as failure:
        msg = (
            f"{argument} is {column!r}, and batches do not have the hidden column _metadata: read the frame with "
            '.select("*", "_metadata.file_name"), and use its column "file_name"'
        )
        raise ValueError(msg) from failure


_TO_TIMESTAMP: Final = {
    "timestamp_ntz": 'use {column}.cast("timestamp"), which reads it in the time zone of the session',
    "date": 'use {column}.cast("timestamp"), the midnight in the time zone of the session',
    "string": "use sf.to_timestamp({column}, \"yyyy-MM-dd'T'HH:mm:ssXXX\"), with the format of the texts",
    "struct": 'use a field of it, such as sf.col("{name}.start") of a window',
    **dict.fromkeys(
        ("long", "integer"),
        "use sf.timestamp_micros({column}), or timestamp_millis() or timestamp_seconds(), by the unit of the numbers",
    ),
}
"""Words that make a timestamp of a column, by the name of its type."""


def as_timestamp(name: str, kind: DataType) -> str:
    """Return what to write to get a timestamp from a column of another type."""
    words = _TO_TIMESTAMP.get(kind.typeName(), "use a timestamp column, for example sf.timestamp_micros(...)")
    return words.format(name=name, column=f'sf.col("{name}")')


def event_micros(frame: DataFrame, event_time: str | Column) -> Column:
    """Return a column of event times in microseconds.

    Raises TypeError when it is no timestamp with time zone.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.types import TimestampType

    # The schema of the frame, which PySpark keeps, has the type of a column that is given by a name
    # that occurs once. For any other column select() makes Spark analyse a plan, which with Spark
    # Connect is a call of the server.
    if isinstance(event_time, str) and event_time.isidentifier() and frame.schema.names.count(event_time) == 1:
        field = frame.schema[event_time]
    else:
        field = frame.select(column_of(frame, event_time)).schema.fields[0]
    if not isinstance(field.dataType, TimestampType):
        msg = (
            f"event_time {field.name} is of type {field.dataType.simpleString()}; an event time is a point on the time line: "
            f"{as_timestamp(field.name, field.dataType)}"
        )
        raise TypeError(msg)
    return sf.unix_micros(column_of(frame, event_time))


def map_in_arrow(frame: DataFrame, function: ArrowMap, schema: StructType | str) -> DataFrame:
    """Return ``frame.mapInArrow(function, schema)`` for columns of any name.

    PySpark alone would take a dot in a name for a field.
    """
    names = frame.columns
    if not any(set(name) & set(".`") for name in names):
        return frame.mapInArrow(function, schema)

    def named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"_{place}" for place in range(len(names)))).mapInArrow(named, schema)
