"""The stored keys of a range: pieces, which are tables sorted by place and never changed.

A newer piece hides older ones: of a key the row of the newest piece counts. A row that says *gone*
stands for a removed key. A batch writes a piece of its changed keys. While the last piece is
smaller than twice the new one, the two are merged, so that there are few pieces and a row is
written a few times in all. When less than half of all rows count, all pieces are merged.

Facts of a piece are readable without opening it: how many rows count, their least due times and
their least hold. These are exact, because a row that does not count must hold nothing back and ask
for no batch. A row that has stopped counting never counts again. So the times only grow, and a row
that stopped is looked at once.
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
"""Columns that a piece has only if one of its rows has a value there."""

_BLOCK: Final = 65_536
_FEW: Final = 256
"""Number of rows of a block that are tried first when a row that counts is looked for."""
_MANY: Final = 4096
_MOST_PIECES: Final = 16
"""Greatest number of pieces of a union of ranges. A single range has about as many pieces as its
number of rows has binary digits."""

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Form:
    """The format of stored keys; all pieces of a computation have the same."""

    key: pa.DataType
    """large_string, large_binary or int64."""
    length: int = 1
    """Length of the windows whose starts are used as stamps, microseconds."""
    waiting: pa.DataType | None = None
    """Type of the records that wait: a list of structs of ``timestamp``, ``id`` and ``row``. With
    several inputs the struct has ``timestamp``, ``input`` and ``of``, which holds id and row under
    the input's label. None when no record waits."""
    input: str | None = ""
    """Label of the input; None when there are several inputs."""

    def table(self, places: Sequence[int] | Places, keys: pa.Array, entries: Sequence[Kept]) -> pa.Table:
        """Return the rows of some keys, in their order. O(entries).

        Most keys have no timer, or one timer of the low watermark: its time and hold are the row's
        due time and hold, and its tag has a column. Other timers are in lists. A column without any
        value is left out.
        """
        import pyarrow as pa

        rows = len(entries)
        dues, walls, holds = [MAX] * rows, [MAX] * rows, [MAX] * rows
        tags: list[str | None] = [None] * rows
        timers: list[list[dict[str, Any]] | None] = [None] * rows
        for i, entry in enumerate(entries):
            low = entry.timers
            if entry.wall_timers or entry.waiting or len(low) > 1:
                dues[i], walls[i], holds[i] = entry.due, entry.wall, entry.hold(self.length)
                timers[i] = [
                    {"at": at, "tag": tag, "hold": hold, "wall": kind is not low}
                    for kind in (low, entry.wall_timers)
                    for (at, tag), hold in kind.items()
                ]
            elif low:
                [((dues[i], tags[i]), holds[i])] = low.items()
        timer = [("at", pa.int64()), ("tag", pa.string()), ("hold", pa.int64()), ("wall", pa.bool_())]
        columns = {
            PLACE: pa.array(places, pa.int64()),
            KEY: keys,
            GONE: pa.array([not entry for entry in entries], pa.bool_()),
            "state": pa.array([entry.state for entry in entries], pa.large_binary()),
            "tag": pa.array(tags, pa.string()),
            "timers": pa.array(timers, pa.list_(pa.struct(timer))),
            "due": pa.array(dues, pa.int64()),
            "wall": pa.array([None if wall == MAX else wall for wall in walls], pa.int64()),
            "hold": pa.array(holds, pa.int64()),
        }
        if self.waiting is not None:
            waiting = [[self._waits(record) for record in entry.waiting] for entry in entries]
            columns[WAITING] = pa.array(waiting, self.waiting)
        return _slim(pa.table(columns))

    def entries(self, table: pa.Table) -> list[Kept]:
        """Return the stored state of each row. O(rows)."""
        columns = {
            name: table[name].to_pylist() if name in table.column_names else [None] * table.num_rows
            for name in ("state", "tag", "due", "hold", "timers")
        }
        states: list[Kept] = []
        for state, tag, due, hold, timers in zip(*columns.values(), strict=True):
            entry = Kept(state, {} if tag is None else {(due, tag): hold}, {}, [])
            for timer in timers or ():
                (entry.wall_timers if timer["wall"] else entry.timers)[timer["at"], timer["tag"]] = timer["hold"]
            states.append(entry)
        if self.waiting is not None:
            for entry, waiting in zip(states, table[WAITING].to_pylist(), strict=True):
                entry.waiting = [self._waited(record) for record in waiting]
        return states

    def _waits(self, record: Record) -> dict[str, Any]:
        content = {"id": record.id, "row": dict(record.row)}
        if self.input is not None:
            return {"timestamp": record.timestamp, **content}
        return {"timestamp": record.timestamp, "input": record.input, "of": {record.input: content}}

    def _waited(self, stored: Mapping[str, Any]) -> Record:
        name = stored["input"] if self.input is None else self.input
        content = stored["of"][name] if self.input is None else stored
        return Record(stored["timestamp"], content["id"], _WaitedRow(content["row"]), name)


