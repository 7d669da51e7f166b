"""Every journal store behind one face: how a test opens it, crashes it, takes it over and damages it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from lowwater_authority.journal import (
    Entry,
    Journal,
    JournalFailed,
    JournalFenced,
    JournalLost,
    JournalUnknown,
    LoadedLog,
    Ownership,
    SqliteJournal,
)
from lowwater_authority.journal.frames import checksum, decode, encode
from lowwater_authority.journal.redis import RedisJournal
from lowwater_authority.journal.rules import Writer
from tests.contract.redis_server import DURABLE, RedisServer
from tests.kit.memory_journal import MemoryDisk, MemoryJournal, flipped

T = TypeVar("T")


def entry(log: str, position: int, payload: bytes | None = None, *, strong: bool = True) -> Entry:
    return Entry(log, position, f"{log}:{position}".encode() if payload is None else payload, strong)


def loaded(log: str, first: int, last: int, *, snapshot: bytes | None = None) -> LoadedLog:
    """A log with the payloads of ``entry``, with a snapshot just before ``first`` if one is given."""
    records = [(position, f"{log}:{position}".encode()) for position in range(first, last + 1)]
    return LoadedLog(first - 1 if snapshot is not None else 0, snapshot, records)


async def fenced(*calls: Awaitable[object]) -> list[dict[str, tuple[int, int]]]:
    reasons = []
    for call in calls:
        with pytest.raises(JournalFenced) as refused:
            await call
        reasons.append(refused.value.owners)
    return reasons


async def lost(*calls: Awaitable[object]) -> list[dict[str, tuple[int, int]]]:
    reasons = []
    for call in calls:
        with pytest.raises(JournalLost) as refused:
            await call
        reasons.append(refused.value.logs)
    return reasons


def writes(journal: Journal, log: str, position: int) -> list[Awaitable[object]]:
    return [
        journal.append([entry("b", 1), entry(log, position)]),
        journal.append([entry(log, position - 1)]),
        journal.snapshot(log, 1, b""),
    ]


async def repeated(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call as the authority does: again, until its outcome is known. No time-out is too short for that."""
    while True:
        try:
            return await call()
        except (JournalUnknown, JournalFailed):
            continue


async def turn() -> None:
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    await ran.wait()


class StoreSubject:
    def __init__(self) -> None:
        self._opened: list[Journal] = []

    async def open(self, *logs: str) -> Journal:
        """A journal as a newly started process would open it, which takes the logs: "a", "b" and "c" unless given."""
        journal = await self.connect()
        for log in logs or "abc":
            await journal.take(log)
        return journal

    async def connect(self) -> Journal:
        journal = self.make()
        await journal.open()
        self._opened.append(journal)
        return journal

    async def close(self) -> None:
        for journal in self._opened:
            await journal.close()

    def make(self) -> Journal:
        raise NotImplementedError

    def crash(self) -> None: ...  # the next ``open`` finds what the disk has
    def break_lock(self) -> None: ...  # whatever keeps a second process out is gone, the first one still runs
    def damage(self, log: str, position: int) -> None: ...
    def remove(self, log: str, position: int) -> None: ...
    def swap(self, log: str, position: int, other_log: str, other: int) -> None: ...
    def damage_snapshot(self, log: str) -> None: ...
    def remove_snapshot(self, log: str) -> None: ...  # or its last part
    def forget(self, log: str, keep: int) -> None: ...  # lose what is behind ``keep``; there is no snapshot
    def supplant(self, log: str, position: int) -> None: ...  # the newest record was lost, and its number given again


class SharedSubject(StoreSubject):
    def give(self, log: str, owner: Ownership) -> None: ...  # another owner, as a store that has lost some would have
    def clear(self) -> None: ...  # lose everything, the server token too
    def replace(self) -> None: ...  # become the empty store of another deployment


def another(log: str, position: int, frame: bytes) -> bytes:
    epoch, nonce = decode(log, position, frame).writer
    return encode(log, position, b"another", writer=Writer(epoch, nonce ^ 1))


