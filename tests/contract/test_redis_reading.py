"""Reading a log in pages while its owner replaces it by snapshots: pieces of two states are no damage."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from lowwater_authority.journal import JournalCorrupt, JournalFailed
from lowwater_authority.journal.redis_database import RedisDatabase
from lowwater_authority.journal.redis_link import PORTS
from lowwater_authority.journal.redis_reader import READINGS
from lowwater_authority.stores.store import store_at
from tests.contract.journal_stores import RedisSubject, entry


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisSubject]:
    subject = RedisSubject(tmp_path)
    yield subject
    await subject.close()


def before_records(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    records = RedisDatabase.records

    async def read(database: RedisDatabase, **arguments: Any) -> list[tuple[int, bytes]]:
        await act()
        return await records(database, **arguments)

    monkeypatch.setattr(RedisDatabase, "records", read)


async def test_a_log_replaced_all_the_time_is_not_read_on(redis: RedisSubject, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, reader = await redis.open("a"), await redis.connect()
    await owner.append([entry("a", n) for n in range(1, READINGS + 20)])
    readings = itertools.count(1)
    before_records(monkeypatch, lambda: owner.snapshot("a", next(readings), b"snapshot"))
    with pytest.raises(JournalFailed, match=f"replaced by a snapshot {READINGS} times"):
        await reader.load("a")
    assert next(readings) == READINGS + 1


async def test_a_read_from_a_position_is_of_one_moment(redis: RedisSubject, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, reader = await redis.open("a"), await redis.connect()
    await owner.append([entry("a", n) for n in range(1, 6)])
    redis.damage("a", 2)
    times = iter([3])

    async def once() -> None:
        for position in times:
            await owner.snapshot("a", position, b"snapshot")
            break

    before_records(monkeypatch, once)
    assert (await reader.load_behind("a", 4)).records == [(5, b"a:5")]
    await owner.snapshot("a", 5, b"snapshot")
    with pytest.raises(JournalCorrupt, match="a snapshot stands in the place of what is behind position 4"):
        await reader.load_behind("a", 4)


@pytest.mark.parametrize("scheme", PORTS)
def test_a_scheme_of_redis_leads_there(scheme: str) -> None:
    assert str(store_at(f"{scheme.upper()}://me:secret@host:1/0", "orders")) == f"{scheme}://host:1/0#orders"
