"""The way to the Redis that holds the journal.

It is made of connections, the meaning of answers, and the wait of a strong write. Errors name the
server and say what was surely not sent; no text holds a secret. The settings of the server decide
what of the journal it can lose: `docs/operate/durability.md` has the whole table, with its tests.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.asyncio import ConnectionPool, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from lowwater.core.events import event
from lowwater_authority.journal.contract import JournalError, JournalFailed, JournalUnknown
from lowwater_authority.journal.redis_scripts import Script

Command: TypeAlias = Sequence[str | bytes | int]

PORTS: Final = {"redis": 6379, "rediss": 6379, "redis+sentinel": 26379, "redis+cluster": 6379}
"""Default port by scheme of a URL. ``stores/store.py`` names the schemes too: it chooses a store
without the package of Redis."""

OPTIONS: Final = {
    "redis": ("client_name", "db"),
    "rediss": (
        "client_name",
        "db",
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_ciphers",
        "ssl_keyfile",
        "ssl_password",
    ),
}
"""Options that may stand behind the question mark of a URL, as redis-py names them. The journal
sets the other options of redis-py itself."""

_SETTINGS_SECONDS: Final = 10.0
"""Seconds for which a strong entry relies on the settings of the server as last read. Replicas are
counted behind each strong entry."""

_REPLICATION: Final[Command] = ("INFO", "replication")
"""Command that is sent behind each strong entry: its answer names the replicas that must confirm
the entry."""

_REPLICA: Final = "it is a replica: name the master in the URL, or let redis+sentinel:// or redis+cluster:// find it"

_FIXES: Final[dict[type[Exception] | tuple[type[Exception], ...] | str, str]] = {
    OutOfMemoryError: "its memory is full: raise maxmemory there, or free memory",
    ReadOnlyError: _REPLICA,
    BusyLoadingError: "it is reading its files, wait until it is done",
    NoPermissionError: "give its user the commands that docs/operate/durability.md lists, see ACL SETUSER",
    AuthenticationError: "put the user and the password into the URL, as redis://USER:PASSWORD@host",
    (ClusterError, AskError, TryAgainError): "the slot is being moved, or has no node: see CLUSTER INFO there",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write: bring them back, or lower it",
    "MISCONF": "it cannot write its file: free its disk, and see its log",
    "BUSY": "a script of somebody else's runs there: SCRIPT KILL ends it",
}

_logger = logging.getLogger(__name__)


class NotSent(Exception):
    """Surely nothing was executed: there is no connection."""


class Lost(Exception):
    """The commands were sent and their answers are missing.

    Redis may have executed them, or still execute them.
    """


class Late(Lost):
    """The server did not answer in time."""


class Address:
    """The address of a Redis. Its text, unlike the URL, holds no secret.

    Raises ValueError, which never quotes the URL.

    >>> str(Address("redis+sentinel://me:secret@one,two:26380/mymaster"))
    'redis+sentinel://one:26379,two:26380/mymaster'
    >>> Address("redis://:a/b@one")
    Traceback (most recent call last):
        ...
    ValueError: the Redis URL cannot be read: write /, ?, #, @ and : in a password as ...
    """

    def __init__(self, url: str) -> None:
        try:
            split = urlsplit(url)
            hosts = split.netloc.rpartition("@")[2].split(",")
            nodes = [(part.hostname, part.port) for part in (urlsplit(f"//{host}") for host in hosts)]
            user = urlsplit(f"//{split.netloc.rpartition('@')[0]}@host")
        except ValueError:
            # The cause is left out: it may quote a piece of the password.
            raise ValueError(
                "the Redis URL cannot be read: write /, ?, #, @ and : in a password as %2F, %3F, %23, %40 and %3A"
            ) from None
        self.scheme = split.scheme
        if self.scheme not in PORTS:
            raise ValueError(f"a Redis URL begins with one of {', '.join(f'{scheme}://' for scheme in PORTS)}")
        default = PORTS[self.scheme]
        self.nodes: list[tuple[str, int]] = [(host or "localhost", port or default) for host, port in nodes]
        self.path = unquote(split.path.strip("/"))
        self._check(split)
        self._url = url
        self._username, self._password = (unquote(part) if part else None for part in (user.username, user.password))

    def __str__(self) -> str:
        nodes = ",".join(f"{host}:{port}" for host, port in self.nodes)
        return f"{self.scheme}://{nodes}" + (f"/{self.path}" if self.path else "")

    def _check(self, split: SplitResult) -> None:
        if self.scheme == "redis+sentinel" and not self.path:
            raise ValueError("name the master behind the sentinels: redis+sentinel://host:port,host:port/NAME")
        if self.scheme == "redis+cluster" and self.path not in {"", "0"}:
            raise ValueError("a Redis Cluster has database 0 only: leave the number out of the URL")
        if len(self.nodes) > 1 and self.scheme in {"redis", "rediss"}:
            raise ValueError("several hosts need redis+sentinel:// or redis+cluster://")
        if split.fragment:
            raise ValueError("a deployment is named by --deployment, not behind a #")
        possible = OPTIONS.get(self.scheme, ())
        if split.query and not possible:
            raise ValueError(f"{self.scheme}:// takes no options behind a question mark")
        options = dict(parse_qsl(split.query, keep_blank_values=True))
        for name in options:
            if name not in possible:
                raise ValueError(f"{self.scheme}:// has no option {name!r}, only {', '.join(possible)}")
        database = self.path.partition("/")[2] if self.scheme == "redis+sentinel" else options.get("db", self.path)
        if not (database or "0").isdecimal():
            raise ValueError("the database of a Redis URL is a number")

    def opener(self, timeout: float) -> _Opener:
        """Return what opens connections to the server that has the journal now.

        ``timeout``, in seconds, is for each step.
        """
        steps = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": Retry(NoBackoff(), 0)}
        options: dict[str, Any] = {"protocol": 2} | steps
        account = {"username": self._username, "password": self._password}
        match self.scheme:
            case "redis+sentinel":
                service, _, database = self.path.partition("/")
                sentinel = Sentinel(self.nodes, sentinel_kwargs=steps)
                return _SentinelOpener(sentinel, service, options | account | {"db": int(database or 0)})
            case "redis+cluster":
                return _ClusterOpener(self.nodes, options | account)
            case _:
                return _PoolOpener(ConnectionPool.from_url(self._url, **options))


class _PoolOpener:
    """Opens connections to one server."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def open(self, key: str) -> AbstractConnection:
        connection: AbstractConnection = self._pool.make_connection()
        await connection.connect()
        return connection

    async def close(self) -> None:
        """Nothing else is open."""


