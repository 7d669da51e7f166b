"""The reports: key ranges, and event times that only grow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

PASS_MICROS: Final = 60_000_000
"""Event time from one pass over all ranges to the next, in microseconds."""

SHAPES: Final = 8
"""Different sets of values that the messages take turns with."""

SEED: Final = 7


def keys(ranges: int) -> list[bytes]:
    """Return the starts of equal parts of a hash space of 8 bytes."""
    starts = np.arange(ranges, dtype=np.uint64) * np.uint64((1 << 64) // ranges)
    data = starts.astype(">u8").tobytes()
    return [data[at : at + 8] for at in range(0, len(data), 8)]


def bounds(starts: Sequence[bytes], first: int, count: int) -> list[bytes]:
    """Return the bounds of a claim of ``count`` ranges; all claims cover the key space."""
    limits = list(starts[first : first + count])
    if first == 0:
        limits[0] = b""
    limits.append(starts[first + count] if first + count < len(starts) else b"")
    return limits


class Update(NamedTuple):
    """New values of adjoining ranges."""

    first: int
    values: Int64s


class Feed:
    """Updates of all ranges in turn, so many a message; every value changes, and grows."""

    def __init__(self, ranges: int, per_message: int) -> None:
        assert ranges % per_message == 0
        random = np.random.default_rng(SEED)
        self.per_message = per_message
        self._blocks = ranges // per_message
        self._values = random.integers(0, PASS_MICROS, (SHAPES, per_message))
        self._base = time.time_ns() // 1000 - 10 * 24 * 60 * PASS_MICROS
        self._turn = 0
        self._least = np.full(self._blocks, np.iinfo(np.int64).min)

    def take(self, messages: int) -> Iterator[Update]:
        """Yield the next messages."""
        for turn in range(self._turn, self._turn + messages):
            turns, block = divmod(turn, self._blocks)
            values = self._values[turn % SHAPES] + (self._base + turns * PASS_MICROS)
            self._least[block] = values.min()
            yield Update(block * self.per_message, values)
        self._turn += messages

    @property
    def low(self) -> int:
        """The least value of all ranges after the messages taken."""
        return int(self._least.min())


class Move(NamedTuple):
    """One range goes from last to first."""

    range: int
    value: int
    low: int
    """The low watermark afterwards."""


class Treadmill:
    """Ranges with different values; in each turn the last one moves in front of the others.

    So every report of a single range, anywhere in the map, moves the low watermark by a
    microsecond.
    """

    def __init__(self, ranges: int) -> None:
        self._order = np.random.default_rng(SEED).permutation(ranges).astype(np.uint32)
        self._base = time.time_ns() // 1000 - 24 * 60 * PASS_MICROS
        self._turn = 0

    def start(self) -> Int64s:
        """Return the values that the ranges start from."""
        values = np.empty(len(self._order), dtype=np.int64)
        values[self._order] = self._base + np.arange(len(self._order))
        return values

    def move(self) -> Move:
        """Return the next move."""
        turn, ranges = self._turn, len(self._order)
        self._turn += 1
        return Move(int(self._order[turn % ranges]), self._base + turn + ranges, self._base + turn + 1)
