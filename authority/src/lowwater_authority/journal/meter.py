"""Counts what a journal does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lowwater_authority.journal.contract import Entry, JournalStatistics
from lowwater_authority.journal.errors import JournalError, JournalUnknown


class Meter:
    """The running totals behind ``Journal.statistics``. ``clock`` gives seconds and only ever grows."""

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