class _SentinelOpener(_PoolOpener):
    """Opens connections to the master that the sentinels name."""

    def __init__(self, sentinel: Sentinel, service: str, options: dict[str, Any]) -> None:
        self._sentinel = sentinel
        super().__init__(SentinelConnectionPool(service, sentinel, **options))

    async def close(self) -> None:
        for client in self._sentinel.sentinels:
            await client.aclose()


class _ClusterOpener:
    """Opens connections to the node that serves the slot of a key.

    Each reads the map of the cluster anew.
    """

    def __init__(self, nodes: list[tuple[str, int]], options: dict[str, Any]) -> None:
        self._nodes = nodes
        self._options = options
        self._cluster: RedisCluster | None = None

    async def open(self, key: str) -> AbstractConnection:
        await self.close()
        nodes = [ClusterNode(host, port) for host, port in self._nodes]
        self._cluster = cluster = RedisCluster(startup_nodes=nodes, **self._options)
        await cluster.initialize()
        node = cluster.get_node_from_key(key)
        assert node is not None  # only a replica could be missing
        connection: AbstractConnection = node.acquire_connection()
        await connection.connect()
        return connection

    async def close(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.aclose()


_Opener: TypeAlias = _PoolOpener | _ClusterOpener


class RedisLink:
    """At most one connection, opened when needed, dropped whenever its state is in doubt.

    Calls must not overlap. A command is sent once: redis-py's own retries are off, because the
    caller must know of the unknown outcome of a first attempt before there is a second. ``key``
    names the slot in a cluster; ``timeout``, in seconds, bounds connecting, and also sending with
    all answers.
    """

    def __init__(self, address: Address, key: str, timeout: float) -> None:
        self.address = address
        self._key = key
        self._timeout = timeout
        self._opener = address.opener(timeout)
        self.dropped = 0
        """Number of connections that were dropped: the next one may lead to another server."""
        self._connection: AbstractConnection | None = None

    async def run(self, *commands: Command) -> list[Any]:
        """Return the answers, in order; an error that Redis answers is among them, not raised.

        Raises NotSent or Lost.
        """
        answers = await self._run(commands)
        if isinstance(answers[0], MovedError):
            # Nothing was executed. The next connection reads the map of the cluster again.
            await self.drop()
            answers = await self._run(commands)
        if isinstance(answers[0], (ReadOnlyError, ClusterError)):
            await self.drop()
        return answers

    async def call(self, script: Script, keys: Sequence[str], arguments: Command) -> list[Any]:
        """Return the answer of a script, alone in a list. Like ``run``."""
        return await self.call_each(script, [(keys, arguments)])

    async def call_each(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Command]], *behind: Command
    ) -> list[Any]:
        """Return the answers of a script to some calls, and those of the commands behind them.

        All are sent together. Like ``run``.
        """
        rests = [(len(keys), *keys, *arguments) for keys, arguments in calls]
        commands: list[Command] = [("EVALSHA", script.digest, *rest) for rest in rests]
        answers = await self.run(*commands, *behind)
        if isinstance(answers[0], NoScriptError):
            # Nothing was executed: the server is new, or forgot its scripts. The first call brings
            # the script for all.
            answers = await self.run(("EVAL", script.text, *rests[0]), *commands[1:], *behind)
        return answers

    async def drop(self) -> None:
        """Close the connection at once; the next call opens another one."""
        self.dropped += 1
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close the connection and what opened it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect()
        await self._opener.close()

    async def _run(self, commands: Sequence[Command]) -> list[Any]:
        connection = self._connection or await self._connect()
        answers: list[Any] = []
        try:
            async with asyncio.timeout(self._timeout):
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                for _ in commands:
                    answers.append(await _answer(connection))
        except (RedisError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            await self.drop()
            if isinstance(error, TimeoutError):
                raise Late(f"{self.address}: no answer within {self._timeout:g} s") from error
            raise Lost(f"{self.address}: {error}") from error
        except BaseException:
            await self.drop()
            raise
        return answers

    async def _connect(self) -> AbstractConnection:
        try:
            async with asyncio.timeout(self._timeout * (1 + len(self.address.nodes))):
                self._connection = await self._opener.open(self._key)
        except AuthenticationError as error:
            raise NotSent(
                f"{self.address} refuses the user or the password ({error}): put the right ones into the URL, as "
                f"redis://USER:PASSWORD@host, or see ACL LIST there"
            ) from error
        except TimeoutError as error:
            raise NotSent(f"{self.address}: no connection in time: see whether it hangs") from error
        except (RedisError, RedisClusterException, OSError) as error:
            raise NotSent(f"{self.address}: {error}: see that it runs and can be reached from here") from error
        # From here on one limit holds for sending and all answers: the limits of redis-py would
        # make a task for each command.
        self._connection.socket_timeout = None
        return self._connection


async def _answer(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except (ResponseError, BusyLoadingError, AuthenticationError) as error:
        return error


class RedisExchange:
    """Reads and writes over one link.

    Calls must not overlap. ``timeout`` is the link's, in seconds.
    """

    def __init__(self, link: RedisLink, *, timeout: float) -> None:
        self.link = link
        self._milliseconds = int(timeout * 500)
        self.settings: RedisSettings | None = None
        """Settings of the server as last read."""
        self._settings_read_at = -math.inf
        self._settings_connection = 0
        """Value of ``link.dropped`` when the settings were read."""

    async def read_settings(self) -> RedisSettings:
        """Read the settings of the server, and log a change.

        Raises JournalFailed while the server loads its files: it serves nothing then, and reports
        that it appends to no file, whatever its settings are.
        """
        info = parse_info(await self._read("INFO"))
        if info.get("loading", "0") != "0":
            raise self._refused(BusyLoadingError("Redis is loading the dataset in memory"), "nothing was asked of it")
        try:
            config = parse_config(await self._read("CONFIG", "GET", "*append*sync*"))
        except JournalFailed:
            # Hosted servers refuse CONFIG. A connection that is gone fails at the next command.
            config = {}
        self._settings_read_at, self._settings_connection = time.perf_counter(), self.link.dropped
        return self._remember(RedisSettings.read(info, config))

    def _remember(self, settings: RedisSettings) -> RedisSettings:
        """Keep the settings of the server, and log a change."""
        if self.settings is not None and settings != self.settings:
            facts = event("store_settings_changed", store=self.link.address, durability=settings.describe())
            _logger.warning("the settings of %s have changed: %s", self.link.address, settings.describe(), extra=facts)
        self.settings = settings
        return settings

    async def read(self, *command: str | bytes | int) -> Any:
        """Return the answer of a command that changes nothing. Raises JournalFailed."""
        return await self._twice(lambda: self._of_a_master(lambda: self.link.run(command)))

    async def ask(self, script: Script, keys: Sequence[str], arguments: Command) -> list[Any]:
        """Return the answer of a script that changes nothing.

        Cost: one round trip. Raises JournalFailed.
        """
        return list(await self._twice(lambda: self._of_a_master(lambda: self.link.call(script, keys, arguments))))

    async def _read(self, *command: str | bytes | int) -> Any:
        """Read as ``read`` does, from a replica, too."""
        return await self._twice(lambda: self.link.run(command))

    async def _of_a_master(self, send: Callable[[], Awaitable[list[Any]]]) -> list[Any]:
        """Send once.

        Raises JournalFailed when a new connection leads to a replica, whose data may be old.
        """
        if self.settings is not None and self.link.dropped != self._settings_connection:
            await self._refuse_replica(await self.read_settings())
        return await send()

    async def _refuse_replica(self, settings: RedisSettings) -> None:
        """Raise JournalFailed for a replica.

        The next call opens a connection that may lead to the master.
        """
        try:
            settings.refuse_replica(self.link.address)
        except JournalFailed:
            await self.link.drop()
            raise

    async def write(self, script: Script, keys: Sequence[str], arguments: Command, *, strong: bool) -> list[Any]:
        """Return the answer of a script.

        With ``strong`` the call waits until the write is as durable as the server can make it.

        Raises JournalFailed or JournalUnknown.
        """
        [outcome] = await self.write_each(script, [(keys, arguments)], strong=strong)
        if isinstance(outcome, JournalError):
            raise outcome
        return outcome

    async def write_each(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Command]], *, strong: bool
    ) -> list[list[Any] | JournalError]:
        """Return the answer or the error of each of some calls of a script.

        They are sent together, and made durable together. Raises JournalFailed or JournalUnknown
        when the outcome is the same for all.
        """
        settings = await self._current(strong=strong)
        barrier = settings.barrier(self._milliseconds) if strong else []
        count = [_REPLICATION] if strong else []
        try:
            answers = await self.link.call_each(script, calls, *count, *(command for _, command in barrier))
        except NotSent as error:
            raise JournalFailed(f"{error}; nothing was written") from error
        except Lost as error:
            raise JournalUnknown(f"{error}; it may be written, repeat the call") from error
        replies, behind = answers[: len(calls)], answers[len(calls) :]
        doubt = ""
        if strong and any(not isinstance(reply, RedisError) and reply[0] == b"OK" for reply in replies):
            doubt = await self._replicated(settings, behind[0]) or self._missed(barrier, behind[1:])
        return [self._outcome(reply, doubt) for reply in replies]

    async def _replicated(self, settings: RedisSettings, info: Any) -> str:
        """Wait for replicas that the barrier of a strong entry did not count.

        Return why the entry may still be lost, or "". ``settings`` are those that the barrier was
        made from, ``info`` is the server's list of replicas behind the entry. A replica that
        connected after the settings were read may be the next master: if it had not the entry, a
        fail-over would lose it.
        """
        if isinstance(info, RedisError):
            return f"{self.link.address} has it, but does not say which replicas it has: {info}"
        current = self._remember(settings.with_replication(parse_info(info)))
        if current.role != "master":
            await self.link.drop()
            return f"{self.link.address} has it, but became a replica, which loses what its master does not have"
        if current.replicas <= settings.replicas:
            return ""
        wait = "WAIT", current.replicas, self._milliseconds
        try:
            return self._missed([(current.replicas, wait)], await self.link.run(wait))
        except (NotSent, Lost) as error:
            return f"{error}; it may be lost in a fail-over, repeat the call"

    def _missed(self, barrier: Sequence[tuple[int, Sequence[str | int]]], answers: Sequence[Any]) -> str:
        """Return why a write may still be lost; empty when it is as durable as it can be."""
        for (needed, command), answer in zip(barrier, answers, strict=True):
            count = answer[0] if isinstance(answer, list) else answer
            if isinstance(count, RedisError) or count < needed:
                return (
                    f"{self.link.address} has it, but {command[0]} for {needed} was answered by {count}: a power cut or a "
                    f"fail-over could lose it. Repeat the call; a replica that hangs counts until repl-timeout"
                )
        return ""

    def _outcome(self, reply: Any, doubt: str) -> list[Any] | JournalError:
        if isinstance(reply, RedisError):
            return self._refused(reply, "nothing was written")
        if doubt and reply[0] == b"OK":
            # The next attempt reads the settings again: the server, or its replicas, may be others.
            self._settings_read_at = -math.inf
            return JournalUnknown(doubt)
        return list(reply)

    async def _current(self, *, strong: bool) -> RedisSettings:
        """Return the settings of the server that the next write goes to.

        A new connection may lead to another server. Raises JournalFailed while that server may
        evict the journal, is a replica, or is too old. Such a server is asked again each time, so
        that a change is seen at once.
        """
        settings = self.settings
        old = strong and time.perf_counter() - self._settings_read_at > _SETTINGS_SECONDS
        if settings is None or old or not settings.keeps or self.link.dropped != self._settings_connection:
            settings = await self.read_settings()
        await self._refuse_replica(settings)
        settings.refuse(self.link.address)
        return settings

    async def _twice(self, send: Callable[[], Awaitable[list[Any]]]) -> Any:
        """Send, once more if the connection was dead, which shows only when it is used.

        Return the first answer.
        """
        try:
            try:
                answers = await send()
            except Late:
                # A second attempt would double the time that the caller waits for a hanging server.
                raise
            except Lost:
                answers = await send()
        except (NotSent, Lost) as error:
            raise JournalFailed(f"{error}; nothing was read") from error
        if isinstance(answers[0], RedisError):
            raise self._refused(answers[0], "nothing was read")
        return answers[0]

    def _refused(self, error: Exception, outcome: str) -> JournalFailed:
        """Return the error for a call that Redis refused without executing it."""
        for kind, fix in _FIXES.items():
            if str(error).startswith(kind) if isinstance(kind, str) else isinstance(error, kind):
                return JournalFailed(f"{self.link.address}: {error}; {outcome}: {fix}")
        return JournalFailed(f"{self.link.address}: {error}; {outcome}: see what Redis says")


