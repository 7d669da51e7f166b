"""Which ids a set surely does not have: a Bloom filter as a string of bytes, and the hash of ids that it stands on.

Both are the same in every process and every release: filters and hashes are stored. An id has seven bits of ten, so about eight in a thousand of those that are not in the set
are said to be perhaps there (Bloom, 1970). Nobody who is in it is ever missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Hashes", "bloom", "hashed", "is_bloom", "perhaps_in"]

Hashes = NDArray[np.uint64]

_BITS: Final = 10
"""Bits for each id."""
_PROBES: Final = 7
_WORD: Final = 8
"""Bytes."""
_ODD: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


def hashed(ids: pa.Array) -> Hashes:
    """Return a 64-bit hash of each id: of large_string or large_binary by its bytes, of int64 by its value. Ids are not null. O(bytes).

    It mixes eight bytes at a time as SplitMix64 does (Steele, Lea, Flood, 2014). Two ids may have one hash: who finds a hash compares the ids.
    """
    import pyarrow as pa

    if pa.types.is_integer(ids.type):
        return _mixed(np.asarray(ids.cast(pa.int64())).view(np.uint64) + np.uint64(_ODD))
    if not len(ids):
        return np.zeros(0, np.uint64)
    _, offsets, data = ids.buffers()
    ends = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    starts, lengths = ends[:-1], np.diff(ends)
    # The last word of an id is filled up with what follows, and cut by the mask.
    size = 0 if data is None else data.size
    content = np.zeros(size + _WORD, np.uint8)
    if data is not None:
        content[:size] = np.frombuffer(data, np.uint8)
    found = _mixed(lengths.astype(np.uint64) + np.uint64(_ODD))
    left = np.flatnonzero(lengths)
    at = starts[left]
    rest = lengths[left]
    while len(left):
        words = content[at[:, None] + np.arange(_WORD)].view("<u8").ravel()
        cut = np.uint64(64) - np.uint64(_WORD) * np.minimum(rest, _WORD).astype(np.uint64)
        words = (words << cut) >> cut
        found[left] = _mixed((found[left] ^ words) + np.uint64(_ODD))
        more = rest > _WORD
        left, at, rest = left[more], at[more] + _WORD, rest[more] - _WORD
    return found


def _mixed(values: Hashes) -> Hashes:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_SECOND)
    return values ^ (values >> np.uint64(31))


def _size(ids: int) -> int:
    """Return the bytes of a filter of so many ids."""
    return (ids * _BITS + 7) // 8


def _probes(hashes: Hashes, bits: int) -> Iterator[Hashes]:
    """Yield the bits of each hash, one after the other: two hashes give all of them (Kirsch, Mitzenmacher, 2006)."""
    step = _mixed(hashes + np.uint64(_ODD)) | np.uint64(1)
    for number in range(_PROBES):
        yield (hashes + np.uint64(number) * step) % np.uint64(bits)


def bloom(hashes: Hashes) -> bytes:
    """Return the filter of a set of ids, by their hashes: ten bits an id.

    O(ids), some 0.2 us each.
    """
    size = _size(len(hashes))
    bits = np.zeros(size * 8, np.bool_)
    for probe in _probes(hashes, size * 8):
        bits[probe] = True
    return np.packbits(bits, bitorder="little").tobytes()


def is_bloom(data: bytes, ids: int) -> bool:
    """Return whether this is the filter of so many ids, by its size: one that is missing or cut off is not, nor one of more or fewer ids."""
    return ids > 0 and len(data) == _size(ids)


def perhaps_in(data: bytes, hashes: Hashes) -> NDArray[np.bool_]:
    """Return which of the hashes may be among those that a filter was made of. O(hashes)."""
    content = np.frombuffer(data, np.uint8)
    perhaps = np.ones(len(hashes), np.bool_)
    left = np.arange(len(hashes))
    for probe in _probes(hashes, len(content) * 8):
        place = probe[left]
        is_set = (content[place >> np.uint64(3)] >> (place & np.uint64(7)).astype(np.uint8)) & 1 == 1
        perhaps[left[~is_set]] = False
        left = left[is_set]
    return perhaps
