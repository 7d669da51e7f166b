"""The SQLite journal has a file, errors and parts of snapshots of its own."""

# ruff: noqa: ASYNC240  (a test may block its own loop)
from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from lowwater.core.private import make_private_folder
from lowwater_authority.journal import (
    GRAPH,
    Entry,
    JournalCorrupt,
    JournalFailed,
    JournalFenced,
    JournalLocked,
    JournalReplaced,
    JournalVersion,
    LoadedLog,
    SqliteJournal,
)
from lowwater_authority.journal import sqlite as module
from lowwater_authority.journal.sqlite import APPLICATION_ID, FORMAT
from lowwater_authority.journal.wal import check_file, scan
from tests.contract.journal_stores import SqliteSubject, entry, turn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


async def opened(path: Path) -> SqliteJournal:
    """The owner of "a" and "b"."""
    journal = SqliteJournal(path)
    await journal.open()
    for log in "ab":
        await journal.take(log)
    return journal


def execute(path: Path, sql: str, *parameters: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(sql, parameters).fetchall()


async def pragma(journal: SqliteJournal, text: str) -> list[tuple[object, ...]]:
    connection = journal._database._connection
    rows: list[tuple[object, ...]] = await journal._run(lambda: connection.execute(f"PRAGMA {text}").fetchall())
    return rows


async def test_the_file_says_what_it_is(path: Path) -> None:
    journal = await opened(path)
    assert execute(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert execute(path, "SELECT format, epoch FROM meta") == [(FORMAT, 1)]
    assert execute(path, "PRAGMA journal_mode") == [("wal",)]
    # FULL; NORMAL would sync at checkpoints only, OFF never.
    assert await pragma(journal, "synchronous") == [(2,)]
    await journal.close()
    assert sorted(name.name for name in path.parent.iterdir()) == ["journal.db", "journal.db.lock"]


async def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(JournalFailed, match="mount the volume"):
        await opened(tmp_path / "volume" / "journal.db")
    assert not (tmp_path / "volume").exists()


async def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    execute(path, "CREATE TABLE theirs (x)")
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(JournalFailed, match="of another program: give the journal a file of its own"):
            await opened(path)
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    path.write_bytes(b"no database at all" * 500)
    with pytest.raises(JournalCorrupt, match="not a database"):
        await opened(path)
    assert path.read_bytes() == b"no database at all" * 500


async def test_a_newer_format_asks_for_an_upgrade(path: Path) -> None:
    await (await opened(path)).close()
    execute(path, "UPDATE meta SET format = ?", FORMAT + 1)
    before = path.read_bytes()
    with pytest.raises(JournalVersion, match=r"has format 2, this release reads up to 1: upgrade lowwater-authority"):
        await opened(path)
    assert path.read_bytes() == before
    execute(path, "UPDATE meta SET format = ?", FORMAT)
    journal = await opened(path)
    assert (await journal.owners("a"))["a"].epoch == 2
    await journal.close()


@pytest.mark.parametrize("change", ["epoch = 0", "nonce = nonce + 1", "server_token = 'x'", "checksum = 1"])
async def test_a_damaged_owner_is_refused(path: Path, change: str) -> None:
    """A lower epoch would let an old owner in again."""
    await (await opened(path)).close()
    execute(path, f"UPDATE meta SET {change}")
    with pytest.raises(JournalCorrupt, match="the row that names the owner"):
        await opened(path)


async def test_a_damaged_page_is_refused(path: Path) -> None:
    journal = await opened(path)
    await journal.append([entry("a", n, b"x" * 3000) for n in range(1, 101)])
    await journal.close()
    content = bytearray(path.read_bytes())
    for page in range(20, 40):
        content[page * 4096 : page * 4096 + 8] = b"\xff" * 8
    path.write_bytes(content)
    journal = await opened(path)
    with pytest.raises(JournalCorrupt) as refused:
        await journal.load("a")
    assert refused.value.log == "a"
    await journal.close()


async def test_a_full_disk_is_a_sure_failure(path: Path) -> None:
    journal = await opened(path)
    await journal.append([entry("a", 1)])
    await pragma(journal, "max_page_count = 20")
    for _ in range(2):
        with pytest.raises(JournalFailed, match="full; nothing was written: free space on its disk"):
            await journal.append([entry("b", 1), entry("a", 2, bytes(100_000))])
        with pytest.raises(JournalFailed, match="full"):
            await journal.snapshot("a", 1, bytes(100_000))
    assert await journal.load("a") == LoadedLog(0, None, [(1, b"a:1")])
    assert await journal.logs() == ["a"]
    await pragma(journal, "max_page_count = 1000000")
    await journal.append([entry("b", 1), entry("a", 2, bytes(100_000))])
    await journal.snapshot("a", 1, bytes(100_000))
    assert (await journal.load("a")).last == 2
    assert journal.statistics().failed == 4
    await journal.close()


@pytest.mark.parametrize(
    ("error", "fix"),
    [(errno.ENOSPC, "free space"), (errno.EDQUOT, "free space"), (errno.EACCES, "make it and its directory writable")],
)
async def test_starts_on_a_full_disk_say_so(path: Path, monkeypatch: pytest.MonkeyPatch, error: int, fix: str) -> None:
    def refuse(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(JournalFailed, match=fix):
        await SqliteJournal(path).open()
    monkeypatch.undo()
    await (await opened(path)).close()


async def test_a_database_that_became_read_only_refuses_surely_and_takes_the_same_later(path: Path) -> None:
    journal = await opened(path)
    await pragma(journal, "query_only = 1")
    with pytest.raises(JournalFailed, match="make the file and its directory writable"):
        await journal.append([entry("a", 1)])
    await pragma(journal, "query_only = 0")
    await journal.append([entry("a", 1)])
    await journal.close()


@pytest.mark.parametrize("name", ["SQLITE_IOERR", "SQLITE_CANTOPEN"])
def test_an_sqlite_error_on_a_full_disk_asks_for_room(path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """SQLite speaks of an I/O error when the index of its write-ahead log has no room."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = getattr(sqlite3, name)
    assert "free space" not in str(module.failed(path, error))
    space = list(os.statvfs(path.parent))
    space[4] = 0  # blocks for others than root
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(space))
    assert "free space on its disk" in str(module.failed(path, error))
    space[1], space[4] = 4096, 7  # bytes of a block
    assert SqliteJournal(path).free_bytes() == 7 * 4096


async def test_an_empty_file_beside_the_lock_of_an_earlier_process_is_no_new_deployment(path: Path) -> None:
    await (await opened(path)).close()
    path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(JournalCorrupt, match=r"is empty, and journal\.db\.lock shows that a journal was used here"):
            await SqliteJournal(path).open()
    path.unlink()
    await (await opened(path)).close()


async def test_rule9_where_one_deployment_is_expected_none_begins(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = {"server_token": "1" * 32, "must_exist": True}
    with pytest.raises(JournalFailed, match=r"there is no deployment in .*mount its volume"):
        await SqliteJournal(path, **expected).open()  # type: ignore[arg-type]
    assert not path.exists()
    journal = await opened(path)
    [event] = [vars(record)["lowwater"] for record in caplog.records if hasattr(record, "lowwater")]
    assert event == {"event": "journal_created", "store": str(path), "server_token": journal.server_token}
    await journal.close()
    with pytest.raises(JournalReplaced):
        await SqliteJournal(path, **expected).open()  # type: ignore[arg-type]
    again = SqliteJournal(path, server_token=journal.server_token, must_exist=True)
    await again.open()
    await again.close()
    assert len(caplog.records) == 1, "told once"


async def test_the_files_of_a_journal_are_its_users_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mask = os.umask(0)
    try:
        make_private_folder(path.parent / "data")
        path = path.parent / "data" / path.name
        journal = await opened(path)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys((path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}.lock"), 0o600)
    await journal.close()
    assert "data_readable" not in str([vars(record) for record in caplog.records])
    path.chmod(0o640)
    path.parent.chmod(0o750)
    await (await opened(path)).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640, "an operator has given a backup the right to read it"
    assert "data_readable" not in str([vars(record) for record in caplog.records])
    path.chmod(0o644)
    path.parent.chmod(0o755)
    await (await opened(path)).close()
    assert "data_readable" in str([vars(record) for record in caplog.records])


@pytest.mark.parametrize("victim", ["journal.db", "journal.db-wal"])
@pytest.mark.parametrize("replaced", [False, True])
async def test_files_taken_away_under_the_journal(path: Path, victim: str, replaced: bool) -> None:
    """SQLite would go on writing to a file that no restart finds."""
    journal = await opened(path)
    await journal.append([entry("a", 1)])
    file = path.with_name(victim)
    aside = file.rename(file.with_name("aside"))
    if replaced:
        shutil.copy(aside, file)
    with pytest.raises(JournalFailed, match="was moved, deleted or replaced while in use"):
        await journal.append([entry("a", 2)])
    aside.rename(file)
    await journal.append([entry("a", 2)])
    await journal.close()


async def test_parts_of_an_unfinished_snapshot_are_removed(tmp_path: Path) -> None:
    store = SqliteSubject(tmp_path)
    journal = await store.open()
    await journal.append([entry("a", n) for n in range(1, 301)])
    await journal.snapshot("a", 100, b"old")
    store.crash()
    parts = ", ".join(f"((SELECT id FROM logs WHERE name = 'a'), 200, {part}, x'00')" for part in range(150))
    store.execute(f"INSERT INTO snapshots VALUES {parts}")
    journal = await store.open()
    assert store.execute("SELECT position, count(*) FROM snapshots") == [(100, 1)]
    assert store.execute("SELECT min(position), count(*) FROM records") == [(101, 200)]
    assert (await journal.load("a")).snapshot == b"old"
    await store.close()


async def test_a_cancelled_open_frees_the_lock(path: Path) -> None:
    for turns in range(5):
        task = asyncio.create_task(opened(path))
        for _ in range(turns):
            await turn()
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, SqliteJournal):
            await ended.close()
    async with asyncio.timeout(30):
        await (await opened_when_free(path)).close()


async def opened_when_free(path: Path) -> SqliteJournal:
    """The thread of a cancelled open may still be at it; it lets go of the lock as soon as it is done."""
    while True:
        try:
            return await opened(path)
        except JournalLocked:
            await turn()


async def test_epochs_of_the_logs_are_those_of_the_file(path: Path) -> None:
    """The first take costs no write; a second one of the same log, or one above, begins an epoch of the file."""
    journal = await opened(path)
    assert execute(path, "SELECT epoch FROM meta") == [(1,)]
    assert (await journal.take("a")).epoch == 2
    assert (await journal.take("b")).epoch == 2
    assert (await journal.take("c", above=1)).epoch == 2
    assert (await journal.take("d", above=2)).epoch == 3
    assert (await journal.take("d", above=7)).epoch == 8
    assert execute(path, "SELECT epoch FROM meta") == [(8,)]
    await journal.append([entry(log, 1) for log in ["a", "b", "c", "d", GRAPH]])
    await journal.close()
    journal = await opened(path)
    assert (await journal.take("d")).epoch == 9
    assert [(await journal.load(log)).last for log in ["a", "b", "c", "d", GRAPH]] == [1, 1, 1, 1, 1]
    await journal.close()


async def test_a_process_that_has_lost_its_lock_writes_nothing_not_even_the_graph(tmp_path: Path) -> None:
    """The file has one owner; in a shared store the graph would belong to both."""
    store = SqliteSubject(tmp_path)
    old = await store.open()
    await old.append([entry("a", 1), entry(GRAPH, 1)])
    store.break_lock()
    new = await store.connect()
    for call in (
        old.append([entry(GRAPH, 2)]),
        old.append([entry("a", 2)]),
        old.snapshot(GRAPH, 1, b"old"),
        old.snapshot("a", 1, b"old"),
        old.restore(GRAPH, 5, b"old"),
        old.take("a"),
        old.take("new"),
    ):
        with pytest.raises(JournalFenced, match="epoch 1, now 2"):
            await call
    assert [(await new.load(log)).last for log in ("a", GRAPH)] == [1, 1]
    await store.close()


HEADER, FRAME = 32, 24 + 4096


class Recorded(NamedTuple):
    """Files of a journal that was not closed, and the size of its write-ahead log after each acknowledgement."""

    database: Path
    log: bytes
    begin: int
    ends: list[int]


def names(number: int) -> list[str]:
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
    for content in (None, b""):
        journal = restored(recorded, recorded.log, tmp_path / "orphan")
        database = tmp_path / "orphan" / "journal.db"
        database.unlink()
        if content is not None:
            database.write_bytes(content)
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
            result = scan(np.fromfile(path.with_name("any.db-wal"), dtype=np.uint8))
            copy = tmp_path / "copy.db"
            for suffix in ("", "-wal"):
                shutil.copy(path.with_name(f"any.db{suffix}"), copy.with_name(f"copy.db{suffix}"))
            with closing(sqlite3.connect(copy)) as other:
                ((_, recovered, _),) = other.execute("PRAGMA wal_checkpoint").fetchall()
            assert result.damaged is None
            assert result.frames == recovered
