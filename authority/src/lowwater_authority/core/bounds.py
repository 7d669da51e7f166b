"""The bounds of a claim's ranges, in a fifth of the memory that as many objects take, and nothing for the garbage collector to walk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

SHORT: Final = 0x80
"""Lengths below this take one byte on the wire."""


class Bounds(Sequence[bytes]):
    """Byte strings that never change: one after the other in one block, and where each ends.

    4 bytes each besides their own. An element costs a copy of it, a slice is a list. Sources:
    columns of strings as in Apache Arrow.

    >>> Bounds([b"", b"h", b"pq", b""])[1:3]
    [b'h', b'pq']
    """

    __slots__ = ("_block", "_ends")

    def __init__(self, each: Iterable[bytes]) -> None:
        known = each if isinstance(each, list | tuple) else list(each)
        self._block: bytes = b"".join(known)
        ends = np.cumsum(np.fromiter(map(len, known), dtype=np.int64, count=len(known)))
        self._ends: npt.NDArray[Any] = ends.astype(np.uint32 if len(self._block) < 1 << 32 else np.uint64)

    def __len__(self) -> int:
        """Return how many there are. O(1)."""
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        """Return an element, or a list of some."""
        if isinstance(index, slice):
            first, end, step = index.indices(len(self))
            if step != 1:
                return list(self)[index]
            ends = self._ends[max(first, 0) : max(first, end)].tolist()
            begin = int(self._ends[first - 1]) if first else 0
            return [self._block[a:b] for a, b in zip([begin, *ends[:-1]], ends, strict=True)] if ends else []
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._block[int(self._ends[index - 1]) if index else 0 : int(self._ends[index])]

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over them."""
        return iter(self[:])

    def part(self, first: int, end: int, start: bytes) -> Bounds:
        """Return those of some places, with another one for the first of them.

        O(bytes), without a step for each.

        >>> [*Bounds([b"", b"h", b"pq", b"x", b""]).part(1, 4, b"kk")]
        [b'kk', b'pq', b'x']
        """
        begin = int(self._ends[first])
        made = Bounds([])
        made._block = start + self._block[begin : int(self._ends[end - 1])]
        made._ends = self._ends[first:end] - begin + len(start)
        return made

    def encode(self, field: int) -> bytes:
        r"""Return them as a repeated field of bytes of a protobuf message.

        O(bytes), without a step for each.

        >>> Bounds([b"", b"ab"]).encode(2)
        b'\x12\x00\x12\x02ab'
        """
        lengths = np.diff(self._ends.astype(np.int64), prepend=0)
        if not len(lengths):
            return b""
        if int(lengths.max()) >= SHORT or field >= SHORT >> 3:
            return b"".join(head(field, len(each)) + each for each in self)
        count = len(lengths)
        made = np.empty(len(self._block) + 2 * count, dtype=np.uint8)
        heads = self._ends.astype(np.int64) - lengths + 2 * np.arange(count)
        content = np.ones(len(made), dtype=np.bool_)
        content[heads] = content[heads + 1] = False
        made[heads] = field << 3 | 2
        made[heads + 1] = lengths
        made[content] = np.frombuffer(self._block, dtype=np.uint8)
        return made.tobytes()


def head(number: int, length: int) -> bytes:
    """Return what stands before so many bytes that are a field of a protobuf message."""
    made = bytearray()
    for value in (number << 3 | 2, length):
        rest = value
        while rest >= SHORT:
            made.append(rest & SHORT - 1 | SHORT)
            rest >>= 7
        made.append(rest)
    return bytes(made)
