"""Logs of a shard: appends that are repeated until their outcome is known, and snapshots."""

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
"""Bytes of a snapshot from which on another thread joins its pieces. Joining fewer takes a few
milliseconds."""

MOST_DOUBLINGS: Final = 4
"""Most doublings of the distance to the next snapshot while the store refuses them."""

SNAPSHOT_AGAIN: Final = 600_000_000
"""Processing time after which a refused snapshot is tried again, in microseconds."""

_logger = logging.getLogger(__name__)


class InDoubt(Exception):
    """An attempt to append was refused, but an earlier one may be written."""

    def __init__(self, after: JournalError) -> None:
        super().__init__(f"an earlier attempt may be written, and now: {after}")
        self.after = after
        """Error of the later attempt."""


@dataclass(slots=True, eq=False)
class Log:
    """The log of a computation or of the graph: its known end, and the state of its snapshots."""

    name: str
    snapshot_after: int
    """Least bytes behind a snapshot that make the next one due. There must also be twice as many as
    the snapshot has."""
    reading: int = 0
    """Number that grows when the log is read or forgotten. A record that was staged under a lower
    number is not written any more."""
    position: int = 0
    """Position of the newest record that is known to be written."""
    behind: int = 0
    """Bytes of records behind the snapshot."""
    snapshot_bytes: int = 0
    snapshot_position: int = 0
    """Position of the newest record that the snapshot covers."""
    refused: int = 0
    """Failed snapshots since the last good one: refused by the store, or not made."""
    tried: tuple[int, int] = (0, 0)
    """``behind`` at the last failed snapshot, and the bytes of that snapshot."""
    tried_at: int = 0
    """Processing time of the last failed snapshot."""
    snapshotting: asyncio.Task[None] | None = None
    """Task that writes a snapshot."""
    doubted: bool = False
    """True if a restore had an unknown outcome, and none has succeeded since: its snapshot may be
    written."""

    def read(self, loaded: LoadedLog) -> None:
        """Note where the log ended when it was read.

        The count of failed snapshots stays, because a roll-back reads the log again, too.
        """
        self.reading += 1
        self.position = loaded.last
        self.behind = sum(len(payload) for _, payload in loaded.records)
        self.snapshot_bytes, self.snapshot_position = len(loaded.snapshot or b""), loaded.snapshot_position
        self.tried = min(self.tried[0], self.behind), self.tried[1]

    def reached(self, last: int) -> None:
        """Note that the log does not reach beyond ``last``; the next record comes behind it."""
        self.position = max(self.position, last)

    def forget(self) -> None:
        """Forget the end: the log is another process's, or must be read again."""
        self.reading += 1
        self.position = self.behind = self.snapshot_bytes = self.snapshot_position = self.refused = self.tried_at = 0
        self.tried = 0, 0

    def due(self, now: int) -> bool:
        """Return whether a snapshot is worth its cost, and none is being written.

        Making a snapshot costs a pass over the computation, even if the store refuses it. So after
        each failure in a row twice as many bytes must come first, or ``SNAPSHOT_AGAIN`` must pass.
        """
        least = max(self.snapshot_after, 2 * self.snapshot_bytes)
        if self.snapshotting is not None or self.behind <= least:
            return False
        behind, tried = self.tried
        more = max(least, 2 * tried) << min(max(0, self.refused - 1), MOST_DOUBLINGS)
        return self.behind > behind + more or bool(self.refused and now - self.tried_at >= SNAPSHOT_AGAIN)

    def changed(self, now: int) -> bool:
        """Return whether a snapshot would cover a record, and none is under way or just failed."""
        return bool(self.behind) and self.snapshotting is None and not self.rests(now)

    def rests(self, now: int) -> bool:
        """Return whether the last failure of a snapshot is too recent to try again.

        The rest is half a minute, then twice as long after each failure.
        """
        again = SNAPSHOT_AGAIN >> max(0, MOST_DOUBLINGS + 1 - self.refused)
        return bool(self.refused) and now - self.tried_at < again

    def snapshot_refused(self, behind: int, size: int, now: int) -> None:
        """Note a failed snapshot of ``size`` bytes, which would have covered ``behind`` bytes."""
        self.refused, self.tried, self.tried_at = self.refused + 1, (behind, size), now

    def snapshot_taken(self, position: int, behind: int, size: int) -> None:
        """Note a snapshot of ``size`` bytes up to a position, which covers ``behind`` bytes."""
        self.behind, self.snapshot_bytes, self.snapshot_position = max(0, self.behind - behind), size, position
        self.refused, self.tried = 0, (0, 0)


def continues(loaded: LoadedLog, before: LoadedLog) -> bool:
    """Return whether a log is as it was read before, perhaps with more records."""
    same = before.snapshot_position == loaded.snapshot_position and before.snapshot == loaded.snapshot
    return same and before.records == loaded.records[: len(before.records)]


