"""The embedded journal: one SQLite file, one process.

Each write is one transaction, on a thread of its own.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import platform
import secrets
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, TypeVarTuple
from zlib import crc32

from lowwater.core.events import event
from lowwater.core.private import PRIVATE_FILE, make_private_file
from lowwater_authority.journal import wal
from lowwater_authority.journal.contract import (
    GRAPH,
    End,
    Entry,
    JournalClosed,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalFenced,
    JournalLocked,
    JournalPosition,
    JournalReplaced,
    JournalUnknown,
    JournalVersion,
    LoadedLog,
    Ownership,
)
from lowwater_authority.journal.frames import (
    Kind,
    Run,
    checksum,
    decode,
    decode_records,
    encode_part,
    refuse_another,
    refuse_snapshot_behind,
    runs_of,
    snapshot_parts,
)
from lowwater_authority.journal.rules import (
    LogState,
    Owned,
    RememberingJournal,
    Writer,
    judge,
    log_created,
    nothing_there,
    refuse_lost,
    refuse_older_view,
    refuse_other_end,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SqliteJournal(RememberingJournal):
    """The contract of Journal over an SQLite database in WAL mode, synced in every commit.

    Strong and other entries are equally durable: an acknowledged entry survives the machine's death
    if the disk keeps what ``fdatasync`` has confirmed. SQLite works on a thread of its own; the
    event loop never waits for the disk. A failed write surely wrote nothing, unless the commit
    itself fails other than by a full disk or a lock: then JournalUnknown.

    A lock admits one process at a time, also while that process is stopped. So address and view of
    an owner are in memory only, and a log that this process has not taken has no owner.

    ``path`` is the database; beside it are ``path-wal``, ``path-shm`` and ``path.lock``. Its
    directory must exist, on a local file system: over a network neither the lock nor WAL mode is
    reliable. ``server_token`` is the identity that the deployment must have, and that a new one
    gets; empty: any. With ``must_exist`` no new deployment is made.
    """

    shared = False

    def __init__(self, path: Path, *, server_token: str = "", must_exist: bool = False) -> None:
        super().__init__()
        self._database = SqliteDatabase(path.absolute())
        self._wanted_token = server_token
        self._must_exist = must_exist
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        """See Journal.

        Raises JournalFailed when the directory is missing or the file is no journal. Raises
        JournalReplaced when the file belongs to another deployment than ``server_token``.
        """
        self._thread = thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lowwater-journal")
        try:
            owner = await self._run(self._database.open, self._wanted_token, secrets.randbits, self._must_exist)
            end = await self._run(self._database.end, GRAPH)
        except BaseException:
            # A cancelled call goes on in its thread, and may take the lock.
            self._end(thread)
            raise
        self.server_token = owner.server_token
        self._owned = Owned(owner.writer.nonce)
        self._owned.reached(GRAPH, end)

    async def take(self, log: str, *, view: int = 0, address: str = "", above: int = 0) -> Ownership:
        """See Journal.

        Raises JournalFenced when another process has opened the file in spite of the lock.
        """
        claim = Ownership(above, 0, address, view)
        owner = await self._run(self._database.take, log, claim, self._owned.states([log]), secrets.randbits)
        self._owned.took(log, owner)
        return owner

    async def owners(self, logs: Iterable[str]) -> dict[str, Ownership]:
        """See Journal."""
        return await self._run(self._database.owners, tuple(logs))

    async def confirm(self, logs: Iterable[str]) -> int:
        """See Journal.

        The file is not read: the lock keeps other processes out, and every write checks the file.
        """
        if self._thread is None:
            raise JournalClosed
        unowned = {log: (0, 0) for log in logs if log != GRAPH and not self._owned.ownership(log).epoch}
        if unowned:
            raise JournalFenced(unowned)
        return self._owned.end(GRAPH).last

    async def logs(self) -> list[str]:
        """See Journal."""
        return await self._run(self._database.logs)

    async def end(self, log: str) -> End:
        """See Journal."""
        return await self._run(self._database.end, log)

    async def load(self, log: str, *, before: LoadedLog | None = None, durable: bool = True) -> LoadedLog:
        """See Journal. The log is read whole each time.

        A single process has no reason to read twice. Readable records are durable: SQLite shows a
        transaction once its commit is synced. Frames that a killed process has left unsynced in the
        write-ahead log are synced together with the epoch that ``open`` writes.
        """
        del before, durable
        loaded, end = await self._run(self._database.load, log, self._owned.states([log]))
        self._owned.reached(log, end)
        return loaded

    async def load_behind(self, log: str, position: int) -> LoadedLog:
        """See Journal."""
        return await self._run(self._database.load_behind, log, position, self._owned.states([log]))

    async def append(self, entries: Sequence[Entry], *, beside: Iterable[str] = ()) -> None:
        """See Journal.

        Cost: about 0.2 ms and one sync; every few megabytes a checkpoint of some ten milliseconds.
        """
        with self._meter.append(entries):
            if self._thread is None:
                raise JournalClosed
            writers = {entry.log: self._owned.writer(entry.log) for entry in entries}
            if not writers:
                return
            ends = await self._run(self._append, tuple(entries), writers, self._owned.states(writers))
            for log, end in ends.items():
                self._owned.reached(log, end)

    async def snapshot(self, log: str, position: int, payload: bytes, *, newest: bool = False) -> None:
        """See Journal.

        The snapshot is written in parts of 256 KiB. Parts of one that was cut off are removed
        later.
        """
        with self._meter.snapshot(payload):
            writer, believed = self._owned.writer(log), self._owned.states([log])
            record = self._owned.record(log, position)
            key = await self._run(self._database.begin_snapshot, log, position, believed, record)
            if key is None:
                return
            parts = snapshot_parts(payload)
            for part in range(parts):
                await self._run(self._stage, key, log, position, payload, part, writer, newest)
            await self._run(self._database.finish_snapshot, log, position, parts, believed, record)
            # Each call removes a little, so that appends get their turn in between.
            while await self._run(self._database.purge_some, log):
                pass

    async def restore(
        self,
        log: str,
        position: int,
        payload: bytes,
        *,
        view: int = 0,
        address: str = "",
        over: End | None = None,
        newest: bool = False,
    ) -> Ownership:
        """See Journal. It is one transaction of any size, and appends wait for it."""
        with self._meter.snapshot(payload):
            graph = self._owned.writer(GRAPH)

            def framed(owner: Ownership) -> list[bytes]:
                writer = graph if log == GRAPH else Writer(owner.epoch, owner.nonce)
                parts = range(snapshot_parts(payload))
                return [encode_part(log, position, payload, part, writer, newest=newest) for part in parts]

            mine, claim = self._owned.states([log])[log], Ownership(0, 0, address, view)
            restore = self._database.restore
            owner, end = await self._run(restore, log, position, mine, claim, framed, secrets.randbits, over)
            if log != GRAPH:
                self._owned.took(log, owner)
            self._owned.reached(log, end)
            return owner

    async def close(self) -> None:
        """See Journal."""
        if self._thread is not None:
            await asyncio.shield(self._end(self._thread))

    def free_bytes(self) -> int | None:
        """See Journal."""
        try:
            disk = os.statvfs(self._database.path.parent)
        except OSError:
            return None
        return disk.f_bavail * disk.f_frsize

    def _append(
        self, entries: Sequence[Entry], writers: Mapping[str, Writer], believed: Mapping[str, LogState]
    ) -> dict[str, End]:
        """Append, and return the new ends of the logs."""
        # This thread computes the checksums: those of large payloads would block the event loop.
        runs = runs_of(entries, writers.__getitem__)
        self._database.append(runs, believed)
        return {run.log: run.end for run in runs}

    def _stage(
        self, key: int, log: str, position: int, payload: bytes, part: int, writer: Writer, newest: bool
    ) -> None:
        frame = encode_part(log, position, payload, part, writer, newest=newest)
        self._database.stage(log, key, position, part, frame)

    async def _run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call on the thread of the journal.

        Calls run in order, each to its end, even when its caller is cancelled.
        """
        if self._thread is None:
            raise JournalClosed
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    def _end(self, thread: ThreadPoolExecutor) -> asyncio.Future[None]:
        """Close the file after all calls that have begun, and end the thread."""
        self._thread = None
        closing = asyncio.get_running_loop().run_in_executor(thread, self._database.close)
        thread.shutdown(wait=False)
        return closing


