"""A backup that is taken while all runs, and what comes back from it: docs/operate/durability.md."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import lowwater
from tests.process.serving import Serving

SECONDS = 60.0


def advance(lease: lowwater.Lease, low: int) -> None:
    lease.advance(None, oldest=None, frontier=low)
    lease.flush(SECONDS)


def low(lw: lowwater.Client, name: str) -> int:
    return lw.get(name)[name].low.micros


def connect(address: str) -> lowwater.Client:
    return lowwater.connect(address, timeout=SECONDS)


def hot_backup(data: Path, target: Path) -> None:
    """Do what `sqlite3 DATA/journal.sqlite ".backup TARGET/journal.sqlite"` does, while the authority has the file open."""
    target.mkdir()
    with (
        closing(sqlite3.connect(data / "journal.sqlite")) as source,
        closing(sqlite3.connect(target / "journal.sqlite")) as copied,
    ):
        source.backup(copied)


def restore(server: Serving, backup: Path) -> None:
    server.kill()
    shutil.rmtree(server.data)
    shutil.copytree(backup, server.data)
    server.start()


def test_an_embedded_journal_comes_back_from_a_backup_of_while_it_was_served(server: Serving, tmp_path: Path) -> None:
    """Claims since the backup are forgotten: such an owner is refused, and never taken for the one that the backup knows."""
    with connect(server.address) as reader, connect(server.address) as lw, connect(server.address) as newer:
        for name in ("kept", "taken"):
            lw.register(name)
        staying, replaced = lw.worker("kept").claim(), lw.worker("taken").claim()
        advance(staying, 10)
        advance(replaced, 10)
        hot_backup(server.data, tmp_path / "backup")
        token = lw.server_token
        advance(staying, 20)
        newest = newer.worker("taken").claim()
        advance(newest, 30)
        assert low(reader, "taken") == 30

        restore(server, tmp_path / "backup")
        advance(staying, 21)
        with connect(server.address) as fresh:
            assert {name: low(fresh, name) for name in ("kept", "taken")} == {"kept": 21, "taken": 10}
            assert fresh.server_token == token
        assert low(reader, "taken") == 30, "it keeps what it was shown"
        with pytest.raises(lowwater.StaleSequencer):
            advance(newest, 40)
        again = newer.worker("taken").claim()
        assert again.sequencer > newest.sequencer
        advance(again, 40)
        assert low(reader, "taken") == 40