class Record(NamedTuple):
    """A record that a round appends to one log. The last two fields: see Entry."""

    log: Log
    payload: bytes
    strong: bool
    newest: bool = False


T = TypeVar("T")


class Drop(Protocol):
    """Drops the logs that other processes own now out of an append."""

    def __call__(self, refusal: JournalFenced, *, in_doubt: bool) -> None:
        """``in_doubt``: whether the records of these logs may be written all the same."""
        ...


class _Append:
    """One append to several logs, with its records that may be written by now."""

    def __init__(
        self, records: Sequence[Record], readings: Mapping[Log, int], apart: Container[str], beside: Iterable[str]
    ) -> None:
        self.records = list(records)
        """Records that are not written yet."""
        self.beside = list(beside)
        """Logs without a record whose ownership is not confirmed yet."""
        self.doubt = False
        """True if some records may be written: an attempt had an unknown outcome, or a heal wrote
        them."""
        self._apart = apart
        self._readings = {log: readings[log] for log, *_ in records if log.name != GRAPH}
        for log in self._readings:
            log.doubted = False  # an earlier heal does not write records of this append
        self._graph = 0
        self._ends: dict[Log, int] = {}

    def entries(self) -> list[Entry]:
        """Return the entries of the next attempt."""
        self._ends = {log: log.position for log in self._readings}
        self._graph = next((log.reading for log, *_ in self.records if log.name == GRAPH), 0)
        return [Entry(log.name, log.position + 1, payload, *how) for log, payload, *how in self.records]

    async def attempt(self, journal: Journal, entries: Sequence[Entry]) -> None:
        """Write once. Raises JournalFenced if this process has lost a log since the staging."""
        lost = {log.name: (0, 0) for log, reading in self._readings.items() if log.reading != reading}
        if lost:
            raise JournalFenced(lost)
        try:
            await journal.append(entries, beside=self.beside)
        except JournalUnknown:
            self.doubt = True
            raise
        except JournalFenced as error:
            # The error names all logs that other processes own; the others are confirmed.
            self.beside = [name for name in self.beside if name in error.owners]
            raise
        except JournalLost:
            # This process owns all of these logs. A log that lacks records is healed next, which
            # confirms its owner. So nothing is left to confirm.
            self.beside = []
            raise
        self.beside = []

    def written(self, entries: Sequence[Entry]) -> None:
        """Note that all remaining records are written."""
        for (log, payload, *_), entry in zip(self.records, entries, strict=True):
            if log.reading == self._readings.get(log, self._graph):
                log.position = entry.position
                log.behind += len(payload)

    def healed(self) -> set[str]:
        """Return the logs that were healed since the attempt.

        They were written from memory, which had the record of the round already.
        """
        return {
            log.name
            for log, reading in self._readings.items()
            if log.reading == reading and log.position > self._ends[log] and log.name not in self._apart
        }

    def leave(self, names: Container[str]) -> None:
        """Drop logs that other processes own out of the append."""
        self.records = [record for record in self.records if record.log.name not in names]
        self.beside = [name for name in self.beside if name not in names]
        self._readings = {log: reading for log, reading in self._readings.items() if log.name not in names}

    def go_on_behind(self, healed: set[str]) -> None:
        """Go on without the records that a heal has written."""
        self.doubt = self.doubt or bool(healed)
        self.records = [record for record in self.records if record.log.name not in healed]

    def in_doubt(self, names: Container[str] | None = None) -> bool:
        """Return whether some of these logs may have their records; ``names`` None: of all logs.

        An earlier attempt, or a heal of unknown outcome, may have written them.
        """
        return self.doubt or any(
            log.doubted
            for log in self._readings
            if (names is None or log.name in names) and log.name not in self._apart
        )

    def refuse_if_doubted(self, error: JournalError) -> None:
        """Raise InDoubt, after the last attempt was refused, if some records may be written."""
        if self.in_doubt() or self.healed():
            raise InDoubt(error) from error


