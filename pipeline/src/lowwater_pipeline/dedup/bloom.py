"""Bloom filters as strings of bytes, and the hash of ids that they use (Bloom, 1970).

Filters and hashes are stored, so they are the same in every process and release. An id sets seven
bits, and a filter has ten bits an id. So about 8 in 1,000 foreign ids pass. An id of the set always
passes.
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
"""Bits of a filter for each id."""
_PROBES: Final = 7
_WORD: Final = 8
"""Bytes that are mixed at a time."""
_ODD: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


def hashed(ids: pa.Array) -> Hashes:
    """Return a 64-bit hash of each id, by the bytes of a text or the value of an int64. O(bytes).

    Ids must not be null. Eight bytes are mixed at a time, as by SplitMix64 (Steele, Lea, Flood,
    2014). Two ids may have the same hash, so callers compare the ids as well.
    """
    import pyarrow as pa

    if pa.types.is_integer(ids.type):
        return _mixed(np.asarray(ids.cast(pa.int64())).view(np.uint64) + np.uint64(_ODD))
    if not len(ids):
        return np.zeros(0, np.uint64)
    _, offsets, data = ids.buffers()
    ends = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    starts, lengths = ends[:-1], np.diff(ends)
    # The last word of an id reads into the next id, and a mask removes those bytes.
    size = 0 if data is None else data.size
    content = np.zeros(size + _WORD, np.uint8)
    if data is not None:
        content[:size] = np.frombuffer(data, np.uint8)
    hashes = _mixed(lengths.astype(np.uint64) + np.uint64(_ODD))
    remaining = np.flatnonzero(lengths)
    at = starts[remaining]
    rest = lengths[remaining]
    while len(remaining):
        words = content[at[:, None] + np.arange(_WORD)].view("<u8").ravel()
        cut = np.uint64(64) - np.uint64(_WORD) * np.minimum(rest, _WORD).astype(np.uint64)
        words = (words << cut) >> cut
        hashes[remaining] = _mixed((hashes[remaining] ^ words) + np.uint64(_ODD))
        more = rest > _WORD
        remaining, at, rest = remaining[more], at[more] + _WORD, rest[more] - _WORD
    return hashes


def _mixed(values: Hashes) -> Hashes:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_SECOND)
    return values ^ (values >> np.uint64(31))


def _size(ids: int) -> int:
    """Return the bytes of a filter for so many ids."""
    return (ids * _BITS + 7) // 8


def _probes(hashes: Hashes, bits: int) -> Iterator[Hashes]:
    """Yield the bits of each hash: two hashes give all of them (Kirsch, Mitzenmacher, 2006)."""
    step = _mixed(hashes + np.uint64(_ODD)) | np.uint64(1)
    for number in range(_PROBES):
        yield (hashes + np.uint64(number) * step) % np.uint64(bits)


def bloom(hashes: Hashes) -> bytes:
    """Return the filter of a set of ids, given their hashes. O(ids), about 0.2 us each."""
    size = _size(len(hashes))
    bits = np.zeros(size * 8, np.bool_)
    for probe in _probes(hashes, size * 8):
        bits[probe] = True
    return np.packbits(bits, bitorder="little").tobytes()


def is_bloom(data: bytes, ids: int) -> bool:
    """Return True when the data has the size of a filter of so many ids; False when it is cut."""
    return ids > 0 and len(data) == _size(ids)


def perhaps_in(data: bytes, hashes: Hashes) -> NDArray[np.bool_]:
    """Return which hashes may be in the set of a filter. O(hashes)."""
    content = np.frombuffer(data, np.uint8)
    perhaps = np.ones(len(hashes), np.bool_)
    remaining = np.arange(len(hashes))
    for probe in _probes(hashes, len(content) * 8):
        place = probe[remaining]
        is_set = (content[place >> np.uint64(3)] >> (place & np.uint64(7)).astype(np.uint8)) & 1 == 1
        perhaps[remaining[~is_set]] = False
        remaining = remaining[is_set]
    return perhaps
