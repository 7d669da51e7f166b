"""Taking over what another shard serves: its log is read and checked first, and a damaged one stays with who has it in memory."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from lowwater import errors
from lowwater_authority.cluster import cluster
from lowwater_authority.cluster.membership import View
from lowwater_authority.cluster.untaken import LOOK_SECONDS
from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.tasks import TaskGroup
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.engine import holding, rounds, takeover
from lowwater_authority.engine.admission import Gate
from lowwater_authority.engine.holding import ORPHAN_SECONDS, epoch_base
from lowwater_authority.engine.holdings import _resumed, replayed
from lowwater_authority.engine.takeover import TAKEN_AT_ONCE, TAKEN_IN_ALL
from lowwater_authority.engine.task_master import TaskMaster
from lowwater_authority.journal import GRAPH, Entry, LoadedLog, Ownership, frames
from lowwater_authority.journal.frames import decode, encode
from tests.kit.faults import Outcome
from tests.kit.memory_journal import MemoryJournal, StoredLog, flipped
from tests.kit.releases import newer_release
from tests.kit.shards import DEAD_AFTER, NAMES, Deployment, One, held, turns, two
from tests.kit.times import HOUR, SECOND


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
    """How often a shard reads each log from now on."""
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


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    """How many lines of the log have some words."""
    return sum(words in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("damage", [flip_a_bit, write_as_a_newer_release, write_what_does_not_follow])
async def test_a_damaged_log_stays_with_the_owner_that_has_it_in_memory(
    deployment: Deployment,
    damage: Callable[[str, StoredLog], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, other, name = await moving(deployment)
    owner, stored = deployment.disk.owners[name], deployment.disk.logs[name]
    whole = stored.copy()
    damage(name, stored)
    looks = looks_of(other)
    await one.cluster.change(lambda view: view.pinned(name, "other:1"))
    await deployment.settle(one, other, seconds=6)
    assert deployment.disk.owners[name] == owner, "nobody took it"
    assert await other.shard.serve(name) is False
    assert name in held(one)
    assert 2 <= looks[name] <= 4, "after 0, 1, 3 seconds, and not at each of twenty beats"
    assert said(caplog, f"{name} is not taken over") == 1
    assert said(caplog, "is not served yet") == 0
    assert await one.report(name, await one.claim(name), 12) == []
    assert one.low(name) == 12

    # What is behind it was written meanwhile.
    stored.records.update(whole.records)
    with caplog.at_level(logging.INFO):
        await deployment.settle(one, other, seconds=8.1)
    assert name in held(other)
    assert other.low(name) == 12
    assert said(caplog, "its log is whole again") == 1


async def test_its_owner_writes_a_damaged_log_whole_when_nobody_takes_it(deployment: Deployment) -> None:
    """So that it is handed over, and not lost with its owner; all else is as it was."""
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


async def test_what_the_store_has_refused_to_take_whole_is_written_again(deployment: Deployment) -> None:
    one, other, name = await moving(deployment)
    flip_a_bit(name, deployment.disk.logs[name])
    one.faults.ends["snapshot"] = [Outcome.FAILED] * 2
    await one.cluster.change(lambda view: view.pinned(name, "other:1"))
    await deployment.settle(one, other, seconds=3 * LOOK_SECONDS)
    assert name in held(one)
    assert one.shard.held.of(name).log.refused == 1, (
        "not each time that it is looked at: making it costs all of the computation"
    )
    await deployment.settle(one, other, seconds=16 * LOOK_SECONDS)
    assert name in held(other)
    assert other.low(name) == 11


async def test_what_a_shard_had_too_much_to_do_to_write_whole_is_written_later(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "QUEUE_BOUND", 20)
    one, other, name = await moving(deployment)
    neighbour = max(held(one))
    assert await one.report(neighbour, await one.claim(neighbour), 10) == []
    flip_a_bit(name, deployment.disk.logs[name])
    await one.cluster.change(lambda view: view.pinned(name, "other:1"))
    await deployment.settle(one, other, seconds=LOOK_SECONDS - 0.6)
    one.faults.held["append"] = there = asyncio.Event()
    waiting = asyncio.create_task(one.claim(neighbour))
    await turns()
    looks = [asyncio.create_task(one.shard.look(lambda _: None)) for _ in range(20)]
    await deployment.settle(one, other, seconds=2 * LOOK_SECONDS)
    assert one.shard.queued == 20
    there.set()
    await asyncio.gather(waiting, *looks)
    assert one.shard.journal.statistics().snapshots == 0, "it was refused"
    assert name in held(one)
    await deployment.settle(one, other, seconds=LOOK_SECONDS + 16)
    assert name in held(other)
    assert other.low(name) == 11
    assert neighbour in held(one)
    assert deployment.disk.logs[neighbour].snapshot is None


async def test_what_nobody_takes_is_written_whole_once_and_when_it_has_changed(deployment: Deployment) -> None:
    one, other, name = await moving(deployment)
    stored = deployment.disk.logs[name]
    await one.snapshot(name)
    stored.damage_snapshot()
    await one.cluster.change(lambda view: view.pinned(name, "other:1"))
    await deployment.settle(one, other, seconds=3 * LOOK_SECONDS)
    statistics = one.shard.journal.statistics
    assert statistics().snapshots == 1, "there is nothing behind it"
    assert await one.report(name, await one.claim(name), 12) == []
    while statistics().snapshots == 1:
        await deployment.settle(one)
    stored.damage_snapshot()
    for hour in range(13, 16):
        assert await one.report(name, await one.claim(name), hour) == []
        await deployment.settle(one, other, seconds=LOOK_SECONDS)
    assert name in held(one)
    assert statistics().snapshots == 2


async def test_a_damaged_log_that_nobody_has_in_memory_is_refused_with_the_reason(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, name = await moving(deployment)
    await one.stop()
    flip_a_bit(name, deployment.disk.logs[name])
    looks = looks_of(other)
    await deployment.settle(other, seconds=6)
    with pytest.raises(errors.Unavailable, match=rf"log '{name}' at position \d+ is damaged: the checksum differs"):
        await other.shard.serve(name)
    assert looks[name] <= 4
    assert said(caplog, f"{name} is not served yet") == 1


async def test_rule7_nothing_is_remembered_of_what_could_not_be_taken_once_another_shard_is_to_serve_it(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, name = await moving(deployment)
    neighbours = held(one) - {name}
    await one.stop()
    stored = deployment.disk.logs[name]
    whole = stored.copy()
    flip_a_bit(name, stored)
    await deployment.settle(other, seconds=6)
    assert list(other.cluster._missing) == [name], "so that the reason is told once"
    assert said(caplog, f"{name} is not served yet") == 1
    assert neighbours <= held(other)
    third = await deployment.start("third:1")
    await other.cluster.change(lambda view: view.pinned(name, "third:1"))
    await deployment.settle(other, third)
    assert not other.cluster._missing
    assert list(third.cluster._missing) == [name]
    stored.records.update(whole.records)
    await deployment.settle(other, third, seconds=6)
    assert name in held(third)
    assert not third.cluster._missing


async def ended(one: One, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard is stopped, and nobody takes over what it serves in time."""
    monkeypatch.setattr(cluster, "HAND_OVER_SECONDS", 0.0)
    await one.cluster.leave()
    await one.end()


