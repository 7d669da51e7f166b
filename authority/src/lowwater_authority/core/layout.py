"""How the key space of a computation is to be cut, and where its ranges are to run.

It is a wish of an operator, or of what balances a computation. It changes no claim, no value and no
watermark: the owner takes it between two micro-batches, by a claim with other bounds. The version
grows with every change, across resets and drops too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout. The first one has version 0, and says nothing."""

    version: int = 0
    starts: tuple[int, ...] = ()
    """Slot in which each range starts; empty: as the owner cuts the key space by itself."""
    tasks: tuple[int, ...] = ()
    """Of each range the task that it is to run in, counted from 1, 0 for any; empty: any, for all.
    """

    def differs(self, told: Layout) -> bool:
        """Return whether this one, which is wanted, is another than an owner's; of one whose starts are not known its version decides.

        One version may stand for two: what is wanted is as old as the journal, which may have been restored from a copy.
        """
        if self.version != told.version:
            return True
        return bool(self.starts and told.starts) and self != told


class Load(NamedTuple):
    """What a key range cost its owner in one micro-batch."""

    start: int
    end: int
    rows: int
    micros: int
    bytes: int
    parts: tuple[int, ...]
    """Rows in each of equal parts of the range."""
    heaviest: int
    """Rows of its heaviest key."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the owner has said with a commit. In memory only: it says it again with the next."""

    layout: Layout
    """Its own; without starts where it has told them before, under the same claim."""
    refused: str = ""
    """Why it does not follow what is wanted."""
    batch: int = 0
    loads: tuple[Load, ...] = ()
