"""What a key range keeps of all its keys, in pieces that are never changed: tables sorted by the places of the keys, each newer than those before it.

Of a key the row of the newest piece counts, and one that says it is *gone* hides the older ones. A batch writes a piece of the keys that have changed. While the last piece is smaller than
twice the new one, the two are merged; so there are few, and a row is written a few times in all. When less than half of all rows count, all pieces are merged.

Of each piece is known, without reading it, how many rows count, and the least due times and the least hold among those. These are exact: a row that does not count holds nothing back and asks for no
batch. Rows of a piece stop counting and never begin again, so these numbers only grow, and a row that has stopped is looked at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowwater.watermark import MAX
from lowwater_pipeline.computation.computation import Record, column_named
from lowwater_pipeline.computation.turn import Kept

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Changed", "Form", "Keys", "Piece", "Refs", "sorted_keys"]

PLACE, KEY, GONE, WAITING = "place", "key", "gone", "waiting"
_DUES: Final = ("due", "wall", "hold")
_OPTIONAL: Final = ("state", "tag", "timers", "wall")
"""Columns that a piece has only if a row has something there."""

_BLOCK: Final = 65_536
_FEW: Final = 256
"""Rows of a block that are looked at first for one that counts."""
_MANY: Final = 4096
_MOST_PIECES: Final = 16
"""Of a union of ranges. Each range alone has about as many as its rows have binary digits."""

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Form:
    """How keys are kept: what is the same for all pieces."""

    key: pa.DataType
    """large_string, large_binary or int64."""
    length: int = 1
    """Of the windows by whose start is stamped, microseconds."""
    waiting: pa.DataType | None = None
    """Of the records that may wait: a list of structs of ``timestamp``, ``id`` and ``row``, or of
    several inputs of ``timestamp``, ``input`` and ``of``, which has id and row by the input. None:
    none waits."""
    input: str | None = ""
    """What the input is called; None: there are several."""

    def table(self, places: Sequence[int] | Places, keys: pa.Array, kept: Sequence[Kept]) -> pa.Table:
        """Return the rows of some keys, in that order. O(kept).

        Most keys have one timer, of the low watermark, or none: its time and its hold are those of
        the row, and its tag stands beside. Other timers are in lists. What no row has is no column.
        """
        import pyarrow as pa

        rows = len(kept)
        dues, walls, holds = [MAX] * rows, [MAX] * rows, [MAX] * rows
        tags: list[str | None] = [None] * rows
        timers: list[list[dict[str, Any]] | None] = [None] * rows
        for i, each in enumerate(kept):
            low = each.timers
            if each.wall_timers or each.waiting or len(low) > 1:
                dues[i], walls[i], holds[i] = each.due, each.wall, each.hold(self.length)
                timers[i] = [
                    {"at": at, "tag": tag, "hold": hold, "wall": kind is not low}
                    for kind in (low, each.wall_timers)
                    for (at, tag), hold in kind.items()
                ]
            elif low:
                [((dues[i], tags[i]), holds[i])] = low.items()
        timer = [("at", pa.int64()), ("tag", pa.string()), ("hold", pa.int64()), ("wall", pa.bool_())]
        columns = {
            PLACE: pa.array(places, pa.int64()),
            KEY: keys,
            GONE: pa.array([not each for each in kept], pa.bool_()),
            "state": pa.array([each.state for each in kept], pa.large_binary()),
            "tag": pa.array(tags, pa.string()),
            "timers": pa.array(timers, pa.list_(pa.struct(timer))),
            "due": pa.array(dues, pa.int64()),
            "wall": pa.array([None if wall == MAX else wall for wall in walls], pa.int64()),
            "hold": pa.array(holds, pa.int64()),
        }
        if self.waiting is not None:
            waiting = [[self._waits(one) for one in each.waiting] for each in kept]
            columns[WAITING] = pa.array(waiting, self.waiting)
        return _slim(pa.table(columns))

    def kept(self, table: pa.Table) -> list[Kept]:
        """Return what rows say. O(rows)."""
        columns = {
            name: table[name].to_pylist() if name in table.column_names else [None] * table.num_rows
            for name in ("state", "tag", "due", "hold", "timers")
        }
        found: list[Kept] = []
        for state, tag, due, hold, timers in zip(*columns.values(), strict=True):
            each = Kept(state, {} if tag is None else {(due, tag): hold}, {}, [])
            for one in timers or ():
                (each.wall_timers if one["wall"] else each.timers)[one["at"], one["tag"]] = one["hold"]
            found.append(each)
        if self.waiting is not None:
            for each, waiting in zip(found, table[WAITING].to_pylist(), strict=True):
                each.waiting = [self._waited(one) for one in waiting]
        return found

    def _waits(self, record: Record) -> dict[str, Any]:
        told = {"id": record.id, "row": dict(record.row)}
        if self.input is not None:
            return {"timestamp": record.timestamp, **told}
        return {"timestamp": record.timestamp, "input": record.input, "of": {record.input: told}}

    def _waited(self, kept: Mapping[str, Any]) -> Record:
        name = kept["input"] if self.input is None else self.input
        told = kept["of"][name] if self.input is None else kept
        return Record(kept["timestamp"], told["id"], _WaitedRow(told["row"]), name)


class _WaitedRow(dict[str, Any]):
    """The row of a record that has waited, by names as in any other row."""

    def __missing__(self, name: str) -> Any:
        return self[column_named(name, [*self])]


def _slim(table: pa.Table) -> pa.Table:
    """Return a table without the columns that may be missing and say nothing."""
    return table.drop_columns(
        [name for name in _OPTIONAL if name in table.column_names and table[name].null_count == table.num_rows]
    )


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    """Return tables one after the other, with nulls in columns that some do not have."""
    import pyarrow as pa

    return pa.concat_tables(tables, promote_options="default").combine_chunks()


class PieceFacts(NamedTuple):
    """What is known of a piece without opening it.

    Of its rows only those count that no newer piece has.
    """

    live: int
    """How many count, and are not gone."""
    due: int
    """The least low watermark at which one of them is due; MAX when none is."""
    wall: int
    """The same by the clock."""
    hold: int
    """The least hold; MAX when there is none."""
    first: int
    """The least place in it, of all rows."""
    last: int
    """The greatest."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The keys that batches have changed, sorted by place."""

    rows: int
    facts: PieceFacts
    read: Callable[[], pa.Table]
    """Returns the table, in one chunk."""
    source: Any = None
    """By what a store knows it; None: it is new."""

    @classmethod
    def of(cls, table: pa.Table) -> Piece:
        """Return the piece of a table with rows, sorted by place, of which all count. O(rows)."""
        table = table.combine_chunks()
        gone = _column(table, GONE)
        places = _column(table, PLACE)
        due, wall, hold = (int(_column(table, name).min(initial=MAX)) for name in _DUES)
        facts = PieceFacts(int((~gone).sum()), due, wall, hold, int(places[0]), int(places[-1]))
        return cls(table.num_rows, facts, lambda: table)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of numbers, mapped where the piece is."""
        return _column(self.read(), name)

    def may_hold(self, places: Places) -> NDArray[np.bool_]:
        """Return which places are between its first and its last. Nothing is read."""
        within: NDArray[np.bool_] = (places >= self.facts.first) & (places <= self.facts.last)
        return within

    def standing(self, rows: NDArray[np.int64]) -> int:
        """Return how many of these rows are not gone."""
        import pyarrow as pa
        import pyarrow.compute as pc

        return len(rows) - int(pc.sum(self.read()[GONE].take(pa.array(rows))).as_py() or 0)

    def find(self, places: Places, keys: pa.Array) -> NDArray[np.int64]:
        """Return the row of each key, -1 for one that is not in it. O(keys x log rows)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = np.full(len(places), -1, np.int64)
        table = self.read()
        held = _column(table, PLACE)
        at = np.searchsorted(held, places)
        left = np.flatnonzero(at < len(held))
        left = left[held[at[left]] == places[left]]
        at = at[left]
        names = table[KEY].chunk(0)
        while len(left):  # almost always once: two keys seldom have one place
            same = np.asarray(pc.equal(names.take(pa.array(at)), keys.take(pa.array(left))))
            found[left[same]] = at[same]
            left, at = left[~same], at[~same] + 1
            more = at < len(held)
            left, at = left[more], at[more]
            more = held[at] == places[left]
            left, at = left[more], at[more]
        return found


