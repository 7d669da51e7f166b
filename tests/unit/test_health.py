"""The health service: what it says of what, and that nobody waits for who takes nothing."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lowwater import errors
from lowwater.core.events import ATTRIBUTE
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.writes import StoreState
from lowwater_authority.journal import SqliteJournal
from lowwater_authority.ops.resources import FILES, MEMORY, Resource, Watch, memory_limit
from lowwater_authority.rpc.health import JOURNAL, HealthServicer
from tests.kit import served as kit
from tests.kit.memory_journal import MemoryDisk
from tests.kit.times import HOUR
from tests.unit.test_journal_sqlite import pragma
from tests.unit.test_shard import Running

PATIENCE = 60.0

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@asynccontextmanager
async def served() -> AsyncIterator[tuple[HealthServicer, Any, int]]:
    servicer = HealthServicer(["a.Service"])
    add = partial(health_pb2_grpc.add_HealthServicer_to_server, servicer)
    async with kit.served(add) as address, grpc.aio.insecure_channel(address) as channel, asyncio.timeout(PATIENCE):
        yield servicer, health_pb2_grpc.HealthStub(channel), int(address.rpartition(":")[2])


def request(service: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


@pytest.mark.parametrize("service", ["", "a.Service"])
async def test_what_is_here_serves_until_it_stops(service: str) -> None:
    async with served() as (servicer, health, _):
        watch = health.Watch(request(service))
        assert (await watch.read()).status == SERVING
        assert (await health.Check(request(service))).status == SERVING
        servicer.stop()
        assert (await watch.read()).status == NOT_SERVING
        assert await watch.read() is grpc.aio.EOF
        assert (await health.Check(request(service))).status == NOT_SERVING
        assert [answer.status async for answer in health.Watch(request(service))] == [NOT_SERVING]


async def test_a_store_that_refuses_writes_is_told_of_the_journal_alone() -> None:
    """A probe that restarts the process asks for the others: a restart makes no room on a disk."""
    async with served() as (servicer, health, _):
        watch, process = health.Watch(request(JOURNAL)), health.Watch(request(""))
        assert (await watch.read()).status == SERVING
        assert (await process.read()).status == SERVING
        servicer.set_journal(serving=False)
        assert (await watch.read()).status == NOT_SERVING
        assert (await health.Check(request(JOURNAL))).status == NOT_SERVING
        assert (await health.Check(request(""))).status == SERVING
        assert (await health.Check(request("a.Service"))).status == SERVING
        servicer.set_journal(serving=True)
        assert (await watch.read()).status == SERVING
        servicer.stop()
        assert (await watch.read()).status == NOT_SERVING
        assert (await process.read()).status == NOT_SERVING, "and nothing before"
        assert await watch.read() is grpc.aio.EOF


async def test_what_is_not_here_is_said_to_be_unknown() -> None:
    async with served() as (servicer, health, _):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health.Check(request("a.Stranger"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        watch = health.Watch(request("a.Stranger"))
        assert (await watch.read()).status == UNKNOWN
        servicer.stop()
        assert await watch.read() is grpc.aio.EOF


def events_of(caplog: pytest.LogCaptureFixture, *names: str) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = [
        {**vars(record)["lowwater"], "level": record.levelno}
        for record in caplog.records
        if hasattr(record, "lowwater")
    ]
    return [line for line in lines if line["event"] in names]


async def test_a_full_disk_is_one_line_and_another_at_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    journal = SqliteJournal(tmp_path / "journal.sqlite")
    one = await Running(MemoryDisk(), journal=journal).start()
    states: list[StoreState] = []
    one.shard.held.logs.writes.on_change.append(states.append)
    await one.shard.graph.register(Spec("a"))
    await pragma(journal, "max_page_count = 1")
    many = [b"", *(number.to_bytes(16) for number in range(1, 5_000)), b""]
    for _ in range(20):
        with pytest.raises(errors.JournalFailed):
            await one.claim("a", *many)
    [refused] = events_of(caplog, "journal_refused", "journal_back")
    assert refused["level"] == logging.ERROR
    assert str(tmp_path / "journal.sqlite") in str(refused["reason"])
    assert "free space on its disk" in str(refused["reason"])
    assert one.shard.confirmation.store_state(1_000 * HOUR) is StoreState.REFUSES
    await pragma(journal, "max_page_count = 1000000")
    await one.claim("a", *many)
    await one.claim("a")
    assert events_of(caplog, "journal_back") == [{"event": "journal_back", "refused": 20, "level": logging.INFO}]
    assert states == [StoreState.REFUSES, StoreState.TAKES]
    await one.stop()


@pytest.mark.parametrize(
    ("resource", "runs_out", "free"),
    [(FILES, "files_run_out", "files_free"), (MEMORY, "memory_runs_out", "memory_free")],
)
async def test_what_runs_out_is_one_line_until_it_is_over(
    resource: Resource, runs_out: str, free: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    shares = [0.1, 0.85, 0.9, 1.0, 0.85, 0.95, 0.79, 0.9]
    watch = Watch(replace(resource, share=iter(shares).__next__))
    for _ in shares:
        await watch.look()
    events = [(getattr(record, ATTRIBUTE)["event"], getattr(record, ATTRIBUTE)["share"]) for record in caplog.records]
    assert events == [(runs_out, 0.9), (free, 0.79), (runs_out, 0.9)]


def test_the_memory_limit_is_the_least_of_the_groups_of_the_process(tmp_path: Path) -> None:
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    assert memory_limit(groups, own) == math.inf, "no control groups"
    own.write_text("1:name=systemd:/x\n")
    assert memory_limit(groups, own) == math.inf, "of version 1"
    own.write_text("0::/pod/container\n")
    (groups / "pod/container").mkdir(parents=True)
    (groups / "pod/container/memory.max").write_text("max\n")
    assert memory_limit(groups, own) == math.inf
    (groups / "pod/memory.max").write_text("2000\n")
    assert memory_limit(groups, own) == 2000
    (groups / "pod/container/memory.max").write_text("1000\n")
    assert memory_limit(groups, own) == 1000
    own.write_text("0::/\n")
    assert memory_limit(groups, own) == math.inf
    (groups / "memory.max").write_text("500\n")
    assert memory_limit(groups, own) == 500, "the root of the container's own hierarchy"
    assert MEMORY.share() < 1
