"""What the SQLite journal does on its own thread: the file, and one transaction per write."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lowwater_authority.journal import sqlite_schema, wal
from lowwater_authority.journal.errors import (
    JournalClosed,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalPosition,
    JournalUnknown,
)
from lowwater_authority.journal.framing import Kind, Writer, checksum, decode, decode_records
from lowwater_authority.journal.interface import LoadedLog
from lowwater_authority.journal.lock import LockFile
from lowwater_authority.journal.sequence import Run
from lowwater_authority.journal.sqlite_schema import Owner

_logger = logging.getLogger(__name__)

_PURGED_AT_A_TIME = 64
"""Rows deleted in one transaction: at most some ten milliseconds for records of 100 KB."""

_BUSY_SECONDS = 5.0
"""How long to wait for a stranger (sqlite3, a backup) that has the database locked."""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class SqliteDatabase:
    """The file of a SqliteJournal. Blocking; all calls come from one thread.

    The owner and the positions are checked in the transaction that writes. No method leaves a transaction open.
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
        self._files: list[tuple[int, int]] = []

    def open(self, randbits: Callable[[int], int]) -> Owner:
        """Lock, create or check the file, and begin an epoch. After an exception everything is let go again."""
        try:
            self._lock_and_check()
            self._connect(randbits)
        except BaseException:
            self.close()
            raise
        return self._owner

    def logs(self) -> list[str]:
        """Names of all logs, sorted."""
        with _translated(self.path):
            return [name for (name,) in self._connection.execute("SELECT name FROM logs ORDER BY name")]

    def load(self, log: str) -> LoadedLog:
        """Snapshot and records of a log, all checked."""
        connection = self._connection
        with self._reading(log):
            row = connection.execute("SELECT id, last, tail, snapshot FROM logs WHERE name = ?", (log,)).fetchone()
            if row is None:
                return LoadedLog(0, None, [])
            key, last, tail, position = row
            snapshot = self._load_snapshot(log, key, position) if position else None
            rows = connection.execute(
                "SELECT position, frame FROM records WHERE log = ? AND position > ? ORDER BY position", (key, position)
            )
            epoch = self._owner.writer.epoch
            return LoadedLog(
                position, snapshot, decode_records(log, rows, after=position, last=last, tail=tail, epoch=epoch)
            )

    def append(self, runs: list[Run]) -> None:
        """Write all runs in one transaction, or none. Without runs, only check the owner."""
        if not runs:
            with _translated(self.path):
                sqlite_schema.check_owner(self._connection, self._owner.writer)
            return
        with self._transaction() as connection:
            sqlite_schema.check_owner(connection, self._owner.writer)
            for run in runs:
                row = connection.execute("SELECT id, last, tail FROM logs WHERE name = ?", (run.log,)).fetchone()
                key, last, tail = row or (None, 0, 0)
                if not run.is_new(last):
                    stored = connection.execute(
                        "SELECT position, frame FROM records WHERE log = ? AND position >= ?", (key, run.first)
                    )
                    if not run.is_tail(dict(stored), tail=tail):
                        raise run.refuse_others(last)
                    continue
                ending = (run.last, checksum(run.frames[-1]))
                if key is None:
                    sql = "INSERT INTO logs (name, last, tail, snapshot) VALUES (?, ?, ?, 0)"
                    key = connection.execute(sql, (run.log, *ending)).lastrowid
                else:
                    connection.execute("UPDATE logs SET last = ?, tail = ? WHERE id = ?", (*ending, key))
                connection.executemany(
                    "INSERT INTO records VALUES (?, ?, ?)",
                    [(key, position, frame) for position, frame in enumerate(run.frames, run.first)],
                )

    def begin_snapshot(self, log: str, position: int) -> int | None:
        """The key to stage the parts of a snapshot under; None when the present one reaches as far."""
        with _translated(self.path):
            sqlite_schema.check_owner(self._connection, self._owner.writer)
            return self._snapshot_key(log, position)

    def stage(self, key: int, position: int, part: int, frame: bytes) -> None:
        """Write one part of a snapshot, which counts for nothing until ``finish_snapshot``."""
        with self._transaction() as connection:
            sqlite_schema.check_owner(connection, self._owner.writer)
            connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", (key, position, part, frame))

    def finish_snapshot(self, log: str, position: int, parts: int) -> None:
        """Make the staged parts the snapshot, in one transaction; ``purge_some`` removes what it covers."""
        with self._transaction() as connection:
            sqlite_schema.check_owner(connection, self._owner.writer)
            key = self._snapshot_key(log, position)
            if key is not None:
                sql = "SELECT count(*) FROM snapshots WHERE log = ? AND position = ?"
                (staged,) = connection.execute(sql, (key, position)).fetchone()
                if staged != parts:
                    raise JournalFailed(f"log {log!r}: {staged} of {parts} parts of snapshot {position} are there")
                connection.execute("UPDATE logs SET snapshot = ? WHERE id = ?", (position, key))

    def purge_some(self, log: str) -> bool:
        """Remove a little of what a log's snapshot covers; returns whether there may be more."""
        try:
            with _translated(self.path):
                sql = "SELECT id, snapshot FROM logs WHERE name = ?"
                row = self._connection.execute(sql, (log,)).fetchone()
            return self._purge_some(*row)
        except JournalError as error:
            # The snapshot holds. What it covers is not read any more; the next one, or the next start, removes it.
            _logger.warning("log %r: covered records stay on disk for now: %s", log, error)
            return False

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

    def _connect(self, randbits: Callable[[int], int]) -> None:
        with _translated(self.path):
            self._handle = connection = sqlite3.connect(self.path, isolation_level=None, timeout=_BUSY_SECONDS)
            new = sqlite_schema.is_new(connection, self.path)
            for pragma in self.PRAGMAS:
                connection.execute(f"PRAGMA {pragma}").fetchall()
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            raise JournalFailed(f"{self.path}: its file system cannot do WAL mode; use a local one")
        with self._transaction() as connection:
            if new:
                sqlite_schema.create(connection, f"{randbits(128):032x}")
            self._owner = sqlite_schema.take_over(connection, randbits)
        # The names of the files must be as durable as their content.
        _sync_directory(self.path.parent)
        self._files = self._identities()
        for key, position in connection.execute("SELECT id, snapshot FROM logs").fetchall():
            while self._purge_some(key, position, staged=True):
                pass

    def _snapshot_key(self, log: str, position: int) -> int | None:
        """Key of a log that may get a snapshot there; None when it has one that reaches as far."""
        row = self._connection.execute("SELECT id, last, snapshot FROM logs WHERE name = ?", (log,)).fetchone()
        key, last, present = row or (None, 0, 0)
        if not 1 <= position <= last:
            raise JournalPosition(log, position=position, last=last)
        return key if position > present else None

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

    def _purge_some(self, key: int, position: int, *, staged: bool = False) -> bool:
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
                sqlite_schema.check_owner(connection, self._owner.writer)
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
        with _translated(self.path, log):
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
        with _translated(self.path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                _roll_back(connection)
                raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            _roll_back(connection)
            # Full: the frame that commits could not be written whole. Busy: the commit did not begin. After any other
            # error the frame may be on the disk, and the next recovery would find it.
            if _code(error) in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY}:
                raise _failed(self.path, error) from error
            raise JournalUnknown(
                f"{self.path}: the commit failed ({error}); it may be written, repeat the call"
            ) from error


