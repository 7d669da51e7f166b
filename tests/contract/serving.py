"""A shard that serves over a journal until a test has done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lowwater_authority.engine.observer import Observer
from lowwater_authority.engine.settings import ShardSettings
from lowwater_authority.engine.shard import Shard
from lowwater_authority.journal import Journal

NOW = 1_700_000_000_000_000


def sharded(journal: Journal, settings: ShardSettings | None = None) -> Shard:
    return Shard(journal, clock=lambda: NOW, observer=Observer(), settings=settings)


@asynccontextmanager
async def serving(journal: Journal, settings: ShardSettings | None = None) -> AsyncIterator[Shard]:
    shard = sharded(journal, settings)
    try:
        await shard.start()
    except BaseException:
        await shard.close()
        raise
    run = asyncio.create_task(shard.run())
    try:
        yield shard
    finally:
        shard.stop()
        await run
        await shard.close()
