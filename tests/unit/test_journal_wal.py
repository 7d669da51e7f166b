"""The write-ahead log of the SQLite journal: a torn tail is cut as a whole, a damaged middle is refused."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from lowwater_authority.journal import Entry, JournalCorrupt, SqliteJournal
from lowwater_authority.journal.wal import check_file, scan

HEADER, FRAME = 32, 24 + 4096


class Recorded(NamedTuple):
    """Files of a journal that was not closed, and the size of its write-ahead log after each acknowledgement."""

    database: Path
    log: bytes
    begin: int
    ends: list[int]


def names(number: int) -> list[str]:
    """The logs that append ``number`` goes to."""
    return ["", f"log {number % 3}", "big"]


@pytest.fixture
async def recorded(tmp_path: Path) -> Recorded:
    """Twelve transactions of three records each, one of them over several pages, none checkpointed."""
    path = tmp_path / "live" / "journal.db"
    path.parent.mkdir()
    journal = SqliteJournal(path)
    await journal.open()
    counts = dict.fromkeys(["", "log 0", "log 1", "log 2", "big"], 0)
    for log in counts:
        await journal.take(log)
    wal = path.with_name("journal.db-wal")
    begin, ends = wal.stat().st_size, []
    for number in range(1, 13):
        entries = []
        for log in names(number):
            counts[log] += 1
            payload = random.Random(number).randbytes(9_000 if log == "big" else 50)
            entries.append(Entry(log, counts[log], payload, strong=True))
        await journal.append(entries)
        ends.append(wal.stat().st_size)
    recorded = wal.read_bytes()
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    await journal.close()
    assert (len(recorded) - HEADER) % FRAME == 0
    return Recorded(copy, recorded, begin, ends)


def restored(recorded: Recorded, log: bytes, directory: Path) -> SqliteJournal:
    """A journal over the recorded database, with this write-ahead log."""
    directory.mkdir(exist_ok=True)
    path = directory / "journal.db"
    shutil.copy(recorded.database, path)
    path.with_name("journal.db-wal").write_bytes(log)
    return SqliteJournal(path)


async def whole_transactions(journal: SqliteJournal) -> int:
    """Number of appends that are there; each must be there whole, and none without the ones before it."""
    await journal.open()
    loaded = {log: await journal.load(log) for log in ["", "log 0", "log 1", "log 2", "big"]}
    await journal.close()
    count = loaded[""].last
    assert loaded["big"].last == count
    assert sum(loaded[f"log {n}"].last for n in range(3)) == count
    for number, payload in loaded["big"].records:
        assert payload == random.Random(number).randbytes(9_000)
    return count


async def test_a_log_cut_anywhere_keeps_every_whole_transaction(recorded: Recorded, tmp_path: Path) -> None:
    source = random.Random(1)
    boundaries = [end + delta for end in recorded.ends for delta in (-FRAME, -1, 0) if end + delta <= recorded.ends[-1]]
    cuts = boundaries + [source.randrange(recorded.begin, recorded.ends[-1]) for _ in range(60)]
    for cut in cuts:
        journal = restored(recorded, recorded.log[:cut], tmp_path / "cut")
        assert await whole_transactions(journal) == sum(end <= cut for end in recorded.ends), f"cut at byte {cut}"


async def test_a_torn_last_transaction_is_gone_as_a_whole(recorded: Recorded, tmp_path: Path) -> None:
    """Any byte of what was never synced may be wrong: other bytes, zeros, or pages written out of order."""
    source = random.Random(2)
    start, end = recorded.ends[-2], recorded.ends[-1]
    for attempt in range(60):
        offset = source.randrange(start, end)
        log = bytearray(recorded.log)
        if attempt % 3 == 0:
            log[offset] ^= 1 << source.randrange(8)
        elif attempt % 3 == 1:
            log[offset:end] = bytes(end - offset)
        else:
            page = (offset - start) // FRAME * FRAME + start
            log[page : page + FRAME] = source.randbytes(FRAME)
        if (log[offset:end] == recorded.log[offset:end]) and attempt % 3 != 2:
            continue  # the zeros were zeros before
        journal = restored(recorded, bytes(log), tmp_path / "torn")
        assert await whole_transactions(journal) == len(recorded.ends) - 1, f"byte {offset}, attempt {attempt}"


async def test_a_damaged_middle_is_refused_not_cut(recorded: Recorded, tmp_path: Path) -> None:
    """SQLite alone would forget every acknowledged transaction behind the damage."""
    source = random.Random(3)
    for _ in range(60):
        offset = source.randrange(HEADER, recorded.ends[-3])
        log = bytearray(recorded.log)
        log[offset] ^= 1 << source.randrange(8)
        journal = restored(recorded, bytes(log), tmp_path / "middle")
        with pytest.raises(JournalCorrupt, match="is bad at byte") as refused:
            await journal.open()
        frame = (offset - HEADER) // FRAME * FRAME + HEADER
        assert f"at byte {frame}," in refused.value.reason
        # Nothing was touched, so the next start refuses too.
        assert (tmp_path / "middle" / "journal.db-wal").read_bytes() == bytes(log)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 300])
def test_a_log_that_never_got_a_frame_is_fine(size: int, tmp_path: Path) -> None:
    path = tmp_path / "journal.db-wal"
    path.write_bytes(bytes(size))
    check_file(path)
    check_file(tmp_path / "none")


async def test_a_write_ahead_log_without_its_database_is_refused(recorded: Recorded, tmp_path: Path) -> None:
    for left in (None, b""):
        journal = restored(recorded, recorded.log, tmp_path / "orphan")
        database = tmp_path / "orphan" / "journal.db"
        database.unlink()
        if left is not None:
            database.write_bytes(left)
        with pytest.raises(JournalCorrupt, match="has lost its database"):
            await journal.open()


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
def test_scan_counts_what_sqlite_recovers(page_size: int, tmp_path: Path) -> None:
    """Across checkpoints, too, when the file starts over in front of the frames of an earlier round."""
    source = random.Random(page_size)
    path = tmp_path / "any.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in (f"page_size = {page_size}", "journal_mode = WAL", "wal_autocheckpoint = 60"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("CREATE TABLE t (payload BLOB)")
        for _ in range(40):
            connection.execute("INSERT INTO t VALUES (?)", (source.randbytes(source.randrange(20_000)),))
            found = scan(np.fromfile(path.with_name("any.db-wal"), dtype=np.uint8))
            copy = tmp_path / "copy.db"
            for suffix in ("", "-wal"):
                shutil.copy(path.with_name(f"any.db{suffix}"), copy.with_name(f"copy.db{suffix}"))
            with closing(sqlite3.connect(copy)) as other:
                ((_, recovered, _),) = other.execute("PRAGMA wal_checkpoint").fetchall()
            assert found.damaged is None
            assert found.frames == recovered
