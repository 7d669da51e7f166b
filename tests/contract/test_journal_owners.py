"""The contract of ``Journal`` among processes: who may write a log, over every store."""

from __future__ import annotations

import asyncio

import pytest

from lowwater_authority.journal import GRAPH, JournalFenced, JournalLost, JournalOutvoted, JournalPosition, LoadedLog
from tests.contract.journal_stores import SharedSubject, StoreSubject, entry, fenced, loaded, writes


async def test_a_log_that_was_not_taken_cannot_be_written(store: StoreSubject) -> None:
    journal = await store.open("b")
    calls = [
        journal.append([entry("a", 1)]),
        journal.append([entry("b", 1), entry("a", 1)]),
        journal.snapshot("a", 1, b""),
        journal.confirm(["b", "a"]),
    ]
    assert await fenced(*calls) == 4 * [{"a": (0, 0)}]
    assert await journal.logs() == []


async def test_taking_an_own_log_again_fences_what_was_done_before(store: StoreSubject) -> None:
    journal = await store.open("a", "b")
    await journal.append([entry("a", 1), entry("b", 1)])
    await journal.take("a")
    with pytest.raises(JournalPosition, match="another record is there"):
        await journal.append([entry("a", 1)])
    await journal.append([entry("b", 1)])
    await journal.append([entry("a", 2), entry("b", 2)])
    assert [await journal.load(log) for log in "ab"] == [loaded("a", 1, 2), loaded("b", 1, 2)]


async def test_an_older_view_cannot_take_a_log_back(store: StoreSubject) -> None:
    one = await store.open("a")
    owner = await one.take("a", view=5)
    for call in (one.take("a", view=4), one.take("a"), one.restore("a", 9, b"", view=4)):
        with pytest.raises(JournalOutvoted) as refused:
            await call
        assert (refused.value.log, refused.value.newest) == ("a", 5)
    assert await one.owners(["a"]) == {"a": owner}
    await one.append([entry("a", 1)])
    assert (await one.take("a", view=5)).view == 5


async def test_a_fenced_writer_writes_nothing(store: StoreSubject) -> None:
    old = await store.open("a")
    await old.append([entry("a", 1)])
    store.break_lock()
    new = await store.open("a")
    for write in (old.append([entry("a", 2)]), old.snapshot("a", 1, b"old"), old.restore("a", 3, b"old")):
        with pytest.raises(JournalFenced, match=r"does not own the log of 'a' \(epoch 1, now 2\): ask its owner"):
            await write
    await old.append([])
    assert await new.load("a") == loaded("a", 1, 1)
    await new.append([entry("a", 2)])
    assert await new.load("a") == loaded("a", 1, 2)


async def test_a_predecessors_record_is_not_taken_for_ones_own(store: StoreSubject) -> None:
    old = await store.open()
    await old.append([entry("a", 1), entry(GRAPH, 1)])
    store.crash()
    new = await store.open()
    for log in ("a", GRAPH):
        with pytest.raises(JournalPosition, match="another record is there"):
            await new.append([entry(log, 1)])


async def test_taking_fences_the_owner_of_that_log_only(shared: SharedSubject) -> None:
    one = await shared.open("a", "b")
    await one.append([entry("a", 1), entry("b", 1)])
    two = await shared.connect()
    await one.append([entry("a", 2)])
    owner = await two.take("a", address="two:4711")
    calls = [
        one.append([entry("a", 3)]),
        one.append([entry("b", 2), entry("a", 3)]),
        one.append([entry("a", 2)]),
        one.snapshot("a", 1, b"old"),
        one.confirm(["b", "a"]),
    ]
    assert await fenced(*calls) == 5 * [{"a": (1, 2)}]
    assert (await one.owners("ab"))["a"] == (await two.owners("a"))["a"] == owner
    await one.append([entry("b", 2)])
    await one.snapshot("b", 1, b"one")
    await one.confirm(["b"])
    assert await two.load("a") == loaded("a", 1, 2)
    await two.append([entry("a", 3)])
    await two.confirm(["a"])
    assert await one.load("a") == loaded("a", 1, 3)
    assert await two.load("b") == LoadedLog(1, b"one", [(2, b"b:2")])


