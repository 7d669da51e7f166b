"""The ids that a key range remembers, in pieces that never change: sorted tables, one slice each.

A slice is an interval of event time. A copy has the event time of its original, or one within the
slack. So an id is looked up only in pieces with times that near, and in none whose filter excludes
it (:mod:`~lowwater_pipeline.dedup.bloom`). A piece whose greatest time is below the floor is
dropped as a whole. Ids below the floor in other pieces decide nothing, nor do ids that were pushed
out.

The nearer to the floor a slice was when its ids came, the narrower it is: at most an eighth of that
distance. So ids stay at most an eighth too long, a window of any length has a few dozen slices, and
no setting is needed. Windows by size have slices by arrival instead.
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
"""Binary logarithm of a slice's least width in microseconds: about a second."""
_PARTS: Final = 3
"""Binary logarithm of the number of slices in the distance from the floor to a slice."""
_FACTOR: Final = 4
"""Ratio of sizes below which a piece is merged with new ids of its slice. A smaller factor has more
pieces, a larger one merges more."""


class Looks(NamedTuple):
    """Numbers of lookups of a row in a piece that has a filter."""

    lookups: int = 0
    passed: int = 0
    """Lookups that the filter did not exclude."""
    found: int = 0


class PieceFacts(NamedTuple):
    """Facts about a piece that are known without opening it."""

    least: int
    """Least event time, microseconds."""
    greatest: int
    """Greatest event time, microseconds."""
    first: int
    """Number of the first arrival."""
    last: int
    """Number of the last arrival."""
    slice: int
    """Name of the slice: its start plus its width's binary logarithm, or its first arrival."""
    size: int
    """Approximate bytes, filter included."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the ids, sorted by their hashes."""

    rows: int
    facts: PieceFacts
    read: Callable[[], pa.Table]
    """Function that returns the table: hash, id, event time in microseconds, arrival number."""
    filter: Callable[[], bytes]
    """Function that returns the filter; it is empty when there is none."""
    source: Any = None
    """Name under which the store has the piece; None while it is not stored."""

    @classmethod
    def of(cls, table: pa.Table, slice_: int, *, filters: bool) -> Piece:
        """Return a piece of a slice with these ids. O(n log n)."""
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
        """Return True when all of its ids are forgotten."""
        return self.facts.greatest < floor or self.facts.last < since

    def whole(self, floor: int, since: int) -> bool:
        """Return True when none of its ids is forgotten."""
        return self.facts.least >= floor and self.facts.first >= since

    def live(self, floor: int, since: int) -> NDArray[np.bool_]:
        """Return which of its ids are remembered. O(rows)."""
        table = self.read()
        return (_numbers(table, TIME) >= floor) & (_numbers(table, ARRIVAL) >= since)

    def has(self, ids: pa.Array, hashes: Hashes, floor: int, since: int) -> NDArray[np.bool_]:
        """Return which of some ids are in the piece and remembered. O(ids x log rows)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = self.read()
        own_hashes, times, arrivals = (_numbers(table, name) for name in (HASH, TIME, ARRIVAL))
        present = np.zeros(len(ids), np.bool_)
        at, end = np.searchsorted(own_hashes, hashes, "left"), np.searchsorted(own_hashes, hashes, "right")
        remaining = np.flatnonzero(at < end)
        at, end = at[remaining], end[remaining]
        while len(remaining):  # runs once almost always: two ids seldom have one hash
            same = np.asarray(pc.equal(table[ID].chunk(0).take(pa.array(at)), ids.take(pa.array(remaining))))
            same &= (times[at] >= floor) & (arrivals[at] >= since)
            present[remaining[same]] = True
            more = ~same & (at + 1 < end)
            remaining, at, end = remaining[more], at[more] + 1, end[more]
        return present


@dataclass(frozen=True, slots=True)
class Newcomers:
    """New ids, in the order in which they count as arrived."""

    ids: pa.Array
    times: NDArray[np.int64]
    """Event times, microseconds."""


@dataclass(frozen=True, slots=True)
class Seen:
    """All ids that a key range remembers, as a value: each batch makes a new one."""

    pieces: Sequence[Piece] = field(default=())
    """Pieces; those of one slice from old to new, each at least four times as large as the next."""
    floor: int = MIN
    """Event time below which ids were forgotten, microseconds."""
    highest: int = MIN
    """Greatest low watermark so far, microseconds: rows below it were late."""
    arrivals: int = 0
    """Number of ids that have come so far, so the number of the next one."""
    since: int = 0
    """Number of the first arrival that was not pushed out."""
    kind: int = -1
    """Type of the ids as a position in the sieve's list; -1 before the first id."""

    @property
    def facts(self) -> tuple[int, ...]:
        """The numbers that are stored beside the pieces."""
        return self.floor, self.highest, self.arrivals, self.since, self.kind

    @property
    def size(self) -> int:
        """Approximate bytes of all pieces."""
        return sum(piece.facts.size for piece in self.pieces)

    def known(
        self, ids: pa.Array, hashes: Hashes, times: NDArray[np.int64], floor: int, apart: int | None
    ) -> tuple[NDArray[np.bool_], Looks]:
        """Return which ids are remembered, and the numbers of lookups.

        ``apart`` is the greatest distance of a copy's event time from its original's, microseconds;
        None for any. O(ids x pieces that may have them).
        """
        import pyarrow as pa

        remembered = np.zeros(len(ids), np.bool_)
        lookups = passed = hits = 0
        for piece in self.pieces:
            if piece.gone(floor, self.since):
                continue
            asks = ~remembered
            if apart is not None:
                least, greatest = max(MIN, piece.facts.least - apart), min(MAX, piece.facts.greatest + apart)
                asks &= (times >= least) & (times <= greatest)
            looked = np.flatnonzero(asks)
            if not len(looked):
                continue
            filter_ = piece.filter()
            filtered = is_bloom(filter_, piece.rows)
            if filtered:
                lookups += len(looked)
                looked = looked[perhaps_in(filter_, hashes[looked])]
            if not len(looked):
                continue
            hit_rows = looked[piece.has(ids.take(pa.array(looked)), hashes[looked], floor, self.since)]
            remembered[hit_rows] = True
            if filtered:
                passed, hits = passed + len(looked), hits + len(hit_rows)
        return remembered, Looks(lookups, passed, hits)

    def remembered(self, floor: int) -> int:
        """Return the number of remembered ids. O(pieces, and ids of partly forgotten ones)."""
        return sum(
            piece.rows if piece.whole(floor, self.since) else int(piece.live(floor, self.since).sum())
            for piece in self.pieces
            if not piece.gone(floor, self.since)
        )

    def joined(self, new: Newcomers, floor: int, slice_size: int = 0, *, filters: bool) -> Seen:
        """Return the state with new ids.

        ``slice_size`` is the number of arrivals in a slice; 0 makes slices of event time. O(new),
        and sometimes a merge.
        """
        import pyarrow as pa

        numbers = np.arange(self.arrivals, self.arrivals + len(new.ids))
        slices = numbers // slice_size * slice_size if slice_size else self._slices(new.times)
        columns = {HASH: hashed(new.ids), ID: new.ids, TIME: new.times, ARRIVAL: numbers}
        table = pa.table({name: pa.array(column) for name, column in columns.items()})
        pieces = list(self.pieces)
        for slice_ in np.unique(slices).tolist():
            added = table.filter(pa.array(slices == slice_))
            own = [piece for piece in pieces if piece.facts.slice == slice_]
            while own and own[-1].rows < _FACTOR * added.num_rows:
                piece = own.pop()
                pieces.remove(piece)
                stored = piece.read()
                if not piece.whole(floor, self.since):
                    stored = stored.filter(pa.array(piece.live(floor, self.since)))
                added = pa.concat_tables([stored, added])
            pieces.append(Piece.of(added, slice_, filters=filters))
        return replace(self, pieces=pieces, arrivals=self.arrivals + len(new.ids))

    def _slices(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the names of the slices of event times: a start plus a width's logarithm."""
        if not len(times):
            return times
        # A slice is the wider, the further its times are above the floor. While there is no floor,
        # because nothing was forgotten yet, the oldest id takes its place.
        end = (
            min([int(times.min()), *(piece.facts.least for piece in self.pieces)]) if self.floor == MIN else self.floor
        )
        distance = times.view(np.uint64) - np.array(end).view(np.uint64)
        power = np.frexp(distance.astype(np.float64))[1].astype(np.int64) - 1 - _PARTS
        power = np.maximum(power, _NARROWEST)
        return (times >> power << power) + power

    def first_of(self, floor: int, over: int) -> int:
        """Return the arrival before which ``over`` remembered ids came. O(ids of old pieces)."""
        counted: list[NDArray[np.int64]] = []
        for piece in sorted(self.pieces, key=lambda piece: piece.facts.first):
            numbers = np.sort(np.concatenate([np.zeros(0, np.int64), *counted]))
            if len(numbers) > over and numbers[over] < piece.facts.first:
                break
            if not piece.gone(floor, self.since):
                counted.append(_numbers(piece.read(), ARRIVAL)[piece.live(floor, self.since)])
        numbers = np.sort(np.concatenate([np.zeros(0, np.int64), *counted]))
        return int(numbers[over]) if over < len(numbers) else self.arrivals

    def pushed_out(self, since: int, least: int) -> int:
        """Return how many remembered ids >= ``least`` a new ``since`` pushes out. O(their ids)."""
        out = 0
        for piece in self.pieces:
            if piece.facts.first < since and not piece.gone(least, self.since):
                numbers = _numbers(piece.read(), ARRIVAL)[piece.live(least, self.since)]
                out += int((numbers < since).sum())
        return out

    def without_gone(self, floor: int) -> Seen:
        """Return the state without pieces whose ids are all forgotten. O(pieces)."""
        return replace(self, pieces=[piece for piece in self.pieces if not piece.gone(floor, self.since)])


def _numbers(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a column of a piece, which has one chunk, without a copy."""
    numbers: NDArray[Any] = table[name].chunk(0).to_numpy()
    return numbers
