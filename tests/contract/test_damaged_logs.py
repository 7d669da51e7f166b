"""A shard over each store, whose log of one computation is damaged there, and whose next append is refused: memory is the only copy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority.core import recovery
from lowwater_authority.core.requests import ClaimRequest, GroupReport, Refused
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.shard import Shard
from lowwater_authority.journal import GRAPH, Journal, JournalCorrupt, JournalFailed
from tests.contract.journal_stores import StoreSubject
from tests.contract.serving import serving, sharded


class FullDisk:
    """A journal whose store may refuse to write."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.refuses_next_append = self.refuses_whole_logs = False

    def __getattr__(self, name: str) -> Any:
        refuses = name in ("snapshot", "restore") and self.refuses_whole_logs
        if name == "append" and self.refuses_next_append:
            refuses, self.refuses_next_append = True, False
        return self.full if refuses else getattr(self.journal, name)

    async def full(self, *_: object, **__: object) -> None:
        raise JournalFailed("the disk is full")


Say = Callable[[str, int], Awaitable[list[tuple[str, Refused]]]]


async def claimed(shard: Shard, *names: str) -> Say:
    sequencers = {}
    for number, name in enumerate(names, start=1):
        await shard.graph.register(Spec(name))
        sequencers[name] = (
            await shard.owners.claim(name, ClaimRequest([b"", b""], request_id=bytes([number] * 16)))
        ).sequencer

    def say(name: str, value: int) -> Awaitable[list[tuple[str, Refused]]]:
        report = GroupReport(sequencers[name], np.array([value]))
        return shard.owners.report([(name, report)], sender=name.encode() * 16, number=(1, value))

    return say


@pytest.mark.parametrize("snapshot", [False, True])
async def test_what_the_store_has_damaged_is_written_again_from_memory(store: StoreSubject, snapshot: bool) -> None:
    journal, shard, run = await started(store)
    say = await claimed(shard, "x", "y")
    for name in ("x", "y"):
        assert await say(name, 10) == []
        assert await say(name, 11) == []
    if snapshot:
        await journal.snapshot("x", 2, b"anything")
        store.damage_snapshot("x")
    else:
        store.damage("x", 2)
    assert await say("x", 12) == [], "nobody reads it, and all goes well"

    journal.refuses_next_append = True
    x, y = await asyncio.gather(say("x", 13), say("y", 13), return_exceptions=True)
    assert isinstance(x, errors.Unavailable), "what is in memory counts, and is about to be written"
    assert isinstance(y, errors.JournalFailed), "the log of y is whole, and nothing was changed"
    view = shard.served.view("x")
    assert view is not None
    assert view.low in {12, 13}
    assert await say("y", 14) == []
    await asyncio.gather(*shard.held.mending())
    assert await say("x", 14) == []
    assert not run.done()
    await journal.load("x")
    await stopped(shard, run)
    async with serving(store.make()) as again:
        assert {log: view.low for log in again.served.names() if (view := again.served.view(log))} == {"x": 14, "y": 14}


async def started(store: StoreSubject) -> tuple[Any, Shard, asyncio.Task[None]]:
    journal: Any = FullDisk(store.make())
    shard = sharded(journal)
    await shard.start()
    return journal, shard, asyncio.create_task(shard.run())


async def stopped(shard: Shard, run: asyncio.Task[None]) -> None:
    shard.stop()
    await run
    await shard.close()


async def killed(journal: Journal, shard: Shard, run: asyncio.Task[None]) -> None:
    shard.stop()
    await run
    await journal.close()
    await shard.held.endings.settle()


async def at_ten(shard: Shard, *names: str) -> Say:
    say = await claimed(shard, *names)
    for name in names:
        assert await say(name, 10) == []
    return say


