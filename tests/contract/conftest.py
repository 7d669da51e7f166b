"""The stores that the suites of contracts run over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.journal_stores import SUBJECTS, SharedSubject, StoreSubject


@pytest.fixture(params=SUBJECTS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreSubject]:
    made = SUBJECTS[request.param](tmp_path)
    yield made
    await made.close()


@pytest.fixture(params=[name for name, made in SUBJECTS.items() if issubclass(made, SharedSubject)])
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SharedSubject]:
    made = SUBJECTS[request.param](tmp_path)
    assert isinstance(made, SharedSubject)
    yield made
    await made.close()
