"""The tables of the SQLite journal, and who owns them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from lowwater_authority.journal.errors import JournalCorrupt, JournalFailed, JournalFenced, JournalVersion
from lowwater_authority.journal.frames import Writer

FORMAT = 1
"""The newest format of the tables, the one that is written."""

APPLICATION_ID = 0x6C6F7777
"""Marks the file as ours (``loww``); ``file`` and sqlite3 show it."""

# records and snapshots: keys that cluster, so that a load is one scan. Blobs of any size spill to overflow pages.
# logs.tail: checksum of the record at logs.last; kept apart from it, it shows a page that was lost on the disk.
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
) WITHOUT ROWID;
CREATE TABLE snapshots (
    log INTEGER NOT NULL,
    position INTEGER NOT NULL,
    part INTEGER NOT NULL,
    frame BLOB NOT NULL,
    PRIMARY KEY (log, position, part)
) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
"""


class Owner(NamedTuple):
    """One ownership of the journal."""

    server_token: str
    writer: Writer


def is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file is empty. Raises JournalFailed when it is somebody else's, JournalVersion when it is newer."""
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if mark == 0 and tables == 0:
        return True
    if mark != APPLICATION_ID:
        raise JournalFailed(f"{path} is a database of another program: give the journal a file of its own")
    row = connection.execute("SELECT format FROM meta").fetchone()
    if row is not None and row[0] > FORMAT:
        raise JournalVersion(str(path), found=row[0], supported=FORMAT)
    return False


def create(connection: sqlite3.Connection, server_token: str) -> None:
    """Make the tables, owned by nobody. Runs in the caller's transaction."""
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    checksum = _checksum(server_token, 0, 0)
    connection.execute("INSERT INTO meta VALUES (1, ?, ?, 0, 0, ?)", (FORMAT, server_token, checksum))


def take_over(connection: sqlite3.Connection, randbits: Callable[[int], int], *, above: int = 0) -> Owner:
    """Begin the next epoch, greater than ``above`` too. Runs in the caller's transaction."""
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
    """Raise JournalFenced, for all of the logs, when another process has opened the file after ``me``."""
    found = Writer(*connection.execute("SELECT epoch, nonce FROM meta").fetchone())
    if found != me:
        raise JournalFenced(dict.fromkeys(logs, (me.epoch, found.epoch)))


def _checksum(server_token: str, epoch: int, nonce: int) -> int:
    return crc32(f"{server_token} {epoch} {nonce}".encode())