async def lives_again(store: StoreSubject, shard: Shard, run: asyncio.Task[None], sequencer: int) -> None:
    """X is registered in its next incarnation, above all of the last one, and can be read after a restart; y has not noticed."""
    spec = await shard.graph.register(Spec("x"))
    assert spec.incarnation == 2
    grant = await shard.owners.claim("x", ClaimRequest([b"", b""], request_id=b"again".ljust(16)))
    assert grant.sequencer > sequencer
    report = GroupReport(grant.sequencer, np.array([3]))
    assert await shard.owners.report([("x", report)], sender=b"x" * 16, number=(2, 1)) == []
    await stopped(shard, run)
    async with serving(store.make()) as again:
        views = {name: again.served.view(name) for name in again.served.names()}
        lows = {name: (view.incarnation, view.low) for name, view in views.items() if view}
        assert lows == {"x": (2, 3), "y": (1, 10)}


@pytest.mark.parametrize("damaged", [True, False])
async def test_a_log_that_was_not_shortened_is_by_the_next_process(store: StoreSubject, damaged: bool) -> None:
    journal, shard, run = await started(store)
    await at_ten(shard, "x", "y")
    sequencer = shard.held.served["x"].computation.last_sequencer
    if damaged:
        store.damage("x", 2)
    journal.refuses_whole_logs = True
    await shard.graph.drop("x", force=True)
    await killed(journal, shard, run)

    journal, shard, run = await started(store)
    assert shard.served.names() == ["y"]
    shard.end_dropped()
    await shard.held.endings.ended("x")
    loaded = await journal.load("x")
    assert loaded.records == []
    recovered = recovery.recover(Spec("x", incarnation=2), loaded.snapshot, [], epoch_base=0)
    assert recovered.last_sequencer >= sequencer
    assert bool(recovered.granted) == (not damaged), "what could be read is kept"
    before = journal.statistics().snapshots
    shard.end_dropped()
    await shard.held.endings.ended("x")
    assert journal.statistics().snapshots == before, "once is enough"
    await lives_again(store, shard, run, sequencer)


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_damaged_log_that_nobody_has_in_memory_is_dropped_by_force(store: StoreSubject, snapshot: bool) -> None:
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
    assert shard.served.names() == ["y"], "the others are served"
    assert shard.takeover.is_damaged("x")
    with pytest.raises(errors.Unavailable, match="is damaged"):
        await shard.takeover.serve("x")
    report = GroupReport(sequencer, np.array([11]))
    [(_, refused)] = await shard.owners.report([("x", report)], sender=b"x" * 16, number=(2, 1))
    assert refused.reason == "MOVED"
    with pytest.raises(errors.OwnedRanges, match="it is not known whether workers own key ranges of it"):
        await shard.graph.drop("x", force=False)
    assert "x" in shard.topology.computations
    assert (await shard.graph.drop("x", force=True)).incarnation == 1
    assert not shard.takeover.is_damaged("x")
    with pytest.raises(errors.UnknownComputation, match="x was dropped"):
        await shard.graph.drop("x", force=True)
    await lives_again(store, shard, run, sequencer)


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_process_that_ends_leaves_a_graph_that_the_next_can_read(store: StoreSubject, snapshot: bool) -> None:
    journal, shard, run = await started(store)
    say = await at_ten(shard, "x", "y")
    await shard.graph.reset("y")
    if snapshot:
        await shard.held.logs.snapshot(shard.held.graph.log, lambda: [shard.topology.encode()], shard.now)
        await shard.held.logs.settle()
        assert (await journal.load(GRAPH)).records == []
        store.damage_snapshot(GRAPH)
    else:
        store.damage(GRAPH, 2)
    with pytest.raises(JournalCorrupt, match="the log of the graph at position"):
        await journal.load(GRAPH)
    assert await say("x", 11) == []
    await stopped(shard, run)

    async with serving(store.make()) as again:
        views = {name: again.served.view(name) for name in again.served.names()}
        assert {name: view.incarnation for name, view in views.items() if view} == {"x": 1, "y": 2}
        x = views["x"]
        assert x is not None
        assert x.low == 11
        await again.graph.register(Spec("z", ("x",)))
