"""What a commit says beside the offset: in the metadata that Kafka keeps with the committed offset, in the same transaction as the rows.

So it is never older or newer than the rows, and no crash comes between. It says of which topics it speaks, and how far the output partition has to be read to have
every id again that is to be remembered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["NO_FLOOR", "Chunk", "Mark", "Short", "trail"]

NO_FLOOR: Final = -(2**63)
"""Nothing is forgotten."""

_FORMAT: Final = 1

_CHUNKS: Final = 24
"""Chunks that are kept: the metadata of an offset has 4,096 bytes, and a chunk takes up to 60 of
them."""


class Chunk(NamedTuple):
    """A part of the output partition, up to where the next one starts."""

    offset: int
    """No row of it stands before."""
    ordinal: int
    """Of its first row: how many rows this job has put into the partition before it."""
    greatest: int
    """No row of it has a greater rank."""


class Short(NamedTuple):
    """What could not be read any more, when the window was taken from an output whose log had been cut."""

    rank: int
    """Of the first row that could. While the floor is at or below it, the window is shorter than it
    should be."""
    millis: int
    """Its timestamp."""


def trail(chunks: Sequence[Chunk], started: Chunk | None, floor: int) -> tuple[Chunk, ...]:
    """Return the chunks with one more, without those that are below the floor as a whole.

    When there are too many, the two neighbours become one that have the fewest rows together: so a
    start reads a small part more than it needs.

    >>> trail([Chunk(0, 0, 7), Chunk(9, 8, 20)], Chunk(30, 21, 25), floor=8)
    (Chunk(offset=9, ordinal=8, greatest=20), Chunk(offset=30, ordinal=21, greatest=25))
    """
    kept = [*chunks] if started is None else [*chunks, started]
    while kept and kept[0].greatest < floor:
        del kept[0]
    while len(kept) > _CHUNKS:
        at = min(range(len(kept) - 2), key=lambda each: kept[each + 2].ordinal - kept[each].ordinal)
        first, second = kept[at : at + 2]
        kept[at : at + 2] = [Chunk(first.offset, first.ordinal, max(first.greatest, second.greatest))]
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a lane stands, as of its last commit."""

    input: str
    """Topic ids: a topic that was made anew under its old name has another."""
    output: str
    partitions: int
    rule: str
    """What is an id and how long it is remembered; see Settings.rule."""
    floor: int
    """Every id of a lower rank is forgotten."""
    next: int
    """How many rows have been put into the output partition."""
    chunks: tuple[Chunk, ...] = ()
    """From the first one on, the output has every row at or above the floor."""
    incarnations: tuple[int, ...] = ()
    """Of the computations whose low watermark is the floor."""
    short: Short | None = None

    def start(self, end: int) -> Chunk:
        """Return where the output has to be read from, when there is nothing else.

        ``end``: where it ends.
        """
        return self.chunks[0] if self.chunks else Chunk(end, self.next, NO_FLOOR)

    def text(self) -> str:
        """Return it as metadata of an offset."""
        content = [_FORMAT, self.input, self.output, self.partitions, self.rule, self.floor, self.next]
        return json.dumps([*content, self.chunks, self.incarnations, self.short], separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Return what metadata says. Raises ValueError when a lane has not written it."""
        content = json.loads(text)
        try:
            form, source, target, partitions, rule, floor, following, chunks, incarnations, short = content
            if form != _FORMAT:
                raise TypeError
            return cls(
                source,
                target,
                partitions,
                rule,
                floor,
                following,
                tuple(Chunk(*each) for each in chunks),
                tuple(incarnations),
                None if short is None else Short(*short),
            )
        except (TypeError, ValueError):
            msg = "it is no mark of this release"
            raise ValueError(msg) from None
