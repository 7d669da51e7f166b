"""What all stores do alike: count calls, remember owners and ends, and refuse what a log does not allow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from lowwater.core.events import event
from lowwater_authority.journal.contract import (
    GRAPH,
    End,
    Entry,
    JournalError,
    JournalFailed,
    JournalFenced,
    JournalLost,
    JournalOutvoted,
    JournalPosition,
    JournalStatistics,
    JournalUnknown,
    Ownership,
)

log = logging.getLogger(__name__)


class Meter:
    """The running totals behind ``Journal.statistics``.

    ``clock`` gives seconds and only ever grows.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._appends = self._entries = self._bytes = 0
        self._snapshots = self._snapshot_bytes = 0
        self._failed = self._unknown = 0
        self._seconds = 0.0

    @contextmanager
    def append(self, entries: Sequence[Entry]) -> Iterator[None]:
        """Around one append: counted when acknowledged."""
        start = self._clock()
        with self._errors():
            yield
        if entries:
            self._seconds = self._clock() - start
            self._appends += 1
            self._entries += len(entries)
            self._bytes += sum(len(entry.payload) for entry in entries)

    @contextmanager
    def snapshot(self, payload: bytes) -> Iterator[None]:
        """Around one snapshot: counted when acknowledged."""
        with self._errors():
            yield
        self._snapshots += 1
        self._snapshot_bytes += len(payload)

    def statistics(self) -> JournalStatistics:
        """The totals."""
        return JournalStatistics(
            appends=self._appends,
            entries=self._entries,
            bytes=self._bytes,
            last_append_seconds=self._seconds,
            snapshots=self._snapshots,
            snapshot_bytes=self._snapshot_bytes,
            failed=self._failed,
            unknown=self._unknown,
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except JournalUnknown:
            self._unknown += 1
            raise
        except JournalError:
            self._failed += 1
            raise


class Writer(NamedTuple):
    """Who wrote a frame."""

    epoch: int
    nonce: int


class LogState(NamedTuple):
    """Owner and end of a log: as a process believes, or as the store has it."""

    owner: Ownership
    end: End

    @property
    def last(self) -> int:
        """The last position."""
        return self.end.last


class Owned:
    """The logs of one process.

    ``nonce``, 32 random bits, tells its frames in ``GRAPH`` from those of other processes.

    Pure memory; nothing here asks a store. Each method costs one look into a dict.
    """

    def __init__(self, nonce: int) -> None:
        self._graph = Writer(epoch=0, nonce=nonce)
        self._owners: dict[str, Ownership] = {}
        self._ends: dict[str, End] = {}
        self._nonces: dict[str, int] = {}

    def took(self, log: str, ownership: Ownership) -> None:
        """The store has acknowledged this process as the owner; how far the log reaches is unknown until ``reached``."""
        self.release(log)
        self._owners[log] = ownership

    def release(self, log: str) -> None:
        """Forget a log."""
        for remembered in (self._owners, self._ends, self._nonces):
            remembered.pop(log, None)

    def ownership(self, log: str) -> Ownership:
        """The ownership by which this process writes; ``Ownership()`` for a log that is not its own, and for ``GRAPH``.

        >>> owned = Owned(nonce=7)
        >>> owned.took("clicks", Ownership(epoch=3, nonce=99))
        >>> owned.ownership("clicks").epoch, owned.ownership("views").epoch
        (3, 0)
        """
        return self._owners.get(log) or Ownership()

    def writer(self, log: str) -> Writer:
        """What the frames of this process carry in a log."""
        if log == GRAPH:
            return self._graph
        owner = self.ownership(log)
        return Writer(owner.epoch, owner.nonce)

    def next_nonce(self, log: str, randbits: Callable[[int], int]) -> int:
        """The nonce of the next ownership of a log, the same until ``took``: a repeated call knows its first try."""
        if log not in self._nonces:
            self._nonces[log] = randbits(32)
        return self._nonces[log]

    def reached(self, log: str, end: End) -> None:
        """The store has read out, or acknowledged, the log up to there.

        Of a log that is not owned nothing is kept.
        """
        if (log == GRAPH or log in self._owners) and end.last > self.end(log).last:
            self._ends[log] = end

    def end(self, log: str) -> End:
        """How far the store is known to reach; ``End()`` when nothing is known."""
        return self._ends.get(log, End())

    def record(self, log: str, position: int) -> int | None:
        """The checksum of the record that a snapshot of a log is of; None in a log that nobody else writes meanwhile.

        -1, which no record has, in ``GRAPH`` where this process knows it to go on: its end is all that is remembered.
        """
        if log != GRAPH:
            return None
        end = self.end(log)
        return end.tail if end.last == position else -1

    def states(self, logs: Iterable[str]) -> dict[str, LogState]:
        """What this process believes of the logs, to be judged when its write has its turn."""
        return {log: LogState(self.ownership(log), self.end(log)) for log in logs}


def judge(believed: Mapping[str, LogState], found: Mapping[str, LogState]) -> None:
    """Compare what a writer believes of its logs with what the store has.

    Raises JournalFenced with all logs that the writer does not own, or else JournalLost with all
    that the store has lost a part of. ``GRAPH`` has no owner.

    >>> mine = LogState(Ownership(epoch=3, nonce=99), End(last=10, tail=7))
    >>> judge({"clicks": mine}, {"clicks": LogState(mine.owner, End(last=12, tail=8))})
    >>> judge({"clicks": mine}, {"clicks": LogState(mine.owner, End(last=10, tail=8))})
    Traceback (most recent call last):
        ...
    lowwater_authority.journal.contract.JournalLost: the store has lost records or epochs ...
    """
    fenced = {
        log: (mine.owner.epoch, found[log].owner.epoch)
        for log, mine in believed.items()
        if log != GRAPH and (not mine.owner.epoch or is_usurped(mine.owner, found[log].owner))
    }
    if fenced:
        raise JournalFenced(fenced)
    refuse_lost(believed, found)


def refuse_lost(believed: Mapping[str, LogState], found: Mapping[str, LogState]) -> None:
    """Raise JournalLost with all logs that the store has lost a part of; what others own by now is their business."""
    lost = {
        log: (mine.last, found[log].last)
        for log, mine in believed.items()
        if not is_usurped(mine.owner, found[log].owner)
        and (_lacks(found[log].end, mine.end) or found[log].owner.epoch < mine.owner.epoch)
    }
    if lost:
        raise JournalLost(lost)


def _lacks(found: End, acknowledged: End) -> bool:
    """Whether a log lacks what was acknowledged: it is shorter, or ends there with another record.

    What is behind it says nothing: others may have gone on with the graph, which whoever reads it
    compares with its own.
    """
    return found.last < acknowledged.last or (found.last == acknowledged.last and found.tail != acknowledged.tail)


def refuse_other_end(log: str, position: int, found: End, over: End | None) -> None:
    """Raise JournalPosition when a log that is to be restored does not end where it ended when it was read."""
    if over is not None and found != over:
        reason = "it has changed since it was read"
        raise JournalPosition(log, position=position, last=found.last, reason=reason)


def is_usurped(mine: Ownership, found: Ownership) -> bool:
    """Whether the store's owner came after ``mine``, or beside it, in a store that has lost an epoch."""
    return found.epoch > mine.epoch or (found.epoch == mine.epoch and found.nonce != mine.nonce)


def refuse_older_view(log: str, wanted: Ownership, found: Ownership) -> None:
    """Raise JournalOutvoted when newer members have chosen the owner that is there."""
    if found.view > wanted.view:
        raise JournalOutvoted(log, view=wanted.view, newest=found.view)


def log_created(place: str, server_token: str) -> None:
    """Log that a new deployment begins.

    Where there was one before, its volume is not mounted, or its store was emptied.
    """
    log.warning(
        "a new deployment begins in %s, its token is %s: if there was one before, stop, and mount its volume or name its store",
        place,
        server_token,
        extra=event("journal_created", store=place, server_token=server_token),
    )


def nothing_there(place: str) -> JournalFailed:
    """The error for a place without a journal, where there has to be one."""
    return JournalFailed(
        f"there is no deployment in {place}, and no other is begun because one is expected there: mount its volume, name its store, or restore a copy"
    )
