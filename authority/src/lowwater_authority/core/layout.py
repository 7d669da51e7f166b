"""How the key space of a computation is to be cut, and where its ranges are to run.

It is a wish of an operator, or of what balances a computation. It changes no claim, no value and no watermark: the owner takes it between
two micro-batches, by a claim with other bounds. The version grows with every change, across resets and drops too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS: Final = 65_536
"""Parts of the key space: a range starts at the start of one."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout. The first one has version 0, and says nothing."""

    version: int = 0
    starts: tuple[int, ...] = ()
    """Slot in which each range starts; empty: as the owner cuts the key space by itself."""
    tasks: tuple[int, ...] = ()
    """Of each range the task that it is to run in, counted from 1, 0 for any; empty: any, for all."""


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
    """Its own."""
    refused: str = ""
    """Why it does not follow what is wanted."""
    batch: int = 0
    loads: tuple[Load, ...] = ()


def wrong(starts: Sequence[int], tasks: Sequence[int]) -> tuple[str, str, str] | None:
    """Return what is wrong with a layout, as field, problem and fix; None: nothing. O(ranges).

    >>> wrong([0, 16_384], [1])
    ('tasks', 'has 1 values for 2 ranges', 'send none, or one each')
    """
    if not starts or starts[0] != 0:
        return "starts", "does not begin at 0", "let the first range start at 0"
    if any(first >= second for first, second in pairwise(starts)) or starts[-1] >= SLOTS:
        return "starts", "is not ascending", f"sort it, each start once and below {SLOTS}"
    if tasks and len(tasks) != len(starts):
        return "tasks", f"has {len(tasks)} values for {len(starts)} ranges", "send none, or one each"
    if any(task > SLOTS for task in tasks):
        return "tasks", f"has a task above {SLOTS}", "count tasks from 1"
    return None
