"""Whose is a token: what a process that shows watermarks to people asks of the authority."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from lowwater import Identity, errors
from lowwater.aio import Client
from lowwater.core.attempts import error_of_call
from lowwater.core.settings import Settings
from lowwater.v1 import cluster_pb2, cluster_pb2_grpc
from lowwater_authority.access.policy import Access, Principal, insider
from lowwater_authority.authority import Authority
from lowwater_authority.engine.observer import Observer
from lowwater_authority.rpc.guard import Guard
from lowwater_server.audit import Audit
from lowwater_server.tokens import digest
from tests.kit.memory_journal import MemoryDisk, MemoryJournal

OWN, VIEWER, SCRAPER, STRANGER = (name * 20 for name in ("own", "viewer", "scraper", "stranger"))

RULES = Access(
    [
        Principal("viewer", page=True, digests=(digest("old" * 20), digest(VIEWER))),
        Principal("scraper", metrics=True, digests=(digest(SCRAPER),)),
    ]
)


class Rules:
    def __init__(self, access: Access | None) -> None:
        self.access = access

    def __call__(self) -> Access:
        assert self.access is not None
        return self.access


@asynccontextmanager
async def serving(rules: Rules) -> AsyncIterator[str]:
    guard = Guard(
        rules.access or Access(),
        observer=Observer(),
        audit=Audit(lambda: 0.0),
        insiders=(insider("self", [OWN]),),
        monotonic=lambda: 0.0,
    )
    controlled = rules.access is not None
    authority = Authority(
        MemoryJournal(MemoryDisk()), clock=lambda: 1, observer=Observer(), access=rules if controlled else None
    )
    await authority.recover()
    server = grpc.aio.server(interceptors=[guard] if controlled else [])
    authority.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    rounds = asyncio.create_task(authority.run())
    try:
        yield f"127.0.0.1:{port}"
    finally:
        authority.leave()
        await server.stop(0)
        await rounds


async def identity(address: str, shown: str, **settings: Any) -> Identity:
    async with Client(replace(Settings(address, token=OWN, timeout=30.0), **settings)) as lw:
        return await lw.identify(shown)


async def test_whose_a_token_is_and_what_they_may_see() -> None:
    async with serving(Rules(RULES)) as address:
        assert await identity(address, digest(VIEWER)) == Identity(True, "viewer", page=True, metrics=False)
        assert await identity(address, digest("old" * 20)) == Identity(True, "viewer", page=True, metrics=False)
        assert await identity(address, digest(SCRAPER)) == Identity(True, "scraper", page=False, metrics=True)
        assert await identity(address, digest(STRANGER)) == Identity(True, "", page=False, metrics=False)
        assert await identity(address, digest(OWN)) == Identity(True, "", page=False, metrics=False), "no file names it"


async def test_who_asks_may_ask_of_itself() -> None:
    async with serving(Rules(RULES)) as address:
        assert await identity(address, "") == Identity(True, "self", page=False, metrics=False)
        assert await identity(address, "", token=SCRAPER) == Identity(True, "scraper", page=False, metrics=True)


async def test_without_rules_everybody_may_see_everything_and_nobody_has_a_name() -> None:
    async with serving(Rules(None)) as address:
        for token in ("", digest(VIEWER)):
            assert await identity(address, token) == Identity(False, "", page=True, metrics=True)


@pytest.mark.parametrize(
    "token", [VIEWER, digest(VIEWER).upper(), digest(VIEWER)[:-1], f"{digest(VIEWER)}\n", b"x" * 64]
)
async def test_what_may_be_the_token_itself_is_repeated_by_nobody(token: Any) -> None:
    async with serving(Rules(RULES)) as address:
        with pytest.raises(errors.InvalidArgument, match="token_sha256") as refused:
            await identity(address, token)
        assert str(token).strip() not in str(refused.value)


@pytest.mark.parametrize("token", [VIEWER, digest(VIEWER).upper(), digest(VIEWER)[:-1]])
async def test_nor_by_the_authority(token: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Rules(RULES)) as address, grpc.aio.insecure_channel(address) as channel:
        stub: Any = cluster_pb2_grpc.ClusterServiceStub(channel)
        request = cluster_pb2.IdentifyRequest(token_sha256=token)
        with pytest.raises(grpc.RpcError, match="never the token itself") as refused:
            await stub.Identify(request, metadata=(("authorization", f"Bearer {OWN}"),))
    error = error_of_call(refused.value, "")
    assert error.metadata["field"] == "token_sha256"
    assert token not in str(error)
    assert token not in caplog.text
