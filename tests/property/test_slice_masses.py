"""Heuristic watermarks of a computation that is cut: the same, to the microsecond, as if all of its claims had told one shard of their records."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater_authority.core import slicing
from lowwater_authority.core.cut import Cut
from lowwater_authority.core.groups import Mass
from lowwater_authority.core.requests import ClaimRequest, GroupReport
from lowwater_authority.core.slicing import as_slice
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.engine import slice as slice_module
from lowwater_authority.engine.observer import Observer
from lowwater_authority.engine.shard import Shard
from tests.kit.clock import Clock
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.shards import turns
from tests.property.core_driver import Driver

SHARES = (990_000, 500_000)
EDGES = [bytes([edge]) for edge in (0x20, 0x40, 0x60, 0x80, 0xA0)]
PARTS = list(pairwise([b"", *EDGES, b""]))
CUTS = (EDGES[1], EDGES[3])

times = st.integers(0, 40).map(lambda tens: 10 * tens)
pending = st.dictionaries(times, st.integers(1, 50), max_size=4)
step = st.tuples(st.integers(0, 5), times, pending, st.integers(0, 100), st.tuples(times, times))


def mass_of(pending: dict[int, int], recent: int, frontiers: tuple[int, int]) -> Mass:
    starts = np.array(sorted(pending), dtype=np.int64)
    counts = np.array([pending[start] for start in sorted(pending)], dtype=np.int64)
    return Mass(starts, counts, recent, dict(zip(SHARES, frontiers, strict=True)))


class Both:
    def __init__(self) -> None:
        self.shard = Shard(MemoryJournal(MemoryDisk()), clock=Clock(1000.0).micros, observer=Observer())
        self._reports = 0

    async def start(self) -> None:
        await self.shard.start()
        self._rounds = asyncio.create_task(self.shard.run())
        await self.shard.graph.register(Spec("cut", slicing=Cut(CUTS), heuristics=SHARES))
        await self.shard.graph.register(Spec("flat", heuristics=SHARES))
        self._claims = [await self._claim(f"cut~{part // 2}", part) for part in range(len(PARTS))]
        self._flat = [await self._claim("flat", part) for part in range(len(PARTS))]

    async def _claim(self, name: str, part: int) -> tuple[str, int]:
        grant = await self.shard.owners.claim(name, ClaimRequest(PARTS[part], request_id=bytes([part]) * 16))
        return name, grant.sequencer

    async def report(self, part: int, low: int, mass: Mass) -> None:
        self._reports += 1
        for name, sequencer in (self._claims[part], self._flat[part]):
            report = GroupReport(sequencer, np.array([low], dtype=np.int64), mass=mass)
            assert not await self.shard.owners.report([(name, report)], sender=b"s" * 16, number=(1, self._reports))
        await turns()

    def published(self, name: str) -> tuple[int, dict[int, int]]:
        view = self.shard.served.view(name)
        assert view is not None
        return view.low, dict(view.heuristics)

    async def stop(self) -> None:
        self.shard.stop()
        await self._rounds
        await self.shard.close()


async def run(steps: list[tuple[int, int, dict[int, int], int, tuple[int, int]]], *, exact: bool) -> None:
    both = Both()
    await both.start()
    for part, low, pending, recent, frontiers in steps:
        await both.report(part, low, mass_of(pending, recent, frontiers))
        (low_cut, cut), (low_flat, flat) = both.published("cut"), both.published("flat")
        assert low_cut == low_flat
        if exact:
            assert cut == flat
        else:
            assert all(cut[share] <= flat[share] for share in SHARES), "what is rounded down never leads"
    await both.stop()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_module, "MASS_SECONDS", 0.0)


@given(steps=st.lists(step, min_size=6, max_size=25))
@settings(max_examples=40)
def test_slices_have_the_same_heuristics(steps: list[tuple[int, int, dict[int, int], int, tuple[int, int]]]) -> None:
    asyncio.run(run(steps, exact=True))


@given(claims=st.lists(st.tuples(pending, st.integers(0, 100)), min_size=2, max_size=2), most=st.integers(20, 400))
def test_a_slice_tells_no_more_records_than_a_claim_may(claims: list[tuple[dict[int, int], int]], most: int) -> None:
    graph = Topology().register(Spec("cut", slicing=Cut(CUTS), heuristics=SHARES))
    driver, records = Driver(graph.get("cut~0")), 0
    for part, (pending, recent) in enumerate(claims):
        owner = driver.claim(*PARTS[part]).sequencer
        driver.report(owner, 0, mass=mass_of(pending, recent, (part, part)))
        records += sum(pending.values()) + recent
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slicing, "MOST_RECORDS", most)
        whole = as_slice(driver.core).whole_mass()
    sent, parts = int(whole.counts.sum()) + sum(mass.recent for mass in whole.parts), len(whole.counts) + 2
    divisor = max(1, -(-records // most))
    assert records // divisor - parts <= sent <= records // divisor


@given(steps=st.lists(step, min_size=6, max_size=25))
@settings(max_examples=40)
def test_too_much_to_tell_is_rounded_down(steps: list[tuple[int, int, dict[int, int], int, tuple[int, int]]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slicing, "MOST_FRONTIERS", 1)
        patched.setattr(slicing, "MOST_TIMES", 2)
        asyncio.run(run(steps, exact=False))
