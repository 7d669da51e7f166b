"""Every journal store behind one face: how a test opens it, crashes it, takes it over and damages it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path

from lowwater_authority.journal import Entry, Journal, MemoryDisk, MemoryJournal, SqliteJournal
from lowwater_authority.journal.redis import RedisJournal
from tests.contract.redis_server import DURABLE, RedisServer


def entry(log: str, position: int, payload: bytes | None = None, *, strong: bool = True) -> Entry:
    """An entry; its payload tells where it belongs unless given."""
    return Entry(log, position, f"{log}:{position}".encode() if payload is None else payload, strong)


async def turn() -> None:
    """Let every other task that is ready run once."""
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    await ran.wait()


class Store(ABC):
    """A deployment's store, and the journals that a test opened over it."""

    def __init__(self) -> None:
        self._opened: list[Journal] = []

    async def open(self) -> Journal:
        """A journal as a newly started process would open it."""
        journal = self.make()
        await journal.open()
        self._opened.append(journal)
        return journal

    async def close(self) -> None:
        """Close whatever was opened."""
        for journal in self._opened:
            await journal.close()

    @abstractmethod
    def make(self) -> Journal:
        """A journal that is not opened yet."""

    @abstractmethod
    def crash(self) -> None:
        """The machine dies now. The next ``open`` finds what the disk has."""

    @abstractmethod
    def break_lock(self) -> None:
        """Whatever keeps a second process out is gone, the first one still runs."""

    @abstractmethod
    def damage(self, log: str, position: int) -> None:
        """Flip a bit of a record, in the store."""

    @abstractmethod
    def remove(self, log: str, position: int) -> None:
        """Take a record out of the store."""

    @abstractmethod
    def swap(self, log: str, position: int, other_log: str, other: int) -> None:
        """Exchange two records, each whole."""

    @abstractmethod
    def damage_snapshot(self, log: str) -> None:
        """Flip a bit of the snapshot."""

    @abstractmethod
    def remove_snapshot(self, log: str) -> None:
        """Take the snapshot, or its last part, out of the store."""


def flipped(frame: bytes) -> bytes:
    """One bit in the middle is wrong."""
    middle = len(frame) // 2
    return frame[:middle] + bytes([frame[middle] ^ 0x10]) + frame[middle + 1 :]


