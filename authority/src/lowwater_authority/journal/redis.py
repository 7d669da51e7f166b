"""The shared journal: the logs of one deployment in Redis, 7.0 or newer, alone, behind Sentinel, or in a Cluster.

**Keys.** All keys of a journal carry one hash tag, ``{lowwater:NAMESPACE}``, so they share one slot, and one script
writes the entries of one ``append`` in all of their logs, or none: the contract as it stands. A tag for each computation
would spread a deployment over a cluster, but no script spans slots, so ``append`` could promise atomicity for each log
only. A round of the commit loop appends the records of several computations, and of the pipeline graph, in one call and
publishes them together; it would have to learn of rounds that are written in part. A journal is a few megabytes and
some thousand writes a second: one slot serves it. Several deployments take several namespaces.

Each log has its own owner all the same: its epoch and nonce are beside its end, and a script compares those of every log
that it is given. An own epoch for each costs nothing then, and shards take logs from each other one by one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar
from zlib import crc32

from lowwater_authority.journal.contract import GRAPH, Entry, Journal, JournalStatistics, LoadedLog, Ownership
from lowwater_authority.journal.errors import (
    JournalClosed,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalUnknown,
)
from lowwater_authority.journal.frames import Kind, checksum, decode, decode_records, encode
from lowwater_authority.journal.meter import Meter
from lowwater_authority.journal.owned import Held, Owned, refuse_lost
from lowwater_authority.journal.redis_database import Keys, Look, RedisDatabase, Snapshot
from lowwater_authority.journal.redis_exchange import RedisExchange
from lowwater_authority.journal.redis_link import Address, RedisLink
from lowwater_authority.journal.sequence import runs_of
from lowwater_authority.ops.events import event

T = TypeVar("T")

PART_BYTES: Final = 1 << 18
"""Size of the parts of a snapshot. Each is a call of its own, so that appends get their turn in between."""

_PAGE: Final = 256
"""Records that are read at a time."""

_PARTS_PAGE: Final = 16

_READINGS: Final = 100
"""How often a log is read at most when each time a new snapshot, or owner, came between."""

_logger = logging.getLogger(__name__)


class RedisJournal(Journal):
    """The contract of Journal over Redis, for any number of processes.

    **Weaker than the contract where Redis is.** An entry that is not strong is acknowledged as soon as Redis has it; it
    survives what the settings of the server let survive. A strong one waits for the best that is offered: nothing more
    with ``appendfsync always``; else ``WAITAOF 1 0`` when there is a file and Redis is 7.2 or newer; and ``WAIT`` for all
    connected replicas. When fewer confirm in time the outcome is unknown, and the call is repeated as is; so are
    snapshots, ``take`` and ``restore``. What remains to be lost ``describe_durability`` says in one line, which ``open`` logs.

    ``url`` is ``redis://``, ``rediss://`` (TLS), ``redis+sentinel://host:port,host:port/NAME`` or
    ``redis+cluster://host:port,host:port``, each with ``USER:PASSWORD@`` in front of the host if needed; it is never shown.
    ``namespace`` tells deployments apart. ``timeout``, in seconds, bounds each exchange with the server: after it an
    append is of unknown outcome. ``server_token`` is what the store must belong to, and what a new one is made with; if it is
    empty, any deployment will do.

    An empty store may be one that has just lost everything: for ``patience`` seconds ``open`` waits whether living processes put it back,
    before it makes a new deployment.

    Raises ValueError for a URL or namespace that cannot be used.
    """

    shared = True

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        timeout: float = 5.0,
        server_token: str = "",
        patience: float = 0.0,
    ) -> None:
        self._address = Address(url)
        self._keys = Keys.of(namespace)
        self._timeout = timeout
        self._wanted_token = server_token
        self._patience = patience
        self._meter = Meter(time.perf_counter)
        self._nonce = secrets.randbits(32)
        self._owned = Owned(self._nonce)
        self._database: RedisDatabase | None = None
        self._turn = asyncio.Lock()
        self._snapshotting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._calls: set[asyncio.Task[Any]] = set()
        self._snapshots = 0
        self._in_doubt: set[tuple[str, str]] = set()
        """What an attempt that was cancelled, or of unknown outcome, may have written: (method, log)."""

    async def open(self) -> None:
        """See Journal. Raises JournalFailed for a server that may evict the journal, is a replica, or older than 7.0.

        Raises JournalReplaced when the store belongs to another deployment than ``server_token``.
        """
        link = RedisLink(self._address, self._keys.deployment, self._timeout)
        exchange = RedisExchange(link, timeout=self._timeout)
        self._database = RedisDatabase(exchange, self._keys)
        try:
            opening = partial(
                RedisDatabase.open, wanted=self._wanted_token, randbits=secrets.randbits, patience=self._patience
            )
            self.server_token = await self._in_order(opening)
        except BaseException:
            await self.close()
            raise
        durability = self.describe_durability()
        _logger.info(
            "the journal is in %s: %s",
            self._address,
            durability,
            extra=event("journal_opened", store=str(self._address), durability=durability),
        )

    def describe_durability(self) -> str:
        """One line: the settings of the server as last read, and what of the journal they can lose."""
        if self._database is None:
            raise JournalClosed
        return self._database.describe()

    async def take(self, log: str, *, view: int = 0, address: str = "", above: int = 0) -> Ownership:
        """See Journal. Cost: two round trips, with the wait of a strong entry."""
        wanted = Ownership(above, self._owned.next_nonce(log, secrets.randbits), address, view)
        owner = self._owned.ownership(log)
        taken = await self._in_order(lambda db: db.take(log, self._held({log: owner})[log], wanted))
        self._owned.took(log, taken)
        return taken

    def release(self, log: str) -> None:
        """See Journal."""
        self._owned.release(log)

    async def owners(self, logs: Iterable[str]) -> dict[str, Ownership]:
        """See Journal. Cost: one round trip."""
        owners = self._owners(logs)
        return await self._in_order(lambda db: db.owners(self._held(owners)))

    async def confirm(self, logs: Iterable[str]) -> int:
        """See Journal. A replica, and a master with too few of its own, refuse it: their word may be old."""
        owners = self._owners([GRAPH, *logs])
        return await self._in_order(lambda db: db.confirm(self._held(owners)))

    async def logs(self) -> list[str]:
        """See Journal."""
        owners = self._owners([GRAPH])
        return await self._in_order(lambda db: db.logs(self._held(owners)[GRAPH]))

    async def load(self, log: str, *, known: LoadedLog | None = None) -> LoadedLog:
        """See Journal. Raises JournalLost, and JournalFailed when Redis cannot be read, or the log is replaced as often as it is."""
        owner = self._owned.ownership(log)
        seen = await self._look(log, owner)
        for _ in range(_READINGS):
            try:
                loaded = await self._load(log, seen, known)
            except JournalCorrupt:
                # Perhaps only pieces of two states: a snapshot came between. Appends change nothing of what was to be read.
                again = await self._look(log, owner)
                if known is None and _basis(log, again) == _basis(log, seen):
                    raise
                seen, known = again, None
            else:
                if seen.held.owner[:2] == owner[:2]:
                    self._owned.reached(log, seen.held.end)
                return loaded
        raise JournalFailed(f"log {log!r} was replaced by a snapshot {_READINGS} times while it was read; try again")

    async def append(self, entries: Sequence[Entry]) -> None:
        """See Journal. Cost: one round trip; a strong entry may wait for a sync and for replicas."""
        with self._meter.append(entries):
            strong = any(entry.strong for entry in entries)
            runs = runs_of(entries, self._owned.writer)
            owners = self._owners(run.log for run in runs)

            async def write(database: RedisDatabase) -> None:
                if runs:
                    await database.append(runs, self._held(owners), strong=strong)
                # At once: whoever has the next turn believes it already.
                for run in runs:
                    self._owned.reached(run.log, run.end)

            with self._doubting({("append", run.log) for run in runs}):
                await self._in_order(write)

    async def snapshot(self, log: str, position: int, payload: bytes) -> None:
        """See Journal. Written in parts of 256 KiB; what is cut off is removed by the next snapshot of the log."""
        with self._meter.snapshot(payload):
            record = self._owned.record(log, position)
            # One of a log at a time: each removes the parts of the others.
            async with self._snapshotting[log]:
                self._snapshots += 1
                snapshot = _snapshot(log, position, f"{self._nonce:08x}.{self._snapshots}", payload)
                owners = self._owners([log])
                for part, frame in self._frames(snapshot, payload):

                    async def stage(database: RedisDatabase, part: int = part, frame: bytes = frame) -> bool:
                        return await database.stage(snapshot, self._held(owners)[log], part, frame)

                    if await self._in_order(stage):
                        return
                with self._doubting({("snapshot", log)}):
                    await self._in_order(lambda db: db.finish(snapshot, self._held(owners)[log], record))

    async def restore(self, log: str, position: int, payload: bytes, *, view: int = 0, address: str = "") -> Ownership:
        """See Journal. Written in parts of 256 KiB, and the last step makes them the log."""
        with self._meter.snapshot(payload):
            async with self._snapshotting[log]:
                nonce = 0 if log == GRAPH else self._owned.next_nonce(log, secrets.randbits)
                wanted = Ownership(0, nonce, address, view)
                # The same name for the same call, so that a repeat knows its first try.
                snapshot = _snapshot(log, position, f"{self._nonce:08x}.{crc32(payload):08x}", payload)
                owners = self._owners([log])
                for part, frame in self._frames(snapshot, payload):

                    async def stage(database: RedisDatabase, part: int = part, frame: bytes = frame) -> None:
                        await database.stage_restore(snapshot, self._held(owners)[log], part, frame)

                    await self._in_order(stage)
                with self._doubting({("restore", log)}):
                    owner = await self._in_order(lambda db: db.restore(snapshot, self._held(owners)[log], wanted))
                if log != GRAPH:
                    self._owned.took(log, owner)
                self._owned.reached(log, snapshot.restored)
                return owner

    async def close(self) -> None:
        """See Journal."""
        if self._database is not None:
            closing = self._in_order(lambda database: database.close())
            self._database = None
            await closing

    def statistics(self) -> JournalStatistics:
        """See Journal."""
        return self._meter.statistics()

    def _in_order(self, call: Callable[[RedisDatabase], Awaitable[T]]) -> Awaitable[T]:
        """Each call takes its turn and goes on to its end, even when its caller is cancelled."""
        database = self._database
        if database is None:
            raise JournalClosed

        async def take_turn() -> T:
            async with self._turn:
                return await call(database)

        task = asyncio.create_task(take_turn())
        self._calls.add(task)
        task.add_done_callback(self._done)
        return asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            # Its caller may be gone.
            task.exception()

    def _owners(self, logs: Iterable[str]) -> dict[str, Ownership]:
        """By which ownership a call is made, whatever is taken before its turn."""
        return {log: self._owned.ownership(log) for log in logs}

    def _held(self, owners: Mapping[str, Ownership]) -> dict[str, Held]:
        """The same with the ends, as they are when the call has its turn."""
        return {log: Held(owner, self._owned.end(log)) for log, owner in owners.items()}

    def _frames(self, snapshot: Snapshot, payload: bytes) -> Iterator[tuple[int, bytes]]:
        """The parts of a snapshot, numbered and framed."""
        log, position, _, parts = snapshot
        writer = self._owned.writer(log)
        for part in range(parts):
            piece = payload[part * PART_BYTES : (part + 1) * PART_BYTES]
            yield part, encode(log, position, piece, writer=writer, kind=Kind.SNAPSHOT, part=part, parts=parts)

    async def _look(self, log: str, owner: Ownership) -> Look:
        """What there is of a log; refused when it is less than there was."""

        async def look(database: RedisDatabase) -> Look:
            believed = self._held({log: owner})
            seen = await database.look(log, believed[log])
            refuse_lost(believed, {log: seen.held})
            return seen

        return await self._in_order(look)

    async def _load(self, log: str, seen: Look, known: LoadedLog | None) -> LoadedLog:
        """Read a log, or what has come since it was ``known``."""
        if seen.behind:
            raise JournalCorrupt(log, seen.behind, f"the log ends at {seen.held.last}, but there is a record behind")
        mark = known.mark if known is not None else None
        if known is not None and isinstance(mark, Look) and mark[1:] == seen[1:] and known.last <= seen.held.last:
            # The same snapshot, for no other has its name. The last record that is known is read once more: what was lost and
            # written anew in between has another there.
            after = max(seen.position, known.last - 1)
            rows, records = await self._load_records(log, seen, after)
            if known.records and checksum(rows[0][1]) != mark.held.end.tail:
                raise JournalCorrupt(log, known.last, "it is not the record that was there before")
            return LoadedLog(seen.position, known.snapshot, [*known.records[:-1], *records], seen)
        snapshot = await self._load_parts(log, seen) if seen.position else None
        _, records = await self._load_records(log, seen, seen.position)
        return LoadedLog(seen.position, snapshot, records, seen)

    async def _load_records(
        self, log: str, seen: Look, after: int
    ) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
        """Read the records behind a position page by page, so that appends get their turn in between: as stored, and decoded."""
        (owner, (last, tail)), start = seen.held, after
        rows: list[tuple[int, bytes]] = []
        more = True
        while more:
            page = await self._in_order(partial(RedisDatabase.records, log=log, after=after, last=last, count=_PAGE))
            rows += page
            more = len(page) == _PAGE
            after = rows[-1][0] if rows else after
        return rows, decode_records(log, rows, after=start, last=last, tail=tail, epoch=owner.epoch)

    async def _load_parts(self, log: str, seen: Look) -> bytes:
        """All parts of a snapshot, joined; the first says how many there are."""
        payloads: list[bytes] = []
        parts = 1
        while (first := len(payloads)) < parts:
            end = min(parts, first + _PARTS_PAGE)
            for data in await self._in_order(
                partial(RedisDatabase.parts, log=log, name=seen.name, first=first, end=end)
            ):
                if data is None:
                    raise JournalCorrupt(log, seen.position, f"part {len(payloads)} of the snapshot is missing")
                frame = decode(log, seen.position, data, kind=Kind.SNAPSHOT, part=len(payloads))
                parts = frame.parts
                payloads.append(frame.payload)
        return b"".join(payloads)

    @contextmanager
    def _doubting(self, places: set[tuple[str, str]]) -> Iterator[None]:
        """While an earlier attempt may be written, "surely not written" is said of the later one only."""
        try:
            yield
        except JournalFailed as error:
            if self._in_doubt.isdisjoint(places):
                raise
            raise JournalUnknown(f"an earlier attempt may be written, and now: {error}") from error
        except (JournalUnknown, asyncio.CancelledError):
            self._in_doubt |= places
            raise
        except JournalError:
            self._in_doubt -= places
            raise
        self._in_doubt -= places


def _basis(log: str, seen: Look) -> tuple[object, ...]:
    """What stays the same while a log only grows. In ``GRAPH`` nothing tells growing from being lost and written anew."""
    return (*seen.held.owner[:2], seen.position, seen.name, seen.held.end if log == GRAPH else None)


def _snapshot(log: str, position: int, name: str, payload: bytes) -> Snapshot:
    return Snapshot(log, position, f"{position}.{name}", max(1, -(-len(payload) // PART_BYTES)))
