"""A server, a client and a store, each made for one test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import lowwater
from lowwater.cli import main
from tests.contract.journal_stores import RedisSubject
from tests.process.serving import Serving

Refused = Callable[..., str]


@pytest.fixture
def refused_start(capsys: pytest.CaptureFixture[str]) -> Refused:

    def start(*flags: str) -> str:
        assert main(["serve", "--listen", "127.0.0.1:0", "--http", "off", *flags]) == 2
        return capsys.readouterr().err

    return start


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path / "data") as one:
        yield one


@pytest.fixture
def lw(server: Serving) -> Iterator[lowwater.Client]:
    with lowwater.connect(server.address) as client:
        yield client


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RedisSubject]:
    subject = RedisSubject(tmp_path)
    yield subject
    await subject.close()