_logger = logging.getLogger(__name__)

_PURGED_AT_A_TIME = 64
"""Rows that one transaction deletes at most: some ten milliseconds for records of 100 KB."""

_BUSY_SECONDS = 5.0
"""Seconds to wait for another program (sqlite3, a backup) that has the database locked."""


class _Row(NamedTuple):
    """The row of a log; all zero for an unknown log."""

    key: int = 0
    last: int = 0
    tail: int = 0
    snapshot: int = 0

    @property
    def end(self) -> End:
        """End of the log."""
        return End(self.last, self.tail)


class SqliteDatabase:
    """The file of a SqliteJournal. Calls block, and all come from one thread.

    The file has one owner, the process that opened it last. Its epoch is also the epoch of each log
    that it takes, and grows when a log is taken again. The list of taken logs ends with the
    process. Each transaction that writes checks owner and positions. No method leaves a transaction
    open.
    """

    PRAGMAS: tuple[str, ...] = (
        "journal_mode = WAL",
        # Sync the write-ahead log in every commit. NORMAL would sync it at checkpoints only.
        "synchronous = FULL",
        # Some systems build SQLite to overwrite deleted rows, which doubles what a trimmed log
        # writes.
        "secure_delete = OFF",
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self._wal = path.with_name(path.name + "-wal")
        self._lock = LockFile(path.with_name(path.name + ".lock"))
        self._handle: sqlite3.Connection | None = None
        self._owner = Owner("", Writer(0, 0))
        self._owners: dict[str, Ownership] = {}
        self._files: list[tuple[int, int]] = []

    def open(self, expected: str, randbits: Callable[[int], int], must_exist: bool = False) -> Owner:
        """Lock, create or check the file, and begin an epoch.

        ``expected`` is the token that the deployment must have, and that a new one gets; empty:
        any. With ``must_exist`` it raises JournalFailed when there is no journal. After an
        exception the lock is free again.
        """
        try:
            self._lock_and_check(must_exist)
            self._connect(expected, randbits)
        except BaseException:
            if not self._lock.used_before:
                self._lock.forget_use()  # no journal was begun: the next start may begin one
            self.close()
            raise
        return self._owner

    def logs(self) -> list[str]:
        """Return the names of all logs, sorted."""
        with translated(self.path):
            return [name for (name,) in self._connection.execute("SELECT name FROM logs ORDER BY name")]

    def end(self, log: str) -> End:
        """Return the end of a log."""
        with translated(self.path):
            return self._find(log).end

    def owners(self, logs: Iterable[str]) -> dict[str, Ownership]:
        """Return the owner that took each log since the file was opened."""
        return {log: self._owners.get(log, Ownership()) for log in logs}

    def take(
        self, log: str, claim: Ownership, believed: Mapping[str, LogState], randbits: Callable[[int], int]
    ) -> Ownership:
        """Take a log.

        It gets the epoch of the file if that is above the log's and the claim's, else a new one.
        """
        present = self._owners.get(log, Ownership())
        refuse_older_view(log, claim, present)
        owner = self._owner
        with self._transaction() as connection:
            check_owner(connection, owner.writer, [log])
            refuse_lost(believed, self._states({log: self._find(log)}))
            if max(present.epoch, claim.epoch) >= owner.writer.epoch:
                owner = take_over(connection, randbits, above=claim.epoch)
        self._owner = owner
        self._owners[log] = Ownership(*owner.writer, claim.address, claim.view)
        return self._owners[log]

    def load(self, log: str, believed: Mapping[str, LogState]) -> tuple[LoadedLog, End]:
        """Return snapshot and records of a log, all checked, and its end."""
        with self._reading(log):
            key, last, tail, position = row = self._find(log)
            refuse_lost(believed, self._states({log: row}))
            snapshot = self._load_snapshot(log, key, position) if position else None
            records, tails = self._load_records(log, key, position, last, tail)
            return LoadedLog(position, snapshot, records, tails=tails), row.end

    def load_behind(self, log: str, position: int, believed: Mapping[str, LogState]) -> LoadedLog:
        """Return the records of a log behind a position, all checked."""
        with self._reading(log):
            key, last, tail, snapshot = row = self._find(log)
            refuse_lost(believed, self._states({log: row}))
            refuse_snapshot_behind(log, position, snapshot)
            records, tails = self._load_records(log, key, position, last, tail)
            return LoadedLog(position, None, records, tails=tails)

    def _load_records(
        self, log: str, key: int, after: int, last: int, tail: int
    ) -> tuple[list[tuple[int, bytes]], dict[int, int]]:
        """Return the records of a log behind a position, and their checksums."""
        sql = "SELECT position, frame FROM records WHERE log = ? AND position > ? ORDER BY position"
        rows, epoch = self._connection.execute(sql, (key, after)), self._owner.writer.epoch
        return decode_records(log, rows, after=after, last=last, tail=tail, epoch=epoch)

    def append(self, runs: list[Run], believed: Mapping[str, LogState]) -> None:
        """Write all runs in one transaction, or none."""
        with self._transaction() as connection:
            rows = self._judge(believed)
            for run in runs:
                key, last, tail, _ = rows[run.log]
                if not run.is_new(last):
                    stored = connection.execute(
                        "SELECT position, frame FROM records WHERE log = ? AND position >= ?", (key, run.first)
                    )
                    if not run.is_written(dict(stored), last=last, tail=tail):
                        raise run.refuse_others(last)
                    continue
                key = self._set_end(run.log, key, run.end)
                connection.executemany(
                    "INSERT INTO records VALUES (?, ?, ?)",
                    [(key, position, frame) for position, frame in enumerate(run.frames, run.first)],
                )

    def begin_snapshot(
        self, log: str, position: int, believed: Mapping[str, LogState], record: int | None
    ) -> int | None:
        """Return the key of a log that gets a snapshot.

        The result is None when the present one reaches as far.
        """
        with translated(self.path):
            return self._snapshot_key(log, position, believed, record)

    def stage(self, log: str, key: int, position: int, part: int, frame: bytes) -> None:
        """Write one part of a snapshot, which ``finish_snapshot`` puts in force."""
        with self._transaction() as connection:
            check_owner(connection, self._owner.writer, [log])
            connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", (key, position, part, frame))

    def finish_snapshot(
        self, log: str, position: int, parts: int, believed: Mapping[str, LogState], record: int | None
    ) -> None:
        """Put the staged parts in force, in one transaction.

        ``purge_some`` removes what they cover.
        """
        with self._transaction() as connection:
            key = self._snapshot_key(log, position, believed, record)
            if key is not None:
                sql = "SELECT count(*) FROM snapshots WHERE log = ? AND position = ?"
                (staged,) = connection.execute(sql, (key, position)).fetchone()
                if staged != parts:
                    raise JournalFailed(f"log {log!r}: {staged} of {parts} parts of snapshot {position} are there")
                connection.execute("UPDATE logs SET snapshot = ? WHERE id = ?", (position, key))

    def purge_some(self, log: str) -> bool:
        """Remove a little of what the snapshot of a log covers.

        Return whether there may be more.
        """
        try:
            with translated(self.path):
                row = self._find(log)
            return self._purge_some(log, row.key, row.snapshot)
        except JournalError as error:
            # The snapshot is in force, and the rows that it covers are not read any more. The next
            # snapshot, or the next start, removes them.
            facts = event("purge_failed", computation=log, reason=str(error))
            _logger.warning("log %r: covered records stay on disk for now: %s", log, error, extra=facts)
            return False

    def restore(
        self,
        log: str,
        position: int,
        mine: LogState,
        claim: Ownership,
        framed: Callable[[Ownership], list[bytes]],
        randbits: Callable[[int], int],
        over: End | None,
    ) -> tuple[Ownership, End]:
        """Replace a log by a snapshot, in one transaction.

        ``framed`` returns its parts for an owner.
        """
        present = self._owners.get(log, Ownership())
        refuse_older_view(log, claim, present)
        file = self._owner
        with self._transaction() as connection:
            check_owner(connection, file.writer, [log])
            key, last, tail, _ = self._find(log)
            if last == position and tail == checksum(framed(present)[-1]):
                # An earlier attempt, which was cancelled, has written it.
                return present, End(last, tail)
            refuse_other_end(log, position, End(last, tail), over)
            if position <= max(last, mine.last):
                raise JournalPosition(log, position=position, last=max(last, mine.last))
            owner = Ownership()
            if log != GRAPH:
                file = take_over(connection, randbits, above=mine.owner.epoch)
                owner = Ownership(*file.writer, claim.address, claim.view)
            frames = framed(owner)
            end = End(position, checksum(frames[-1]))
            key = self._set_end(log, key, end, snapshot=position)
            for table in ("records", "snapshots"):
                connection.execute(f"DELETE FROM {table} WHERE log = ?", (key,))
            connection.executemany(
                "INSERT INTO snapshots VALUES (?, ?, ?, ?)",
                [(key, position, part, frame) for part, frame in enumerate(frames)],
            )
        self._owner = file
        if log != GRAPH:
            self._owners[log] = owner
        return owner, end

    def close(self) -> None:
        """Close the file, which empties the write-ahead log, and free the lock.

        Does nothing the second time.
        """
        connection, self._handle = self._handle, None
        try:
            if connection is not None:
                connection.close()
        finally:
            self._lock.release()

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._handle is None:
            raise JournalClosed
        return self._handle

    def _lock_and_check(self, must_exist: bool) -> None:
        """Lock, and check what must be right before SQLite may touch the files."""
        directory = self.path.parent
        if not directory.is_dir():
            raise JournalFailed(f"there is no directory {directory}: make it, or mount the volume it should be on")
        try:
            self._lock.acquire()
        except OSError as error:
            raise unusable(self._lock.path, error, "make it and its directory writable") from error
        if _size(self.path) == 0 and _size(self._wal) > 0:
            raise JournalCorrupt(None, None, f"{self._wal} has lost its database {self.path}")
        if self._lock.used_before and self.path.exists() and _size(self.path) == 0:
            raise JournalCorrupt(
                None,
                None,
                f"{self.path} is empty, and {self._lock.path.name} shows that a journal was used here: restore a copy, "
                "or remove both to begin another deployment",
            )
        if must_exist and _size(self.path) == 0:
            raise nothing_there(str(self.path))
        wal.check_file(self._wal)

    def _connect(self, expected: str, randbits: Callable[[int], int]) -> None:
        try:
            make_private_file(self.path)  # SQLite gives its other files the rights of this one
            _warn_if_exposed(self.path)
        except OSError as error:
            raise unusable(self.path, error, "make the file and its directory readable and writable") from error
        with translated(self.path):
            self._handle = connection = sqlite3.connect(self.path, isolation_level=None, timeout=_BUSY_SECONDS)
            new = is_new(connection, self.path)
            for pragma in self.PRAGMAS:
                connection.execute(f"PRAGMA {pragma}").fetchall()
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            raise JournalFailed(f"{self.path}: its file system cannot do WAL mode; use a local one")
        with self._transaction() as connection:
            if new:
                create(connection, expected or f"{randbits(128):032x}")
            self._owner = take_over(connection, randbits)
            if expected not in {"", self._owner.server_token}:
                raise JournalReplaced(expected=expected, actual=self._owner.server_token)
        if new:
            log_created(str(self.path), self._owner.server_token)
        # The names of the files must be as durable as their content.
        _sync_directory(self.path.parent)
        self._files = self._identities()
        for log, key, position in connection.execute("SELECT name, id, snapshot FROM logs").fetchall():
            while self._purge_some(log, key, position, staged=True):
                pass

    def _find(self, log: str) -> _Row:
        sql = "SELECT id, last, tail, snapshot FROM logs WHERE name = ?"
        return _Row(*(self._connection.execute(sql, (log,)).fetchone() or ()))

    def _states(self, rows: Mapping[str, _Row]) -> dict[str, LogState]:
        """Return owner and end of each log."""
        return {log: LogState(self._owners.get(log, Ownership()), row.end) for log, row in rows.items()}

    def _judge(self, believed: Mapping[str, LogState]) -> dict[str, _Row]:
        """Refuse logs that may not be written; return the rows of the others."""
        check_owner(self._connection, self._owner.writer, believed)
        rows = {log: self._find(log) for log in believed}
        judge(believed, self._states(rows))
        return rows

    def _set_end(self, log: str, key: int, end: End, *, snapshot: int | None = None) -> int:
        """Write the end of a log, and the position of its snapshot if that changes, too.

        Return its key.
        """
        if not key:
            sql = "INSERT INTO logs (name, last, tail, snapshot) VALUES (?, ?, ?, ?)"
            return self._connection.execute(sql, (log, *end, snapshot or 0)).lastrowid or 0
        sql = "UPDATE logs SET last = ?, tail = ?, snapshot = ifnull(?, snapshot) WHERE id = ?"
        self._connection.execute(sql, (*end, snapshot, key))
        return key

    def _snapshot_key(
        self, log: str, position: int, believed: Mapping[str, LogState], record: int | None
    ) -> int | None:
        """Return the key of a log that may get a snapshot.

        The result is None when it has one that reaches as far.
        """
        row = self._judge(believed)[log]
        if not 1 <= position <= row.last:
            raise JournalPosition(log, position=position, last=row.last)
        if position <= row.snapshot:
            return None
        if record is not None:
            sql = "SELECT frame FROM records WHERE log = ? AND position = ?"
            (frame,) = self._connection.execute(sql, (row.key, position)).fetchone() or (None,)
            refuse_another(log, position, row.last, record, frame)
        return row.key

    def _load_snapshot(self, log: str, key: int, position: int) -> bytes:
        """Return all parts of a snapshot, joined."""
        sql = "SELECT frame FROM snapshots WHERE log = ? AND position = ? ORDER BY part"
        payloads: list[bytes] = []
        parts = 1
        for part, (data,) in enumerate(self._connection.execute(sql, (key, position))):
            frame = decode(log, position, data, kind=Kind.SNAPSHOT, part=part)
            parts = frame.parts
            payloads.append(frame.payload)
        if len(payloads) != parts:
            raise JournalCorrupt(log, position, f"{len(payloads)} of {parts} parts of the snapshot are there")
        return b"".join(payloads)

    def _purge_some(self, log: str, key: int, position: int, *, staged: bool = False) -> bool:
        """Remove a little of what the snapshot at ``position`` covers.

        Return whether there may be more. With ``staged`` unfinished snapshots are removed, too.
        """
        others = "!=" if staged else "<"
        for sql in (
            "DELETE FROM records WHERE (log, position) IN"
            " (SELECT log, position FROM records WHERE log = ? AND position <= ? LIMIT ?)",
            "DELETE FROM snapshots WHERE (log, position, part) IN"
            f" (SELECT log, position, part FROM snapshots WHERE log = ? AND position {others} ? LIMIT ?)",
        ):
            with self._transaction() as connection:
                check_owner(connection, self._owner.writer, [log])
                removed = connection.execute(sql, (key, position, _PURGED_AT_A_TIME)).rowcount
            if removed == _PURGED_AT_A_TIME:
                return True
        return False

    def _identities(self) -> list[tuple[int, int]]:
        """Return device and number of the two files that are written."""
        return [(stat.st_dev, stat.st_ino) for stat in (self.path.stat(), self._wal.stat())]

    def _check_files(self) -> None:
        """Raise JournalFailed when the files were moved.

        A restart would not find what is written to them.
        """
        if not self._files:
            return
        try:
            moved = self._identities() != self._files
        except OSError:
            moved = True
        if moved:
            raise JournalFailed(
                f"{self.path} or {self._wal.name} was moved, deleted or replaced while in use: put it back, or restart"
            )

    @contextmanager
    def _reading(self, log: str) -> Iterator[None]:
        """Run the statements that read one log in one transaction, so that they see one state."""
        connection = self._connection
        with translated(self.path, log):
            connection.execute("BEGIN")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction that writes.

        An exception before the commit surely undoes it. The code of an error in the commit decides
        between JournalFailed and JournalUnknown.
        """
        connection = self._connection
        self._check_files()
        with translated(self.path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                roll_back(connection)
                raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            roll_back(connection)
            # FULL means that the frame that commits was not written whole, BUSY that the commit did
            # not begin. After any other error the frame may be on the disk, where the next recovery
            # would find it.
            if code(error) in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY}:
                raise failed(self.path, error) from error
            raise JournalUnknown(
                f"{self.path}: the commit failed ({error}); it may be written, repeat the call"
            ) from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


FORMAT = 1
"""Newest format of the tables, which is also written."""

APPLICATION_ID = 0x6C6F7777
"""Mark of a journal's file (``loww``); the programs ``file`` and sqlite3 show it."""

# records and snapshots have row numbers on purpose. In a table WITHOUT ROWID a frame is part of the
# key's b-tree, and SQLite reads frames whole, with all their overflow pages, when it looks for the
# place of the next one. Files of 0.2 have such tables and stay as they are: every statement here
# means the same in both. logs.tail: checksum of the record at logs.last; kept apart from it, it
# shows a page that was lost on the disk.
_TABLES = f"""
CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    format INTEGER NOT NULL,
    server_token TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    nonce INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE logs (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    last INTEGER NOT NULL,
    tail INTEGER NOT NULL,
    snapshot INTEGER NOT NULL
);
CREATE TABLE records (
    log INTEGER NOT NULL,
    position INTEGER NOT NULL,
    frame BLOB NOT NULL,
    PRIMARY KEY (log, position)
);
CREATE TABLE snapshots (
    log INTEGER NOT NULL,
    position INTEGER NOT NULL,
    part INTEGER NOT NULL,
    frame BLOB NOT NULL,
    PRIMARY KEY (log, position, part)
);
PRAGMA application_id = {APPLICATION_ID};
"""


class Owner(NamedTuple):
    """One ownership of the journal."""

    server_token: str
    writer: Writer


def is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file is empty.

    Raises JournalFailed for the file of another program, JournalVersion for a newer format.
    """
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if mark == 0 and tables == 0:
        return True
    if mark != APPLICATION_ID:
        raise JournalFailed(f"{path} is a database of another program: give the journal a file of its own")
    row = connection.execute("SELECT format FROM meta").fetchone()
    if row is not None and row[0] > FORMAT:
        raise JournalVersion(str(path), stored=row[0], supported=FORMAT)
    return False


def create(connection: sqlite3.Connection, server_token: str) -> None:
    """Make the tables, without an owner. Runs in the caller's transaction."""
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    checksum = _checksum(server_token, 0, 0)
    connection.execute("INSERT INTO meta VALUES (1, ?, ?, 0, 0, ?)", (FORMAT, server_token, checksum))


def take_over(connection: sqlite3.Connection, randbits: Callable[[int], int], *, above: int = 0) -> Owner:
    """Begin the next epoch, which is also above ``above``. Runs in the caller's transaction."""
    row = connection.execute("SELECT server_token, epoch, nonce, checksum FROM meta").fetchone()
    if row is None or row[3] != _checksum(*row[:3]):
        raise JournalCorrupt(None, None, "the row that names the owner is missing or its checksum differs")
    owner = Owner(row[0], Writer(max(row[1], above) + 1, randbits(32)))
    connection.execute(
        "UPDATE meta SET epoch = ?, nonce = ?, checksum = ?",
        (*owner.writer, _checksum(owner.server_token, *owner.writer)),
    )
    return owner


def check_owner(connection: sqlite3.Connection, me: Writer, logs: Iterable[str]) -> None:
    """Raise JournalFenced for the logs when another process has opened the file after ``me``."""
    owner = Writer(*connection.execute("SELECT epoch, nonce FROM meta").fetchone())
    if owner != me:
        raise JournalFenced(dict.fromkeys(logs, (me.epoch, owner.epoch)))


def _checksum(server_token: str, epoch: int, nonce: int) -> int:
    return crc32(f"{server_token} {epoch} {nonce}".encode())


_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


@contextmanager
def translated(path: Path, log: str | None = None) -> Iterator[None]:
    """Translate the errors of statements that commit nothing: surely nothing was written."""
    try:
        yield
    except sqlite3.Error as error:
        if code(error) in _DAMAGED:
            raise JournalCorrupt(log, None, f"{path}: {error}") from error
        raise failed(path, error) from error


def failed(path: Path, error: sqlite3.Error) -> JournalFailed:
    """Return the error for a statement that surely wrote nothing, with its fix."""
    fixes = {
        sqlite3.SQLITE_FULL: "free space on its disk",
        sqlite3.SQLITE_READONLY: "make the file and its directory writable",
        sqlite3.SQLITE_CANTOPEN: "make the file and its directory readable and writable",
        sqlite3.SQLITE_BUSY: "end the program that has it locked",
        sqlite3.SQLITE_IOERR: "check the disk and the kernel's log",
    }
    # Without room for its index of the write-ahead log, SQLite reports an I/O error, or a file that
    # cannot be opened.
    full = code(error) in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN} and not _has_room(path.parent)
    fix = fixes[sqlite3.SQLITE_FULL] if full else fixes.get(code(error), "see what SQLite says")
    return JournalFailed(f"{path}: {error}; nothing was written: {fix}")


