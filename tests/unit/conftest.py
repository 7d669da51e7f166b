"""Stores in memory, and the shards over one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.kit.memory_journal import MemoryDisk
from tests.kit.shards import Deployment


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    fleet = Deployment()
    yield fleet
    for one in fleet.shards:
        one.faults.held.clear()
        await one.stop()