class Logs:
    """Writes to the logs of one journal: all records of a round in one step, snapshots one by one.

    ``heal`` writes a log again from memory, when an append finds that the store has lost records of
    it. This process must wait with that while ``may_heal`` returns False.
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
        """True if an append of unknown outcome is given up instead of repeated."""
        self.writes = Writes(lambda: self.stopping)
        self.unconfirmed_since: int | None = None
        """Processing time at which an append began whose outcome is not known yet; else None."""
        self.view = 0
        """Version of the membership under which logs are taken; 0 with one process."""
        self.address = ""
        """Address of this process."""

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
        was let go since, and perhaps taken again, must not get the record, and is refused.
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
        """Write logs again from memory: the graph first, because it names the incarnations.

        All staged state must be durable, or be meant to be.

        Raises JournalFailed while another process may do this, and know more. After all logs were
        tried, raises JournalPosition if other processes have changed the graph meanwhile, or
        JournalFenced if they own some of the logs by now.
        """
        self.refuse_to_heal(error)
        _logger.error("%s; putting it back from memory", error, extra=event("store_lost_records", reason=str(error)))
        names = set(error.logs)
        try:
            await self.journal.confirm(())
        except JournalLost as also:
            names.update(also.logs)
        moved: JournalPosition | None = None
        lost: dict[str, tuple[int, int]] = {}
        for name in sorted(names, key=lambda name: (name != GRAPH, name)):
            try:
                await self._heal(name)
            except JournalPosition as position:  # the graph must be read; other logs do not wait for it
                moved = position
            except JournalFenced as refusal:
                lost |= refusal.owners
        if moved is not None:
            raise moved
        if lost:
            raise JournalFenced(lost)

    def refuse_to_heal(self, error: JournalError) -> None:
        """Raise JournalFailed while another process may repair the logs, and goes first."""
        if not self._may_heal():
            msg = f"{error}. This shard was out of touch with its store: another one may own the logs, and repairs them first; try again"
            raise JournalFailed(msg)

    def taking(self, name: str, *, above: int = 0) -> Callable[[], Awaitable[Ownership]]:
        """Return a function that takes a log, and that may be called again; see Journal.take.

        Every call of the function carries the view that is current here. Under a newer view, a
        repeated call could take the log back from its next owner, whose records this process has
        not read.
        """
        return partial(self.journal.take, name, view=self.view, address=self.address, above=above)

    async def restore(
        self,
        log: Log,
        payload: bytes,
        *,
        view: int | None = None,
        address: str = "",
        over: End | None = None,
        newest: bool = False,
    ) -> Ownership:
        """Replace all of a log by a snapshot, under a new ownership.

        ``view`` None: the newest. ``address`` is the owner's. ``over`` is the end that the log must
        still have, if other processes may write to it. An older snapshot may still be under way;
        its ownership and position are over, so the store refuses it. Raises JournalFenced,
        JournalPosition, ...
        """
        reading, position = log.reading, log.position + 1
        log.doubted = False

        async def write() -> Ownership:
            try:
                return await self.journal.restore(
                    log.name,
                    position,
                    payload,
                    view=self.view if view is None else view,
                    address=address,
                    over=over,
                    newest=newest,
                )
            except JournalUnknown:
                log.doubted = True
                raise

        ownership = await self.until_known(write)
        log.doubted = False
        if log.reading == reading:  # else this process has lost the log meanwhile
            log.position = log.snapshot_position = position
            log.behind, log.snapshot_bytes = 0, len(payload)
        return ownership

    async def until_known(self, write: Callable[[], Awaitable[T]]) -> T:
        """See Writes."""
        return await self.writes.until_known(write)

    async def snapshot(
        self, log: Log, take: Callable[[], Iterable[bytes]], now: int = 0, *, newest: bool = False
    ) -> None:
        """Begin to replace a log's records by a snapshot; returns when its write begins.

        ``take`` yields the snapshot in pieces, and other tasks run in between. The state that it
        reads must be durable, and must not change until this returns. Appends go on during the
        write. ``newest`` as in Entry. A failure is only logged, because a snapshot only shortens
        the replay.
        """
        reading = log.reading
        try:
            pieces = await _gathered(take(), self._snapshot_piece)
        except Exception:
            log.snapshot_refused(log.behind, 0, now)
            _logger.exception(
                "no snapshot of %r can be taken", log.name, extra=event("snapshot_failed", computation=log.name)
            )
            return
        if log.reading != reading:
            return  # this process has lost the log meanwhile
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
                return  # this process has lost the log; another one may have written there
            await self.journal.snapshot(log.name, position, payload, newest=newest)
        except (JournalError, MemoryError) as error:
            log.snapshot_refused(covered, size, now)
            facts = event("snapshot_failed", computation=log.name, reason=str(error))
            _logger.warning("no snapshot of %r: %s", log.name, error, extra=facts)
        else:
            log.snapshot_taken(position, covered, size)
        finally:
            log.snapshotting = None

    async def settle(self) -> None:
        """Wait for the snapshots that are being written."""
        while self._snapshots:
            await asyncio.wait(self._snapshots)


async def _gathered(pieces: Iterable[bytes], together: int) -> list[bytes]:
    """Return the pieces of a snapshot; other tasks run after each ``together`` bytes."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= together:
            await asyncio.sleep(0)
            size = 0
    return gathered


async def _joined(pieces: list[bytes]) -> bytes:
    """Join pieces, and empty their list."""
    whole = b"".join(pieces) if sum(map(len, pieces)) < LARGE else await asyncio.to_thread(b"".join, pieces)
    pieces.clear()
    return whole