async def test_other_logs_are_confirmed_with_what_is_appended(shared: SharedSubject) -> None:
    one = await shared.open("a", "b", "c")
    await one.append([entry(log, 1) for log in "abc"])
    await one.append([entry("a", 2)], beside=["b", "c"])
    two = await shared.connect()
    await two.take("b")
    calls = [
        one.append([entry("a", 3)], beside=["b"]),
        one.append([entry("a", 3)], beside=["c", "b"]),
        one.append([entry("b", 2)], beside=["a", "c"]),
    ]
    assert await fenced(*calls) == 3 * [{"b": (1, 2)}]
    assert await one.load("a") == loaded("a", 1, 2)
    await one.append([entry("a", 3)], beside=["c"])
    await one.append([entry("c", 2)])
    shared.forget("c", 1)
    with pytest.raises(JournalLost) as lost:
        await one.append([entry("a", 4)], beside=["c"])
    assert lost.value.logs == {"c": (2, 1)}
    await one.append([entry("a", 4)])
    assert await one.load("a") == loaded("a", 1, 4)


async def test_two_owners_of_one_epoch_are_told_apart(shared: SharedSubject) -> None:
    journal = await shared.open("b")
    mine = await journal.take("a")
    await journal.append([entry("a", 1)])
    shared.give("a", mine._replace(nonce=mine.nonce ^ 1))
    calls = [*writes(journal, "a", 2), journal.confirm(["a"]), journal.restore("a", 5, b"")]
    assert await fenced(*calls) == 5 * [{"a": (mine.epoch, mine.epoch)}]


async def test_many_processes_take_one_log_at_once(shared: SharedSubject) -> None:
    journals = [await shared.connect() for _ in range(5)]
    owners = await asyncio.gather(*(journal.take("a") for journal in journals))
    assert sorted(owner.epoch for owner in owners) == [1, 2, 3, 4, 5]
    ended = await asyncio.gather(*(journal.append([entry("a", 1)]) for journal in journals), return_exceptions=True)
    assert [owner.epoch for owner, error in zip(owners, ended, strict=True) if error is None] == [5]


async def test_the_graph_is_compared_and_set(shared: SharedSubject) -> None:
    one, two = await shared.open("a"), await shared.open("b")
    await one.append([entry(GRAPH, 1)])
    for payload in (None, b"another"):
        with pytest.raises(JournalPosition, match="another record is there"):
            await two.append([entry("b", 1), entry(GRAPH, 1, payload)])
    with pytest.raises(JournalPosition):
        await two.append([entry(GRAPH, 3)])
    await two.append([entry("b", 1), entry(GRAPH, 2)])
    await one.append([entry(GRAPH, 3), entry(GRAPH, 4)])
    assert await (await shared.connect()).load(GRAPH) == loaded(GRAPH, 1, 4)


async def test_a_snapshot_of_the_graph_is_of_the_record_that_is_there(shared: SharedSubject) -> None:
    one, two = await shared.connect(), await shared.connect()
    await one.append([entry(GRAPH, 1), entry(GRAPH, 2, b"lost")])
    shared.forget(GRAPH, 1)
    await two.append([entry(GRAPH, 2)])
    await two.append([entry(GRAPH, 3)])
    with pytest.raises(JournalPosition, match="another record is there"):
        await one.snapshot(GRAPH, 2, b"of the lost one")
    assert await two.load(GRAPH) == loaded(GRAPH, 1, 3)
    await one.load(GRAPH)
    await one.snapshot(GRAPH, 3, b"of all")
    assert await two.load(GRAPH) == LoadedLog(3, b"of all", [])


async def test_the_epoch_is_above_what_is_asked_for(store: StoreSubject) -> None:
    journal = await store.connect()
    assert (await journal.take("a", above=41)).epoch > 41
    assert (await journal.take("a", above=7)).epoch > 42
    await journal.close()
    store.crash()
    journal = await store.connect()
    assert (await journal.take("a")).epoch > 43


async def test_a_written_record_of_the_graph_is_known_again_behind_those_of_others(shared: SharedSubject) -> None:
    one, two = await shared.connect(), await shared.connect()
    call = [entry(GRAPH, 1), entry(GRAPH, 2)]
    await one.append(call)
    await two.append([entry(GRAPH, 3)])
    await one.append(call)
    for other in ([entry(GRAPH, 1), entry(GRAPH, 2, b"")], [entry(GRAPH, 2), entry(GRAPH, 3)], [entry(GRAPH, 3)]):
        with pytest.raises(JournalPosition):
            await one.append(other)
    assert await one.load(GRAPH) == loaded(GRAPH, 1, 3)


async def test_others_may_go_on_behind_a_record_while_a_snapshot_is_made_of_it(shared: SharedSubject) -> None:
    one, two = await shared.connect(), await shared.connect()
    await one.append([entry(GRAPH, 1), entry(GRAPH, 2)])
    await two.append([entry(GRAPH, 3)])
    await one.snapshot(GRAPH, 2, b"two")
    assert await two.load(GRAPH) == loaded(GRAPH, 3, 3, snapshot=b"two")
