"""Shards over one journal in memory: who serves what, and what a shard does when it was replaced or its store has lost records."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority.cluster.cluster import Replaced
from lowwater_authority.core.requests import ClaimRequest, Fold, GroupReport, Refused
from lowwater_authority.core.times import MIN
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine import shard
from tests.kit.memory_journal import MemoryDisk
from tests.kit.shards import DEAD_AFTER, NAMES, Deployment, held, two
from tests.kit.times import HOUR


async def test_computations_are_divided_and_each_is_served_once(deployment: Deployment) -> None:
    one, other = await two(deployment)
    assert held(one) | held(other) == set(NAMES)
    assert not held(one) & held(other)
    assert len(held(one)) >= 2
    assert len(held(other)) >= 2
    third = await deployment.start("third:1")
    before = held(one), held(other)
    await deployment.settle(one, other, third)
    assert held(third)
    assert held(one) < before[0] or held(other) < before[1]
    assert held(one) <= before[0]
    assert held(other) <= before[1]
    assert held(one) | held(other) | held(third) == set(NAMES)


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


async def test_m2_views_of_different_age_do_not_take_a_computation_in_turns(deployment: Deployment) -> None:
    one, other = await two(deployment)
    name = min(held(one))
    stale = one.cluster.view
    await deployment.start("third:1")
    await deployment.settle(*deployment.shards)
    moved = [name for name in NAMES if deployment.owner(name).address == "third:1"]
    name = moved[0]
    # A shard that still goes by the view before cannot take it back.
    was = one if stale.shard_of(name).address == "one:1" else other  # type: ignore[union-attr]
    was.cluster.view = stale
    was.shard.held.view = stale.version
    assert was.cluster.mine(name)
    assert not await was.shard.serve(name)
    assert deployment.owner(name).address == "third:1"


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


async def test_what_an_idle_shard_holds_is_put_back_too(deployment: Deployment) -> None:
    one, other = await two(deployment)
    grants = {name: await deployment.owner(name).claim(name) for name in NAMES}
    for name, grant in grants.items():
        await deployment.owner(name).report(name, grant, 12)
    empty = MemoryDisk()
    deployment.disk.put_back(empty.backup())  # the store is empty
    await deployment.settle(one, other)
    assert held(one) | held(other) == set(NAMES)
    fresh = await deployment.start("fresh:1")
    await one.stop()
    await other.stop()
    await deployment.settle(fresh, seconds=2.4)
    assert held(fresh) == set(NAMES)
    assert {fresh.low(name) for name in NAMES} == {12}
    for name, grant in grants.items():
        assert await fresh.report(name, grant, 13) == []


async def test_c7b_a_lost_epoch_gives_no_sequencer_twice(deployment: Deployment) -> None:
    one, other = await two(deployment)
    name = min(held(other))
    await deployment.settle(one, seconds=2.1)
    assert name in held(one)
    first = await one.claim(name)
    deployment.disk.lose(2)  # the claim, and who owns the log
    second = await deployment.start("second:1")
    await one.stop()
    await deployment.settle(second, seconds=2.4)
    grant = await second.claim(name)
    assert grant.sequencer != first.sequencer
    assert grant.sequencer > first.sequencer or grant.sequencer >> 40 == first.sequencer >> 40


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


async def test_a_shard_that_is_cut_off_says_so_and_keeps_its_memory(deployment: Deployment) -> None:
    one, other = await two(deployment)
    told: list[bool] = []
    one.cluster.on_cut_off = told.append
    deployment.members.away = True
    for _ in range(4):
        deployment.clock.now += 0.6
        for each in (one, other):
            with contextlib.suppress(Exception):
                await each.hear()
            each.cluster._judge()
    assert told == [True]
    before = held(one)
    deployment.members.away = False
    await deployment.settle(one, other)
    assert told == [True, False]
    assert held(one) == before  # nobody was dead, only the store away


async def test_a_later_process_at_the_same_address_replaces_this_one(deployment: Deployment) -> None:
    one, _ = await two(deployment)
    again = await deployment.start("one:1")
    await deployment.settle(one)  # it may be a process that was here before, and dead
    await deployment.settle(again)
    with pytest.raises(Replaced, match="advertise"):
        await deployment.settle(one)
    await deployment.settle(again)


async def test_a_process_that_was_replaced_puts_nobody_out_behind_an_outage(deployment: Deployment) -> None:
    """While the store is away nobody is heard of: that it was the first to be heard again makes no process the newer one."""
    old, other = await two(deployment)
    new = await deployment.start("one:1")
    await deployment.settle(new, other)
    await old.hear()
    assert deployment.members.view.at("one:1") == new.cluster.me
    deployment.clock.now += 2 * DEAD_AFTER  # nobody reaches the store
    await old.hear()
    assert deployment.members.view.at("one:1") == new.cluster.me
    await deployment.settle(new, other)
    assert held(new) | held(other) == set(NAMES)
    with pytest.raises(Replaced, match="advertise"):
        await deployment.settle(old)


async def test_a_process_takes_its_place_back_from_one_that_was_replaced(deployment: Deployment) -> None:
    """The older one wakes up while the newer one is cut off from the store: it is the older one that has to go, not the one that is right."""
    old, other = await two(deployment)
    new = await deployment.start("one:1")
    await deployment.settle(new, other)
    await deployment.settle(old, other, seconds=2.1)
    assert deployment.members.view.at("one:1") == old.cluster.me
    await deployment.settle(new, other)
    assert deployment.members.view.at("one:1") == new.cluster.me
    with pytest.raises(Replaced, match="advertise"):
        await deployment.settle(new, old)
    await deployment.settle(new, other)
    assert held(new) | held(other) == set(NAMES)


async def test_the_later_of_two_processes_is_told_although_views_were_lost_between_them(deployment: Deployment) -> None:
    old, other = await two(deployment)
    deployment.members.lose(2)
    new = await deployment.start("one:1")
    await deployment.settle(new, other)
    assert 0 < old.cluster.me.joined < new.cluster.me.joined
    with pytest.raises(Replaced, match="advertise"):
        await deployment.settle(new, old)
    await deployment.settle(new, other)


async def test_a_shard_shown_a_higher_number_looks_and_rises(deployment: Deployment) -> None:
    one, _ = await two(deployment)
    name = min(held(one))
    grant = await one.claim(name)
    await one.shard.rise(name, 41)
    assert one.shard.epoch(name) == 42
    assert await one.report(name, grant, 14) == []
    assert (await one.claim(name)).sequencer >> 40 == 42


async def test_a_zombie_puts_nothing_back_before_those_who_were_awake(deployment: Deployment) -> None:
    zombie, other = await two(deployment)
    name = min(held(zombie))
    old = await zombie.claim(name)
    await zombie.report(name, old, 12)
    await deployment.settle(other, seconds=2.1)
    new = await other.claim(name)
    await other.report(name, new, 13)
    # The store forgets who took over; the zombie wakes up first, and remembers being the owner.
    deployment.disk.put_back(MemoryDisk().backup())
    refused = asyncio.ensure_future(zombie.report(name, old, 20))
    await zombie.hear()
    await deployment.settle(other, seconds=0.6)
    with pytest.raises(errors.JournalFailed, match="out of touch"):
        await refused
    await zombie.shard.confirm([name])
    assert name not in held(zombie)
    assert other.low(name) == 13
    [(_, stale)] = await other.report(name, old, 20)
    assert stale.reason == "STALE_SEQUENCER"
    assert await other.report(name, new, 14) == []


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


async def test_a_zombie_s_refusal_of_a_call_is_not_told_either(deployment: Deployment) -> None:
    zombie, other = await two(deployment)
    name = min(held(zombie))
    await deployment.settle(other, seconds=2.1)
    newer = await other.claim(name)
    with pytest.raises(errors.Moved):
        await zombie.shard.release(name, newer.sequencer)
    await other.shard.release(name, newer.sequencer)


async def test_rule8_nothing_of_a_stream_counts_behind_what_another_shard_was_to_hear(deployment: Deployment) -> None:
    """The range goes down in a report that comes while another shard serves it; the next one on the stream says nothing of that."""
    one, other = await two(deployment)
    name = min(held(other))
    grant = await other.shard.claim(name, ClaimRequest([b"", b"m", b""], request_id=b"two ranges".ljust(16)))
    barred: set[str] = set()

    def report(number: int, *hours: int, handles: list[int] | None = None) -> asyncio.Future[list[tuple[str, Refused]]]:
        values = np.array([hour * HOUR for hour in hours], dtype=np.int64)
        chosen = None if handles is None else np.array(handles, dtype=np.uint32)
        said = GroupReport(grant.sequencer, values, handles=chosen)
        return one.shard.report([(name, said)], sender=b"t" * 16, number=(1, number), barred=barred)

    [(_, refused)] = await report(1, 12, 10)
    assert refused.reason == "MOVED"
    await other.stop()
    await deployment.settle(one, seconds=2.1)
    assert name in held(one)
    [(_, refused)] = await report(2, 14, handles=[0])
    assert refused.reason == "MOVED"
    barred = set()  # a new stream, which says all
    assert await report(3, 14, 10) == []
    assert one.low(name) == 10


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