async def moving_and_damaged(deployment: Deployment) -> tuple[One, One, str]:
    """As :func:`moving`, and the other shard could not read what the owner has left: it has rested since, for a while."""
    one, other, name = await moving(deployment)
    await one.snapshot(name)
    stored = deployment.disk.logs[name]
    stored.damage_snapshot()  # its owner writes it whole when it has changed, which it does not
    await one.cluster.change(lambda view: view.pinned(name, "other:1"))
    await deployment.settle(one, other, seconds=70)
    return one, other, name


async def test_a_damaged_log_is_looked_at_at_once_when_its_owner_is_gone(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has left a snapshot, which replaces what was damaged; nobody waits for the rest of a minute."""
    one, other, name = await moving_and_damaged(deployment)
    looks = looks_of(other)
    await deployment.settle(one, other)
    assert not looks[name], "it rests"
    await ended(one, monkeypatch)
    await deployment.settle(other, seconds=0.6)
    assert name in held(other)
    assert other.low(name) == 11


async def test_what_nobody_serves_is_looked_at_at_once_only_when_that_is_new(deployment: Deployment) -> None:
    one, other, name = await moving_and_damaged(deployment)
    looks = looks_of(other)
    await one.stop()
    await deployment.settle(other, seconds=DEAD_AFTER + 0.6)
    assert looks[name] == 1
    await deployment.settle(other, seconds=ORPHAN_SECONDS - 0.6)
    assert looks[name] == 1
    with pytest.raises(errors.Unavailable, match="is damaged"):
        await other.shard.serve(name)
    await deployment.settle(other, seconds=0.9)
    assert looks[name] == 2


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("missing", [False, True])
async def test_a_shard_that_ends_writes_again_what_it_alone_has_whole(
    deployment: Deployment,
    missing: bool,
    behind: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The only snapshot is damaged, or missing, in the store; so nobody takes it over, and the memory of its owner is about to end."""
    one, other, name = await moving(deployment)
    await one.snapshot(name)
    claim = await one.claim(name) if behind else None
    stored = deployment.disk.logs[name]
    assert bool(stored.records) is behind
    assert stored.snapshot is not None
    stored.snapshot = None if missing else flipped(stored.snapshot)
    await one.cluster.change(lambda view: view.pinned(name, "other:1"))
    await deployment.settle(one, other, seconds=3)
    assert name in held(one)
    await ended(one, monkeypatch)
    assert said(caplog, "it is written again from memory") == (0 if behind else 1)
    await deployment.settle(other, seconds=0.6)
    assert other.low(name) == 11
    if claim is not None:
        assert await other.report(name, claim, 12) == []


async def test_a_shard_that_ends_writes_nothing_of_what_is_whole(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, name = await moving(deployment)
    await one.snapshot(name)
    before, owner = deployment.disk.logs[name].copy(), deployment.disk.owners[name]
    await ended(one, monkeypatch)
    assert deployment.disk.logs[name] == before
    assert deployment.disk.owners[name] == owner
    await deployment.settle(other, seconds=0.6)
    assert other.low(name) == 11


async def test_rule4_a_shard_that_ends_writes_nothing_of_what_another_serves(deployment: Deployment) -> None:
    """It was frozen when it lost the computation, and whoever has that now is the only one to put it right."""
    one, other, name = await moving(deployment)
    await deployment.settle(other, seconds=2.1)
    assert name in held(other)
    await other.snapshot(name)
    stored, owner = deployment.disk.logs[name], deployment.disk.owners[name]
    stored.damage_snapshot()
    before = stored.copy()
    assert name in held(one)
    one.shard.held.of(name).log.read(LoadedLog(stored.last, b"", []))  # nothing behind a snapshot, so that it looks
    await one.end()
    assert deployment.disk.logs[name] == before
    assert deployment.disk.owners[name] == owner


def pinned(name: str, view: View) -> View:
    return view.pinned(name, "other:1")


@pytest.mark.parametrize(("small", "in_all"), [(False, TAKEN_IN_ALL), (True, TAKEN_IN_ALL), (True, TAKEN_AT_ONCE + 1)])
async def test_what_is_small_waits_for_the_store_in_no_line(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, small: bool, in_all: int
) -> None:
    """So the store can be asked for hundreds in one go; what is large is taken a few at a time. And what waits is not all in memory."""
    monkeypatch.setattr(takeover, "TAKEN_IN_ALL", in_all)
    if not small:
        monkeypatch.setattr(holding, "SMALL_BYTES", -1)
    one, other = await two(deployment)
    lost = held(one)
    assert len(lost) > TAKEN_AT_ONCE + 1
    await one.stop()
    take, gate, begun = other.journal.take, asyncio.Event(), set[str]()

    async def late(log: str, **options: Any) -> Ownership:
        begun.add(log)
        await gate.wait()
        return await take(log, **options)

    monkeypatch.setattr(other.journal, "take", late)
    while other.cluster.view.at(one.address) is not None:
        deployment.clock.now += DEAD_AFTER / 5
        await other.hear()
    assert await other.cluster._confirm()
    other.cluster._take()
    await turns()
    assert len(begun) == (min(len(lost), in_all) if small else TAKEN_AT_ONCE)
    gate.set()
    await asyncio.wait(other.cluster.taking)
    assert held(other) == set(NAMES)


async def test_one_that_had_to_wait_for_its_turn_is_not_taken_twice(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read has it taken at once while it stands in line behind others: what was reported since is not lost."""
    monkeypatch.setattr(holding, "SMALL_BYTES", -1)
    one, other, name = await moving(deployment)
    waiting = {each for each in held(one) if each != name}
    assert len(waiting) >= TAKEN_AT_ONCE
    for each in (*sorted(waiting), name):
        await one.cluster.change(partial(pinned, each))
    await other.hear()
    other.faults.held["take"] = gate = asyncio.Event()
    takes = [asyncio.ensure_future(other.shard.take_over(each)) for each in (*sorted(waiting), name)]
    await turns()
    reading = asyncio.ensure_future(other.shard.serve(name))
    await turns()
    gate.set()
    assert await reading
    epoch = other.shard.epoch(name)
    assert await other.report(name, await other.claim(name), 12) == []
    assert all(await asyncio.gather(*takes))
    assert (other.shard.epoch(name), other.low(name)) == (epoch, 12)


async def write_graph(stranger: MemoryJournal, change: Callable[[Topology], Topology]) -> None:
    """Another process changes the graph."""
    loaded = await stranger.load(GRAPH)
    known = replayed(loaded).topology
    await stranger.append([Entry(GRAPH, loaded.last + 1, change(known).encode(known), strong=True)])


async def test_rule4_what_was_dropped_while_it_was_taken_is_served_by_a_number_or_not_at_all(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By force, and the store has lost its log, so that there is nothing to make short; and it is registered again at once."""
    one, other, name = await moving(deployment)
    stranger = MemoryJournal(deployment.disk, shared=True)
    await stranger.open()
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    load, gate = other.journal.load, asyncio.Event()

    async def late(log: str, *, known: LoadedLog | None = None, durable: bool = True) -> LoadedLog:
        loaded = await load(log, known=known, durable=durable)
        if log == name and known is not None:
            await gate.wait()
        return loaded

    monkeypatch.setattr(other.journal, "load", late)
    del deployment.disk.logs[name]
    taking = asyncio.create_task(other.shard.take_over(name))
    await turns()
    await write_graph(stranger, lambda graph: graph.drop(name))
    await other.shard.refresh()
    await turns()
    await write_graph(stranger, lambda graph: graph.register(Spec(name)))
    gate.set()
    await asyncio.wait([taking])
    assert all(other.shard.epoch(each) for each in held(other)), "else no store would ever confirm it"
    before = other.faults.reads
    await deployment.settle(one, other)
    assert other.faults.reads - before < 50
    assert name in held(other)
    assert other.shard.view(name) is not None
    assert other.shard.topology.get(name).incarnation == 2
    grant = await other.claim(name)
    assert await other.report(name, grant, 12) == []
    assert other.low(name) == 12


async def test_who_cannot_take_rests_longer_each_time(deployment: Deployment) -> None:
    """However many ask for it: each attempt is some calls to the store."""
    one, other, name = await moving(deployment)
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    refusals = other.faults.ends["take"] = [Outcome.FAILED] * 1000

    async def tries() -> int:
        before = len(refusals)
        for _ in range(50):
            with pytest.raises(
                errors.Unavailable, match=f"cannot take {name} over from the store: the fault plan refuses"
            ):
                await other.shard.serve(name)
        return before - len(refusals)

    assert await tries() == 2, "once more at once, for it may have been a moment's fault"
    seen = []
    for _ in range(10):
        deployment.clock.now += 0.1
        seen.append(await tries())
    assert seen == [1, 0, 1, 0, 0, 0, 1, 0, 0, 0]
    assert name in held(one)
    deployment.clock.now += 60
    assert await tries() == 2, "what failed a minute ago was another fault"
    refusals.clear()
    await deployment.settle(one, other, seconds=2.1)
    assert name in held(other)
    assert other.shard.held.of(name).rest is None


async def test_rule1_nothing_is_taken_whose_inputs_the_graph_has_lost(deployment: Deployment) -> None:
    """Its log says that they were changed, the graph does not know to what: it would go on without one that it has to wait for."""
    one, other, name = await moving(deployment)
    new = min(held(other))
    assert await other.report(new, await other.claim(new), 12) == []
    await one.cluster.look()
    await one.shard.set_inputs(name, [new])
    stored = deployment.disk.logs[GRAPH]
    del stored.records[stored.last]
    stored.last -= 1
    stored.tail = frames.checksum(stored.records[stored.last])
    await one.stop()
    await deployment.settle(other, seconds=DEAD_AFTER + 1.2)
    with pytest.raises(
        errors.Unavailable, match="it has version 2 of its inputs, but the graph knows only 1: reset it"
    ):
        await other.shard.serve(name)
    assert name not in held(other)
    assert len(held(other)) == 11, "its neighbours"
    await other.shard.reset(name)
    await deployment.settle(other, seconds=6)
    assert name in held(other)


async def test_what_is_written_between_the_look_and_the_take_goes_along(deployment: Deployment) -> None:
    one, other, name = await moving(deployment)
    grant = await one.claim(name)
    other.faults.held["take"] = asyncio.Event()
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    taking = asyncio.ensure_future(other.shard.take_over(name))
    await turns()
    assert await one.report(name, grant, 12) == []
    other.faults.held.pop("take").set()
    assert await taking
    assert other.low(name) == 12
    assert await other.report(name, grant, 13) == []


async def test_what_nobody_has_written_to_meanwhile_is_recovered_once(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, other, name = await moving(deployment)
    recovered = []
    steps = recovery.steps

    def counted(spec: Spec, *arguments: object, **more: object) -> object:
        recovered.append(spec.name)
        return steps(spec, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(recovery, "steps", counted)
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    assert await other.shard.serve(name)
    assert recovered == [name]
    claim = await other.claim(name)
    assert claim.sequencer >> 40 == other.shard.epoch(name) == deployment.disk.owners[name].epoch


async def test_what_came_since_the_look_is_all_that_is_replayed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner lives and reports, as in every drain and scale-out; between the take and the end of the replay nobody serves it."""
    one, other, name = await moving(deployment)
    grant = await one.claim(name)
    replayed: list[int] = []
    replay = recovery._replay

    def counted(computation: Computation, record: object, size: int) -> object:
        replayed.append(computation.epoch_base)
        return replay(computation, record, size)  # type: ignore[arg-type]

    monkeypatch.setattr(recovery, "_replay", counted)
    load = other.shard.journal.load

    async def then_a_report(log: str, **more: object) -> object:
        loaded = await load(log, **more)  # type: ignore[arg-type]
        if log == name and "known" not in more:
            assert await one.report(name, grant, 12) == []
        return loaded

    monkeypatch.setattr(other.shard.journal, "load", then_a_report)
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    assert await other.shard.serve(name)
    assert sum(map(bool, replayed)) == 1, "the rest was replayed before it was taken"
    assert other.low(name) == 12
    assert await other.report(name, grant, 13) == []


async def test_what_is_recovered_in_two_pieces_is_what_is_recovered_in_one(deployment: Deployment) -> None:
    """Wherever the look ended, through claims, lowerings, shares, a new incarnation, and what its old owner wrote of the incarnation before."""
    one = await deployment.start("one:1")
    before = await one.shard.register(Spec("a", heuristics=(900_000,), history_step=SECOND * 3600))
    grant = await one.claim("a")
    for hour in (10, 12, 11, 13):
        assert await one.report("a", grant, hour) == []
    master = TaskMaster(one.shard, Gate[Any]("task_waits", 2, 0))
    await master.create_group("a", TaskGroup("hourly", every=HOUR, start=12 * HOUR))
    taken = await master.take("a", "hourly", "w", bytes(16), wait=0, leaving=asyncio.Event())
    assert taken is not None
    await master.commit("a", taken.lease, [], b"", [])
    middle = (await one.shard.journal.load("a")).last
    [after] = await one.shard.reset("a")
    grant = await one.claim("a")
    for hour in (5, 14):
        assert await one.report("a", grant, hour) == []
    log = await one.shard.journal.load("a")
    ownership = Ownership(epoch=7, nonce=9)
    for spec, last in ((before, middle), (after, log.last)):
        whole = replace(log, records=[record for record in log.records if record[0] <= last])
        expected = (await one.shard.held.recovered_in_pieces(spec, whole)).computation
        for cut in range(len(whole.records) + 1):
            known = await one.shard.held.recovered_in_pieces(spec, replace(whole, records=whole.records[:cut]))
            found = _resumed(spec, ownership, whole, known)
            if spec is after and cut < middle:
                assert found is None, "what it was recovered for had ended the incarnation that the log goes on with"
                continue
            assert found is not None
            assert recovery.snapshot(found) == recovery.snapshot(expected)
            assert (found.published, found.reference) == (expected.published, expected.reference)
            assert found.tasks.published == expected.tasks.published
            assert found.epoch_base == epoch_base(ownership)
            found._check()


async def test_a_log_of_an_incarnation_that_is_not_known_yet_is_not_taken_for_damaged(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, name = await moving(deployment)
    await one.shard.reset(name)
    await one.claim(name)
    assert other.shard.topology.get(name).incarnation == 1
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    assert await other.shard.serve(name)
    assert other.shard.topology.get(name).incarnation == 2
    assert said(caplog, "is not taken over") == 0


async def test_a_log_is_read_whole_once_while_it_is_taken(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second read names what the first has found; what it costs then is the store's business."""
    _, other, name = await moving(deployment)
    reads = []
    load = MemoryJournal.load

    async def noted(self: MemoryJournal, log: str, *, known: object = None, durable: bool = True) -> object:
        found = await load(self, log, durable=durable)
        reads.append((log, known == found))
        return found

    monkeypatch.setattr(MemoryJournal, "load", noted)
    await other.cluster.change(lambda view: view.pinned(name, "other:1"))
    assert await other.shard.serve(name)
    assert [same for log, same in reads if log == name] == [False, True]
