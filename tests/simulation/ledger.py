"""A disk that knows what its logs say: read record by record, apart from the code that is tested, and undone with what is undone."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lowwater_authority.journal import GRAPH
from lowwater_authority.journal.frames import Kind, checksum, decode
from lowwater_authority.records import journal_pb2
from tests.kit.faults import Operation
from tests.kit.memory_journal import MemoryDisk


@dataclass(frozen=True)
class Book:
    position: int = 0
    incarnation: int = 0
    order: tuple[int, int] = (0, 0)
    """The greatest generation and ordinal that claimed, in this incarnation."""
    batch: int = 0
    requests: Mapping[bytes, int] = field(default_factory=dict)
    lows: Mapping[int, int] = field(default_factory=dict)
    strong: frozenset[int] = frozenset()
    """The numbers of the strong records in it, whether or not a snapshot has them by now."""
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """The incarnation of each computation in the graph, and the last one of each that was dropped."""
    dropped: frozenset[str] = frozenset()

    def graph(self, payload: bytes, position: int) -> Book:
        record = journal_pb2.Topology.FromString(payload)
        computations, old = record.computations, self if record.over else Book()
        inputs = {**old.inputs, **{computation.name: tuple(computation.inputs) for computation in computations}}
        dropped = old.dropped - {computation.name for computation in computations} | {
            computation.name for computation in computations if computation.dropped
        }
        incarnations = {
            **old.incarnations,
            **{computation.name: computation.incarnation for computation in computations},
        }
        return replace(self, position=position, inputs=inputs, incarnations=incarnations, dropped=dropped)

    def record(self, record: journal_pb2.Record, position: int) -> Book:
        book = self if record.incarnation == self.incarnation else replace(self, order=(0, 0), batch=0)
        claims = [op.claim for op in record.ops if op.HasField("claim")]
        return replace(
            book,
            position=position,
            incarnation=record.incarnation,
            lows={**book.lows, record.incarnation: record.low_micros},
            order=max([book.order, *((claim.generation, claim.ordinal) for claim in claims)]),
            requests={**book.requests, **{claim.request_id: claim.sequencer for claim in claims}}
            if claims
            else book.requests,
            batch=max([book.batch, *(op.batch.number for op in record.ops if op.HasField("batch"))]),
        )

    def snapshot(self, payload: bytes, position: int) -> Book:
        snapshot = journal_pb2.Snapshot.FromString(payload)
        return replace(
            self,
            position=position,
            incarnation=snapshot.incarnation,
            order=(snapshot.generation, snapshot.ordinal),
            batch=snapshot.batch,
            requests={grant.request_id: grant.sequencer for grant in snapshot.granted},
            lows={**self.lows, snapshot.incarnation: snapshot.low_micros},
        )


class Ledger(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.books: dict[str, Book] = {}
        self.missing: dict[str, frozenset[int]] = {}
        """Strong records that were acknowledged and are gone, but may come back from the memory of who wrote them."""
        self.ended: set[str] = set()
        """Logs of an incarnation that is over, which were last replaced by a snapshot of the next incarnation."""
        self._past: deque[dict[str, Book | None]] = deque()
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._acknowledged: set[int] = set()
        self._minds: dict[tuple[str, str], Book] = {}

    def book(self, log: str) -> Book:
        return self.books.get(log, Book())

    def wrote(self, shard: str, operation: Operation) -> None:
        for log, position in operation.places:
            stored, book = self.logs.get(log), self.book(log)
            if stored is None or position <= book.position or operation.name not in {"append", "restore"}:
                continue
            if operation.name == "append" and (frame := stored.records.get(position)) is not None:
                self.books[log] = self._turn(log, position, frame, book, strong=operation.strong)
            elif operation.name == "restore" and stored.snapshot_position == position and stored.snapshot is not None:
                payload = decode(log, position, stored.snapshot, kind=Kind.SNAPSHOT).payload
                mind = self._minds.get((shard, log), Book())
                turned = mind.graph(payload, position) if log == GRAPH else mind.snapshot(payload, position)
                self.books[log] = turned
                (self.ended.add if turned.incarnation > book.incarnation else self.ended.discard)(log)
                lost = (self.missing.get(log, frozenset()) | book.strong) - turned.strong
                self.missing[log] = lost & self._acknowledged
            self._minds[shard, log] = self.books.get(log, book)

    def _turn(self, log: str, position: int, frame: bytes, book: Book, *, strong: bool) -> Book:
        payload = decode(log, position, frame, kind=Kind.RECORD).payload
        turned = (
            book.graph(payload, position)
            if log == GRAPH
            else book.record(journal_pb2.Record.FromString(payload), position)
        )
        if not strong:
            return turned
        # A record that is written again, after it was lost, is the same.
        number = self._numbers.setdefault((log, position, checksum(frame)), len(self._numbers))
        return replace(turned, strong=turned.strong | {number})

    def unended(self) -> list[str]:
        """Return what was dropped for good, and whose log still has records: the next of its name would read them."""
        return [name for name in self.book(GRAPH).dropped if (log := self.logs.get(name)) is not None and log.records]

    def acknowledged(self, operation: Operation) -> None:
        for log, _ in operation.places:
            self._acknowledged |= self.book(log).strong

    def took(self, shard: str, log: str) -> frozenset[int]:
        self._minds[shard, log] = self.book(log)
        return self.missing.pop(log, frozenset())

    def touch(self, logs: Mapping[str, Mapping[int, bytes]], *, synced: bool) -> None:
        self._past.append({log: self.books.get(log) for log in logs})
        super().touch(logs, synced=synced)
        while len(self._past) > len(self._history):
            self._past.popleft()

    def lose(self, count: int) -> None:
        before = dict(self.books)
        for _ in range(min(count, len(self._past))):
            for log, book in self._past.pop().items():
                self._put(log, book)
        super().lose(count)
        self._miss(before)

    def backup(self) -> Ledger:
        copy = Ledger()
        copy.put_back(self)
        return copy

    def put_back(self, copy: MemoryDisk) -> None:
        assert isinstance(copy, Ledger)
        before = self.books
        super().put_back(copy)
        self._past.clear()
        self.books = dict(copy.books)
        self._miss(before)

    def _put(self, log: str, book: Book | None) -> None:
        if book is None:
            self.books.pop(log, None)
        else:
            self.books[log] = book

    def _miss(self, before: Mapping[str, Book]) -> None:
        for log, book in before.items():
            lost = (book.strong - self.book(log).strong) & self._acknowledged
            if lost:
                self.missing[log] = self.missing.get(log, frozenset()) | lost


def sequencers(book: Book) -> set[int]:
    return set(book.requests.values())
