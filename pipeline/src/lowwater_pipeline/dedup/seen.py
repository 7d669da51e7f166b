"""The ids that a key range remembers, in pieces that are never changed: sorted tables, each of the ids of one slice.

A slice is an interval of event time. A copy of a record has the event time of the original, or one that is as near as the slack allows, so an id is looked for only in the pieces whose times are
as near to its own, and in none that is surely without it (:mod:`~lowwater_pipeline.dedup.bloom`). A piece whose greatest time is below what is forgotten goes as a whole. The others may have ids below that: none of those decides
anything, nor does one that was pushed out.

Slices are the narrower the nearer they were to the end of the memory when their ids came: an eighth of that distance at most. So what stays longer than it has to is an eighth at most, a
window of any length has a few dozen slices, and nobody has to say how wide one is. Windows by size have slices by arrival instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowwater.watermark import MAX, MIN
from lowwater_pipeline.dedup.bloom import Hashes, bloom, hashed, is_bloom, perhaps_in

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Looks", "Newcomers", "Piece", "Seen"]

HASH, ID, TIME, ARRIVAL = "hash", "id", "micros", "arrival"

_NARROWEST: Final = 20
"""Slices are two to this many microseconds wide at least: a second."""
_PARTS: Final = 3
"""And two to this many in the distance at which they begin."""
_FACTOR: Final = 4
"""A piece that is not so many times as large as what comes to its slice is merged with it. A
smaller factor has more pieces, a larger one merges more."""


class Looks(NamedTuple):
    """Looks of a row into a piece that has a filter."""

    asked: int = 0
    passed: int = 0
    """The filter did not exclude it."""
    found: int = 0


class PieceFacts(NamedTuple):
    """What is known of a piece without opening it. Micros, and numbers of arrivals."""

    least: int
    greatest: int
    """Event times in it."""
    first: int
    last: int
    """Arrivals in it."""
    slice: int
    """What names its slice."""
    size: int
    """Bytes, its filter included; about."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the ids, sorted by their hashes."""

    rows: int
    facts: PieceFacts
    read: Callable[[], pa.Table]
    """Returns the table: hash, id, event time in microseconds, number of the arrival."""
    filter: Callable[[], bytes]
    """Returns its filter, empty when there is none."""
    source: Any = None
    """By what a store knows it; None: it is new."""

    @classmethod
    def of(cls, table: pa.Table, slice_: int, *, filters: bool) -> Piece:
        """Return the piece of a slice that has these ids. O(n log n)."""
        table = table.take(np.argsort(table[HASH].to_numpy(), kind="stable")).combine_chunks()
        times, arrivals = _numbers(table, TIME), _numbers(table, ARRIVAL)
        data = bloom(_numbers(table, HASH)) if filters else b""
        facts = PieceFacts(
            int(times.min()),
            int(times.max()),
            int(arrivals.min()),
            int(arrivals.max()),
            slice_,
            table.nbytes + len(data),
        )
        return cls(table.num_rows, facts, lambda: table, lambda: data)

    def gone(self, floor: int, since: int) -> bool:
        """Return whether all of it is forgotten."""
        return self.facts.greatest < floor or self.facts.last < since

    def whole(self, floor: int, since: int) -> bool:
        """Return whether nothing of it is forgotten."""
        return self.facts.least >= floor and self.facts.first >= since

    def live(self, floor: int, since: int) -> NDArray[np.bool_]:
        """Return which of its ids are remembered. O(rows)."""
        table = self.read()
        return (_numbers(table, TIME) >= floor) & (_numbers(table, ARRIVAL) >= since)

    def has(self, ids: pa.Array, hashes: Hashes, floor: int, since: int) -> NDArray[np.bool_]:
        """Return which of the ids are in it and remembered. O(ids x log rows)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = self.read()
        held, times, arrivals = (_numbers(table, name) for name in (HASH, TIME, ARRIVAL))
        found = np.zeros(len(ids), np.bool_)
        at, end = np.searchsorted(held, hashes, "left"), np.searchsorted(held, hashes, "right")
        left = np.flatnonzero(at < end)
        at, end = at[left], end[left]
        while len(left):  # almost always once: two ids seldom have one hash
            same = np.asarray(pc.equal(table[ID].chunk(0).take(pa.array(at)), ids.take(pa.array(left))))
            same &= (times[at] >= floor) & (arrivals[at] >= since)
            found[left[same]] = True
            more = ~same & (at + 1 < end)
            left, at, end = left[more], at[more] + 1, end[more]
        return found


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Ids that are not remembered, in the order in which they count as arrived."""

    ids: pa.Array
    times: NDArray[np.int64]
    """Micros."""


