"""Stores in which the two writers keep their timers: PostgreSQL, Redis and directories.

Each is there with a guard, and without one, as is often done.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg
import redis

from lowwater_pipeline.guard import Claim
from lowwater_pipeline.guard.files import FileGuard
from lowwater_pipeline.guard.postgres import PostgresGuard
from lowwater_pipeline.guard.redis import RedisGuard

Pause = Callable[[], None]
"""Returns when the writer's process runs again."""

GUARD: Final = "timers"


class Owner(Protocol):
    """A writer that owns the timers, as far as it knows."""

    def write(self, batch: int, timer: str, pause: Pause) -> bool:
        """Store a timer; the process is paused once the write has begun."""
        ...


class Store(Protocol):
    """Where timers are."""

    name: str
    guarded: bool

    def own(self, claim: Claim) -> Owner:
        """Take the timers over with a claim that the authority has acknowledged."""
        ...

    def scan(self) -> list[str]:
        """Read all timers."""
        ...

    def close(self) -> None:
        """Let connections go."""
        ...


class GuardedPostgres:
    """The check and the timer are one transaction, under the lock of the guard's row."""

    name = "PostgreSQL, guarded"
    guarded = True

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._guards: list[PostgresGuard] = []
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE timers (id bigserial, timer text)")

    def own(self, claim: Claim) -> Owner:
        guard = PostgresGuard(self.dsn, GUARD, patience=1.0)
        self._guards.append(guard)
        writer = guard.raise_(claim)

        class Guarded:
            def write(self, batch: int, timer: str, pause: Pause) -> bool:
                def fill(cursor: psycopg.Cursor[Any]) -> None:
                    cursor.execute("INSERT INTO timers (timer) VALUES (%s)", (timer,))
                    pause()

                return writer.write(batch, f"timer {timer}", fill)

        return Guarded()

    def scan(self) -> list[str]:
        with psycopg.connect(self.dsn) as connection:
            return [timer for [timer] in connection.execute("SELECT timer FROM timers ORDER BY id")]

    def close(self) -> None:
        for guard in self._guards:
            guard.close()


class CheckedPostgres:
    """The owner stands in the database, and who writes looks it up first, in the same transaction.

    That is not enough.
    """

    name = "PostgreSQL, looked up in the same transaction"
    guarded = False

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE looked_up (id bigserial, timer text)")
            connection.execute("CREATE TABLE owner (token numeric(20))")
            connection.execute("INSERT INTO owner VALUES (0)")

    def own(self, claim: Claim) -> Owner:
        dsn = self.dsn
        with psycopg.connect(dsn) as connection:
            connection.execute("UPDATE owner SET token = %s WHERE token < %s", (claim.token, claim.token))

        class LookedUp:
            def write(self, batch: int, timer: str, pause: Pause) -> bool:
                with psycopg.connect(dsn) as connection:
                    if connection.execute("SELECT token FROM owner").fetchall() != [(claim.token,)]:
                        return False
                    connection.execute("INSERT INTO looked_up (timer) VALUES (%s)", (timer,))
                    pause()
                return True

        return LookedUp()

    def scan(self) -> list[str]:
        with psycopg.connect(self.dsn) as connection:
            return [timer for [timer] in connection.execute("SELECT timer FROM looked_up ORDER BY id")]

    def close(self) -> None:
        """Nothing is left open."""


class GuardedRedis:
    """The check and the timer are one atomic script: the delay comes before it."""

    name = "Redis, guarded"
    guarded = True

    def __init__(self, port: int) -> None:
        self.client = redis.Redis(port=port, decode_responses=True)

    def own(self, claim: Claim) -> Owner:
        writer = RedisGuard(self.client, GUARD).raise_(claim)

        class Guarded:
            def write(self, batch: int, timer: str, pause: Pause) -> bool:
                pause()
                return writer.write(batch, f"timer {timer}", [("RPUSH", "timers:{timers}", timer)])

        return Guarded()

    def scan(self) -> list[str]:
        timers: Any = self.client.lrange("timers:{timers}", 0, -1)
        return list(timers)

    def close(self) -> None:
        self.client.close()


class CheckedRedis:
    """The owner stands in Redis, and who writes looks it up first."""

    name = "Redis, looked up before"
    guarded = False

    def __init__(self, port: int) -> None:
        self.client = redis.Redis(port=port, decode_responses=True)

    def own(self, claim: Claim) -> Owner:
        client, token = self.client, str(claim.token)
        client.set("owner", token)

        class LookedUp:
            def write(self, batch: int, timer: str, pause: Pause) -> bool:
                if client.get("owner") != token:
                    return False
                pause()
                client.rpush("looked_up", timer)
                return True

        return LookedUp()

    def scan(self) -> list[str]:
        timers: Any = self.client.lrange("looked_up", 0, -1)
        return list(timers)

    def close(self) -> None:
        self.client.close()


class GuardedFiles:
    """A directory of its own for each write, named by an entry that is linked once."""

    name = "directories, guarded"
    guarded = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def own(self, claim: Claim) -> Owner:
        writer = FileGuard(self.folder, GUARD).raise_(claim)

        class Guarded:
            def write(self, batch: int, timer: str, pause: Pause) -> bool:
                def fill(directory: Path) -> None:
                    (directory / "timer").write_text(timer)
                    pause()

                return writer.write(batch, f"timer {timer}", fill)

        return Guarded()

    def scan(self) -> list[str]:
        return [(directory / "timer").read_text() for directory in FileGuard(self.folder, GUARD).directories()]

    def close(self) -> None:
        """Nothing is left open."""


class RenamedFiles:
    """A file names the owner; a writer reads it, and renames a directory to ``batch=N``."""

    name = "directories, looked up before, and renamed at once"
    guarded = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def own(self, claim: Claim) -> Owner:
        folder, token = self.folder, str(claim.token)
        (folder / "owner").write_text(token)

        class LookedUp:
            def write(self, batch: int, timer: str, pause: Pause) -> bool:
                if (folder / "owner").read_text() != token:
                    return False
                hidden = folder / f".{token}-{batch}"
                hidden.mkdir()
                (hidden / "timer").write_text(timer)
                pause()
                hidden.rename(folder / f"batch={batch}")
                return True

        return LookedUp()

    def scan(self) -> list[str]:
        return [path.read_text() for path in sorted(self.folder.glob("batch=*/timer"))]

    def close(self) -> None:
        """Nothing is left open."""
