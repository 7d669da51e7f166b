"""A log of a shard: how far it is written; appends that are retried until their outcome is known, and snapshots."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from lowwater.core.events import event
from lowwater_authority.engine.writes import Writes
from lowwater_authority.journal import (
    GRAPH,
    Entry,
    JournalError,
    JournalFailed,
    JournalFenced,
    JournalLost,
    JournalPosition,
    JournalUnknown,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence

    from lowwater_authority.engine.observer import Observer
    from lowwater_authority.journal import End, Journal, LoadedLog, Ownership

LARGE: Final = 16 << 20
"""Bytes of a snapshot that a thread of its own joins, which needs no lock of Python's for it: a
copy of fewer takes a few milliseconds."""

MOST_DOUBLINGS: Final = 4
"""How often the distance to the next attempt at a snapshot is doubled while the store refuses it.
"""

SNAPSHOT_AGAIN: Final = 600_000_000
"""Microseconds of processing time after which a snapshot that was refused is tried again, however
few records have come since."""

_logger = logging.getLogger(__name__)


class InDoubt(Exception):
    """An earlier attempt to append may have been written, and a later one was refused: the outcome is unknown."""

    def __init__(self, after: JournalError) -> None:
        super().__init__(f"an earlier attempt may be written, and now: {after}")
        self.after = after
        """Why the later attempt was refused."""


@dataclass(slots=True, eq=False)
class Log:
    """The log of a computation, or of the graph: how far it is known to be written, and when a snapshot of it was tried."""

    name: str
    snapshot_after: int
    """Bytes behind a snapshot that make the next one due, if they are twice that snapshot, too."""
    reading: int = 0
    """Grows when it is read, or forgotten: what was staged before is not written any more."""
    position: int = 0
    """How far it is known to be written."""
    behind: int = 0
    """Bytes of records behind the snapshot."""
    snapshot_bytes: int = 0
    snapshot_position: int = 0
    """Up to where its snapshot speaks."""
    refused: int = 0
    """Snapshots in a row that the store did not take, or that could not be made."""
    tried: tuple[int, int] = (0, 0)
    """When the last of these was made: ``behind``, and its bytes."""
    tried_at: int = 0
    """And the processing time."""
    snapshotting: asyncio.Task[None] | None = None
    """What writes a snapshot of it."""
    doubted: bool = False
    """True if the last restore of it was of unknown outcome at some time, and did not succeed
    since: what it restores may be written."""

    def read(self, loaded: LoadedLog) -> None:
        """It was read: remember where it ends.

        Read once more, after a roll-back, its snapshots are as often refused as before.
        """
        self.reading += 1
        self.position = loaded.last
        self.behind = sum(len(payload) for _, payload in loaded.records)
        self.snapshot_bytes, self.snapshot_position = len(loaded.snapshot or b""), loaded.snapshot_position
        self.tried = min(self.tried[0], self.behind), self.tried[1]

    def reached(self, last: int) -> None:
        """It ends there, or before it: what is written next is behind."""
        self.position = max(self.position, last)

    def forget(self) -> None:
        """It is another process's, or is to be read again."""
        self.reading += 1
        self.position = self.behind = self.snapshot_bytes = self.snapshot_position = self.refused = self.tried_at = 0
        self.tried = 0, 0

    def due(self, now: int) -> bool:
        """Return whether a snapshot would bound the replay, and none is being written.

        After one that was refused so many bytes have to come as make one due, and after each
        further one twice as many: making it costs all of the computation, whether or not the store
        takes it. But ``SNAPSHOT_AGAIN`` is long enough for any.
        """
        least = max(self.snapshot_after, 2 * self.snapshot_bytes)
        if self.snapshotting is not None or self.behind <= least:
            return False
        behind, tried = self.tried
        more = max(least, 2 * tried) << min(max(0, self.refused - 1), MOST_DOUBLINGS)
        return self.behind > behind + more or bool(self.refused and now - self.tried_at >= SNAPSHOT_AGAIN)

    def changed(self, now: int) -> bool:
        """Return whether it has records behind its last snapshot, however few, and none is being written, or was just refused."""
        return bool(self.behind) and self.snapshotting is None and not self.rests(now)

    def rests(self, now: int) -> bool:
        """Return whether a snapshot was refused so lately that another attempt has to wait: half a minute, and twice as long each time."""
        again = SNAPSHOT_AGAIN >> max(0, MOST_DOUBLINGS + 1 - self.refused)
        return bool(self.refused) and now - self.tried_at < again

    def snapshot_refused(self, behind: int, size: int, now: int) -> None:
        """The store did not take a snapshot of so many bytes, which would have covered ``behind``; or there is none."""
        self.refused, self.tried, self.tried_at = self.refused + 1, (behind, size), now

    def snapshot_taken(self, position: int, behind: int, size: int) -> None:
        """The store has a snapshot of so many bytes, which speaks up to a position and covers ``behind``."""
        self.behind, self.snapshot_bytes, self.snapshot_position = max(0, self.behind - behind), size, position
        self.refused, self.tried = 0, (0, 0)


