"""Shards over one journal in memory: who serves what, and what a shard does when it was replaced or its store has lost records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, NamedTuple, TypeVar

import grpc.aio
import numpy as np
import pytest

from lowwater import errors
from lowwater._core.call import Stubs
from lowwater._pb.lowwater.v1 import watermarks_pb2
from lowwater_authority.cluster.cluster import Replaced
from lowwater_authority.core.requests import ClaimRequest
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine import shard
from lowwater_authority.engine.shard import TOGETHER_SECONDS
from tests.kit.faults import Outcome
from tests.kit.shards import NAMES, Deployment, One, held, reached, turns, two


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


async def test_a_later_process_at_the_same_address_replaces_this_one(deployment: Deployment) -> None:
    one, _ = await two(deployment)
    again = await deployment.start("one:1")
    await deployment.settle(one)  # it may be a process that was here before, and dead
    await deployment.settle(again)
    with pytest.raises(Replaced, match="advertise"):
        await deployment.settle(one)
    await deployment.settle(again)


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


T = TypeVar("T")


def alive(one: One) -> bool:
    """Whether a shard's rounds go on."""
    return not one.rounds.done()


async def test_a_refused_adopt_changes_nothing(deployment: Deployment) -> None:
    one = await deployment.start("one:1")
    await one.shard.register(Spec("a"))
    await one.shard.register(Spec("reader", ("a",)))
    grant = await one.shard.claim("a", ClaimRequest([b"", b""], identity="x", request_id=b"1".ljust(16)))
    await one.report("a", grant, 14)
    far = np.array([2**62], dtype=np.int64)
    bad = ClaimRequest([b"", b""], identity="y", request_id=b"2".ljust(16), bound_micros=far)
    with pytest.raises(errors.TooFarAhead):
        await one.shard.claim("a", bad, adopt=True)
    assert {one.shard.topology.get(name).incarnation for name in ("a", "reader")} == {1}
    assert one.low("a") == 14


async def fenced_while_it_heals(
    deployment: Deployment, one: One, other: One, name: str, change: Coroutine[Any, Any, T], *, heard: bool
) -> asyncio.Task[T]:
    """Begin a change of the graph that is written and lost again before this shard hears of it; its repeat finds the loss.

    ``heard``: another shard has read it in between, and puts it back. Anyhow that one takes the log by a newer view, so that what heals
    the log here is fenced. Returns the change, when that has happened.
    """
    before = deployment.disk.owners[name]
    await one.shard.rise(name, one.shard.epoch(name) + 5)
    one.faults.unknown("append", Outcome.WRITTEN)
    asked = asyncio.create_task(change)
    await turns()
    if heard:
        await other.shard.refresh()
    while deployment.disk.owners[name] != before:
        deployment.disk.lose(1)
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    await other.beat()
    await turns()
    owner = deployment.disk.owners[name]
    assert (owner.address, owner.epoch < one.shard.epoch(name)) == ("other:1", True), "which looks like a loss first"
    one.faults.let("append")
    return asked


@pytest.mark.parametrize("heard", [False, True])
async def test_a_claim_that_may_have_adopted_is_repeated_and_adopts_once(deployment: Deployment, heard: bool) -> None:
    one, other = await two(deployment)
    name, beside = sorted(held(one))[:2]
    grant = await one.claim(beside)
    await one.shard.claim(name, ClaimRequest([b"", b""], identity="before", request_id=b"before".ljust(16)))
    asked = ClaimRequest([b"", b""], identity="after", request_id=b"after".ljust(16))
    adopting = one.shard.claim(name, asked, adopt=True)
    adopted = await fenced_while_it_heals(deployment, one, other, name, adopting, heard=heard)
    with pytest.raises(errors.Unavailable, match="not known whether the write took effect"):
        await adopted
    again = await other.shard.claim(name, asked, adopt=True)  # as clients do by themselves
    assert other.shard.topology.get(name).incarnation == 2
    assert await other.report(name, again, 14) == []
    assert await one.report(beside, grant, 14) == []
    assert one.low(beside) == 14


async def test_a_store_that_went_on_without_this_owner_is_let_go(deployment: Deployment) -> None:
    """It forgot who took over, and the owner before, who never heard of it, has appended since."""
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
    assert alive(one)
    assert name not in held(one)
    assert other.low(name) == 13


LATEST = TOGETHER_SECONDS + 2.0
"""Seconds after which an answer is too late, with as much time for the answer itself as a busy machine may need."""


class Taking(NamedTuple):
    """A shard that is taking computations over, and where it is reached."""

    one: One
    address: str
    hanging: set[str]
    """What it cannot read for now."""
    whole: asyncio.Event
    """Set when it can."""


@pytest.fixture(params=[1, 3])
async def taking(deployment: Deployment, request: pytest.FixtureRequest) -> AsyncIterator[Taking]:
    """Another shard has died, and so many of its logs cannot be read for now."""
    one, other = await two(deployment)
    await other.stop()
    hanging = set(sorted(held(other))[: request.param])
    one.faults.late = dict.fromkeys(hanging, whole := asyncio.Event())
    for _ in range(8):
        deployment.clock.now += 0.3
        await one.hear()
        await one.cluster._look_after_what_is_held()
        await turns()
    assert held(one) == set(NAMES) - hanging
    async with reached(one) as address:
        yield Taking(one, address, hanging, whole)
        whole.set()


async def test_the_others_are_read_in_time(taking: Taking) -> None:
    asked = watermarks_pb2.GetWatermarksRequest(computations=NAMES)
    async with grpc.aio.insecure_channel(taking.address) as channel:
        got = await Stubs(channel).watermarks.GetWatermarks(asked, timeout=LATEST)
    assert {watermark.computation for watermark in got.watermarks} == set(NAMES) - taking.hanging
    assert {redirect.computation for redirect in got.redirects} == taking.hanging
