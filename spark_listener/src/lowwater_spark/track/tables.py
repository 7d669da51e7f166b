"""The state of a function of ``batch.stateful``, a table, in segments: what the function returns as it was given is linked, and the rest is written.

A function has the whole table of its range, since that is what its meaning needs: which rows are due, and what the range holds at the least, it alone knows. But a table is made of pieces, and ``pa.concat_tables([state, new])``
has the pieces of the state where they were in memory. So what has stayed is seen without comparing rows, and a function that appends pays for what it appends.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.track.segments import FreshSegment, NextSegments, Segment, Segments, load

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TABLE", "read_table", "split_table", "where"]

TABLE: Final = 0x7461626C_01
"""The first thing noted of a range with the state of a function."""


def read_table(before: Segments) -> pa.Table | None:
    """Return the table that a range holds, None for nothing.

    In segments it is mapped into memory: a column that the function does not look at is not read.
    """
    import pyarrow as pa

    if not before.segments:
        return load(before.whole)
    return pa.concat_tables([before.read(each) for each in before.segments])


def split_table(table: pa.Table | None, state: pa.Table | None, before: Segments) -> NextSegments:
    """Return a table as segments; ``state`` is what :func:`read_table` has returned of those before. O(rows that are not the state's, and now and then what is merged).

    Its pieces that are the state's, in whatever order, stay. A piece beside a new one that is less than twice as large is merged with it, so that there are few.
    """
    import pyarrow as pa

    if table is None or not table.num_rows:
        return NextSegments(())
    if table is state and before.segments:
        return NextSegments(before.segments, (TABLE,))
    kept: dict[Any, Segment] = {}
    # A file has one dictionary for each column.
    whole = any(word in str(kind) for kind in table.schema.types for word in ("dictionary<", "extension<"))
    if state is not None and before.segments and not whole and table.schema.equals(state.schema, check_metadata=True):
        kept = {where(piece): each for piece, each in zip(state.to_batches(), before.segments, strict=True)}
    pieces: list[Segment | pa.Table] = []
    for piece, batches in groupby(
        filter(len, table.to_batches()), lambda batch: kept.pop(where(batch), None) if kept else None
    ):
        _push(pieces, pa.Table.from_batches(batches) if piece is None else piece, before)
    if whole:
        [segment] = pieces
        assert not isinstance(segment, Segment)
        return NextSegments([FreshSegment(segment.unify_dictionaries())], (TABLE,))
    found: list[Segment | FreshSegment] = []
    for each in pieces:
        # Texts of more than two gigabytes do not go into one piece.
        if isinstance(each, Segment):
            found.append(each)
        else:
            found += [FreshSegment(pa.Table.from_batches([one])) for one in each.combine_chunks().to_batches()]
    return NextSegments(found, (TABLE,))


def _push(pieces: list[Segment | pa.Table], piece: Segment | pa.Table, before: Segments) -> None:
    """Add a piece, merged with those at the end that are not much larger, when one of the two is new."""
    import pyarrow as pa

    def read(each: Segment | pa.Table) -> pa.Table:
        return before.read(each) if isinstance(each, Segment) else each

    while pieces and _belong(pieces[-1], piece):
        piece = pa.concat_tables([read(pieces.pop()), read(piece)])
    pieces.append(piece)


def _belong(one: Segment | pa.Table, other: Segment | pa.Table) -> bool:
    if isinstance(one, Segment):
        return not isinstance(other, Segment) and one.rows < 2 * other.num_rows
    return not isinstance(other, Segment) or other.rows < 2 * one.num_rows


def where(batch: pa.RecordBatch) -> Any:
    """Return where the data of a piece lie: two with the same schema that lie in the same place are the same, as long as both are alive."""
    return batch.num_rows, tuple(_lies(column) for column in batch.columns)


def _lies(array: Any) -> Any:
    import pyarrow as pa

    kind = array.type
    buffers = tuple(None if each is None else (each.address, each.size) for each in array.buffers())
    inner: tuple[Any, ...] = ()
    # Parts of a nested column have places of their own, of which its buffers say nothing.
    if pa.types.is_struct(kind):
        inner = tuple(_lies(array.field(i)) for i in range(kind.num_fields))
    elif pa.types.is_map(kind):
        inner = (_lies(array.keys), _lies(array.items))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = (_lies(array.values),)
    elif pa.types.is_nested(kind):
        inner = (object(),)  # not known: never the same
    return len(array), array.offset, buffers, inner
