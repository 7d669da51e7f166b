"""One computation's fault stays its own: the others of its round are written, answered and kept."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority.cluster.membership import View
from lowwater_authority.cluster.untaken import LOOK_SECONDS
from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.requests import ClaimRequest, Grant, GroupReport, TaskAttempt, TaskPart
from lowwater_authority.core.tasks import TaskGroup
from lowwater_authority.core.times import MIN
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.admission import Gate
from lowwater_authority.engine.holding import NOBODY, Holding, Taken, epoch_base, resumed
from lowwater_authority.engine.holdings import Holdings
from lowwater_authority.engine.logs import SNAPSHOT_AGAIN, Log
from lowwater_authority.engine.observer import Observer
from lowwater_authority.engine.settings import ShardSettings
from lowwater_authority.engine.task_master import TaskMaster
from lowwater_authority.journal import JournalFailed, JournalReplaced, LoadedLog, Ownership
from lowwater_authority.journal.frames import decode, encode
from tests.kit.faults import Outcome
from tests.kit.memory_journal import MemoryDisk, MemoryJournal, StoredLog
from tests.kit.releases import newer_release
from tests.kit.shards import Deployment, One, held, ids, numbers, turns, two
from tests.kit.times import HOUR, SECOND

NOTHING = np.zeros(0, dtype=np.int64)
TASK = TaskAttempt(0, 0, 0)


async def serving(
    deployment: Deployment, *names: str, settings: ShardSettings | None = None
) -> tuple[One, dict[str, Grant]]:
    """One shard that serves these computations, each claimed and at 11 hours."""
    one = await deployment.start("one:1", settings)
    for name in names:
        await one.shard.graph.register(Spec(name))
    grants = {name: await one.claim(name) for name in names}
    for name, grant in grants.items():
        assert await one.report(name, grant, 11) == []
    return one, grants


async def taken_over(deployment: Deployment, *names: str) -> None:
    """Another process takes computations, and their owner has not heard of it."""
    thief = MemoryJournal(deployment.disk, shared=True)
    await thief.open()
    for name in names:
        await thief.take(name, view=10**18)


def reports(grants: dict[str, Grant], *names: str, hour: int = 12) -> list[tuple[str, GroupReport]]:
    return [(name, GroupReport(grants[name].sequencer, np.array([hour * HOUR]))) for name in names]


def report(one: One, grants: dict[str, Grant], *names: str, hour: int = 12) -> asyncio.Future[list[Any]]:
    """One report of several computations, from a sender of its own."""
    sender = next(ids).to_bytes(16)
    return one.shard.owners.report(reports(grants, *names, hour=hour), sender=sender, number=(1, next(numbers)))


async def in_one_round(one: One, *calls: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> list[Any]:
    """Return the results of calls that arrive while a round is on its way, so that the next has them all."""
    one.faults.held["append"] = asyncio.Event()
    first = asyncio.ensure_future(one.shard.graph.register(Spec(f"fills-a-round-{next(ids)}")))
    await turns()
    tasks = [asyncio.ensure_future(call) for call in calls]
    await turns()
    one.faults.held.pop("append").set()
    await first
    return await asyncio.gather(*tasks, return_exceptions=True)


def refusals(answer: Any) -> list[tuple[str, str]]:
    return [(name, refused.reason) for name, refused in answer]


async def test_one_in_doubt_since_it_was_asked_for_has_no_other_caller_refused(deployment: Deployment) -> None:
    """All who ask at a time share one check of the store, and wait for the one in front of it."""
    one, _ = await serving(deployment, "a", "b", "c")
    one.faults.held["confirm"] = asyncio.Event()
    in_front = asyncio.ensure_future(one.shard.confirmation.confirm(["c"]))
    await turns()
    a, b, everything = (asyncio.ensure_future(one.shard.confirmation.confirm(names)) for names in (["a"], ["b"], None))
    await turns()
    with one.shard.held.of("a")._renewing():
        one.faults.held.pop("confirm").set()
        with pytest.raises(errors.Unavailable, match="put back"):
            await a
        assert await in_front <= await b
        await everything
    await one.shard.confirmation.confirm(["a"])


async def test_a_computation_that_another_shard_took_leaves_the_round_alone(deployment: Deployment) -> None:
    names = [f"n{i}" for i in range(40)]
    one, grants = await serving(deployment, *names)
    one.journal.loads.clear()
    await taken_over(deployment, "n0", "n7")
    answers = await asyncio.gather(*(report(one, grants, name) for name in names))
    for name, answer in zip(names, answers, strict=True):
        assert refusals(answer) == ([(name, "MOVED")] if name in {"n0", "n7"} else [])
    assert not one.journal.loads, "nothing is read again"
    assert held(one) == set(names) - {"n0", "n7"}
    assert {one.low(name) for name in held(one)} == {12}


async def test_rule4_a_repeat_is_not_answered_by_who_was_replaced(deployment: Deployment) -> None:
    """A repeat changes nothing, so no append tells this process that another one has the log."""
    one, _ = await serving(deployment, "a")
    request = ClaimRequest([b"", b""], request_id=b"r" * 16)
    await one.shard.owners.claim("a", request)
    await taken_over(deployment, "a")
    with pytest.raises(errors.Moved):
        await one.shard.owners.claim("a", request)


async def test_a_change_of_the_graph_is_one_with_what_it_changes(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y")
    await taken_over(deployment, "y")
    with pytest.raises(errors.Moved):
        await one.shard.graph.set_inputs("y", ["x"])
    assert one.shard.topology.get("y").inputs == ()
    assert await report(one, grants, "x") == []
    adopting = ClaimRequest([b"", b""], identity="else", request_id=b"adopt".ljust(16))
    await taken_over(deployment, "x")
    with pytest.raises(errors.Moved):
        await one.shard.owners.claim("x", adopting, adopt=True)
    assert one.shard.topology.get("x").incarnation == 1


def damage(deployment: Deployment, name: str) -> None:
    deployment.disk.logs[name].damage()


async def kept_in_memory(deployment: Deployment, one: One, grants: dict[str, Grant], name: str) -> None:
    """The log of a computation is damaged, its append is refused, and so is what would write it again."""
    damage(deployment, name)
    one.faults.ends["append"] = [Outcome.FAILED]
    one.faults.held["restore"] = asyncio.Event()
    with pytest.raises(errors.Unavailable, match="look whether this took effect"):
        await report(one, grants, name)


async def written_again(one: One) -> None:
    one.faults.held.pop("restore").set()
    await asyncio.gather(*one.shard.held.mending())


async def test_nothing_is_kept_of_what_is_let_go_while_it_is_read_back(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y")
    damage(deployment, "x")
    one.faults.ends["append"] = [Outcome.FAILED]
    read, going_on, reading = one.faults.read, asyncio.Event(), asyncio.Event()

    async def slowly(name: str) -> None:
        if name == "load":
            reading.set()
            await going_on.wait()
        await read(name)

    one.faults.read = slowly  # type: ignore[method-assign]
    reporting = asyncio.ensure_future(report(one, grants, "x"))
    await reading.wait()
    epoch = one.shard.served.epoch("x")
    one.shard.served.lose({"x": (epoch, epoch + 1)})
    going_on.set()
    with pytest.raises(errors.JournalFailed, match="nothing was changed"):
        await reporting
    assert held(one) == {"y"}
    assert not one.shard.held.mending()
    assert await report(one, grants, "y") == []


async def test_nobody_waits_for_what_is_written_again(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y")
    await kept_in_memory(deployment, one, grants, "x")
    assert one.low("x") == 11, "what is published stays"
    with pytest.raises(errors.Unavailable, match="written again from memory"):
        await one.claim("x")
    with pytest.raises(errors.Unavailable, match="written again from memory"):
        await one.shard.reads.ranges("x", below=None, limit=1)
    part = TaskPart(np.zeros(0, dtype=np.uint32), NOTHING, NOTHING, NOTHING, 0)
    with pytest.raises(errors.Unavailable, match="written again from memory"):
        one.shard.owners.stage_task("x", grants["x"].sequencer, 0, TASK, part)
    barred: set[str] = set()
    answer = await one.shard.owners.report(
        reports(grants, "x", "y", hour=13), sender=b"s" * 16, number=(2, 1), barred=barred
    )
    assert refusals(answer) == [("x", "MOVED")]
    assert barred == {"x"}
    assert (one.low("x"), one.low("y")) == (11, 13)
    assert await one.shard.reads.look(sorted) == ["y"]
    assert one.shard.served.reference("x") == one.shard.served.reference("y")
    await one.claim("y")

    await written_again(one)
    assert one.low("x") == 12, "what its owner said, and was not sure of"
    assert await report(one, grants, "x", hour=13) == []
    other = await deployment.start("other:1")
    await other.cluster.change(lambda view: view.pinned("x", "other:1"))
    await deployment.settle(one, other)
    assert (deployment.owner("x"), other.low("x")) == (other, 13)


async def test_what_the_store_refuses_is_written_again_later(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y", settings=ShardSettings(write_again_seconds=(0.0, 0.0)))
    one.faults.ends["restore"] = [Outcome.FAILED, Outcome.LOST, Outcome.FAILED, Outcome.WRITTEN]
    await kept_in_memory(deployment, one, grants, "x")
    await written_again(one)
    assert not one.faults.ends["restore"]
    assert one.low("x") == 12
    assert await report(one, grants, "x", "y", hour=13) == []
    one.faults.ends["append"] = [Outcome.FAILED]
    with pytest.raises(errors.JournalFailed, match="nothing was changed"):
        await report(one, grants, "x", "y", hour=14)
    assert await report(one, grants, "x", "y", hour=14) == []


async def test_what_another_process_has_taken_is_not_written_again(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y")
    await kept_in_memory(deployment, one, grants, "x")
    await taken_over(deployment, "x")
    before = deployment.disk.logs["x"].copy()
    await written_again(one)
    assert held(one) == {"y"}
    assert deployment.disk.logs["x"] == before
    assert await report(one, grants, "y") == []


async def test_a_shard_that_ends_writes_what_it_alone_knows(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y")
    await kept_in_memory(deployment, one, grants, "x")
    one.shard.stop()
    await one.rounds
    one.faults.held.clear()
    one.ended = True
    await one.shard.close()
    other = await deployment.start("other:1")
    await deployment.settle(other, seconds=2.1)
    assert (other.low("x"), other.low("y")) == (12, 11)


@contextlib.contextmanager
def failing(method: str, name: str) -> Iterator[None]:
    """Make one request fail after it has changed a computation."""
    whole: Callable[..., Any] = getattr(Computation, method)

    def half(self: Computation, *arguments: Any, **more: Any) -> Any:
        done = whole(self, *arguments, **more)
        if self.spec.name == name:
            raise ZeroDivisionError
        return done

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Computation, method, half)
        yield


async def half_a_change(one: One, grants: dict[str, Grant], *names: str) -> None:
    """A request to the first name fails in the middle, in one round with reports of the others."""
    with failing("_take_values", names[0]):
        await in_one_round(one, *(report(one, grants, name) for name in reversed(names)))


async def test_memory_with_half_a_change_is_not_written(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y")
    damage(deployment, "x")
    with failing("_take_values", "x"), pytest.raises(errors.LowwaterError, match="error, nothing was changed"):
        await report(one, grants, "x")
    before = deployment.disk.logs["x"].copy()
    assert one.shard.held.is_torn("x")
    assert one.low("x") == 11
    with pytest.raises(errors.Unavailable):
        await one.claim("x")
    assert await report(one, grants, "y") == []
    await one.end()
    assert deployment.disk.logs["x"] == before


async def torn_in_a_store_that_lost_its_end(deployment: Deployment) -> tuple[One, dict[str, Grant], Callable[[], None]]:
    """Two computations of which the store has lost the newest record, one of them half changed; and what gives its record back."""
    one, grants = await serving(deployment, "x", "y", "z")
    short = {name: deployment.disk.logs[name].copy() for name in ("x", "y")}
    for name in grants:
        assert await report(one, grants, name) == []
    whole = deployment.disk.logs["x"]
    deployment.disk.logs |= short
    await half_a_change(one, {n: grants[n] for n in ("x", "y")}, "x", "y")
    return one, grants, lambda: deployment.disk.logs.update(x=whole)


async def test_rule2_half_a_change_is_not_written_by_a_heal(deployment: Deployment) -> None:
    one, grants, give_back = await torn_in_a_store_that_lost_its_end(deployment)
    stored = deployment.disk.logs["x"].copy()
    assert stored.last == 2, "the claim and the first report, as the store has it"
    assert await report(one, grants, "y", "z", hour=13) == []
    assert {name: one.low(name) for name in "xyz"} == {"x": 12, "y": 13, "z": 13}
    with pytest.raises(errors.Unavailable, match="a request to x failed half way"):
        await one.claim("x")
    with pytest.raises(errors.Unavailable, match="a request to x failed half way"):
        await one.shard.confirmation.confirm(["x"])
    await one.shard.confirmation.confirm()
    assert deployment.disk.logs["x"] == stored
    give_back()
    await asyncio.gather(*one.shard.held.mending())
    assert one.low("x") == 12
    assert await report(one, grants, "x", hour=14) == []


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when a heal writes whatever is in memory")
async def test_rule2_breaks_when_a_heal_writes_it_all(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Holding, "is_torn", lambda self: False)
    await test_rule2_half_a_change_is_not_written_by_a_heal(deployment)


async def test_half_a_change_ends_with_a_new_incarnation(deployment: Deployment) -> None:
    one, grants, _ = await torn_in_a_store_that_lost_its_end(deployment)
    await one.shard.graph.reset("x")
    await asyncio.gather(*one.shard.held.mending())
    assert one.low("x") == MIN
    grant = await one.claim("x")
    assert grant.sequencer > grants["x"].sequencer
    assert await report(one, {"x": grant, "y": grants["y"]}, "x", "y", hour=13) == []
    other = await deployment.start("other:1")
    await other.cluster.change(lambda view: view.pinned("x", "other:1"))
    await deployment.settle(one, other)
    assert (deployment.owner("x"), other.low("x")) == (other, 13)


async def test_what_is_read_back_is_not_called_unreadable(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "x", "y")
    subscription = one.shard.hub.subscribe(["x"])
    one.faults.unreadable.add("load")
    failing = asyncio.create_task(half_a_change(one, grants, "x", "y"))
    await turns()
    assert await subscription.take(0) == {"x": None}
    with pytest.raises(errors.Unavailable, match="x is read back from the store first: try again in a moment"):
        await one.shard.confirmation.confirm(["x"])
    one.faults.unreadable.clear()
    await failing
    assert await report(one, grants, "x", "y") == []


async def test_rule2_what_is_read_back_is_durable_before_it_is_shown(deployment: Deployment) -> None:
    """A record of unknown outcome may be in the cache of the store only, from where a fail-over takes it back."""
    one, grants = await serving(deployment, "x")
    one.faults.ends["append"] = [Outcome.ADRIFT, Outcome.FAILED]
    with pytest.raises(errors.Unavailable):
        await report(one, grants, "x")
    assert (one.low("x"), deployment.disk.unsynced) == (12, 0)


async def test_rule2_a_registration_writes_no_half_a_change(deployment: Deployment) -> None:
    one, grants = await serving(deployment, "y")
    await one.shard.graph.register(Spec("x"))
    await one.shard.owners.retire("x", b"\x80", b"", force=True)
    damage(deployment, "x")
    before = deployment.disk.logs["x"].copy()
    with failing("_fenced", "x"), pytest.raises(errors.LowwaterError, match="internal error"):
        await one.shard.owners.retire("x", b"\x00", b"\x40", force=True)
    assert one.shard.held.is_torn("x")
    with contextlib.suppress(errors.Unavailable):
        await one.shard.graph.register(Spec("x", estimated=True))
    assert deployment.disk.logs["x"] == before
    assert not one.shard.topology.get("x").estimated
    assert await report(one, grants, "y") == [], "its neighbour"


@pytest.mark.parametrize("torn", [False, True])
async def test_what_cannot_be_read_back_is_dropped_by_force(deployment: Deployment, torn: bool) -> None:
    one, grants = await serving(deployment, "x", "y")
    if torn:
        damage(deployment, "x")
        await half_a_change(one, grants, "x", "y")
    else:
        await kept_in_memory(deployment, one, grants, "x")
    with pytest.raises(errors.OwnedRanges, match="what is in memory is not written yet"):
        await one.shard.graph.drop("x", force=False)
    await one.shard.graph.drop("x", force=True)
    if not torn:
        await written_again(one)
    assert (await one.shard.graph.register(Spec("x"))).incarnation == 2
    assert (await one.claim("x")).sequencer > grants["x"].sequencer
    assert await report(one, grants, "y", hour=13) == []


async def test_what_a_heal_has_put_back_before_it_failed_is_not_called_unchanged(deployment: Deployment) -> None:
    """The store has lost the ends of two logs. The first is put back, with the claim that is staged in it; the second cannot be."""
    one, grants = await serving(deployment, "x", "y")
    deployment.disk.lose(2)
    one.faults.ends["restore"] = [Outcome.DONE, Outcome.FAILED]
    claim = ClaimRequest([b"", b""], request_id=b"once".ljust(16))
    one.faults.held["append"] = asyncio.Event()
    tasks = [asyncio.ensure_future(one.shard.owners.claim("x", claim)), asyncio.ensure_future(report(one, grants, "y"))]
    await turns()
    one.faults.held.pop("append").set()
    claimed, reported = await asyncio.gather(*tasks, return_exceptions=True)
    assert claim.request_id in one.shard.held.served["x"].computation.granted
    assert isinstance(claimed, errors.Unavailable), "it is granted: nobody may be told that nothing was changed"
    assert isinstance(reported, errors.Unavailable)
    assert refusals(await report(one, grants, "x")) == [("x", "STALE_SEQUENCER")]
    assert await report(one, grants, "y") == []


async def test_a_heal_that_a_reader_begins_shares_its_round_with_no_claim(deployment: Deployment) -> None:
    one, _ = await serving(deployment, "x")
    deployment.disk.lose(1)  # the report
    _, grant = await in_one_round(one, one.shard.confirmation.confirm(["x"]), one.claim("x"))
    assert isinstance(grant, Grant)
    await one.shard.held.recovered_in_pieces(one.shard.topology.get("x"), await one.shard.journal.load("x"))


async def test_what_a_heal_may_have_written_is_not_called_unchanged(deployment: Deployment) -> None:
    one, _ = await serving(deployment, "x")
    deployment.disk.lose(1)
    one.faults.ends["restore"] = [Outcome.WRITTEN, Outcome.FAILED]
    with pytest.raises(errors.Unavailable, match="not known whether the write took effect"):
        await one.claim("x")


async def test_a_drop_of_unknown_outcome_is_not_staged_again(deployment: Deployment) -> None:
    one, _ = await serving(deployment, "x")
    one.faults.unknown("append", Outcome.WRITTEN)
    dropping = asyncio.ensure_future(one.shard.graph.drop("x", force=True))
    await turns()
    await taken_over(deployment, "x")
    one.faults.let("append")
    with pytest.raises(errors.Unavailable, match="not known whether"):
        await dropping


async def test_callers_are_told_of_a_round_not_undone(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    one, grants = await serving(deployment, "x")

    async def fails(_: object) -> None:
        raise JournalReplaced(expected="this", actual="that")

    monkeypatch.setattr(one.shard.rounds, "_roll_back", fails)
    one.faults.ends["append"] = [Outcome.FAILED]
    with pytest.raises(errors.ShuttingDown):
        await report(one, grants, "x")
    with pytest.raises(JournalReplaced):
        await one.rounds
    deployment.shards.remove(one)


def none_yet() -> Holdings:
    """Return a shard's holdings in the beginning."""
    return Holdings(MemoryJournal(MemoryDisk(), shared=True), Observer(), lambda: True, ShardSettings())


