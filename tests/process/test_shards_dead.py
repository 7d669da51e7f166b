"""A shard whose process has died is replaced at once, and not only after --dead-after."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import lowwater
from tests.kit.eventually import eventually
from tests.process.sharding import Shard, Sharded

LONG = 10.0
"""Seconds. A --dead-after that no busy machine makes a shard miss; 3 s are a beat and a half of it."""

ESTABLISHED = "01"
"""The state in Linux's table of connections."""


def connected(shard: Shard, other: Shard) -> bool:
    """Return True if a process holds a connection to another's port, with no subscriber that would hold one here."""
    assert shard.process is not None
    port = int(other.address.rpartition(":")[2])
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    inodes = {line[9] for line in lines if line[2].endswith(f":{port:04X}") and line[3] == ESTABLISHED}
    links: set[str] = set()
    for path in Path(f"/proc/{shard.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.add(str(path.readlink()))
    return any(f"socket:[{inode}]" in links for inode in inodes)


def test_a_process_that_died_is_not_waited_for_and_comes_back(tmp_path: Path) -> None:
    with Sharded(tmp_path, 2, dead_after=LONG) as deployment:
        victim, other = deployment.shards
        with lowwater.connect(other.address) as lw:

            def members() -> set[str]:
                return {shard.address for shard in lw.shards()}

            assert members() == {victim.address, other.address}
            eventually(lambda: connected(other, victim))
            killed = time.monotonic()
            victim.kill()
            eventually(lambda: victim.address not in members())
            assert time.monotonic() - killed < LONG - LONG / 5
            assert "seems to have died" in other.log
            victim.start()
            eventually(lambda: members() == {victim.address, other.address})
