"""How soon a shard is replaced: at once when its process has died, and only after --dead-after when it is merely silent."""

from __future__ import annotations

import time
from pathlib import Path

import lowwater
from tests.kit.eventually import eventually
from tests.process.sharding import DEAD_AFTER, Shard, Sharded

LONG = 10.0
"""A --dead-after that no busy machine makes a shard miss; three seconds are a beat and a half of it."""


def members(lw: lowwater.Client) -> set[str]:
    """Who is in the view."""
    return {each.address for each in lw.shards()}


def seconds_until_left_out(lw: lowwater.Client, shard: Shard, since: float) -> float:
    eventually(lambda: shard.address not in members(lw))
    return time.monotonic() - since


def test_a_process_that_died_is_not_waited_for_and_comes_back(tmp_path: Path) -> None:
    with Sharded(tmp_path, 2, dead_after=LONG) as deployment:
        victim, other = deployment.shards
        with lowwater.connect(other.address) as lw:
            killed = time.monotonic()
            victim.kill()
            assert seconds_until_left_out(lw, victim, killed) < LONG - LONG / 5
            assert "seems to have died" in other.log
            victim.start()
            eventually(lambda: members(lw) == {victim.address, other.address})


def test_a_process_that_is_only_stopped_keeps_its_place_until_dead_after(tmp_path: Path) -> None:
    with Sharded(tmp_path, 2) as deployment:
        frozen, other = deployment.shards
        with lowwater.connect(other.address) as lw:
            frozen.freeze()
            # It was heard of a beat before, at the earliest.
            assert seconds_until_left_out(lw, frozen, time.monotonic()) > DEAD_AFTER - DEAD_AFTER / 5 - 0.1
            assert "seems to have died" not in other.log
            frozen.thaw()
            eventually(lambda: members(lw) == {frozen.address, other.address})
