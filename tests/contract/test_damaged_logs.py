"""A shard over each store, whose log of one computation is damaged there, and whose next append is refused: memory is the only copy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority.core.requests import ClaimRequest, GroupReport, Refused
from lowwater_authority.core.topology import Spec
from lowwater_authority.journal import Entry, Journal, JournalCorrupt, JournalFailed
from lowwater_authority.observer import Observer
from lowwater_authority.shard import Shard
from tests.contract.journal_stores import Store


def refuse_once(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next append is surely not written: the disk is full."""
    append = journal.append

    async def full(entries: Sequence[Entry]) -> None:
        del entries
        monkeypatch.setattr(journal, "append", append)
        raise JournalFailed("the disk is full")

    monkeypatch.setattr(journal, "append", full)


def sharded(journal: Journal) -> Shard:
    return Shard(journal, clock=lambda: 1_700_000_000_000_000, observer=Observer())


Say = Callable[[str, int], Awaitable[list[tuple[str, Refused]]]]


async def claimed(shard: Shard, *names: str) -> Say:
    """Register and claim computations; returns what reports a value of one."""
    sequencers = {}
    for number, name in enumerate(names, start=1):
        await shard.register(Spec(name))
        sequencers[name] = (
            await shard.claim(name, ClaimRequest([b"", b""], request_id=bytes([number] * 16)))
        ).sequencer

    def say(name: str, value: int) -> Awaitable[list[tuple[str, Refused]]]:
        report = GroupReport(sequencers[name], np.array([value]))
        return shard.report([(name, report)], sender=name.encode() * 16, number=(1, value))

    return say


@pytest.mark.asyncio
@pytest.mark.parametrize("snapshot", [False, True])
async def test_what_the_store_has_damaged_is_written_again_from_memory(
    store: Store, snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = store.make()
    shard = sharded(journal)
    await shard.start()
    run = asyncio.create_task(shard.run())
    say = await claimed(shard, "x", "y")
    for name in ("x", "y"):
        assert await say(name, 10) == []
        assert await say(name, 11) == []
    if snapshot:
        await journal.snapshot("x", 2, b"anything")
        store.damage_snapshot("x")
    else:
        store.damage("x", 2)
    assert await say("x", 12) == [], "nobody reads it, and all goes well"

    refuse_once(journal, monkeypatch)
    x, y = await asyncio.gather(say("x", 13), say("y", 13), return_exceptions=True)
    assert isinstance(x, errors.Unavailable), "what is in memory counts, and is about to be written"
    assert isinstance(y, errors.JournalFailed), "the log of y is whole, and nothing was changed"
    view = shard.view("x")
    assert view is not None
    assert view.low in {12, 13}
    assert await say("y", 14) == []
    await asyncio.gather(*shard._writing.values())
    assert await say("x", 14) == []
    assert not run.done()
    await journal.load("x")
    shard.stop()
    await run
    await shard.close()

    again = sharded(store.make())
    await again.start()
    assert {name: view.low for name in again.names() if (view := again.view(name))} == {"x": 14, "y": 14}
    await again.close()


@pytest.mark.asyncio
async def test_a_damaged_log_is_refused_by_who_has_no_memory_of_it(store: Store) -> None:
    """The test above shows nothing unless the damage is one that the store notices."""
    journal = store.make()
    shard = sharded(journal)
    await shard.start()
    run = asyncio.create_task(shard.run())
    say = await claimed(shard, "x")
    await say("x", 10)
    store.damage("x", 2)
    with pytest.raises(JournalCorrupt):
        await journal.load("x")
    shard.stop()
    await run
    await journal.close()
