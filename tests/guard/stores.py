"""The stores that check writes, behind one face, for the tests that all of them must pass.

What a batch writes is a few numbers at the end of the guard's own list, so that what is lost, doubled or out of order shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import psycopg
import redis

from lowwater_pipeline.guard import Claim, Row
from lowwater_pipeline.guard.files import FileGuard, FileWriter
from lowwater_pipeline.guard.postgres import PostgresGuard, PostgresWriter
from lowwater_pipeline.guard.redis import RedisGuard, RedisWriter
from tests.contract.redis_server import RedisServer
from tests.kit.postgres import Postgres

WHOLE: Sequence[bytes] = (b"", b"")

Steps = int | Mapping[int, int]


def claim(token: int, nonce: str = "", **fields: Any) -> Claim:
    """A claim of the tests' one computation. The nonce is another for each token, if it is not said."""
    return replace(Claim("deployment", "default/hourly", 1, token, nonce or f"of {token}"), **fields)


class Store(Protocol):
    """A store with guards in it: claims are raised and batches written; ``forge`` changes a row behind its back, None takes the field away."""

    def raise_(
        self, claim: Claim, *, guard: str = ..., slots: int = ..., bounds: Iterable[bytes] = ..., begin: int = ...
    ) -> Any: ...
    def unraised(self, claim: Claim) -> Any: ...
    def write(self, writer: Any, batch: Steps, digest: str, values: Sequence[int]) -> bool: ...
    def values(self, guard: str = ...) -> list[int]: ...
    def rows(self, guard: str = ..., slots: int = ...) -> dict[int, Row | None]: ...
    def forge(self, field: str, value: Any, *, slot: int = ...) -> None: ...
    def close(self) -> None: ...


