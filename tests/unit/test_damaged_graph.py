"""The log of the graph is damaged in the store: a shard that has all of the damage in memory writes it again, and nobody else notices.

Who has not read what is damaged acts on nothing until one has, or a copy is restored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from lowwater import errors
from lowwater_authority.cluster.pace import BEATS
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.confirmation import GRAPH_REST_SECONDS
from lowwater_authority.engine.graph_log import replayed
from lowwater_authority.engine.shard import Shard
from lowwater_authority.journal import GRAPH, JournalCorrupt, LoadedLog, Ownership, frames
from tests.kit.faults import Outcome
from tests.kit.memory_journal import MemoryJournal
from tests.kit.releases import newer_release
from tests.kit.shards import DEAD_AFTER, NAMES, Deployment, One, held, turns, two


def rot(deployment: Deployment, back: int = 0) -> int:
    stored = deployment.disk.logs[GRAPH]
    place = stored.last - back
    stored.damage(place)
    return place


async def stored_graph(one: One) -> set[str]:
    return set(replayed(await one.shard.journal.load(GRAPH)).topology.computations)


async def serve_on(one: One, *names: str) -> None:
    for name in names:
        grant = await one.claim(name)
        assert await one.report(name, grant, 12) == []
        await one.shard.confirmation.confirm([name])
        assert one.low(name) == 12


class NothingBehind(MemoryJournal):
    """Whoever asks is told that it has all of it."""

    async def load_behind(self, log: str, position: int) -> LoadedLog:
        last, tail = self._disk.logs[log].end
        return LoadedLog(last, None, [], tails={last: tail})


CHANGES: dict[str, Callable[[Shard, str, str], Awaitable[object]]] = {
    "register": lambda shard, name, other: shard.graph.register(Spec("new", (name, other))),
    "reset": lambda shard, name, other: shard.graph.reset(name),
    "inputs": lambda shard, name, other: shard.graph.set_inputs(name, [other]),
    "drop": lambda shard, name, other: shard.graph.drop(name, force=True),
}
"""Changes that one shard acknowledges, and another has not read when its record is damaged."""


async def refused(ask: Awaitable[object]) -> bool:
    try:
        await ask
    except (errors.Unavailable, errors.Moved):
        return True
    return False


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("change", CHANGES)
async def test_rule1_no_shard_acts_on_a_graph_with_losses(deployment: Deployment, change: str, dies: bool) -> None:
    """A reset, an input or a drop that is lost would let a watermark lead. Who has not read it waits for who has, or for a copy."""
    one, other = await two(deployment)
    name, neighbour = min(held(other)), min(held(one))
    await serve_on(one, neighbour)
    await serve_on(other, name)
    await CHANGES[change](other.shard, name, neighbour)
    acknowledged = other.shard.topology
    stored = deployment.disk.logs[GRAPH]
    whole = stored.records[stored.last]
    place = rot(deployment)
    damaged = stored.records[place]
    if name in other.shard.served:
        # Its own log tells nothing of its inputs then.
        await other.snapshot(name)

    async def acts_on_nothing() -> None:
        shard = one.shard
        for ask in (
            partial(shard.confirmation.confirm, ()),
            partial(shard.confirmation.confirm, [neighbour]),
            partial(shard.graph.reset, name),
            partial(shard.graph.drop, name, force=True),
            partial(shard.graph.register, Spec("more", (name,))),
            partial(shard.graph.register, Spec("new", (neighbour,))),
            partial(shard.graph.reset, neighbour),
            shard.confirmation.refresh,
        ):
            assert await refused(ask())
        assert stored.records.get(place) == damaged

    await acts_on_nothing()
    if dies:
        await other.stop()
        await deployment.settle(one, seconds=2 * DEAD_AFTER)
        assert name not in held(one)
        await acts_on_nothing()
        stored.records[place] = whole
        await deployment.settle(one, seconds=2.1)
        assert held(one) == acknowledged.computations.keys()
    else:
        await deployment.settle(one, other, seconds=2.1)
        assert one.shard.topology == other.shard.topology
    assert one.shard.topology == acknowledged
    [incarnation] = [spec.incarnation for spec in await one.shard.graph.reset(neighbour) if spec.name == neighbour]
    assert incarnation == 2
    assert one.shard.topology.dropped == acknowledged.dropped


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when a shard writes again what it has never read")
async def test_rule1_breaks_when_a_graph_is_written_again_by_who_has_not_read_it(deployment: Deployment) -> None:
    deployment.journal = NothingBehind
    await test_rule1_no_shard_acts_on_a_graph_with_losses(deployment, "reset", dies=False)


async def take_with_inputs_that_are_not_read(deployment: Deployment) -> tuple[One, One, str, str]:
    """A shard takes a log whose inputs are changed between its look at the log and the take, by a record that it cannot read."""
    one, other = await two(deployment)
    name, new = min(held(other)), max(held(one))
    await serve_on(one, new)
    await serve_on(other, name)
    await other.cluster.change(lambda view: view.pinned(name, "one:1"))
    await one.cluster.look()
    one.faults.held["take"] = asyncio.Event()
    taking = asyncio.create_task(one.shard.takeover.serve_in_turn(name))
    await turns()
    await other.shard.graph.set_inputs(name, [new])
    rot(deployment)
    one.faults.held.pop("take").set()
    await asyncio.wait([taking])
    taking.exception()
    return one, other, name, new


async def test_rule4_nothing_is_taken_whose_inputs_this_shard_cannot_read(deployment: Deployment) -> None:
    one, other, name, new = await take_with_inputs_that_are_not_read(deployment)
    assert name not in held(one)
    await deployment.settle(one, other, seconds=3)
    assert name in held(one)
    assert one.shard.topology.get(name).inputs == (new,)


def forget(deployment: Deployment, back: int) -> None:
    stored = deployment.disk.logs[GRAPH]
    for place in range(stored.last - back + 1, stored.last + 1):
        del stored.records[place]
    stored.last -= back
    stored.tail = frames.checksum(stored.records[stored.last])


async def changed_between_the_look_and_the_heal(deployment: Deployment) -> tuple[One, str]:
    """One shard puts back what the store has lost of the graph; meanwhile another one, which misses nothing, changes it, and dies."""
    one, other = await two(deployment)
    name = min(held(other))
    await serve_on(other, name)
    for new in ("a", "b"):
        await one.shard.graph.register(Spec(new))
    forget(deployment, 2)
    one.faults.held["restore"] = asyncio.Event()
    healing = asyncio.create_task(one.shard.confirmation.confirm(()))
    await turns()
    assert not healing.done()
    [life] = [spec.incarnation for spec in await other.shard.graph.reset(name)]
    assert life == 2
    await other.stop()
    one.faults.held.pop("restore").set()
    await healing
    await deployment.settle(one, seconds=DEAD_AFTER + 1.2)
    return one, name


async def test_rule10_a_heal_spares_what_was_acknowledged_behind_a_loss(deployment: Deployment) -> None:
    one, name = await changed_between_the_look_and_the_heal(deployment)
    assert one.shard.topology.get(name).incarnation == 2
    assert held(one) == {*NAMES, "a", "b"}
    assert await stored_graph(one) == {*NAMES, "a", "b"}


class RestoresAnyway(MemoryJournal):
    """A heal is written over whatever is there."""

    async def restore(self, log: str, position: int, payload: bytes, **more: Any) -> Ownership:
        return await super().restore(log, position, payload, **{**more, "over": None})


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when a heal does not look where the log ends")
async def test_rule10_breaks_when_a_heal_writes_over_whatever_is_there(deployment: Deployment) -> None:
    deployment.journal = RestoresAnyway
    await test_rule10_a_heal_spares_what_was_acknowledged_behind_a_loss(deployment)


async def test_what_is_damaged_and_lost_is_written_again_from_memory(deployment: Deployment) -> None:
    """An older record is rotten, and the newest are gone: neither can be read, and each shard has both in memory."""
    one, other = await two(deployment)
    for new in ("a", "b"):
        await one.shard.graph.register(Spec(new))
    await other.shard.confirmation.confirm(())
    rot(deployment, back=5)
    forget(deployment, 2)
    for process in (one, other):
        await process.shard.confirmation.confirm(())
    assert await stored_graph(one) == {*NAMES, "a", "b"}
    assert one.shard.topology == other.shard.topology


async def test_what_was_put_back_is_written_again_when_it_is_damaged(deployment: Deployment) -> None:
    one = await deployment.start("one:1")
    for name in ("a", "b"):
        await one.shard.graph.register(Spec(name))
    forget(deployment, 1)
    one.faults.ends["restore"] = [Outcome.FAILED]
    for _ in range(2):
        assert await refused(one.shard.confirmation.confirm(())), "it rests behind the first"
    deployment.clock.now += GRAPH_REST_SECONDS
    await one.shard.confirmation.confirm(())
    deployment.disk.logs[GRAPH].damage_snapshot()
    one.shard.confirmation.doubt_graph()
    await one.shard.confirmation.refresh()
    assert await stored_graph(one) == {"a", "b"}


async def test_rule10_a_damaged_graph_is_written_again_with_what_others_have_added(deployment: Deployment) -> None:
    one, other = await two(deployment)
    rot(deployment, back=1)
    await other.shard.graph.register(Spec("new"))
    assert "new" not in one.shard.topology.computations
    one.shard.confirmation.doubt_graph()
    await one.shard.confirmation.refresh()
    assert await stored_graph(one) == one.shard.topology.computations.keys() == {*NAMES, "new"}


async def changed_behind_a_loss(deployment: Deployment) -> tuple[One, One, str]:
    """Make a loss: a registration is lost, another shard has reset something in its place, and an older record is rotten."""
    one, other = await two(deployment)
    name = min(held(other))
    for new in ("a", "b"):
        await one.shard.graph.register(Spec(new))
    forget(deployment, 2)
    await other.shard.graph.reset(name)
    rot(deployment, back=3)
    return one, other, name


async def test_who_does_not_cover_what_is_damaged_and_lost_calls_who_does(deployment: Deployment) -> None:
    one, other, name = await changed_behind_a_loss(deployment)
    assert await refused(one.shard.confirmation.confirm(()))
    await deployment.settle(one, other, seconds=3)
    assert one.shard.topology == other.shard.topology
    assert one.shard.topology.get(name).incarnation == 2
    assert await stored_graph(one) == {*NAMES, "a", "b"}
    await serve_on(other, name)


async def test_rule10_nothing_is_written_over_what_nobody_who_lives_has_read(deployment: Deployment) -> None:
    """Who lives has never read the reset that was acknowledged in the place of what was lost."""
    one, other, name = await changed_behind_a_loss(deployment)
    await other.stop()
    before = dict(deployment.disk.logs[GRAPH].records)
    reads = one.faults.reads
    for _ in range(30):
        assert await refused(one.shard.confirmation.confirm(()))
    assert one.faults.reads - reads < 100, "it rests"
    await deployment.settle(one, seconds=3 * DEAD_AFTER)
    assert deployment.disk.logs[GRAPH].records == before
    assert await refused(one.shard.graph.reset(name))
    assert await refused(one.shard.graph.register(Spec("new")))
    assert name not in held(one)


@pytest.mark.parametrize("graph", ["whole", "newer", "refused", "never read"])
async def test_a_shard_that_ends_saves_its_computations_beside_any_graph(deployment: Deployment, graph: str) -> None:
    one = await deployment.start("one:1")
    await one.shard.graph.register(Spec("x"))
    await serve_on(one, "x")
    await one.snapshot("x")
    deployment.disk.logs["x"].damage_snapshot()
    if graph == "newer":
        with newer_release():
            await one.shard.graph.register(Spec("y"))
    if graph in {"refused", "never read"}:
        rot(deployment)
    if graph == "refused":
        one.faults.ends["restore"] = [Outcome.FAILED]
    if graph == "never read":
        one.shard.held.graph.covered = 0
    before = dict(deployment.disk.logs[GRAPH].records)
    await one.end()
    assert deployment.disk.logs[GRAPH].records == before
    journal = MemoryJournal(deployment.disk, shared=True)
    await journal.open()
    assert (await journal.load("x")).snapshot is not None


async def while_time_passes(starting: Coroutine[Any, Any, None], third: One, *others: One) -> None:
    """A shard starts: while it waits, time passes, and others beat."""
    task = asyncio.create_task(starting)
    for _ in range(2 * BEATS):
        await turns()
        if task.done():
            break
        third.deployment.clock.now += DEAD_AFTER / BEATS
        for one in others:
            await one.beat()
        third.cluster.hurry()
    await turns()
    assert task.done(), "nobody hears it"
    await task


async def test_a_start_waits_until_the_graph_is_there(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one, other = await two(deployment)
    await serve_on(one, *held(one))
    await deployment.settle(one, other)
    rot(deployment, back=2)
    third = One(deployment, "third:1")
    await while_time_passes(third.start(), third, one, other)
    deployment.shards.append(third)
    assert third.shard.topology.computations.keys() == set(NAMES)
    await deployment.settle(one, other, third, seconds=1.5)
    assert set(NAMES) == held(one) | held(other) | held(third)
    assert held(third)
    names = [record.getMessage() for record in caplog.records if "waits for a shard that" in record.getMessage()]
    assert len(names) == 1


async def test_a_process_that_starts_alone_with_a_damaged_graph_is_refused(deployment: Deployment) -> None:
    """The members of the last view are dead, which is only known when they have been silent for long enough."""
    for process in await two(deployment):
        await process.stop()
    place = rot(deployment)
    frame = deployment.disk.logs[GRAPH].records[place]
    third = One(deployment, "third:1")
    with pytest.raises(JournalCorrupt, match=r"no process that lives has it in memory.* start from a restored copy"):
        await while_time_passes(third.shard.start(), third)
    await third.shard.close()
    assert deployment.disk.logs[GRAPH].records[place] == frame, "it has nothing to put in its place"


async def test_a_graph_that_cannot_be_written_again_stops_only_what_needs_it(deployment: Deployment) -> None:
    one, other = await two(deployment)
    name = min(held(one))
    rot(deployment, back=1)
    for process in (one, other):
        process.faults.ends["restore"] = [Outcome.FAILED] * 1000
        process.shard.confirmation.doubt_graph()
    await deployment.settle(one, other, seconds=3)
    assert not one.cluster.contact.cut_off
    await serve_on(one, name)
    await one.cluster.change(lambda view: view.pinned(name, "other:1"))
    await deployment.settle(one, other, seconds=3)
    assert name in held(one), "who cannot read the graph takes nothing"
    with pytest.raises(errors.Unavailable, match="cannot put the graph right in its store yet"):
        await other.shard.confirmation.refresh()
    assert other.shard.held.graph.doubted, "so that all of it is read next time"
    for process in (one, other):
        process.faults.ends.clear()
    await deployment.settle(one, other, seconds=6)
    assert name in held(other)
    assert other.low(name) == 12


async def test_what_is_registered_but_not_served_is_not_said_to_be_unchanged(deployment: Deployment) -> None:
    one = await deployment.start("one:1")
    one.faults.ends["take"] = [Outcome.FAILED]
    with pytest.raises(errors.Unavailable, match=r"^new is registered, but it is not known yet whether"):
        await one.shard.graph.register(Spec("new"))
    assert (await one.shard.graph.register(Spec("new"))).incarnation == 1
    assert held(one) == {"new"}


async def test_what_dies_with_its_shard_is_kept_as_far_as_the_store_can_be_read(deployment: Deployment) -> None:
    """No other shard has read the registrations behind the damaged record."""
    one, other = await two(deployment)
    for name in ("a", "b"):
        await other.shard.graph.register(Spec(name))
    await other.shard.graph.reset("a")
    rot(deployment, back=3)
    await other.stop()
    await deployment.settle(one, seconds=DEAD_AFTER + 1.2)
    assert one.shard.topology.computations.keys() == {*NAMES, "a", "b"}
    assert one.shard.topology.get("a").incarnation == 2
    assert held(one) == {*NAMES, "a", "b"}
    assert await stored_graph(one) == {*NAMES, "a", "b"}
    await serve_on(one, *held(one))


async def test_a_damaged_snapshot_counts_with_all_that_it_covers(deployment: Deployment) -> None:
    """Who has read behind it has all of it in memory; who has not, has not."""
    one, other = await two(deployment)
    await other.shard.graph.register(Spec("new"))
    await other.shard.held.logs.snapshot(
        other.shard.held.graph.log, lambda: [other.shard.topology.encode()], other.shard.now
    )
    await other.shard.held.logs.settle()
    deployment.disk.logs[GRAPH].damage_snapshot()
    assert await refused(one.shard.confirmation.refresh())
    await deployment.settle(one, other, seconds=2.1)
    assert await stored_graph(one) == {*NAMES, "new"}
    assert one.shard.topology == other.shard.topology
