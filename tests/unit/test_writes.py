"""A store that refuses writes: told in the log and by health, and told when it is over."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lowwater import errors
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.shard import Shard
from lowwater_authority.engine.writes import StoreState
from lowwater_authority.journal import SqliteJournal
from lowwater_authority.ops.observer import Observer
from tests.kit.memory_journal import MemoryDisk
from tests.kit.times import HOUR
from tests.unit.test_shard import Running


def told(caplog: pytest.LogCaptureFixture, *names: str) -> list[dict[str, object]]:
    """The events of some names, in order."""
    found: list[dict[str, object]] = [
        {**vars(record)["lowwater"], "level": record.levelno}
        for record in caplog.records
        if hasattr(record, "lowwater")
    ]
    return [each for each in found if each["event"] in names]


class OverAFile(Running):
    """A shard over a real SQLite file."""

    def __init__(self, path: Path) -> None:
        super().__init__(MemoryDisk())
        self.journal = SqliteJournal(path)
        self.shard = Shard(self.journal, clock=lambda: 1_000 * HOUR, observer=Observer())

    async def allow(self, pages: int) -> None:
        """Let the file have so many pages; SQLite treats the next one as a full disk."""
        connection = self.journal._database._connection
        await self.journal._run(lambda: connection.execute(f"PRAGMA max_page_count = {pages}").fetchall())


async def test_a_full_disk_is_a_line_with_path_and_fix_and_a_line_when_it_is_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = OverAFile(tmp_path / "journal.sqlite")
    await one.start()
    states: list[StoreState] = []
    one.shard.writes.on_change.append(states.append)
    await one.shard.register(Spec("a"))
    await one.allow(1)
    many = [b"", *(number.to_bytes(16) for number in range(1, 5_000)), b""]
    for _ in range(20):
        with pytest.raises(errors.JournalFailed):
            await one.claim("a", *many)
    [refused] = told(caplog, "journal_refused", "journal_back")
    assert refused["level"] == logging.ERROR
    assert str(tmp_path / "journal.sqlite") in str(refused["reason"])
    assert "free space on its disk" in str(refused["reason"])
    assert one.shard.store_state(1_000 * HOUR) is StoreState.REFUSES
    await one.allow(1_000_000)
    await one.claim("a", *many)
    await one.claim("a")
    assert told(caplog, "journal_back") == [{"event": "journal_back", "refused": 20, "level": logging.INFO}]
    assert states == [StoreState.REFUSES, StoreState.TAKES]
    await one.stop()
