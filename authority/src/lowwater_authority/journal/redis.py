"""The shared journal: the logs of one deployment in Redis, 7.0 or newer, alone, behind Sentinel, or in a Cluster.

**Keys.** All keys of a journal carry one hash tag, ``{lowwater:NAMESPACE}``, so they share one slot, and one script
writes the entries of one ``append`` in all of their logs, or none: the contract as it stands. A tag for each computation
would spread a deployment over a cluster, but no script spans slots, so ``append`` could promise atomicity for each log
only. A round of the commit loop appends the records of several computations, and of the pipeline graph, in one call and
publishes them together; it would have to learn of rounds that are written in part. A journal is a few megabytes and
some thousand writes a second: one slot serves it. Several deployments take several namespaces.

Each log has its own owner all the same: its epoch and nonce are beside its end, and a script compares those of every log
that it is given. An own epoch for each costs nothing then, and shards take logs from each other one by one.

| key               | type   | holds                                                                                  |
| ----------------- | ------ | -------------------------------------------------------------------------------------- |
| ``TAG:deployment`` | hash  | format, server token, and its checksum                                                 |
| ``TAG:logs``      | set    | names of the logs that were written                                                    |
| ``TAG:meta:LOG``  | hash   | last position, its checksum, position of the snapshot, name of its parts; the owner:   |
|                   |        | epoch, nonce, address, view (none in the graph)                                        |
| ``TAG:records:LOG`` | stream | entry ``position-0`` with one field, the frame                                       |
| ``TAG:parts:LOG`` | hash   | ``name/number``: the framed parts of the snapshot, and of those under way              |

A stream, because its entries have explicit numbers that only grow: measured against a list and a hash, an append costs
the same (52, 50, 51 us), 22 bytes more a record than a list and 31 fewer than a hash, and 500,000 records are trimmed in 19 ms.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

from lowwater.core.events import event
from lowwater_authority.journal.contract import (
    GRAPH,
    End,
    Entry,
    Journal,
    JournalClosed,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalFenced,
    JournalLost,
    JournalOutvoted,
    JournalPosition,
    JournalReplaced,
    JournalStatistics,
    JournalUnknown,
    JournalVersion,
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
    refuse_snapshot_behind,
    runs_of,
)
from lowwater_authority.journal.redis_link import Address, Command, Late, Lost, NotSent, RedisExchange, RedisLink
from lowwater_authority.journal.redis_scripts import (
    APPEND,
    CONFIRM,
    CREATE,
    FINISH,
    LOGS,
    LOOK,
    OWNERS,
    RESTORE,
    SETTLE,
    STAGE,
    STAGE_RESTORE,
    TAKE,
)
from lowwater_authority.journal.rules import Held, Meter, Owned, judge, nothing_there, refuse_lost, tell_created

T = TypeVar("T")

PART_BYTES: Final = 1 << 18
"""Size of the parts of a snapshot. Each is a call of its own, so that appends get their turn in
between."""

_PAGE: Final = 256
"""Records that are read at a time."""

_PARTS_PAGE: Final = 16

_TAKEN_AT_ONCE: Final = 256
"""Logs that are taken in one go: each is a call of a script, and nobody else is served in between.
"""

_IDLE_SECONDS: Final = 10.0
"""After which a connection is not used again: what lies in between, a load balancer say, may have
forgotten it without a word."""

READINGS: Final = 100
"""How often a log is read at most when each time a new snapshot, or owner, came between."""

_logger = logging.getLogger(__name__)


class RedisJournal(Journal):
    """The contract of Journal over Redis, for any number of processes.

    **Weaker than the contract where Redis is.** An entry that is not strong is acknowledged as soon
    as Redis has it; it survives what the settings of the server let survive. A strong one waits for
    the best that is offered: nothing more with ``appendfsync always``; else ``WAITAOF 1 0`` when
    there is a file and Redis is 7.2 or newer; and ``WAIT`` for all connected replicas. When fewer
    confirm in time the outcome is unknown, and the call is repeated as is; so are snapshots,
    ``take`` and ``restore``. What remains to be lost ``describe_durability`` says in one line,
    which ``open`` logs.

    ``url`` is ``redis://``, ``rediss://`` (TLS), ``redis+sentinel://host:port,host:port/NAME`` or
    ``redis+cluster://host:port,host:port``, each with ``USER:PASSWORD@`` in front of the host if
    needed; it is never shown. ``namespace`` tells deployments apart. ``timeout``, in seconds,
    bounds each exchange with the server: after it an append is of unknown outcome. ``server_token``
    is what the store must belong to, and what a new one is made with; if it is empty, any
    deployment will do. With ``must_exist`` no new one is made.

    An empty store may be one that has just lost everything: for ``patience`` seconds ``open`` waits
    whether living processes put it back, before it makes a new deployment.

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
        self._wanted_token = server_token
        self._must_exist = must_exist
        self._patience = patience
        self._meter = Meter(time.perf_counter)
        self._nonce = secrets.randbits(32)
        self._owned = Owned(self._nonce)
        self._database: RedisDatabase | None = None
        self._takes: Takes | None = None
        self._settling: Aside | None = None
        """Connection over which what was read is confirmed, so that nobody else waits until that is
        durable."""
        self._turn = asyncio.Lock()
        self._snapshotting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._calls: set[asyncio.Task[Any]] = set()
        self._snapshots = 0
        self._in_doubt: set[tuple[str, str]] = set()
        """What an attempt that was cancelled, or of unknown outcome, may have written: (method,
        log)."""

    async def open(self) -> None:
        """See Journal.

        Raises JournalFailed for a server that may evict the journal, is a replica, or older than
        7.0.

        Raises JournalReplaced when the store belongs to another deployment than ``server_token``.
        """
        link = RedisLink(self._address, self._keys.deployment, self._timeout)
        exchange = RedisExchange(link, timeout=self._timeout)
        self._database = RedisDatabase(exchange, self._keys)
        try:
            opening = partial(
                RedisDatabase.open,
                wanted=self._wanted_token,
                must_exist=self._must_exist,
                randbits=secrets.randbits,
                patience=self._patience,
            )
            self.server_token = await self._in_order(opening)
            self._takes = Takes(self._aside(), self._owned)
            self._settling = self._aside()
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

    def _aside(self) -> Aside:
        link = RedisLink(self._address, self._keys.deployment, self._timeout)
        return Aside(RedisDatabase(RedisExchange(link, timeout=self._timeout), self._keys, self.server_token))

    def describe_durability(self) -> str:
        """One line: the settings of the server as last read, and what of the journal they can lose."""
        if self._database is None:
            raise JournalClosed
        return self._database.describe()

    async def take(self, log: str, *, view: int = 0, address: str = "", above: int = 0) -> Ownership:
        """See Journal.

        Cost: two round trips, with the wait of a strong entry; those that are asked for meanwhile
        share the next ones.

        Logs that this process does not own are taken over a connection of their own, so that nobody
        else waits until that is durable.
        """
        wanted = Ownership(above, self._owned.next_nonce(log, secrets.randbits), address, view)
        if self._owned.ownership(log).epoch:
            taken = await self._in_order(partial(self._take_own, log=log, wanted=wanted))
        else:
            if self._takes is None:
                raise JournalClosed
            taken = await self._takes.ask(log, wanted)
        self._owned.took(log, taken)
        return taken

    async def _take_own(self, database: RedisDatabase, log: str, wanted: Ownership) -> Ownership:
        outcome = (await database.take(self._owned.held([log]), {log: wanted}))[log]
        if isinstance(outcome, JournalError):
            raise outcome
        return outcome

    def release(self, log: str) -> None:
        """See Journal."""
        self._owned.release(log)

    def ownership(self, log: str) -> Ownership:
        """See Journal."""
        return self._owned.ownership(log)

    async def owners(self, logs: Iterable[str]) -> dict[str, Ownership]:
        """See Journal. Cost: one round trip."""
        owners = self._owners(logs)
        return await self._in_order(lambda db: db.owners(self._held(owners)))

    async def confirm(self, logs: Iterable[str]) -> int:
        """See Journal.

        A replica, and a master with too few of its own, refuse it: their word may be old.
        """
        owners = self._owners([GRAPH, *logs])
        return await self._in_order(lambda db: db.confirm(self._held(owners)))

    async def logs(self) -> list[str]:
        """See Journal."""
        owners = self._owners([GRAPH])
        return await self._in_order(lambda db: db.logs(self._held(owners)[GRAPH]))

    async def end(self, log: str) -> End:
        """See Journal. Cost: one round trip."""
        owners = self._owners([log])
        return (await self._in_order(lambda db: db.look(log, self._held(owners)[log]))).held.end

    def acknowledged(self, log: str) -> End:
        """See Journal."""
        return self._owned.end(log)

    async def load(self, log: str, *, known: LoadedLog | None = None, durable: bool = True) -> LoadedLog:
        """See Journal.

        Raises JournalLost, and JournalFailed when Redis cannot be read, or the log is replaced as
        often as it is.

        Cost: as many round trips as it takes to read what is new, and for what is not known to be
        durable one with the wait of a strong entry.
        """
        owner = self._owned.ownership(log)
        seen = await self._look(log, owner)
        for _ in range(READINGS):
            try:
                loaded = await self._load(log, seen, known)
            except JournalCorrupt:
                # Perhaps only pieces of two states: a snapshot came between. Appends change nothing
                # of what was to be read.
                again = await self._look(log, owner)
                if known is None and _basis(log, again) == _basis(log, seen):
                    raise
                seen, known = again, None
            else:
                if durable and not await self._is_durable(log, owner, seen):
                    seen, known = await self._look(log, owner), loaded
                    continue
                if seen.held.owner[:2] == owner[:2]:
                    self._owned.reached(log, seen.held.end)
                return loaded
        raise _replaced_too_often(log)

    async def load_behind(self, log: str, position: int) -> LoadedLog:
        """See Journal. Raises JournalFailed when the log is replaced as often as it is read."""
        owner = self._owned.ownership(log)
        seen = await self._look(log, owner)
        for _ in range(READINGS):
            try:
                _refuse_behind(log, seen)
                refuse_snapshot_behind(log, position, seen.position)
                _, records, tails = await self._load_records(log, seen, position)
            except JournalCorrupt:
                again = await self._look(log, owner)
                if _basis(log, again) == _basis(log, seen):
                    raise
                seen = again
            else:
                if not await self._is_durable(log, owner, seen):
                    seen = await self._look(log, owner)
                    continue
                return LoadedLog(position, None, records, tails=tails)
        raise _replaced_too_often(log)

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
                    await database.append(runs, self._held(owners), strong=strong)
                # At once: whoever has the next turn believes it already.
                for run in runs:
                    self._owned.reached(run.log, run.end)

            with self._doubting({("append", run.log) for run in runs}):
                await self._in_order(write)

    async def snapshot(self, log: str, position: int, payload: bytes, *, newest: bool = False) -> None:
        """See Journal.

        Written in parts of 256 KiB; what is cut off is removed by the next snapshot of the log.
        """
        with self._meter.snapshot(payload):
            record = self._owned.record(log, position)
            # One of a log at a time: each removes the parts of the others.
            async with self._snapshotting[log]:
                self._snapshots += 1
                snapshot = _snapshot(log, position, f"{self._nonce:08x}.{self._snapshots}", payload)
                owners = self._owners([log])
                for part, frame in self._frames(snapshot, payload, newest=newest):

                    async def stage(database: RedisDatabase, part: int = part, frame: bytes = frame) -> bool:
                        return await database.stage(snapshot, self._held(owners)[log], part, frame)

                    if await self._in_order(stage):
                        return
                with self._doubting({("snapshot", log)}):
                    await self._in_order(lambda db: db.finish(snapshot, self._held(owners)[log], record))

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
        """See Journal. Written in parts of 256 KiB, and the last step makes them the log."""
        with self._meter.snapshot(payload):
            async with self._snapshotting[log]:
                nonce = 0 if log == GRAPH else self._owned.next_nonce(log, secrets.randbits)
                wanted = Ownership(0, nonce, address, view)
                # The same name for the same call, so that a repeat knows its first try.
                snapshot = _snapshot(log, position, f"{self._nonce:08x}.{crc32(payload):08x}", payload)
                owners = self._owners([log])
                for part, frame in self._frames(snapshot, payload, newest=newest):

                    async def stage(database: RedisDatabase, part: int = part, frame: bytes = frame) -> None:
                        await database.stage_restore(snapshot, self._held(owners)[log], part, frame)

                    await self._in_order(stage)
                with self._doubting({("restore", log)}):
                    owner = await self._in_order(lambda db: db.restore(snapshot, self._held(owners)[log], wanted, over))
                if log != GRAPH:
                    self._owned.took(log, owner)
                self._owned.reached(log, snapshot.restored)
                return owner

    async def close(self) -> None:
        """See Journal."""
        if self._database is not None:
            closing = self._in_order(lambda database: database.close())
            takes, settling, self._database, self._takes = self._takes, self._settling, None, None
            if takes is not None:
                await takes.close()
            if settling is not None:
                await settling.close()
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

    def _frames(self, snapshot: Snapshot, payload: bytes, *, newest: bool) -> Iterator[tuple[int, bytes]]:
        """The parts of a snapshot, numbered and framed."""
        log, position, _, parts = snapshot
        writer = self._owned.writer(log)
        for part in range(parts):
            piece = payload[part * PART_BYTES : (part + 1) * PART_BYTES]
            frame = encode(
                log, position, piece, writer=writer, kind=Kind.SNAPSHOT, part=part, parts=parts, newest=newest
            )
            yield part, frame

    async def _look(self, log: str, owner: Ownership) -> Look:
        """What there is of a log; refused when it is less than there was."""

        async def look(database: RedisDatabase) -> Look:
            believed = self._held({log: owner})
            seen = await database.look(log, believed[log])
            refuse_lost(believed, {log: seen.held})
            return seen

        return await self._in_order(look)

    async def _is_durable(self, log: str, owner: Ownership, seen: Look) -> bool:
        """Return when a log that was read is durable up to where it ended; False: that is not there any more. Raises JournalFailed."""
        if not seen.held.last:
            return True
        if log == GRAPH:
            known = seen.held.end == self._owned.end(GRAPH)
        else:
            # Taking it has made durable what others wrote. What this process did not get
            # acknowledged may be there, too.
            own = bool(owner.epoch) and seen.held.owner[:2] == owner[:2]
            known = own and all(doubtful != log for _, doubtful in self._in_doubt)
        if known:
            return True
        return await self._settle(log, seen.held)

    async def _settle(self, log: str, held: Held, *, again: bool = True) -> bool:
        if self._settling is None:
            raise JournalClosed
        try:
            return await self._settling.run(lambda database: database.settle(log, held))
        except JournalUnknown as error:
            cause = error.__cause__
            if again and isinstance(cause, Lost) and not isinstance(cause, Late):
                # A connection is found dead only when it is used; a server that hangs is not waited
                # for twice.
                return await self._settle(log, held, again=False)
            raise JournalFailed(f"what was read of log {log!r} is not known to be durable yet: {error}") from error

    async def _load(self, log: str, seen: Look, known: LoadedLog | None) -> LoadedLog:
        """Read a log, or what has come since it was ``known``."""
        _refuse_behind(log, seen)
        mark = known.mark if known is not None else None
        if known is not None and isinstance(mark, Look) and mark[1:] == seen[1:] and known.last <= seen.held.last:
            if seen.held.end == mark.held.end:
                # Nothing has come since: what stands there is the record that was read.
                return replace(known, mark=seen)
            # The same snapshot, for no other has its name. The last record that is known is read
            # once more: what was lost and written anew in between has another there.
            after = max(seen.position, known.last - 1)
            rows, records, tails = await self._load_records(log, seen, after)
            if known.records and checksum(rows[0][1]) != mark.held.end.tail:
                raise JournalCorrupt(log, known.last, "it is not the record that was there before")
            return LoadedLog(
                seen.position, known.snapshot, [*known.records[:-1], *records], seen, {**known.tails, **tails}
            )
        snapshot = await self._load_parts(log, seen) if seen.position else None
        _, records, tails = await self._load_records(log, seen, seen.position)
        return LoadedLog(seen.position, snapshot, records, seen, tails)

    async def _load_records(
        self, log: str, seen: Look, after: int
    ) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]], dict[int, int]]:
        """Read the records behind a position: as stored, decoded, and their checksums."""
        owner, (last, tail) = seen.held
        rows = await self._rows(log, seen, after)
        tails: dict[int, int] = {}
        records = decode_records(log, rows, after=after, last=last, tail=tail, epoch=owner.epoch, tails=tails)
        return rows, records, tails

    async def _rows(self, log: str, seen: Look, after: int) -> list[tuple[int, bytes]]:
        """Read the records behind a position as they are stored, page by page, so that appends get their turn in between."""
        rows: list[tuple[int, bytes]] = []
        more = True
        while more:
            last = seen.held.last
            page = await self._in_order(partial(RedisDatabase.records, log=log, after=after, last=last, count=_PAGE))
            rows += page
            more = len(page) == _PAGE
            after = rows[-1][0] if rows else after
        return rows

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


