"""A batch's productions as one table: a column with the output's name, and all outputs' columns.

A row is null in the columns of other outputs. So an output may get further columns in a later
release of a job, as the rows that a stage's update emits may: in the output, rows of earlier
batches have nulls there. A batch that was interrupted with emitted rows is committed first; until
then, StateStore.match refuses other columns.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from lowwater_pipeline.computation.turn import Production

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["OUTPUT", "Outputs", "column_of", "to_json"]

OUTPUT: Final = "lowwater_output"


def column_of(output: str, name: str) -> str:
    """Return the name, in the emitted table, of an output's column."""
    return f"{output}/{name}"


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of a computation, as a value that executors get."""

    computation: str
    columns: Mapping[str, Sequence[str]]
    """Column names of each output."""
    schema: pa.Schema
    """Schema of the emitted table: :data:`OUTPUT`, and the columns of each output."""

    def table(self, productions: Sequence[Production]) -> pa.Table | None:
        """Return productions as rows, None without any. O(productions).

        Raises ValueError, naming output and column, for a value that does not fit the column.
        """
        import pyarrow as pa

        parts = []
        for output in self.columns:
            rows = [row for name, row, _ in productions if name == output]
            if not rows:
                continue
            arrays: dict[str, pa.Array] = {field.name: pa.nulls(len(rows), field.type) for field in self.schema}
            arrays[OUTPUT] = pa.array([output] * len(rows), self.schema.field(OUTPUT).type)
            arrays |= {column_of(output, name): column for name, column in self.arrays(output, rows).items()}
            parts.append(pa.table(arrays, schema=self.schema))
        return pa.concat_tables(parts) if parts else None

    def arrays(self, output: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
        """Return the columns of one output's rows.

        Raises ValueError, naming output and column, for a value that does not fit the column.
        """
        return {
            name: self._column(
                output, name, self.schema.field(column_of(output, name)).type, [row[name] for row in rows]
            )
            for name in self.columns[output]
        }

    def _column(self, output: str, name: str, kind: pa.DataType, values: list[Any]) -> pa.Array:
        import pyarrow as pa

        what = f"column {name} of {self.computation}'s output {output}"
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            for value in values:
                if isinstance(value, datetime) and value.tzinfo is None:
                    msg = f"{what} got {value!r}, which names no moment without a time zone: give microseconds since the epoch, or an aware datetime"
                    raise ValueError(msg)
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as failure:
            msg = f"{what} is of {kind}, and a value is not ({failure}): convert it, or declare outputs = otherwise"
            raise ValueError(msg) from failure


def to_json(row: Mapping[str, Any]) -> str:
    """Return a row as JSON that Spark's from_json reads: times in ISO 8601, bytes in base64."""
    return json.dumps(row, default=_plain, separators=(",", ":"), ensure_ascii=False)


def _plain(value: object) -> str:
    """Return a value that JSON has no form for as text."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
