"""The mark of a commit: metadata that Kafka stores with the offset, in the rows' transaction.

So the mark is never older or newer than the rows, and no crash comes in between. It names the
topics and tells from where the output must be read to find every id that is to be remembered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["NO_FLOOR", "Chunk", "Mark", "Short", "trail"]

NO_FLOOR: Final = -(2**63)
"""Floor while nothing is forgotten."""

_FORMAT: Final = 1

_CHUNKS: Final = 24
"""Greatest number of chunks in a mark: an offset's metadata has 4,096 bytes, a chunk up to 60."""


class Chunk(NamedTuple):
    """A part of the output partition, up to the start of the next chunk."""

    offset: int
    """Offset at or before the chunk's first row."""
    ordinal: int
    """Number of the job's rows in the partition before the chunk."""
    greatest: int
    """Greatest rank in the chunk, or more."""


class Short(NamedTuple):
    """Rows that a window lacks, because the output's log had been cut when it was read."""

    rank: int
    """Rank of the first row that was there. While the floor is not above it, the window is too
    short.
    """
    millis: int
    """Timestamp of that row, milliseconds."""


def trail(chunks: Sequence[Chunk], started: Chunk | None, floor: int) -> tuple[Chunk, ...]:
    """Return the chunks with a new one, without those that are wholly below the floor.

    Above the limit the two neighbours with the fewest rows become one. A start then reads a small
    part more than it needs.

    >>> trail([Chunk(0, 0, 7), Chunk(9, 8, 20)], Chunk(30, 21, 25), floor=8)
    (Chunk(offset=9, ordinal=8, greatest=20), Chunk(offset=30, ordinal=21, greatest=25))
    """
    trailing = [*chunks] if started is None else [*chunks, started]
    while trailing and trailing[0].greatest < floor:
        del trailing[0]
    while len(trailing) > _CHUNKS:
        at = min(range(len(trailing) - 2), key=lambda place: trailing[place + 2].ordinal - trailing[place].ordinal)
        first, second = trailing[at : at + 2]
        trailing[at : at + 2] = [Chunk(first.offset, first.ordinal, max(first.greatest, second.greatest))]
    return tuple(trailing)


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of a lane as of its last commit."""

    input: str
    """Ids of the topics; a topic that is deleted and made anew has another id."""
    output: str
    partitions: int
    rule: str
    """The id's field and the window, as a text; see Settings.rule."""
    floor: int
    """Rank below which ids are forgotten."""
    next: int
    """Number of rows put into the output partition."""
    chunks: tuple[Chunk, ...] = ()
    """Chunks that together have every row at or above the floor."""
    incarnations: tuple[int, ...] = ()
    """Incarnations of the computations whose low watermark is the floor."""
    short: Short | None = None

    def start(self, end: int) -> Chunk:
        """Return where to read the output from without a memory; ``end`` is the output's end."""
        return self.chunks[0] if self.chunks else Chunk(end, self.next, NO_FLOOR)

    def text(self) -> str:
        """Return the mark as an offset's metadata."""
        content = [_FORMAT, self.input, self.output, self.partitions, self.rule, self.floor, self.next]
        return json.dumps([*content, self.chunks, self.incarnations, self.short], separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Return the mark in an offset's metadata. Raises ValueError for other metadata."""
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
                tuple(Chunk(*chunk) for chunk in chunks),
                tuple(incarnations),
                None if short is None else Short(*short),
            )
        except (TypeError, ValueError):
            msg = "it is no mark of this release"
            raise ValueError(msg) from None