def _refuse_behind(log: str, seen: Look) -> None:
    if seen.behind:
        raise JournalCorrupt(log, seen.behind, f"the log ends at {seen.held.last}, but there is a record behind")


def _replaced_too_often(log: str) -> JournalFailed:
    return JournalFailed(f"log {log!r} was replaced by a snapshot {READINGS} times while it was read; try again")


def _basis(log: str, seen: Look) -> tuple[object, ...]:
    """What stays the same while a log only grows.

    In ``GRAPH`` nothing tells growing from being lost and written anew.
    """
    return (*seen.held.owner[:2], seen.position, seen.name, seen.held.end if log == GRAPH else None)


def _snapshot(log: str, position: int, name: str, payload: bytes) -> Snapshot:
    return Snapshot(log, position, f"{position}.{name}", max(1, -(-len(payload) // PART_BYTES)))


FORMAT: Final = 1
"""The newest format of the keys, the one that is written."""


class Keys(NamedTuple):
    """Names of the keys of a namespace; the kind stands before the log, whose name may hold anything."""

    tag: str

    @classmethod
    def of(cls, namespace: str) -> Keys:
        """The keys of a namespace, all in one slot of a cluster. Raises ValueError."""
        if not namespace or set(namespace) & set("{}"):
            raise ValueError(f"the name of a deployment is not empty and has no braces, unlike {namespace!r}")
        return cls(f"{{lowwater:{namespace}}}")

    @property
    def view(self) -> str:
        """The members, see ``cluster``."""
        return f"{self.tag}:view"

    @property
    def beats(self) -> str:
        """When they were heard of."""
        return f"{self.tag}:beats"

    @property
    def deployment(self) -> str:
        """Whose journal it is."""
        return f"{self.tag}:deployment"

    @property
    def logs(self) -> str:
        """The index of the logs."""
        return f"{self.tag}:logs"

    def meta(self, log: str) -> str:
        """Where a log ends, its snapshot, and its owner."""
        return f"{self.tag}:meta:{log}"

    def records(self, log: str) -> str:
        """The records of a log."""
        return f"{self.tag}:records:{log}"

    def parts(self, log: str) -> str:
        """The parts of the snapshots of a log."""
        return f"{self.tag}:parts:{log}"


class Look(NamedTuple):
    """The state of a log at one moment."""

    held: Held
    position: int
    """Where the snapshot stands; 0 for none."""
    name: str
    """Of the parts of the snapshot."""
    behind: int
    """Position of a record behind the end, where none may be; 0 for none."""


class Snapshot(NamedTuple):
    """A snapshot that is written in parts; its name begins with its position, and no other has it."""

    log: str
    position: int
    name: str
    parts: int

    @property
    def restored(self) -> End:
        """Where a log ends that a restore has made of it: there is no record, so its name stands for one."""
        return End(self.position, _checksum(self.name))


class RedisDatabase:
    """The keys of a namespace behind one link. Calls must not overlap.

    What the caller believes of a log (``held``) is checked in the step that reads or writes it.
    Everything raises JournalFailed, JournalLost and JournalReplaced; every write JournalUnknown,
    and those with a position JournalFenced and JournalPosition. One that is ``strong`` returns once
    it is as durable as the server can make it.
    """

    def __init__(self, exchange: RedisExchange, keys: Keys, token: str = "") -> None:
        self._exchange = exchange
        self._keys = keys
        self._token = token

    async def open(self, wanted: str, must_exist: bool, randbits: Callable[[int], int], *, patience: float) -> str:
        """Check the server, and create the deployment if there is none; returns its token, which ``wanted`` names unless empty.

        With ``must_exist`` it raises JournalFailed when there is none.
        """
        settings = await self._exchange.read_settings()
        settings.refuse(self._exchange.link.address)
        if not await self._read_token():
            await asyncio.sleep(patience)
        while True:
            found = await self._read_token()
            if must_exist and not found:
                raise nothing_there(f"{self._exchange.link.address}, key {self._keys.deployment}")
            token = found or wanted or f"{randbits(128):032x}"
            if wanted not in {"", token}:
                raise JournalReplaced(expected=wanted, found=token)
            keys = [self._keys.deployment, self._keys.logs]
            try:
                # Written again when it is there: this shows that the server takes writes, and makes
                # it durable for sure.
                reply = await self._exchange.write(CREATE, keys, [found, token, FORMAT, _checksum(token)], strong=True)
            except JournalUnknown as error:
                raise JournalFailed(f"the journal may be created or not, open it again: {error}") from error
            if reply[0] == b"ORPHANS":
                raise JournalCorrupt(None, None, f"there are logs, but the key {self._keys.deployment} is missing")
            if reply[0] == b"OK":
                if not found:
                    tell_created(f"{self._exchange.link.address}, key {self._keys.deployment}", token)
                self._token = token
                return token

    async def close(self) -> None:
        """Let go of the connection."""
        await self._exchange.link.close()

    async def hang_up(self) -> None:
        """Use another connection from here on."""
        await self._exchange.link.drop()

    def describe(self) -> str:
        """What the settings can lose, in one line."""
        if self._exchange.settings is None:
            raise JournalClosed
        return self._exchange.settings.describe()

    async def take(
        self, held: Mapping[str, Held], wanted: Mapping[str, Ownership]
    ) -> dict[str, Ownership | JournalError]:
        """Become the owner of logs, each with an epoch above that of ``wanted``; or why not, JournalOutvoted too."""
        outcomes: dict[str, Ownership | JournalError] = {}
        while asked := {log: held[log] for log in wanted if log not in outcomes}:
            try:
                replies = await self._take_each(asked, wanted)
            except JournalError as error:
                if not outcomes:
                    raise
                # Others are this process's already: who was told otherwise would leave them to
                # nobody.
                return {**dict.fromkeys(asked, error), **outcomes}
            for log, reply in zip(asked, replies, strict=True):
                outcome = self._taken(log, asked[log], wanted[log], reply)
                if outcome is not None:
                    outcomes[log] = outcome
        return outcomes

    async def _take_each(
        self, asked: Mapping[str, Held], wanted: Mapping[str, Ownership]
    ) -> list[list[Any] | JournalError]:
        calls = []
        for log, found in (await self.owners(asked)).items():
            mine, own = asked[log], wanted[log]
            believed: Command = [self._token, *mine.owner[:2], *mine.end, *found[:2]]
            calls.append(([self._keys.deployment, self._keys.meta(log)], [*believed, *own[:2], own.view, own.address]))
        return await self._exchange.write_each(TAKE, calls, strong=True)

    def _taken(
        self, log: str, held: Held, wanted: Ownership, reply: list[Any] | JournalError
    ) -> Ownership | JournalError | None:
        """What became of a log; None: another one has taken it meanwhile."""
        if isinstance(reply, JournalError):
            return reply
        try:
            self._check(reply, {log: held}, [(log, 0)], view=wanted.view, judge=refuse_lost)
        except JournalError as error:
            return error
        return wanted._replace(epoch=int(reply[1])) if reply[0] == b"OK" else None

    async def owners(self, held: Mapping[str, Held]) -> dict[str, Ownership]:
        """Who owns each log."""
        keys = [self._keys.deployment, *(self._keys.meta(log) for log in held)]
        reply = await self._exchange.ask(OWNERS, keys, [self._token])
        self._check(reply, held)
        rows = zip(*(reply[i::4] for i in range(1, 5)), strict=True)
        return {
            log: Ownership(int(epoch or 0), int(nonce or 0), address.decode(), int(view or 0))
            for log, (epoch, nonce, address, view) in zip(held, rows, strict=True)
        }

    async def confirm(self, held: Mapping[str, Held]) -> int:
        """Check all logs, of which the graph is the first; returns where that ends.

        Raises JournalFenced.
        """
        keys = [self._keys.deployment, *(self._keys.meta(log) for log in held)]
        graph, *others = held.values()
        believed = " ".join(f"{owner.epoch} {owner.nonce} {end.last} {end.tail}" for owner, end in others)
        arguments: Command = [self._token, *graph.end, believed]
        reply = await self._exchange.ask(CONFIRM, keys, arguments)
        self._check(reply, held)
        return int(reply[1])

    async def logs(self, graph: Held) -> list[str]:
        """Names of all logs, sorted."""
        keys = [self._keys.deployment, self._keys.meta(GRAPH), self._keys.logs]
        reply = await self._exchange.ask(LOGS, keys, [self._token])
        self._check(reply, {GRAPH: graph})
        return sorted(name.decode() for name in reply[1])

    async def look(self, log: str, held: Held) -> Look:
        """The state of a log."""
        keys = [self._keys.deployment, self._keys.meta(log), self._keys.records(log)]
        reply = await self._exchange.ask(LOOK, keys, [self._token])
        self._check(reply, {log: held})
        last, epoch, nonce, tail, position, name, behind = reply[1:]
        found = Held(Ownership(int(epoch), int(nonce)), End(int(last), int(tail)))
        return Look(found, int(position), name.decode(), _number(behind) if behind else 0)

    async def settle(self, log: str, held: Held) -> bool:
        """Make a log durable up to where it ended when it was read; False when that is not there any more. Raises JournalUnknown."""
        keys = [self._keys.deployment, self._keys.meta(log), self._keys.records(log)]
        reply = await self._exchange.write(SETTLE, keys, [self._token, *held.end], strong=True)
        self._check(reply, {log: held})
        return bool(reply[0] == b"OK")

    async def records(self, log: str, after: int, last: int, count: int) -> list[tuple[int, bytes]]:
        """Positions and frames of the next ``count`` records."""
        command = ("XRANGE", self._keys.records(log), f"({after}-0", f"{last}-0", "COUNT", count)
        return [(_number(place), fields[1]) for place, fields in await self._exchange.read(*command)]

    async def parts(self, log: str, name: str, first: int, end: int) -> list[bytes | None]:
        """Parts of a snapshot; None for a missing one."""
        fields = (f"{name}/{part}" for part in range(first, end))
        return list(await self._exchange.read("HMGET", self._keys.parts(log), *fields))

    async def append(self, runs: list[Run], held: Mapping[str, Held], *, strong: bool) -> None:
        """Write all runs, or none, if what is believed of them and of all other logs in ``held`` is true."""
        keys = [self._keys.deployment, self._keys.logs]
        arguments: list[str | bytes | int] = [self._token, int(strong)]
        for run in runs:
            mine = held[run.log]
            keys += [self._keys.meta(run.log), self._keys.records(run.log)]
            arguments += [*_writer(run.log, mine), *mine.end]
            arguments += [run.first - 1, *run.end, len(run.frames), run.log, *run.frames]
        written = {run.log for run in runs}
        for log in (each for each in held if each not in written):  # in the order in which the answer tells of them
            mine = held[log]
            keys += [self._keys.meta(log), self._keys.records(log)]
            arguments += [*_writer(log, mine), *mine.end, 0, 0, 0, 0, log]
        places = [(run.log, run.first) for run in runs]
        self._check(await self._exchange.write(APPEND, keys, arguments, strong=strong), held, places)

    async def stage(self, snapshot: Snapshot, held: Held, part: int, frame: bytes) -> bool:
        """Write one part of a snapshot, which counts for nothing yet; returns whether there is a newer one already."""
        log = snapshot.log
        keys = [self._keys.deployment, self._keys.meta(log), self._keys.parts(log)]
        reply = await self._exchange.write(STAGE, keys, [*self._placed(snapshot, held), part, frame], strong=False)
        self._check(reply, {log: held}, [(log, snapshot.position)])
        return bool(reply[0] == b"COVERED")

    async def finish(self, snapshot: Snapshot, held: Held, record: int | None) -> None:
        """Make the staged parts the snapshot, and trim what it covers; ``record`` is what ``Owned.record`` says."""
        log = snapshot.log
        keys = [self._keys.deployment, self._keys.meta(log), self._keys.parts(log), self._keys.records(log)]
        arguments = [*self._placed(snapshot, held), snapshot.parts, "" if record is None else record]
        reply = await self._exchange.write(FINISH, keys, arguments, strong=True)
        self._check(reply, {log: held}, [(log, snapshot.position)])
        _refuse_missing(reply, snapshot)

    async def stage_restore(self, snapshot: Snapshot, held: Held, part: int, frame: bytes) -> None:
        """Write one part of what a log is to become; nothing but the deployment is checked."""
        keys = [self._keys.deployment, self._keys.parts(snapshot.log)]
        reply = await self._exchange.write(STAGE_RESTORE, keys, [self._token, snapshot.name, part, frame], strong=False)
        self._check(reply, {snapshot.log: held})

    async def restore(self, snapshot: Snapshot, held: Held, wanted: Ownership, over: End | None) -> Ownership:
        """Make the staged parts all there is of a log, if it still ends there.

        Raises JournalOutvoted.
        """
        log = snapshot.log
        keys = [
            self._keys.deployment,
            self._keys.meta(log),
            self._keys.parts(log),
            self._keys.records(log),
            self._keys.logs,
        ]
        epoch, nonce = _writer(log, held)
        arguments: Command = [
            self._token,
            epoch,
            wanted.nonce,
            wanted.view,
            wanted.address,
            snapshot.position,
            snapshot.name,
            snapshot.parts,
            log,
            FORMAT,
            _checksum(self._token),
            nonce,
            held.last,
            snapshot.restored.tail,
            *(over if over is not None else ("", "")),
        ]
        reply = await self._exchange.write(RESTORE, keys, arguments, strong=True)
        self._check(reply, {log: held}, [(log, snapshot.position)], view=wanted.view)
        _refuse_missing(reply, snapshot)
        return Ownership() if log == GRAPH else wanted._replace(epoch=int(reply[1]))

    async def _read_token(self) -> str:
        """The server token that the store has; empty when it has none."""
        deployment = self._keys.deployment
        found = await self._exchange.read("HMGET", deployment, "format", "token", "checksum")
        if not any(found):
            return ""
        if found[0] is not None and int(found[0]) > FORMAT:
            raise JournalVersion(
                f"{deployment} in {self._exchange.link.address}", found=int(found[0]), supported=FORMAT
            )
        token, stored = ((value or b"").decode() for value in found[1:])
        if stored != str(_checksum(token)):
            raise JournalCorrupt(None, None, f"the key {deployment} lacks fields, or its checksum differs")
        return token

    def _placed(self, snapshot: Snapshot, held: Held) -> list[str | int]:
        return [self._token, *_writer(snapshot.log, held), *held.end, snapshot.position, snapshot.name]

    def _check(
        self,
        reply: list[Any],
        held: Mapping[str, Held],
        places: Sequence[tuple[str, int]] = (),
        *,
        view: int = 0,
        judge: Callable[[Mapping[str, Held], Mapping[str, Held]], None] = judge,
    ) -> None:
        """Raise what a script refuses with."""
        match reply[0]:
            case b"REPLACED":
                raise JournalReplaced(expected=self._token, found=reply[1].decode())
            case b"GONE":
                lasts = (int(last) for last in reply[1::4])
                raise JournalLost(
                    {log: (mine.last, last) for (log, mine), last in zip(held.items(), lasts, strict=True)}
                )
            case b"HELD":
                states = zip(*(map(int, reply[i::4]) for i in range(1, 5)), strict=True)
                found = {
                    log: Held(Ownership(epoch, nonce), End(last, tail))
                    for log, (last, epoch, nonce, tail) in zip(held, states, strict=True)
                }
                judge(held, found)
                raise JournalCorrupt(None, None, f"the owners of {list(held)} are no numbers")
            case b"FENCED":
                ((log, mine),) = held.items()
                raise JournalFenced({log: (mine.owner.epoch, int(reply[1]))})
            case b"OUTVOTED":
                raise JournalOutvoted(places[0][0], view=view, newest=int(reply[1]))
            case b"POSITION":
                log, position = places[reply[1] - 1]
                raise JournalPosition(log, position=position, last=int(reply[2]), reason=reply[3].decode())


class Aside:
    """A connection of its own for what waits until the store has made it durable: one call at a time, beside all others."""

    def __init__(self, database: RedisDatabase) -> None:
        self._database = database
        self._turn = asyncio.Lock()
        self._used = time.perf_counter()

    async def run(self, call: Callable[[RedisDatabase], Awaitable[T]]) -> T:
        """Do a call when it has its turn, over a new connection when the last one was not used for long."""
        async with self._turn:
            if time.perf_counter() - self._used > _IDLE_SECONDS:
                await self._database.hang_up()
            try:
                return await call(self._database)
            finally:
                self._used = time.perf_counter()

    async def close(self) -> None:
        """Let go of the connection when what is under way is done."""
        async with self._turn:
            await self._database.close()


class Takes:
    """Takes logs that this process does not own yet, all that are asked for while others are being taken in one go.

    One log's fault is its own: what refuses it is raised to who asked for that one. What the store does not answer is raised to all that were
    asked for together.
    """

    def __init__(self, aside: Aside, owned: Owned) -> None:
        self._aside = aside
        self._owned = owned
        self._asked: dict[str, tuple[Ownership, asyncio.Future[Ownership]]] = {}
        self._taking: asyncio.Task[None] | None = None

    async def ask(self, log: str, wanted: Ownership) -> Ownership:
        """Take one log, of which nobody else asks meanwhile.

        It goes on to its end when its caller is cancelled.
        """
        answer: asyncio.Future[Ownership] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieved)
        self._asked[log] = wanted, answer
        if self._taking is None:
            self._taking = asyncio.create_task(self._take())
        return await asyncio.shield(answer)

    async def close(self) -> None:
        """Let go of the connection when what is under way is done."""
        if self._taking is not None:
            await asyncio.wait([self._taking])
        await self._aside.close()

    async def _take(self) -> None:
        try:
            await self._take_all()
        finally:
            self._taking = None

    async def _take_all(self) -> None:
        while self._asked:
            asked = {log: self._asked.pop(log) for log in list(self._asked)[:_TAKEN_AT_ONCE]}
            outcomes = await self._outcomes({log: wanted for log, (wanted, _) in asked.items()})
            for log, (_, answer) in asked.items():
                outcome = outcomes[log]
                if isinstance(outcome, Exception):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)

    async def _outcomes(self, wanted: Mapping[str, Ownership]) -> Mapping[str, Ownership | Exception]:
        """What became of logs: all in one go, and one by one where what the store has of one refuses all of them."""
        try:
            return await self._aside.run(lambda database: database.take(self._owned.held(wanted), wanted))
        except Exception as error:  # noqa: BLE001 - it is raised to those who asked
            if len(wanted) == 1 or _is_silence(error):
                return dict.fromkeys(wanted, error)
        found: dict[str, Ownership | Exception] = {}
        for log, own in wanted.items():
            found.update(await self._outcomes({log: own}))
            if _is_silence(found[log]):
                return {**dict.fromkeys(wanted, found[log]), **found}
        return found


def _is_silence(outcome: object) -> bool:
    """Whether the store has not answered at all."""
    return isinstance(outcome, JournalError) and isinstance(outcome.__cause__, NotSent | Lost)


def _retrieved(answer: asyncio.Future[Any]) -> None:
    answer.exception()  # its caller may be gone


def _refuse_missing(reply: list[Any], snapshot: Snapshot) -> None:
    if reply[0] == b"PARTS":
        raise JournalFailed(
            f"log {snapshot.log!r}: {reply[1]} of {snapshot.parts} parts of snapshot {snapshot.position} are there"
        )


def _writer(log: str, held: Held) -> tuple[str | int, str | int]:
    """Epoch and nonce as the scripts take them."""
    return ("", "") if log == GRAPH else held.owner[:2]


def _checksum(text: str) -> int:
    return crc32(text.encode())


def _number(place: bytes) -> int:
    """The position in the name of a stream entry."""
    return int(place.partition(b"-")[0])
