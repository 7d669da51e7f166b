"""The frame of a payload in a store. Decoding refuses a frame that is not exactly what was written.

A frame is a header and the payload. The checksum covers the frame and its place, which the frame
itself does not repeat: the log, the position, the part. A good record in a wrong place is as bad as
a damaged one.

| bytes | field                                                                      |
| ----- | -------------------------------------------------------------------------- |
| 0-3   | CRC-32 of the place and of all bytes behind this field                     |
| 4-5   | format                                                                     |
| 6-7   | kind: a record, or a part of a snapshot                                    |
| 8-15  | epoch of the writer                                                        |
| 16-19 | nonce of the writer                                                        |
| 20-23 | number of parts; 1 for a record                                            |
| 24-31 | length of the payload                                                      |

Numbers are little-endian. The first two fields and the rule of the checksum stay the same in every
format, so that a frame of a newer release can be told from a damaged one. This module reads and
writes no file; the cost is one pass over the payload (about 1 GB/s).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from lowwater_authority.journal.contract import GRAPH, End, Entry, JournalCorrupt, JournalPosition, JournalVersion
from lowwater_authority.journal.rules import Writer

FORMAT = 3
"""Newest format. All older ones are read: 1 had no bound of a revocation, and whole graphs only; 2
had no slices."""

USUAL = 2
"""Format of all records that older releases may read. If a newer record had it, they would lose the
fields that they do not know when they write the state again."""

PART_BYTES = 1 << 18
"""Size of the parts of a snapshot. Each part is written by itself, so that appends get their turn
in between."""

_HEADER = struct.Struct("<IHHQIIQ")
_CHECKSUM = struct.Struct("<I")
_PLACE = struct.Struct("<QII")


class Kind(enum.IntEnum):
    """The content of a frame."""

    RECORD = 1
    SNAPSHOT = 2


class Frame(NamedTuple):
    """A frame whose checksum is right."""

    writer: Writer
    parts: int
    payload: bytes


def encode(
    log: str,
    position: int,
    payload: bytes,
    *,
    writer: Writer,
    kind: Kind = Kind.RECORD,
    part: int = 0,
    parts: int = 1,
    newest: bool = False,
) -> bytes:
    """Return the frame of a payload at its place.

    With ``newest`` it has the newest format, which older releases refuse.

    >>> frame = encode("clicks", 7, b"payload", writer=Writer(epoch=3, nonce=99))
    >>> len(frame), decode("clicks", 7, frame).payload
    (39, b'payload')
    """
    header = _HEADER.pack(0, FORMAT if newest else USUAL, kind, writer.epoch, writer.nonce, parts, len(payload))
    value = crc32(payload, crc32(header[_CHECKSUM.size :], _place(log, position, part)))
    return b"".join((_CHECKSUM.pack(value), header[_CHECKSUM.size :], payload))


def snapshot_parts(payload: bytes) -> int:
    """Return the number of parts that a snapshot is stored in."""
    return max(1, -(-len(payload) // PART_BYTES))


def encode_part(log: str, position: int, payload: bytes, part: int, writer: Writer, *, newest: bool) -> bytes:
    """Return the frame of one part of a snapshot; ``payload`` is all of it."""
    piece, parts = payload[part * PART_BYTES : (part + 1) * PART_BYTES], snapshot_parts(payload)
    return encode(log, position, piece, writer=writer, kind=Kind.SNAPSHOT, part=part, parts=parts, newest=newest)


def decode(log: str, position: int, data: bytes, *, kind: Kind = Kind.RECORD, part: int = 0) -> Frame:
    """Return what was encoded.

    Raises JournalCorrupt when a byte differs from what was written at this place, JournalVersion
    for a frame of a newer release.

    >>> decode("clicks", 8, encode("clicks", 7, b"payload", writer=Writer(3, 99)))
    Traceback (most recent call last):
        ...
    lowwater_authority.journal.contract.JournalCorrupt: log 'clicks' at position 8 is damaged: ...
    """
    if len(data) < _HEADER.size:
        raise JournalCorrupt(log, position, f"{len(data)} bytes are too few for a frame")
    stored_checksum, stored_format, stored_kind, epoch, nonce, parts, length = _HEADER.unpack_from(data)
    body = memoryview(data)[_CHECKSUM.size :]
    if crc32(body, _place(log, position, part)) != stored_checksum:
        raise JournalCorrupt(log, position, "the checksum differs")
    if stored_format > FORMAT:
        raise JournalVersion(f"log {log!r} at position {position}", stored=stored_format, supported=FORMAT)
    if stored_kind != kind or length != len(data) - _HEADER.size or not 0 <= part < parts:
        raise JournalCorrupt(log, position, "the frame is of another kind or length")
    return Frame(Writer(epoch, nonce), parts, data[_HEADER.size :])


def checksum(frame: bytes) -> int:
    """Return the checksum in a frame."""
    return int(_CHECKSUM.unpack_from(frame)[0])


def decode_records(
    log: str,
    rows: Iterable[tuple[int, bytes]],
    *,
    after: int,
    last: int,
    tail: int,
    epoch: int,
) -> tuple[list[tuple[int, bytes]], dict[int, int]]:
    """Return positions and payloads of the rows, and the checksums by position.

    The rows must be exactly those from ``after`` + 1 to ``last``, in order. ``tail`` is the
    checksum of the record at ``last``, ``epoch`` the newest of the log. Raises JournalCorrupt for a
    missing, superfluous or damaged row, for an old version of a record, and for a record behind one
    of a newer owner. The order of the owners is not checked in ``GRAPH``, which has many writers.
    """
    records: list[tuple[int, bytes]] = []
    tails: dict[int, int] = {}
    expected, newest = after, 0
    for position, data in rows:
        expected += 1
        if position > last:
            raise JournalCorrupt(log, position, f"the log ends at {last}, but there is a record behind")
        if position != expected:
            raise JournalCorrupt(log, expected, f"the record is missing, the next one is {position}")
        frame = decode(log, position, data)
        if log != GRAPH and not newest <= frame.writer.epoch <= epoch:
            raise JournalCorrupt(log, position, f"written by epoch {frame.writer.epoch} after {newest}, of {epoch}")
        newest, tails[position] = frame.writer.epoch, checksum(data)
        records.append((position, frame.payload))
    if expected != last:
        raise JournalCorrupt(log, expected + 1, f"the record is missing, the log ends at {last}")
    if tails.setdefault(last, tail) != tail:  # without rows the log ends where they would begin
        raise JournalCorrupt(log, last, "it is not the record that was written last")
    return records, tails


def refuse_snapshot_behind(log: str, position: int, snapshot: int) -> None:
    """Raise JournalCorrupt when a snapshot has taken the place of records behind a position."""
    if snapshot > position:
        raise JournalCorrupt(log, snapshot, f"a snapshot stands in the place of what is behind position {position}")


def _place(log: str, position: int, part: int) -> int:
    """Return the running checksum of the place of a frame."""
    name = log.encode()
    return crc32(name, crc32(_PLACE.pack(position, part, len(name))))


class Run(NamedTuple):
    """The entries of one append for one log, framed."""

    log: str
    first: int
    frames: list[bytes]

    @property
    def last(self) -> int:
        """Position of the last frame."""
        return self.first + len(self.frames) - 1

    @property
    def end(self) -> End:
        """End of a log that ends with the run."""
        return End(self.last, checksum(self.frames[-1]))

    def is_new(self, last: int) -> bool:
        """Return whether a log that ends at ``last`` lacks the run.

        If not, an earlier attempt may have written it: ask ``is_written``. Raises JournalPosition
        when no attempt can have written it, and the log does not end just before it.
        """
        if last == self.first - 1:
            return True
        # In the graph, another process may have appended after an attempt of unknown outcome.
        if last == self.last or (self.log == GRAPH and last > self.last):
            return False
        raise JournalPosition(self.log, position=self.first, last=last)

    def is_written(self, stored: Mapping[int, bytes], *, last: int, tail: int) -> bool:
        """Return whether an earlier attempt has written the run.

        The log reaches the end of the run. ``stored`` has the frames that the log still holds.
        ``tail`` is the checksum of the frame at ``last``, which the log keeps when a snapshot has
        removed the frame.
        """
        if last == self.last and tail == checksum(self.frames[-1]):
            # The last frame may be damaged since; its checksum is stored apart. The process that
            # has the record in memory must learn that it was written.
            before = enumerate(self.frames[:-1], self.first)
            return all(stored.get(position, frame) == frame for position, frame in before)
        return all(stored.get(position) == frame for position, frame in enumerate(self.frames, self.first))

    def refuse_others(self, last: int) -> JournalPosition:
        """Return the error for a log that has other records in the place of the run."""
        return JournalPosition(self.log, position=self.first, last=last, reason="another record is there")


def refuse_another(log: str, position: int, last: int, record: int | None, frame: bytes | None) -> None:
    """Raise JournalPosition unless the stored record is the one that a snapshot covers.

    ``frame`` is the stored record; ``record`` is from ``Owned.record``.
    """
    if record is not None and (frame is None or checksum(frame) != record):
        raise JournalPosition(log, position=position, last=last, reason="another record is there")


def runs_of(entries: Sequence[Entry], writer: Callable[[str], Writer]) -> list[Run]:
    """Return the entries by log, in order, framed for the ``writer`` of each log.

    ``writer`` is ``Owned.writer``. Raises JournalPosition for entries that are not contiguous in
    their log.

    >>> me = lambda log: Writer(epoch=1, nonce=2)
    >>> entries = [Entry("a", 4, b"", True), Entry("a", 5, b"", True)]
    >>> [(run.log, run.first, run.last) for run in runs_of(entries, me)]
    [('a', 4, 5)]
    """
    runs: dict[str, Run] = {}
    for entry in entries:
        run = runs.setdefault(entry.log, Run(entry.log, entry.position, []))
        expected = run.first + len(run.frames)
        if entry.position != expected or expected < 1:
            raise JournalPosition(
                entry.log, position=entry.position, last=expected - 1, reason="positions count from 1 without gaps"
            )
        run.frames.append(
            encode(entry.log, entry.position, entry.payload, writer=writer(entry.log), newest=entry.newest)
        )
    return list(runs.values())
