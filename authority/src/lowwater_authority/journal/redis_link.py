"""The way to the Redis that holds the journal: the connection, what an answer means for the caller, and how long a strong write waits.

It says which server that is, and what was surely not sent; no secret is in any text.
What the server is set to says what of the journal it can lose. `docs/durability.md` has the whole table, with its tests.
"""

from __future__ import annotations

import asyncio
import logging
import math
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

SCHEMES: Final = ("redis", "rediss", "redis+sentinel", "redis+cluster")

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
"""What may stand behind the question mark of a URL, as redis-py names it. The rest of its options
the journal sets itself."""

_PORTS: Final = {"redis+sentinel": 26379}

_SETTINGS_SECONDS: Final = 10.0
"""For how long a strong entry believes what the server said of its settings. Replicas are counted
behind each strong entry."""

_REPLICATION: Final[Command] = ("INFO", "replication")
"""Command that is sent behind each strong entry: who has to confirm the entry is known by its
answer."""

_REPLICA: Final = "it is a replica: name the master in the URL, or let redis+sentinel:// or redis+cluster:// find it"

_FIXES: Final[dict[type[Exception] | tuple[type[Exception], ...] | str, str]] = {
    OutOfMemoryError: "its memory is full: raise maxmemory there, or free memory",
    ReadOnlyError: _REPLICA,
    BusyLoadingError: "it is reading its files, wait until it is done",
    NoPermissionError: "give its user the commands that docs/durability.md lists, see ACL SETUSER",
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
    """The commands were sent and their answers are missing: perhaps executed, perhaps still to be."""


class Late(Lost):
    """The server did not answer in time."""


class Address:
    """Where a Redis is. Its text, unlike the URL, holds no secret.

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
            found = [(part.hostname, part.port) for part in (urlsplit(f"//{host}") for host in hosts)]
            user = urlsplit(f"//{split.netloc.rpartition('@')[0]}@host")
        except ValueError:
            # Without the cause, which may quote a piece of the password.
            raise ValueError(
                "the Redis URL cannot be read: write /, ?, #, @ and : in a password as %2F, %3F, %23, %40 and %3A"
            ) from None
        self.scheme = split.scheme
        if self.scheme not in SCHEMES:
            raise ValueError(f"a Redis URL begins with one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
        default = _PORTS.get(self.scheme, 6379)
        self.nodes: list[tuple[str, int]] = [(host or "localhost", port or default) for host, port in found]
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
        """What makes connections to the server that has the journal now.

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
    """One server."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def open(self, key: str) -> AbstractConnection:
        connection: AbstractConnection = self._pool.make_connection()
        await connection.connect()
        return connection

    async def close(self) -> None:
        """Nothing else is open."""


class _SentinelOpener(_PoolOpener):
    """The master that the sentinels name."""

    def __init__(self, sentinel: Sentinel, service: str, options: dict[str, Any]) -> None:
        self._sentinel = sentinel
        super().__init__(SentinelConnectionPool(service, sentinel, **options))

    async def close(self) -> None:
        for client in self._sentinel.sentinels:
            await client.aclose()


class _ClusterOpener:
    """The node that serves the slot of a key; the map of the cluster is read anew for each connection."""

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
        assert node is not None  # only a wanted replica may be missing
        connection: AbstractConnection = node.acquire_connection()
        await connection.connect()
        return connection

    async def close(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.aclose()


_Opener: TypeAlias = _PoolOpener | _ClusterOpener


class RedisLink:
    """At most one connection, made when needed, dropped whenever its state is in doubt.

    Calls must not overlap. A command is sent once: redis-py's own retries are off, for a repeat may
    come only after the caller knows that the first attempt was of unknown outcome. ``key`` names
    the slot in a cluster; ``timeout``, in seconds, bounds connecting, and sending with all answers.
    """

    def __init__(self, address: Address, key: str, timeout: float) -> None:
        self.address = address
        self._key = key
        self._timeout = timeout
        self._opener = address.opener(timeout)
        self.dropped = 0
        """How many connections were let go of: behind another one may be another server."""
        self._connection: AbstractConnection | None = None

    async def run(self, *commands: Command) -> list[Any]:
        """The answers, in order; an error that Redis answers is among them, not raised.

        Raises NotSent or Lost.
        """
        answers = await self._run(commands)
        if isinstance(answers[0], MovedError):
            # Not executed. The next connection reads the map of the cluster again.
            await self.drop()
            answers = await self._run(commands)
        if isinstance(answers[0], (ReadOnlyError, ClusterError)):
            await self.drop()
        return answers

    async def call(self, script: Script, keys: Sequence[str], arguments: Command) -> list[Any]:
        """The answer of a script, alone in a list. Like ``run``."""
        return await self.call_each(script, [(keys, arguments)])

    async def call_each(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Command]], *behind: Command
    ) -> list[Any]:
        """The answers of a script to some calls, and of the commands behind them, sent together.

        Like ``run``.
        """
        rests = [(len(keys), *keys, *arguments) for keys, arguments in calls]
        commands: list[Command] = [("EVALSHA", script.digest, *rest) for rest in rests]
        answers = await self.run(*commands, *behind)
        if isinstance(answers[0], NoScriptError):
            # None was executed: a new server, or SCRIPT FLUSH. The first brings the script for all.
            answers = await self.run(("EVAL", script.text, *rests[0]), *commands[1:], *behind)
        return answers

    async def drop(self) -> None:
        """Let go of the connection; the next call makes one."""
        self.dropped += 1
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Let go of everything."""
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
        # From here on one limit holds for sending and all answers; redis-py's own make a task for
        # each command.
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
        self._settings: RedisSettings | None = None
        self._settings_read = -math.inf
        self._settings_over = 0

    @property
    def settings(self) -> RedisSettings | None:
        """What the server is set to, as last read."""
        return self._settings

    async def read_settings(self) -> RedisSettings:
        """Ask the server what it is set to; a change is logged.

        Raises JournalFailed while it reads its files.

        Until then it says that it appends to no file, whatever it is set to. It serves nothing
        meanwhile either.
        """
        info = parse_info(await self._read("INFO"))
        if info.get("loading", "0") != "0":
            raise self._refused(BusyLoadingError("Redis is loading the dataset in memory"), "nothing was asked of it")
        try:
            config = parse_config(await self._read("CONFIG", "GET", "*append*sync*"))
        except JournalFailed:
            # Hosted servers refuse it. Should the connection be gone, the next command says so.
            config = {}
        self._settings_read, self._settings_over = time.perf_counter(), self.link.dropped
        return self._remember(RedisSettings.read(info, config))

    def _remember(self, settings: RedisSettings) -> RedisSettings:
        """Keep what the server is set to; a change is logged."""
        if self._settings is not None and settings != self._settings:
            _logger.warning(
                "the settings of %s have changed: %s",
                self.link.address,
                settings.describe(),
                extra=event("store_settings_changed", store=self.link.address, durability=settings.describe()),
            )
        self._settings = settings
        return settings

    async def read(self, *command: str | bytes | int) -> Any:
        """The answer of a command that changes nothing. Raises JournalFailed."""
        return await self._twice(lambda: self._of_a_master(lambda: self.link.run(command)))

    async def ask(self, script: Script, keys: Sequence[str], arguments: Command) -> list[Any]:
        """What a script that changes nothing answers.

        Cost: one round trip. Raises JournalFailed.
        """
        return list(await self._twice(lambda: self._of_a_master(lambda: self.link.call(script, keys, arguments))))

    async def _read(self, *command: str | bytes | int) -> Any:
        """Read as ``read`` does, whatever the server is."""
        return await self._twice(lambda: self.link.run(command))

    async def _of_a_master(self, send: Callable[[], Awaitable[list[Any]]]) -> list[Any]:
        """Send once. Raises JournalFailed where the server behind a new connection is a replica: its word may be old."""
        if self._settings is not None and self.link.dropped != self._settings_over:
            await self._refuse_replica(await self.read_settings())
        return await send()

    async def _refuse_replica(self, settings: RedisSettings) -> None:
        """Raise JournalFailed for a replica.

        The next call makes a new connection: only that may lead to the master.
        """
        try:
            settings.refuse_replica(self.link.address)
        except JournalFailed:
            await self.link.drop()
            raise

    async def write(self, script: Script, keys: Sequence[str], arguments: Command, *, strong: bool) -> list[Any]:
        """What a script answers; when it is ``strong``, as durable as the server can make it.

        Raises JournalFailed or JournalUnknown.
        """
        [outcome] = await self.write_each(script, [(keys, arguments)], strong=strong)
        if isinstance(outcome, JournalError):
            raise outcome
        return outcome

    async def write_each(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Command]], *, strong: bool
    ) -> list[list[Any] | JournalError]:
        """What a script answers to each of some calls, which are sent together, and made durable together; or what became of that one.

        Raises JournalFailed or JournalUnknown of all.
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
        unsure = ""
        if strong and any(not isinstance(reply, RedisError) and reply[0] == b"OK" for reply in replies):
            unsure = await self._replicated(settings, behind[0]) or self._missed(barrier, behind[1:])
        return [self._outcome(reply, unsure) for reply in replies]

    async def _replicated(self, settings: RedisSettings, info: Any) -> str:
        """Wait for replicas that the barrier of a strong entry did not count; returns why the entry may be lost yet, or nothing.

        ``settings`` are those that the barrier was made by, ``info`` is what the server said of its replicas behind the entry.
        A replica that connects after a look at the settings may be the next master, so it has to have the entry, too.
        """
        if isinstance(info, RedisError):
            return f"{self.link.address} has it, but does not say which replicas it has: {info}"
        found = self._remember(settings.with_replication(parse_info(info)))
        if found.role != "master":
            await self.link.drop()
            return f"{self.link.address} has it, but became a replica, which loses what its master does not have"
        if found.replicas <= settings.replicas:
            return ""
        wanted = found.replicas, ("WAIT", found.replicas, self._milliseconds)
        try:
            return self._missed([wanted], await self.link.run(wanted[1]))
        except (NotSent, Lost) as error:
            return f"{error}; it may be lost in a fail-over, repeat the call"

    def _missed(self, barrier: Sequence[tuple[int, Sequence[str | int]]], answers: Sequence[Any]) -> str:
        """Why what was written may be lost yet; empty when it is as durable as it can be."""
        for (wanted, command), answer in zip(barrier, answers, strict=True):
            got = answer[0] if isinstance(answer, list) else answer
            if isinstance(got, RedisError) or got < wanted:
                return (
                    f"{self.link.address} has it, but {command[0]} for {wanted} was answered by {got}: a power cut or a "
                    f"fail-over could lose it. Repeat the call; a replica that hangs counts until repl-timeout"
                )
        return ""

    def _outcome(self, reply: Any, unsure: str) -> list[Any] | JournalError:
        if isinstance(reply, RedisError):
            return self._refused(reply, "nothing was written")
        if unsure and reply[0] == b"OK":
            # The next attempt asks first what there is by then.
            self._settings_read = -math.inf
            return JournalUnknown(unsure)
        return list(reply)

    async def _current(self, *, strong: bool) -> RedisSettings:
        """What the server is set to that is written to: behind a new connection there may be another one.

        Raises JournalFailed while that one may evict the journal, is a replica, or too old; it is asked again each time, so that a
        change is seen at once.
        """
        settings = self._settings
        old = strong and time.perf_counter() - self._settings_read > _SETTINGS_SECONDS
        if settings is None or old or not settings.keeps or self.link.dropped != self._settings_over:
            settings = await self.read_settings()
        await self._refuse_replica(settings)
        settings.refuse(self.link.address)
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


OLDEST: Final = (7, 0)
"""The first Redis whose scripts are refused as a whole, see ``redis_scripts``."""

_WAITAOF: Final = (7, 2)

_POWER: Final = {
    "always": "nothing",
    "everysec": "up to 2 s",
    "no": "what the kernel has not written yet, some 30 s",
    "unknown": "perhaps up to 2 s (CONFIG GET is refused, so appendfsync is not known)",
}


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """What counts for durability, as the server said it."""

    version: tuple[int, ...]
    append_only: bool
    sync: str
    """``appendfsync``; ``unknown`` when CONFIG GET is refused, as some hosted servers do."""
    sync_on_rewrite: bool
    """False when ``no-appendfsync-on-rewrite`` is set, which turns ``always`` off while the file is
    rewritten."""
    replicas: int
    """Replicas that are connected and in step."""
    role: str
    eviction: str

    @classmethod
    def read(cls, info: Mapping[str, str], config: Mapping[str, str]) -> RedisSettings:
        """From the fields of INFO, and of CONFIG GET as far as it is allowed."""
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
        shown = ".".join(map(str, self.version))
        if self.version < OLDEST:
            raise JournalFailed(f"{address} is Redis {shown}: the journal needs {'.'.join(map(str, OLDEST))} or newer")
        self.refuse_replica(address)
        if self.eviction != "noeviction":
            raise JournalFailed(
                f"{address} may throw the journal away when its memory is full (maxmemory-policy {self.eviction}): "
                f"CONFIG SET maxmemory-policy noeviction there, and in its redis.conf"
            )

    def refuse_replica(self, address: object) -> None:
        """Raise JournalFailed when the server is no master: what it has may be old, and its master does not get what it is sent."""
        if self.role != "master":
            raise JournalFailed(f"{address}: {_REPLICA}")

    @property
    def keeps(self) -> bool:
        """Whether the server is a master that deletes no keys to make room."""
        return self.role == "master" and self.eviction == "noeviction"

    @property
    def syncs_each(self) -> bool:
        """Whether the server syncs its file before each answer."""
        return self.append_only and self.sync == "always" and self.sync_on_rewrite

    @property
    def waits_for_sync(self) -> bool:
        """Whether a strong entry can and must wait until the file is synced.

        With ``appendfsync no`` Redis never says that it is, and would be waited for in vain.
        """
        if self.sync not in {"always", "everysec"}:
            return False
        return self.append_only and not self.syncs_each and self.version >= _WAITAOF

    def barrier(self, milliseconds: int) -> list[tuple[int, tuple[str | int, ...]]]:
        """Commands to send behind a strong entry, each with the count that its answer must reach."""
        commands: list[tuple[int, tuple[str | int, ...]]] = []
        if self.waits_for_sync:
            commands.append((1, ("WAITAOF", 1, 0, milliseconds)))
        if self.replicas:
            commands.append((self.replicas, ("WAIT", self.replicas, milliseconds)))
        return commands

    def describe(self) -> str:
        """One line: the settings, and what of an acknowledged advance and claim they can lose.

        >>> print(RedisSettings((7, 0, 15), True, "always", True, 0, "master", "noeviction").describe())
        Redis 7.0.15, appendonly yes, appendfsync always, replicas 0, ... A claim can lose: to a power cut nothing, ...
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
    r"""The fields of an INFO answer.

    >>> parse_info(b"# Server\r\nredis_version:7.0.15\r\n")
    {'redis_version': '7.0.15'}
    """
    lines = text.decode(errors="replace").split("\n")
    return dict(line.rstrip("\r").split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def parse_config(answer: Any) -> dict[str, str]:
    """The fields of a CONFIG GET answer; none when it is an error."""
    if not isinstance(answer, list):
        return {}
    texts = [item.decode(errors="replace") for item in answer]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _replicas(info: Mapping[str, str]) -> int:
    """How many replicas are connected and in step."""
    return sum("state=online" in value for key, value in info.items() if _is_replica(key))


def _is_replica(key: str) -> bool:
    return key.startswith("slave") and key[5:].isdecimal()
