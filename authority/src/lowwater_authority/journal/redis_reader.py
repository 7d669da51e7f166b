"""How a log is read from Redis while its owner appends to it and replaces it by snapshots."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Final

from lowwater_authority.journal.contract import (
    GRAPH,
    JournalCorrupt,
    JournalFailed,
    JournalUnknown,
    LoadedLog,
    Ownership,
)
from lowwater_authority.journal.frames import Kind, checksum, decode, decode_records, refuse_snapshot_behind
from lowwater_authority.journal.redis_database import RedisDatabase, StoredLog
from lowwater_authority.journal.redis_link import Late, Lost
from lowwater_authority.journal.redis_turns import Aside, Line
from lowwater_authority.journal.rules import LogState, Owned, refuse_lost

READINGS: Final = 100
"""Attempts to read a log when each time a new snapshot, or owner, comes between."""

_PAGE: Final = 256
"""Records that are read at a time."""

_PARTS_PAGE: Final = 16
"""Parts of a snapshot that are read at a time."""


class RedisReader:
    """Reads logs on the connection of a journal.

    It reads page by page, so that appends get their turn in between. ``aside`` is the connection
    over which the store makes durable what was read. ``doubtful`` holds the logs of which an
    attempt to write may still be stored.
    """

    def __init__(self, line: Line, aside: Aside, owned: Owned, doubtful: Collection[tuple[str, str]]) -> None:
        self._line = line
        self._aside = aside
        self._owned = owned
        self._doubtful = doubtful

    async def load(self, log: str, earlier: LoadedLog | None, *, durable: bool) -> LoadedLog:
        """See ``RedisJournal.load``."""
        owner, stored, loaded = await self._read(log, partial(self._load, log), earlier, durable=durable)
        if stored.state.owner[:2] == owner[:2]:
            self._owned.reached(log, stored.state.end)
        return loaded

    async def load_behind(self, log: str, position: int) -> LoadedLog:
        """See ``RedisJournal.load_behind``."""

        async def read(stored: StoredLog, _: LoadedLog | None) -> LoadedLog:
            refuse_snapshot_behind(log, position, stored.position)
            records, tails = (await self._load_records(log, stored, position))[1:]
            return LoadedLog(position, None, records, tails=tails)

        return (await self._read(log, read))[2]

    async def _read(
        self,
        log: str,
        read: Callable[[StoredLog, LoadedLog | None], Awaitable[LoadedLog]],
        earlier: LoadedLog | None = None,
        *,
        durable: bool = True,
    ) -> tuple[Ownership, StoredLog, LoadedLog]:
        """Read a log until no snapshot has come between; return it with the state that was read.

        ``read`` gets that state, and an earlier reading that the log may continue.
        """
        owner = self._owned.ownership(log)
        stored = await self._look(log, owner)
        for _ in range(READINGS):
            try:
                _refuse_behind(log, stored)
                loaded = await read(stored, earlier)
            except JournalCorrupt:
                # These may be pieces of two states, when a snapshot came between. Appends change
                # nothing of what was to be read.
                newer = await self._look(log, owner)
                if earlier is None and _basis(log, newer) == _basis(log, stored):
                    raise
                stored, earlier = newer, None
            else:
                if durable and not await self._is_durable(log, owner, stored):
                    stored, earlier = await self._look(log, owner), loaded
                    continue
                return owner, stored, loaded
        raise JournalFailed(f"log {log!r} was replaced by a snapshot {READINGS} times while it was read; try again")

    async def close(self) -> None:
        """Close the connection beside."""
        await self._aside.close()

    async def _look(self, log: str, owner: Ownership) -> StoredLog:
        """Return a log as the store has it. Raises JournalLost when the store has lost a part."""

        async def look(database: RedisDatabase) -> StoredLog:
            believed = LogState(owner, self._owned.end(log))
            stored = await database.look(log, believed)
            refuse_lost({log: believed}, {log: stored.state})
            return stored

        return await self._line.run(look)

    async def _is_durable(self, log: str, owner: Ownership, stored: StoredLog) -> bool:
        """Return True once a log that was read is durable, False if the store has lost its end.

        Raises JournalFailed.
        """
        if not stored.state.last:
            return True
        if log == GRAPH:
            is_known = stored.state.end == self._owned.end(GRAPH)
        else:
            # Taking a log makes durable what others wrote. Attempts of this process that were not
            # acknowledged may be in it, too.
            own = bool(owner.epoch) and stored.state.owner[:2] == owner[:2]
            is_known = own and all(doubtful != log for _, doubtful in self._doubtful)
        return is_known or await self._settle(log, stored.state)

    async def _settle(self, log: str, state: LogState, *, again: bool = True) -> bool:
        try:
            return await self._aside.run(lambda database: database.settle(log, state))
        except JournalUnknown as error:
            cause = error.__cause__
            if again and isinstance(cause, Lost) and not isinstance(cause, Late):
                # A dead connection is noticed only when it is used. A server that hangs is not
                # tried twice.
                return await self._settle(log, state, again=False)
            raise JournalFailed(f"what was read of log {log!r} is not known to be durable yet: {error}") from error

    async def _load(self, log: str, stored: StoredLog, earlier: LoadedLog | None) -> LoadedLog:
        """Read a log, or what was appended since an earlier reading."""
        mark = earlier.mark if earlier is not None else None
        if (
            earlier is not None
            and isinstance(mark, StoredLog)
            and mark[1:] == stored[1:]
            and earlier.last <= stored.state.last
        ):
            if stored.state.end == mark.state.end:
                # Nothing was appended: the log still ends with the record that was read.
                return replace(earlier, mark=stored)
            # The snapshot is the same, for its name is unique. The last record of the earlier
            # reading is read once more: if the store had lost it, another record would be there.
            after = max(stored.position, earlier.last - 1)
            rows, records, tails = await self._load_records(log, stored, after)
            if earlier.records and checksum(rows[0][1]) != mark.state.end.tail:
                raise JournalCorrupt(log, earlier.last, "it is not the record that was there before")
            records = [*earlier.records[:-1], *records]
            return LoadedLog(stored.position, earlier.snapshot, records, stored, {**earlier.tails, **tails})
        snapshot = await self._load_parts(log, stored) if stored.position else None
        _, records, tails = await self._load_records(log, stored, stored.position)
        return LoadedLog(stored.position, snapshot, records, stored, tails)

    async def _load_records(
        self, log: str, stored: StoredLog, after: int
    ) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]], dict[int, int]]:
        """Return the records behind a position: as stored, decoded, and their checksums."""
        owner, (last, tail) = stored.state
        rows = await self._rows(log, last, after)
        return rows, *decode_records(log, rows, after=after, last=last, tail=tail, epoch=owner.epoch)

    async def _rows(self, log: str, last: int, after: int) -> list[tuple[int, bytes]]:
        """Return the records between two positions as they are stored."""
        rows: list[tuple[int, bytes]] = []
        more = True
        while more:
            page = await self._line.run(partial(RedisDatabase.records, log=log, after=after, last=last, count=_PAGE))
            rows += page
            more = len(page) == _PAGE
            after = rows[-1][0] if rows else after
        return rows

    async def _load_parts(self, log: str, stored: StoredLog) -> bytes:
        """Return all parts of a snapshot, joined. The first part says how many there are."""
        payloads: list[bytes] = []
        parts = 1
        while (first := len(payloads)) < parts:
            end = min(parts, first + _PARTS_PAGE)
            read = partial(RedisDatabase.parts, log=log, name=stored.name, first=first, end=end)
            for data in await self._line.run(read):
                if data is None:
                    raise JournalCorrupt(log, stored.position, f"part {len(payloads)} of the snapshot is missing")
                frame = decode(log, stored.position, data, kind=Kind.SNAPSHOT, part=len(payloads))
                parts = frame.parts
                payloads.append(frame.payload)
        return b"".join(payloads)


def _refuse_behind(log: str, stored: StoredLog) -> None:
    if stored.behind:
        raise JournalCorrupt(log, stored.behind, f"the log ends at {stored.state.last}, but there is a record behind")


def _basis(log: str, stored: StoredLog) -> tuple[object, ...]:
    """Return what stays the same while a log only grows.

    The end belongs to it in ``GRAPH``: a graph that grew looks like one that was lost and written
    again.
    """
    return (*stored.state.owner[:2], stored.position, stored.name, stored.state.end if log == GRAPH else None)
