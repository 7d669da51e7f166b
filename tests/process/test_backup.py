"""Backups that are taken while all runs, what comes back from an older one, and what is left when nothing comes back: docs/operations.md."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

import lowwater
from lowwater.cli import main
from tests.contract.redis_server import DURABLE, RedisServer
from tests.kit.eventually import eventually
from tests.process.serving import Serving
from tests.process.sharding import Sharded

SECONDS = 60.0


def advance(lease: lowwater.Lease, low: int) -> None:
    """Report, and wait until it is durable."""
    lease.advance(None, oldest=None, frontier=low)
    lease.flush(SECONDS)


def low(lw: lowwater.Client, name: str) -> int:
    return lw.get(name)[name].low.micros


def epoch(lw: lowwater.Client) -> int:
    """Of the server, as a client hears it; 0 while none answers."""
    try:
        return lw.get("a")["a"].epoch
    except (lowwater.Unavailable, lowwater.Timeout):
        return 0


def copy(source: str | Path, target: str | Path) -> None:
    assert main(["journal", "copy", str(source), str(target)]) == 0


def connect(address: str) -> lowwater.Client:
    return lowwater.connect(address, timeout=SECONDS)


def hot_backup(data: Path, target: Path) -> None:
    """What `sqlite3 DATA/journal.sqlite ".backup TARGET/journal.sqlite"` does, while the authority has the file open."""
    target.mkdir()
    with (
        closing(sqlite3.connect(data / "journal.sqlite")) as source,
        closing(sqlite3.connect(target / "journal.sqlite")) as copied,
    ):
        source.backup(copied)


def restore(server: Serving, backup: Path) -> None:
    """Put a backup in the place of what a server had, and start it."""
    server.kill()
    shutil.rmtree(server.data)
    shutil.copytree(backup, server.data)
    server.start()


def test_an_embedded_journal_comes_back_from_a_backup_of_while_it_was_served(server: Serving, tmp_path: Path) -> None:
    """What was claimed since is forgotten: its owner is refused, and never taken for the one that the backup knows."""
    with connect(server.address) as reader, connect(server.address) as lw, connect(server.address) as newer:
        for name in ("kept", "taken"):
            lw.register(name)
        kept, replaced = lw.worker("kept").claim(), lw.worker("taken").claim()
        advance(kept, 10)
        advance(replaced, 10)
        hot_backup(server.data, tmp_path / "backup")
        token = lw.server_token
        advance(kept, 20)
        taken = newer.worker("taken").claim()
        advance(taken, 30)
        assert low(reader, "taken") == 30

        restore(server, tmp_path / "backup")
        advance(kept, 21)
        with connect(server.address) as fresh:
            assert {name: low(fresh, name) for name in ("kept", "taken")} == {"kept": 21, "taken": 10}
            assert fresh.server_token == token
        assert low(reader, "taken") == 30, "it keeps what it was shown"
        with pytest.raises(lowwater.StaleSequencer):
            advance(taken, 40)
        again = newer.worker("taken").claim()
        assert again.sequencer > taken.sequencer
        advance(again, 40)
        assert low(reader, "taken") == 40


def test_a_shared_journal_comes_back_from_a_snapshot_of_redis(tmp_path: Path) -> None:
    """Taken while shards serve; made a folder by way of a Redis of its own, which checks every byte; and put into an empty one."""
    with Sharded(tmp_path, 1) as d, d.connect() as lw:
        lw.register("a")
        lease = lw.worker("a").claim()
        advance(lease, 10)
        token = lw.server_token
        aside = RedisServer(tmp_path / "aside")
        taken = ["redis-cli", "-p", str(d.redis.port), "--rdb", str(tmp_path / "aside/dump.rdb")]
        subprocess.run(taken, check=True, capture_output=True, timeout=SECONDS)
        advance(lease, 20)
        with aside:
            aside.start()
            # The shards' beats are in it: they have to be 10 s old.
            beats = "{lowwater:default}:beats"
            for name, heard in aside.execute("HGETALL", beats).items():
                aside.execute("HSET", beats, name, int(heard) - 11_000_000)
            copy(aside.url, tmp_path / "backup")

        shard = d.shards[0]
        shard.kill()
        d.redis.kill()
        with RedisServer(tmp_path / "new", *DURABLE) as new:
            copy(tmp_path / "backup", new.start().url)
            shard.store = new.url
            shard.start()
            with connect(shard.address) as fresh:
                eventually(lambda: not fresh.get("a")["a"].low.unknown)
                assert fresh.server_token == token
                advance(lease, 21)
                assert low(fresh, "a") == 21
            assert shard.stop() == 0
