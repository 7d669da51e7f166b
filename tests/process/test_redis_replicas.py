"""The Redis journal with replicas, behind Sentinel, and in a Cluster."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lowwater_authority.journal import (
    GRAPH,
    Journal,
    JournalFailed,
    JournalFenced,
    JournalLost,
    JournalUnknown,
    Ownership,
)
from lowwater_authority.journal.redis import RedisJournal
from tests.contract.journal_stores import RedisSubject, entry, repeated
from tests.contract.redis_server import DURABLE, RedisServer
from tests.kit.eventually import eventually_async

HASTY = 1.5
"""Seconds until a call is given up: half of it is for replicas that hang, the other half for answers of a busy machine."""


@dataclass
class Pair:
    master: RedisServer
    replica: RedisServer
    sentinel: RedisServer

    def watch(self) -> str:
        """Start the sentinel; returns the URL of the pair behind it."""
        self.sentinel.start_sentinel(
            f"sentinel monitor pair 127.0.0.1 {self.master.port} 1\n"
            "sentinel down-after-milliseconds pair 500\n"
            "sentinel failover-timeout pair 5000"
        )
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/pair"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    by_file = ("--repl-diskless-sync", "no", *DURABLE)
    with (
        RedisServer(tmp_path / "master", *by_file) as master,
        RedisServer(tmp_path / "replica", *by_file, "--replicaof", f"127.0.0.1 {master.port}") as replica,
        RedisServer(tmp_path / "sentinel", ready="+slave slave") as sentinel,
    ):
        master.start()
        replica.start()
        master.wait_for("succeeded")
        yield Pair(master, replica, sentinel)


async def settled(journal: Journal, log: str, position: int) -> None:
    await repeated(lambda: journal.append([entry(log, position)]))


async def test_a_strong_entry_waits_for_a_replica_and_no_advance(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    journal = RedisJournal(pair.master.url, timeout=HASTY)
    await journal.open()
    await journal.take("a")
    assert "replicas 1" in journal.describe_durability()
    await journal.append([entry("a", 1)])
    assert pair.replica.execute("HGET", f"{RedisSubject.TAG}:meta:a", "last") == b"1"

    pair.replica.pause()
    await journal.append([entry("a", 2, strong=False)])
    short = "has it, but WAIT for 1 was answered by 0"
    with pytest.raises(JournalUnknown, match=short):
        await journal.append([entry("a", 3)])
    # Found written on the master, over another connection, it waits no less: WAIT looks at what its connection wrote.
    pair.master.execute("CLIENT", "KILL", "TYPE", "normal")
    for lost in (r"127\.0\.0\.1", short):
        with pytest.raises(JournalUnknown, match=lost):
            await journal.append([entry("a", 3)])
    pair.replica.resume()
    await settled(journal, "a", 3)
    assert pair.replica.execute("HGET", f"{RedisSubject.TAG}:meta:a", "last") == b"3"

    pair.replica.kill()
    with caplog.at_level(logging.WARNING):
        await settled(journal, "a", 4)
    assert "have changed: " in caplog.text
    assert "replicas 0" in caplog.text
    assert [position for position, _ in (await journal.load("a")).records] == [1, 2, 3, 4]
    await journal.close()


def in_step(server: RedisServer) -> bool:
    """Return True if a replica of a server is connected and in step."""
    return any("online" in str(value) for value in server.execute("INFO", "replication").values())


async def test_a_replica_counts_from_the_moment_it_is_connected(pair: Pair) -> None:
    """The replica may be the next master, whatever the server said of its replicas a moment before."""
    pair.replica.execute("REPLICAOF", "NO", "ONE")
    await eventually_async(lambda: not in_step(pair.master))
    journal = RedisJournal(pair.master.url, timeout=HASTY)
    await journal.open()
    await journal.take("a")
    await journal.append([entry("a", 1)])
    assert "replicas 0" in journal.describe_durability()
    pair.replica.execute("REPLICAOF", "127.0.0.1", pair.master.port)
    await eventually_async(lambda: in_step(pair.master))
    await journal.append([entry("a", 2)])
    assert pair.replica.execute("HGET", f"{RedisSubject.TAG}:meta:a", "last") == b"2"
    assert "replicas 1" in journal.describe_durability()
    await journal.close()


async def test_a_master_that_became_a_replica_is_refused_though_it_takes_writes(pair: Pair) -> None:
    """``replica-read-only no``: what it is sent its master never gets. Behind each strong entry, and behind each new connection, it is asked."""
    journal = RedisJournal(pair.master.url, timeout=HASTY)
    await journal.open()
    await journal.take("a")
    await journal.append([entry("a", 1)])
    pair.master.execute("CONFIG", "SET", "replica-read-only", "no")
    pair.replica.execute("REPLICAOF", "NO", "ONE")
    pair.master.execute("REPLICAOF", "127.0.0.1", pair.replica.port)
    await eventually_async(lambda: pair.master.execute("INFO", "replication")["master_link_status"] == "up")
    with pytest.raises(JournalUnknown, match="became a replica"):
        await journal.append([entry("a", 2)])
    pair.master.execute("CLIENT", "KILL", "TYPE", "normal")
    for _ in range(2):
        with pytest.raises(JournalUnknown, match="it is a replica: name the master in the URL"):
            await journal.append([entry("a", 2)])
        for call in (journal.confirm(["a"]), journal.load("a"), journal.take("b")):
            with pytest.raises(JournalFailed, match="it is a replica: name the master in the URL"):
                await call
    pair.master.execute("REPLICAOF", "NO", "ONE")
    await settled(journal, "a", 2)
    await journal.close()


async def test_rule2_what_a_reader_is_given_is_durable(pair: Pair) -> None:
    """A record that its writer has no answer for is in the store, and a fail-over to a replica that never had it loses it."""
    writer, reader = (RedisJournal(pair.master.url, timeout=HASTY) for _ in range(2))
    for journal in (writer, reader):
        await journal.open()
    await writer.take("a")
    await writer.append([entry("a", 1), entry(GRAPH, 1)])
    before = await reader.load(GRAPH)
    assert before.last == 1
    pair.replica.pause()
    with pytest.raises(JournalUnknown):
        await writer.append([entry("a", 2), entry(GRAPH, 2)])
    for journal, log in itertools.product((writer, reader), (GRAPH, "a")):
        with pytest.raises(JournalFailed, match="is not known to be durable yet"):
            await journal.load(log)
    with pytest.raises(JournalFailed, match="is not known to be durable yet"):
        await reader.load(GRAPH, before=before)
    assert (await reader.load("a", durable=False)).last == 2
    assert reader.acknowledged(GRAPH).last == 1  # should it be lost, nothing is that this reader knows
    pair.replica.resume()
    await settled(writer, "a", 2)
    assert (await reader.load(GRAPH, before=before)).last == reader.acknowledged(GRAPH).last == 2
    assert pair.replica.execute("HGET", f"{RedisSubject.TAG}:meta:", "last") == b"2"
    for journal in (writer, reader):
        await journal.close()


@pytest.mark.slow
@pytest.mark.parametrize("lags", [False, True])
async def test_what_is_strong_survives_a_fail_over_and_an_advance_may_not(pair: Pair, lags: bool) -> None:
    journal = RedisJournal(pair.watch(), timeout=2.0)
    await journal.open()
    await journal.take("a")
    for position in range(1, 51):
        await journal.append([entry("a", position)])
    if lags:
        pair.replica.pause()
        # More than its socket holds, so that the replica has surely not got the last of them.
        for position in range(51, 60):
            await journal.append([entry("a", position, b"x" * 2_000_000, strong=False)])
    last = 59 if lags else 50
    pair.master.kill()
    with pytest.raises(JournalUnknown):
        await journal.append([entry("a", last + 1)])
    pair.replica.resume()
    await asyncio.to_thread(pair.sentinel.wait_for, "+switch-master")
    meta = f"{RedisSubject.TAG}:meta:a"
    if lags:
        with pytest.raises(JournalLost) as refused:
            await settled(journal, "a", last + 1)
        [(_, last_kept)] = refused.value.logs.values()
        assert 50 <= last_kept == int(pair.replica.execute("HGET", meta, "last")) < last
        await repeated(lambda: journal.restore("a", last + 1, b"memory"))
        await settled(journal, "a", last + 2)
        assert (await journal.load("a")).records == [(last + 2, b"a:61")]
    else:
        await settled(journal, "a", 51)
        assert [position for position, _ in (await journal.load("a")).records] == list(range(1, 52))
        assert pair.replica.execute("HGET", meta, "last") == b"51"
    await journal.close()


async def test_taking_and_healing_wait_for_the_replica(pair: Pair) -> None:
    journal = RedisJournal(pair.master.url, timeout=HASTY)
    await journal.open()
    await journal.take("a")
    await journal.append([entry("a", 1)])
    for key in ("records", "meta"):
        pair.master.execute("DEL", f"{RedisSubject.TAG}:{key}:a")
    with pytest.raises(JournalLost):
        await journal.confirm(["a"])
    pair.replica.pause()
    short = "has it, but WAIT for 1 was answered by 0"
    for write in (journal.restore("a", 2, b"one"), journal.take("b")):
        with pytest.raises(JournalUnknown, match=short):
            await write
    # Not acknowledged, so not known: neither is an owner.
    with pytest.raises(JournalFenced):
        await journal.confirm(["a", "b"])
    pair.replica.resume()
    healed = await repeated(lambda: journal.restore("a", 2, b"one"))
    newer = await repeated(lambda: journal.take("b"))
    for log, owner in (("a", healed), ("b", newer)):
        assert pair.replica.execute("HGET", f"{RedisSubject.TAG}:meta:{log}", "epoch") == str(owner.epoch).encode()
    assert await journal.confirm(["a", "b"]) == 0
    await journal.close()


async def test_nobody_waits_for_a_take_that_waits(pair: Pair) -> None:
    journal = RedisJournal(pair.master.url, timeout=60.0)
    await journal.open()
    await journal.take("a")
    pair.replica.pause()
    taking = [asyncio.create_task(journal.take(name)) for name in ("b", "c")]
    await eventually_async(lambda: pair.master.execute("HGET", f"{RedisSubject.TAG}:meta:b", "epoch"))
    await journal.append([entry("a", 1, strong=False)])
    assert [position for position, _ in (await journal.load("a")).records] == [1]
    assert not any(take.done() for take in taking)
    pair.replica.resume()
    for name, take in zip(("b", "c"), taking, strict=True):
        owner = await take
        assert journal.ownership(name) == owner
    await journal.close()


async def test_one_whose_state_is_damaged_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    """The damaged one is asked for with the others, as the logs of dropped computations are, which nobody has read before."""
    with RedisServer(tmp_path) as server:
        server.start()
        journal = RedisJournal(server.url)
        await journal.open()
        server.execute("HSET", f"{RedisSubject.TAG}:meta:b", "epoch", "no number")
        first = asyncio.create_task(journal.take("first"))
        outcomes = await asyncio.gather(*(journal.take(name) for name in "abc"), return_exceptions=True)
        assert [isinstance(outcome, Ownership) for outcome in outcomes] == [True, False, True]
        assert await first
        await journal.close()


async def test_a_claim_waits_for_the_sync_where_the_server_can(tmp_path: Path) -> None:
    """Redis 7.2 and newer can; an older one is said to lose claims."""
    with RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "everysec") as server:
        server.start()
        journal = RedisJournal(server.url)
        await journal.open()
        await journal.take("a")
        await journal.append([entry("a", 1, strong=False)])
        server.execute("CONFIG", "RESETSTAT")
        for position in range(2, 5):
            await journal.append([entry("a", position, strong=position == 3)])
        used = server.execute("INFO", "commandstats").get("cmdstat_waitaof", {"calls": 0})["calls"]
        claims = journal.describe_durability().partition("A claim can lose: ")[2]
        assert (used, claims[:40]) in {
            (1, "to a power cut nothing (WAITAOF), to a f"),
            (0, "to a power cut up to 2 s (WAITAOF needs "),
        }
        await journal.close()


def move(tag: str, one: RedisServer, two: RedisServer) -> None:
    """Move the slot of a tag, with its keys, from one node of a cluster to another."""
    slot = one.execute("CLUSTER", "KEYSLOT", tag)
    source, target = (node.execute("CLUSTER", "MYID") for node in (one, two))
    two.execute("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
    one.execute("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
    keys = one.execute("CLUSTER", "GETKEYSINSLOT", slot, 1000)
    one.execute("MIGRATE", "127.0.0.1", two.port, "", 0, 5000, "KEYS", *keys)
    for node in (two, one):
        node.execute("CLUSTER", "SETSLOT", slot, "NODE", target)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """Two nodes, of which the first has all slots."""
    options = ("--cluster-enabled", "yes", *DURABLE)
    with RedisServer(tmp_path / "one", *options) as one, RedisServer(tmp_path / "two", *options) as two:
        one.start()
        two.start()
        one.execute("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        one.execute("CLUSTER", "MEET", "127.0.0.1", two.port)
        for node in (one, two):
            node.wait_for("Cluster state changed: ok")
        yield one, two


async def test_a_cluster_that_moves_the_journal(cluster: tuple[RedisServer, RedisServer]) -> None:
    one, two = cluster
    journal = RedisJournal(f"redis+cluster://127.0.0.1:{two.port},127.0.0.1:{one.port}")
    await journal.open()
    await journal.take("a")
    await journal.append([entry("a", n) for n in range(1, 11)] + [entry("", 1)])
    await journal.snapshot("a", 5, b"five")
    await asyncio.to_thread(move, RedisSubject.TAG, one, two)
    await journal.append([entry("a", 11), entry("", 2)])
    stored = await journal.load("a")
    assert (stored.snapshot, [position for position, _ in stored.records]) == (b"five", list(range(6, 12)))
    assert two.execute("HGET", f"{RedisSubject.TAG}:meta:a", "last") == b"11"
    await journal.close()