@pytest.mark.parametrize("ownership", [NOBODY, Ownership(epoch=1, nonce=7)])
async def test_rule4_nothing_is_held_by_an_ownership_that_is_over(ownership: Ownership) -> None:
    among = none_yet()
    await among.journal.open()
    among.graph.topology = among.topology.register(Spec("x"))
    holding = among.of("x")
    with pytest.raises(JournalFailed, match="x was dropped while its log was taken"):
        holding.hold(Taken(ownership, LoadedLog(0, None, [])))
    recovered = await holding.own(lambda _: True)
    holding.disown(ownership)
    assert holding.hold(recovered) is holding.held
    assert holding.ownership == recovered.ownership
    assert holding.ownership.epoch


def test_a_snapshot_that_was_refused_is_tried_again_later() -> None:
    log = Log("x", 1000)
    assert not log.changed(0)
    log.behind = 1001
    assert (log.due(0), log.changed(0)) == (True, True)
    log.snapshot_refused(log.behind, 1000, now=0)
    assert not log.due(SNAPSHOT_AGAIN - 1)
    assert not log.changed(1)
    assert (log.due(SNAPSHOT_AGAIN), log.changed(SNAPSHOT_AGAIN)) == (True, True)
    log.snapshot_taken(7, log.behind, 10)
    assert (log.behind, log.snapshot_position, log.refused, log.due(SNAPSHOT_AGAIN)) == (0, 7, 0, False)


