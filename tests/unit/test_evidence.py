"""A shard whose process seems to have died: what it served goes on sooner, and nobody who lives loses anything by it."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.shards import DEAD_AFTER, NAMES, Deployment, held, turns, two

BEAT = DEAD_AFTER / 5


async def test_what_it_served_is_taken_a_beat_and_a_half_after_it_was_heard_last(deployment: Deployment) -> None:
    one, other = await two(deployment)
    name = min(held(other))
    grant = await other.claim(name)
    assert await other.report(name, grant, 14) == []
    await other.stop()
    deployment.looks_dead.add("other:1")
    await deployment.settle(one, seconds=BEAT)
    assert held(one) != set(NAMES)
    assert one.cluster._next == pytest.approx(BEAT / 2, abs=0.01)  # just when it may be left out
    deployment.clock.now += one.cluster._next
    await one.beat()
    assert held(one) == set(NAMES)
    assert one.low(name) == 14
    assert await one.report(name, grant, 15) == []


async def test_rule4_a_shard_that_looks_dead_and_beats_keeps_all_it_has(deployment: Deployment) -> None:
    one, other = await two(deployment)
    before = held(one), held(other)
    deployment.looks_dead |= {"one:1", "other:1"}
    await deployment.settle(one, other, seconds=20 * BEAT)
    assert (held(one), held(other)) == before


async def test_one_that_looked_dead_and_was_heard_of_since_has_the_patience_of_any_other(
    deployment: Deployment,
) -> None:
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


async def test_nobody_is_taken_over_for_what_the_store_did(deployment: Deployment) -> None:
    one, other = await two(deployment)
    before = held(one), held(other)
    deployment.looks_dead |= {"one:1", "other:1"}
    deployment.clock.now += 10 * BEAT  # nobody was heard of, since the store was away
    await one.beat()
    assert (held(one), held(other)) == before
    await deployment.settle(other, one, seconds=4 * BEAT)
    assert (held(one), held(other)) == before


async def test_who_has_lost_beats_heals_nothing_too_soon(deployment: Deployment) -> None:
    """By evidence it may have been replaced sooner; so its memory counts for less sooner, too."""
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


async def test_a_question_waits_no_longer_than_it_may(deployment: Deployment) -> None:
    one, other = await two(deployment)
    await other.stop()
    deployment.looks_dead.add("other:1")
    await one.cluster.settle([min(held(other))], 0.001)


async def test_a_question_waits_no_longer_for_a_store_that_hangs(deployment: Deployment) -> None:
    one, other = await two(deployment)
    deployment.looks_dead.add("other:1")
    one.faults.held["owners"] = asyncio.Event()
    await one.cluster.settle([min(held(other))], 0.001)
    one.faults.held["owners"].set()