class Refs(NamedTuple):
    """Where keys are: the number of the piece, -1 for one that is nowhere, and the row in it."""

    pieces: NDArray[np.int64]
    rows: NDArray[np.int64]


class Changed(NamedTuple):
    """What a batch makes of the keys that had a turn, each once."""

    table: pa.Table
    """Their rows, in any order."""
    refs: Refs
    """Where they were, in the same order."""


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys of a range. A value: each batch makes the next one."""

    form: Form
    pieces: Sequence[Piece] = field(default=())
    """In the order in which they were made."""

    @classmethod
    def union(cls, ranges: Sequence[Keys]) -> Keys:
        """Return the keys of ranges that have none in common, in a few pieces.

        O(pieces); of many the rows of all but the largest are written anew.
        """
        if len(ranges) == 1:
            return ranges[0]
        # The pieces of a range stay in their order, in which newer ones hide what older ones say.
        pieces = list(heapq.merge(*(each.pieces for each in ranges), key=lambda piece: -piece.rows))
        if len(pieces) > _MOST_PIECES:
            small = [each.read() for each in pieces[_MOST_PIECES - 1 :]]
            pieces[_MOST_PIECES - 1 :] = [Piece.of(_merged(small[-1], small[:-1], last=False))]
        return replace(ranges[0], pieces=pieces)

    def find(self, places: Places, keys: pa.Array) -> Refs:
        """Return where keys are that are looked for, of sorted places best.

        O(keys x log rows), for each piece until it is found.
        """
        import pyarrow as pa

        found = Refs(np.full(len(places), -1, np.int64), np.full(len(places), -1, np.int64))
        left = np.arange(len(places))
        for number in range(len(self.pieces) - 1, -1, -1):
            piece = self.pieces[number]
            near = left[piece.may_hold(places[left])]
            if not len(near):
                continue
            asked = keys if len(near) == len(places) else keys.take(pa.array(near))
            rows = piece.find(places[near], asked)
            hit = rows >= 0
            found.pieces[near[hit]] = number
            found.rows[near[hit]] = rows[hit]
            left = left[found.pieces[left] < 0]
        return found

    def due(self, low: int, now: int) -> Refs:
        """Return the keys that have their turn without a record.

        O(rows) of the pieces in which one is due, a millisecond a million.
        """
        pieces, rows = [], []
        for number, piece in enumerate(self.pieces):
            facts = piece.facts
            due = np.zeros(0, np.int64)
            if facts.due <= low and facts.due != MAX:
                times = piece.column("due")
                due = np.flatnonzero((times >= facts.due) & (times <= low) & (times != MAX))
            if facts.wall <= now and facts.wall != MAX:
                times = piece.column("wall")
                more = np.flatnonzero((times >= facts.wall) & (times <= now) & (times != MAX))
                due = np.union1d(due, more)
            if len(due):
                due = due[self._live(number, due)]
                pieces.append(np.full(len(due), number))
                rows.append(due)
        if not rows:
            return Refs(np.zeros(0, np.int64), np.zeros(0, np.int64))
        return Refs(np.concatenate(pieces), np.concatenate(rows))

    def rows(self, refs: Refs) -> pa.Table | None:
        """Return the rows of keys that are somewhere, in that order; None for none. O(refs)."""
        import pyarrow as pa

        if not len(refs.rows):
            return None
        numbers = np.unique(refs.pieces)
        if len(numbers) == 1:
            return self.pieces[numbers[0]].read().take(pa.array(refs.rows)).combine_chunks()
        tables, order = [], []
        for number in numbers:
            at = np.flatnonzero(refs.pieces == number)
            tables.append(self.pieces[number].read().take(pa.array(refs.rows[at])))
            order.append(at)
        return _together(tables).take(pa.array(np.argsort(np.concatenate(order)))).combine_chunks()

    def kinds(self) -> set[pa.DataType]:
        """Return the types of the keys in the pieces."""
        return {piece.read().schema.field(KEY).type for piece in self.pieces}

    def as_declared(self) -> tuple[Keys, pa.DataType | None]:
        """Return the keys with all pieces in the form, and None; or the type of records that wait and are of another one. O(rows) of pieces of another form, else O(pieces)."""
        pieces = list(self.pieces)
        for number, piece in enumerate(pieces):
            table = piece.read()
            kind = table.schema.field(WAITING).type if WAITING in table.column_names else None
            if kind == self.form.waiting:
                continue
            if kind is not None:
                some = np.flatnonzero(table[WAITING].chunk(0).value_lengths().to_numpy(zero_copy_only=False) > 0)
                if self._live(number, some).any():
                    return self, kind
            pieces[number] = replace(piece, read=partial(_as_declared, piece.read, self.form.waiting))
        return replace(self, pieces=pieces), None

    def within(self, low: int, high: int) -> Keys:
        """Return the keys whose places are from one to before another, in one piece of their own, of which all rows count. O(rows of them)."""
        tables = []
        for piece in reversed(self.pieces):
            places = piece.column(PLACE)
            start, end = np.searchsorted(places, low), np.searchsorted(places, high - 1, side="right")
            if start < end:
                tables.append(piece.read().slice(start, end - start))
        merged = _merged(tables[0], tables[1:][::-1], last=True) if tables else None
        return replace(self, pieces=(Piece.of(merged),) if merged is not None and merged.num_rows else ())

    @property
    def count(self) -> int:
        """How many keys have something that is kept."""
        return sum(piece.facts.live for piece in self.pieces)

    def least(self, name: str) -> int | None:
        """Return the least "due", "wall" or "hold" of all keys, microseconds; None when there is none. O(pieces)."""
        least = min((getattr(piece.facts, name) for piece in self.pieces), default=MAX)
        return None if least == MAX else least

    def changed(self, changed: Changed, low: int, now: int) -> Keys:
        """Return the keys after a batch that ran with a low watermark and a clock: all that was due has had its turn.

        O(changed x log rows), and now and then what is merged. A piece is read through, a millisecond a million rows, when what was the least in it has changed.
        """
        if not changed.table.num_rows:
            return self
        pieces = list(self.pieces)
        hidden = {
            int(number): np.sort(changed.refs.rows[changed.refs.pieces == number])
            for number in np.unique(changed.refs.pieces)
            if number >= 0
        }
        size, first = changed.table.num_rows, len(pieces)
        while first and pieces[first - 1].rows < 2 * size:
            first -= 1
            size += pieces[first].rows
        live = [
            piece.facts.live - int((~piece.column(GONE)[hidden[number]]).sum())
            if number in hidden
            else piece.facts.live
            for number, piece in enumerate(pieces)
        ]
        if 2 * sum(live[:first]) < sum(piece.rows for piece in pieces[:first]):
            first = 0
        for number in range(first):
            if number in hidden:
                facts = self._facts(number, hidden[number], live[number], low, now)
                pieces[number] = replace(pieces[number], facts=facts)
        merged = _merged(changed.table, [piece.read() for piece in pieces[first:]], last=first == 0)
        fresh = [Piece.of(merged)] if merged.num_rows else []
        return replace(self, pieces=(*pieces[:first], *fresh))

    def _facts(self, number: int, hidden: NDArray[np.int64], live: int, low: int, now: int) -> PieceFacts:
        """Return the facts of a piece of which some rows do not count any more."""
        facts, piece = self.pieces[number].facts, self.pieces[number]
        least = {}
        for name, passed in (("due", low), ("wall", now), ("hold", None)):
            known = int(getattr(facts, name))
            if known != MAX and bool((piece.column(name)[hidden] == known).any()):
                floor = known if passed is None else max(known, min(passed + 1, MAX))
                known = self._least_live(number, name, floor, hidden)
            least[name] = known
        return facts._replace(live=live, **least)

    def _least_live(self, number: int, name: str, floor: int, hidden: NDArray[np.int64]) -> int:
        """Return the least of a column at or above ``floor`` in the rows of a piece that count; ``hidden``, sorted, are those that do not from now on."""
        values = self.pieces[number].column(name)
        # Most of the time many rows have the same, and one of the first of them counts.
        for start in range(0, len(values), _BLOCK):
            rows = start + np.flatnonzero(values[start : start + _BLOCK] == floor)[:_FEW]
            if len(hidden):
                rows = rows[hidden[np.minimum(np.searchsorted(hidden, rows), len(hidden) - 1)] != rows]
            if self._live(number, rows).any():
                return floor
        maybe = values.copy()
        maybe[values < floor] = MAX
        maybe[hidden] = MAX
        many = 0
        while (least := int(maybe.min(initial=MAX))) != MAX:
            if many < len(maybe):
                rows = np.argpartition(maybe, many)[: many + 1]
            else:
                rows = np.flatnonzero(maybe != MAX)
            rows = rows[maybe[rows] != MAX]
            alive = rows[self._live(number, rows)]
            if len(alive):
                return int(maybe[alive].min())
            maybe[rows] = MAX
            many = max(_MANY, 8 * many)
        return least

    def _live(self, number: int, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows of a piece no newer piece has. O(rows x log rows of the newer ones)."""
        import pyarrow as pa

        live = np.ones(len(rows), np.bool_)
        facts = self.pieces[number].facts
        newer = [
            each
            for each in self.pieces[number + 1 :]
            if each.facts.first <= facts.last and facts.first <= each.facts.last
        ]
        if not newer or not len(rows):
            return live
        table = self.pieces[number].read().select([PLACE, KEY]).take(pa.array(rows))
        places, keys = _column(table, PLACE), table[KEY].combine_chunks()
        keys = keys.chunk(0) if isinstance(keys, pa.ChunkedArray) else keys
        for piece in newer:
            near = np.flatnonzero(live & piece.may_hold(places))
            if len(near):
                live[near] = piece.find(places[near], keys.take(pa.array(near))) < 0
        return live


