"""The contract of ``Journal`` when its store has lost what it acknowledged: refused, and healed from memory."""

from __future__ import annotations

import asyncio

import pytest

from lowwater_authority.journal import GRAPH, End, JournalLost, JournalPosition, JournalReplaced, LoadedLog, Ownership
from lowwater_authority.journal.frames import PART_BYTES
from tests.contract.journal_stores import SharedSubject, StoreSubject, entry, fenced, loaded, lost, turn, writes


@pytest.mark.parametrize("log", ["a", GRAPH])
async def test_a_store_that_has_become_shorter_is_refused(store: StoreSubject, log: str) -> None:
    journal = await store.open("a", "b", "c")
    await journal.append([entry(log, n) for n in range(1, 6)])
    store.forget(log, 3)
    assert await lost(*writes(journal, log, 6), journal.load(log)) == 4 * [{log: (5, 3)}]
    await lost(journal.append([entry(log, 4)]))
    await journal.append([entry("c", 1)])
    assert await journal.load("b") == LoadedLog(0, None, [])


@pytest.mark.parametrize("log", ["a", GRAPH])
async def test_another_record_in_the_place_of_the_newest_is_a_loss(store: StoreSubject, log: str) -> None:
    journal = await store.open("a", "b", "c")
    await journal.append([entry(log, 1), entry(log, 2)])
    store.supplant(log, 2)
    assert await lost(*writes(journal, log, 3), journal.load(log)) == 4 * [{log: (2, 2)}]
    await journal.append([entry("c", 1)])
    await journal.restore(log, 3, b"memory")
    await journal.append([entry(log, 4)])
    assert await journal.load(log) == loaded(log, 4, 4, snapshot=b"memory")


async def test_a_number_of_the_graph_that_is_given_twice_is_found(shared: SharedSubject) -> None:
    one, two = await shared.open("a"), await shared.connect()
    await one.append([entry(GRAPH, 1), entry("a", 1)])
    await two.load(GRAPH)
    await one.append([entry(GRAPH, 2, b"one")])
    shared.forget(GRAPH, 1)
    await two.append([entry(GRAPH, 2, b"two")])
    calls = [
        one.confirm([]),
        one.confirm(["a"]),
        one.load(GRAPH),
        one.append([entry(GRAPH, 3)]),
        one.append([entry("a", 2), entry(GRAPH, 3)]),
        one.append([entry(GRAPH, 2, b"one")]),
    ]
    assert await lost(*calls) == 6 * [{GRAPH: (2, 2)}]
    assert await two.confirm([]) == 2
    # What is healed first reads what is there, so that it goes into what is put back.
    one.release(GRAPH)
    assert (await one.load(GRAPH)).records[-1] == (2, b"two")
    await one.restore(GRAPH, 3, b"both")
    assert await two.confirm([]) == 3
    assert await two.load(GRAPH) == LoadedLog(3, b"both", [])


async def test_confirm_finds_what_is_lost(shared: SharedSubject) -> None:
    one, two = await shared.open("a"), await shared.connect()
    await one.append([entry(log, n) for log in ("a", GRAPH) for n in (1, 2)])
    await two.load(GRAPH)
    shared.forget("a", 1)
    assert await lost(one.confirm(["a"])) == [{"a": (2, 1)}]
    with pytest.raises(JournalPosition):
        await one.restore("a", 2, b"longer than what is left, and not behind what was acknowledged")
    assert await one.confirm([]) == 2
    shared.forget(GRAPH, 1)
    assert await lost(one.confirm(["a"]), one.confirm([]), two.confirm([])) == [
        {"a": (2, 1), GRAPH: (2, 1)},
        {GRAPH: (2, 1)},
        {GRAPH: (2, 1)},
    ]


async def test_a_store_that_knows_an_older_epoch_only_has_lost_it(shared: SharedSubject) -> None:
    journal = await shared.open("b")
    before = await journal.take("a")
    mine = await journal.take("a")
    await journal.append([entry("a", 1)])
    for owner in (before, Ownership()):
        shared.give("a", owner)
        calls = [*writes(journal, "a", 2), journal.load("a"), journal.confirm(["a"]), journal.take("a")]
        assert await lost(*calls) == 6 * [{"a": (1, 1)}]
    healed = await journal.restore("a", 2, b"two", view=3, address="one:4711")
    assert healed.epoch > mine.epoch
    assert await journal.owners(["a"]) == {"a": healed}
    await journal.append([entry("a", 3)])
    await journal.confirm(["a"])


async def test_a_store_that_was_emptied_is_filled_again(shared: SharedSubject) -> None:
    opened = await shared.open("a", "b")
    token = opened.server_token
    await opened.append([entry("a", 1), entry(GRAPH, 1)])
    shared.clear()
    for call in [*writes(opened, "a", 2), opened.load("a"), opened.confirm([]), opened.take("a"), opened.take("new")]:
        with pytest.raises(JournalLost):
            await call
    assert await opened.restore(GRAPH, 2, b"graph") == Ownership()
    for log in "ab":
        assert await lost(opened.append([entry(log, 2)])) == [{log: (1 if log == "a" else 0, 0)}]
        assert (await opened.restore(log, 2, b"memory")).epoch > 1
    assert await opened.confirm("ab") == 2
    await opened.append([entry("a", 3), entry("b", 3), entry(GRAPH, 3)])
    other = await shared.connect()
    assert other.server_token == token
    assert await other.logs() == [GRAPH, "a", "b"]
    assert await other.load("a") == LoadedLog(2, b"memory", [(3, b"a:3")])
    assert await other.load(GRAPH) == LoadedLog(2, b"graph", [(3, b":3")])


