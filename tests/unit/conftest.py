"""Stores in memory, and the shards over one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.kit.memory_journal import MemoryDisk
from tests.kit.shards import Deployment


@pytest.fixture
def disk() -> MemoryDisk:
    """What is left of a shard that has ended."""
    return MemoryDisk()


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    """One store and one clock; the shards that a test starts are stopped."""
    made = Deployment()
    yield made
    for one in made.shards:
        one.faults.held.clear()
        await one.stop()
