"""The code that all stores share.

It counts calls, remembers owners and ends, and refuses what a log does not allow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from lowwater.core.events import event
from lowwater_authority.journal.contract import (
    GRAPH,
    End,
    Entry,
    Journal,
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

    ``clock`` returns seconds and never goes back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.totals = JournalStatistics()

    @contextmanager
    def append(self, entries: Sequence[Entry]) -> Iterator[None]:
        """Count one append when it is acknowledged, or its error."""
        start = self._clock()
        with self._errors():
            yield
        if entries:
            before = self.totals
            self.totals = replace(
                before,
                appends=before.appends + 1,
                entries=before.entries + len(entries),
                bytes=before.bytes + sum(len(entry.payload) for entry in entries),
                last_append_seconds=self._clock() - start,
            )

    @contextmanager
    def snapshot(self, payload: bytes) -> Iterator[None]:
        """Count one snapshot when it is acknowledged, or its error."""
        with self._errors():
            yield
        self._add(snapshots=1, snapshot_bytes=len(payload))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except JournalUnknown:
            self._add(unknown=1)
            raise
        except JournalError:
            self._add(failed=1)
            raise

    def _add(self, **counts: int) -> None:
        totals = {name: getattr(self.totals, name) + count for name, count in counts.items()}
        self.totals = replace(self.totals, **totals)


class Writer(NamedTuple):
    """The ownership by which a frame was written."""

    epoch: int
    nonce: int


class LogState(NamedTuple):
    """Owner and end of a log, as a process believes or as the store has them."""

    owner: Ownership
    end: End

    @property
    def last(self) -> int:
        """Last position."""
        return self.end.last


class Owned:
    """The logs that one process owns, as far as the store has acknowledged them.

    ``nonce``, 32 random bits, tells the frames of this process in ``GRAPH`` from those of others.
    No method asks a store; each costs one look into a dict.
    """

    def __init__(self, nonce: int) -> None:
        self._graph = Writer(epoch=0, nonce=nonce)
        self._owners: dict[str, Ownership] = {}
        self._ends: dict[str, End] = {}
        self._nonces: dict[str, int] = {}

    def took(self, log: str, ownership: Ownership) -> None:
        """Note that the store has acknowledged this process as the owner.

        The end is unknown until ``reached``.
        """
        self.release(log)
        self._owners[log] = ownership

    def release(self, log: str) -> None:
        """Forget a log."""
        for by_log in (self._owners, self._ends, self._nonces):
            by_log.pop(log, None)

    def ownership(self, log: str) -> Ownership:
        """Return the ownership by which this process writes.

        The result is ``Ownership()`` for ``GRAPH`` and for logs of others.

        >>> owned = Owned(nonce=7)
        >>> owned.took("clicks", Ownership(epoch=3, nonce=99))
        >>> owned.ownership("clicks").epoch, owned.ownership("views").epoch
        (3, 0)
        """
        return self._owners.get(log) or Ownership()

    def writer(self, log: str) -> Writer:
        """Return the writer that the frames of this process name in a log."""
        if log == GRAPH:
            return self._graph
        owner = self.ownership(log)
        return Writer(owner.epoch, owner.nonce)

    def next_nonce(self, log: str, randbits: Callable[[int], int]) -> int:
        """Return the nonce of the next ownership of a log.

        It stays the same until ``took``, so that a repeated call knows its first try.
        """
        if log not in self._nonces:
            self._nonces[log] = randbits(32)
        return self._nonces[log]

    def reached(self, log: str, end: End) -> None:
        """Note that the store has returned or acknowledged a log up to an end.

        Logs of others are ignored.
        """
        if (log == GRAPH or log in self._owners) and end.last > self.end(log).last:
            self._ends[log] = end

    def end(self, log: str) -> End:
        """Return the newest end that the store has returned or acknowledged.

        The result is ``End()`` before the first.
        """
        return self._ends.get(log, End())

    def record(self, log: str, position: int) -> int | None:
        """Return the checksum that the record at the position of a snapshot must have; None: any.

        Only ``GRAPH`` has other writers. Only its end is remembered: before the end the result is
        -1, which no record has.
        """
        if log != GRAPH:
            return None
        end = self.end(log)
        return end.tail if end.last == position else -1

    def states(self, logs: Iterable[str]) -> dict[str, LogState]:
        """Return what this process believes of the logs. The step that writes them checks it."""
        return {log: LogState(self.ownership(log), self.end(log)) for log in logs}


class RememberingJournal(Journal):
    """The part of a Journal that asks no store: what this process owns and has read, and totals.

    ``nonce`` is that of :class:`Owned`.
    """

    def __init__(self, nonce: int = 0, clock: Callable[[], float] = time.perf_counter) -> None:
        self._owned = Owned(nonce)
        self._meter = Meter(clock)

    def release(self, log: str) -> None:
        """See Journal."""
        self._owned.release(log)

    def ownership(self, log: str) -> Ownership:
        """See Journal."""
        return self._owned.ownership(log)

    def acknowledged(self, log: str) -> End:
        """See Journal."""
        return self._owned.end(log)

    def statistics(self) -> JournalStatistics:
        """See Journal."""
        return self._meter.totals


def judge(believed: Mapping[str, LogState], actual: Mapping[str, LogState]) -> None:
    """Compare what a writer believes of its logs with what the store has.

    Raises JournalFenced with all logs that the writer does not own, or else JournalLost with all
    logs of which the store has lost a part. ``GRAPH`` has no owner.

    >>> mine = LogState(Ownership(epoch=3, nonce=99), End(last=10, tail=7))
    >>> judge({"clicks": mine}, {"clicks": LogState(mine.owner, End(last=12, tail=8))})
    >>> judge({"clicks": mine}, {"clicks": LogState(mine.owner, End(last=10, tail=8))})
    Traceback (most recent call last):
        ...
    lowwater_authority.journal.contract.JournalLost: the store has lost records or epochs ...
    """
    fenced = {
        log: (mine.owner.epoch, actual[log].owner.epoch)
        for log, mine in believed.items()
        if log != GRAPH and (not mine.owner.epoch or is_usurped(mine.owner, actual[log].owner))
    }
    if fenced:
        raise JournalFenced(fenced)
    refuse_lost(believed, actual)


def refuse_lost(believed: Mapping[str, LogState], actual: Mapping[str, LogState]) -> None:
    """Raise JournalLost with all logs of which the store has lost a part.

    Logs with a newer owner are left to that owner.
    """
    lost = {
        log: (mine.last, actual[log].last)
        for log, mine in believed.items()
        if not is_usurped(mine.owner, actual[log].owner)
        and (_lacks(actual[log].end, mine.end) or actual[log].owner.epoch < mine.owner.epoch)
    }
    if lost:
        raise JournalLost(lost)


def _lacks(actual: End, acknowledged: End) -> bool:
    """Return whether a log lacks what was acknowledged.

    It is shorter, or ends there with another record. A longer log is not judged: other processes
    may have appended to the graph. A process that reads the graph compares it with its own.
    """
    return actual.last < acknowledged.last or (actual.last == acknowledged.last and actual.tail != acknowledged.tail)


def refuse_other_end(log: str, position: int, actual: End, over: End | None) -> None:
    """Raise JournalPosition when a log that is to be restored has grown since it was read."""
    if over is not None and actual != over:
        reason = "it has changed since it was read"
        raise JournalPosition(log, position=position, last=actual.last, reason=reason)


def is_usurped(mine: Ownership, actual: Ownership) -> bool:
    """Return whether the owner in the store came after ``mine``.

    When the store has lost an epoch, another owner may have the same one, with another nonce.
    """
    return actual.epoch > mine.epoch or (actual.epoch == mine.epoch and actual.nonce != mine.nonce)


def refuse_older_view(log: str, claim: Ownership, actual: Ownership) -> None:
    """Raise JournalOutvoted when the present owner was chosen under a newer view than the claim."""
    if actual.view > claim.view:
        raise JournalOutvoted(log, view=claim.view, newest=actual.view)


def log_created(place: str, server_token: str) -> None:
    """Log that a new deployment begins.

    If there was one before, its volume is not mounted, or its store was emptied.
    """
    log.warning(
        "a new deployment begins in %s, its token is %s: if there was one before, stop, and mount its volume or name its store",
        place,
        server_token,
        extra=event("journal_created", store=place, server_token=server_token),
    )


def nothing_there(place: str) -> JournalFailed:
    """Return the error for a place without the deployment that is expected there."""
    return JournalFailed(
        f"there is no deployment in {place}, and none is begun because one is expected: mount its volume, "
        "name its store, or restore a copy"
    )
