"""One computation's fault stays its own: the others of its round are written, answered and kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority.core import recovery
from lowwater_authority.core.requests import NO_FOLD, ClaimRequest, Grant, GroupReport, Prepare, TaskAttempt, TaskPart
from lowwater_authority.core.topology import Spec
from lowwater_authority.journal import MemoryJournal
from lowwater_authority.journal.faults import Outcome
from tests.unit.sharded_memory import HOUR, Deployment, One, held, ids, numbers, turns

NOTHING = np.zeros(0, dtype=np.int64)
TASK = TaskAttempt(0, 0, 0)


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    made = Deployment()
    yield made
    for one in made.shards:
        one.faults.held.clear()
        await one.stop()


async def serving(deployment: Deployment, *names: str) -> tuple[One, dict[str, Grant]]:
    """One shard that serves these computations, each claimed and at 11 hours."""
    one = await deployment.start("one:1")
    for name in names:
        await one.shard.register(Spec(name))
    grants = {name: await one.claim(name) for name in names}
    for name, grant in grants.items():
        assert await one.report(name, grant, 11) == []
    return one, grants


async def taken(deployment: Deployment, *names: str) -> None:
    """Another process takes computations, and their owner has not heard of it."""
    thief = MemoryJournal(deployment.disk, shared=True)
    await thief.open()
    for name in names:
        await thief.take(name, view=10**18)


def said(grants: dict[str, Grant], *names: str, hour: int = 12) -> list[tuple[str, GroupReport]]:
    return [(name, GroupReport(grants[name].sequencer, np.array([hour * HOUR]))) for name in names]


def report(one: One, grants: dict[str, Grant], *names: str, hour: int = 12) -> asyncio.Future[list[Any]]:
    """One report of several computations, from a sender of its own."""
    sender = next(ids).to_bytes(16)
    return one.shard.report(said(grants, *names, hour=hour), sender=sender, number=(1, next(numbers)))


async def in_one_round(one: One, *calls: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> list[Any]:
    """What calls end with that arrive while a round is on its way, so that the next has them all."""
    one.faults.held["append"] = asyncio.Event()
    first = asyncio.ensure_future(one.shard.register(Spec(f"fills-a-round-{next(ids)}")))
    await turns()
    tasks = [asyncio.ensure_future(call) for call in calls]
    await turns()
    one.faults.held.pop("append").set()
    await first
    return await asyncio.gather(*tasks, return_exceptions=True)


def refusals(answer: Any) -> list[tuple[str, str]]:
    return [(name, refused.reason) for name, refused in answer]


async def test_a_computation_that_another_shard_has_taken_leaves_the_round_and_the_others_stay(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"n{i}" for i in range(40)]
    one, grants = await serving(deployment, *names)
    reads: Counter[str] = Counter()
    load = one.shard.journal.load

    async def counted(log: str, **more: Any) -> Any:
        reads[log] += 1
        return await load(log, **more)

    monkeypatch.setattr(one.shard.journal, "load", counted)
    await taken(deployment, "n0", "n7")
    answers = await asyncio.gather(*(report(one, grants, name) for name in names))
    for name, answer in zip(names, answers, strict=True):
        assert refusals(answer) == ([(name, "MOVED")] if name in {"n0", "n7"} else [])
    assert not reads, "nothing is read again"
    assert held(one) == set(names) - {"n0", "n7"}
    assert {one.low(name) for name in held(one)} == {12}


async def test_a_neighbour_keeps_its_prepared_batch(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y")
    sequencer = grants["x"].sequencer
    part = TaskPart(np.array([0], dtype=np.uint32), np.array([12 * HOUR]), NOTHING, NOTHING, 5)
    one.shard.stage_task("x", sequencer, 0, TASK, part)
    assert one.shard.prepare("x", Prepare(sequencer, 0, b"d", [TASK], 12 * HOUR, True, NO_FOLD, 0, {})) == []
    await taken(deployment, "y")
    committed, answer = await in_one_round(one, one.shard.commit("x", sequencer, 0), report(one, grants, "y"))
    assert committed == []
    assert refusals(answer) == [("y", "MOVED")]
    assert one.low("x") == 12


async def test_nobody_waits_for_the_snapshot_of_another(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "big", "x", "y", "z")
    one.faults.held["snapshot"] = asyncio.Event()
    one.shard.held.logs.snapshot("big", lambda: recovery.snapshot(one.shard.held.computations["big"]))
    await taken(deployment, "y")
    assert refusals(await asyncio.wait_for(report(one, grants, "y"), 60)) == [("y", "MOVED")]
    one.faults.ends["append"] = [Outcome.FAILED]
    with pytest.raises(errors.JournalFailed):
        await asyncio.wait_for(report(one, grants, "big", "z"), 60)
    deployment.disk.lose(1)
    assert await asyncio.wait_for(report(one, grants, "x", "big", "z"), 60) == []
    assert {one.low(name) for name in ("x", "big", "z")} == {12}
    one.faults.held.pop("snapshot").set()
    await one.shard.held.logs.settle()
    assert await report(one, grants, "big", hour=13) == []


async def test_a_report_counts_for_those_that_are_still_here(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y")
    await taken(deployment, "y")
    barred: set[str] = set()
    reports = said(grants, "x", "y")
    answer = await one.shard.report(reports, sender=b"s" * 16, number=(2, 1), barred=barred)
    assert refusals(answer) == [("y", "MOVED")]
    assert barred == {"y"}, "what follows on the stream says only what has changed since"
    assert one.low("x") == 12


async def test_a_claim_is_granted_beside_one_of_a_computation_that_is_gone(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y")
    lost: list[str] = []
    one.shard.on_fenced = lambda fenced: lost.append(fenced.computation)
    await taken(deployment, "y")
    granted, moved = await in_one_round(one, one.claim("x"), one.claim("y"))
    assert granted.sequencer > grants["x"].sequencer
    assert isinstance(moved, errors.Moved)
    assert lost == ["x"], "the owner of y has lost nothing by this claim"
    assert await report(one, {"x": granted}, "x") == []


async def test_what_changes_nothing_is_answered_beside_a_computation_that_is_gone(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y")
    stale = {name: Grant(grant.sequencer + 7, grant.watermarks, 0) for name, grant in grants.items()}
    await taken(deployment, "y")
    answers = await in_one_round(one, report(one, stale, "x"), report(one, stale, "y"))
    assert [refusals(answer) for answer in answers] == [[("x", "STALE_SEQUENCER")], [("y", "MOVED")]]


async def test_an_append_of_unknown_outcome_is_told_as_such_to_the_one_that_is_gone(deployment: Deployment) -> None:
    """It is written, nobody hears of it, and another process takes one of its computations before it is tried again."""
    one, grants = await serving(deployment, "x", "y")
    one.faults.ends["append"] = [Outcome.WRITTEN]
    retiring = asyncio.ensure_future(one.shard.retire("y", b"", b"", force=True))
    reporting = report(one, grants, "x")
    await turns()
    assert not retiring.done()
    assert not reporting.done()
    last = deployment.disk.logs["x"].last
    await taken(deployment, "y")
    assert await reporting == []
    with pytest.raises(errors.Unavailable, match="not known"):
        await retiring
    assert deployment.disk.logs["x"].last == last, "it was written once"
    assert one.low("x") == 12
    assert await report(one, grants, "x", hour=13) == []


async def test_a_heal_that_yields_one_computation_puts_the_others_back(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y", "z")
    owners = dict(deployment.disk.owners)
    for name in ("x", "y"):
        await one.shard.rise(name, 5)
    newer = one.shard.held.view + 1
    deployment.disk.owners |= {"x": owners["x"], "y": owners["y"]._replace(epoch=4, view=newer, address="third:1")}
    answers = await in_one_round(one, *(report(one, grants, name) for name in ("x", "y", "z")))
    assert [refusals(answer) for answer in answers] == [[], [("y", "MOVED")], []]
    assert (one.low("x"), one.low("z")) == (12, 12)
    assert await report(one, grants, "x", "z", hour=13) == []


async def test_a_change_of_the_graph_is_one_with_what_it_changes(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y")
    await taken(deployment, "y")
    with pytest.raises(errors.Moved):
        await one.shard.set_inputs("y", ["x"])
    assert one.shard.topology.get("y").inputs == ()
    assert await report(one, grants, "x") == []
    adopting = ClaimRequest([b"", b""], identity="else", request_id=b"adopt".ljust(16))
    await taken(deployment, "x")
    with pytest.raises(errors.Moved):
        await one.shard.claim("x", adopting, adopt=True)
    assert one.shard.topology.get("x").incarnation == 1
