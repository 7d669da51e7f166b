"""Reading a log in pages while its owner replaces it by snapshots: pieces of two states are no damage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lowwater_authority.journal import JournalCorrupt, JournalFailed, LoadedLog
from lowwater_authority.journal import redis as redis_journal
from lowwater_authority.journal.redis import RedisJournal
from tests.contract.journal_stores import RedisStore, entry


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisStore]:
    made = RedisStore(tmp_path)
    yield made
    await made.close()


LAST = redis_journal._READINGS + 19
"""Records of the log: enough for a snapshot at each reading."""


class Replaced:
    """A log that its owner replaces by a snapshot, so many times, whenever another process has begun to read it."""

    def __init__(self, redis: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._redis = redis
        self._monkeypatch = monkeypatch
        self.readings = 0

    async def read(self, times: int) -> LoadedLog:
        owner, reader = await self._redis.open("a"), await self._redis.connect()
        assert isinstance(reader, RedisJournal)
        await owner.append([entry("a", n) for n in range(1, LAST + 1)])
        load = reader._load

        async def replaced(*arguments: Any) -> LoadedLog:
            self.readings += 1
            if self.readings <= times:
                await owner.snapshot("a", self.readings, b"snapshot")
            return await load(*arguments)

        self._monkeypatch.setattr(reader, "_load", replaced)
        return await reader.load("a")


async def test_a_log_that_is_replaced_all_the_time_is_not_read_for_ever(
    redis: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = Replaced(redis, monkeypatch)
    with pytest.raises(JournalFailed, match=f"replaced by a snapshot {redis_journal._READINGS} times"):
        await replaced.read(times=LAST)
    assert replaced.readings == redis_journal._READINGS


async def test_what_is_read_behind_a_position_is_of_one_moment(
    redis: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, reader = await redis.open("a"), await redis.connect()
    assert isinstance(reader, RedisJournal)
    await owner.append([entry("a", n) for n in range(1, 6)])
    redis.damage("a", 2)
    rows = reader._rows
    times = iter([3])

    async def replaced(*arguments: Any) -> list[tuple[int, bytes]]:
        for position in times:
            await owner.snapshot("a", position, b"snapshot")
            break
        return await rows(*arguments)

    monkeypatch.setattr(reader, "_rows", replaced)
    assert (await reader.load_behind("a", 4)).records == [(5, b"a:5")]
    await owner.snapshot("a", 5, b"snapshot")
    with pytest.raises(JournalCorrupt, match="a snapshot stands in the place of what is behind position 4"):
        await reader.load_behind("a", 4)
