"""Shards over one journal in memory: who serves what, and what they do when one was replaced, is dead, or looks so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import grpc.aio
import numpy as np
import pytest

from lowwater import errors
from lowwater.core.call import Stubs
from lowwater.v1 import watermarks_pb2
from lowwater_authority.cluster.cluster import Replaced
from lowwater_authority.core.requests import ClaimRequest, GroupReport, Refused
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.takeover import TOGETHER_SECONDS
from lowwater_authority.journal import GRAPH
from tests.kit.faults import Outcome
from tests.kit.memory_journal import MemoryDisk, StoredLog
from tests.kit.shards import DEAD_AFTER, NAMES, Deployment, One, held, reached, turns, two
from tests.kit.times import HOUR


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
    assert zombie.shard.served.view(name) is None
    assert await subscription.take(0) == {name: None}
    assert one.low(name) == 16
    with pytest.raises(errors.Moved):
        await zombie.claim(name)
    place = (await zombie.cluster.locate([name]))[name]
    assert place == ("one:1", one.shard.served.epoch(name))


async def test_rule4_a_zombie_shard_answers_readers_with_the_new_owner(deployment: Deployment) -> None:
    one, zombie = await two(deployment)
    checked, name = sorted(held(zombie))[:2]
    for each in (checked, name):
        await zombie.report(each, await zombie.claim(each), 14)
    async with reached(zombie) as address, grpc.aio.insecure_channel(address) as channel:
        stubs = Stubs(channel).watermarks
        watch: Any = stubs.Watch(watermarks_pb2.WatchRequest(computations=[name]))
        [before] = (await watch.read()).watermarks
        stopped = zombie.shard.now
        await deployment.settle(one, seconds=2.1)
        news = await watch.read()
        assert (list(news.watermarks), news.time_micros) == ([], stopped), "it does not vouch for another's values"
        answer = await stubs.GetWatermarks(watermarks_pb2.GetWatermarksRequest(computations=[name]))
        assert not answer.watermarks
        question = watermarks_pb2.CheckCompleteRequest(computation=checked, until_micros=10 * HOUR)
        with pytest.raises(grpc.aio.AioRpcError, match="another shard serves"):
            await stubs.CheckComplete(question)
        async with asyncio.timeout(30):
            while not (news := await watch.read()).redirects:
                assert not news.watermarks
        for redirect in (*answer.redirects, *news.redirects):
            assert (redirect.address, redirect.epoch > before.epoch) == ("one:1", True)
        assert len(answer.redirects) == len(news.redirects) == 1


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
    await zombie.shard.confirmation.confirm([name])
    assert name not in held(zombie)
    assert other.low(name) == 13
    [(_, stale)] = await other.report(name, old, 20)
    assert stale.reason == "STALE_SEQUENCER"
    assert await other.report(name, new, 14) == []


async def test_rule8_nothing_of_a_stream_counts_behind_what_another_shard_was_to_hear(deployment: Deployment) -> None:
    """The range goes down in a report that comes while another shard serves it; the next one on the stream says nothing of that."""
    one, other = await two(deployment)
    name = min(held(other))
    grant = await other.shard.owners.claim(name, ClaimRequest([b"", b"m", b""], request_id=b"two ranges".ljust(16)))
    barred: set[str] = set()

    def report(number: int, *hours: int, handles: list[int] | None = None) -> asyncio.Future[list[tuple[str, Refused]]]:
        values = np.array([hour * HOUR for hour in hours], dtype=np.int64)
        chosen = None if handles is None else np.array(handles, dtype=np.uint32)
        report = GroupReport(grant.sequencer, values, handles=chosen)
        return one.shard.owners.report([(name, report)], sender=b"t" * 16, number=(1, number), barred=barred)

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


async def test_a_refused_adopt_changes_nothing(deployment: Deployment) -> None:
    one = await deployment.start("one:1")
    await one.shard.graph.register(Spec("a"))
    await one.shard.graph.register(Spec("reader", ("a",)))
    grant = await one.shard.owners.claim("a", ClaimRequest([b"", b""], identity="x", request_id=b"1".ljust(16)))
    await one.report("a", grant, 14)
    far = np.array([2**62], dtype=np.int64)
    bad = ClaimRequest([b"", b""], identity="y", request_id=b"2".ljust(16), bound_micros=far)
    with pytest.raises(errors.TooFarAhead):
        await one.shard.owners.claim("a", bad, adopt=True)
    assert {one.shard.topology.get(name).incarnation for name in ("a", "reader")} == {1}
    assert one.low("a") == 14


async def test_c7b_a_heal_yields_to_whom_a_newer_view_has_chosen(deployment: Deployment) -> None:
    one, other = await two(deployment)
    name = min(held(one))
    first = deployment.disk.owners[name]
    await one.shard.confirmation.rise(name, 2)
    await one.report(name, await one.claim(name), 11)
    deployment.disk.owners[name], deployment.disk.logs[name] = first, StoredLog()  # a fail-over
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    await other.beat()
    if name not in other.shard.served:
        assert await other.shard.takeover.serve(name)
    grant = await other.claim(name)
    await other.report(name, grant, 15)
    await one.hear()
    await one.shard.confirmation.confirm()
    await other.shard.confirmation.confirm()
    assert deployment.owner(name) is other
    assert await other.report(name, grant, 16) == []


async def test_a_renewal_that_is_repeated_takes_nothing_back_from_the_next_owner(deployment: Deployment) -> None:
    one, other = await two(deployment)
    name = min(held(one))
    one.faults.ends["take"], one.faults.held["take"] = [Outcome.LOST], asyncio.Event()
    renewed = asyncio.create_task(one.shard.confirmation.rise(name, 2))
    await turns()
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    await other.beat()
    assert await other.shard.takeover.serve(name)
    grant = await other.claim(name)
    await one.hear()
    one.faults.let("take")
    await asyncio.wait([renewed])
    assert await other.report(name, grant, 16) == []
    assert deployment.owner(name) is other


async def test_a_store_that_went_on_without_this_owner_is_let_go(deployment: Deployment) -> None:
    """The store forgot who took over, and the owner before, who never heard of it, has appended since."""
    one, other = await two(deployment)
    name = min(held(other))
    grant = await other.claim(name)
    await deployment.settle(one, seconds=2.1)
    while deployment.disk.owners[name].address != "other:1":
        deployment.disk.lose(1)
    await other.report(name, grant, 12)
    await other.report(name, grant, 13)
    one.faults.ends["append"] = [Outcome.FAILED]
    with pytest.raises(errors.LowwaterError):
        await one.report(name, grant, 12)
    assert not one.rounds.done()
    assert name not in held(one)
    assert other.low(name) == 13


async def test_c5c_a_graph_whose_reading_failed_is_read_again(deployment: Deployment) -> None:
    one, other = await two(deployment)
    name = min(held(one))
    await one.shard.graph.register(Spec("forgotten"))
    last = deployment.disk.logs[GRAPH].last
    while deployment.disk.logs[GRAPH].last == last:  # a fail-over forgets it, and all behind it
        deployment.disk.lose(1)
    await other.shard.graph.reset(name)
    await other.shard.graph.register(Spec("kept"))
    one.faults.ends["append"] = [Outcome.FAILED]
    with pytest.raises(errors.LowwaterError):
        await one.shard.confirmation.confirm()
    await one.shard.confirmation.confirm([name])
    assert one.shown(name)[0] == 2
    await one.shard.graph.register(Spec("later"))
    third = await deployment.start("third:1")
    assert third.shard.topology.computations.keys() >= {"forgotten", "kept", "later"}


LATEST = TOGETHER_SECONDS + 2.0
"""Seconds after which an answer is too late, with as much time for the answer itself as a busy machine may need."""


class Taking(NamedTuple):
    one: One
    address: str
    hanging: set[str]
    """The computations that the shard cannot read for now."""
    whole: asyncio.Event
    """Set when it can."""


@pytest.fixture(params=[1, 3])
async def taking(deployment: Deployment, request: pytest.FixtureRequest) -> AsyncIterator[Taking]:
    one, other = await two(deployment)
    await other.stop()
    hanging = set(sorted(held(other))[: request.param])
    one.faults.late = dict.fromkeys(hanging, whole := asyncio.Event())
    for _ in range(8):
        deployment.clock.now += 0.3
        await one.hear()
        await one.cluster.look_after()
        await turns()
    assert held(one) == set(NAMES) - hanging
    async with reached(one) as address:
        yield Taking(one, address, hanging, whole)
        whole.set()


async def test_the_others_are_read_in_time(taking: Taking) -> None:
    request = watermarks_pb2.GetWatermarksRequest(computations=NAMES)
    async with grpc.aio.insecure_channel(taking.address) as channel:
        got = await Stubs(channel).watermarks.GetWatermarks(request, timeout=LATEST)
    assert {watermark.computation for watermark in got.watermarks} == set(NAMES) - taking.hanging
    assert {redirect.computation for redirect in got.redirects} == taking.hanging


BEAT = DEAD_AFTER / 5


async def test_what_it_served_is_taken_a_beat_and_a_half_after_it_was_heard_last(deployment: Deployment) -> None:
    one, other = await two(deployment)
    await other.stop()
    deployment.looks_dead.add("other:1")
    await deployment.settle(one, seconds=BEAT)
    assert held(one) != set(NAMES)
    assert one.cluster.next_beat == pytest.approx(BEAT / 2, abs=0.01), "just when it may be left out"
    deployment.clock.now += one.cluster.next_beat
    await one.beat()
    assert held(one) == set(NAMES)


async def test_one_that_looked_dead_and_was_heard_since_has_the_patience_of_any_other(deployment: Deployment) -> None:
    """A firewall that refuses what is new to a shard that lives does so for ever, and that shard may be late one day."""
    one, other = await two(deployment)
    before = held(one), held(other)
    deployment.looks_dead.add("other:1")
    await deployment.settle(one, other, seconds=3 * BEAT)
    await deployment.settle(one, seconds=4 * BEAT)
    assert (held(one), held(other)) == before
    await one.cluster.settle([min(held(other))], 60.0)  # and no question waits
    await deployment.settle(one, seconds=2 * BEAT)
    assert held(one) == set(NAMES)


async def test_who_has_lost_beats_heals_nothing_too_soon(deployment: Deployment) -> None:
    """A shard that lost beats may have been replaced sooner; so its memory counts for less sooner, too."""
    one, _ = await two(deployment)
    await deployment.settle(one, seconds=10 * BEAT)
    assert one.cluster.may_heal()
    deployment.clock.now += 2 * BEAT
    await one.beat()
    assert not one.cluster.may_heal()


async def test_a_question_waits_until_it_is_known_who_is_next(deployment: Deployment) -> None:
    one, other = await two(deployment)
    name = min(held(other))
    await other.stop()
    deployment.looks_dead.add("other:1")
    asking = asyncio.create_task(one.cluster.settle([name], 60.0))
    await deployment.settle(one, seconds=BEAT)
    await turns()
    assert not asking.done()
    await deployment.settle(one, seconds=BEAT)
    await asking
    assert (await one.cluster.locate([name]))[name].address == "one:1"


async def test_a_question_waits_no_longer_for_a_store_that_hangs(deployment: Deployment) -> None:
    one, other = await two(deployment)
    deployment.looks_dead.add("other:1")
    one.faults.held["owners"] = asyncio.Event()
    await one.cluster.settle([min(held(other))], 0.001)
    one.faults.held["owners"].set()


async def test_rule3_who_leaves_hands_over_before_it_ends_and_moves_nothing_else(deployment: Deployment) -> None:
    one, other = await two(deployment)
    names, grant = held(other), await other.claim(name := min(held(other)))
    await other.report(name, grant, 14)
    before = {name: deployment.disk.owners[name].epoch for name in NAMES}
    leaving = asyncio.create_task(other.cluster.leave())
    async with asyncio.timeout(30):
        while not leaving.done():  # no time passes by the deployment's clock, so that nobody is taken for dead
            await one.beat()
            await turns()
    assert (held(one), held(other), one.low(name)) == (set(NAMES), set(), 14)
    assert {name for name in NAMES if deployment.disk.owners[name].epoch > before[name]} == names
    assert await one.report(name, grant, 15) == []


async def test_a_process_that_leaves_before_it_has_joined_serves_nothing(deployment: Deployment) -> None:
    one = One(deployment, "one:1")
    await one.cluster.leave()
    await one.start()
    await one.stop()
    assert deployment.members.view.members == ()


async def test_a_view_older_than_the_own_is_ignored(deployment: Deployment) -> None:
    one, _ = await two(deployment)
    view = one.cluster.view
    deployment.members.lose()
    assert deployment.members.view.version < view.version
    assert (await one.cluster.look())[0] == one.cluster.view == view


async def test_the_view_after_one_that_the_store_lost_is_newer_and_leaves_no_member_out(deployment: Deployment) -> None:
    one, other = await two(deployment)
    joined = one.cluster.view
    lost = await one.cluster.change(lambda view: view.pinned("c0", "other:1"))
    deployment.members.lose()
    assert (await one.cluster.look())[0] == lost
    assert (await one.cluster.change(lambda view: view.pinned("c1", "other:1"))).version > lost.version
    deployment.members.lose()
    deployment.clock.now += 0.1
    # The other one never read the lost views; its version must not be one of theirs.
    changed = await other.cluster.change(lambda view: view.pinned("c2", "one:1"))
    assert changed.version > lost.version + 1
    deployment.members.lose(2)
    assert deployment.members.view.version < joined.version
    deployment.clock.now += 0.1
    await one.hear()
    assert deployment.members.view.members == joined.members
    assert deployment.members.view.version > changed.version
    await other.hear()
    assert one.cluster.view == other.cluster.view == deployment.members.view


async def test_of_two_at_one_address_the_one_that_joined_first_ends(deployment: Deployment) -> None:
    older = await deployment.start("one:1")
    newer = await deployment.start("one:1")
    await older.hear()
    # The newer one is silent for too long, and the older one takes the address back.
    await deployment.settle(older, seconds=2.1)
    assert older.cluster.view.member(older.cluster.me.id) is not None
    await newer.hear()
    assert newer.cluster.view.member(newer.cluster.me.id) is not None
    await older.hear()
    deployment.clock.now += 0.1
    await newer.hear()
    with pytest.raises(Replaced, match="one:1 and has joined later"):
        await older.hear()


async def test_a_drain_lasts_while_its_shard_is_left_out_and_who_leaves_stays_out(deployment: Deployment) -> None:
    one, other = await two(deployment)
    await one.cluster.change(lambda view: view.draining("other:1", on=True))
    await other.hear()
    await deployment.settle(one, seconds=2.1)
    assert one.cluster.view.at("other:1") is None
    await other.hear()
    entry = other.cluster.view.at("other:1")
    assert entry is not None
    assert entry.draining
    other.cluster.stop()
    await one.cluster.change(lambda view: view.without([entry.id]))
    await other.hear()
    assert deployment.members.view.at("other:1") is None
