"""What SQLite's errors mean for a journal, and what an operator has to do about them."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lowwater_authority.journal.errors import JournalCorrupt, JournalFailed

_logger = logging.getLogger(__name__)

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


@contextmanager
def translated(path: Path, log: str | None = None) -> Iterator[None]:
    """Around statements that commit nothing: an error of SQLite's surely wrote nothing."""
    try:
        yield
    except sqlite3.Error as error:
        if code(error) in _DAMAGED:
            raise JournalCorrupt(log, None, f"{path}: {error}") from error
        raise failed(path, error) from error


def failed(path: Path, error: sqlite3.Error) -> JournalFailed:
    """The error for a statement that surely wrote nothing; says what to do."""
    fixes = {
        sqlite3.SQLITE_FULL: "free space on its disk",
        sqlite3.SQLITE_READONLY: "make the file and its directory writable",
        sqlite3.SQLITE_CANTOPEN: "make the file and its directory readable and writable",
        sqlite3.SQLITE_BUSY: "end the program that has it locked",
        sqlite3.SQLITE_IOERR: "check the disk and the kernel's log",
    }
    fix = fixes.get(code(error), "see what SQLite says")
    return JournalFailed(f"{path}: {error}; nothing was written: {fix}")


def code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; -1 for errors of Python's own."""
    return getattr(error, "sqlite_errorcode", -1) & 0xFF


def roll_back(connection: sqlite3.Connection) -> None:
    """End the transaction if SQLite has not done so by itself. Should that fail, nothing is committed all the same."""
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            _logger.warning("rolling back failed: %s", error)
