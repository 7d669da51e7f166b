"""The client finds each computation's shard by itself, against shards of a few lines. On asyncio: test_aio_client.py."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import lowwater
import lowwater.aio
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


# -- watching -----------------------------------------------------------------------------------------------------


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
