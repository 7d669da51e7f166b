"""The servers that the tests of guarded writes share, and a store of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.redis_server import DURABLE, RedisServer
from tests.guard.stores import FileStore, GuardedRedis, PostgresStore, Store
from tests.kit.postgres import Postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        PostgresStore(server, "tests").close()
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), *DURABLE) as server:
        yield server.start()


@pytest.fixture
def in_postgres(postgres: Postgres) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres, "tests", patience=0.3, exists=True)
    store.end_others()
    store.clear()
    yield store
    store.close()


@pytest.fixture
def in_redis(redis_server: RedisServer) -> Iterator[GuardedRedis]:
    store = GuardedRedis(redis_server)
    yield store
    store.close()


@pytest.fixture
def in_files(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "guarded")


@pytest.fixture(params=["postgres", "redis", "files"])
def store(request: pytest.FixtureRequest) -> Store:
    store_: Store = request.getfixturevalue(f"in_{request.param}")
    return store_
