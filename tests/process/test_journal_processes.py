"""The SQLite journal among real processes: one at a time, and whole after any kill."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lowwater_authority.journal import SqliteJournal
from tests.process.journal_child import LOGS, payload

KILLS = 10


@contextmanager
def child(mode: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone afterwards, whatever happens."""
    command = [sys.executable, "-m", "tests.process.journal_child", mode, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line that the process says."""
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said, f"the process ended with {process.wait()}"
    found = json.loads(said)
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_everything_acknowledged_is_there_after_kill_9(tmp_path: Path) -> None:
    """The page cache survives a kill: this shows whole transactions and order. Syncing is shown in test_fdatasync."""
    path = tmp_path / "journal.db"
    source = random.Random(9)
    acknowledged = 0
    for kill in range(KILLS):
        with child("append", path) as process:
            begun = line(process)
            assert begun["epoch"] == kill + 1
            assert acknowledged <= begun["last"] <= acknowledged + 1
            # Also what nobody was told of: two kills in a row may each leave one such record.
            acknowledged = begun["last"]
            # Some die with their first append under way.
            for _ in range(source.choice([0, 1, source.randrange(300)])):
                acknowledged = line(process)["acknowledged"]
            process.kill()
            assert process.stdout is not None
            rest = [said for said in process.stdout.read().splitlines(keepends=True) if said.endswith("\n")]
            if rest:
                acknowledged = json.loads(rest[-1])["acknowledged"]
    assert acknowledged > 100
    last = asyncio.run(check(path))
    assert acknowledged <= last <= acknowledged + 1


async def check(path: Path) -> int:
    """The last position, once every record and snapshot is found to be what was appended."""
    journal = SqliteJournal(path)
    await journal.open()
    loaded = {log: await journal.load(log) for log in LOGS}
    await journal.close()
    for log, found in loaded.items():
        if found.snapshot_position:
            assert found.snapshot == payload("snapshot", found.snapshot_position)
        assert found.records == [(n, payload(log, n)) for n in range(found.snapshot_position + 1, found.last + 1)]
    assert len({found.last for found in loaded.values()}) == 1
    return loaded[LOGS[0]].last