LEAST_ROOM: Final = 64 << 10
"""Bytes that must be free on a disk for SQLite to open a database: its index of the write-ahead log
takes 32 KiB at least."""


def _warn_if_exposed(path: Path) -> None:
    """Warn when every user of the machine can read a file, or replace it in its folder.

    Raises OSError.
    """
    file, folder = path.stat().st_mode, path.parent.stat().st_mode
    readable = bool(file & stat.S_IROTH and folder & stat.S_IXOTH)
    if readable or (folder & stat.S_IWOTH and not folder & stat.S_ISVTX):
        _logger.warning(
            "every user of this machine can %s: chmod -R go-rwx %s",
            f"read {path}" if readable else f"replace {path}",
            path.parent,
            extra=event("data_readable", path=str(path)),
        )


def unusable(path: Path, error: OSError, fix: str) -> JournalFailed:
    """Return the error for a file or a folder that cannot be made or used.

    On a full disk, or when a quota is used up, ``fix`` does not help.
    """
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    return JournalFailed(f"{path}: {error.strerror}; {'free space on its disk' if full else fix}")


def _has_room(directory: Path) -> bool:
    """Return whether the disk of a directory has room for ``LEAST_ROOM`` in one more file.

    True if the system does not say.
    """
    try:
        disk = os.statvfs(directory)
    except OSError:
        return True
    return disk.f_bavail * disk.f_frsize >= LEAST_ROOM and (disk.f_files == 0 or disk.f_favail > 0)


