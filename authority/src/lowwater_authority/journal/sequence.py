"""Where the entries of one append belong: the position rules that every store shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lowwater_authority.journal.errors import JournalPosition
from lowwater_authority.journal.framing import Writer, checksum, encode
from lowwater_authority.journal.interface import Entry


class Run(NamedTuple):
    """The entries of one append for one log, framed."""

    log: str
    first: int
    frames: list[bytes]

    @property
    def last(self) -> int:
        """Position of the last frame."""
        return self.first + len(self.frames) - 1

    def is_new(self, last: int) -> bool:
        """Whether a log that ends at ``last`` lacks the run; False when it ends with it (compare the frames then).

        Raises JournalPosition when it ends anywhere else.
        """
        if last == self.first - 1:
            return True
        if last == self.last:
            return False
        raise JournalPosition(self.log, position=self.first, last=last)

    def is_tail(self, stored: Mapping[int, bytes], *, tail: int) -> bool:
        """Whether a log that ends where the run does ends with the run itself, written by an earlier attempt.

        ``stored`` has the frames that the log still holds, ``tail`` the checksum of its last one, kept when a snapshot
        has taken the frame away.
        """
        return tail == checksum(self.frames[-1]) and all(
            stored.get(position, frame) == frame for position, frame in enumerate(self.frames, self.first)
        )

    def refuse_others(self, last: int) -> JournalPosition:
        """The error for a log that ends where the run does, but with other records."""
        return JournalPosition(self.log, position=self.first, last=last, reason="another record is there")


def runs_of(entries: Sequence[Entry], writer: Writer) -> list[Run]:
    """The entries by log, in order, framed. Raises JournalPosition for entries that are not contiguous in their log.

    >>> me = Writer(epoch=1, nonce=2)
    >>> [(run.log, run.first, run.last) for run in runs_of([Entry("a", 4, b"", True), Entry("a", 5, b"", True)], me)]
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
        run.frames.append(encode(entry.log, entry.position, entry.payload, writer=writer))
    return list(runs.values())