class _WaitedRow(dict[str, Any]):
    """Row of a record that waited for the low watermark. Column names match in any case."""

    def __missing__(self, name: str) -> Any:
        return self[column_named(name, [*self])]


def _slim(table: pa.Table) -> pa.Table:
    """Return a table without its optional columns that have no value."""
    return table.drop_columns(
        [name for name in _OPTIONAL if name in table.column_names and table[name].null_count == table.num_rows]
    )


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    """Return tables one after the other; a column that a table lacks is null there."""
    import pyarrow as pa

    return pa.concat_tables(tables, promote_options="default").combine_chunks()


class PieceFacts(NamedTuple):
    """Facts known without opening a piece. A row counts when no newer piece has its key."""

    live: int
    """Number of rows that count and are not gone."""
    due: int
    """Least low watermark at which a row that counts is due; MAX when none is."""
    wall: int
    """Least time of the clock at which a row that counts is due; MAX when none is."""
    hold: int
    """Least hold of a row that counts; MAX when there is none."""
    first: int
    """Least place of all rows."""
    last: int
    """Greatest place of all rows."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Keys that batches have changed, sorted by place."""

    rows: int
    facts: PieceFacts
    read: Callable[[], pa.Table]
    """Function that returns the table, in one chunk."""
    source: Any = None
    """Name under which the store has the piece; None while it is not stored."""

    @classmethod
    def of(cls, table: pa.Table) -> Piece:
        """Return the piece of a table that has rows, sorted by place, which all count. O(rows)."""
        table = table.combine_chunks()
        gone = _column(table, GONE)
        places = _column(table, PLACE)
        due, wall, hold = (int(_column(table, name).min(initial=MAX)) for name in _DUES)
        facts = PieceFacts(int((~gone).sum()), due, wall, hold, int(places[0]), int(places[-1]))
        return cls(table.num_rows, facts, lambda: table)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of numbers; a stored piece is mapped, not copied."""
        return _column(self.read(), name)

    def may_hold(self, places: Places) -> NDArray[np.bool_]:
        """Return which places lie between the piece's first and last. Nothing is read."""
        within: NDArray[np.bool_] = (places >= self.facts.first) & (places <= self.facts.last)
        return within

    def standing(self, rows: NDArray[np.int64]) -> int:
        """Return how many of these rows are not gone."""
        import pyarrow as pa
        import pyarrow.compute as pc

        return len(rows) - int(pc.sum(self.read()[GONE].take(pa.array(rows))).as_py() or 0)

    def find(self, places: Places, keys: pa.Array) -> NDArray[np.int64]:
        """Return the row of each key, -1 for a key that the piece lacks. O(keys x log rows)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = np.full(len(places), -1, np.int64)
        table = self.read()
        own_places = _column(table, PLACE)
        at = np.searchsorted(own_places, places)
        remaining = np.flatnonzero(at < len(own_places))
        remaining = remaining[own_places[at[remaining]] == places[remaining]]
        at = at[remaining]
        names = table[KEY].chunk(0)
        while len(remaining):  # runs once almost always: two keys seldom have one place
            same = np.asarray(pc.equal(names.take(pa.array(at)), keys.take(pa.array(remaining))))
            rows[remaining[same]] = at[same]
            remaining, at = remaining[~same], at[~same] + 1
            more = at < len(own_places)
            remaining, at = remaining[more], at[more]
            more = own_places[at] == places[remaining]
            remaining, at = remaining[more], at[more]
        return rows


class Refs(NamedTuple):
    """Places of keys: the number of the piece (-1 when no piece has the key) and the row in it."""

    pieces: NDArray[np.int64]
    rows: NDArray[np.int64]


class Changed(NamedTuple):
    """The keys that a batch changed, each once."""

    table: pa.Table
    """The keys' new rows, in any order."""
    refs: Refs
    """Where the keys were before, in the same order."""


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys of a range, as a value: each batch makes a new one."""

    form: Form
    pieces: Sequence[Piece] = field(default=())
    """Pieces from the oldest to the newest."""

    @classmethod
    def union(cls, ranges: Sequence[Keys]) -> Keys:
        """Return the keys of ranges that share no key, in a few pieces.

        O(pieces). If there are too many pieces, all but the largest are written anew as one.
        """
        if len(ranges) == 1:
            return ranges[0]
        # The pieces of a range stay in their order, in which newer ones hide older ones.
        pieces = list(heapq.merge(*(keys.pieces for keys in ranges), key=lambda piece: -piece.rows))
        if len(pieces) > _MOST_PIECES:
            small = [piece.read() for piece in pieces[_MOST_PIECES - 1 :]]
            pieces[_MOST_PIECES - 1 :] = [Piece.of(_merged(small[-1], small[:-1], last=False))]
        return replace(ranges[0], pieces=pieces)

    def find(self, places: Places, keys: pa.Array) -> Refs:
        """Return where keys are. Fastest when the places are sorted.

        O(keys x log rows) for each piece, newest first, until the key is found.
        """
        import pyarrow as pa

        refs = Refs(np.full(len(places), -1, np.int64), np.full(len(places), -1, np.int64))
        remaining = np.arange(len(places))
        for number in range(len(self.pieces) - 1, -1, -1):
            piece = self.pieces[number]
            near = remaining[piece.may_hold(places[remaining])]
            if not len(near):
                continue
            candidates = keys if len(near) == len(places) else keys.take(pa.array(near))
            rows = piece.find(places[near], candidates)
            hit = rows >= 0
            refs.pieces[near[hit]] = number
            refs.rows[near[hit]] = rows[hit]
            remaining = remaining[refs.pieces[remaining] < 0]
        return refs

    def due(self, low: int, now: int) -> Refs:
        """Return the keys that have a turn without a record: a time of theirs has come.

        O(rows) of the pieces in which a row is due: about a millisecond for a million rows.
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
        """Return the rows at some references, in that order; None for no references. O(refs)."""
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
        """Return the keys with all pieces in the declared form, and None.

        If a record waits in a piece of another form, returns the keys unchanged and the type of
        that piece's waiting records. O(rows) of pieces of another form, else O(pieces).
        """
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
        """Return the keys whose places are in [low, high), as one new piece. O(their rows)."""
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
        """Number of keys that have a stored state, timer or record."""
        return sum(piece.facts.live for piece in self.pieces)

    def least(self, name: str) -> int | None:
        """Return the least "due", "wall" or "hold", microseconds; None without one. O(pieces)."""
        least = min((getattr(piece.facts, name) for piece in self.pieces), default=MAX)
        return None if least == MAX else least

    def changed(self, changed: Changed, low: int, now: int) -> Keys:
        """Return the keys after a batch in which every key that was due had its turn.

        ``low`` and ``now`` are the batch's low watermark and clock. O(changed x log rows), and
        sometimes a merge. A piece is read through when its least value has changed: about a
        millisecond for a million rows.
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
        """Return the facts of a piece some rows of which have stopped to count."""
        facts, piece = self.pieces[number].facts, self.pieces[number]
        least = {}
        for name, passed in (("due", low), ("wall", now), ("hold", None)):
            value = int(getattr(facts, name))
            if value != MAX and bool((piece.column(name)[hidden] == value).any()):
                floor = value if passed is None else max(value, min(passed + 1, MAX))
                value = self._least_live(number, name, floor, hidden)
            least[name] = value
        return facts._replace(live=live, **least)

    def _least_live(self, number: int, name: str, floor: int, hidden: NDArray[np.int64]) -> int:
        """Return the least value >= ``floor`` of a column, in the rows of a piece that count.

        ``hidden``, sorted, are the rows that stop counting with this batch.
        """
        values = self.pieces[number].column(name)
        # First look for ``floor`` itself: usually many rows have that value, and one of the first
        # of them counts.
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
        """Return which rows count: no newer piece has the key. O(rows x log newer pieces' rows)."""
        import pyarrow as pa

        live = np.ones(len(rows), np.bool_)
        facts = self.pieces[number].facts
        newer = [
            piece
            for piece in self.pieces[number + 1 :]
            if piece.facts.first <= facts.last and facts.first <= piece.facts.last
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
    """Return the order by place, key, then ``more``, and where new keys begin. O(n log n)."""
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
    # If two keys have one place, the order by place alone may mix their rows: sort by key as well.
    if (other_key & ~other_place).any():
        named = {"place": pa.array(places), "key": keys, **{f"{i}": pa.array(values) for i, values in enumerate(more)}}
        table = pa.table({**named, "row": pa.array(np.arange(len(places)))})
        # The row number comes last, so that rows equal in all other columns keep their order.
        order = np.asarray(pc.sort_indices(table, [(name, "ascending") for name in table.column_names]), np.int64)
        other_place, other_key = differ(order)
    first[1:] = other_place | other_key
    return order, first


def _as_declared(read: Callable[[], pa.Table], waiting: pa.DataType | None) -> pa.Table:
    """Return a piece in which no record waits, with the declared type of waiting records."""
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

    With ``last`` there are no older pieces, so rows that say *gone* are dropped. O(n log n).
    """
    import pyarrow as pa

    table = _together([newest, *reversed(older)])
    order, first = sorted_keys(_column(table, PLACE), table[KEY].chunk(0))
    order = order[first]
    if last:
        order = order[~_column(table, GONE)[order]]
    return _slim(table.take(pa.array(order)))


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a column of numbers; missing values are MAX."""
    if name not in table.column_names:
        return np.full(table.num_rows, MAX)
    column = table[name].fill_null(MAX) if table[name].null_count else table[name]
    if not column.num_chunks:
        return np.zeros(0, np.int64)
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers
