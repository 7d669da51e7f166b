"""Drop copies of records: only the first record of each id has a turn (MillWheel 6.1.1).

Ids are stored in the same version as the effects of their records, for each input and key range.
The low watermark forgets them, see :mod:`lowwater_pipeline.dedup.sieve`. A record so late that its
id may be forgotten could be a copy: it goes into an output of its own, and has no turn.
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
"""Name of the extra output of a computation that has an input which drops copies."""

UNDECIDABLE_OUTPUT: Final = Output("input string, key string, event_time timestamp, row string", event_time=None)

_SEEN: Final = len(Seen().facts)
_FACTS: Final = 1 + _SEEN + len(Counts._fields)
"""Number of facts of each input: its number, facts about its ids, and counts of the last batch."""

_ID, _TIME, _AT = "id", "micros", "at"


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of each input that a key range remembers, as a value: each batch makes a new one."""

    seen: Mapping[int, Seen] = field(default_factory=dict[int, Seen])
    counts: Mapping[int, Counts] = field(default_factory=dict[int, Counts])
    """Counts of the batch's rows by input."""

    @classmethod
    def of(cls, parents: Iterable[tuple[Segments, Sequence[Segment], Sequence[int]]]) -> Ids:
        """Return the ids of ranges: of each its segments, those with ids, and its facts about ids.

        The union forgets whatever one of the ranges has forgotten. Nothing is read.
        """
        by_input: dict[int, Seen] = {}
        for before, segments, facts in parents:
            for start in range(0, len(facts), _FACTS):
                number, *facts_here = facts[start : start + 1 + _SEEN]
                own = [
                    Piece(
                        segment.rows,
                        PieceFacts(*segment.facts[2:]),
                        partial(before.read, segment),
                        partial(before.filter, segment),
                        segment,
                    )
                    for segment in segments
                    if segment.facts[1] == number
                ]
                other = by_input.get(number, Seen())
                by_input[number] = Seen([*other.pieces, *own], *map(max, other.facts, facts_here))
        return cls(by_input)

    @property
    def facts(self) -> tuple[int, ...]:
        """Facts that are stored beside the segments."""
        return tuple(
            fact
            for number, seen in self.seen.items()
            for fact in (number, *seen.facts, *self.counts.get(number, Counts()))
        )

    def segments(self, kind: int) -> list[Segment | FreshSegment]:
        """Return the segments of a version; facts begin with ``kind`` and the input's number."""
        return [
            piece.source or FreshSegment(piece.read(), (kind, number, *piece.facts), piece.filter())
            for number, seen in self.seen.items()
            for piece in seen.pieces
        ]


def drop_copies(
    computation: Computation, rows: pa.Table, ids: Ids, promised: int
) -> tuple[pa.Table, list[Production], Ids]:
    """Return the rows that have a turn, productions for undecidable rows, and the ids afterwards.

    ``promised`` is the low watermark of the inputs before the batch, microseconds. The batch's own
    low watermark may have passed rows that it reads in time. O(rows x log ids).
    """
    if not any(source.once for source in computation.inputs):
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
    """Yield an input's undecidable rows as rows of their output."""
    import pyarrow as pa

    if not len(places):
        return
    which = pa.array(at[places])
    keys, times = rows[KEY].take(which).to_pylist(), rows[TIME].take(which).to_pylist()
    for key, time, row in zip(keys, times, own.take(pa.array(places)).to_pylist(), strict=True):
        key_text = key.hex() if isinstance(key, bytes) else str(key)
        yield UNDECIDABLE, {"input": declared.label, "key": key_text, "event_time": time, "row": to_json(row)}, time


def copies_of(batch: Batch) -> Counts:
    """Return a batch's counts by id, over all inputs and ranges: within ``write(outputs, batch)``.

    :mod:`lowwater_pipeline.dedup.stage_figures` takes them.
    """
    counts = [
        facts[start + 1 + _SEEN : start + _FACTS] for facts in batch.noted for start in range(1, len(facts), _FACTS)
    ]
    return Counts(*(sum(column) for column in zip(*counts, strict=True))) if counts else Counts()
