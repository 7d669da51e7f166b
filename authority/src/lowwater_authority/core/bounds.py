"""The bounds of a claim's ranges, in a fifth of the memory of as many bytes objects.

The garbage collector has nothing to visit in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

SHORT: Final = 0x80
"""Lengths below this take one byte on the wire."""


class Bounds(Sequence[bytes]):
    """An immutable sequence of byte strings: one block of all bytes, and the end of each string.

    4 bytes for each string besides its own. Reading one copies it; a slice is a list. The layout is
    that of string columns in Apache Arrow.

    >>> Bounds([b"", b"h", b"pq", b""])[1:3]
    [b'h', b'pq']
    """

    __slots__ = ("_block", "_ends")

    def __init__(self, strings: Iterable[bytes]) -> None:
        strings = strings if isinstance(strings, list | tuple) else list(strings)
        self._block: bytes = b"".join(strings)
        ends = np.cumsum(np.fromiter(map(len, strings), dtype=np.int64, count=len(strings)))
        self._ends: npt.NDArray[Any] = ends.astype(np.uint32 if len(self._block) < 1 << 32 else np.uint64)

    def __len__(self) -> int:
        """Return the number of strings. O(1)."""
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        """Return a string, or a list of strings."""
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
        """Iterate over the strings."""
        return iter(self[:])

    def part(self, first: int, end: int, start: bytes) -> Bounds:
        """Return a part of the strings, with another one in place of its first.

        O(bytes), without a step for each string.

        >>> [*Bounds([b"", b"h", b"pq", b"x", b""]).part(1, 4, b"kk")]
        [b'kk', b'pq', b'x']
        """
        begin = int(self._ends[first])
        part = Bounds([])
        part._block = start + self._block[begin : int(self._ends[end - 1])]
        part._ends = self._ends[first:end] - begin + len(start)
        return part

    def encode(self, field: int) -> bytes:
        r"""Return the strings as a repeated bytes field of a protobuf message.

        O(bytes), without a step for each string.

        >>> Bounds([b"", b"ab"]).encode(2)
        b'\x12\x00\x12\x02ab'
        """
        lengths = np.diff(self._ends.astype(np.int64), prepend=0)
        if not len(lengths):
            return b""
        if int(lengths.max()) >= SHORT or field >= SHORT >> 3:
            return b"".join(head(field, len(string)) + string for string in self)
        count = len(lengths)
        encoded = np.empty(len(self._block) + 2 * count, dtype=np.uint8)
        heads = self._ends.astype(np.int64) - lengths + 2 * np.arange(count)
        content = np.ones(len(encoded), dtype=np.bool_)
        content[heads] = content[heads + 1] = False
        encoded[heads] = field << 3 | 2
        encoded[heads + 1] = lengths
        encoded[content] = np.frombuffer(self._block, dtype=np.uint8)
        return encoded.tobytes()


def head(number: int, length: int) -> bytes:
    """Return the tag and length before a field of so many bytes in a protobuf message."""
    encoded = bytearray()
    for value in (number << 3 | 2, length):
        rest = value
        while rest >= SHORT:
            encoded.append(rest & SHORT - 1 | SHORT)
            rest >>= 7
        encoded.append(rest)
    return bytes(encoded)
