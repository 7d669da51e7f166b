"""The layout that is wanted of a computation, over each store: it is durable, changed by compare-and-set alone, and moves nothing."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority.core.layout import Layout, LayoutReport
from lowwater_authority.core.requests import NO_FOLD, ClaimRequest, Fenced, GroupReport, Prepare
from lowwater_authority.core.topology import Spec
from tests.contract.journal_stores import MemorySubject, StoreSubject
from tests.contract.serving import serving
from tests.kit.times import HOUR


@pytest.fixture
def memory() -> StoreSubject:
    return MemorySubject()


def claim(number: int, *inner: bytes, instead_of: int = 0, bound: int | None = None) -> ClaimRequest:
    bounds = np.array([] if bound is None else [bound], dtype=np.int64)
    return ClaimRequest([b"", *inner, b""], request_id=bytes([number] * 16), bound_micros=bounds, instead_of=instead_of)


async def test_a_layout_is_there_after_a_restart_and_moves_nothing(store: StoreSubject) -> None:
    async with serving(store.make()) as shard:
        await shard.graph.register(Spec("x"))
        grant = await shard.owners.claim("x", claim(1, b"\x80"))
        report = GroupReport(grant.sequencer, np.array([5 * HOUR, 6 * HOUR]))
        await shard.owners.report([("x", report)], sender=b"s" * 16, number=(1, 1))
        before = shard.served.view("x")
        fenced: list[Fenced] = []
        shard.rounds.on_fenced = fenced.append
        assert await shard.owners.change_layout("x", 1, 0, [0, 7], []) == 1
        assert await shard.owners.change_layout("x", 1, 1, [0, 7, 9], [0, 2, 0]) == 2
        assert shard.served.view("x") == before
        assert not fenced
        assert await shard.owners.report([("x", report)], sender=b"s" * 16, number=(1, 2)) == []
    async with serving(store.make()) as again:
        await again.takeover.serve("x")
        assert again.served.wanted_layout("x") == Layout(2, (0, 7, 9), (0, 2, 0))
        view = again.served.view("x")
        assert view is not None
        assert (view.low, view.ranges) == (5 * HOUR, 2)


async def test_rule4_a_claim_in_place_of_one_that_has_lost_a_range_is_refused(memory: StoreSubject) -> None:
    async with serving(memory.make()) as shard:
        await shard.graph.register(Spec("x"))
        first = await shard.owners.claim("x", claim(1, b"\x40", b"\x80"))
        second = await shard.owners.claim("x", claim(2, b"\x80", instead_of=first.sequencer))
        await shard.owners.claim("x", ClaimRequest([b"\x80", b""], request_id=b"3" * 16))
        for before in (first, second):
            with pytest.raises(errors.StaleSequencer):
                await shard.owners.claim("x", claim(4, instead_of=before.sequencer))


async def test_a_stale_change_is_refused_with_the_version_that_is_wanted(memory: StoreSubject) -> None:
    async with serving(memory.make()) as shard:
        await shard.graph.register(Spec("x"))
        await shard.owners.claim("x", claim(1))
        assert await shard.owners.change_layout("x", 1, 0, [0, 7], []) == 1
        assert await shard.owners.change_layout("x", 1, 0, [0, 7], []) == 1, "a repeat is answered as the first"
        with pytest.raises(errors.LayoutConflict) as refused:
            await shard.owners.change_layout("x", 1, 0, [0, 8], [])
        assert refused.value.metadata["version"] == "1"
        with pytest.raises(errors.IncarnationChanged):
            await shard.owners.change_layout("x", 2, 1, [0, 8], [])
        assert shard.served.wanted_layout("x") == Layout(1, (0, 7))
        results = await asyncio.gather(
            *(shard.owners.change_layout("x", 1, 1, [0, start], []) for start in range(1, 20)), return_exceptions=True
        )
        assert [result for result in results if result == 2] == [2], "of all that change one version one wins"


async def test_an_owner_leaves_out_what_it_has_told_under_its_claim(memory: StoreSubject) -> None:

    async def tell(sequencer: int, batch: int, layout: Layout) -> LayoutReport | None:
        shard.owners.prepare("x", Prepare(sequencer, batch, b"d", (), 5 * HOUR, False, NO_FOLD, 0, {}))
        await shard.owners.commit("x", sequencer, batch, LayoutReport(layout, "", batch))
        return await shard.reads.ask("x", lambda computation, _: computation.layout_report)

    async with serving(memory.make()) as shard:
        await shard.graph.register(Spec("x"))
        old = await shard.owners.claim("x", claim(1))
        assert await tell(old.sequencer, 1, Layout(3)) is None
        assert await tell(old.sequencer, 2, Layout(3, (0, 9), (0, 2))) == LayoutReport(Layout(3, (0, 9), (0, 2)), "", 2)
        assert await tell(old.sequencer, 3, Layout(3)) == LayoutReport(Layout(3, (0, 9), (0, 2)), "", 3)
        assert await tell(old.sequencer, 4, Layout(4)) is None, "it is of another version"
        assert await tell(old.sequencer, 5, Layout(3, (0, 9))) is not None
        second = await shard.owners.claim("x", ClaimRequest([b"", b""], request_id=b"2" * 16, generation=6))
        assert await tell(second.sequencer, 6, Layout(3)) is None
        assert shard.served.reported_layout("x", old.sequencer) is None
    async with serving(memory.make()) as again:
        await again.takeover.serve("x")
        assert again.served.reported_layout("x", second.sequencer) is None


@pytest.mark.parametrize(
    ("asked", "told", "differs"),
    [
        (Layout(), Layout(0, (0, 5)), False),
        (Layout(1, (0, 5)), Layout(0, (0, 5)), True),
        (Layout(1, (0, 5)), Layout(1, (0, 5)), False),
        (Layout(1, (0, 5)), Layout(1, (0, 6)), True),
        (Layout(1, (0, 5)), Layout(1, (0, 5), (0, 1)), True),
        (Layout(1, (0, 5)), Layout(1), False),
        (Layout(1, (0, 5)), Layout(2), True),
        (Layout(1), Layout(1, (0, 5)), False),
        (Layout(1), Layout(0, (0, 5)), True),
    ],
)
def test_a_layout_is_compared_by_content_and_not_by_version_alone(asked: Layout, told: Layout, differs: bool) -> None:
    assert asked.differs(told) == differs
