"""What the SQLite journal does on its own thread: the file, and one transaction per write."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lowwater_authority.journal import sqlite_schema, wal
from lowwater_authority.journal.contract import GRAPH, LoadedLog, Ownership
from lowwater_authority.journal.errors import (
    JournalClosed,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalPosition,
    JournalReplaced,
    JournalUnknown,
)
from lowwater_authority.journal.frames import Kind, Writer, checksum, decode, decode_records
from lowwater_authority.journal.lock import LockFile
from lowwater_authority.journal.owned import End, Held, judge, refuse_lost, refuse_older_view
from lowwater_authority.journal.sequence import Run, refuse_another
from lowwater_authority.journal.sqlite_errors import code, failed, roll_back, translated
from lowwater_authority.journal.sqlite_schema import Owner
from lowwater_authority.ops.events import event

_logger = logging.getLogger(__name__)

_PURGED_AT_A_TIME = 64
"""Rows deleted in one transaction: at most some ten milliseconds for records of 100 KB."""

_BUSY_SECONDS = 5.0
"""How long to wait for a stranger (sqlite3, a backup) that has the database locked."""


class _Row(NamedTuple):
    """What the file says of a log; all zero for an unknown one."""

    key: int = 0
    last: int = 0
    tail: int = 0
    snapshot: int = 0

    @property
    def end(self) -> End:
        """Where the log ends."""
        return End(self.last, self.tail)


class SqliteDatabase:
    """The file of a SqliteJournal. Blocking; all calls come from one thread.

    The file has one owner, the process that opened it last. Its epoch is also that of each log this process takes, and
    grows when a log is taken again; which logs were taken nobody has to know behind the process. All of it, and the
    positions, is checked in the transaction that writes. No method leaves a transaction open.
    """

    PRAGMAS: tuple[str, ...] = (
        "journal_mode = WAL",
        # Sync the write-ahead log in every commit. NORMAL would do it at checkpoints only.
        "synchronous = FULL",
        # Some systems build SQLite to overwrite what is deleted; that doubles what a trimmed log writes.
        "secure_delete = OFF",
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self._wal = path.with_name(path.name + "-wal")
        self._lock = LockFile(path.with_name(path.name + ".lock"))
        self._handle: sqlite3.Connection | None = None
        self._owner = Owner("", Writer(0, 0))
        self._taken: dict[str, Ownership] = {}
        self._files: list[tuple[int, int]] = []

    def open(self, wanted: str, randbits: Callable[[int], int]) -> Owner:
        """Lock, create or check the file, and begin an epoch; ``wanted`` names its deployment unless empty.

        After an exception everything is let go again.
        """
        try:
            self._lock_and_check()
            self._connect(wanted, randbits)
        except BaseException:
            self.close()
            raise
        return self._owner

    def logs(self) -> list[str]:
        """Names of all logs, sorted."""
        with translated(self.path):
            return [name for (name,) in self._connection.execute("SELECT name FROM logs ORDER BY name")]

    def end(self, log: str) -> End:
        """Where a log ends."""
        with translated(self.path):
            return self._find(log).end

    def owners(self, logs: Iterable[str]) -> dict[str, Ownership]:
        """By whom each log was taken since the file was opened."""
        return {log: self._taken.get(log, Ownership()) for log in logs}

    def take(
        self, log: str, wanted: Ownership, believed: Mapping[str, Held], randbits: Callable[[int], int]
    ) -> Ownership:
        """The file's epoch, if it is new to the log and greater than that of ``wanted``; else a new one."""
        taken = self._taken.get(log, Ownership())
        refuse_older_view(log, wanted, taken)
        owner = self._owner
        with self._transaction() as connection:
            sqlite_schema.check_owner(connection, owner.writer, [log])
            refuse_lost(believed, self._held({log: self._find(log)}))
            if max(taken.epoch, wanted.epoch) >= owner.writer.epoch:
                owner = sqlite_schema.take_over(connection, randbits, above=wanted.epoch)
        self._owner = owner
        self._taken[log] = Ownership(*owner.writer, wanted.address, wanted.view)
        return self._taken[log]

    def load(self, log: str, believed: Mapping[str, Held]) -> tuple[LoadedLog, End]:
        """Snapshot and records of a log, all checked, and where it ends."""
        connection = self._connection
        with self._reading(log):
            key, last, tail, position = row = self._find(log)
            refuse_lost(believed, self._held({log: row}))
            snapshot = self._load_snapshot(log, key, position) if position else None
            rows = connection.execute(
                "SELECT position, frame FROM records WHERE log = ? AND position > ? ORDER BY position", (key, position)
            )
            epoch = self._owner.writer.epoch
            records = decode_records(log, rows, after=position, last=last, tail=tail, epoch=epoch)
            return LoadedLog(position, snapshot, records), row.end

    def append(self, runs: list[Run], believed: Mapping[str, Held]) -> None:
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

    def begin_snapshot(self, log: str, position: int, believed: Mapping[str, Held], record: int | None) -> int | None:
        """The key to stage the parts of a snapshot under; None when the present one reaches as far."""
        with translated(self.path):
            return self._snapshot_key(log, position, believed, record)

    def stage(self, log: str, key: int, position: int, part: int, frame: bytes) -> None:
        """Write one part of a snapshot, which counts for nothing until ``finish_snapshot``."""
        with self._transaction() as connection:
            sqlite_schema.check_owner(connection, self._owner.writer, [log])
            connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", (key, position, part, frame))

    def finish_snapshot(
        self, log: str, position: int, parts: int, believed: Mapping[str, Held], record: int | None
    ) -> None:
        """Make the staged parts the snapshot, in one transaction; ``purge_some`` removes what it covers."""
        with self._transaction() as connection:
            key = self._snapshot_key(log, position, believed, record)
            if key is not None:
                sql = "SELECT count(*) FROM snapshots WHERE log = ? AND position = ?"
                (staged,) = connection.execute(sql, (key, position)).fetchone()
                if staged != parts:
                    raise JournalFailed(f"log {log!r}: {staged} of {parts} parts of snapshot {position} are there")
                connection.execute("UPDATE logs SET snapshot = ? WHERE id = ?", (position, key))

    def purge_some(self, log: str) -> bool:
        """Remove a little of what a log's snapshot covers; returns whether there may be more."""
        try:
            with translated(self.path):
                row = self._find(log)
            return self._purge_some(log, row.key, row.snapshot)
        except JournalError as error:
            # The snapshot holds. What it covers is not read any more; the next one, or the next start, removes it.
            _logger.warning(
                "log %r: covered records stay on disk for now: %s",
                log,
                error,
                extra=event("purge_failed", computation=log, reason=str(error)),
            )
            return False

    def restore(
        self,
        log: str,
        position: int,
        mine: Held,
        wanted: Ownership,
        framed: Callable[[Ownership], list[bytes]],
        randbits: Callable[[int], int],
    ) -> tuple[Ownership, End]:
        """Put a snapshot in the place of everything, in one transaction; ``framed`` gives its parts for an owner."""
        taken = self._taken.get(log, Ownership())
        refuse_older_view(log, wanted, taken)
        file = self._owner
        with self._transaction() as connection:
            sqlite_schema.check_owner(connection, file.writer, [log])
            key, last, tail, _ = self._find(log)
            if last == position and tail == checksum(framed(taken)[-1]):
                # By an earlier attempt, which was cancelled.
                return taken, End(last, tail)
            if position <= max(last, mine.last):
                raise JournalPosition(log, position=position, last=max(last, mine.last))
            owner = Ownership()
            if log != GRAPH:
                file = sqlite_schema.take_over(connection, randbits, above=mine.owner.epoch)
                owner = Ownership(*file.writer, wanted.address, wanted.view)
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
            self._taken[log] = owner
        return owner, end

    def close(self) -> None:
        """Close the file, which empties the write-ahead log, and free the lock."""
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

    def _lock_and_check(self) -> None:
        """Everything that has to be known before SQLite may touch the files."""
        directory = self.path.parent
        if not directory.is_dir():
            raise JournalFailed(f"there is no directory {directory}: make it, or mount the volume it should be on")
        try:
            self._lock.acquire()
        except OSError as error:
            raise JournalFailed(f"{self._lock.path}: {error.strerror}; make it and its directory writable") from error
        if _size(self.path) == 0 and _size(self._wal) > 0:
            raise JournalCorrupt(None, None, f"{self._wal} has lost its database {self.path}")
        wal.check_file(self._wal)

    def _connect(self, wanted: str, randbits: Callable[[int], int]) -> None:
        with translated(self.path):
            self._handle = connection = sqlite3.connect(self.path, isolation_level=None, timeout=_BUSY_SECONDS)
            new = sqlite_schema.is_new(connection, self.path)
            for pragma in self.PRAGMAS:
                connection.execute(f"PRAGMA {pragma}").fetchall()
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            raise JournalFailed(f"{self.path}: its file system cannot do WAL mode; use a local one")
        with self._transaction() as connection:
            if new:
                sqlite_schema.create(connection, wanted or f"{randbits(128):032x}")
            self._owner = sqlite_schema.take_over(connection, randbits)
            if wanted not in {"", self._owner.server_token}:
                raise JournalReplaced(expected=wanted, found=self._owner.server_token)
        # The names of the files must be as durable as their content.
        _sync_directory(self.path.parent)
        self._files = self._identities()
        for log, key, position in connection.execute("SELECT name, id, snapshot FROM logs").fetchall():
            while self._purge_some(log, key, position, staged=True):
                pass

    def _find(self, log: str) -> _Row:
        sql = "SELECT id, last, tail, snapshot FROM logs WHERE name = ?"
        return _Row(*(self._connection.execute(sql, (log,)).fetchone() or ()))

    def _held(self, rows: Mapping[str, _Row]) -> dict[str, Held]:
        """Owner and end of each log."""
        return {log: Held(self._taken.get(log, Ownership()), row.end) for log, row in rows.items()}

    def _judge(self, believed: Mapping[str, Held]) -> dict[str, _Row]:
        """Whether the logs may be written; returns what the file says of them."""
        sqlite_schema.check_owner(self._connection, self._owner.writer, believed)
        rows = {log: self._find(log) for log in believed}
        judge(believed, self._held(rows))
        return rows

    def _set_end(self, log: str, key: int, end: End, *, snapshot: int | None = None) -> int:
        """Write where a log ends, and where its snapshot stands if that changes too; returns its key."""
        if not key:
            sql = "INSERT INTO logs (name, last, tail, snapshot) VALUES (?, ?, ?, ?)"
            return self._connection.execute(sql, (log, *end, snapshot or 0)).lastrowid or 0
        sql = "UPDATE logs SET last = ?, tail = ?, snapshot = ifnull(?, snapshot) WHERE id = ?"
        self._connection.execute(sql, (*end, snapshot, key))
        return key

    def _snapshot_key(self, log: str, position: int, believed: Mapping[str, Held], record: int | None) -> int | None:
        """Key of a log that may get a snapshot there; None when it has one that reaches as far."""
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
        """All parts of a snapshot, joined."""
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
        """Remove a little of what the snapshot at ``position`` covers; with ``staged``, of unfinished ones too.

        Returns whether there may be more.
        """
        others = "!=" if staged else "<"
        for sql in (
            "DELETE FROM records WHERE (log, position) IN"
            " (SELECT log, position FROM records WHERE log = ? AND position <= ? LIMIT ?)",
            "DELETE FROM snapshots WHERE (log, position, part) IN"
            f" (SELECT log, position, part FROM snapshots WHERE log = ? AND position {others} ? LIMIT ?)",
        ):
            with self._transaction() as connection:
                sqlite_schema.check_owner(connection, self._owner.writer, [log])
                removed = connection.execute(sql, (key, position, _PURGED_AT_A_TIME)).rowcount
            if removed == _PURGED_AT_A_TIME:
                return True
        return False

    def _identities(self) -> list[tuple[int, int]]:
        """Device and number of the two files that are written."""
        return [(stat.st_dev, stat.st_ino) for stat in (self.path.stat(), self._wal.stat())]

    def _check_files(self) -> None:
        """Refuse to write to files that a restart would not find."""
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
        """Around all statements that read one log: they see one state."""
        connection = self._connection
        with translated(self.path, log):
            connection.execute("BEGIN")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A write. An exception before the commit surely undoes it; one in the commit is judged by its code."""
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
            # Full: the frame that commits could not be written whole. Busy: the commit did not begin. After any other
            # error the frame may be on the disk, and the next recovery would find it.
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