async def test_another_deployments_store_is_never_mixed_with(shared: SharedSubject) -> None:
    journal = await shared.open("a", "b")
    await journal.append([entry("a", 1)])
    shared.replace()
    calls = [journal.take("a"), journal.confirm([]), journal.restore("a", 2, b""), journal.append([entry(GRAPH, 1)])]
    for call in [*writes(journal, "a", 2), journal.load("a"), *calls]:
        with pytest.raises(JournalReplaced, match="belongs to the deployment another now"):
            await call


@pytest.mark.parametrize("log", ["a", GRAPH])
async def test_a_restore_spares_what_was_acknowledged_since_the_log_was_read(store: StoreSubject, log: str) -> None:
    journal = await store.open("a")
    await journal.append([entry(log, n) for n in range(1, 6)])
    store.forget(log, 3)
    journal.release(log)
    await journal.take("a")
    end = (await journal.load(log)).end
    await journal.append([entry(log, 4)])
    with pytest.raises(JournalPosition, match="it has changed since it was read"):
        await journal.restore(log, 9, b"memory", over=end)
    assert await journal.load(log) == loaded(log, 1, 4)
    end = (await journal.load(log)).end
    store.supplant(log, 4)
    with pytest.raises(JournalPosition, match="it has changed since it was read"):
        await journal.restore(log, 9, b"memory", over=end)
    journal.release(log)
    await journal.take("a")
    end = (await journal.load_behind(log, 3)).end
    await journal.restore(log, 9, b"memory", over=end)
    healed = await journal.restore(log, 9, b"memory", over=end)  # as after an unknown outcome
    assert await journal.owners([log]) == {log: healed}
    assert await journal.load(log) == LoadedLog(9, b"memory", [])
    assert (await journal.load(log)).end.last == 9
    if journal.shared:
        assert isinstance(store, SharedSubject)
        store.clear()
        with pytest.raises(JournalPosition, match="it has changed since it was read"):
            await journal.restore(log, 12, b"memory", over=end)
        await journal.restore(log, 12, b"memory", over=End())
    assert (await journal.restore(log, 13, b"memory", over=(await journal.load(log)).end)).epoch or log == GRAPH


@pytest.mark.parametrize("log", ["a", GRAPH])
async def test_a_restore_that_was_cancelled_may_be_repeated(store: StoreSubject, log: str) -> None:
    journal = await store.open("a", "b")
    for turns in range(8):
        payload = b"%d" % turns * PART_BYTES
        task = asyncio.create_task(journal.restore(log, turns + 1, payload))
        for _ in range(turns):
            await turn()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        healed = await journal.restore(log, turns + 1, payload)
        assert await journal.owners([log]) == {log: healed}
        assert await journal.load(log) == LoadedLog(turns + 1, payload, [])
    await journal.append([entry(log, 9), entry("b", 1)])


async def test_a_log_of_another_owner_is_not_copied_over(store: StoreSubject) -> None:
    owner = await store.open("a")
    await owner.append([entry("a", 1)])
    store.break_lock()
    stranger = await store.connect()
    if owner.shared:
        assert await fenced(stranger.restore("a", 5, b"mine")) == [{"a": (0, 1)}]
        await owner.append([entry("a", 2)])
    else:
        # Opening it was the take-over.
        await fenced(owner.append([entry("a", 2)]))


async def test_a_loss_is_no_business_of_a_fenced_writer(shared: SharedSubject) -> None:
    one = await shared.open("a", "b")
    await one.append([entry("a", n) for n in range(1, 6)])
    shared.forget("a", 3)
    two = await shared.open("a")
    calls = [*writes(one, "a", 6), one.confirm(["a"]), one.restore("a", 6, b"one")]
    assert await fenced(*calls) == 5 * [{"a": (1, 2)}]
    assert await one.load("a") == loaded("a", 1, 3)
    await two.append([entry("a", 4)])
    assert await two.load("a") == loaded("a", 1, 4)
    assert (await one.take("a")).epoch == 3
    await one.append([entry("a", 5)])


async def test_restore_leaves_nothing_of_an_older_snapshot(store: StoreSubject) -> None:
    journal = await store.open("a")
    await journal.append([entry("a", n) for n in range(1, 4)])
    await journal.snapshot("a", 2, b"s" * (3 * PART_BYTES))
    await journal.restore("a", 9, b"nine")
    assert await journal.load("a") == LoadedLog(9, b"nine", [])
    with pytest.raises(JournalPosition):
        await journal.append([entry("a", 4)])


async def test_the_graph_is_healed_once(shared: SharedSubject) -> None:
    one, two = await shared.connect(), await shared.connect()
    await one.append([entry(GRAPH, n) for n in range(1, 4)])
    await two.load(GRAPH)
    shared.forget(GRAPH, 1)
    await lost(one.confirm([]), two.confirm([]))
    await one.restore(GRAPH, 4, b"one")
    with pytest.raises(JournalPosition):
        await two.restore(GRAPH, 4, b"two")
    assert await two.confirm([]) == 4
    assert await two.load(GRAPH) == LoadedLog(4, b"one", [])


@pytest.mark.parametrize("log", ["a", GRAPH])
async def test_where_a_log_ends_is_told_whatever_is_damaged(store: StoreSubject, log: str) -> None:
    journal = await store.open("a")
    assert await journal.end(log) == journal.acknowledged(log) == End()
    await journal.append([entry(log, n) for n in range(1, 4)])
    before = await journal.load(log)
    assert await journal.end(log) == journal.acknowledged(log) == before.end
    assert sorted(before.tails) == [1, 2, 3]
    store.damage(log, 3)
    assert await journal.end(log) == before.end
    store.damage(log, 2)
    store.forget(log, 1)
    assert await journal.end(log) == End(1, before.tails[1])
    assert journal.acknowledged(log) == before.end
