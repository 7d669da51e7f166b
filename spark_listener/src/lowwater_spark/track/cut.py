"""How a stage cuts its key space, and what becomes of its ranges when it cuts it otherwise.

At first they are equal parts, as many as were declared. An operator may ask for another layout
(:class:`lowwater.Layout`): its version and starts stand in the batch log from the batch on that
begins with it. A range of the new cut has all keys of some ranges of the old one, and of others
those of some places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowwater.layout import SLOTS, Layout
from lowwater_spark.track.ranges import PLACES, SIGN, hash_range_column, range_bounds

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["EQUAL", "Cut", "Share", "layout_from_json", "layout_to_json", "least_of"]

EQUAL: Final = Layout()
"""No layout: equal parts, as many as were declared."""

_SLOT: Final = PLACES // SLOTS


class Share(NamedTuple):
    """What a range has of a range of the cut before."""

    parent: int
    """Its handle."""
    places: tuple[int, int] | None
    """The places, as signed hashes, from the first one to before the second; None: all that the
    parent has."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut of the key space.

    ``ranges`` is the declared number, which counts until a layout is followed.
    """

    ranges: int
    layout: Layout = EQUAL

    def __len__(self) -> int:
        return len(self.layout) if self.layout.version else self.ranges

    @property
    def bounds(self) -> list[bytes]:
        """Its bounds, as a claim has them."""
        return self.layout.bounds if self.layout.version else range_bounds(self.ranges)

    @property
    def places(self) -> list[int]:
        """Where its ranges start, and the end of the key space: unsigned, n + 1."""
        if self.layout.version:
            return [start * _SLOT for start in (*self.layout.starts, SLOTS)]
        return [-(-i * PLACES // self.ranges) for i in range(self.ranges + 1)]

    @property
    def told(self) -> Layout:
        """The cut as the authority hears of it.

        Equal parts that are no whole slots begin in the slot that has their start; of those in one
        slot the last is told.
        """
        if self.layout.version:
            return self.layout
        return Layout(0, tuple(dict.fromkeys(place // _SLOT for place in self.places[:-1])))

    def handle(self, xxhash64: Column) -> Column:
        """Return the handle, 0 to n - 1, of the places of keys: an integer column that runs in the JVM."""
        if self.layout.version:
            return _slot_column(xxhash64, self.layout.starts)
        return hash_range_column(xxhash64, self.ranges)

    def spread(self, partitions: int, *, pins: bool) -> int:
        """Return over how many of at most so many tasks its ranges are spread: one each, and as many as pins name, where ``pins`` count."""
        return min(partitions, max(len(self), *self.layout.tasks) if pins and self.layout.tasks else len(self))

    def task(self, handle: Column) -> Column:
        """Return what tells the task of a handle, counted from 0.

        Modulo the number of tasks: of pins only one that was logged can be beyond it.
        """
        tasks = self.layout.tasks
        if not tasks:
            return handle
        from pyspark.sql import functions as sf

        pinned = [task - 1 if task else i for i, task in enumerate(tasks)]
        return _looked_up(handle, pinned) if len(tasks) > 1 else sf.lit(pinned[0])

    def shares(self, before: Cut) -> list[list[Share]]:
        """Return of each range what it has of the ranges before, in the order of the key space.

        O(ranges of both).
        """
        old, new = before.places, self.places
        found: list[list[Share]] = []
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
            found.append(shares)
        return found


def least_of(shares: Sequence[Sequence[Share]], values: Sequence[int | None]) -> list[int | None]:
    """Return the least of what the parents of each range have: a part copies, a union takes the least. None is nothing."""
    return [
        min((value for share in each if (value := values[share.parent]) is not None), default=None) for each in shares
    ]


def layout_to_json(layout: Layout) -> dict[str, Any]:
    """Return a layout as files have it."""
    return {"version": layout.version, "starts": list(layout.starts), "tasks": list(layout.tasks)}


def layout_from_json(said: Mapping[str, Any]) -> Layout:
    """Return the layout that :func:`layout_to_json` has told."""
    return Layout(int(said["version"]), tuple(said["starts"]), tuple(said["tasks"]))


def _slot_column(xxhash64: Column, starts: Sequence[int]) -> Column:
    """Return which range each place is in, looked up by the slots that the starts tell apart."""
    from pyspark.sql import functions as sf

    width = math.gcd(SLOTS, *starts)
    table: list[int] = []
    for handle, (start, end) in enumerate(zip(starts, (*starts[1:], SLOTS), strict=True)):
        table += [handle] * ((end - start) // width)
    if len(table) == 1:
        return sf.lit(0)
    # The sign bit is flipped, so that the order is that of signed hashes.
    place = xxhash64.bitwiseXOR(sf.lit(-SIGN))
    return _looked_up(sf.shiftrightunsigned(place, 48 + width.bit_length() - 1).cast("int"), table)


def _looked_up(index: Column, table: Sequence[int]) -> Column:
    """Return the numbers below 65,536 that stand in a table.

    One literal of two bytes a number, which needs no plan of its own.
    """
    from pyspark.sql import functions as sf

    literal = sf.lit(b"".join(each.to_bytes(2, "big") for each in table))
    return sf.conv(sf.hex(literal.substr(index * sf.lit(2) + sf.lit(1), sf.lit(2))), 16, 10).cast("int")