@dataclass(frozen=True, slots=True)
class Seen:
    """All ids that a key range remembers, and what it forgets by.

    A value: each batch makes the next one.
    """

    pieces: Sequence[Piece] = field(default=())
    """Those of a slice in the order in which they were made, each at least four times as large as
    the next."""
    floor: int = MIN
    """Ids below this event time were forgotten."""
    highest: int = MIN
    """Rows below it were called late."""
    arrivals: int = 0
    """How many ids have come so far; so the number of the next one."""
    since: int = 0
    """Ids that came before this one were pushed out."""
    kind: int = -1
    """Of what type the ids are: text, bytes or integers; -1: none has come."""

    @property
    def facts(self) -> tuple[int, ...]:
        """What is kept of it beside the pieces."""
        return self.floor, self.highest, self.arrivals, self.since, self.kind

    @property
    def size(self) -> int:
        """Bytes of the pieces, about."""
        return sum(piece.facts.size for piece in self.pieces)

    def known(
        self, ids: pa.Array, hashes: Hashes, times: NDArray[np.int64], floor: int, apart: int | None
    ) -> tuple[NDArray[np.bool_], Looks]:
        """Return which ids are remembered, and how the filters did.

        O(ids x pieces that may have them).

        ``apart``: how far from its original's a copy's event time may be, microseconds; None:
        anywhere.
        """
        import pyarrow as pa

        known = np.zeros(len(ids), np.bool_)
        asked = passed = hits = 0
        for piece in self.pieces:
            if piece.gone(floor, self.since):
                continue
            asks = ~known
            if apart is not None:
                least, greatest = max(MIN, piece.facts.least - apart), min(MAX, piece.facts.greatest + apart)
                asks &= (times >= least) & (times <= greatest)
            looked = np.flatnonzero(asks)
            if not len(looked):
                continue
            filter_ = piece.filter()
            filtered = is_bloom(filter_, piece.rows)
            if filtered:
                asked += len(looked)
                looked = looked[perhaps_in(filter_, hashes[looked])]
            if not len(looked):
                continue
            found = looked[piece.has(ids.take(pa.array(looked)), hashes[looked], floor, self.since)]
            known[found] = True
            if filtered:
                passed, hits = passed + len(looked), hits + len(found)
        return known, Looks(asked, passed, hits)

    def remembered(self, floor: int) -> int:
        """Return how many ids are remembered.

        O(pieces, and the ids of those of which some are forgotten).
        """
        return sum(
            piece.rows if piece.whole(floor, self.since) else int(piece.live(floor, self.since).sum())
            for piece in self.pieces
            if not piece.gone(floor, self.since)
        )

    def joined(self, new: Newcomers, floor: int, each: int = 0, *, filters: bool) -> Seen:
        """Return what is remembered with these.

        ``each``: so many arrivals to a slice, 0 for slices of event time. O(new, and now and then
        what is merged).
        """
        import pyarrow as pa

        numbers = np.arange(self.arrivals, self.arrivals + len(new.ids))
        slices = numbers // each * each if each else self._slices(new.times)
        columns = {HASH: hashed(new.ids), ID: new.ids, TIME: new.times, ARRIVAL: numbers}
        table = pa.table({name: pa.array(column) for name, column in columns.items()})
        pieces = list(self.pieces)
        for slice_ in np.unique(slices).tolist():
            added = table.filter(pa.array(slices == slice_))
            own = [piece for piece in pieces if piece.facts.slice == slice_]
            while own and own[-1].rows < _FACTOR * added.num_rows:
                piece = own.pop()
                pieces.remove(piece)
                held = piece.read()
                if not piece.whole(floor, self.since):
                    held = held.filter(pa.array(piece.live(floor, self.since)))
                added = pa.concat_tables([held, added])
            pieces.append(Piece.of(added, slice_, filters=filters))
        return replace(self, pieces=pieces, arrivals=self.arrivals + len(new.ids))

    def _slices(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slices of event times: where each begins, and added to it the power of two that is its width."""
        if not len(times):
            return times
        # As long as nothing is forgotten, from the oldest that there is.
        end = (
            min([int(times.min()), *(piece.facts.least for piece in self.pieces)]) if self.floor == MIN else self.floor
        )
        distance = times.view(np.uint64) - np.array(end).view(np.uint64)
        power = np.frexp(distance.astype(np.float64))[1].astype(np.int64) - 1 - _PARTS
        power = np.maximum(power, _NARROWEST)
        return (times >> power << power) + power

    def first_of(self, floor: int, over: int) -> int:
        """Return the number of the arrival before which there are ``over`` ids that are remembered.

        O(ids of the pieces with the oldest).
        """
        counted: list[NDArray[np.int64]] = []
        for piece in sorted(self.pieces, key=lambda each: each.facts.first):
            numbers = np.sort(np.concatenate([np.zeros(0, np.int64), *counted]))
            if len(numbers) > over and numbers[over] < piece.facts.first:
                break
            if not piece.gone(floor, self.since):
                counted.append(_numbers(piece.read(), ARRIVAL)[piece.live(floor, self.since)])
        numbers = np.sort(np.concatenate([np.zeros(0, np.int64), *counted]))
        return int(numbers[over]) if over < len(numbers) else self.arrivals

    def pushed_out(self, since: int, least: int) -> int:
        """Return how many ids at or above ``least`` are remembered now, and are not when those before ``since`` are forgotten. O(ids of their pieces)."""
        out = 0
        for piece in self.pieces:
            if piece.facts.first < since and not piece.gone(least, self.since):
                numbers = _numbers(piece.read(), ARRIVAL)[piece.live(least, self.since)]
                out += int((numbers < since).sum())
        return out

    def without_gone(self, floor: int) -> Seen:
        """Return it without the pieces of which nothing is remembered. O(pieces)."""
        return replace(self, pieces=[piece for piece in self.pieces if not piece.gone(floor, self.since)])


def _numbers(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a column of a piece, which is in one chunk, as it lies in memory."""
    found: NDArray[Any] = table[name].chunk(0).to_numpy()
    return found