class MemorySubject(SharedSubject):
    def __init__(self, _: Path | None = None) -> None:
        super().__init__()
        self.disk = MemoryDisk()

    def make(self) -> Journal:
        return MemoryJournal(self.disk, shared=True)

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

    def forget(self, log: str, keep: int) -> None:
        stored = self.disk.logs[log]
        stored.records = {position: frame for position, frame in stored.records.items() if position <= keep}
        stored.last, stored.tail = keep, checksum(stored.records[keep])

    def supplant(self, log: str, position: int) -> None:
        stored = self.disk.logs[log]
        stored.records[position] = frame = another(log, position, stored.records[position])
        stored.tail = checksum(frame)

    def give(self, log: str, owner: Ownership) -> None:
        self.disk.owners[log] = owner

    def clear(self) -> None:
        self.disk.put_back(MemoryDisk())

    def replace(self) -> None:
        self.clear()
        self.disk.server_token = "another"


SET_FRAME = "UPDATE records SET frame = ? WHERE log = (SELECT id FROM logs WHERE name = ?) AND position = ?"


class SqliteSubject(StoreSubject):
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
        self.execute(SET_FRAME, flipped(self.frame(log, position)), log, position)

    def remove(self, log: str, position: int) -> None:
        where = "log = (SELECT id FROM logs WHERE name = ?) AND position = ?"
        self.execute(f"DELETE FROM records WHERE {where}", log, position)

    def swap(self, log: str, position: int, other_log: str, other: int) -> None:
        frames = self.frame(log, position), self.frame(other_log, other)
        self.execute(SET_FRAME, frames[1], log, position)
        self.execute(SET_FRAME, frames[0], other_log, other)

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

    def forget(self, log: str, keep: int) -> None:
        tail = checksum(self.frame(log, keep))
        ((key,),) = self.execute("UPDATE logs SET last = ?, tail = ? WHERE name = ? RETURNING id", keep, tail, log)
        assert isinstance(key, int)
        self.execute("DELETE FROM records WHERE log = ? AND position > ?", key, keep)

    def supplant(self, log: str, position: int) -> None:
        frame = another(log, position, self.frame(log, position))
        ((key,),) = self.execute("UPDATE logs SET tail = ? WHERE name = ? RETURNING id", checksum(frame), log)
        assert isinstance(key, int)
        self.execute("UPDATE records SET frame = ? WHERE log = ? AND position = ?", frame, key, position)

    def frame(self, log: str, position: int) -> bytes:
        ((frame,),) = self.execute(
            "SELECT frame FROM records JOIN logs ON log = id WHERE name = ? AND position = ?", log, position
        )
        assert isinstance(frame, bytes)
        return frame

    def execute(self, sql: str, *parameters: bytes | str | int) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(sql, parameters).fetchall()


class RedisSubject(SharedSubject):
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

    def forget(self, log: str, keep: int) -> None:
        tail = checksum(self.records(log)[keep])
        for position in sorted(self.records(log)):
            if position > keep:
                self.server.execute("XDEL", f"{self.TAG}:records:{log}", f"{position}-0")
        self.server.execute("XSETID", f"{self.TAG}:records:{log}", f"{keep}-0")
        self.server.execute("HSET", f"{self.TAG}:meta:{log}", "last", keep, "tail", tail)

    def supplant(self, log: str, position: int) -> None:
        records = self.records(log)
        frame = another(log, position, records[position])
        self.rewrite(log, records | {position: frame})
        self.server.execute("HSET", f"{self.TAG}:meta:{log}", "tail", checksum(frame))

    def give(self, log: str, owner: Ownership) -> None:
        fields = [str(part) for field in owner._asdict().items() for part in field]
        self.server.execute("HSET", f"{self.TAG}:meta:{log}", *fields)

    def clear(self) -> None:
        self.server.execute("FLUSHALL")

    def replace(self) -> None:
        self.clear()
        self.server.execute("HSET", f"{self.TAG}:deployment", "token", "another")

    def parts(self, log: str) -> list[bytes]:
        return sorted(self.server.execute("HKEYS", f"{self.TAG}:parts:{log}"))

    def records(self, log: str) -> dict[int, bytes]:
        entries = self.server.execute("XRANGE", f"{self.TAG}:records:{log}", "-", "+")
        return {int(place.partition(b"-")[0]): fields[b"f"] for place, fields in entries}

    def rewrite(self, log: str, records: dict[int, bytes]) -> None:
        """Replace all records: a stream does not change in the middle."""
        key = f"{self.TAG}:records:{log}"
        self.server.execute("DEL", key)
        for position, frame in sorted(records.items()):
            self.server.execute("XADD", key, f"{position}-0", "f", frame)


SUBJECTS = {"memory": MemorySubject, "sqlite": SqliteSubject, "redis": RedisSubject}
"""Every store, by name, made in a directory of its own."""
