"""The log of the graph over each store: changes behind a whole graph, read by whoever comes, also in the middle of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lowwater import errors
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.holdings import replayed
from lowwater_authority.journal import GRAPH, Journal
from lowwater_authority.observer import Observer
from lowwater_authority.shard import Shard
from tests.contract.journal_stores import SharedStore, Store

NAMES = [f"c{number}" for number in range(8)]


@pytest.fixture(autouse=True)
def compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole graph is made of its changes every few of them."""
    monkeypatch.setattr("lowwater_authority.logs.GRAPH_BYTES", 100)


@asynccontextmanager
async def serving(journal: Journal) -> AsyncIterator[Shard]:
    shard = Shard(journal, clock=lambda: 1_700_000_000_000_000, observer=Observer())
    await shard.start()
    run = asyncio.create_task(shard.run())
    try:
        yield shard
    finally:
        shard.stop()
        await run
        await shard.close()


async def change(shard: Shard, rng: random.Random) -> None:
    """Change the graph, unless that is refused."""
    name = rng.choice(NAMES)
    try:
        match rng.randrange(6):
            case 0 | 1 | 2:
                await shard.register(Spec(name, tuple(rng.sample(NAMES, rng.randrange(3)))))
            case 3:
                await shard.set_inputs(name, rng.sample(NAMES, rng.randrange(3)))
            case 4:
                await shard.reset(name)
            case _:
                await shard.drop(name, force=True)
    except errors.LowwaterError:
        pass


async def stored(shard: Shard) -> Topology:
    """The graph as who knows nothing of it reads it."""
    return replayed(await shard.journal.load(GRAPH)).topology


async def test_the_next_process_reads_what_the_one_before_has_changed(store: Store) -> None:
    rng = random.Random(7)
    known = Topology()
    for _ in range(4):
        async with serving(store.make()) as shard:
            assert shard.topology == known
            for _ in range(12):
                await change(shard, rng)
                assert await stored(shard) == shard.topology
            known = shard.topology
    assert known.version > 12


async def test_each_of_two_processes_sees_what_the_other_has_changed(shared: SharedStore) -> None:
    rng = random.Random(8)
    async with serving(shared.make()) as one, serving(shared.make()) as other:
        for _ in range(40):
            changing, seeing = rng.sample([one, other], 2)
            await changing.confirm(())
            await change(changing, rng)
            await seeing.confirm(())
            assert seeing.topology == changing.topology == await stored(seeing)
        assert one.topology.version > 12


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_changes_that_the_store_has_lost_are_put_back(
    shared: SharedStore, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two remembers them, and the other has gone on over what was left."""
    monkeypatch.setattr("lowwater_authority.logs.GRAPH_BYTES", 1 << 20)
    async with serving(shared.make()) as one, serving(shared.make()) as other:
        for name in ("a", "b", "c"):
            await one.register(Spec(name))
        await other.confirm(())
        for number in range(lost):
            await one.register(Spec(f"lost{number}", ("a",)))
        await one.held.logs.settle()
        last = (await one.journal.load(GRAPH)).last
        shared.forget(GRAPH, last - lost)
        await other.register(Spec("new", ("b",)))
        for each in (one, other, one):
            await each.confirm(())
        assert one.topology == other.topology == await stored(one)
        assert {"a", "b", "c", "new", *(f"lost{number}" for number in range(lost))} == one.topology.computations.keys()
