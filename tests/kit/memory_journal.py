"""A journal in memory, for tests and the simulator: the same contract, on a disk that can be crashed and damaged."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from lowwater_authority.journal.contract import (
    GRAPH,
    End,
    Entry,
    JournalClosed,
    JournalCorrupt,
    JournalFailed,
    JournalFenced,
    JournalLost,
    JournalPosition,
    JournalReplaced,
    JournalUnknown,
    LoadedLog,
    Ownership,
)
from lowwater_authority.journal.frames import (
    Kind,
    Run,
    checksum,
    decode,
    decode_records,
    encode,
    refuse_another,
    refuse_snapshot_behind,
    runs_of,
)
from lowwater_authority.journal.rules import (
    LogState,
    Owned,
    RememberingJournal,
    Writer,
    is_usurped,
    judge,
    refuse_lost,
    refuse_older_view,
    refuse_other_end,
)
from tests.kit.faults import FaultPlan, Operation, Outcome

T = TypeVar("T")

LAG: Final = 1000
"""The number of newest writes that a MemoryDisk can lose."""


def flipped(frame: bytes) -> bytes:
    middle = len(frame) // 2
    return frame[:middle] + bytes([frame[middle] ^ 0x10]) + frame[middle + 1 :]


@dataclass(slots=True)
class StoredLog:
    """One log on a MemoryDisk. The frames are open to tests that damage them."""

    last: int = 0
    tail: int = 0
    snapshot_position: int = 0
    snapshot: bytes | None = None
    records: dict[int, bytes] = field(default_factory=dict)

    @property
    def end(self) -> End:
        return End(self.last, self.tail)

    def copy(self) -> StoredLog:
        return replace(self, records=dict(self.records))

    def damage(self, place: int = 0) -> None:
        self.records[place or self.last] = flipped(self.records[place or self.last])

    def damage_snapshot(self) -> None:
        assert self.snapshot is not None
        self.snapshot = flipped(self.snapshot)


@dataclass(frozen=True, slots=True)
class _Before:
    """The state of one log before a write, which undoes that write."""

    owner: Ownership | None
    stored: StoredLog | None
    """The log before the write, with those records only that the write removed."""


class MemoryDisk:
    """The state that outlives a MemoryJournal: the logs, their owners, and which writes are only cached.

    Everything is durable as soon as it is written, except for writes that a FaultPlan leaves ``ADRIFT``, ``CACHED`` or ``UNSYNCED``:
    these, and only these, are undone by ``crash``, the newest first, until ``sync``. A later durable write makes them
    durable too, as syncing a file syncs all of it, unless it ``keeps_prefixes``. ``lose`` undoes what was durable.
    """

    def __init__(self) -> None:
        self.logs: dict[str, StoredLog] = {}
        self.owners: dict[str, Ownership] = {}
        self.server_token = ""
        self.life = 0
        self.written = 0
        """Number of the newest write."""
        self.keeps_prefixes = False
        """True if an acknowledged write makes only itself and the writes before it durable, as a following replica does."""
        self._history: deque[dict[str, _Before]] = deque()
        self._unsynced = 0

    @property
    def unsynced(self) -> int:
        return self._unsynced

    def states_of(self, logs: Iterable[str]) -> dict[str, LogState]:
        empty = StoredLog()
        return {log: LogState(self.owners.get(log, Ownership()), self.logs.get(log, empty).end) for log in logs}

    def sync(self, through: int | None = None) -> None:
        behind = self.written - through if through is not None and self.keeps_prefixes else 0
        self._unsynced = min(self._unsynced, behind)

    def crash(self, keep: int = 0) -> None:
        """The machine dies: all but the oldest ``keep`` unsynced writes are gone, and every open journal is dead."""
        self.life += 1
        self.lose(max(0, self._unsynced - keep))
        self.sync()

    def lose(self, count: int) -> None:
        """Undo the newest ``count`` writes of any kind, acknowledged or not, while the journals stay open.

        So does a fail-over to a replica that lags. The disk knows ``LAG`` of them; the server token stays.
        """
        for _ in range(min(count, len(self._history))):
            for log, before in self._history.pop().items():
                self._undo(log, before)
            self._unsynced = max(0, self._unsynced - 1)

    def backup(self) -> MemoryDisk:
        copy = MemoryDisk()
        copy.put_back(self)
        return copy

    def put_back(self, copy: MemoryDisk) -> None:
        self.logs = {log: stored.copy() for log, stored in copy.logs.items()}
        self.owners = dict(copy.owners)
        self.server_token = copy.server_token
        self._history.clear()
        self.sync()

    def touch(self, logs: Mapping[str, Mapping[int, bytes]], *, synced: bool) -> None:
        """Keep what undoing a write must bring back. The caller calls this before it changes the logs.

        By log: the records that the write takes away. Those behind the old end need no mention.
        """
        self._history.append(
            {
                log: _Before(
                    self.owners.get(log), replace(self.logs[log], records=dict(removed)) if log in self.logs else None
                )
                for log, removed in logs.items()
            }
        )
        self.written += 1
        self._unsynced = 0 if synced else self._unsynced + 1
        if len(self._history) > max(LAG, self._unsynced):
            self._history.popleft()

    def _undo(self, log: str, before: _Before) -> None:
        if before.owner is None:
            self.owners.pop(log, None)
        else:
            self.owners[log] = before.owner
        stored = self.logs.pop(log, None)
        if before.stored is not None:
            if stored is not None:
                rest = {position: frame for position, frame in stored.records.items() if position <= before.stored.last}
                before.stored.records.update(rest)
            self.logs[log] = before.stored


class MemoryJournal(RememberingJournal):
    """The contract over a MemoryDisk, which several journals may use at once; ``shared`` says whether they do.

    As durable as its FaultPlan lets it be, for strong and other entries alike. ``randbits`` makes the server token
    and the nonces. After ``MemoryDisk.crash`` every call raises JournalClosed.
    """

    def __init__(
        self,
        disk: MemoryDisk,
        *,
        shared: bool = False,
        faults: FaultPlan | None = None,
        randbits: Callable[[int], int] = secrets.randbits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.shared = shared
        self._disk = disk
        self._faults = faults or FaultPlan()
        self.loads = Counter[str]()
        """The number of times that each log was read whole."""
        self._randbits = randbits
        super().__init__(clock=clock)
        self._life: int | None = None

    async def open(self) -> None:
        disk = self._disk
        self.server_token = disk.server_token = disk.server_token or f"{self._randbits(128):032x}"
        self._owned = Owned(self._randbits(32))
        self._life = disk.life

    async def take(self, log: str, *, view: int = 0, address: str = "", above: int = 0) -> Ownership:
        self._check_open()
        ownership = Ownership(above, self._owned.next_nonce(log, self._randbits), address, view)
        write = partial(self._take, log, self._owned.states([log]), ownership)
        owner = await self._run(Operation("take", [(log, 0)], strong=True), write)
        self._owned.took(log, owner)
        return owner

    async def owners(self, logs: Iterable[str]) -> dict[str, Ownership]:
        believed = self._owned.states(logs)
        await self._read("owners")
        self._check_token(believed)
        return {log: state.owner for log, state in self._disk.states_of(believed).items()}

    async def confirm(self, logs: Iterable[str]) -> int:
        believed = self._owned.states([*logs, GRAPH])
        await self._read("confirm")
        return self._judge(believed)[GRAPH].last

    async def logs(self) -> list[str]:
        await self._read("logs")
        self._check_token(self._owned.states([GRAPH]))
        return sorted(self._disk.logs)

    async def end(self, log: str) -> End:
        believed = self._owned.states([log])
        await self._read("end")
        self._check_token(believed)
        return self._disk.states_of([log])[log].end

    async def load(self, log: str, *, before: LoadedLog | None = None, durable: bool = True) -> LoadedLog:
        """See Journal. All of it is read each time, which costs nothing here."""
        del before
        self.loads[log] += 1
        await self._faults.load(log)
        while True:
            loaded, believed, state = await self._load(log)
            if not durable or await self._settled(log, state.end):
                break
        if state.owner == believed.owner:
            self._owned.reached(log, state.end)
        return loaded

    async def _settled(self, log: str, end: End) -> bool:
        """Return when a log that was read is durable; False: it is another one by now."""
        if not end.last or not self._disk.unsynced:
            return True
        await self._faults.settle(log)
        self._check_open()
        if self._disk.states_of([log])[log].end != end:
            return False
        self._disk.sync()
        return True

    async def _load(self, log: str) -> tuple[LoadedLog, LogState, LogState]:
        """Read a log; returns what was believed of it, and what there is, too."""
        believed = self._owned.states([log])
        await self._read("load")
        self._check_token(believed)
        states = self._disk.states_of([log])
        refuse_lost(believed, states)
        stored = self._disk.logs.get(log, StoredLog())
        snapshot = None
        if stored.snapshot_position:
            if stored.snapshot is None:
                raise JournalCorrupt(log, stored.snapshot_position, "the snapshot is missing")
            snapshot = decode(log, stored.snapshot_position, stored.snapshot, kind=Kind.SNAPSHOT).payload
        records, tails = decode_records(
            log,
            sorted(stored.records.items()),
            after=stored.snapshot_position,
            last=stored.last,
            tail=stored.tail,
            epoch=states[log].owner.epoch,
        )
        return LoadedLog(stored.snapshot_position, snapshot, records, tails=tails), believed[log], states[log]

    async def load_behind(self, log: str, position: int) -> LoadedLog:
        while True:
            loaded, end = await self._load_behind(log, position)
            if await self._settled(log, end):
                return loaded

    async def _load_behind(self, log: str, position: int) -> tuple[LoadedLog, End]:
        believed = self._owned.states([log])
        await self._read("load_behind")
        self._check_token(believed)
        refuse_lost(believed, self._disk.states_of([log]))
        stored = self._disk.logs.get(log, StoredLog())
        refuse_snapshot_behind(log, position, stored.snapshot_position)
        rows = [row for row in sorted(stored.records.items()) if row[0] > position]
        epoch = self._disk.states_of([log])[log].owner.epoch
        last, tail = stored.end
        records, tails = decode_records(log, rows, after=position, last=last, tail=tail, epoch=epoch)
        return LoadedLog(position, None, records, tails=tails), stored.end

    async def append(self, entries: Sequence[Entry], *, beside: Iterable[str] = ()) -> None:
        with self._meter.append(entries):
            self._check_open()
            runs = runs_of(entries, self._owned.writer)
            if not runs:
                return
            places = [(entry.log, entry.position) for entry in entries]
            operation = Operation("append", places, strong=any(entry.strong for entry in entries))
            believed = self._owned.states([*(run.log for run in runs), *beside])
            await self._run(operation, partial(self._append, runs, believed))
            for run in runs:
                self._owned.reached(run.log, run.end)

    async def snapshot(self, log: str, position: int, payload: bytes, *, newest: bool = False) -> None:
        with self._meter.snapshot(payload):
            self._check_open()
            writer = self._owned.writer(log)
            frame = encode(log, position, payload, writer=writer, kind=Kind.SNAPSHOT, newest=newest)
            operation = Operation("snapshot", [(log, position)], strong=True)
            believed, record = self._owned.states([log]), self._owned.record(log, position)
            await self._run(operation, partial(self._replace, log, position, frame, believed, record))

    async def restore(
        self,
        log: str,
        position: int,
        payload: bytes,
        *,
        view: int = 0,
        address: str = "",
        over: End | None = None,
        newest: bool = False,
    ) -> Ownership:
        with self._meter.snapshot(payload):
            self._check_open()
            ownership = Ownership(0, self._owned.next_nonce(log, self._randbits), address, view)
            believed = self._owned.states([log])[log]
            write = partial(self._restore, log, position, payload, newest, believed, ownership, over)
            owner, end = await self._run(Operation("restore", [(log, position)], strong=True), write)
            if log != GRAPH:
                self._owned.took(log, owner)
            self._owned.reached(log, end)
            return owner

    async def close(self) -> None:
        self._life = None

    async def _run(self, operation: Operation, write: Callable[[bool], T]) -> T:
        """One write, with the fate that the plan has for it. Whatever it depends on is checked with it, in one step."""
        life = self._life
        # Every other store lets the event loop run during a write, and callers come to rely on it.
        await asyncio.sleep(0)
        outcome = await self._faults.before(operation)
        if life != self._disk.life:
            raise JournalClosed
        if outcome is Outcome.FAILED:
            raise JournalFailed("the fault plan refuses this write")
        if outcome is Outcome.LOST:
            await self._faults.after(operation)
            raise JournalUnknown("the fault plan hides that this write is lost")
        result = write(outcome not in {Outcome.ADRIFT, Outcome.CACHED, Outcome.UNSYNCED})
        number = self._disk.written
        await self._faults.after(operation)
        if outcome in {Outcome.ADRIFT, Outcome.WRITTEN} or life != self._disk.life:
            raise JournalUnknown("the fault plan, or a crash, hides the outcome of this write")
        if outcome is Outcome.CACHED:
            self._disk.sync(number)
        return result

    async def _read(self, name: str) -> None:
        """The way to the disk; what is read is read behind it, in one step."""
        self._check_open()
        await asyncio.sleep(0)
        await self._faults.read(name)
        self._check_open()

    def _take(self, log: str, believed: Mapping[str, LogState], ownership: Ownership, synced: bool) -> Ownership:
        """``wanted`` has the epoch to be above."""
        self._check_token(believed)
        states = self._disk.states_of([log])
        refuse_lost(believed, states)
        refuse_older_view(log, ownership, states[log].owner)
        self._disk.touch({log: {}}, synced=synced)
        self._disk.owners[log] = owner = ownership._replace(epoch=max(states[log].owner.epoch, ownership.epoch) + 1)
        return owner

    def _append(self, runs: list[Run], believed: Mapping[str, LogState], synced: bool) -> None:
        self._judge(believed)
        new = [run for run in runs if self._lacks(run)]
        self._disk.touch({run.log: {} for run in new}, synced=synced)
        for run in new:
            stored = self._disk.logs.setdefault(run.log, StoredLog())
            stored.records.update(enumerate(run.frames, run.first))
            stored.last, stored.tail = run.last, checksum(run.frames[-1])

    def _lacks(self, run: Run) -> bool:
        stored = self._disk.logs.get(run.log, StoredLog())
        if run.is_new(stored.last):
            return True
        if not run.is_written(stored.records, last=stored.last, tail=stored.tail):
            raise run.refuse_others(stored.last)
        return False

    def _replace(
        self, log: str, position: int, frame: bytes, believed: Mapping[str, LogState], record: int | None, synced: bool
    ) -> None:
        self._judge(believed)
        stored = self._disk.logs.get(log, StoredLog())
        if not 1 <= position <= stored.last:
            raise JournalPosition(log, position=position, last=stored.last)
        if position <= stored.snapshot_position:
            return
        refuse_another(log, position, stored.last, record, stored.records.get(position))
        covered = {place: frame for place, frame in stored.records.items() if place <= position}
        self._disk.touch({log: covered}, synced=synced)
        stored.snapshot_position, stored.snapshot = position, frame
        for place in covered:
            del stored.records[place]

    def _restore(
        self,
        log: str,
        position: int,
        payload: bytes,
        newest: bool,
        mine: LogState,
        ownership: Ownership,
        over: End | None,
        synced: bool,
    ) -> tuple[Ownership, End]:
        disk = self._disk
        if disk.server_token:
            self._check_token({})
        state = disk.states_of([log])[log]
        if log != GRAPH:
            # An own attempt, of unknown outcome, had the same nonce.
            if is_usurped(mine.owner, state.owner) and state.owner.nonce != ownership.nonce:
                raise JournalFenced({log: (mine.owner.epoch, state.owner.epoch)})
            refuse_older_view(log, ownership, state.owner)
        stored = disk.logs.get(log, StoredLog())

        def framed(owner: Ownership) -> bytes:
            writer = self._owned.writer(GRAPH) if log == GRAPH else Writer(owner.epoch, owner.nonce)
            return encode(log, position, payload, writer=writer, kind=Kind.SNAPSHOT, newest=newest)

        if state.last == position and stored.tail == checksum(framed(state.owner)):
            disk.touch({}, synced=synced)
            return state.owner, state.end
        refuse_other_end(log, position, state.end, over)
        if position <= max(state.last, mine.last):
            raise JournalPosition(log, position=position, last=max(state.last, mine.last))
        disk.touch({log: stored.records}, synced=synced)
        disk.server_token = self.server_token
        owner = Ownership()
        if log != GRAPH:
            disk.owners[log] = owner = ownership._replace(epoch=max(state.owner.epoch, mine.owner.epoch) + 1)
        frame = framed(owner)
        disk.logs[log] = stored = StoredLog(position, checksum(frame), position, frame)
        return owner, stored.end

    def _check_open(self) -> None:
        if self._life != self._disk.life:
            raise JournalClosed

    def _judge(self, believed: Mapping[str, LogState]) -> dict[str, LogState]:
        """Check that the logs may be written; returns their states on the disk."""
        self._check_token(believed)
        states = self._disk.states_of(believed)
        judge(believed, states)
        return states

    def _check_token(self, believed: Mapping[str, LogState]) -> None:
        """Check that the disk is the one that was opened, and not empty."""
        token = self._disk.server_token
        if not token:
            raise JournalLost({log: (mine.last, 0) for log, mine in believed.items()})
        if token != self.server_token:
            raise JournalReplaced(expected=self.server_token, actual=token)
