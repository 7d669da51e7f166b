"""Executions in which shards led, lost what they had acknowledged, or stuck: one test each, over one journal in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority.core.requests import NO_FOLD, ClaimRequest, Fold, Grant, GroupReport, Refused
from lowwater_authority.core.topology import Spec
from lowwater_authority.journal import GRAPH, JournalFailed
from tests.kit.faults import Outcome
from tests.kit.memory_journal import StoredLog
from tests.kit.shards import NAMES, Deployment, One, held, numbers, turns, two
from tests.kit.times import HOUR

T = TypeVar("T")


def alive(one: One) -> bool:
    """Whether a shard's rounds go on."""
    return not one.rounds.done()


def lose_graph(deployment: Deployment) -> None:
    """A fail-over forgets the newest record of the graph, and all that came behind it."""
    last = deployment.disk.logs[GRAPH].last
    while deployment.disk.logs[GRAPH].last == last:
        deployment.disk.lose(1)


class Stream:
    """A report stream over two ranges, whose reports follow each other."""

    def __init__(self, one: One, name: str, grant: Grant) -> None:
        self._one, self._name, self._grant = one, name, grant
        self._last: asyncio.Future[list[tuple[str, Refused]]] | None = None

    def say(self, *hours: int, handles: list[int] | None = None) -> asyncio.Future[list[tuple[str, Refused]]]:
        """Report, with only what changed when handles are given."""
        values = np.array([hour * HOUR for hour in hours], dtype=np.int64)
        chosen = None if handles is None else np.array(handles, dtype=np.uint32)
        said = GroupReport(self._grant.sequencer, values, handles=chosen)
        self._last = self._one.shard.report(
            [(self._name, said)], sender=b"stream".ljust(16), number=(1, next(numbers)), after=self._last
        )
        return self._last


async def two_ranges(one: One, name: str) -> Grant:
    return await one.shard.claim(name, ClaimRequest([b"", b"m", b""], request_id=b"two".ljust(16)))


async def test_rule8_the_third_report_behind_one_that_failed_does_not_count(deployment: Deployment) -> None:
    """A lowering fails with its round, and two more reports of its stream wait already."""
    one, _ = await two(deployment)
    y = min(held(one))
    stream = Stream(one, y, await two_ranges(one, y))
    await stream.say(14, 10)
    one.faults.held["append"] = asyncio.Event()
    one.faults.ends["append"] = [Outcome.FAILED]
    waiting = [stream.say(11, handles=[0])]
    await turns()
    waiting += [stream.say(10, handles=[1]), stream.say(14, handles=[1])]
    one.faults.held.pop("append").set()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(error, Exception) for error in ended)
    assert one.low(y) <= 11


async def test_rule8_a_lowering_counts_beside_a_computation_that_went_away(deployment: Deployment) -> None:
    """Scale-out takes x away; a lowering of y is in the same round, and two more reports of its stream wait already."""
    one, other = await two(deployment)
    x, y = sorted(held(one))[:2]
    moved = await one.claim(x)
    stream = Stream(one, y, await two_ranges(one, y))
    await stream.say(14, 10)
    await other.cluster.change(lambda view: view.pinned(x, "other:1"))
    await other.beat()
    one.faults.held["append"] = asyncio.Event()
    gone = asyncio.ensure_future(one.report(x, moved, 15))
    await asyncio.sleep(0)
    waiting = [stream.say(11, handles=[0])]
    await asyncio.sleep(0)
    waiting += [stream.say(10, handles=[1]), stream.say(14, handles=[1])]
    one.faults.held.pop("append").set()
    [(_, refused)] = await gone
    assert refused.reason == "MOVED"
    assert await asyncio.gather(*waiting) == [[], [], []]
    assert one.low(y) == 11


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


async def test_a_forced_retire_of_unknown_outcome_is_not_done_twice(deployment: Deployment) -> None:
    """It is written, nobody hears of it, another shard takes over with it, and an owner claims there in between."""
    one, other = await two(deployment)
    name = min(held(one))
    one.faults.unknown("append", Outcome.WRITTEN)
    retiring = asyncio.ensure_future(one.shard.retire(name, b"", b"", force=True))
    await turns()
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    await other.beat()
    grant = await other.claim(name)
    one.faults.let("append")
    with pytest.raises(errors.Unavailable, match="not known"):
        await retiring
    assert await other.report(name, grant, 14) == []


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
async def test_inputs_that_may_be_changed_are_not_changed_once_more_in_silence(
    deployment: Deployment, heard: bool
) -> None:
    """Else the client is sent on, asks the new owner for the same, and so revokes what was claimed there since."""
    one, other = await two(deployment)
    name, beside, new = sorted(held(one))[:3]
    grant = await one.claim(beside)
    changing = one.shard.set_inputs(name, [new])
    asked = await fenced_while_it_heals(deployment, one, other, name, changing, heard=heard)
    claimed = await other.claim(name)
    with pytest.raises(errors.Unavailable, match="not known whether the write took effect"):
        await asked
    assert alive(one)
    assert name not in held(one)
    assert other.shard.topology.get(name).inputs == ((new,) if heard else ())
    assert await one.report(beside, grant, 14) == []
    assert one.low(beside) == 14
    fold = Fold(2, (1,)) if heard else NO_FOLD
    assert await other.report(name, claimed, 14, fold) == [], "it keeps its claim"
    if not heard:  # who looks sees that, and repeats it
        with pytest.raises(errors.WouldRegress):
            await other.shard.set_inputs(name, [new])
        assert await one.report(new, await one.claim(new), 15) == []
        await other.shard.set_inputs(name, [new])
    changed = other.shard.topology.get(name)
    assert (changed.inputs, changed.input_version) == ((new,), 2)
    assert await one.report(beside, grant, 16) == []


