"""Taking over what another shard serves: its log is read and checked first, and a damaged one stays with who has it in memory."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lowwater import errors
from lowwater_authority.cluster import cluster
from lowwater_authority.cluster.membership import View
from lowwater_authority.cluster.untaken import LOOK_SECONDS
from lowwater_authority.core import recovery
from lowwater_authority.core.tasks import TaskGroup
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.admission import Gate
from lowwater_authority.engine.holding import epoch_base
from lowwater_authority.engine.holdings import resumed
from lowwater_authority.engine.task_master import TaskMaster
from lowwater_authority.journal import Ownership
from lowwater_authority.journal.frames import decode, encode
from tests.kit.memory_journal import StoredLog, flipped
from tests.kit.releases import newer_release
from tests.kit.shards import Deployment, One, held, two
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


def pinned(name: str, view: View) -> View:
    return view.pinned(name, "other:1")


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
            found = resumed(spec, ownership, whole, known)
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
