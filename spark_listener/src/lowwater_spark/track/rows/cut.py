"""A stage's cut of its key space, and the shares of its ranges when the cut changes.

At first the ranges are equal parts, as many as declared. An operator may request another layout
(:class:`lowwater.Layout`): the batch log has its version and starts, from the first batch on that
uses it. A range of the new cut has all keys of some old ranges, and some places' keys of others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowwater.layout import SLOTS, Layout
from lowwater_spark.track.rows.ranges import PLACES, SIGN, hash_range_column, range_bounds

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["EQUAL", "Cut", "Share", "layout_from_json", "layout_to_json", "least_of"]

EQUAL: Final = Layout()
"""No layout: as many equal parts as declared."""

_SLOT: Final = PLACES // SLOTS


class Share(NamedTuple):
    """The part of a range of the cut before, ``parent``, that a range of the new cut receives."""

    parent: int
    places: tuple[int, int] | None
    """Places, as signed hashes, from the first to before the second; None: all of the parent."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut of the key space. ``ranges`` is the declared number, used until there is a layout."""

    ranges: int
    layout: Layout = EQUAL

    def __len__(self) -> int:
        return len(self.layout) if self.layout.version else self.ranges

    @property
    def bounds(self) -> list[bytes]:
        """Bounds of the ranges, as a claim has them."""
        return self.layout.bounds if self.layout.version else range_bounds(self.ranges)

    @property
    def places(self) -> list[int]:
        """Starts of the ranges, and the end of the key space: unsigned, n + 1."""
        if self.layout.version:
            return [start * _SLOT for start in (*self.layout.starts, SLOTS)]
        return [-(-i * PLACES // self.ranges) for i in range(self.ranges + 1)]

    @property
    def told(self) -> Layout:
        """The cut as it is reported to the authority, in whole slots.

        An equal part is reported from the slot of its start; parts that start in one slot, as one.
        """
        if self.layout.version:
            return self.layout
        return Layout(0, tuple(dict.fromkeys(place // _SLOT for place in self.places[:-1])))

    def handle(self, xxhash64: Column) -> Column:
        """Return the handles, 0 to n - 1, of keys' places: an integer column of the JVM."""
        if self.layout.version:
            return _slot_column(xxhash64, self.layout.starts)
        return hash_range_column(xxhash64, self.ranges)

    def spread(self, partitions: int, *, pins: bool) -> int:
        """Return the number of tasks: one a range, or more for ``pins``; at most ``partitions``."""
        return min(partitions, max(len(self), *self.layout.tasks) if pins and self.layout.tasks else len(self))

    def task(self, handle: Column) -> Column:
        """Return the task of a handle, from 0, modulo the number of tasks.

        Only a pin that was logged earlier can exceed that number.
        """
        tasks = self.layout.tasks
        if not tasks:
            return handle
        from pyspark.sql import functions as sf

        pinned = [task - 1 if task else i for i, task in enumerate(tasks)]
        return _looked_up(handle, pinned) if len(tasks) > 1 else sf.lit(pinned[0])

    def shares(self, before: Cut) -> list[list[Share]]:
        """Return each range's shares of the ranges before, in the order of the key space.

        O(ranges of both).
        """
        old, new = before.places, self.places
        shares_of_ranges: list[list[Share]] = []
        parent = 0
        for start, end in pairwise(new):
            while old[parent + 1] <= start:
                parent += 1
            shares, at = [], parent
            while at < len(before) and old[at] < end:
                low, high = max(start, old[at]), min(end, old[at + 1])
                whole = (low, high) == (old[at], old[at + 1])
                shares.append(Share(at, None if whole else (low - SIGN, high - SIGN)))
                at += 1
            shares_of_ranges.append(shares)
        return shares_of_ranges


def least_of(shares: Sequence[Sequence[Share]], values: Sequence[int | None]) -> list[int | None]:
    """Return the least value of each range's parents: a part copies, a union takes the least."""
    return [
        min((value for share in range_shares if (value := values[share.parent]) is not None), default=None)
        for range_shares in shares
    ]


def layout_to_json(layout: Layout) -> dict[str, Any]:
    """Return a layout as JSON values."""
    return {"version": layout.version, "starts": list(layout.starts), "tasks": list(layout.tasks)}


def layout_from_json(content: Mapping[str, Any]) -> Layout:
    """Return the layout that :func:`layout_to_json` wrote."""
    return Layout(int(content["version"]), tuple(content["starts"]), tuple(content["tasks"]))


def _slot_column(xxhash64: Column, starts: Sequence[int]) -> Column:
    """Return the range of each place, looked up in a table of equal steps of slots."""
    from pyspark.sql import functions as sf

    width = math.gcd(SLOTS, *starts)
    table: list[int] = []
    for handle, (start, end) in enumerate(zip(starts, (*starts[1:], SLOTS), strict=True)):
        table += [handle] * ((end - start) // width)
    if len(table) == 1:
        return sf.lit(0)
    # A key's place is its hash with the sign bit flipped, as an unsigned number: the claimed bounds
    # and ``starts`` are in the order of places. Without the flip, a key with a negative hash would
    # get a range of the upper half of the key space, not of the lower one. The upper 16 bits of a
    # place are its slot: shifted by 48, and by log2 of ``width``, a power of two, it becomes the
    # index of a step in the table.
    place = xxhash64.bitwiseXOR(sf.lit(-SIGN))
    return _looked_up(sf.shiftrightunsigned(place, 48 + width.bit_length() - 1).cast("int"), table)


def _looked_up(index: Column, table: Sequence[int]) -> Column:
    """Return the numbers of a table, each below 65,536, at the given indexes.

    The table is one literal of two bytes a number, which needs no plan of its own.
    """
    from pyspark.sql import functions as sf

    literal = sf.lit(b"".join(number.to_bytes(2, "big") for number in table))
    return sf.conv(sf.hex(literal.substr(index * sf.lit(2) + sf.lit(1), sf.lit(2))), 16, 10).cast("int")
