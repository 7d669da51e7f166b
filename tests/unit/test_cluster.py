"""Shards over one journal in memory: who serves what, and what a shard does when it was replaced or its store has lost records."""

from __future__ import annotations

import asyncio

import pytest

from lowwater import errors
from lowwater_authority.cluster.cluster import Replaced
from lowwater_authority.core.requests import Fold
from lowwater_authority.core.times import MIN
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine import shard
from tests.kit.shards import NAMES, Deployment, held, two


async def test_what_was_claimed_and_reported_goes_over_with_the_computation(deployment: Deployment) -> None:
    one, other = await two(deployment)
    name = min(held(other))
    grant = await other.claim(name)
    assert await other.report(name, grant, 14) == []
    epoch = other.shard.epoch(name)
    await other.stop()
    await deployment.settle(one)
    assert name not in held(one)  # it may be only slow
    await deployment.settle(one, seconds=1.5)
    assert held(one) == set(NAMES)
    assert one.shard.epoch(name) > epoch
    assert one.low(name) == 14
    assert await one.report(name, grant, 15) == []
    assert one.low(name) == 15


async def test_rule4_a_zombie_shard_moves_nothing_and_answers_nothing(deployment: Deployment) -> None:
    one, zombie = await two(deployment)
    name = min(held(zombie))
    grant = await zombie.claim(name)
    await zombie.report(name, grant, 14)
    subscription = zombie.shard.hub.subscribe([name])
    await deployment.settle(one, seconds=2.1)
    assert held(one) == set(NAMES)
    await one.report(name, grant, 16)
    # It wakes up, believes it serves, and is told so before it can answer or write.
    assert name in held(zombie)
    [(_, refused)] = await zombie.report(name, grant, 15)
    assert refused.reason == "MOVED"
    assert name not in held(zombie)
    assert zombie.shard.view(name) is None
    assert await subscription.take(0) == {name: None}
    assert one.low(name) == 16
    with pytest.raises(errors.Moved):
        await zombie.claim(name)
    place = (await zombie.cluster.locate([name]))[name]
    assert place == ("one:1", one.shard.epoch(name))


async def test_c7a_a_store_that_lost_records_gets_them_back_from_memory(deployment: Deployment) -> None:
    one, _ = await two(deployment)
    name = min(held(one))
    older = await one.claim(name)
    await one.report(name, older, 12)
    newer = await one.claim(name)
    await one.report(name, newer, 13)
    deployment.disk.lose(2)  # the report and the claim, both acknowledged
    epoch = one.shard.epoch(name)
    assert await one.report(name, newer, 14) == []
    assert one.low(name) == 14
    assert one.shard.epoch(name) > epoch
    [(_, refused)] = await one.report(name, older, 20)
    assert refused.reason == "STALE_SEQUENCER"
    # Whoever comes next finds all of it.
    await one.stop()
    again = await deployment.start("one:1")
    await deployment.settle(*[each for each in deployment.shards if not each.ended])
    assert again.low(name) == 14
    [(_, refused)] = await again.report(name, older, 20)
    assert refused.reason == "STALE_SEQUENCER"
    assert await again.report(name, newer, 15) == []


async def test_c5c_a_reset_at_another_shard_is_seen_before_anything_is_answered(deployment: Deployment) -> None:
    one, other = await two(deployment)
    name = min(held(other))
    grant = await other.claim(name)
    await other.report(name, grant, 14)
    [spec] = await one.shard.reset(name)
    assert spec.incarnation == 2
    assert other.low(name) == 14
    await other.shard.confirm([name])
    assert other.low(name) == MIN
    [(_, refused)] = await other.report(name, grant, 15)
    assert refused.reason == "STALE_SEQUENCER"


async def test_h4_inputs_that_other_shards_serve_bound_what_reads_them(deployment: Deployment) -> None:
    one, other = await two(deployment)
    far, near = min(held(other)), min(held(one))
    grant = await other.claim(far)
    await other.report(far, grant, 10)
    await one.shard.set_inputs(near, [far])
    mine = await one.claim(near)
    assert await one.report(near, mine, 9, Fold(2, (1,))) == []
    assert one.low(near) == 9
    lagging = max(held(other))
    with pytest.raises(errors.WouldRegress):
        await one.shard.set_inputs(near, [far, lagging])


async def test_a_later_process_at_the_same_address_replaces_this_one(deployment: Deployment) -> None:
    one, _ = await two(deployment)
    again = await deployment.start("one:1")
    await deployment.settle(one)  # it may be a process that was here before, and dead
    await deployment.settle(again)
    with pytest.raises(Replaced, match="advertise"):
        await deployment.settle(one)
    await deployment.settle(again)


async def test_a_zombie_refuses_nobody_for_being_newer_than_it_knows(deployment: Deployment) -> None:
    zombie, other = await two(deployment)
    name = min(held(zombie))
    await deployment.settle(other, seconds=2.1)
    newer = await other.claim(name)
    # A stale sequencer would end the newer owner for good, and it is the shard that is stale.
    [(_, refused)] = await zombie.report(name, newer, 14)
    assert refused.reason == "MOVED"
    assert name not in held(zombie)
    assert await other.report(name, newer, 14) == []


async def test_a_graph_that_cannot_be_read_is_refused_and_read_later(deployment: Deployment) -> None:
    one, other = await two(deployment)
    one.faults.unreadable.add("load")
    await other.shard.register(Spec("new"))
    with pytest.raises(errors.Unavailable, match="cannot read the graph from its store"):
        await one.shard.confirm(())
    one.faults.unreadable.clear()
    await one.shard.confirm(())
    assert "new" in one.shard.topology.computations


async def test_reads_that_wait_for_a_store_that_hangs_end_in_time(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await two(deployment)
    name, away = min(held(one)), min(held(other))
    grant = await one.claim(name)
    monkeypatch.setattr(shard, "WAIT_SECONDS", 0.01)
    one.faults.held["append"] = one.faults.held["take"] = gate = asyncio.Event()
    reporting = asyncio.ensure_future(one.report(name, grant, 12))
    await one.cluster.change(lambda view: view.pinned(away, "one:1"))
    for read in (
        lambda: one.shard.ranges(name, below=None, limit=1),
        lambda: one.shard.history(name, since=None, limit=1),
    ):
        with pytest.raises(errors.Unavailable, match=r"its store has not answered within 0.01 s"):
            await read()
    with pytest.raises(errors.Unavailable, match=rf"{away} is being taken over by this shard") as refused:
        await one.shard.serve(away)
    assert "newest" not in refused.value.message, "nothing is known of it here, old or new"
    gate.set()
    assert await reporting == []
    monkeypatch.undo()
    assert await one.shard.serve(away), "what was begun went on"
    assert (await one.shard.ranges(name, below=None, limit=1))[1] == 1
