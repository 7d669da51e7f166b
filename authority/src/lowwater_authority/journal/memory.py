"""A journal in memory, for tests and the simulator: the same contract, on a disk that can be crashed and damaged."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from lowwater_authority.journal.errors import (
    JournalClosed,
    JournalCorrupt,
    JournalFailed,
    JournalFenced,
    JournalPosition,
    JournalUnknown,
)
from lowwater_authority.journal.faults import FaultPlan, Operation, Outcome
from lowwater_authority.journal.framing import Kind, Writer, checksum, decode, decode_records, encode
from lowwater_authority.journal.interface import Entry, Journal, JournalStatistics, LoadedLog
from lowwater_authority.journal.meter import Meter
from lowwater_authority.journal.sequence import Run, runs_of


@dataclass(slots=True)
class StoredLog:
    """One log on a MemoryDisk. The frames are open to tests that damage them."""

    last: int = 0
    tail: int = 0
    snapshot_position: int = 0
    snapshot: bytes | None = None
    records: dict[int, bytes] = field(default_factory=dict)

    def copy(self) -> StoredLog:
        """A copy that shares nothing that changes."""
        return replace(self, records=dict(self.records))


class MemoryDisk:
    """What outlives a MemoryJournal: the logs, the newest owner, and the writes that are only cached.

    Everything is durable as soon as it is written, except for writes that a FaultPlan leaves ``CACHED`` or ``UNSYNCED``:
    these, and only these, are undone by ``crash``, the newest first, until ``sync``. A later durable write makes them
    durable too, as syncing a file syncs all of it.
    """

    def __init__(self) -> None:
        self.logs: dict[str, StoredLog] = {}
        self.server_token = ""
        self.owner = Writer(epoch=0, nonce=0)
        self.life = 0
        self._undo: list[dict[str, StoredLog | None]] = []

    @property
    def unsynced(self) -> int:
        """Number of writes that a crash would drop."""
        return len(self._undo)

    def sync(self) -> None:
        """Make everything that is written durable."""
        self._undo.clear()

    def crash(self, keep: int = 0) -> None:
        """The machine dies: all but the oldest ``keep`` unsynced writes are gone, and every open journal is dead."""
        self.life += 1
        while len(self._undo) > keep:
            for log, before in self._undo.pop().items():
                if before is None:
                    del self.logs[log]
                else:
                    self.logs[log] = before
        self._undo.clear()

    def touch(self, logs: Iterable[str], *, synced: bool) -> None:
        """To be called before a write changes the logs: keeps what a crash must bring back."""
        if synced:
            self.sync()
        else:
            self._undo.append({log: self.logs[log].copy() if log in self.logs else None for log in logs})


class MemoryJournal(Journal):
    """The contract over a MemoryDisk. Opening a second journal over one disk fences the first; there is no lock.

    As durable as its FaultPlan lets it be, for strong and other entries alike. ``randbits`` makes the server token
    and the nonce. After ``MemoryDisk.crash`` every call raises JournalClosed.
    """

    def __init__(
        self,
        disk: MemoryDisk,
        *,
        faults: FaultPlan | None = None,
        randbits: Callable[[int], int] = secrets.randbits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._disk = disk
        self._faults = faults or FaultPlan()
        self._randbits = randbits
        self._meter = Meter(clock)
        self._life: int | None = None
        self._me = Writer(epoch=0, nonce=0)

    async def open(self) -> None:
        """See Journal."""
        disk = self._disk
        disk.server_token = disk.server_token or f"{self._randbits(128):032x}"
        disk.owner = self._me = Writer(disk.owner.epoch + 1, self._randbits(32))
        disk.touch((), synced=True)
        self.server_token = disk.server_token
        self.epoch, self.nonce = self._me
        self._life = disk.life

    async def logs(self) -> list[str]:
        """See Journal."""
        self._check_open()
        return sorted(self._disk.logs)

    async def load(self, log: str) -> LoadedLog:
        """See Journal."""
        self._check_open()
        stored = self._disk.logs.get(log, StoredLog())
        snapshot = None
        if stored.snapshot_position:
            if stored.snapshot is None:
                raise JournalCorrupt(log, stored.snapshot_position, "the snapshot is missing")
            snapshot = decode(log, stored.snapshot_position, stored.snapshot, kind=Kind.SNAPSHOT).payload
        records = decode_records(
            log,
            sorted(stored.records.items()),
            after=stored.snapshot_position,
            last=stored.last,
            tail=stored.tail,
            epoch=self._disk.owner.epoch,
        )
        return LoadedLog(stored.snapshot_position, snapshot, records)

    async def append(self, entries: Sequence[Entry]) -> None:
        """See Journal."""
        with self._meter.append(entries):
            self._check_open()
            runs = runs_of(entries, self._me)
            self._check_owner()
            if not runs:
                return
            places = [(entry.log, entry.position) for entry in entries]
            operation = Operation("append", places, strong=any(entry.strong for entry in entries))
            await self._run(operation, partial(self._append, runs))

    async def snapshot(self, log: str, position: int, payload: bytes) -> None:
        """See Journal."""
        with self._meter.snapshot(payload):
            self._check_open()
            frame = encode(log, position, payload, writer=self._me, kind=Kind.SNAPSHOT)
            self._check_owner()
            operation = Operation("snapshot", [(log, position)], strong=True)
            await self._run(operation, partial(self._replace, log, position, frame))

    async def close(self) -> None:
        """See Journal."""
        self._life = None

    def statistics(self) -> JournalStatistics:
        """See Journal."""
        return self._meter.statistics()

    async def _run(self, operation: Operation, write: Callable[[bool], None]) -> None:
        """One write, with the fate that the plan has for it. Owner and positions are checked with the write."""
        life = self._life
        # Every other store lets the event loop run during a write, and callers come to rely on it.
        await asyncio.sleep(0)
        outcome = await self._faults.before(operation)
        if life != self._disk.life:
            raise JournalClosed
        self._check_owner()
        if outcome is Outcome.FAILED:
            raise JournalFailed("the fault plan refuses this write")
        if outcome is not Outcome.LOST:
            write(outcome not in {Outcome.CACHED, Outcome.UNSYNCED})
        await self._faults.after(operation)
        if outcome in {Outcome.LOST, Outcome.WRITTEN} or life != self._disk.life:
            raise JournalUnknown("the fault plan, or a crash, hides the outcome of this write")
        if outcome is Outcome.CACHED:
            self._disk.sync()

    def _append(self, runs: list[Run], synced: bool) -> None:
        logs = self._disk.logs
        new = [run for run in runs if self._lacks(run)]
        self._disk.touch([run.log for run in new], synced=synced)
        for run in new:
            stored = logs.setdefault(run.log, StoredLog())
            stored.records.update(enumerate(run.frames, run.first))
            stored.last, stored.tail = run.last, checksum(run.frames[-1])

    def _lacks(self, run: Run) -> bool:
        """Whether the run is not yet in its log."""
        stored = self._disk.logs.get(run.log, StoredLog())
        if run.is_new(stored.last):
            return True
        if not run.is_tail(stored.records, tail=stored.tail):
            raise run.refuse_others(stored.last)
        return False

    def _replace(self, log: str, position: int, frame: bytes, synced: bool) -> None:
        stored = self._disk.logs.get(log, StoredLog())
        if not 1 <= position <= stored.last:
            raise JournalPosition(log, position=position, last=stored.last)
        if position <= stored.snapshot_position:
            return
        self._disk.touch([log], synced=synced)
        stored.snapshot_position, stored.snapshot = position, frame
        for place in [place for place in stored.records if place <= position]:
            del stored.records[place]

    def _check_open(self) -> None:
        if self._life != self._disk.life:
            raise JournalClosed

    def _check_owner(self) -> None:
        if self._disk.owner != self._me:
            raise JournalFenced(epoch=self._me.epoch, owner=self._disk.owner.epoch)
