"""The embedded journal: one SQLite file, one process."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from lowwater_authority.journal.errors import JournalClosed
from lowwater_authority.journal.framing import Kind, Writer, encode
from lowwater_authority.journal.interface import Entry, Journal, JournalStatistics, LoadedLog
from lowwater_authority.journal.meter import Meter
from lowwater_authority.journal.sequence import runs_of
from lowwater_authority.journal.sqlite_database import SqliteDatabase

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PART_BYTES = 1 << 18
"""Size of the parts of a snapshot. Each is a transaction of its own, so that appends get their turn in between."""


class SqliteJournal(Journal):
    """The contract of Journal over an SQLite database in WAL mode, synced in every commit.

    Strong and other entries are equally durable: an acknowledged entry survives the machine's death as far as the disk
    keeps what ``fdatasync`` returned for. SQLite works on a thread of its own; the event loop never waits for the disk.
    A failed write surely wrote nothing, except when the commit itself fails other than by a full disk or a lock: then
    JournalUnknown.

    ``path`` is the database; beside it are ``path-wal``, ``path-shm`` and ``path.lock``. Its directory must exist. Local
    file systems only: over a network neither the lock nor WAL mode can be relied on. ``randbits`` makes the server
    token and the nonce; ``clock`` gives the seconds of the statistics.
    """

    def __init__(
        self,
        path: Path,
        *,
        randbits: Callable[[int], int] = secrets.randbits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._database = SqliteDatabase(path.absolute())
        self._randbits = randbits
        self._meter = Meter(clock)
        self._writer = Writer(epoch=0, nonce=0)
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        """See Journal. Raises JournalFailed when the directory is missing or the file is not a journal's."""
        self._thread = thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lowwater-journal")
        try:
            owner = await self._run(self._database.open, self._randbits)
        except BaseException:
            # Cancelled, it may go on and take the lock all the same.
            self._let_go(thread)
            raise
        self._writer = owner.writer
        self.server_token = owner.server_token
        self.epoch, self.nonce = owner.writer

    async def logs(self) -> list[str]:
        """See Journal."""
        return await self._run(self._database.logs)

    async def load(self, log: str) -> LoadedLog:
        """See Journal."""
        return await self._run(self._database.load, log)

    async def append(self, entries: Sequence[Entry]) -> None:
        """See Journal. Cost: about 0.2 ms and one sync; every few megabytes a checkpoint of some ten milliseconds."""
        with self._meter.append(entries):
            await self._run(self._append, tuple(entries))

    async def snapshot(self, log: str, position: int, payload: bytes) -> None:
        """See Journal. Written in parts of 256 KiB; cancelled or cut off, the parts are removed later."""
        with self._meter.snapshot(payload):
            key = await self._run(self._database.begin_snapshot, log, position)
            if key is None:
                return
            parts = max(1, -(-len(payload) // PART_BYTES))
            for part in range(parts):
                await self._run(self._stage, key, log, position, payload, part, parts)
            await self._run(self._database.finish_snapshot, log, position, parts)
            # A call at a time, so that appends get their turn in between.
            while await self._run(self._database.purge_some, log):
                pass

    async def close(self) -> None:
        """See Journal."""
        if self._thread is not None:
            await asyncio.shield(self._let_go(self._thread))

    def statistics(self) -> JournalStatistics:
        """See Journal."""
        return self._meter.statistics()

    def _append(self, entries: Sequence[Entry]) -> None:
        # Checksums of large payloads are work for this thread too, not for the event loop.
        self._database.append(runs_of(entries, self._writer))

    def _stage(self, key: int, log: str, position: int, payload: bytes, part: int, parts: int) -> None:
        piece = payload[part * PART_BYTES : (part + 1) * PART_BYTES]
        frame = encode(log, position, piece, writer=self._writer, kind=Kind.SNAPSHOT, part=part, parts=parts)
        self._database.stage(key, position, part, frame)

    async def _run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call on the journal's thread. Calls run in order, each to its end, even when its caller is cancelled."""
        if self._thread is None:
            raise JournalClosed
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    def _let_go(self, thread: ThreadPoolExecutor) -> asyncio.Future[None]:
        """Close the file behind everything that was begun, and end the thread."""
        self._thread = None
        closing = asyncio.get_running_loop().run_in_executor(thread, self._database.close)
        thread.shutdown(wait=False)
        return closing