class MemoryStore(Store):
    """MemoryJournal over one MemoryDisk."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()

    def make(self) -> Journal:
        return MemoryJournal(self.disk)

    def crash(self) -> None:
        self.disk.crash()

    def break_lock(self) -> None:
        """There is none."""

    def damage(self, log: str, position: int) -> None:
        records = self.disk.logs[log].records
        records[position] = flipped(records[position])

    def remove(self, log: str, position: int) -> None:
        del self.disk.logs[log].records[position]

    def swap(self, log: str, position: int, other_log: str, other: int) -> None:
        mine, others = self.disk.logs[log].records, self.disk.logs[other_log].records
        mine[position], others[other] = others[other], mine[position]

    def damage_snapshot(self, log: str) -> None:
        stored = self.disk.logs[log]
        assert stored.snapshot is not None
        stored.snapshot = flipped(stored.snapshot)

    def remove_snapshot(self, log: str) -> None:
        self.disk.logs[log].snapshot = None


class SqliteStore(Store):
    """SqliteJournal in a directory. A crash is a copy of its files as they are, without the shared-memory index."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._root = directory
        self._crashes = 0
        self.path = self._fresh() / "journal.db"

    def _fresh(self) -> Path:
        directory = self._root / str(self._crashes)
        directory.mkdir()
        return directory

    def make(self) -> Journal:
        return SqliteJournal(self.path)

    def crash(self) -> None:
        self._crashes += 1
        old, self.path = self.path, self._fresh() / "journal.db"
        for suffix in ("", "-wal"):
            source = old.with_name(old.name + suffix)
            if source.exists():
                shutil.copy(source, self.path.with_name(self.path.name + suffix))

    def break_lock(self) -> None:
        self.path.with_name("journal.db.lock").unlink()

    def damage(self, log: str, position: int) -> None:
        frame = self.frame(log, position)
        self.execute(
            "UPDATE records SET frame = ? WHERE log = (SELECT id FROM logs WHERE name = ?) AND position = ?",
            flipped(frame),
            log,
            position,
        )

    def remove(self, log: str, position: int) -> None:
        self.execute(
            "DELETE FROM records WHERE log = (SELECT id FROM logs WHERE name = ?) AND position = ?", log, position
        )

    def swap(self, log: str, position: int, other_log: str, other: int) -> None:
        frames = self.frame(log, position), self.frame(other_log, other)
        sql = "UPDATE records SET frame = ? WHERE log = (SELECT id FROM logs WHERE name = ?) AND position = ?"
        self.execute(sql, frames[1], log, position)
        self.execute(sql, frames[0], other_log, other)

    def damage_snapshot(self, log: str) -> None:
        where = "WHERE log = (SELECT id FROM logs WHERE name = ?) AND part = 0"
        ((frame,),) = self.execute(f"SELECT frame FROM snapshots {where}", log)
        assert isinstance(frame, bytes)
        self.execute(f"UPDATE snapshots SET frame = ? {where}", flipped(frame), log)

    def remove_snapshot(self, log: str) -> None:
        self.execute(
            "DELETE FROM snapshots WHERE part = (SELECT max(part) FROM snapshots)"
            " AND log = (SELECT id FROM logs WHERE name = ?)",
            log,
        )

    def frame(self, log: str, position: int) -> bytes:
        """A record as it is stored."""
        ((frame,),) = self.execute(
            "SELECT frame FROM records JOIN logs ON log = id WHERE name = ? AND position = ?", log, position
        )
        assert isinstance(frame, bytes)
        return frame

    def execute(self, sql: str, *parameters: bytes | str | int) -> list[tuple[object, ...]]:
        """Run a statement beside the journal."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(sql, parameters).fetchall()


class RedisStore(Store):
    """RedisJournal over a redis-server that syncs each write. A crash is a kill -9 of it, and a start."""

    TAG = "{lowwater:default}"

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.server = RedisServer(directory / "redis", *DURABLE).start()

    async def close(self) -> None:
        with self.server:
            await super().close()

    def make(self, timeout: float = 5.0) -> Journal:
        return RedisJournal(self.server.url, timeout=timeout)

    def crash(self) -> None:
        self.server.kill()
        self.server.start()

    def break_lock(self) -> None:
        """There is none."""

    def damage(self, log: str, position: int) -> None:
        records = self.records(log)
        self.rewrite(log, records | {position: flipped(records[position])})

    def remove(self, log: str, position: int) -> None:
        self.server.execute("XDEL", f"{self.TAG}:records:{log}", f"{position}-0")

    def swap(self, log: str, position: int, other_log: str, other: int) -> None:
        mine, others = self.records(log), self.records(other_log)
        if log == other_log:
            self.rewrite(log, mine | {position: mine[other], other: mine[position]})
        else:
            self.rewrite(log, mine | {position: others[other]})
            self.rewrite(other_log, others | {other: mine[position]})

    def damage_snapshot(self, log: str) -> None:
        field, *_ = self.parts(log)
        frame = self.server.execute("HGET", f"{self.TAG}:parts:{log}", field)
        self.server.execute("HSET", f"{self.TAG}:parts:{log}", field, flipped(frame))

    def remove_snapshot(self, log: str) -> None:
        *_, field = self.parts(log)
        self.server.execute("HDEL", f"{self.TAG}:parts:{log}", field)

    def parts(self, log: str) -> list[bytes]:
        """The fields of the parts of a snapshot, in order."""
        return sorted(self.server.execute("HKEYS", f"{self.TAG}:parts:{log}"))

    def records(self, log: str) -> dict[int, bytes]:
        """The records as they are stored."""
        found = self.server.execute("XRANGE", f"{self.TAG}:records:{log}", "-", "+")
        return {int(place.partition(b"-")[0]): fields[b"f"] for place, fields in found}

    def rewrite(self, log: str, records: dict[int, bytes]) -> None:
        """Replace all records: a stream does not change in the middle."""
        key = f"{self.TAG}:records:{log}"
        self.server.execute("DEL", key)
        for position, frame in sorted(records.items()):
            self.server.execute("XADD", key, f"{position}-0", "f", frame)
