"""Executions in which shards led, lost what they had acknowledged, or stuck: one test each, over one journal in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority.core.requests import ClaimRequest
from lowwater_authority.core.topology import Spec
from lowwater_authority.journal import GRAPH
from tests.kit.faults import Outcome
from tests.kit.shards import Deployment, One, held, turns, two

T = TypeVar("T")


def alive(one: One) -> bool:
    """Whether a shard's rounds go on."""
    return not one.rounds.done()


def lose_graph(deployment: Deployment) -> None:
    """A fail-over forgets the newest record of the graph, and all that came behind it."""
    last = deployment.disk.logs[GRAPH].last
    while deployment.disk.logs[GRAPH].last == last:
        deployment.disk.lose(1)


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


async def test_c5c_a_graph_whose_reading_failed_is_read_again(deployment: Deployment) -> None:
    one, other = await two(deployment)
    name = min(held(one))
    await one.report(name, await one.claim(name), 14)
    await one.shard.register(Spec("forgotten"))
    lose_graph(deployment)
    await other.shard.reset(name)
    await other.shard.register(Spec("kept"))
    one.faults.ends["append"] = [Outcome.FAILED]
    with pytest.raises(errors.LowwaterError):
        await one.shard.confirm()
    await one.shard.confirm([name])
    view = one.shard.view(name)
    assert view is not None
    assert view.incarnation == 2
    await one.shard.register(Spec("later"))
    third = await deployment.start("third:1")
    assert third.shard.topology.computations.keys() >= {"forgotten", "kept", "later"}


async def test_an_own_heal_of_unknown_outcome_fences_nobody(deployment: Deployment) -> None:
    one = await deployment.start("one:1")
    await one.shard.register(Spec("a"))
    grant = await one.claim("a")
    await one.report("a", grant, 12)
    deployment.disk.lose(1)
    one.faults.unknown("restore", Outcome.WRITTEN)
    reporting = asyncio.ensure_future(one.report("a", grant, 13))
    await turns()
    assert deployment.disk.owners["a"].epoch > one.shard.epoch("a")
    with pytest.raises(errors.Unavailable, match="put back"):
        await one.shard.confirm(["a"])
    assert "a" in held(one)
    one.faults.let("restore")
    assert await reporting == []
    assert one.low("a") == 13