class Record(NamedTuple):
    """What a round appends to one log."""

    log: Log
    payload: bytes
    strong: bool
    """True if losing it breaks a promise; see Entry."""
    newest: bool = False
    """As in Entry."""


T = TypeVar("T")


class Drop(Protocol):
    """Drops the logs that other processes own now out of an append."""

    def __call__(self, fenced: JournalFenced, *, in_doubt: bool) -> None:
        """``in_doubt``: whether the records of these logs may be written all the same."""
        ...


class _Append:
    """One append to several logs, and what of it may be written by now."""

    def __init__(
        self, records: Sequence[Record], readings: Mapping[Log, int], apart: Container[str], beside: Iterable[str]
    ) -> None:
        self.records = list(records)
        """What is still to be written."""
        self.beside = list(beside)
        """What is to be confirmed with them, and was not yet."""
        self.doubt = False
        """True if a part of it may be written: an attempt was of unknown outcome, or a heal has put
        it back."""
        self._apart = apart
        self._readings = {log: readings[log] for log, *_ in records if log.name != GRAPH}
        for log in self._readings:
            log.doubted = False  # of a heal before this append
        self._graph = 0
        self._ends: dict[Log, int] = {}

    def entries(self) -> list[Entry]:
        """Return what to write next."""
        self._ends = {log: log.position for log in self._readings}
        self._graph = next((log.reading for log, *_ in self.records if log.name == GRAPH), 0)
        return [Entry(log.name, log.position + 1, payload, *how) for log, payload, *how in self.records]

    async def attempt(self, journal: Journal, entries: Sequence[Entry]) -> None:
        """Write once, unless a log was let go meanwhile."""
        gone = {log.name: (0, 0) for log, reading in self._readings.items() if log.reading != reading}
        if gone:
            raise JournalFenced(gone)
        try:
            await journal.append(entries, beside=self.beside)
        except JournalUnknown:
            self.doubt = True
            raise
        except JournalFenced as error:
            # It names all that are not this process's own.
            self.beside = [name for name in self.beside if name in error.owners]
            raise
        except JournalLost:
            # All are this process's own. What lacks something is put back under a new ownership, or
            # its heal says who has it: nothing is left to be asked for behind that, when the round
            # may be written already.
            self.beside = []
            raise
        self.beside = []

    def written(self, entries: Sequence[Entry]) -> None:
        """All that was left is written."""
        for (log, payload, *_), entry in zip(self.records, entries, strict=True):
            if log.reading == self._readings.get(log, self._graph):
                log.position = entry.position
                log.behind += len(payload)

    def healed(self) -> set[str]:
        """Return what was put back since: the memory that a log is healed from has its record of the round already."""
        return {
            log.name
            for log, reading in self._readings.items()
            if log.reading == reading and log.position > self._ends[log] and log.name not in self._apart
        }

    def leave(self, names: Container[str]) -> None:
        """Go on without logs that other processes own."""
        self.records = [record for record in self.records if record.log.name not in names]
        self.beside = [name for name in self.beside if name not in names]
        self._readings = {log: reading for log, reading in self._readings.items() if log.name not in names}

    def go_on_behind(self, healed: set[str]) -> None:
        """Go on with what a heal has not put back."""
        self.doubt = self.doubt or bool(healed)
        self.records = [record for record in self.records if record.log.name not in healed]

    def in_doubt(self, names: Container[str] | None = None) -> bool:
        """Return whether these logs, or any, may have got their records all the same: by an earlier attempt, or by a heal of unknown outcome."""
        return self.doubt or any(
            log.doubted
            for log in self._readings
            if (names is None or log.name in names) and log.name not in self._apart
        )

    def refuse_if_doubted(self, error: JournalError) -> None:
        """No more attempt is made.

        Raises InDoubt where a part may be written: by an earlier attempt, or by a heal that was not
        finished.
        """
        if self.in_doubt() or self.healed():
            raise InDoubt(error) from error