async def test_rule7_nothing_is_remembered_of_names_that_nobody_has_registered(deployment: Deployment) -> None:
    one = await deployment.start("one:1")
    for number in range(10):
        await one.shard.takeover.serve_those([f"nobody-{number}", "nor-me"])
    await turns()
    assert one.shard.held.find("nobody-0") is None
    assert one.shard.held.find("nor-me") is None


async def test_a_take_over_that_fails_is_tried_again_at_once_and_then_ever_less_often(deployment: Deployment) -> None:
    one, _ = await serving(deployment, "a")
    epoch = one.shard.served.epoch("a")
    one.shard.served.lose({"a": (epoch, epoch + 1)})
    one.faults.unreadable.add("load")

    async def looks(seconds: float = 0.0) -> bool:
        deployment.clock.now += seconds
        before = one.faults.reads
        with pytest.raises(errors.Unavailable, match="cannot be read"):
            await one.shard.takeover.take("a")
        return one.faults.reads > before

    assert [await looks() for _ in range(3)] == [True, True, False]
    tried = [step for step in range(100) if await looks(0.1)]
    assert max(b - a for a, b in pairwise(tried)) in (20, 21), "two seconds are the longest rest"
    assert [await looks(8.0), await looks(), await looks()] == [True, True, False], "what was long ago does not count"


