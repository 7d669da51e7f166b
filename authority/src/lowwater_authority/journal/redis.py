"""The shared journal: the logs of one deployment in Redis, 7.0 or newer, alone, behind Sentinel, or in a Cluster.

**Keys.** All keys of a journal carry one hash tag, ``{lowwater:NAMESPACE}``, so they share one slot, and one script
writes the entries of one ``append`` in all of their logs, or none: the contract as it stands. A tag for each computation
would spread a deployment over a cluster, but no script spans slots, so ``append`` could promise atomicity for each log
only. A round of the commit loop appends the records of several computations, and of the pipeline graph, in one call and
publishes them together; it would have to learn of rounds that are written in part. A journal is a few megabytes and
some thousand writes a second: one slot serves it. Several deployments take several namespaces.

What decides is kept apart all the same: ``Keys`` alone knows which keys a log has, the scripts take the owner's key,
epoch and nonce as a list, and the logs behind it. When computations get owners of their own, ``Keys.owner`` takes the
name of the log, and the list grows longer.

"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from lowwater_authority.journal.errors import (
    JournalClosed,
    JournalCorrupt,
    JournalFailed,
    JournalFenced,
    JournalPosition,
    JournalUnknown,
)
from lowwater_authority.journal.framing import Kind, Writer, decode, decode_records, encode
from lowwater_authority.journal.interface import Entry, Journal, JournalStatistics, LoadedLog
from lowwater_authority.journal.meter import Meter
from lowwater_authority.journal.redis_database import Keys, Look, RedisDatabase
from lowwater_authority.journal.redis_link import Address, RedisLink
from lowwater_authority.journal.sequence import runs_of

T = TypeVar("T")

PART_BYTES: Final = 1 << 18
"""Size of the parts of a snapshot. Each is a call of its own, so that appends get their turn in between."""

_PAGE: Final = 256
"""Records that are read at a time."""

_PARTS_PAGE: Final = 16

_logger = logging.getLogger(__name__)


class RedisJournal(Journal):
    """The contract of Journal over Redis; opening a second one over the same namespace fences the first.

    **Weaker than the contract where Redis is.** An entry that is not strong is acknowledged as soon as Redis has it; it
    survives what the settings of the server let survive. A strong one waits for the best that is offered: nothing more
    with ``appendfsync always``; else ``WAITAOF 1 0`` when there is a file and Redis is 7.2 or newer; and ``WAIT`` for all
    connected replicas. When fewer confirm in time the outcome is unknown, and the call is repeated as is; so are
    snapshots and the epoch. What remains to be lost ``describe_durability`` says in one line, which ``open`` logs.

    ``url`` is ``redis://``, ``rediss://`` (TLS), ``redis+sentinel://host:port,host:port/NAME`` or
    ``redis+cluster://host:port,host:port``, each with ``USER:PASSWORD@`` in front of the host if needed; it is never shown.
    ``namespace`` tells deployments apart. ``timeout``, in seconds, bounds each exchange with the server: after it an
    append is of unknown outcome. ``randbits`` makes the server token and the nonce; ``clock`` gives seconds.

    Raises ValueError for a URL or namespace that cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        timeout: float = 5.0,
        randbits: Callable[[int], int] = secrets.randbits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not namespace or set(namespace) & set("{}"):
            raise ValueError(f"a namespace is not empty and has no braces, unlike {namespace!r}")
        self._address = Address(url)
        self._keys = Keys(f"{{lowwater:{namespace}}}")
        self._timeout = timeout
        self._randbits = randbits
        self._clock = clock
        self._meter = Meter(clock)
        self._me = Writer(epoch=0, nonce=0)
        self._database: RedisDatabase | None = None
        self._turn = asyncio.Lock()
        self._snapshotting = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        self._snapshots = 0
        self._in_doubt: set[tuple[str, str]] = set()
        """What an attempt that was cancelled, or of unknown outcome, may have written: (method, log)."""

    async def open(self) -> None:
        """See Journal. Raises JournalFailed for a server that may evict the journal, is a replica, or older than 7.0."""
        link = RedisLink(self._address, self._keys.owner, self._timeout)
        self._database = database = RedisDatabase(link, self._keys, timeout=self._timeout, clock=self._clock)
        try:
            self.server_token, self._me = await self._in_order(lambda database: database.open(self._randbits))
        except BaseException:
            await self.close()
            raise
        self.epoch, self.nonce = self._me
        _logger.info("the journal is in %s: %s", self._address, database.describe())

    def describe_durability(self) -> str:
        """One line: the settings of the server as last read, and what of the journal they can lose."""
        if self._database is None:
            raise JournalClosed
        return self._database.describe()

    async def logs(self) -> list[str]:
        """See Journal."""
        return await self._in_order(lambda database: database.logs())

    async def load(self, log: str) -> LoadedLog:
        """See Journal. Raises JournalFailed when Redis cannot be read."""
        seen = await self._in_order(lambda database: database.look(log))
        while True:
            try:
                return await self._load(log, seen)
            except JournalCorrupt:
                # Perhaps only pieces of two states: a snapshot came between.
                again = await self._in_order(lambda database: database.look(log))
                if again == seen:
                    raise
                seen = again

    async def append(self, entries: Sequence[Entry]) -> None:
        """See Journal. Cost: one round trip; a strong entry may wait for a sync and for replicas."""
        with self._meter.append(entries):
            strong = any(entry.strong for entry in entries)
            runs = runs_of(entries, self._me)
            with self._doubting({("append", run.log) for run in runs}):
                await self._in_order(lambda database: database.append(runs, strong=strong))

    async def snapshot(self, log: str, position: int, payload: bytes) -> None:
        """See Journal. Written in parts of 256 KiB; what is cut off is removed by the next snapshot of the log."""
        with self._meter.snapshot(payload):
            # One at a time: each removes the parts of the others.
            async with self._snapshotting:
                self._snapshots += 1
                token = f"{self._me.epoch}.{self._me.nonce}.{self._snapshots}"
                parts = max(1, -(-len(payload) // PART_BYTES))
                for part in range(parts):
                    if await self._in_order(partial(self._stage, log, position, token, payload, part, parts)):
                        return
                with self._doubting({("snapshot", log)}):
                    await self._in_order(lambda database: database.finish(log, position, token, parts))

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

    async def _stage(
        self, log: str, position: int, token: str, payload: bytes, part: int, parts: int, database: RedisDatabase
    ) -> bool:
        piece = payload[part * PART_BYTES : (part + 1) * PART_BYTES]
        frame = encode(log, position, piece, writer=self._me, kind=Kind.SNAPSHOT, part=part, parts=parts)
        return await database.stage(log, position, token, part, frame)

    async def _load(self, log: str, seen: Look) -> LoadedLog:
        """Read a log page by page, so that appends get their turn in between."""
        if seen.behind:
            raise JournalCorrupt(log, seen.behind, f"the log ends at {seen.last}, but there is a record behind")
        snapshot = await self._load_parts(log, seen) if seen.position else None
        rows: list[tuple[int, bytes]] = []
        after, more = seen.position, True
        while more:
            next_page = partial(RedisDatabase.records, log=log, after=after, last=seen.last, count=_PAGE)
            page = await self._in_order(next_page)
            rows += page
            more = len(page) == _PAGE
            after = rows[-1][0] if rows else after
        records = decode_records(log, rows, after=seen.position, last=seen.last, tail=seen.tail, epoch=seen.epoch)
        return LoadedLog(seen.position, snapshot, records)

    async def _load_parts(self, log: str, seen: Look) -> bytes:
        """All parts of a snapshot, joined; the first says how many there are."""
        payloads: list[bytes] = []
        parts = 1
        while (first := len(payloads)) < parts:
            end = min(parts, first + _PARTS_PAGE)
            for data in await self._in_order(
                partial(RedisDatabase.parts, log=log, token=seen.token, first=first, end=end)
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
        except (JournalFenced, JournalPosition):
            self._in_doubt -= places
            raise
        self._in_doubt -= places