class Logs:
    """Writes to logs, over one journal: a round to all of its logs in one step, and snapshots of each by itself.

    ``heal`` puts what the store has lost of a log back, from memory; called when an append finds it, if ``may_heal``.
    """

    def __init__(
        self,
        journal: Journal,
        observer: Observer,
        heal: Callable[[str], Awaitable[None]],
        may_heal: Callable[[], bool],
        snapshot_piece: int,
    ) -> None:
        self.journal = journal
        self._observer = observer
        self._heal = heal
        self._may_heal = may_heal
        self._snapshot_piece = snapshot_piece
        self._snapshots: set[asyncio.Task[None]] = set()
        self.stopping = False
        """True if an append of unknown outcome is given up instead of tried again."""
        self.writes = Writes(lambda: self.stopping)
        self.unconfirmed_since: int | None = None
        """Processing time at which an append began whose outcome is not known yet."""

    async def append(
        self,
        records: Sequence[Record],
        now: int,
        *,
        readings: Mapping[Log, int],
        apart: Container[str] = (),
        beside: Iterable[str] = (),
        drop: Drop | None = None,
    ) -> None:
        """Append records in one step; returns when they are durable.

        ``readings``: reading of each log, but the graph's, when its record was staged. A log that
        was let go since, and perhaps taken again, must not get the record, and is fenced.
        ``beside``: logs that get no record; that this process owns them is confirmed all the same.
        ``apart``: logs whose record is not in memory yet, so a heal does not write it. ``drop``:
        called when other processes own some logs; the others go on without them. If it is None,
        the whole append fails then. Raises JournalFailed, JournalFenced, JournalPosition, InDoubt.
        """
        appending = _Append(records, readings, apart, beside)
        if records:
            await self._append_in_time(appending, now, drop)
        await self._confirm(appending.beside, drop)

    async def _append_in_time(self, appending: _Append, now: int, drop: Drop | None) -> None:
        self.unconfirmed_since = now
        with self._observer.append(sum(len(record.payload) for record in appending.records)):
            try:
                await self._append(appending, drop)
            except (JournalFailed, JournalFenced, JournalPosition, InDoubt):
                self.unconfirmed_since = None
                raise
        self.unconfirmed_since = None

    async def _append(self, appending: _Append, drop: Drop | None) -> None:
        while appending.records:
            entries = appending.entries()
            try:
                try:
                    await self.until_known(partial(appending.attempt, self.journal, entries))
                except JournalLost as error:
                    await self.heal(error)
                else:
                    appending.written(entries)
                    return
            except (JournalFailed, JournalPosition) as error:
                appending.refuse_if_doubted(error)
                raise
            except JournalFenced as error:
                if drop is None:
                    appending.refuse_if_doubted(error)
                    raise
                drop(error, in_doubt=appending.in_doubt(error.owners))
                appending.leave(error.owners)
            appending.go_on_behind(appending.healed())

    async def _confirm(self, names: list[str], drop: Drop | None) -> None:
        """Confirm that this process owns the logs that no append has confirmed."""
        while names:
            try:
                try:
                    await self.journal.confirm(names)
                except JournalLost as lost:
                    await self.heal(lost)
                else:
                    return
            except JournalFenced as error:
                if drop is None:
                    raise
                drop(error, in_doubt=False)
                names = [name for name in names if name not in error.owners]

    async def heal(self, error: JournalLost) -> None:
        """Put back what the store has lost: the graph first, which the incarnations of all others stand on.

        Raises JournalFailed while this process has to wait whether another one does it, which may know more. When the others are put
        back: JournalPosition when other processes have changed the graph meanwhile, JournalFenced when they own some of the logs by now.
        """
        self.refuse_to_heal(error)
        _logger.error("%s; putting it back from memory", error, extra=event("store_lost_records", reason=str(error)))
        names = set(error.logs)
        try:
            await self.journal.confirm(())
        except JournalLost as also:
            names.update(also.logs)
        moved: JournalPosition | None = None
        fenced: dict[str, tuple[int, int]] = {}
        for name in sorted(names, key=lambda name: (name != GRAPH, name)):
            try:
                await self._heal(name)
            except JournalPosition as place:  # of the graph: the others do not wait for it to be read
                moved = place
            except JournalFenced as replaced:
                fenced |= replaced.owners
        if moved is not None:
            raise moved
        if fenced:
            raise JournalFenced(fenced)

    def refuse_to_heal(self, error: JournalError) -> None:
        """Raise JournalFailed while this process has to wait whether another one puts right what is wrong."""
        if not self._may_heal():
            msg = f"{error}. This process was out of touch with it: another one may own them, and goes first; try again"
            raise JournalFailed(msg)

    async def restore(
        self, log: Log, payload: bytes, *, view: int, address: str, over: End | None = None, newest: bool = False
    ) -> Ownership:
        """Make a snapshot all there is of a log, which the store has lost a part of.

        Raises JournalFenced, JournalPosition, ...

        ``over`` is where the log must end still: where it was read last, if others may write to it,
        too. An older snapshot that is still being written does not matter: it is of an owner, and
        of a place, that are over.
        """
        reading, position = log.reading, log.position + 1
        log.doubted = False

        async def write() -> Ownership:
            try:
                return await self.journal.restore(
                    log.name, position, payload, view=view, address=address, over=over, newest=newest
                )
            except JournalUnknown:
                log.doubted = True
                raise

        restoring = await self.until_known(write)
        log.doubted = False
        if log.reading == reading:  # else it was let go meanwhile
            log.position = log.snapshot_position = position
            log.behind, log.snapshot_bytes = 0, len(payload)
        return restoring

    async def until_known(self, write: Callable[[], Awaitable[T]]) -> T:
        """See Writes."""
        return await self.writes.until_known(write)

    async def snapshot(
        self, log: Log, take: Callable[[], Iterable[bytes]], now: int = 0, *, newest: bool = False
    ) -> None:
        """Begin to replace a log's records by a snapshot of what is durable now: returns when it is made, and is being written; appends go on meanwhile.

        It is made of pieces, and others have the event loop in between; what it is made of must not change until then. ``newest`` as in Entry. A failure is logged: a snapshot
        only shortens the replay.
        """
        reading = log.reading
        try:
            pieces = await _made(take(), self._snapshot_piece)
        except Exception:
            log.snapshot_refused(log.behind, 0, now)
            _logger.exception(
                "no snapshot of %r can be taken", log.name, extra=event("snapshot_failed", computation=log.name)
            )
            return
        if log.reading != reading:
            return  # it was let go meanwhile
        log.snapshotting = task = asyncio.create_task(
            self._snapshot(log, reading, log.position, log.behind, pieces, now, newest=newest)
        )
        self._snapshots.add(task)
        task.add_done_callback(self._snapshots.discard)

    async def _snapshot(
        self, log: Log, reading: int, position: int, covered: int, pieces: list[bytes], now: int, *, newest: bool
    ) -> None:
        size = sum(map(len, pieces))
        try:
            payload = await _joined(pieces)
            if log.reading != reading:
                return  # it was let go meanwhile, and perhaps taken again: then another one may have written there
            await self.journal.snapshot(log.name, position, payload, newest=newest)
        except (JournalError, MemoryError) as error:
            log.snapshot_refused(covered, size, now)
            _logger.warning(
                "no snapshot of %r: %s",
                log.name,
                error,
                extra=event("snapshot_failed", computation=log.name, reason=str(error)),
            )
        else:
            log.snapshot_taken(position, covered, size)
        finally:
            log.snapshotting = None

    async def settle(self) -> None:
        """Wait for the snapshots that were begun."""
        while self._snapshots:
            await asyncio.wait(self._snapshots)


async def _made(pieces: Iterable[bytes], together: int) -> list[bytes]:
    """Return the pieces of a snapshot, and let others have the event loop in between."""
    made: list[bytes] = []
    size = 0
    for piece in pieces:
        made.append(piece)
        size += len(piece)
        if size >= together:
            await asyncio.sleep(0)
            size = 0
    return made


async def _joined(pieces: list[bytes]) -> bytes:
    """Join pieces, which are not kept."""
    whole = b"".join(pieces) if sum(map(len, pieces)) < LARGE else await asyncio.to_thread(b"".join, pieces)
    pieces.clear()
    return whole