OLDEST: Final = (7, 0)
"""Oldest Redis that the journal runs on: the first that refuses scripts as a whole, see
``redis_scripts``."""

_WAITAOF: Final = (7, 2)
"""Oldest Redis with the command WAITAOF."""

_POWER: Final = {
    "always": "nothing",
    "everysec": "up to 2 s",
    "no": "what the kernel has not written yet, some 30 s",
    "unknown": "perhaps up to 2 s (CONFIG GET is refused, so appendfsync is not known)",
}


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """The settings of a server that decide what it can lose."""

    version: tuple[int, ...]
    append_only: bool
    sync: str
    """Value of ``appendfsync``; ``unknown`` when the server refuses CONFIG GET."""
    sync_on_rewrite: bool
    """True unless ``no-appendfsync-on-rewrite`` is set, which turns ``always`` off while the file
    is rewritten."""
    replicas: int
    """Replicas that are connected and in step."""
    role: str
    eviction: str

    @classmethod
    def read(cls, info: Mapping[str, str], config: Mapping[str, str]) -> RedisSettings:
        """Return the settings in the answers to INFO and CONFIG GET.

        Hosted servers refuse the latter.
        """
        numbers = info.get("redis_version", "0").split(".")[:3]
        return cls(
            version=tuple(int(number) for number in numbers if number.isdecimal()),
            append_only=info.get("aof_enabled") == "1",
            sync=config.get("appendfsync", "unknown"),
            sync_on_rewrite=config.get("no-appendfsync-on-rewrite", "no") == "no",
            replicas=_replicas(info),
            role=info.get("role", "master"),
            eviction=info.get("maxmemory_policy", config.get("maxmemory-policy", "noeviction")),
        )

    def with_replication(self, info: Mapping[str, str]) -> RedisSettings:
        """Return these settings with the role and the replicas that INFO names."""
        return replace(self, role=info.get("role", "master"), replicas=_replicas(info))

    def refuse(self, address: object) -> None:
        """Raise JournalFailed when the journal cannot be kept there at all."""
        version = ".".join(map(str, self.version))
        if self.version < OLDEST:
            raise JournalFailed(
                f"{address} is Redis {version}: the journal needs {'.'.join(map(str, OLDEST))} or newer"
            )
        self.refuse_replica(address)
        if self.eviction != "noeviction":
            raise JournalFailed(
                f"{address} may throw the journal away when its memory is full (maxmemory-policy {self.eviction}): "
                f"CONFIG SET maxmemory-policy noeviction there, and in its redis.conf"
            )

    def refuse_replica(self, address: object) -> None:
        """Raise JournalFailed when the server is a replica.

        Its data may be old, and its master gets none of its writes.
        """
        if self.role != "master":
            raise JournalFailed(f"{address}: {_REPLICA}")

    @property
    def keeps(self) -> bool:
        """True if the server is a master that deletes no keys to make room."""
        return self.role == "master" and self.eviction == "noeviction"

    @property
    def syncs_each(self) -> bool:
        """True if the server syncs its file before each answer."""
        return self.append_only and self.sync == "always" and self.sync_on_rewrite

    @property
    def waits_for_sync(self) -> bool:
        """True if a strong entry can and must wait until the file is synced.

        With ``appendfsync no`` Redis never reports a sync, and the wait would be in vain.
        """
        if self.sync not in {"always", "everysec"}:
            return False
        return self.append_only and not self.syncs_each and self.version >= _WAITAOF

    def barrier(self, milliseconds: int) -> list[tuple[int, tuple[str | int, ...]]]:
        """Return the commands behind a strong entry, each with the count that it must reach."""
        commands: list[tuple[int, tuple[str | int, ...]]] = []
        if self.waits_for_sync:
            commands.append((1, ("WAITAOF", 1, 0, milliseconds)))
        if self.replicas:
            commands.append((self.replicas, ("WAIT", self.replicas, milliseconds)))
        return commands

    def describe(self) -> str:
        """Return in one line the settings, and what of an advance and a claim they can lose.

        >>> settings = RedisSettings((7, 0, 15), True, "always", True, 0, "master", "noeviction")
        >>> print(settings.describe())
        Redis 7.0.15, appendonly yes, ... A claim can lose: to a power cut nothing, ...
        """
        if not self.append_only:
            file, power = "appendonly no", "everything since the last RDB file"
        else:
            file = f"appendonly yes, appendfsync {self.sync}"
            power = _POWER.get(self.sync, _POWER["unknown"])
            if self.sync == "always" and not self.sync_on_rewrite:
                file += ", no-appendfsync-on-rewrite yes"
                power = "what is written during a rewrite of the file"
        claim_power = power
        if self.waits_for_sync:
            claim_power = "nothing (WAITAOF)"
        elif self.append_only and not self.syncs_each:
            claim_power += " (WAITAOF needs Redis 7.2 and appendfsync everysec or always)"
        missing = "everything (no replica)"
        fail_over = "what the replica has not got yet" if self.replicas else missing
        claim_fail_over = "nothing that a connected replica can take over (WAIT)" if self.replicas else missing
        return (
            f"Redis {'.'.join(map(str, self.version))}, {file}, replicas {self.replicas}, "
            f"maxmemory-policy {self.eviction}. "
            f"An acknowledged advance can lose: to a power cut {power}, to a fail-over {fail_over}. "
            f"A claim can lose: to a power cut {claim_power}, to a fail-over {claim_fail_over}"
        )


def parse_info(text: bytes) -> dict[str, str]:
    r"""Return the fields of an answer to INFO.

    >>> parse_info(b"# Server\r\nredis_version:7.0.15\r\n")
    {'redis_version': '7.0.15'}
    """
    lines = text.decode(errors="replace").split("\n")
    return dict(line.rstrip("\r").split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def parse_config(answer: Any) -> dict[str, str]:
    """Return the fields of an answer to CONFIG GET; none for an error."""
    if not isinstance(answer, list):
        return {}
    texts = [item.decode(errors="replace") for item in answer]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _replicas(info: Mapping[str, str]) -> int:
    """Return the number of replicas that are connected and in step."""
    return sum("state=online" in value for key, value in info.items() if re.fullmatch(r"slave\d+", key))
