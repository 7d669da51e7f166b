"""The client finds each computation's shard by itself, against shards of a few lines. On asyncio: test_aio_client.py."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import lowwater
import lowwater.aio
from tests.kit.eventually import eventually
from tests.process.scripted_shards import Deployment, Shard

Connect = Callable[..., lowwater.Client]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients."""
    with ExitStack() as clients:

        def make(*shards: Shard, timeout: float = 20.0) -> lowwater.Client:
            addresses = ",".join(shard.address for shard in shards)
            return clients.enter_context(lowwater.connect(addresses, timeout=timeout))

        yield make


@pytest.fixture
def deployment() -> Deployment:
    return Deployment("a", "b", "c")


@pytest.fixture
def shards(deployment: Deployment) -> Iterator[tuple[Shard, Shard, Shard]]:
    """Three shards: the first serves "a", the second "b", the third "c"."""
    made = Shard.start(deployment), Shard.start(deployment), Shard.start(deployment)
    for name, shard in zip("abc", made, strict=True):
        deployment.give(name, shard)
    yield made
    for shard in made:
        shard.kill()


Three = tuple[Shard, Shard, Shard]


# -- calls --------------------------------------------------------------------------------------------------------


def test_a_read_of_all_is_joined_from_all_shards(connect: Connect, deployment: Deployment, shards: Three) -> None:
    for name, low in (("a", 1), ("b", 2), ("c", 3)):
        deployment.publish(name, low)
    lw = connect(shards[0])
    assert {name: view.low.micros for name, view in lw.get().items()} == {"a": 1, "b": 2, "c": 3}
    assert list(lw.get("c", "a", "b")) == ["c", "a", "b"], "in the order asked"
    assert lw.get("b")["b"].low.micros == 2
    asked = deployment.asked
    assert [asked[shard.address, "Get"] for shard in shards] == [2, 3, 2], "what is known is asked where it is"
    assert not any(asked[shard.address, "Locate"] for shard in shards)


def test_calls_go_to_the_computations_shard(connect: Connect, deployment: Deployment, shards: Three) -> None:
    lw = connect(shards[0])
    lease = lw.worker("c").claim()
    lease.release()
    asked = deployment.asked
    assert [asked[shard.address, "Claim"] for shard in shards] == [1, 0, 1]
    assert [asked[shard.address, "Release"] for shard in shards] == [0, 0, 1]


def test_what_nobody_serves_is_waited_for(connect: Connect, deployment: Deployment, shards: Three) -> None:
    lw = connect(shards[0])
    deployment.give("b", None)
    claimed: list[Any] = []
    claiming = threading.Thread(target=lambda: claimed.append(lw.worker("b").claim()))
    claiming.start()
    deployment.until(lambda: deployment.asked[shards[0].address, "Locate"] >= 2)
    deployment.give("b", shards[1])
    claiming.join(30)
    assert claimed
    impatient = connect(shards[0], timeout=0.3)
    deployment.give("c", None)
    with pytest.raises(lowwater.Unavailable, match="no shard answered for c"):
        impatient.get()


def test_the_shards_are_listed_drained_and_pinned(connect: Connect, shards: Three) -> None:
    lw = connect(shards[0])
    found = lw.shards()
    view = lowwater.ShardView(shards[0].address, "one", True, 1.5, ("a",))
    assert (found.version, list(found), found.pins, found.unserved) == (7, [view], {"a": shards[0].address}, ("b",))
    assert (lw.drain("there"), lw.drain("there", cancel=True)) == (5, 0)
    assert (lw.pin("a", "there"), lw.pin("a", None)) == (9, 10)
    with pytest.raises(lowwater.InvalidArgument):
        lw.pin("a", "")


# -- watching -----------------------------------------------------------------------------------------------------


def test_inputs_over_shards_fold_like_one(connect: Connect, deployment: Deployment, shards: Three) -> None:
    for name, low in (("a", 5), ("b", 3), ("c", 4)):
        deployment.publish(name, low)
    lw = connect(shards[0])
    reader = lw.inputs("a", "b", "c")
    seen = reader.read()
    assert (seen.low.micros, seen.held_by) == (3, "b")
    assert seen.stale_for < 5
    deployment.publish("b", 8)
    assert lw.wait("b", 8, timeout=20).low.micros == 8
    assert reader.read().low.micros == 4
    deployment.give("c", shards[1])
    deployment.publish("c", 6)
    assert lw.wait("c", 6, timeout=20).epoch == 3
    assert reader.read().low.micros == 5


def test_everything_is_followed_over_all_shards(connect: Connect, deployment: Deployment, shards: Three) -> None:
    lw = connect(shards[0])
    changes = lw.watch()
    assert {next(changes).computation for _ in range(3)} == {"a", "b", "c"}
    deployment.publish("c", 7)
    changed = next(changes)
    assert (changed.computation, changed.low.micros) == ("c", 7)
    shards[2].kill()
    deployment.give("c", shards[0])
    deployment.publish("c", 8)
    while changed.low.micros != 8:
        changed = next(changes)
    assert (changed.computation, changed.epoch) == ("c", 3)
    deployment.give("a", shards[1])
    deployment.publish("a", 9)
    while changed.low.micros != 9:
        changed = next(changes)
    assert (changed.computation, changed.epoch) == ("a", 3)