def code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; -1 for errors of Python."""
    return getattr(error, "sqlite_errorcode", -1) & 0xFF


def roll_back(connection: sqlite3.Connection) -> None:
    """End the transaction unless SQLite has ended it. If this fails, still nothing is committed."""
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            _logger.warning("rolling back failed: %s", error, extra=event("roll_back_failed", reason=str(error)))


class LockFile:
    """An exclusive ``flock``, from ``acquire`` to ``release`` or to the end of the process.

    A process that is stopped, or hangs, keeps the lock: it may go on at any moment. The file stays
    when the lock is freed: if it were removed, two processes could lock two files of one name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.used_before = False
        """True if a process had the lock before ``acquire``, and did not call ``forget_use``."""
        self._fd: int | None = None

    def acquire(self) -> None:
        """Lock. Raises JournalLocked with the holder, OSError when the file cannot be made."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(fd, 1024).decode(errors="replace").strip()
                raise JournalLocked(self.path, holder=holder or "a process that has just begun") from None
            self.used_before = os.fstat(fd).st_size > 0
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on host {platform.node()}\n".encode(), 0)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def forget_use(self) -> None:
        """Empty the file, so that the next process finds no earlier use.

        Does nothing without the lock.
        """
        if self._fd is not None:
            os.ftruncate(self._fd, 0)

    def release(self) -> None:
        """Unlock. Does nothing without the lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
