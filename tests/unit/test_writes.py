"""A store that refuses writes: told in the log and by health, and told when it is over."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lowwater import errors
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.writes import StoreState
from lowwater_authority.journal import SqliteJournal
from tests.kit.memory_journal import MemoryDisk
from tests.kit.times import HOUR
from tests.unit.test_journal_sqlite import pragma
from tests.unit.test_shard import Running


def told(caplog: pytest.LogCaptureFixture, *names: str) -> list[dict[str, object]]:
    """The events of some names, in order."""
    found: list[dict[str, object]] = [
        {**vars(record)["lowwater"], "level": record.levelno}
        for record in caplog.records
        if hasattr(record, "lowwater")
    ]
    return [each for each in found if each["event"] in names]


async def test_a_full_disk_is_a_line_with_path_and_fix_and_a_line_when_it_is_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    journal = SqliteJournal(tmp_path / "journal.sqlite")
    one = await Running(MemoryDisk(), journal=journal).start()
    states: list[StoreState] = []
    one.shard.writes.on_change.append(states.append)
    await one.shard.register(Spec("a"))
    await pragma(journal, "max_page_count = 1")
    many = [b"", *(number.to_bytes(16) for number in range(1, 5_000)), b""]
    for _ in range(20):
        with pytest.raises(errors.JournalFailed):
            await one.claim("a", *many)
    [refused] = told(caplog, "journal_refused", "journal_back")
    assert refused["level"] == logging.ERROR
    assert str(tmp_path / "journal.sqlite") in str(refused["reason"])
    assert "free space on its disk" in str(refused["reason"])
    assert one.shard.store_state(1_000 * HOUR) is StoreState.REFUSES
    await pragma(journal, "max_page_count = 1000000")
    await one.claim("a", *many)
    await one.claim("a")
    assert told(caplog, "journal_back") == [{"event": "journal_back", "refused": 20, "level": logging.INFO}]
    assert states == [StoreState.REFUSES, StoreState.TAKES]
    await one.stop()