def sorted_keys(places: Places, keys: pa.Array, *more: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the order of rows by place, then key, then ``more``, and which of them begin another key in that order. O(n log n)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    order = np.lexsort((*reversed(more), places)) if more else np.argsort(places, kind="stable")
    first = np.ones(len(order), np.bool_)
    if len(order) < 2:
        return order, first

    def differ(order: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        ranked = keys.take(pa.array(order))
        return np.diff(places[order]) != 0, np.asarray(pc.not_equal(ranked[1:], ranked[:-1]))

    other_place, other_key = differ(order)
    if (other_key & ~other_place).any():  # two keys have one place
        named = {"place": pa.array(places), "key": keys, **{f"{i}": pa.array(each) for i, each in enumerate(more)}}
        table = pa.table({**named, "row": pa.array(np.arange(len(places)))})
        # By the row at last: rows that are equal in all of these keep their order.
        order = np.asarray(pc.sort_indices(table, [(name, "ascending") for name in table.column_names]), np.int64)
        other_place, other_key = differ(order)
    first[1:] = other_place | other_key
    return order, first


def _as_declared(read: Callable[[], pa.Table], waiting: pa.DataType | None) -> pa.Table:
    """Return a piece in which no record waits with the type of those that may."""
    import pyarrow as pa

    table = read()
    if WAITING in table.column_names:
        table = table.drop_columns([WAITING])
    if waiting is not None:
        none = pa.array(np.zeros(table.num_rows + 1, np.int32))
        table = table.append_column(
            WAITING, pa.ListArray.from_arrays(none, pa.array([], waiting.value_type)).cast(waiting)
        )
    return table


def _merged(newest: pa.Table, older: Sequence[pa.Table], *, last: bool) -> pa.Table:
    """Return the newest row of each key, sorted.

    With ``last`` nothing older is left, and keys that are gone go. O(n log n).
    """
    import pyarrow as pa

    table = _together([newest, *reversed(older)])
    order, first = sorted_keys(_column(table, PLACE), table[KEY].chunk(0))
    order = order[first]
    if last:
        order = order[~_column(table, GONE)[order]]
    return _slim(table.take(pa.array(order)))


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a column of numbers; what is missing in it is MAX."""
    if name not in table.column_names:
        return np.full(table.num_rows, MAX)
    column = table[name].fill_null(MAX) if table[name].null_count else table[name]
    if not column.num_chunks:
        return np.zeros(0, np.int64)
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found
