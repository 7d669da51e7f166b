"""How the Redis journal talks with its server: what an answer means for the caller, and how long a strong write waits."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

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

from lowwater_authority.journal.errors import JournalFailed, JournalUnknown
from lowwater_authority.journal.redis_link import Command, Late, Lost, NotSent, RedisLink
from lowwater_authority.journal.redis_scripts import Script
from lowwater_authority.journal.redis_settings import RedisSettings, parse_config, parse_info
from lowwater_authority.ops.events import event

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


class RedisExchange:
    """Reads and writes over one link. Calls must not overlap. ``timeout`` is the link's, in seconds."""

    def __init__(self, link: RedisLink, *, timeout: float) -> None:
        self.link = link
        self._milliseconds = int(timeout * 500)
        self._settings: RedisSettings | None = None
        self._settings_read = -math.inf
        self._settings_over = 0

    @property
    def settings(self) -> RedisSettings | None:
        """What the server is set to, as last read."""
        return self._settings

    async def read_settings(self) -> RedisSettings:
        """Ask the server what it is set to; a change is logged. Raises JournalFailed while it reads its files.

        Until then it says that it appends to no file, whatever it is set to. It serves nothing meanwhile either.
        """
        info = parse_info(await self.read("INFO"))
        if info.get("loading", "0") != "0":
            raise self._refused(BusyLoadingError("Redis is loading the dataset in memory"), "nothing was asked of it")
        try:
            config = parse_config(await self.read("CONFIG", "GET", "*append*sync*"))
        except JournalFailed:
            # Hosted servers refuse it. Should the connection be gone, the next command says so.
            config = {}
        settings = RedisSettings.read(info, config)
        if self._settings is not None and settings != self._settings:
            _logger.warning(
                "the settings of %s have changed: %s",
                self.link.address,
                settings.describe(),
                extra=event("store_settings_changed", store=self.link.address, durability=settings.describe()),
            )
        self._settings, self._settings_read, self._settings_over = settings, time.perf_counter(), self.link.dropped
        return settings

    async def read(self, *command: str | bytes | int) -> Any:
        """The answer of a command that changes nothing. Raises JournalFailed."""
        return await self._twice(lambda: self.link.run(command))

    async def ask(self, script: Script, keys: Sequence[str], arguments: Command) -> list[Any]:
        """What a script that changes nothing answers. Cost: one round trip. Raises JournalFailed."""
        return list(await self._twice(lambda: self.link.call(script, keys, arguments)))

    async def write(self, script: Script, keys: Sequence[str], arguments: Command, *, strong: bool) -> list[Any]:
        """What a script answers; when it is ``strong``, as durable as the server can make it.

        Raises JournalFailed or JournalUnknown.
        """
        settings = await self._current(strong=strong)
        barrier = settings.barrier(self._milliseconds) if strong else []
        try:
            reply, *reached = await self.link.call(script, keys, arguments, *(command for _, command in barrier))
        except NotSent as error:
            raise JournalFailed(f"{error}; nothing was written") from error
        except Lost as error:
            raise JournalUnknown(f"{error}; it may be written, repeat the call") from error
        if isinstance(reply, RedisError):
            raise self._refused(reply, "nothing was written")
        for (wanted, command), answer in zip(barrier, reached, strict=True):
            got = answer[0] if isinstance(answer, list) else answer
            if reply[0] == b"OK" and (isinstance(got, RedisError) or got < wanted):
                # The next attempt asks first what there is by then.
                self._settings_read = -math.inf
                raise JournalUnknown(
                    f"{self.link.address} has it, but {command[0]} for {wanted} was answered by {got}: a power cut or a "
                    f"fail-over could lose it. Repeat the call; a replica that hangs counts until repl-timeout"
                )
        return list(reply)

    async def _current(self, *, strong: bool) -> RedisSettings:
        """What the server is set to that is written to: behind a new connection there may be another one.

        Raises JournalFailed while that one may evict the journal; it is asked again each time, so that a change is seen at once.
        """
        settings = self._settings
        old = strong and time.perf_counter() - self._settings_read > _SETTINGS_SECONDS
        if settings is None or old or settings.evicts or self.link.dropped != self._settings_over:
            settings = await self.read_settings()
        settings.refuse_eviction(self.link.address)
        return settings

    async def _twice(self, send: Callable[[], Awaitable[list[Any]]]) -> Any:
        """The first answer of what may be sent twice: a connection is found dead only when it is used."""
        try:
            try:
                answers = await send()
            except Late:
                # Once more would double the time that the caller waits for a server that hangs.
                raise
            except Lost:
                answers = await send()
        except (NotSent, Lost) as error:
            raise JournalFailed(f"{error}; nothing was read") from error
        if isinstance(answers[0], RedisError):
            raise self._refused(answers[0], "nothing was read")
        return answers[0]

    def _refused(self, error: Exception, outcome: str) -> JournalFailed:
        """An error that Redis answered instead of executing anything."""
        for kind, fix in _FIXES.items():
            if str(error).startswith(kind) if isinstance(kind, str) else isinstance(error, kind):
                return JournalFailed(f"{self.link.address}: {error}; {outcome}: {fix}")
        return JournalFailed(f"{self.link.address}: {error}; {outcome}: see what Redis says")
