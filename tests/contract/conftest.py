"""The stores that the suites of contracts run over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.journal_stores import STORES, SharedStore, Store


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made = STORES[request.param](tmp_path)
    yield made
    await made.close()


@pytest.fixture(params=[name for name, made in STORES.items() if issubclass(made, SharedStore)])
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SharedStore]:
    made = STORES[request.param](tmp_path)
    assert isinstance(made, SharedStore)
    yield made
    await made.close()
