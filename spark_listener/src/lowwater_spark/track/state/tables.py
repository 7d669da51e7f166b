"""A function's state, a table, in segments: unchanged pieces are linked, and the rest is written.

A function gets the whole table of its range, since only it knows which rows are due. But a table is
made of pieces, and ``pa.concat_tables([state, new])`` keeps the state's pieces at their places in
memory. So unchanged pieces are recognised without comparing rows, and appending is cheap.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.track.segments import FreshSegment, NextSegments, Segment, Segments, load

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TABLE", "read_table", "split_table", "where"]

TABLE: Final = 0x7461626C_01
"""First fact of a range that has a function's state."""


def read_table(before: Segments) -> pa.Table | None:
    """Return the table that a range holds; None if it has no state.

    A table in segments is mapped into memory: unused columns are not read.
    """
    import pyarrow as pa

    if not before.segments:
        return load(before.whole)
    return pa.concat_tables([before.read(segment) for segment in before.segments])


def split_table(table: pa.Table | None, state: pa.Table | None, before: Segments) -> NextSegments:
    """Return a table as segments; ``state`` is the result of :func:`read_table` for those before.

    The state's pieces stay, in any order. A piece beside a new one that is less than twice as large
    is merged with it, so that there are few. O(new rows, and sometimes the merged ones).
    """
    import pyarrow as pa

    if table is None or not table.num_rows:
        return NextSegments(())
    if table is state and before.segments:
        return NextSegments(before.segments, (TABLE,))
    unchanged: dict[Any, Segment] = {}
    # An Arrow file has one dictionary a column: pieces with different ones cannot share a file. An
    # extension type may store a dictionary, or a nested column that where() does not look into. So
    # a table with one of the two is written whole, as one segment.
    whole = any(word in str(kind) for kind in table.schema.types for word in ("dictionary<", "extension<"))
    if state is not None and before.segments and not whole and table.schema.equals(state.schema, check_metadata=True):
        unchanged = {where(piece): part for piece, part in zip(state.to_batches(), before.segments, strict=True)}
    pieces: list[Segment | pa.Table] = []
    for piece, batches in groupby(
        filter(len, table.to_batches()), lambda batch: unchanged.pop(where(batch), None) if unchanged else None
    ):
        _push(pieces, pa.Table.from_batches(batches) if piece is None else piece, before)
    if whole:
        [segment] = pieces
        assert not isinstance(segment, Segment)
        return NextSegments([FreshSegment(segment.unify_dictionaries())], (TABLE,))
    segments: list[Segment | FreshSegment] = []
    for part in pieces:
        # write_segments() writes a segment as exactly one batch. combine_chunks() makes several of
        # a column with more than 2 GB of text: so each becomes a segment, or the write would fail.
        if isinstance(part, Segment):
            segments.append(part)
        else:
            segments += [FreshSegment(pa.Table.from_batches([one])) for one in part.combine_chunks().to_batches()]
    return NextSegments(segments, (TABLE,))


def _push(pieces: list[Segment | pa.Table], piece: Segment | pa.Table, before: Segments) -> None:
    """Add a piece; merge it with last pieces that are not much larger, if one of the two is new."""
    import pyarrow as pa

    def read(part: Segment | pa.Table) -> pa.Table:
        return before.read(part) if isinstance(part, Segment) else part

    while pieces and _belong(pieces[-1], piece):
        piece = pa.concat_tables([read(pieces.pop()), read(piece)])
    pieces.append(piece)


def _belong(one: Segment | pa.Table, other: Segment | pa.Table) -> bool:
    if isinstance(one, Segment):
        return not isinstance(other, Segment) and one.rows < 2 * other.num_rows
    return not isinstance(other, Segment) or other.rows < 2 * one.num_rows


def where(batch: pa.RecordBatch) -> Any:
    """Return where a piece's data are: live pieces of one schema with equal results are equal."""
    return batch.num_rows, tuple(_lies(column) for column in batch.columns)


def _lies(array: Any) -> Any:
    import pyarrow as pa

    kind = array.type
    buffers = tuple(None if buffer is None else (buffer.address, buffer.size) for buffer in array.buffers())
    inner: tuple[Any, ...] = ()
    # buffers() of a nested column does not show at which offsets its inner arrays begin: without
    # those, two different slices of one array would look equal, and the new one would be lost.
    if pa.types.is_struct(kind):
        inner = tuple(_lies(array.field(i)) for i in range(kind.num_fields))
    elif pa.types.is_map(kind):
        inner = (_lies(array.keys), _lies(array.items))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = (_lies(array.values),)
    elif pa.types.is_nested(kind):
        inner = (object(),)  # an unknown nested type: equal to no other piece, so written anew
    return len(array), array.offset, buffers, inner
