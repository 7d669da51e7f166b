"""The embedded journal: one SQLite file, one process."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from lowwater_authority.journal.contract import GRAPH, Entry, Journal, JournalStatistics, LoadedLog, Ownership
from lowwater_authority.journal.errors import JournalClosed, JournalFenced
from lowwater_authority.journal.frames import Kind, Writer, encode
from lowwater_authority.journal.meter import Meter
from lowwater_authority.journal.owned import End, Held, Owned
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

    One process at a time: a lock keeps others out, also while this one is stopped. So an address and a view are known
    while the process lives, and a log that it has not taken has no owner.

    ``path`` is the database; beside it are ``path-wal``, ``path-shm`` and ``path.lock``. Its directory must exist. Local
    file systems only: over a network neither the lock nor WAL mode can be relied on. ``server_token`` is what the
    file must belong to, and what a new one is made with; if it is empty, any deployment will do.
    """

    shared = False

    def __init__(
        self,
        path: Path,
        *,
        server_token: str = "",
    ) -> None:
        self._database = SqliteDatabase(path.absolute())
        self._wanted_token = server_token
        self._meter = Meter(time.perf_counter)
        self._owned = Owned(nonce=0)
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        """See Journal. Raises JournalFailed when the directory is missing or the file is not a journal's.

        Raises JournalReplaced when the file belongs to another deployment than ``server_token``.
        """
        self._thread = thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lowwater-journal")
        try:
            owner = await self._run(self._database.open, self._wanted_token, secrets.randbits)
            end = await self._run(self._database.end, GRAPH)
        except BaseException:
            # Cancelled, it may go on and take the lock all the same.
            self._let_go(thread)
            raise
        self.server_token = owner.server_token
        self._owned = Owned(owner.writer.nonce)
        self._owned.reached(GRAPH, end)

    async def take(self, log: str, *, view: int = 0, address: str = "", above: int = 0) -> Ownership:
        """See Journal. Raises JournalFenced when another process has opened the file in spite of the lock."""
        wanted = Ownership(above, 0, address, view)
        owner = await self._run(self._database.take, log, wanted, self._owned.held([log]), secrets.randbits)
        self._owned.took(log, owner)
        return owner

    def release(self, log: str) -> None:
        """See Journal."""
        self._owned.release(log)

    async def owners(self, logs: Iterable[str]) -> dict[str, Ownership]:
        """See Journal."""
        return await self._run(self._database.owners, tuple(logs))

    async def confirm(self, logs: Iterable[str]) -> int:
        """See Journal. The file is not asked: the lock keeps others out, and every write looks at it."""
        if self._thread is None:
            raise JournalClosed
        strange = {log: (0, 0) for log in logs if log != GRAPH and not self._owned.ownership(log).epoch}
        if strange:
            raise JournalFenced(strange)
        return self._owned.end(GRAPH).last

    async def logs(self) -> list[str]:
        """See Journal."""
        return await self._run(self._database.logs)

    async def load(self, log: str, *, known: LoadedLog | None = None) -> LoadedLog:
        """See Journal. All of it is read each time: who is alone has no reason to read twice."""
        del known
        loaded, end = await self._run(self._database.load, log, self._owned.held([log]))
        self._owned.reached(log, end)
        return loaded

    async def append(self, entries: Sequence[Entry]) -> None:
        """See Journal. Cost: about 0.2 ms and one sync; every few megabytes a checkpoint of some ten milliseconds."""
        with self._meter.append(entries):
            if self._thread is None:
                raise JournalClosed
            writers = {entry.log: self._owned.writer(entry.log) for entry in entries}
            if not writers:
                return
            ends = await self._run(self._append, tuple(entries), writers, self._owned.held(writers))
            for log, end in ends.items():
                self._owned.reached(log, end)

    async def snapshot(self, log: str, position: int, payload: bytes) -> None:
        """See Journal. Written in parts of 256 KiB; cancelled or cut off, the parts are removed later."""
        with self._meter.snapshot(payload):
            writer, believed = self._owned.writer(log), self._owned.held([log])
            record = self._owned.record(log, position)
            key = await self._run(self._database.begin_snapshot, log, position, believed, record)
            if key is None:
                return
            parts = _parts(payload)
            for part in range(parts):
                await self._run(self._stage, key, log, position, payload, part, writer)
            await self._run(self._database.finish_snapshot, log, position, parts, believed, record)
            # A call at a time, so that appends get their turn in between.
            while await self._run(self._database.purge_some, log):
                pass

    async def restore(self, log: str, position: int, payload: bytes, *, view: int = 0, address: str = "") -> Ownership:
        """See Journal. One transaction of any size, which appends wait for."""
        with self._meter.snapshot(payload):
            graph = self._owned.writer(GRAPH)

            def framed(owner: Ownership) -> list[bytes]:
                writer = graph if log == GRAPH else Writer(owner.epoch, owner.nonce)
                return [_frame(log, position, payload, part, writer) for part in range(_parts(payload))]

            mine, wanted = self._owned.held([log])[log], Ownership(0, 0, address, view)
            owner, end = await self._run(self._database.restore, log, position, mine, wanted, framed, secrets.randbits)
            if log != GRAPH:
                self._owned.took(log, owner)
            self._owned.reached(log, end)
            return owner

    async def close(self) -> None:
        """See Journal."""
        if self._thread is not None:
            await asyncio.shield(self._let_go(self._thread))

    def statistics(self) -> JournalStatistics:
        """See Journal."""
        return self._meter.statistics()

    def _append(
        self, entries: Sequence[Entry], writers: Mapping[str, Writer], believed: Mapping[str, Held]
    ) -> dict[str, End]:
        """Append, and return where the logs end then."""
        # Checksums of large payloads are work for this thread too, not for the event loop.
        runs = runs_of(entries, writers.__getitem__)
        self._database.append(runs, believed)
        return {run.log: run.end for run in runs}

    def _stage(self, key: int, log: str, position: int, payload: bytes, part: int, writer: Writer) -> None:
        self._database.stage(log, key, position, part, _frame(log, position, payload, part, writer))

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


def _parts(payload: bytes) -> int:
    """How many parts a snapshot has."""
    return max(1, -(-len(payload) // PART_BYTES))


def _frame(log: str, position: int, payload: bytes, part: int, writer: Writer) -> bytes:
    """One part of a snapshot, framed."""
    piece = payload[part * PART_BYTES : (part + 1) * PART_BYTES]
    return encode(log, position, piece, writer=writer, kind=Kind.SNAPSHOT, part=part, parts=_parts(payload))