@pytest.mark.parametrize("heard", [False, True])
async def test_a_drop_that_may_have_happened_is_told_so_and_repeated(deployment: Deployment, heard: bool) -> None:
    one, other = await two(deployment)
    name, beside = sorted(held(one))[:2]
    grant = await one.claim(beside)
    await one.claim(name)
    dropping = one.shard.drop(name, force=True)
    asked = await fenced_while_it_heals(deployment, one, other, name, dropping, heard=heard)
    with pytest.raises(errors.Unavailable, match="not known whether the write took effect"):
        await asked
    if heard:
        with pytest.raises(errors.UnknownComputation):
            await other.shard.drop(name, force=True)
    else:
        await other.shard.drop(name, force=True)
    assert name not in held(one) | held(other)
    assert (await other.shard.register(Spec(name))).incarnation == 2
    assert await one.report(beside, grant, 14) == []
    assert one.low(beside) == 14


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


async def test_c7b_a_heal_yields_to_whom_a_newer_view_has_chosen(deployment: Deployment) -> None:
    one, other = await two(deployment)
    name = min(held(one))
    first = deployment.disk.owners[name]
    await one.shard.rise(name, 2)
    await one.report(name, await one.claim(name), 11)
    deployment.disk.owners[name], deployment.disk.logs[name] = first, StoredLog()  # a fail-over
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    await other.beat()
    if not other.shard.serves(name):
        assert await other.shard.serve(name)
    grant = await other.claim(name)
    await other.report(name, grant, 15)
    await one.hear()
    await one.shard.confirm()
    await other.shard.confirm()
    assert deployment.owner(name) is other
    assert await other.report(name, grant, 16) == []


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


async def test_what_a_heal_has_written_is_not_taken_back_for_an_unchanged_neighbour(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has lost a record of both. The heal puts both back, with what was staged, and the store goes away: nothing is left to ask it."""
    one, _ = await two(deployment)
    changed, unchanged = sorted(held(one))[:2]
    grants = {name: await one.claim(name) for name in (changed, unchanged)}
    for name, grant in grants.items():
        await one.report(name, grant, 13)
    deployment.disk.lose(2)
    restore, confirm, written = one.journal.restore, one.journal.confirm, list[str]()

    async def restored(log: str, *more: Any, **options: Any) -> Any:
        written.append(log)
        return await restore(log, *more, **options)

    async def away(logs: Any) -> int:
        if len(written) == len(grants):
            raise JournalFailed("it is away")
        return await confirm(logs)

    monkeypatch.setattr(one.journal, "restore", restored)
    monkeypatch.setattr(one.journal, "confirm", away)
    reports = [
        (name, GroupReport(grants[name].sequencer, np.array([hour * HOUR])))
        for name, hour in ((changed, 14), (unchanged, 13))
    ]
    assert await one.shard.report(reports, sender=b"s" * 16, number=(1, next(numbers))) == []
    assert sorted(written) == [changed, unchanged]
    assert (one.low(changed), one.low(unchanged)) == (14, 13)


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


async def test_a_computation_that_comes_back_while_another_is_healed_gets_nothing_from_before(
    deployment: Deployment,
) -> None:
    one, other = await two(deployment)
    x, y = sorted(held(one))[:2]
    grants = {x: await one.claim(x), y: await one.claim(y)}
    for name, grant in grants.items():
        await one.report(name, grant, 10)
    deployment.disk.lose(1)  # the tail of y
    one.faults.held["restore"] = asyncio.Event()
    said = [(name, GroupReport(grant.sequencer, np.array([11 * HOUR]))) for name, grant in grants.items()]
    reporting = one.shard.report(said, sender=b"both".ljust(16), number=(1, next(numbers)))
    await turns()
    await other.cluster.change(lambda view: view.pinned(x, "other:1"))
    await other.beat()
    assert x in held(other)
    await one.shard.confirm([x])
    assert x not in held(one)
    await other.cluster.change(lambda view: view.pinned(x, "one:1"))
    await one.hear()
    back = asyncio.ensure_future(one.shard.serve(x))
    await turns()
    one.faults.held.pop("restore").set()
    [(refused, why)] = await reporting
    assert (refused, why.reason) == (x, "MOVED")
    assert await back
    assert alive(one)
    assert (one.low(x), one.low(y)) == (10, 11)
    assert await one.report(x, grants[x], 12) == []


async def test_a_take_whose_reading_failed_is_taken_again(deployment: Deployment) -> None:
    one, other = await two(deployment)
    await other.stop()
    one.faults.unreadable.add("load")
    await deployment.settle(one, seconds=2.4)
    one.faults.unreadable.clear()
    lost = min(set(NAMES) - held(one))
    owner = deployment.disk.owners[lost]
    # A fail-over forgets the take.
    deployment.disk.owners[lost] = owner._replace(epoch=1, nonce=5, address="other:1", view=0)
    await deployment.settle(one, seconds=6)
    assert held(one) == set(NAMES)
