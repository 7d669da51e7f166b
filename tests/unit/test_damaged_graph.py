"""The log of the graph is damaged in the store while shards have all of it in memory: they write it again, and nobody else notices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import count

import pytest

from lowwater import errors
from lowwater_authority.cluster.cluster import BEATS
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.holdings import Holdings, replayed
from lowwater_authority.journal import GRAPH, JournalCorrupt, JournalFailed, Salvage
from tests.contract.journal_stores import flipped
from tests.kit.faults import Outcome
from tests.kit.memory_journal import MemoryJournal
from tests.kit.shards import DEAD_AFTER, NAMES, Deployment, One, held, two


def rot(deployment: Deployment, back: int = 0) -> int:
    """A record of the graph is wrong on the disk, the last but some; returns its place."""
    stored = deployment.disk.logs[GRAPH]
    place = stored.last - back
    stored.records[place] = flipped(stored.records[place])
    return place


async def stored_graph(one: One) -> set[str]:
    """What who knows nothing of the graph reads of it."""
    return set(replayed(await one.shard.journal.load(GRAPH)).topology.computations)


async def serve_on(one: One, *names: str) -> None:
    """Computations are claimed, reported and read as ever."""
    for name in names:
        grant = await one.claim(name)
        assert await one.report(name, grant, 12) == []
        await one.shard.confirm([name])
        assert one.low(name) == 12


async def test_a_shard_that_reads_a_damaged_graph_writes_it_again(deployment: Deployment) -> None:
    one, other = await two(deployment)
    rot(deployment, back=3)
    await other.shard.register(Spec("new"))
    await deployment.settle(one, other)
    assert await stored_graph(one) == {*NAMES, "new"}
    await one.shard.register(Spec("newer"))
    await deployment.settle(one, other)
    assert one.shard.topology == other.shard.topology
    assert await stored_graph(other) == {*NAMES, "new", "newer"}
    for each in (one, other):
        await serve_on(each, *held(each))
        assert not each.rounds.done()


async def test_a_refused_append_does_not_end_the_changes_of_a_graph_that_is_damaged(deployment: Deployment) -> None:
    """What was read of it is forgotten then, so that it is read again."""
    one, other = await two(deployment)
    name, neighbour = sorted(held(one))[:2]
    grant = await one.claim(name)
    rot(deployment)
    one.faults.ends["append"] = [Outcome.FAILED]
    new, report = await asyncio.gather(
        one.shard.register(Spec("new")), one.report(name, grant, 12), return_exceptions=True
    )
    assert isinstance(new, errors.JournalFailed)
    assert report == []
    await one.shard.register(Spec("new"))
    [life] = [spec.incarnation for spec in await other.shard.reset(neighbour)]
    await deployment.settle(one, other)
    assert one.shard.topology == other.shard.topology
    assert one.shard.topology.get(neighbour).incarnation == life == 2
    await serve_on(one, neighbour)
    assert await one.report(name, grant, 13) == []


async def test_what_dies_with_its_shard_is_kept_as_far_as_the_store_can_be_read(deployment: Deployment) -> None:
    """Nobody else has read what it has registered behind the damaged record."""
    one, other = await two(deployment)
    for name in ("a", "b"):
        await other.shard.register(Spec(name))
    await other.shard.reset("a")
    rot(deployment, back=3)
    await other.stop()
    await deployment.settle(one, seconds=DEAD_AFTER + 1.2)
    assert one.shard.topology.computations.keys() == {*NAMES, "a", "b"}
    assert one.shard.topology.get("a").incarnation == 2
    assert held(one) == {*NAMES, "a", "b"}
    assert await stored_graph(one) == {*NAMES, "a", "b"}
    await serve_on(one, *held(one))


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when nothing is read of what is damaged")
async def test_what_dies_with_its_shard_is_lost_where_a_damaged_log_is_not_read(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def last_alone(self: MemoryJournal, log: str) -> Salvage:
        return Salvage(self._disk.logs[log].last, [])

    monkeypatch.setattr(MemoryJournal, "salvage", last_alone)
    await test_what_dies_with_its_shard_is_kept_as_far_as_the_store_can_be_read(deployment)


async def test_what_only_its_shard_has_read_is_added_by_that(deployment: Deployment) -> None:
    """The damaged record is one that the shard that notices has never read: who has written it puts it back."""
    one, other = await two(deployment)
    neighbour = min(held(one))
    [name] = [spec.name for spec in await other.shard.reset(min(held(other)))]
    await other.shard.register(Spec("new"))
    rot(deployment)
    await other.shard.register(Spec("newer"))
    rot(deployment)
    assert "new" not in one.shard.topology.computations
    for _ in range(3):
        await one.beat()
        await other.beat()
    assert one.shard.topology == other.shard.topology
    assert one.shard.topology.computations.keys() == {*NAMES, "new", "newer"}
    assert one.shard.topology.get(name).incarnation == 2
    await serve_on(one, neighbour)


async def test_one_that_goes_on_without_an_input_that_only_a_lost_record_told_is_held(deployment: Deployment) -> None:
    """Nobody who lives has read that the inputs were changed. The computation is stopped, not led; the others go on."""
    one, other = await two(deployment)
    name = min(held(other))
    first, second = sorted(held(one))[:2]
    await serve_on(one, first, second)
    await serve_on(other, name)
    await other.shard.set_inputs(name, [second])
    rot(deployment)
    await other.stop()
    await deployment.settle(one, seconds=DEAD_AFTER + 1.2)
    assert name not in held(one)
    assert held(one) == set(NAMES) - {name}
    with pytest.raises(
        errors.Unavailable, match="it has version 2 of its inputs, but the graph knows only 1: reset it"
    ):
        await one.shard.serve(name)
    await serve_on(one, first)
    await one.shard.reset(name)
    await deployment.settle(one, seconds=65)
    assert name in held(one)
    assert one.shard.topology.get(name).incarnation == 2


def coming(deployment: Deployment, monkeypatch: pytest.MonkeyPatch, *others: One) -> One:
    """A shard that is about to start: while it waits, time passes, and others beat."""
    third = One(deployment, "third:1")

    pauses = count(1)

    async def pause(until: float) -> None:
        assert next(pauses) <= 2 * BEATS, "nobody hears it"
        deployment.clock.now = max(deployment.clock.now, until)
        for one in others:
            await one.beat()

    monkeypatch.setattr(third.cluster, "_pause", pause)
    return third


async def test_a_process_that_starts_waits_until_a_shard_has_written_the_graph_again(
    deployment: Deployment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shard has a reason to read again what it has in memory, but that somebody waits who cannot."""
    caplog.set_level(logging.INFO)
    one, other = await two(deployment)
    await serve_on(one, *held(one))
    await deployment.settle(one, other)
    rot(deployment, back=2)
    third = coming(deployment, monkeypatch, one, other)
    await third.start()
    deployment.shards.append(third)
    assert third.shard.topology.computations.keys() == set(NAMES)
    await deployment.settle(one, other, third, seconds=1.5)
    assert set(NAMES) == held(one) | held(other) | held(third)
    assert held(third)
    names = [record.getMessage() for record in caplog.records if "looking for a shard" in record.getMessage()]
    assert len(names) == 1


