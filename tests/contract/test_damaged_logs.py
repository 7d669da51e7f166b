"""A damaged log that no process has in memory, over each store: its computation is dropped by force, and lives again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority.core.requests import ClaimRequest, GroupReport, Refused
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.shard import Shard
from lowwater_authority.journal import GRAPH, Journal, JournalCorrupt
from lowwater_authority.ops.observer import Observer
from tests.contract.journal_stores import Store


def sharded(journal: Journal) -> Shard:
    return Shard(journal, clock=lambda: 1_700_000_000_000_000, observer=Observer())


Say = Callable[[str, int], Awaitable[list[tuple[str, Refused]]]]


async def claimed(shard: Shard, *names: str) -> Say:
    """Register and claim computations; returns what reports a value of one."""
    sequencers = {}
    for number, name in enumerate(names, start=1):
        await shard.register(Spec(name))
        sequencers[name] = (
            await shard.claim(name, ClaimRequest([b"", b""], request_id=bytes([number] * 16)))
        ).sequencer

    def say(name: str, value: int) -> Awaitable[list[tuple[str, Refused]]]:
        report = GroupReport(sequencers[name], np.array([value]))
        return shard.report([(name, report)], sender=name.encode() * 16, number=(1, value))

    return say


async def started(store: Store) -> tuple[Journal, Shard, asyncio.Task[None]]:
    journal = store.make()
    shard = sharded(journal)
    await shard.start()
    return journal, shard, asyncio.create_task(shard.run())


async def killed(journal: Journal, shard: Shard, run: asyncio.Task[None]) -> None:
    """It ends without writing what it alone has."""
    shard.stop()
    await run
    await journal.close()
    await shard.held.settle()


async def at_ten(shard: Shard, *names: str) -> Say:
    say = await claimed(shard, *names)
    for name in names:
        assert await say(name, 10) == []
    return say


async def lives_again(store: Store, shard: Shard, run: asyncio.Task[None], sequencer: int) -> None:
    """X is registered in its next incarnation, above all of the last one, and can be read after a restart; y has not noticed."""
    spec = await shard.register(Spec("x"))
    assert spec.incarnation == 2
    grant = await shard.claim("x", ClaimRequest([b"", b""], request_id=b"again".ljust(16)))
    assert grant.sequencer > sequencer
    report = GroupReport(grant.sequencer, np.array([3]))
    assert await shard.report([("x", report)], sender=b"x" * 16, number=(2, 1)) == []
    shard.stop()
    await run
    await shard.close()
    again = sharded(store.make())
    await again.start()
    views = {name: again.view(name) for name in again.names()}
    assert {name: (view.incarnation, view.low) for name, view in views.items() if view} == {"x": (2, 3), "y": (1, 10)}
    await again.close()


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_damaged_log_that_nobody_has_in_memory_is_dropped_by_force(store: Store, snapshot: bool) -> None:
    journal, shard, run = await started(store)
    await at_ten(shard, "x", "y")
    sequencer = shard.held.served["x"].computation.last_sequencer
    if snapshot:
        await journal.snapshot("x", 2, b"anything")
        store.damage_snapshot("x")
    else:
        store.damage("x", 2)
    await killed(journal, shard, run)

    journal, shard, run = await started(store)
    assert shard.names() == ["y"], "the others are served"
    with pytest.raises(errors.Unavailable, match="is damaged"):
        await shard.serve("x")
    report = GroupReport(sequencer, np.array([11]))
    [(_, refused)] = await shard.report([("x", report)], sender=b"x" * 16, number=(2, 1))
    assert refused.reason == "MOVED"
    with pytest.raises(errors.OwnedRanges, match="nobody can tell whether workers own key ranges of it"):
        await shard.drop("x", force=False)
    assert "x" in shard.topology.computations
    assert (await shard.drop("x", force=True)).incarnation == 1
    assert not shard.is_damaged("x")
    with pytest.raises(errors.UnknownComputation, match="x was dropped"):
        await shard.drop("x", force=True)
    await lives_again(store, shard, run, sequencer)


async def test_a_damaged_graph_that_nobody_has_in_memory_is_left_as_it_is(store: Store) -> None:
    journal, shard, run = await started(store)
    await at_ten(shard, "x", "y")
    store.damage(GRAPH, 2)
    await killed(journal, shard, run)
    for _ in range(2):
        shard = sharded(store.make())
        with pytest.raises(JournalCorrupt, match="no process that lives has it in memory"):
            await shard.start()
        await shard.close()
    journal = await store.connect()
    assert (await journal.load_behind(GRAPH, 2)).last == 2
