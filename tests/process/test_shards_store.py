"""The store goes away, hangs, or comes back empty, and all shards with it live: nobody is expelled, and nothing is lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import lowwater
from lowwater_authority.cluster.membership import View
from tests.kit.eventually import eventually
from tests.process.following import Following, Work
from tests.process.sharding import DEAD_AFTER, Sharded, balanced, spread

AWAY_SECONDS = 5.0


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharded]:
    with Sharded(tmp_path_factory.mktemp("store"), 2) as one:
        yield one


@contextmanager
def nothing_is_lost(deployment: Sharded, lw: lowwater.Client, names: list[str]) -> Iterator[Work]:
    """Check that work on the store changes nothing: not who serves what, nor whose claims they are, nor any promise."""
    for name in names:
        lw.register(name)
    eventually(lambda: spread(lw, names, *deployment.shards))
    with Following() as following:
        following.follow(*(shard.address for shard in deployment.shards))
        with Work(lw, names) as work:
            following.until(10, names)
            members = {shard.id: shard.computations for shard in lw.shards()}
            token = lw.server_token
            yield work
            back = time.monotonic()
            following.until(work.done, names)
            print(f"went on after {time.monotonic() - back:.2f} s")
            work.flush()
            assert not any(lease.lost for lease in work.leases.values())
            eventually(lambda: {shard.id: shard.computations for shard in lw.shards()} == members)
            assert lw.server_token == token
        assert max(map(following.low, names)) <= work.done
        following.check()


def stored(deployment: Sharded) -> View:
    """The members and pins that the store has."""
    return View.decode(deployment.redis.execute("HGET", "{lowwater:default}:view", "view") or b"")


def test_rule11_a_store_that_hangs_makes_watermarks_old_and_nothing_else(deployment: Sharded) -> None:
    names = balanced("hang/", 3, *deployment.shards)
    with deployment.connect() as lw, nothing_is_lost(deployment, lw, names) as work, lw.inputs(*names) as reader:
        epochs = {name: view.epoch for name, view in lw.get(*names).items()}
        eventually(lambda: not reader.read().low.unknown)
        deployment.redis.pause()
        eventually(lambda: reader.read().stale_for > AWAY_SECONDS)
        low, done = reader.read().low.micros, work.done
        assert low < done
        with pytest.raises((lowwater.Unavailable, lowwater.Timeout)):
            deployment.connect(timeout=0.5).get(*names)
        deployment.redis.resume()
        eventually(lambda: reader.read().low.micros >= done and reader.read().stale_for < DEAD_AFTER)
        assert {name: view.epoch for name, view in lw.get(*names).items()} == epochs


def test_rule2_a_store_that_comes_back_empty_is_given_everything_back(deployment: Sharded) -> None:
    """Rule 2 beyond the store's word (C7a): memory has what was shown."""
    names = balanced("empty/", 3, *deployment.shards)
    with deployment.connect() as lw, nothing_is_lost(deployment, lw, names):
        graph = lw.topology().computations
        pinned = {names[0]: next(shard.address for shard in lw.shards() if names[0] in shard.computations)}
        lw.pin(names[0], pinned[names[0]])
        for shard in deployment.shards:
            with lowwater.connect(shard.address) as one:
                assert one.shards().pins == pinned, "each of them has to remember it"
        deployment.redis.kill()
        shutil.rmtree(deployment.redis.directory / "appendonlydir")
        deployment.redis.start()
        eventually(lambda: all("putting it back from memory" in shard.log for shard in deployment.shards))
        eventually(lambda: lw.topology().computations == graph)
        eventually(lambda: len(stored(deployment).members) == len(deployment.shards))
        assert stored(deployment).pins == pinned
