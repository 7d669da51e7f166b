"""The contract of ``Journal`` for one process, promise by promise, over every store."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from lowwater_authority.journal import GRAPH, Entry, JournalClosed, JournalCorrupt, JournalVersion, LoadedLog
from lowwater_authority.journal.frames import PART_BYTES
from tests.contract.journal_stores import SharedSubject, StoreSubject, entry, loaded, turn
from tests.kit.releases import older_release


async def test_any_bytes_and_any_name(store: StoreSubject) -> None:
    name = "prüfung/ns'\"; DROP TABLE logs; \N{SNOWMAN}"
    journal = await store.open(name)
    payloads = [b"", b"\0", bytes(range(256)) * 500]
    await journal.append([entry(name, n, payload) for n, payload in enumerate(payloads, 1)])
    store.crash()
    journal = await store.open()
    assert await journal.logs() == [name]
    assert [payload for _, payload in (await journal.load(name)).records] == payloads


async def test_a_cancelled_call_is_whole_or_absent_and_may_be_repeated(store: StoreSubject) -> None:
    journal = await store.open()
    call = [entry("a", 1), entry("b", 1, b"x" * 100_000)]
    for turns in range(4):
        task = asyncio.create_task(journal.append(call))
        for _ in range(turns):
            await turn()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        counts = {len((await journal.load(log)).records) for log in ("a", "b")}
        assert len(counts) == 1
    await journal.append(call)
    assert (await journal.load("a")).last == (await journal.load("b")).last == 1


@pytest.mark.parametrize("size", [0, PART_BYTES, PART_BYTES + 1])
async def test_snapshot_of_any_size(store: StoreSubject, size: int) -> None:
    journal = await store.open()
    payload = (bytes(range(251)) * (size // 251 + 1))[:size]
    await journal.append([entry("a", 1)])
    await journal.snapshot("a", 1, payload)
    store.crash()
    journal = await store.open()
    assert await journal.load("a") == LoadedLog(1, payload, [])


async def test_a_snapshot_overtaken_by_a_newer_one(store: StoreSubject) -> None:
    journal = await store.open()
    await journal.append([entry("a", n) for n in range(1, 4)])
    await asyncio.gather(journal.snapshot("a", 1, b"older" * PART_BYTES), journal.snapshot("a", 3, b"newer"))
    assert await journal.load("a") == loaded("a", 4, 3, snapshot=b"newer")


async def test_a_cancelled_snapshot_leaves_the_old_one(store: StoreSubject) -> None:
    journal = await store.open()
    await journal.append([entry("a", n) for n in range(1, 4)])
    await journal.snapshot("a", 1, b"old")
    writing = asyncio.create_task(journal.snapshot("a", 3, b"n" * (40 * PART_BYTES)))
    await turn()
    await journal.append([entry("b", 1)])
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    store.crash()
    journal = await store.open()
    log = await journal.load("a")
    assert log in (loaded("a", 2, 3, snapshot=b"old"), loaded("a", 4, 3, snapshot=b"n" * (40 * PART_BYTES)))
    await journal.snapshot("a", 3, b"final")
    assert (await journal.load("a")).last == 3


@pytest.mark.parametrize("position", [3, 6])
@pytest.mark.parametrize(("hurt", "message"), [("damage", "is damaged"), ("remove", "missing")])
async def test_bad_records_are_refused_by_place(store: StoreSubject, position: int, hurt: str, message: str) -> None:
    journal = await store.open()
    await journal.append([entry("a", n) for n in range(1, 7)])
    await journal.snapshot("a", 2, b"")
    getattr(store, hurt)("a", position)
    with pytest.raises(JournalCorrupt, match=message) as refused:
        await journal.load("a")
    assert (refused.value.log, refused.value.position) == ("a", position)


@pytest.mark.parametrize("other", [("a", 3), ("b", 2)])
async def test_record_in_a_wrong_place_is_refused(store: StoreSubject, other: tuple[str, int]) -> None:
    journal = await store.open()
    await journal.append([entry(log, n, b"same") for log in "ab" for n in range(1, 5)])
    store.swap("a", 2, *other)
    with pytest.raises(JournalCorrupt) as refused:
        await journal.load("a")
    assert (refused.value.log, refused.value.position) == ("a", 2)


@pytest.mark.parametrize("size", [10, 3 * PART_BYTES])
async def test_damaged_or_missing_snapshot_is_refused(store: StoreSubject, size: int) -> None:
    journal = await store.open()
    for log, hurt in (("a", store.damage_snapshot), ("b", store.remove_snapshot)):
        await journal.append([entry(log, n) for n in range(1, 4)])
        await journal.snapshot(log, 2, b"s" * size)
        hurt(log)
        with pytest.raises(JournalCorrupt) as refused:
            await journal.load(log)
        assert (refused.value.log, refused.value.position) == (log, 2)


async def test_what_is_behind_a_damaged_record_is_read(store: StoreSubject) -> None:
    journal = await store.open()
    for log in ("a", "b", "c", ""):
        await journal.append([entry(log, n) for n in range(1, 7)])
    for log in ("a", "b"):
        await journal.snapshot(log, 3, b"snapshot")
    store.damage_snapshot("b")
    for log in ("a", "c", ""):
        store.damage(log, 5)
    store.remove("c", 2)
    for log in ("a", "b", "c", ""):
        with pytest.raises(JournalCorrupt):
            await journal.load(log)
        assert (await journal.load_behind(log, 5)).records == [(6, f"{log}:6".encode())]
        assert (await journal.load_behind(log, 6)).last == 6
    for log, position in (("a", 4), ("b", 2), ("c", 1), ("", 4), ("a", 7), ("", 7)):
        with pytest.raises(JournalCorrupt):
            await journal.load_behind(log, position)
    assert (await journal.load_behind("b", 3)).records == [(n, f"b:{n}".encode()) for n in (4, 5, 6)]
    assert (await journal.load_behind("unknown", 0)).last == 0


async def test_damage_is_refused_while_the_owner_goes_on_appending(shared: SharedSubject) -> None:
    owner, reader = await shared.open("a"), await shared.connect()
    await owner.append([entry("a", n) for n in range(1, 601)])
    shared.damage("a", 300)

    async def go_on() -> None:
        for position in count(601):
            await owner.append([entry("a", position)])

    going_on = asyncio.create_task(go_on())
    try:
        async with asyncio.timeout(20):
            with pytest.raises(JournalCorrupt) as refused:
                await reader.load("a")
    finally:
        going_on.cancel()
    assert (refused.value.log, refused.value.position) == ("a", 300)


async def test_the_owner_writes_again_from_memory_what_is_damaged(store: StoreSubject) -> None:
    journal = await store.open()
    for log, act in (("a", store.damage_snapshot), ("b", store.remove_snapshot), ("c", lambda _: store.damage("c", 3))):
        await journal.append([entry(log, n) for n in range(1, 4)])
        await journal.snapshot(log, 3 if log != "c" else 2, b"old")
        act(log)
        with pytest.raises(JournalCorrupt):
            await journal.load(log)
        await journal.restore(log, 4, b"whole")
        await journal.append([entry(log, 5)])
    await journal.close()
    journal = await store.open()
    for log in "abc":
        assert await journal.load(log) == loaded(log, 5, 5, snapshot=b"whole")


async def test_what_is_known_and_was_lost_since_is_not_taken_for_what_is_there(store: StoreSubject) -> None:
    for snapshot in (0, 1):
        journal = await store.open(log := f"a{snapshot}")
        await journal.append([entry(log, n) for n in range(1, 4)])
        if snapshot:
            await journal.snapshot(log, snapshot, b"")
        older = await journal.load(log)
        await journal.close()
        for lose in (store.supplant, store.forget):
            lose(log, 3 if lose == store.supplant else 2)
            journal = await store.open(log)
            now = await journal.load(log, before=older)
            assert now == await journal.load(log)
            assert now != older
            if now.last == 2:
                await journal.append([entry(log, 3, b"three"), entry(log, 4)])
                assert (await journal.load(log, before=older)).records[-2:] == [(3, b"three"), (4, f"{log}:4".encode())]
            await journal.close()


async def test_nothing_works_before_open_and_after_close(store: StoreSubject) -> None:
    journal = store.make()
    await journal.close()
    for _ in range(2):
        for call in (
            journal.append([entry("a", 1)]),
            journal.append([]),
            journal.snapshot("a", 1, b""),
            journal.load("a"),
            journal.logs(),
            journal.take("a"),
            journal.owners(["a"]),
            journal.confirm([]),
            journal.restore("a", 1, b""),
        ):
            with pytest.raises(JournalClosed):
                await call
        journal = await store.open()
        await journal.close()
        await journal.close()


@pytest.mark.parametrize("written", ["a record", "a snapshot", "a restore"])
async def test_the_newest_format_is_refused_by_who_does_not_know_it(store: StoreSubject, written: str) -> None:
    journal = await store.open()
    await journal.append([entry(GRAPH, 1)])
    many = b"p" * (2 * PART_BYTES)
    if written == "a record":
        await journal.append([Entry(GRAPH, 2, b"new", strong=True, newest=True), entry(GRAPH, 3)])
    elif written == "a snapshot":
        await journal.snapshot(GRAPH, 1, many, newest=True)
    else:
        await journal.restore(GRAPH, 2, many, newest=True)
    log = await journal.load(GRAPH)
    assert log.snapshot == (None if written == "a record" else many)
    last = log.last
    with older_release():
        with pytest.raises(JournalVersion, match="upgrade lowwater-authority"):
            await journal.load(GRAPH)
    await journal.append([entry(GRAPH, last + 1)])
    await journal.snapshot(GRAPH, last + 1, b"usual again")
    with older_release():
        assert (await journal.load(GRAPH)).snapshot == b"usual again"


async def test_rule2_what_was_read_is_there_after_a_crash(store: StoreSubject) -> None:
    writer = await store.open("a")
    reader = await store.connect() if writer.shared else writer
    await writer.append([entry("a", 1), entry(GRAPH, 1)])
    logs = [await reader.load(log) for log in ("a", GRAPH)]
    store.crash()
    again = await store.open("a")
    assert [await again.load(log) for log in ("a", GRAPH)] == logs == [loaded("a", 1, 1), loaded(GRAPH, 1, 1)]
