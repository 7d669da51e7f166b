"""The check that tells a torn tail of an SQLite write-ahead log from a damaged middle.

It runs before SQLite opens the log. SQLite reads the frames of the log up to the first bad checksum
and silently forgets the rest. For a transaction that was cut off by a crash this is right. But each
transaction is synced before the next one begins, so only the newest one can be torn. Frames behind
a bad frame, beyond the end of its transaction, were acknowledged: forgetting them would break a
promise.

Two kinds of damage look like a torn transaction: damage inside the newest transaction, and damage
to the frame header that ends the transaction before it.

Format: https://www.sqlite.org/fileformat2.html#walformat. Only ``check_file`` reads a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lowwater_authority.journal.contract import JournalCorrupt

Words = npt.NDArray[np.uint32]

_HEADER = 32
_FRAME_HEADER = 24
_MAGIC = 0x377F0682
"""Mark of a log. With the lowest bit set, its checksums are over big-endian words."""
_BLOCK = 512
"""Frames that are summed at a time: 2 MB of pages."""
_MASK = 0xFFFFFFFF


class Scan(NamedTuple):
    """The result of reading a write-ahead log."""

    frames: int
    """Number of good frames from the start on."""
    damaged: int | None
    """Offset in bytes of damage in front of an acknowledged transaction; None without damage."""


def check_file(path: Path) -> None:
    """Raise JournalCorrupt when the log at ``path`` is damaged before its newest transaction.

    A missing file is right. Cost: one pass over the frames since the last restart of the log,
    normally about 4 MB: some ten milliseconds.
    """
    if not path.exists() or path.stat().st_size < _HEADER:
        return
    result = scan(np.memmap(path, dtype=np.uint8, mode="r"))
    if result.damaged is not None:
        raise JournalCorrupt(
            None, None, f"{path} is bad at byte {result.damaged}, with acknowledged transactions behind it"
        )


def scan(data: npt.NDArray[np.uint8]) -> Scan:
    """Read a whole write-ahead log.

    >>> scan(np.zeros(0, np.uint8))
    Scan(frames=0, damaged=None)
    """
    if len(data) < _HEADER:
        return Scan(0, None)
    magic, _, page_size, _, salt1, salt2, *stored = data[:_HEADER].view(">u4").tolist()
    order = ">u4" if magic & 1 else "<u4"
    if magic & ~1 != _MAGIC or _header_sum(data, order) != tuple(stored):
        # The header is synced by itself before any frame follows, and is within one sector: it
        # cannot be torn.
        return Scan(0, 0 if len(data) >= _HEADER + _FRAME_HEADER + 512 else None)
    size = _FRAME_HEADER + page_size
    frames = data[_HEADER : _HEADER + (len(data) - _HEADER) // size * size].reshape(-1, size)
    headers = frames[:, :_FRAME_HEADER].copy().view(">u4").astype(np.uint32)
    ours = (headers[:, 2] == salt1) & (headers[:, 3] == salt2)
    commits = ours & (headers[:, 1] != 0)
    # Frames of an earlier round through the file carry other salts.
    limit = len(ours) if ours.all() else int(np.argmin(ours))
    good = _good_frames(frames[:limit], headers, order, (stored[0], stored[1]))
    ends = np.flatnonzero(commits[good:])
    # Only the newest transaction may not be synced: no frame of this round may follow its end.
    behind = len(ends) > 0 and bool(ours[good + int(ends[0]) + 1 :].any())
    return Scan(good, _HEADER + good * size if behind else None)


def _good_frames(frames: npt.NDArray[np.uint8], headers: Words, order: str, seed: tuple[int, int]) -> int:
    """Return the number of frames from the start on whose running checksum is right."""
    if not len(frames):
        return 0
    words = (8 + frames.shape[1] - _FRAME_HEADER) // 4
    step, weights = _weights(words // 2)
    s0, s1 = seed
    for start in range(0, len(frames), _BLOCK):
        block = frames[start : start + _BLOCK]
        # A frame's checksum covers the first eight bytes of its header, and its page.
        covered = np.concatenate((block[:, :8], block[:, _FRAME_HEADER:]), axis=1).view(order).astype(np.uint32)
        added = covered @ weights
        for index, (a0, a1) in enumerate(added.tolist(), start):
            s0, s1 = (
                (step[0][0] * s0 + step[0][1] * s1 + a0) & _MASK,
                (step[1][0] * s0 + step[1][1] * s1 + a1) & _MASK,
            )
            if (s0, s1) != (int(headers[index, 4]), int(headers[index, 5])):
                return index
    return len(frames)


def _weights(pairs: int) -> tuple[list[list[int]], Words]:
    """Return the checksum of a run of ``pairs`` pairs of words, as a linear map modulo 2^32.

    SQLite adds a pair (x, y) by ``s0 += x + s1; s1 += y + s0``, that is s' = A s + B (x, y) with A
    = [[1, 1], [1, 2]] and B = [[1, 0], [1, 1]]. Over the run this gives A^n s plus each pair times
    A^(n-1-k) B, of shape (2 n, 2).
    """
    weights = np.empty((2 * pairs, 2), np.uint32)
    a, b, c, d = 1, 0, 0, 1
    for k in range(pairs - 1, -1, -1):
        weights[2 * k] = (a + b) & _MASK, (c + d) & _MASK
        weights[2 * k + 1] = b, d
        a, b, c, d = (a + b) & _MASK, (a + 2 * b) & _MASK, (c + d) & _MASK, (c + 2 * d) & _MASK
    return [[a, b], [c, d]], weights


def _header_sum(data: npt.NDArray[np.uint8], order: str) -> tuple[int, int]:
    """Return the checksum of the log's own header."""
    _, weights = _weights(3)
    s0, s1 = (data[:24].view(order).astype(np.uint32) @ weights).tolist()
    return s0, s1
