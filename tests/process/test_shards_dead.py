"""How soon a shard is replaced: at once when its process has died, and only after --dead-after when it is merely silent."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import lowwater
from tests.kit.eventually import eventually
from tests.process.sharding import DEAD_AFTER, Shard, Sharded

LONG = 6.0
"""Seconds. A --dead-after that no busy machine makes a shard miss; 1.8 s are a beat and a half of it."""

ESTABLISHED = "01"
"""In Linux's table of connections."""


def members(lw: lowwater.Client) -> set[str]:
    """Who is in the view."""
    return {each.address for each in lw.shards()}


def connected(shard: Shard, other: Shard) -> bool:
    """Whether a process holds a connection to another's port; what a subscriber of it would hold, nobody has here."""
    assert shard.process is not None
    port = int(other.address.rpartition(":")[2])
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    inodes = {line[9] for line in lines if line[2].endswith(f":{port:04X}") and line[3] == ESTABLISHED}
    held: set[str] = set()
    for each in Path(f"/proc/{shard.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            held.add(str(each.readlink()))
    return any(f"socket:[{inode}]" in held for inode in inodes)


def seconds_until_left_out(lw: lowwater.Client, shard: Shard, since: float) -> float:
    eventually(lambda: shard.address not in members(lw))
    return time.monotonic() - since


def test_a_process_that_died_is_not_waited_for_and_comes_back(tmp_path: Path) -> None:
    with Sharded(tmp_path, 2, dead_after=LONG) as deployment:
        victim, other = deployment.shards
        with lowwater.connect(other.address) as lw:
            assert members(lw) == {victim.address, other.address}
            eventually(lambda: connected(other, victim))
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
            before = time.monotonic()
            frozen.freeze()
            # It was heard of a beat before, at the earliest.
            assert seconds_until_left_out(lw, frozen, before) > DEAD_AFTER - DEAD_AFTER / 5 - 0.1
            assert "seems to have died" not in other.log
            frozen.thaw()
            eventually(lambda: members(lw) == {frozen.address, other.address})