def waits_for_a_busy_shard(lw: lowwater.Client, shard: Shard) -> None:
    """Have the client watch "c" later, much later."""
    assert lw.wait("c", 0, timeout=20).registered
    shard.busy = 60
    eventually(lambda: lw.statistics().watcher.unserved == ("c",))


def test_what_a_busy_shard_served_is_watched_at_once_where_a_call_has_found_it(
    connect: Connect, deployment: Deployment, shards: Three
) -> None:
    lw = connect(shards[0])
    following = lw.inputs("c")
    following.read()
    waits_for_a_busy_shard(lw, shards[2])
    deployment.give("c", shards[1])
    deployment.publish("c", 5)
    assert lw.get("c")["c"].epoch == 3
    deployment.publish("c", 6)
    assert lw.wait("c", 6, timeout=20).epoch == 3


def test_a_client_that_waits_for_a_busy_shard_is_closed_at_once(
    connect: Connect, deployment: Deployment, shards: Three
) -> None:
    lw = connect(shards[0])
    following = lw.inputs("c")
    following.read()
    waits_for_a_busy_shard(lw, shards[2])
    began = time.monotonic()
    lw.close()
    assert time.monotonic() - began < 5.0


# -- reporting ----------------------------------------------------------------------------------------------------


def advanced(lease: Any, low: int) -> None:
    lease.advance(None, oldest=None, frontier=low)


def test_a_lease_follows_its_computation(connect: Connect, deployment: Deployment, shards: Three) -> None:
    lw = connect(shards[0])
    leases = {name: lw.worker(name).claim() for name in ("a", "b")}
    for name, lease in leases.items():
        advanced(lease, 5)
        lease.flush()
        assert deployment.taken[name] == [(shards["ab".index(name)].address, 5)]
    deployment.give("b", shards[2])
    advanced(leases["b"], 6)
    leases["b"].flush()
    assert (shards[2].address, 6) in deployment.taken["b"]
    assert (shards[1].address, 6) not in deployment.taken["b"]
    statistics = lw.statistics().reporter
    assert (statistics.leases, statistics.waiting) == (2, 0)


def test_rule2_nothing_is_durable_that_the_new_shard_did_not_take(
    connect: Connect, deployment: Deployment, shards: Three
) -> None:
    """A shard dies with a report that it has read and not answered."""
    lw = connect(shards[0])
    lease = lw.worker("b").claim()
    advanced(lease, 5)
    lease.flush()
    shards[1].acknowledging = False
    reports = deployment.asked[shards[1].address, "report"]
    advanced(lease, 6)
    deployment.until(lambda: deployment.asked[shards[1].address, "report"] > reports)
    shards[2].acknowledging = False
    shards[1].kill()
    deployment.give("b", shards[2])
    deployment.until(lambda: deployment.asked[shards[2].address, "report"])
    with pytest.raises(lowwater.Timeout):
        lease.flush(0.2)
    assert deployment.taken["b"][-1] == (shards[1].address, 5)
    advanced(lease, 7)
    shards[2].kill()
    deployment.give("b", shards[0])
    lease.flush()
    assert deployment.taken["b"][-1] == (shards[0].address, 7)


def test_a_lease_that_nobody_serves_waits(connect: Connect, deployment: Deployment, shards: Three) -> None:
    lw = connect(shards[0])
    lease = lw.worker("b").claim()
    deployment.give("b", None)
    advanced(lease, 5)
    deployment.until(lambda: deployment.asked[shards[0].address, "Locate"])
    with pytest.raises(lowwater.Timeout, match="not known which shard"):
        lease.flush(0.1)
    deployment.give("b", shards[0])
    lease.flush()
    assert deployment.taken["b"][-1] == (shards[0].address, 5)


# -- forks --------------------------------------------------------------------------------------------------------


FORKING = """
import os, signal, sys
import lowwater

lw = lowwater.connect(sys.argv[1], timeout=20)
reader = lw.inputs("a", "b", "c")
reader.read()
lease = lw.worker("b").claim()

def advanced(low):
    lease.advance(None, oldest=None, frontier=low)
    lease.flush()

advanced(1)
connection = lw._runtime().connection
before = dict(connection._channels.by_address)
assert len(before) == 3
for number in range(2, 12):
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        code = 1
        try:
            assert sorted(lw.get()) == ["a", "b", "c"]
            assert reader.read().stale_for < 10
            lw.worker("c").claim()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    advanced(number)
    assert reader.read().stale_for < 10
assert not {used.channel for used in before.values()} & {used.channel for used in connection._channels.by_address.values()}
lw.close()
print("done")
"""


def test_a_fork_closes_all_channels_and_all_streams_go_on(deployment: Deployment, shards: Three) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKING, shards[0].address], check=True, timeout=100, stdout=subprocess.PIPE, text=True
    )
    assert ran.stdout == "done\n"
    assert deployment.taken["b"][-1] == (shards[1].address, 11)
    assert deployment.asked[shards[2].address, "Claim"] == 10
