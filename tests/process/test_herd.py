"""Many workers at once, before an authority that lets only a few start at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from benchmarks.herd import Authority
from benchmarks.herd_workers import RANGES, Herd
from benchmarks.owner import COMPUTATION
from lowwater._pb.lowwater.v1 import watermarks_pb2, watermarks_pb2_grpc
from lowwater_authority.engine.admission import LEAST_DELAY, MOST_DELAY

WORKERS = 200
BOUNDS = {"STARTING": 2, "LINE": 10}


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    with closing(Authority(tmp_path / "data")) as one:
        one.start(BOUNDS)
        yield one


@pytest.mark.slow
def test_all_of_a_herd_are_admitted_in_the_end_and_nothing_acknowledged_is_lost(authority: Authority) -> None:
    herd = Herd(authority.address, WORKERS)

    async def come_and_come_again() -> None:
        async with herd.running():
            await herd.wait()
            bounds_held(authority)
            herd.expect(patient=True)
            authority.kill()
            await asyncio.to_thread(authority.start, BOUNDS)
            await herd.wait()
            bounds_held(authority)

    asyncio.run(come_and_come_again())
    assert len(herd.durable) == WORKERS
    assert herd.delays, "some were told to come again, and when"
    assert all(LEAST_DELAY <= delay <= MOST_DELAY for delay in herd.delays)
    authority.kill()
    authority.start(BOUNDS)
    found = watermarks(authority)
    for worker, value in herd.durable.items():
        # One more report of each may have been on its way.
        assert found[worker] in {value, value + 1}


def bounds_held(authority: Authority) -> None:
    """The statistics of the gate, since the authority started."""
    assert authority.gate("peak") == BOUNDS["STARTING"]
    assert authority.gate("longest") <= BOUNDS["LINE"]
    assert authority.gate("refused_total") > 0
    assert authority.gate("admitted_total") >= WORKERS


def watermarks(authority: Authority) -> list[int]:
    """The value of the first range of each worker."""
    with grpc.insecure_channel(authority.address) as channel:
        stub = watermarks_pb2_grpc.WatermarkServiceStub(channel)
        request = watermarks_pb2.ListRangesRequest(computation=COMPUTATION, page_size=WORKERS * RANGES)
        ranges = sorted(stub.ListRanges(request).ranges, key=lambda each: each.start)
    return [each.watermark_micros for each in ranges[::RANGES]]
