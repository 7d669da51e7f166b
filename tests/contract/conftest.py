"""The stores that the suites of contracts run over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.journal_stores import SUBJECTS, SharedSubject, StoreSubject


@pytest.fixture(params=SUBJECTS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreSubject]:
    subject = SUBJECTS[request.param](tmp_path)
    yield subject
    await subject.close()


@pytest.fixture(params=[name for name, kind in SUBJECTS.items() if issubclass(kind, SharedSubject)])
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SharedSubject]:
    subject = SUBJECTS[request.param](tmp_path)
    assert isinstance(subject, SharedSubject)
    yield subject
    await subject.close()