class PostgresStore:
    def __init__(self, server: Postgres, database: str, *, patience: float = 10.0, exists: bool = False) -> None:
        if not exists:
            server.execute(f'CREATE DATABASE "{database}"')
        self.database = database
        self.dsn = f"{server.dsn} dbname={database}"
        self.patience = patience
        self._guards: list[PostgresGuard] = []
        self._beside = psycopg.connect(self.dsn, autocommit=True)
        if not exists:
            self.ask("CREATE TABLE written (id bigserial PRIMARY KEY, guard text, value integer)")

    @classmethod
    def again(cls, server: Postgres, database: str) -> PostgresStore:
        """One that is there: the server was started anew, or has taken over."""
        return cls(server, database, exists=True)

    def guard(self, name: str = "hourly", slots: int = 1) -> PostgresGuard:
        guard = PostgresGuard(self.dsn, name, slots=slots, patience=self.patience)
        self._guards.append(guard)
        return guard

    def raise_(
        self, claim: Claim, *, guard: str = "hourly", slots: int = 1, bounds: Iterable[bytes] = WHOLE, begin: int = 0
    ) -> PostgresWriter:
        return self._shared(guard, slots).raise_(claim, bounds=bounds, begin=begin)

    def unraised(self, claim: Claim) -> PostgresWriter:
        return PostgresWriter(self._shared("hourly", 1), claim, range(1), {})

    def _shared(self, name: str, slots: int) -> PostgresGuard:
        """One connection for all whose transactions do not overlap."""
        guards = [guard for guard in self._guards if (guard.name, guard.slots) == (name, slots)]
        return guards[0] if guards else self.guard(name, slots)

    def write(self, writer: PostgresWriter, batch: Steps, digest: str, values: Sequence[int]) -> bool:
        name = writer.guard.name

        def fill(cursor: psycopg.Cursor[Any]) -> None:
            cursor.executemany("INSERT INTO written (guard, value) VALUES (%s, %s)", [(name, item) for item in values])

        return writer.write(batch, digest, fill)

    def values(self, guard: str = "hourly") -> list[int]:
        return [row[0] for row in self.ask("SELECT value FROM written WHERE guard = %s ORDER BY id", guard)]

    def rows(self, guard: str = "hourly", slots: int = 1) -> dict[int, Row | None]:
        with PostgresGuard(self.dsn, guard, slots=slots) as beside:
            return dict.fromkeys(range(slots)) | beside.rows()

    def forge(self, field: str, value: Any, *, slot: int = 0) -> None:
        self.ask(f"UPDATE lowwater_guard SET {field} = %s WHERE guard = %s AND slot = %s", value, "hourly", slot)

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self._beside.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def end_others(self) -> None:
        """End every other session in this database; they are gone when it returns."""
        self.ask(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def clear(self) -> None:
        self.ask("DROP TABLE IF EXISTS lowwater_guard")
        self.ask("TRUNCATE written RESTART IDENTITY")

    def close(self) -> None:
        for guard in self._guards:
            guard.close()
        self._beside.close()


class GuardedRedis:
    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.client = redis.Redis(port=server.port, decode_responses=True)
        self.client.flushall()

    def guard(self, name: str = "hourly", slots: int = 1, client: redis.Redis | None = None) -> RedisGuard:
        return RedisGuard(client or self.client, name, slots=slots)

    def raise_(
        self, claim: Claim, *, guard: str = "hourly", slots: int = 1, bounds: Iterable[bytes] = WHOLE, begin: int = 0
    ) -> RedisWriter:
        return self.guard(guard, slots).raise_(claim, bounds=bounds, begin=begin)

    def unraised(self, claim: Claim) -> RedisWriter:
        return RedisWriter(self.guard(), claim, range(1), {})

    def write(self, writer: RedisWriter, batch: Steps, digest: str, values: Sequence[int]) -> bool:
        key = f"written:{writer.guard.tag}"
        return writer.write(batch, digest, [("RPUSH", key, *values)] if values else [])

    def values(self, guard: str = "hourly") -> list[int]:
        values: Any = self.client.lrange(f"written:{{{guard}}}", 0, -1)
        return [int(value) for value in values]

    def rows(self, guard: str = "hourly", slots: int = 1) -> dict[int, Row | None]:
        return self.guard(guard, slots).rows()

    def forge(self, field: str, value: Any, *, slot: int = 0) -> None:
        key = self.guard().key(slot)
        if value is None:
            self.client.hdel(key, field)
        else:
            self.client.hset(key, field, str(value))

    def close(self) -> None:
        self.client.close()


class FileStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def guard(self, name: str = "hourly", slots: int = 1) -> FileGuard:
        return FileGuard(self.folder, name, slots=slots)

    def raise_(
        self, claim: Claim, *, guard: str = "hourly", slots: int = 1, bounds: Iterable[bytes] = WHOLE, begin: int = 0
    ) -> FileWriter:
        return self.guard(guard, slots).raise_(claim, bounds=bounds, begin=begin)

    def unraised(self, claim: Claim) -> FileWriter:
        return FileWriter(self.guard(), claim, range(1), {})

    def write(self, writer: FileWriter, batch: Steps, digest: str, values: Sequence[int]) -> bool:
        def fill(directory: Path) -> None:
            (directory / "values").write_text("".join(f"{value}\n" for value in values))

        return writer.write(batch, digest, fill)

    def values(self, guard: str = "hourly") -> list[int]:
        slots = self._slots(guard)
        directories = self.guard(guard, slots).directories() if slots else []
        return [int(line) for directory in directories for line in (directory / "values").read_text().splitlines()]

    def rows(self, guard: str = "hourly", slots: int = 1) -> dict[int, Row | None]:
        return self.guard(guard, slots).rows()

    def forge(self, field: str, value: Any, *, slot: int = 0) -> None:
        newest = max(self.guard().log.iterdir())
        entry = json.loads(newest.read_bytes())
        if value is None:
            del entry["rows"][str(slot)][field]
        else:
            entry["rows"][str(slot)][field] = str(value)
        newest.write_text(json.dumps(entry))

    def _slots(self, guard: str) -> int:
        """Return the number of slots of a guard; 0: no such guard."""
        log = self.guard(guard).log
        return int(json.loads(max(log.iterdir()).read_bytes())["slots"]) if log.exists() and any(log.iterdir()) else 0

    def close(self) -> None:
        pass
