"""Cost of a guard: 10,000 rows with and without a claim, into PostgreSQL and into Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
import redis

from benchmarks.result import Result, Spread
from lowwater_pipeline.guard import Claim
from lowwater_pipeline.guard.postgres import PostgresGuard
from lowwater_pipeline.guard.redis import RedisGuard
from tests.contract.redis_server import DURABLE, RedisServer
from tests.kit.postgres import Postgres

ROWS: Final = 10_000
ROUNDS: Final = 25
CLAIM: Final = Claim("deployment", "benchmark", 1, 1, "nonce")

Write = Callable[[int], object]
"""Writes the rows of a batch, durably."""


def run(folder: Path, *, quick: bool = False) -> list[Result]:
    """Write batches in turns, guarded and not, and return how long one takes."""
    rounds = 3 if quick else ROUNDS
    rows = [(number, f"row {number}") for number in range(1_000 if quick else ROWS)]
    return [_postgres(rows, rounds), _redis(folder, rows, rounds)]


def _postgres(rows: Sequence[tuple[int, str]], rounds: int) -> Result:
    """COPY into a table, in a transaction of its own, over one connection each."""
    copy_into = "COPY {} (number, words) FROM STDIN"

    def fill(cursor: psycopg.Cursor[Any], table: bytes) -> None:
        with cursor.copy(copy_into.format(table.decode()).encode()) as copy:
            for row in rows:
                copy.write_row(row)

    with Postgres() as server, PostgresGuard(server.dsn, "benchmark") as guard, psycopg.connect(server.dsn) as bare:
        for table in ("guarded", "plain"):
            server.execute(f"CREATE TABLE {table} (number integer, words text)")
        writer = guard.raise_(CLAIM)

        def plain(batch: int) -> None:
            with bare.transaction(), bare.cursor() as cursor:
                fill(cursor, b"plain")

        turns = _turns(
            lambda batch: writer.write(batch, "digest", lambda cursor: fill(cursor, b"guarded")), plain, rounds
        )
        for table in ("guarded", "plain"):
            [[count]] = server.execute(f"SELECT count(*) FROM {table}")
            assert count == len(rows) * (rounds + 1), f"{table} has {count} rows"
    return _result("postgresql", "COPY in a transaction without a guard", turns, rows)


def _redis(folder: Path, rows: Sequence[tuple[int, str]], rounds: int) -> Result:
    """HSET for each row: in the guard's script, and in MULTI/EXEC."""
    with RedisServer(folder / "redis", *DURABLE) as server:
        server.start()
        with redis.Redis(port=server.port) as client:
            writer = RedisGuard(client, "benchmark").raise_(CLAIM)

            def guarded(batch: int) -> None:
                writer.write(
                    batch,
                    "digest",
                    [("HSET", f"guarded:{batch}:{{benchmark}}", number, words) for number, words in rows],
                )

            def plain(batch: int) -> None:
                with client.pipeline(transaction=True) as pipe:
                    for number, words in rows:
                        pipe.execute_command("HSET", f"plain:{batch}:{{benchmark}}", number, words)
                    pipe.execute()

            turns = _turns(guarded, plain, rounds)
            for kind in ("guarded", "plain"):
                assert client.hlen(f"{kind}:{rounds}:{{benchmark}}") == len(rows)
    return _result("redis", "MULTI/EXEC without a guard", turns, rows)


def _turns(guarded: Write, plain: Write, rounds: int) -> tuple[Spread, Spread]:
    """Return milliseconds a batch; the first of each is not counted."""
    took: tuple[list[float], list[float]] = ([], [])
    for batch in range(rounds + 1):
        for times, write in zip(took, (guarded, plain), strict=True):
            began = time.perf_counter()
            write(batch)
            times.append((time.perf_counter() - began) * 1e3)
    ours, theirs = (Spread(tuple(times[1:])) for times in took)
    return ours, theirs


def _result(store: str, baseline: str, spreads: tuple[Spread, Spread], rows: Sequence[object]) -> Result:
    ours, theirs = spreads
    return Result("guarded", f"{store}_batch", ours, "ms", baseline, theirs, {"n": len(rows), "ranges": 1})
