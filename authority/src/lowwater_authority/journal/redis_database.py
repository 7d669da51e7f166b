"""What the Redis journal asks of Redis: its keys, one script for each write, and what an answer means.

| key               | type   | holds                                                                                  |
| ----------------- | ------ | -------------------------------------------------------------------------------------- |
| ``TAG:owner``     | hash   | format, server token, epoch, nonce, and the checksum of the last three                 |
| ``TAG:logs``      | set    | names of the logs                                                                      |
| ``TAG:meta:LOG``  | hash   | last position, its checksum, position of the snapshot, token of its parts              |
| ``TAG:records:LOG`` | stream | entry ``position-0`` with one field, the frame                                       |
| ``TAG:parts:LOG`` | hash   | ``token/number``: the framed parts of the snapshot, and of one under way               |

A stream, because its entries have explicit numbers that only grow: measured against a list and a hash, an append costs
the same (52, 50, 51 us), 22 bytes more a record than a list and 31 fewer than a hash, and 500,000 records are trimmed in 19 ms.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)

from lowwater_authority.journal.errors import (
    JournalClosed,
    JournalCorrupt,
    JournalFailed,
    JournalFenced,
    JournalPosition,
    JournalUnknown,
    JournalVersion,
)
from lowwater_authority.journal.framing import Writer, checksum
from lowwater_authority.journal.redis_link import Command, Lost, NotSent, RedisLink
from lowwater_authority.journal.redis_scripts import APPEND, FINISH, LOOK, STAGE, TAKE_OVER, Script
from lowwater_authority.journal.redis_settings import RedisSettings, parse_config, parse_info
from lowwater_authority.journal.sequence import Run

FORMAT: Final = 1
"""The newest format of the keys, the one that is written."""

_SETTINGS_SECONDS: Final = 10.0
"""For how long a strong entry believes what the server said about its replicas."""

_FIXES: Final[dict[type[Exception] | tuple[type[Exception], ...] | str, str]] = {
    OutOfMemoryError: "its memory is full: raise maxmemory there, or free memory",
    ReadOnlyError: "it is a replica: name the master in the URL, or let redis+sentinel:// or redis+cluster:// find it",
    BusyLoadingError: "it is reading its files, wait until it is done",
    NoPermissionError: "give its user the commands that docs/durability.md lists, see ACL SETUSER",
    AuthenticationError: "put the user and the password into the URL, as redis://USER:PASSWORD@host",
    (ClusterError, AskError, TryAgainError): "the slot is being moved, or has no node: see CLUSTER INFO there",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write: bring them back, or lower it",
    "MISCONF": "it cannot write its file: free its disk, and see its log",
    "BUSY": "a script of somebody else's runs there: SCRIPT KILL ends it",
}

_logger = logging.getLogger(__name__)


class Keys(NamedTuple):
    """Names of the keys of a namespace; the kind stands before the log, whose name may hold anything."""

    tag: str

    @property
    def owner(self) -> str:
        """Who may write."""
        return f"{self.tag}:owner"

    @property
    def logs(self) -> str:
        """The index of the logs."""
        return f"{self.tag}:logs"

    def meta(self, log: str) -> str:
        """Where a log ends, and its snapshot."""
        return f"{self.tag}:meta:{log}"

    def records(self, log: str) -> str:
        """The records of a log."""
        return f"{self.tag}:records:{log}"

    def parts(self, log: str) -> str:
        """The parts of the snapshots of a log."""
        return f"{self.tag}:parts:{log}"


class Look(NamedTuple):
    """The state of a log at one moment."""

    epoch: int
    """The newest of the journal."""
    last: int
    tail: int
    """Checksum of the record at ``last``."""
    position: int
    """Where the snapshot stands; 0 for none."""
    token: str
    """Names the parts of the snapshot."""
    behind: int
    """Position of a record behind ``last``, where none may be; 0 for none."""


class RedisDatabase:
    """The keys of a namespace behind one link. Calls must not overlap.

    Every write raises JournalFailed, JournalUnknown or JournalFenced, and those with a position JournalPosition. One that
    is ``strong`` returns once it is as durable as the server can make it.
    """

    def __init__(
        self, link: RedisLink, keys: Keys, *, timeout: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._link = link
        self._keys = keys
        self._milliseconds = int(timeout * 500)
        self._clock = clock
        self._me = Writer(epoch=0, nonce=0)
        self._settings: RedisSettings | None = None
        self._settings_read = -math.inf

    async def open(self, randbits: Callable[[int], int]) -> tuple[str, Writer]:
        """Check the server, and begin the next epoch; returns the server token and the writer."""
        settings = await self._read_settings()
        settings.refuse(self._link.address)
        while True:
            before, token = await self._read_owner()
            token = token or f"{randbits(128):032x}"
            me = Writer(int(before[0] or 0) + 1, randbits(32))
            arguments: Command = [*before, FORMAT, token, *me, _checksum(token, *me)]
            try:
                reply = await self._write(TAKE_OVER, [self._keys.owner], arguments, strong=True)
            except JournalUnknown as error:
                # Should it have been written: an epoch without an owner harms nobody.
                raise JournalFailed(f"the journal could not be taken over: {error}") from error
            if reply[0] == b"OK":
                self._me = me
                return token, me

    async def close(self) -> None:
        """Let go of the connection."""
        await self._link.close()

    def describe(self) -> str:
        """What the settings can lose, in one line."""
        if self._settings is None:
            raise JournalClosed
        return self._settings.describe()

    async def logs(self) -> list[str]:
        """Names of all logs, sorted."""
        return sorted(name.decode() for name in await self._read("SMEMBERS", self._keys.logs))

    async def look(self, log: str) -> Look:
        """The state of a log."""
        keys = [self._keys.owner, self._keys.meta(log), self._keys.records(log)]
        epoch, last, tail, position, token, behind = await self._read("EVAL", LOOK.text, len(keys), *keys)
        return Look(int(epoch), int(last), int(tail), int(position), token.decode(), _number(behind) if behind else 0)

    async def records(self, log: str, after: int, last: int, count: int) -> list[tuple[int, bytes]]:
        """Positions and frames of the next ``count`` records."""
        found = await self._read("XRANGE", self._keys.records(log), f"({after}-0", f"{last}-0", "COUNT", count)
        return [(_number(place), fields[1]) for place, fields in found]

    async def parts(self, log: str, token: str, first: int, end: int) -> list[bytes | None]:
        """Parts of a snapshot; None for a missing one."""
        return list(
            await self._read("HMGET", self._keys.parts(log), *(f"{token}/{part}" for part in range(first, end)))
        )

    async def append(self, runs: list[Run], *, strong: bool) -> None:
        """Write all runs, or none. Without runs, only check the owner."""
        keys = [self._keys.owner]
        arguments: list[str | bytes | int] = [1, int(strong), *self._me]
        for run in runs:
            keys += [self._keys.logs, self._keys.meta(run.log), self._keys.records(run.log)]
            arguments += [run.first - 1, run.last, checksum(run.frames[-1]), len(run.frames), run.log, *run.frames]
        places = [(run.log, run.first) for run in runs]
        self._check(await self._write(APPEND, keys, arguments, strong=strong), places)

    async def stage(self, log: str, position: int, token: str, part: int, frame: bytes) -> bool:
        """Write one part of a snapshot, which counts for nothing yet; returns whether there is a newer one already."""
        keys = [self._keys.owner, self._keys.meta(log), self._keys.parts(log)]
        reply = await self._write(STAGE, keys, [*self._me, position, token, part, frame], strong=False)
        self._check(reply, [(log, position)])
        return bool(reply[0] == b"COVERED")

    async def finish(self, log: str, position: int, token: str, parts: int) -> None:
        """Make the staged parts the snapshot, and trim what it covers."""
        keys = [self._keys.owner, self._keys.meta(log), self._keys.parts(log), self._keys.records(log)]
        reply = await self._write(FINISH, keys, [*self._me, position, token, parts], strong=True)
        self._check(reply, [(log, position)])
        if reply[0] == b"PARTS":
            raise JournalFailed(f"log {log!r}: {reply[1]} of {parts} parts of snapshot {position} are there")

    async def _read_owner(self) -> tuple[tuple[str, str], str]:
        """Epoch, nonce and server token that the store has; empty when it is new."""
        owner = self._keys.owner
        found = await self._read("HMGET", owner, "format", "token", "epoch", "nonce", "checksum")
        if not any(found):
            return ("", ""), ""
        if found[0] is not None and int(found[0]) > FORMAT:
            raise JournalVersion(f"{owner} in {self._link.address}", found=int(found[0]), supported=FORMAT)
        token, epoch, nonce, stored = ((value or b"").decode() for value in found[1:])
        if stored != str(_checksum(token, epoch, nonce)):
            raise JournalCorrupt(None, None, f"the key {owner} lacks fields, or its checksum differs")
        return (epoch, nonce), token

    async def _read_settings(self) -> RedisSettings:
        """Ask the server what it is set to; a change is logged."""
        info = parse_info(await self._read("INFO"))
        try:
            config = parse_config(await self._read("CONFIG", "GET", "*append*sync*"))
        except JournalFailed:
            # Hosted servers refuse it. Should the connection be gone, the next command says so.
            config = {}
        settings = RedisSettings.read(info, config)
        if self._settings is not None and settings != self._settings:
            _logger.warning("the settings of %s have changed: %s", self._link.address, settings.describe())
        self._settings, self._settings_read = settings, self._clock()
        return settings

    async def _barrier(self) -> list[tuple[int, tuple[str | int, ...]]]:
        """What a strong entry waits for."""
        settings = self._settings
        if settings is None or self._clock() - self._settings_read > _SETTINGS_SECONDS:
            settings = await self._read_settings()
        return settings.barrier(self._milliseconds)

    async def _read(self, *command: str | bytes | int) -> Any:
        """The answer of a command that changes nothing, which may be sent twice. Raises JournalFailed."""
        try:
            try:
                (answer,) = await self._link.run(command)
            except Lost:
                (answer,) = await self._link.run(command)
        except (NotSent, Lost) as error:
            raise JournalFailed(f"{error}; nothing was read") from error
        if isinstance(answer, RedisError):
            raise self._refused(answer)
        return answer

    async def _write(self, script: Script, keys: Sequence[str], arguments: Command, *, strong: bool) -> list[Any]:
        """What a script answers."""
        barrier = await self._barrier() if strong else []
        try:
            reply, *reached = await self._link.call(script, keys, arguments, *(command for _, command in barrier))
        except NotSent as error:
            raise JournalFailed(f"{error}; nothing was written") from error
        except Lost as error:
            raise JournalUnknown(f"{error}; it may be written, repeat the call") from error
        if isinstance(reply, RedisError):
            raise self._refused(reply)
        for (wanted, command), answer in zip(barrier, reached, strict=True):
            got = answer[0] if isinstance(answer, list) else answer
            if reply[0] == b"OK" and (isinstance(got, RedisError) or got < wanted):
                # The next attempt asks first what there is by then.
                self._settings_read = -math.inf
                raise JournalUnknown(
                    f"{self._link.address} has it, but {command[0]} for {wanted} was answered by {got}: a power cut or a "
                    f"fail-over could lose it. Repeat the call; a replica that hangs counts until repl-timeout"
                )
        return list(reply)

    def _check(self, reply: list[Any], places: list[tuple[str, int]]) -> None:
        """Raise what a script refuses with."""
        if reply[0] == b"FENCED":
            owner = int(reply[2])
            if owner < self._me.epoch:
                _logger.error(
                    "%s has lost epoch %d, which it acknowledged: it answers with %d",
                    self._link.address,
                    self._me.epoch,
                    owner,
                )
            raise JournalFenced(epoch=self._me.epoch, owner=owner)
        if reply[0] == b"POSITION":
            log, position = places[reply[1] - 1]
            raise JournalPosition(log, position=position, last=int(reply[2]), reason=reply[3].decode())

    def _refused(self, error: Exception) -> JournalFailed:
        """An error that Redis answered instead of executing anything."""
        for kind, fix in _FIXES.items():
            if str(error).startswith(kind) if isinstance(kind, str) else isinstance(error, kind):
                return JournalFailed(f"{self._link.address}: {error}; nothing was written: {fix}")
        return JournalFailed(f"{self._link.address}: {error}; nothing was written: see what Redis says")


def _checksum(token: str, epoch: int | str, nonce: int | str) -> int:
    return crc32(f"{token} {epoch} {nonce}".encode())


def _number(place: bytes) -> int:
    """The position in the name of a stream entry."""
    return int(place.partition(b"-")[0])
