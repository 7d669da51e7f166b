"""Copies of records: of each id only the first record has its turn, and the ids are in the same version as what the records did (MillWheel 6.1.1).

The ids of each input are remembered by key range, and forgotten by the low watermark, as :mod:`lowwater_pipeline.dedup.sieve` says. A record so late that its id would be forgotten may be a copy: it goes into an output of its own, and
has no turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lowwater_pipeline.computation.computation import Computation, Input, Output
from lowwater_pipeline.computation.incoming import KEY, TIME, parts
from lowwater_pipeline.computation.productions import to_json
from lowwater_pipeline.computation.turn import Production
from lowwater_pipeline.dedup.seen import Piece, PieceFacts, Seen
from lowwater_pipeline.dedup.sieve import ROUTE, Counts, Route, Sieve, Window
from lowwater_spark.track.segments import FreshSegment, Segment, Segments

if TYPE_CHECKING:
    import pyarrow as pa

    from lowwater_spark import Batch

__all__ = ["UNDECIDABLE", "UNDECIDABLE_OUTPUT", "Ids", "copies_of", "drop_copies"]

UNDECIDABLE: Final = "undecidable"
"""The output that a computation has beside its own if one of its inputs drops copies."""

UNDECIDABLE_OUTPUT: Final = Output("input string, key string, event_time timestamp, row string", event_time=None)

_SEEN: Final = len(Seen().facts)
_FACTS: Final = 1 + _SEEN + len(Counts._fields)
"""Of each input: its place in the list, what is known of its ids, and how many rows of the last
batch became what."""

_ID, _TIME, _AT = "id", "micros", "at"


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids that a key range remembers, of each input. A value: each batch makes the next one."""

    seen: Mapping[int, Seen] = field(default_factory=dict[int, Seen])
    counts: Mapping[int, Counts] = field(default_factory=dict[int, Counts])
    """Of the rows of the batch."""

    @classmethod
    def of(cls, parents: Iterable[tuple[Segments, Sequence[Segment], Sequence[int]]]) -> Ids:
        """Return those of ranges of a version: of each its segments, those with ids, and its facts of them. Nothing is read.

        Of several the later end of what is forgotten counts: what one of them does not remember nobody does.
        """
        found: dict[int, Seen] = {}
        for before, segments, facts in parents:
            for start in range(0, len(facts), _FACTS):
                number, *known = facts[start : start + 1 + _SEEN]
                own = [
                    Piece(
                        each.rows,
                        PieceFacts(*each.facts[2:]),
                        partial(before.read, each),
                        partial(before.filter, each),
                        each,
                    )
                    for each in segments
                    if each.facts[1] == number
                ]
                other = found.get(number, Seen())
                found[number] = Seen([*other.pieces, *own], *map(max, other.facts, known))
        return cls(found)

    @property
    def facts(self) -> tuple[int, ...]:
        """What is kept beside the segments."""
        return tuple(
            fact
            for number, seen in self.seen.items()
            for fact in (number, *seen.facts, *self.counts.get(number, Counts()))
        )

    def segments(self, kind: int) -> list[Segment | FreshSegment]:
        """Return the segments of a version; the facts of each begin with ``kind`` and the number of the input."""
        return [
            piece.source or FreshSegment(piece.read(), (kind, number, *piece.facts), piece.filter())
            for number, seen in self.seen.items()
            for piece in seen.pieces
        ]


def drop_copies(
    computation: Computation, rows: pa.Table, ids: Ids, promised: int
) -> tuple[pa.Table, list[Production], Ids]:
    """Return the rows that have their turn, those of which nobody can say whether they came before as productions, and the ids after the batch. O(rows x log ids).

    ``promised`` is the low watermark of the inputs before the batch, microseconds: that of the batch itself may have passed rows that it reads in time.
    """
    if not any(each.once for each in computation.inputs):
        return rows, [], Ids()
    import pyarrow as pa

    stays = np.ones(rows.num_rows, np.bool_)
    aside: list[Production] = []
    seen: dict[int, Seen] = {}
    counts: dict[int, Counts] = {}
    for number, (declared, at, own, identity) in enumerate(parts(computation.inputs, rows)):
        if not declared.once:
            continue
        micros = np.asarray(rows[TIME])[at]
        named = pa.table(
            {
                _ID: rows[identity].take(pa.array(at)),
                _TIME: pa.array(micros).cast(pa.timestamp("us", "UTC")),
                _AT: np.arange(len(at)),
            }
        )
        sieve = Sieve(_ID, _TIME, Window.WATERMARK, declared.slack, most=0, forget=False)
        seen[number], out, counts[number] = sieve.sift(ids.seen.get(number, Seen()), named, promised)
        places, routes = np.asarray(out[_AT]), np.array(out[ROUTE].to_pylist(), object)
        turns = np.zeros(len(at), np.bool_)
        turns[places[(routes == Route.MAIN.value) | (routes == Route.LATE.value)]] = True
        stays[at[~turns]] = False
        aside += _undecidable(declared, rows, own, at, places[routes == Route.UNDECIDABLE.value])
    return rows.filter(pa.array(stays)).combine_chunks(), aside, Ids(seen, counts)


def _undecidable(declared: Input, rows: pa.Table, own: pa.Table, at: Any, places: Any) -> Iterator[Production]:
    """Yield rows of an input as they go into the output for them."""
    import pyarrow as pa

    if not len(places):
        return
    which = pa.array(at[places])
    keys, times = rows[KEY].take(which).to_pylist(), rows[TIME].take(which).to_pylist()
    for key, time, row in zip(keys, times, own.take(pa.array(places)).to_pylist(), strict=True):
        said = key.hex() if isinstance(key, bytes) else str(key)
        yield UNDECIDABLE, {"input": declared.label, "key": said, "event_time": time, "row": to_json(row)}, time


def copies_of(batch: Batch) -> Counts:
    """Return what has become of the rows of a batch by their ids, over all inputs and key ranges, for :mod:`lowwater_pipeline.dedup.stage_figures`: within ``write(outputs, batch)``."""
    each = [
        facts[start + 1 + _SEEN : start + _FACTS] for facts in batch.noted for start in range(1, len(facts), _FACTS)
    ]
    return Counts(*(sum(column) for column in zip(*each, strict=True))) if each else Counts()
