"""Where the entries of one append belong: the position rules that every store shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lowwater_authority.journal.contract import GRAPH, Entry
from lowwater_authority.journal.errors import JournalPosition
from lowwater_authority.journal.frames import Writer, checksum, encode
from lowwater_authority.journal.owned import End


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
        """Where a log ends that ends with the run."""
        return End(self.last, checksum(self.frames[-1]))

    def is_new(self, last: int) -> bool:
        """Whether a log that ends at ``last`` lacks the run; False when it may have it already: ask ``is_written``.

        Raises JournalPosition when it surely has not, and does not end just before it.
        """
        if last == self.first - 1:
            return True
        # Only in the graph may another process have gone on behind an attempt of unknown outcome.
        if last == self.last or (self.log == GRAPH and last > self.last):
            return False
        raise JournalPosition(self.log, position=self.first, last=last)

    def is_written(self, stored: Mapping[int, bytes], *, last: int, tail: int) -> bool:
        """Whether a log that reaches the end of the run has the run itself, written by an earlier attempt.

        ``stored`` has the frames that the log still holds, ``tail`` the checksum of the one at ``last``, kept when a
        snapshot has taken the frame away.
        """
        if last == self.last and tail == checksum(self.frames[-1]):
            return all(stored.get(position, frame) == frame for position, frame in enumerate(self.frames, self.first))
        return all(stored.get(position) == frame for position, frame in enumerate(self.frames, self.first))

    def refuse_others(self, last: int) -> JournalPosition:
        """The error for a log that has other records where the run belongs."""
        return JournalPosition(self.log, position=self.first, last=last, reason="another record is there")


def refuse_another(log: str, position: int, last: int, record: int | None, frame: bytes | None) -> None:
    """Raise JournalPosition unless a snapshot is of the record that is there; ``record`` as ``Owned.record`` knows it."""
    if record is not None and (frame is None or checksum(frame) != record):
        raise JournalPosition(log, position=position, last=last, reason="another record is there")


def runs_of(entries: Sequence[Entry], writer: Callable[[str], Writer]) -> list[Run]:
    """The entries by log, in order, framed by the ``writer`` of their log, as ``Owned.writer`` knows it.

    Raises JournalPosition for entries that are not contiguous in their log.

    >>> me = lambda log: Writer(epoch=1, nonce=2)
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
        run.frames.append(encode(entry.log, entry.position, entry.payload, writer=writer(entry.log)))
    return list(runs.values())
