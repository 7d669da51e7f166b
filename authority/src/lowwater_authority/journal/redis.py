"""The shared journal: the logs of one deployment in Redis, 7.0 or newer.

Redis may run alone, behind Sentinel, or in a Cluster.

**One slot.** All keys of a journal carry one hash tag, ``{lowwater:NAMESPACE}``, so they share one
slot of a cluster. So one script writes the entries of one ``append`` in all of their logs, or in
none. A tag for each computation would spread a deployment over a cluster, but no script spans
slots: ``append`` could promise atomicity for each log only. A round appends the records of several
computations and of the pipeline graph in one call and publishes them together; it would have to
cope with rounds that are written in part. A journal is a few megabytes and some thousand writes a
second: one slot serves it. Several deployments take several namespaces.

**One owner a log.** Epoch and nonce of the owner stand beside the end of the log, and a script
compares those of every log that it is given. An epoch for each log costs nothing then, and shards
take logs from each other one by one.

``redis_database`` has the keys and the steps, ``redis_reader`` reads logs while they change,
``redis_turns`` says who uses a connection when.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from zlib import crc32

from lowwater.core.events import event
from lowwater_authority.journal.contract import (
    GRAPH,
    End,
    Entry,
    JournalClosed,
    JournalError,
    JournalFailed,
    JournalUnknown,
    LoadedLog,
    Ownership,
)
from lowwater_authority.journal.frames import encode_part, runs_of, snapshot_parts
from lowwater_authority.journal.redis_database import Keys, RedisDatabase, Snapshot
from lowwater_authority.journal.redis_link import Address, RedisExchange, RedisLink
from lowwater_authority.journal.redis_reader import RedisReader
from lowwater_authority.journal.redis_turns import Aside, Line, Takes
from lowwater_authority.journal.rules import LogState, RememberingJournal

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class RedisJournal(RememberingJournal):
    """The contract of Journal over Redis, for any number of processes.

    **Weaker than the contract where Redis is.** An entry that is not strong is acknowledged as soon
    as Redis has it, and survives what the settings of the server let survive. A strong entry waits
    for the best that the server offers: nothing more with ``appendfsync always``; else ``WAITAOF 1
    0`` when there is a file and Redis is 7.2 or newer; and ``WAIT`` for all connected replicas.
    When fewer replicas confirm in time, the outcome is unknown, and the caller repeats the call as
    it was. Snapshots, ``take`` and ``restore`` wait like strong entries. ``describe_durability``
    says in one line what can still be lost; ``open`` logs the line.

    ``url`` is ``redis://``, ``rediss://`` (TLS), ``redis+sentinel://host:port,host:port/NAME`` or
    ``redis+cluster://host:port,host:port``, each with ``USER:PASSWORD@`` in front of the host if
    needed; it is never shown. ``namespace`` tells deployments apart. ``timeout``, in seconds,
    bounds each exchange with the server: after it the outcome of an append is unknown.
    ``server_token`` is the identity that the deployment must have, and that a new one gets; empty:
    any. With ``must_exist`` no new deployment is made.

    An empty store may have just lost everything: ``open`` waits ``patience`` seconds for living
    processes to put their logs back, before it makes a new deployment.

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
        must_exist: bool = False,
        patience: float = 0.0,
    ) -> None:
        self._address = Address(url)
        self._keys = Keys.of(namespace)
        self._timeout = timeout
        self._open = partial(
            RedisDatabase.open,
            expected=server_token,
            must_exist=must_exist,
            randbits=secrets.randbits,
            patience=patience,
        )
        self._nonce = secrets.randbits(32)
        super().__init__(self._nonce)
        self._line: Line | None = None
        self._takes: Takes | None = None
        self._reader: RedisReader | None = None
        self._snapshotting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Locks by log: each snapshot removes the parts of all others."""
        self._snapshots = 0
        self._in_doubt: set[tuple[str, str]] = set()
        """Calls that were cancelled, or of unknown outcome, and may be stored: (method, log)."""

    async def open(self) -> None:
        """See Journal.

        Raises JournalFailed for a server that may evict the journal, is a replica, or older than
        7.0. Raises JournalReplaced when the store belongs to another deployment than
        ``server_token``.
        """
        self._line = Line(self._connection())
        try:
            self.server_token = await self._line.run(self._open)
            self._takes = Takes(Aside(self._connection(self.server_token)), self._owned)
            aside = Aside(self._connection(self.server_token))
            self._reader = RedisReader(self._line, aside, self._owned, self._in_doubt)
        except BaseException:
            await self.close()
            raise
        durability = self.describe_durability()
        facts = event("journal_opened", store=str(self._address), durability=durability)
        _logger.info("the journal is in %s: %s", self._address, durability, extra=facts)

    def _connection(self, token: str = "") -> RedisDatabase:
        link = RedisLink(self._address, self._keys.deployment, self._timeout)
        return RedisDatabase(RedisExchange(link, timeout=self._timeout), self._keys, token)

    def describe_durability(self) -> str:
        """Return in one line the settings of the server as last read, and what they can lose."""
        if self._line is None:
            raise JournalClosed
        return self._line.describe()

    async def take(self, log: str, *, view: int = 0, address: str = "", above: int = 0) -> Ownership:
        """See Journal.

        Cost: two round trips, with the wait of a strong entry. Calls that come meanwhile share the
        next two.

        Logs that this process does not own are taken over a connection of their own, so that no
        append waits until the new owner is durable.
        """
        claim = Ownership(above, self._owned.next_nonce(log, secrets.randbits), address, view)
        if self._owned.ownership(log).epoch:
            ownership = await self._in_order(partial(self._take_own, log=log, claim=claim))
        else:
            if self._takes is None:
                raise JournalClosed
            ownership = await self._takes.take(log, claim)
        self._owned.took(log, ownership)
        return ownership

    async def _take_own(self, database: RedisDatabase, log: str, claim: Ownership) -> Ownership:
        outcome = (await database.take(self._owned.states([log]), {log: claim}))[log]
        if isinstance(outcome, JournalError):
            raise outcome
        return outcome

    async def owners(self, logs: Iterable[str]) -> dict[str, Ownership]:
        """See Journal. Cost: one round trip."""
        owners = self._owners(logs)
        return await self._in_order(lambda db: db.owners(self._states(owners)))

    async def confirm(self, logs: Iterable[str]) -> int:
        """See Journal.

        A replica, and a master with too few replicas, refuse the call: their data may be old.
        """
        owners = self._owners([GRAPH, *logs])
        return await self._in_order(lambda db: db.confirm(self._states(owners)))

    async def logs(self) -> list[str]:
        """See Journal."""
        owners = self._owners([GRAPH])
        return await self._in_order(lambda db: db.logs(self._states(owners)[GRAPH]))

    async def end(self, log: str) -> End:
        """See Journal. Cost: one round trip."""
        owners = self._owners([log])
        return (await self._in_order(lambda db: db.look(log, self._states(owners)[log]))).state.end

    async def load(self, log: str, *, before: LoadedLog | None = None, durable: bool = True) -> LoadedLog:
        """See Journal.

        Raises JournalLost, and JournalFailed when Redis cannot be read, or the log is replaced as
        often as it is.

        Cost: the round trips that it takes to read what is new, and one with the wait of a strong
        entry unless all of it is known to be durable.
        """
        if self._reader is None:
            raise JournalClosed
        return await self._reader.load(log, before, durable=durable)

    async def load_behind(self, log: str, position: int) -> LoadedLog:
        """See Journal. Raises JournalFailed when the log is replaced as often as it is read."""
        if self._reader is None:
            raise JournalClosed
        return await self._reader.load_behind(log, position)

    async def append(self, entries: Sequence[Entry], *, beside: Iterable[str] = ()) -> None:
        """See Journal.

        Cost: one round trip; a strong entry may wait for a sync and for replicas.
        """
        with self._meter.append(entries):
            strong = any(entry.strong for entry in entries)
            runs = runs_of(entries, self._owned.writer)
            owners = self._owners([*(run.log for run in runs), *beside])

            async def write(database: RedisDatabase) -> None:
                if runs:
                    await database.append(runs, self._states(owners), strong=strong)
                # Noted within this turn: the call of the next turn relies on it.
                for run in runs:
                    self._owned.reached(run.log, run.end)

            with self._doubting({("append", run.log) for run in runs}):
                await self._in_order(write)

    async def snapshot(self, log: str, position: int, payload: bytes, *, newest: bool = False) -> None:
        """See Journal.

        The snapshot is written in parts of 256 KiB. The next snapshot of the log removes the parts
        of one that was cut off.
        """
        with self._meter.snapshot(payload):
            record = self._owned.record(log, position)
            async with self._snapshotting[log]:
                self._snapshots += 1
                snapshot = _snapshot(log, position, f"{self._nonce:08x}.{self._snapshots}", payload)
                owners = self._owners([log])
                for part, frame in self._frames(snapshot, payload, newest=newest):

                    async def stage(database: RedisDatabase, part: int = part, frame: bytes = frame) -> bool:
                        return await database.stage(snapshot, self._states(owners)[log], part, frame)

                    if await self._in_order(stage):
                        return
                with self._doubting({("snapshot", log)}):
                    await self._in_order(lambda db: db.finish(snapshot, self._states(owners)[log], record))

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
        """See Journal. The snapshot is written in parts of 256 KiB.

        The last step makes them the log.
        """
        with self._meter.snapshot(payload):
            async with self._snapshotting[log]:
                nonce = 0 if log == GRAPH else self._owned.next_nonce(log, secrets.randbits)
                claim = Ownership(0, nonce, address, view)
                # A repeated call has the same name of the parts, and so knows its first attempt.
                snapshot = _snapshot(log, position, f"{self._nonce:08x}.{crc32(payload):08x}", payload)
                owners = self._owners([log])
                for part, frame in self._frames(snapshot, payload, newest=newest):

                    async def stage(database: RedisDatabase, part: int = part, frame: bytes = frame) -> None:
                        await database.stage_restore(snapshot, self._states(owners)[log], part, frame)

                    await self._in_order(stage)
                with self._doubting({("restore", log)}):
                    owner = await self._in_order(
                        lambda db: db.restore(snapshot, self._states(owners)[log], claim, over)
                    )
                if log != GRAPH:
                    self._owned.took(log, owner)
                self._owned.reached(log, snapshot.restored)
                return owner

    async def close(self) -> None:
        """See Journal."""
        line, takes, reader = self._line, self._takes, self._reader
        self._line = self._takes = self._reader = None
        closing = [part.close() for part in (line, takes, reader) if part is not None]
        await asyncio.gather(*closing)

    def _in_order(self, call: Callable[[RedisDatabase], Awaitable[T]]) -> Awaitable[T]:
        """Do a call when it has its turn. Raises JournalClosed."""
        if self._line is None:
            raise JournalClosed
        return self._line.run(call)

    def _owners(self, logs: Iterable[str]) -> dict[str, Ownership]:
        """Return the ownerships of a call: what is taken before its turn does not change them."""
        return {log: self._owned.ownership(log) for log in logs}

    def _states(self, owners: Mapping[str, Ownership]) -> dict[str, LogState]:
        """Add the ends of the logs, as they are when the call has its turn."""
        return {log: LogState(owner, self._owned.end(log)) for log, owner in owners.items()}

    def _frames(self, snapshot: Snapshot, payload: bytes, *, newest: bool) -> Iterator[tuple[int, bytes]]:
        """Yield the parts of a snapshot, numbered and framed."""
        log, position, _, parts = snapshot
        writer = self._owned.writer(log)
        for part in range(parts):
            yield part, encode_part(log, position, payload, part, writer, newest=newest)

    @contextmanager
    def _doubting(self, places: set[tuple[str, str]]) -> Iterator[None]:
        """Turn JournalFailed into JournalUnknown while an earlier attempt may be stored."""
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


def _snapshot(log: str, position: int, name: str, payload: bytes) -> Snapshot:
    return Snapshot(log, position, f"{position}.{name}", snapshot_parts(payload))
