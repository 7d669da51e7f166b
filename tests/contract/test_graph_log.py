"""A log of the graph whose changes do not fit each other, over each store: put right from memory, or nobody starts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.engine.graph_log import BrokenGraph, replayed
from lowwater_authority.engine.settings import ShardSettings
from lowwater_authority.engine.shard import Shard
from lowwater_authority.journal import GRAPH, Entry
from tests.contract.journal_stores import SharedSubject, StoreSubject
from tests.contract.serving import serving

COMPACTED = ShardSettings(graph_bytes=100)
"""Every few changes of the graph are replaced by a whole graph."""


async def stored(shard: Shard) -> Topology:
    return replayed(await shard.journal.load(GRAPH)).topology


@pytest.mark.parametrize("same_version", [True, False])
async def test_a_log_of_changes_that_do_not_fit_is_healed_by_memory(shared: SharedSubject, same_version: bool) -> None:
    async with serving(shared.make(), COMPACTED) as one, serving(shared.make(), COMPACTED) as other:
        await one.graph.register(Spec("a"))
        await other.confirmation.confirm(())
        await other.graph.register(Spec("b", ("a",)))
        await one.confirmation.confirm(())
        graph = one.topology
        strange = replace(graph.reset("a")[0], version=graph.version) if same_version else graph.register(Spec("lost"))
        stranger = await shared.connect()
        last = (await stranger.load(GRAPH)).last
        await stranger.append([Entry(GRAPH, last + 1, strange.register(Spec("new")).encode(strange), strong=True)])
        with pytest.raises(BrokenGraph, match="shards that still serve put it right from memory"):
            await stored(one)
        await asyncio.gather(one.confirmation.confirm(()), other.confirmation.confirm(()))
        await one.graph.register(Spec("c"))
        await other.confirmation.confirm(())
        assert one.topology == other.topology == await stored(one)
        assert one.topology.computations.keys() == {"a", "b", "c", "new"}
    async with serving(shared.make(), COMPACTED) as third:
        assert third.topology.computations.keys() == {"a", "b", "c", "new"}


async def test_a_log_whose_changes_do_not_fit_each_other_starts_nobody(store: StoreSubject) -> None:
    graph = Topology().register(Spec("a"))
    lost = graph.register(Spec("lost"))
    records = [graph.encode(), lost.register(Spec("b")).encode(lost)]
    journal = await store.connect()
    await journal.append([Entry(GRAPH, n, record, strong=True) for n, record in enumerate(records, 1)])
    await journal.close()
    with pytest.raises(BrokenGraph, match=r"stands behind version 1.* start from a restored copy"):
        async with serving(store.make()):
            pass


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_changes_that_the_store_has_lost_are_put_back(shared: SharedSubject, lost: int) -> None:
    async with serving(shared.make()) as one, serving(shared.make()) as other:
        for name in ("a", "b", "c"):
            await one.graph.register(Spec(name))
        await other.confirmation.confirm(())
        for number in range(lost):
            await one.graph.register(Spec(f"lost{number}", ("a",)))
        await one.held.logs.settle()
        last = (await one.journal.load(GRAPH)).last
        shared.forget(GRAPH, last - lost)
        await other.graph.register(Spec("new", ("b",)))
        for process in (one, other, one):
            await process.confirmation.confirm(())
        assert one.topology == other.topology == await stored(one)
        assert {"a", "b", "c", "new", *(f"lost{number}" for number in range(lost))} == one.topology.computations.keys()