def flip_a_bit(log: str, stored: StoredLog) -> None:
    """A byte on the disk is wrong."""
    stored.damage()


def write_as_a_newer_release(log: str, stored: StoredLog) -> None:
    """A record has a format that is yet to come."""
    _, _, payload = decode(log, place := stored.last - 1, stored.records[place])
    with newer_release():
        stored.records[place] = encode(log, place, payload, writer=decode(log, place, stored.records[place]).writer)


def write_what_does_not_follow(log: str, stored: StoredLog) -> None:
    """A record is whole, and makes no sense."""
    place = stored.last - 1
    stored.records[place] = encode(log, place, b"\xff", writer=decode(log, place, stored.records[place]).writer)


def looks_of(one: One) -> Counter[str]:
    one.journal.loads.clear()
    return one.journal.loads


async def moving(deployment: Deployment) -> tuple[One, One, str]:
    """Its owner, who has claimed and reported it, the shard that is to have it next, and a computation."""
    one, other = await two(deployment)
    name = min(held(one))
    grant = await one.claim(name)
    for hour in (10, 11):
        assert await one.report(name, grant, hour) == []
    return one, other, name


def lines_with(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("damage", [flip_a_bit, write_as_a_newer_release, write_what_does_not_follow])
async def test_a_damaged_log_stays_with_the_owner_that_has_it_in_memory(
    deployment: Deployment, damage: Callable[[str, StoredLog], None], caplog: pytest.LogCaptureFixture
) -> None:
    one, other, name = await moving(deployment)
    owner, stored = deployment.disk.owners[name], deployment.disk.logs[name]
    whole = stored.copy()
    damage(name, stored)
    looks = looks_of(other)
    await one.cluster.change(lambda view: view.pinned(name, "other:1"))
    await deployment.settle(one, other, seconds=6)
    assert deployment.disk.owners[name] == owner, "nobody took it"
    assert await other.shard.takeover.serve(name) is False
    assert name in held(one)
    assert 2 <= looks[name] <= 4, "after 0, 1, 3 seconds, and not at each of twenty beats"
    assert lines_with(caplog, f"{name} is not taken over") == 1
    assert lines_with(caplog, "is not served yet") == 0
    assert await one.report(name, await one.claim(name), 12) == []
    assert one.low(name) == 12

    # What is behind it was written meanwhile.
    stored.records.update(whole.records)
    with caplog.at_level(logging.INFO):
        await deployment.settle(one, other, seconds=8.1)
    assert name in held(other)
    assert other.low(name) == 12
    assert lines_with(caplog, "its log is whole again") == 1


async def test_its_owner_writes_a_damaged_log_whole_when_nobody_takes_it(deployment: Deployment) -> None:
    """The owner heals the log, so that it is handed over, and not lost with its owner; all else is as it was."""
    one, other, name = await moving(deployment)
    neighbour = max(held(one))
    assert await one.report(neighbour, await one.claim(neighbour), 10) == []
    flip_a_bit(name, deployment.disk.logs[name])
    await one.cluster.change(lambda view: view.pinned(name, "other:1"))
    await deployment.settle(one, other, seconds=LOOK_SECONDS - 0.6)
    assert one.shard.journal.statistics().snapshots == 0, "it may only take long"
    await deployment.settle(one, other, seconds=LOOK_SECONDS + 16)
    assert name in held(other)
    assert other.low(name) == 11
    assert one.shard.journal.statistics().snapshots == 1
    assert neighbour in held(one)
    assert deployment.disk.logs[neighbour].snapshot is None


async def taken_unread(deployment: Deployment) -> tuple[One, One, str]:
    """Two shards, and a computation whose log the second has taken and could not read, and which the first is to serve."""
    one, other, name = await moving(deployment)
    await one.cluster.change(lambda view: pinned(name, view))
    other.faults.held["take"] = asyncio.Event()
    taking = asyncio.create_task(deployment.settle(other))
    await turns()
    other.faults.unreadable.add("load")
    other.faults.let("take")
    await taking
    await deployment.settle(one)
    assert deployment.disk.owners[name].address == "other:1"
    assert name not in held(one) | held(other)
    other.faults.unreadable.clear()
    await one.cluster.change(lambda view: view.pinned(name, "one:1"))
    return one, other, name


async def dropped_though_damaged(one: One, name: str) -> None:
    with pytest.raises(errors.Unavailable, match=rf"log '{name}' at position \d+ is damaged: the checksum differs"):
        await one.shard.takeover.serve(name)
    await one.shard.graph.drop(name, force=True)
    assert name in one.shard.topology.dropped


async def test_a_damaged_log_is_not_left_to_an_owner_that_could_not_read_it(deployment: Deployment) -> None:
    one, other, name = await taken_unread(deployment)
    flip_a_bit(name, deployment.disk.logs[name])
    await deployment.settle(other, one, seconds=12)
    await dropped_though_damaged(one, name)


async def test_no_log_is_given_back_before_its_next_owner_has_healed_it(deployment: Deployment) -> None:
    one, other, name = await taken_unread(deployment)
    before = deployment.disk.written
    await deployment.settle(one)
    grant = await one.claim(name)
    assert await one.report(name, grant, 12) == []
    deployment.disk.lose(deployment.disk.written - before)
    assert deployment.disk.owners[name].address == "other:1"
    await other.hear()
    assert await other.cluster.confirm()
    await turns()
    await deployment.settle(other, one, seconds=12)
    assert one.low(name) == 12
    assert await one.report(name, grant, 13) == []


async def test_a_take_over_that_had_to_wait_takes_no_log_that_another_is_to_serve(deployment: Deployment) -> None:
    one, other, name = await taken_unread(deployment)
    other.faults.held["owners"] = asyncio.Event()
    await other.hear()
    giving_back = asyncio.create_task(other.cluster.confirm())
    await turns()
    await other.cluster.change(lambda view: pinned(name, view))
    taking = asyncio.create_task(other.shard.takeover.serve(name))
    await turns()
    await one.cluster.change(lambda view: view.pinned(name, "one:1"))
    await deployment.settle(one)
    owner = deployment.disk.owners[name]
    assert owner.address == "one:1"
    await other.hear()
    other.faults.let("owners")
    await giving_back
    assert not await taking
    assert deployment.disk.owners[name] == owner


async def test_a_damaged_log_is_not_left_to_the_shard_that_has_shortened_it(deployment: Deployment) -> None:
    one, other, name = await moving(deployment)
    await one.shard.graph.drop(name, force=True)
    await one.shard.held.endings.ended(name)
    await one.cluster.change(lambda view: view.draining("one:1", on=True))
    await deployment.settle(one, other)
    await other.shard.held.endings.ended(name)
    deployment.disk.logs[name].damage_snapshot()
    with contextlib.suppress(errors.Unavailable):
        await other.shard.graph.register(Spec(name))
    await deployment.settle(one, other, seconds=6)
    await dropped_though_damaged(other, name)


async def test_a_log_that_is_given_back_slowly_holds_up_no_confirmation(deployment: Deployment) -> None:
    one, other, name = await taken_unread(deployment)
    flip_a_bit(name, deployment.disk.logs[name])
    other.faults.held["take"] = asyncio.Event()
    async with asyncio.timeout(5):
        await deployment.settle(one, other, seconds=6)
        assert await other.cluster.confirm()
    await turns()
    other.faults.let("take")
    await turns()
    assert not deployment.disk.owners[name].address


async def test_rule7_an_untaken_computation_of_another_shard_is_forgotten(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, name = await moving(deployment)
    neighbours = held(one) - {name}
    await one.stop()
    stored = deployment.disk.logs[name]
    whole = stored.copy()
    flip_a_bit(name, stored)
    await deployment.settle(other, seconds=6)
    assert other.cluster.unserved.names == [name], "so that the reason is told once"
    assert lines_with(caplog, f"{name} is not served yet") == 1
    assert neighbours <= held(other)
    third = await deployment.start("third:1")
    await other.cluster.change(lambda view: view.pinned(name, "third:1"))
    await deployment.settle(other, third)
    assert not other.cluster.unserved.names
    assert third.cluster.unserved.names == [name]
    stored.records.update(whole.records)
    await deployment.settle(other, third, seconds=6)
    assert name in held(third)
    assert not third.cluster.unserved.names


def pinned(name: str, view: View) -> View:
    return view.pinned(name, "other:1")


async def test_what_is_recovered_in_two_pieces_is_what_is_recovered_in_one(deployment: Deployment) -> None:
    """Wherever the look ended, through claims, lowerings, shares, a new incarnation, and what its old owner wrote of the incarnation before."""
    one = await deployment.start("one:1")
    before = await one.shard.graph.register(Spec("a", heuristics=(900_000,), history_step=SECOND * 3600))
    grant = await one.claim("a")
    for hour in (10, 12, 11, 13):
        assert await one.report("a", grant, hour) == []
    master = TaskMaster(one.shard, Gate[Any]("task_waits", 2, 0))
    await master.create_group("a", TaskGroup("hourly", every=HOUR, start=12 * HOUR))
    task = await master.take("a", "hourly", "w", bytes(16), wait=0, leaving=asyncio.Event())
    assert task is not None
    await master.commit("a", task.lease, [], b"", [])
    middle = (await one.shard.journal.load("a")).last
    [after] = await one.shard.graph.reset("a")
    grant = await one.claim("a")
    for hour in (5, 14):
        assert await one.report("a", grant, hour) == []
    log = await one.shard.journal.load("a")
    ownership = Ownership(epoch=7, nonce=9)
    for spec, last in ((before, middle), (after, log.last)):
        whole = replace(log, records=[record for record in log.records if record[0] <= last])
        expected = (await one.shard.held.recovered_in_pieces(spec, whole)).computation
        for cut in range(len(whole.records) + 1):
            first = await one.shard.held.recovered_in_pieces(spec, replace(whole, records=whole.records[:cut]))
            rest = resumed(spec, ownership, whole, first)
            if spec is after and cut < middle:
                assert rest is None, "what it was recovered for had ended the incarnation that the log goes on with"
                continue
            assert rest is not None
            assert recovery.snapshot(rest) == recovery.snapshot(expected)
            assert (rest.published, rest.reference) == (expected.published, expected.reference)
            assert rest.tasks.published == expected.tasks.published
            assert rest.epoch_base == epoch_base(ownership)
            rest.check()


async def test_a_log_of_a_new_incarnation_is_whole(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    one, other, name = await moving(deployment)
    await one.shard.graph.reset(name)
    await one.claim(name)
    assert other.shard.topology.get(name).incarnation == 1
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    assert await other.shard.takeover.serve(name)
    assert other.shard.topology.get(name).incarnation == 2
    assert lines_with(caplog, "is not taken over") == 0