@contextmanager
def _translated(path: Path, log: str | None = None) -> Iterator[None]:
    """Around statements that commit nothing: an error of SQLite's surely wrote nothing."""
    try:
        yield
    except sqlite3.Error as error:
        if _code(error) in _DAMAGED:
            raise JournalCorrupt(log, None, f"{path}: {error}") from error
        raise _failed(path, error) from error


def _failed(path: Path, error: sqlite3.Error) -> JournalFailed:
    fixes = {
        sqlite3.SQLITE_FULL: "free space on its disk",
        sqlite3.SQLITE_READONLY: "make the file and its directory writable",
        sqlite3.SQLITE_CANTOPEN: "make the file and its directory readable and writable",
        sqlite3.SQLITE_BUSY: "end the program that has it locked",
        sqlite3.SQLITE_IOERR: "check the disk and the kernel's log",
    }
    fix = fixes.get(_code(error), "see what SQLite says")
    return JournalFailed(f"{path}: {error}; nothing was written: {fix}")


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; -1 for errors of Python's own."""
    return getattr(error, "sqlite_errorcode", -1) & 0xFF


def _roll_back(connection: sqlite3.Connection) -> None:
    """End the transaction if SQLite has not done so by itself. Should that fail, nothing is committed all the same."""
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            _logger.warning("rolling back failed: %s", error)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
