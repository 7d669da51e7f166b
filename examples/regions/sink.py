"""The sink that both regions reach: hours in SQLite.

A commit compares the adoption number in its own transaction.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from lowwater.regions import Position
from lowwater.watermark import MIN

TABLE = "hours"
"""Its name in the reference."""


class Fenced(Exception):
    """Another number counts here now. Nothing was written."""


class Hour(NamedTuple):
    """A closed hour."""

    start: int
    """Microseconds."""
    ids: tuple[int, ...]
    """Ids of its clicks, each once, sorted."""


class Commit(NamedTuple):
    """One transaction of the sink."""

    number: int
    batch: int
    """Counted from 0 by each owner."""
    until: int
    """Every hour that ends here or earlier is in the sink, and does not change. Microseconds."""
    digest: str
    positions: tuple[Position, ...]
    """Where the sources are read on behind it, in their own coordinates."""
    at: float
    """When, by the clock of the machine; seconds since the epoch."""


class Written(NamedTuple):
    """An hour as it stands in the sink."""

    hour: Hour
    number: int
    """Adoption number of the commit."""
    at: float


class Sink:
    """One file. Two processes may use it at once; whoever comes second waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._reading() as db:
            db.execute("PRAGMA journal_mode = WAL")  # who reads keeps nobody from writing
        with self._transaction() as db:
            db.execute("CREATE TABLE IF NOT EXISTS token (number INTEGER)")
            db.execute("INSERT INTO token SELECT 0 WHERE NOT EXISTS (SELECT * FROM token)")
            db.execute("CREATE TABLE IF NOT EXISTS raised (number INTEGER PRIMARY KEY, at REAL)")
            db.execute(
                "CREATE TABLE IF NOT EXISTS commits (number INTEGER, batch INTEGER, until INTEGER, digest TEXT, positions TEXT, at REAL, UNIQUE (number, batch))"
            )
            db.execute(
                f"CREATE TABLE IF NOT EXISTS {TABLE} (start INTEGER PRIMARY KEY, ids TEXT, number INTEGER, at REAL)"
            )

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as db:
            yield db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as db:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")  # without it, all of it is undone

    def raise_(self, number: int) -> Commit | None:
        """Let no older number write any more, and return what was committed last, by whomever.

        Raises Fenced for an older one.
        """
        with self._transaction() as db:
            self._check(db, number, older=True)
            db.execute("UPDATE token SET number = ?", (number,))
            db.execute("INSERT OR IGNORE INTO raised VALUES (?, ?)", (number, time.time()))
            return _last(db)

    def commit(self, number: int, batch: int, until: int, hours: Iterable[Hour], positions: Iterable[Position]) -> None:
        """Write closed hours.

        Raises Fenced for another number than the one that was raised last, and IntegrityError for
        an hour that is there.
        """
        hours, positions = list(hours), list(positions)
        with self._transaction() as db:
            self._check(db, number, older=False)
            last = _last(db)
            assert last is None or until >= last.until, "what was complete is not any more"
            now = time.time()
            db.execute(
                "INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?)",
                (number, batch, until, digest_of(hours), json.dumps(positions), now),
            )
            rows = [(hour.start, json.dumps(hour.ids), number, now) for hour in hours]
            db.executemany(f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?)", rows)

    def _check(self, db: sqlite3.Connection, number: int, *, older: bool) -> None:
        [newest] = db.execute("SELECT number FROM token").fetchone()
        if number < newest or (number > newest and not older):
            raise Fenced(f"{number} does not count here: {newest} does")

    def last(self) -> Commit | None:
        """Return the last commit; None before the first."""
        with self._reading() as db:
            return _last(db)

    @property
    def until(self) -> int:
        """Event time up to which the sink is complete."""
        last = self.last()
        return MIN if last is None else last.until

    def raised(self) -> dict[int, float]:
        """When each number was raised."""
        with self._reading() as db:
            return dict(db.execute("SELECT number, at FROM raised").fetchall())

    def commits(self) -> list[Commit]:
        """All of them, in their order."""
        with self._reading() as db:
            return [_commit(row) for row in db.execute("SELECT * FROM commits ORDER BY rowid").fetchall()]

    def hours(self) -> dict[int, Written]:
        """All hours, by their start."""
        with self._reading() as db:
            rows = db.execute(f"SELECT start, ids, number, at FROM {TABLE} ORDER BY start").fetchall()
        return {start: Written(Hour(start, tuple(json.loads(ids))), number, at) for start, ids, number, at in rows}


def digest_of(hours: Iterable[Hour]) -> str:
    """Return a digest of a batch's content."""
    return hashlib.sha256(json.dumps(sorted(hours)).encode()).hexdigest()[:16]


def _last(db: sqlite3.Connection) -> Commit | None:
    row = db.execute("SELECT * FROM commits ORDER BY rowid DESC LIMIT 1").fetchone()
    return None if row is None else _commit(row)


def _commit(row: tuple[int, int, int, str, str, float]) -> Commit:
    number, batch, until, digest, positions, at = row
    return Commit(number, batch, until, digest, tuple((c, t, p, o) for c, t, p, o in json.loads(positions)), at)
