"""What the disk of a world knows of its logs, when it loses them and gets them back."""

from __future__ import annotations

import asyncio

from lowwater_authority._pb.lowwater.journal.v1 import journal_pb2
from lowwater_authority.journal import Entry
from tests.kit.faults import FaultPlan, Operation
from tests.kit.memory_journal import MemoryJournal
from tests.simulation.ledger import Ledger, sequencers


class _Told(FaultPlan):
    def __init__(self, ledger: Ledger, who: str) -> None:
        super().__init__()
        self._ledger = ledger
        self._who = who

    async def after(self, operation: Operation) -> None:
        self._ledger.wrote(self._who, operation)
        self._ledger.acknowledged(operation)


async def writer(ledger: Ledger, who: str) -> MemoryJournal:
    """A process that has taken over the log."""
    journal = MemoryJournal(ledger, shared=True, faults=_Told(ledger, who))
    await journal.open()
    await journal.take("a")
    await journal.load("a")
    return journal


async def claim(journal: MemoryJournal, position: int) -> None:
    """Write a claim down."""
    granted = journal_pb2.Claim(sequencer=position, request_id=bytes([position]), generation=position)
    record = journal_pb2.Record(incarnation=1, ops=[journal_pb2.Op(claim=granted)], low_micros=position)
    await journal.append([Entry("a", position, record.SerializeToString(), strong=True)])


def test_the_books_go_back_with_the_disk_and_say_what_is_missing() -> None:
    async def main() -> None:
        ledger = Ledger()
        journal = await writer(ledger, "one")
        for position in (1, 2, 3):
            await claim(journal, position)
        book = ledger.book("a")
        assert (book.order, sequencers(book), book.lows) == ((3, 0), {1, 2, 3}, {1: 3})
        assert not ledger.missing
        ledger.lose(2)
        assert sequencers(ledger.book("a")) == {1}
        assert len(ledger.missing["a"]) == 2
        assert len(ledger.took("two", "a")) == 2
        assert not ledger.missing

    asyncio.run(main())


def test_what_is_put_back_from_memory_is_not_missing() -> None:
    async def main() -> None:
        ledger = Ledger()
        journal = await writer(ledger, "one")
        for position in (1, 2, 3):
            await claim(journal, position)
        ledger.lose(2)
        granted = [journal_pb2.Granted(request_id=bytes([n]), sequencer=n) for n in (1, 2, 3)]
        snapshot = journal_pb2.Snapshot(incarnation=1, low_micros=3, generation=3, granted=granted)
        await journal.restore("a", 4, snapshot.SerializeToString())
        assert not ledger.missing["a"]
        assert sequencers(ledger.book("a")) == {1, 2, 3}
        assert not ledger.ended
        end = journal_pb2.Snapshot(incarnation=2, low_micros=3)
        await journal.restore("a", 5, end.SerializeToString())
        assert ledger.ended == {"a"}, "what was there is of an incarnation that is over"

    asyncio.run(main())


def test_a_backup_forgets_what_came_after_it() -> None:
    async def main() -> None:
        ledger = Ledger()
        journal = await writer(ledger, "one")
        await claim(journal, 1)
        backup = ledger.backup()
        await claim(journal, 2)
        ledger.put_back(backup)
        assert sequencers(ledger.book("a")) == {1}
        assert len(ledger.missing["a"]) == 1

    asyncio.run(main())