@pytest.mark.parametrize("late", [False, True])
async def test_a_process_that_starts_alone_with_a_damaged_graph_is_refused(
    deployment: Deployment, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members of the last view are dead, which is only known when they have been silent for long enough."""
    one, other = await two(deployment)
    place = rot(deployment)
    frame = deployment.disk.logs[GRAPH].records[place]
    for each in (one, other):
        await each.stop()
    deployment.clock.now += 10 * DEAD_AFTER if late else 0
    third = coming(deployment, monkeypatch)
    with pytest.raises(
        JournalCorrupt, match=r"and no process that lives has it in memory.* start from a restored copy"
    ):
        await third.shard.start()
    await third.shard.close()
    assert deployment.disk.logs[GRAPH].records[place] == frame, "it has nothing to put in its place"


async def test_a_shard_that_ends_leaves_a_graph_that_can_be_read(deployment: Deployment) -> None:
    one, other = await two(deployment)
    rot(deployment, back=1)
    for each in (one, other):
        each.shard.stop()
        await each.rounds
        await each.shard.close()
    third = await deployment.start("third:1")
    assert third.shard.topology.computations.keys() == set(NAMES)


async def test_a_graph_that_cannot_be_written_again_stops_only_what_needs_it(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store takes no restore: what is served goes on, and nothing is taken from who serves it."""
    one, other = await two(deployment)
    name = min(held(one))
    rot(deployment, back=1)
    for each in (one, other):
        each.faults.ends["restore"] = [Outcome.FAILED] * 1000
        each.shard.doubt_graph()
    await deployment.settle(one, other, seconds=3)
    assert not one.cluster.cut_off
    await serve_on(one, name)
    await one.cluster.change(lambda view: view.pinned(name, "other:1"))
    await deployment.settle(one, other, seconds=3)
    assert name in held(one), "who cannot read the graph takes nothing"
    with pytest.raises(errors.Unavailable, match="cannot put the graph right in its store yet"):
        await other.shard.refresh()
    for each in (one, other):
        each.faults.ends.clear()
    await deployment.settle(one, other, seconds=6)
    assert name in held(other)
    assert other.low(name) == 12


async def test_what_is_registered_but_not_served_is_not_said_to_be_unchanged(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append went well, and only then the graph could not be read."""
    one = await deployment.start("one:1")
    await one.shard.register(Spec("x"))
    read: Callable[..., object] = Holdings.read_graph

    async def unreadable(self: Holdings) -> object:
        raise JournalFailed("it cannot be read")

    monkeypatch.setattr(Holdings, "read_graph", unreadable)
    with pytest.raises(errors.Unavailable, match=r"^new is registered, but it is not known yet whether"):
        await one.shard.register(Spec("new"))
    monkeypatch.setattr(Holdings, "read_graph", read)
    assert (await one.shard.register(Spec("new"))).incarnation == 1
    assert held(one) == {"x", "new"}
