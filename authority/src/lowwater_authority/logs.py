"""The logs of a shard: how far each is written, appends that are retried until their outcome is known, snapshots."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lowwater_authority.journal import Entry, JournalError, JournalFailed, JournalUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowwater_authority.journal import Journal, LoadedLog
    from lowwater_authority.observer import Observer

SNAPSHOT_BYTES: Final = 4 << 20
"""A log is snapshotted when the records behind its snapshot outgrow this and twice the snapshot."""

RETRY_SECONDS: Final = (0.05, 2.0)
"""First and longest wait before an append of unknown outcome is tried again."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Log:
    position: int = 0
    behind: int = 0
    """Bytes of records behind the snapshot."""
    snapshot_bytes: int = 0


class Logs:
    """Positions of all logs, over one journal."""

    def __init__(self, journal: Journal, observer: Observer) -> None:
        self.journal = journal
        self._observer = observer
        self._logs: dict[str, _Log] = {}
        self._snapshots: dict[str, asyncio.Task[None]] = {}
        self.stopping = False
        """Whether an append of unknown outcome is given up instead of tried again."""
        self.unconfirmed_since: int | None = None
        """Processing time at which an append began whose outcome is not known yet."""

    async def load(self, name: str) -> LoadedLog:
        """Read a log and remember where it ends."""
        loaded = await self.journal.load(name)
        behind = sum(len(payload) for _, payload in loaded.records)
        self._logs[name] = _Log(loaded.last, behind, len(loaded.snapshot or b""))
        return loaded

    async def append(self, records: Sequence[tuple[str, bytes, bool]], now: int) -> None:
        """Append (log, payload, strong) in one step; returns when durable. Raises JournalFailed, JournalFenced, ..."""
        if not records:
            return
        entries = [Entry(name, self._log(name).position + 1, payload, strong) for name, payload, strong in records]
        self.unconfirmed_since = now
        with self._observer.append(sum(len(entry.payload) for entry in entries)):
            try:
                await self._append(entries)
            except JournalFailed:
                self.unconfirmed_since = None
                raise
        self.unconfirmed_since = None
        for entry in entries:
            state = self._log(entry.log)
            state.position = entry.position
            state.behind += len(entry.payload)

    async def _append(self, entries: Sequence[Entry]) -> None:
        wait = RETRY_SECONDS[0]
        while True:
            try:
                return await self.journal.append(entries)
            except JournalUnknown as error:
                if self.stopping:
                    raise
                # Until it is known whether the append happened, nothing may be shown and nothing else appended.
                log.warning("append of unknown outcome, trying again as is in %.2f s: %s", wait, error)
                await asyncio.sleep(wait)
                wait = min(2 * wait, RETRY_SECONDS[1])

    def due(self, name: str) -> bool:
        """Whether a snapshot of a log would bound the replay, and none is being written."""
        state = self._log(name)
        return name not in self._snapshots and state.behind > max(SNAPSHOT_BYTES, 2 * state.snapshot_bytes)

    def behind(self, name: str) -> int:
        """Return how many bytes of records are behind the snapshot of a log."""
        return self._log(name).behind

    def snapshot(self, name: str, take: Callable[[], bytes]) -> None:
        """Begin to replace a log's records by a snapshot of what is durable now; appends go on meanwhile.

        A failure is logged: a snapshot only shortens the replay.
        """
        state = self._log(name)
        try:
            payload = take()
        except Exception:
            log.exception("no snapshot of %r can be taken", name)
            return
        self._snapshots[name] = asyncio.create_task(self._snapshot(name, state.position, state.behind, payload))

    async def _snapshot(self, name: str, position: int, covered: int, payload: bytes) -> None:
        try:
            await self.journal.snapshot(name, position, payload)
        except JournalError as error:
            log.warning("no snapshot of %r: %s", name, error)
        else:
            state = self._log(name)
            state.behind, state.snapshot_bytes = max(0, state.behind - covered), len(payload)
        finally:
            del self._snapshots[name]

    async def settle(self) -> None:
        """Wait for the snapshots that were begun."""
        while self._snapshots:
            await asyncio.wait(self._snapshots.values())

    def _log(self, name: str) -> _Log:
        return self._logs.setdefault(name, _Log())
