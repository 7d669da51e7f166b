"""One connection to the Redis that holds the journal: which server, what was surely not sent, and no secret in any text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.asyncio import ConnectionPool, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

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
"""What may stand behind the question mark of a URL, as redis-py names it. The rest of its options the journal sets itself."""

_PORTS: Final = {"redis+sentinel": 26379}


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
    ValueError: the Redis URL cannot be read: write /, ?, #, @ and : in a password as %2F, %3F, %23, %40 and %3A
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
        """What makes connections to the server that has the journal now. ``timeout``, in seconds, is for each step."""
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

    Calls must not overlap. A command is sent once: redis-py's own retries are off, for a repeat may come only after the
    caller knows that the first attempt was of unknown outcome. ``key`` names the slot in a cluster; ``timeout``, in
    seconds, bounds connecting, and sending with all answers.
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
        """The answers, in order; an error that Redis answers is among them, not raised. Raises NotSent or Lost."""
        answers = await self._run(commands)
        if isinstance(answers[0], MovedError):
            # Not executed. The next connection reads the map of the cluster again.
            await self.drop()
            answers = await self._run(commands)
        if isinstance(answers[0], (ReadOnlyError, ClusterError)):
            await self.drop()
        return answers

    async def call(self, script: Script, keys: Sequence[str], arguments: Command, *behind: Command) -> list[Any]:
        """The answers of a script and of the commands behind it, sent together. Like ``run``."""
        rest = (len(keys), *keys, *arguments)
        answers = await self.run(("EVALSHA", script.digest, *rest), *behind)
        if isinstance(answers[0], NoScriptError):
            # Not executed: a new server, or SCRIPT FLUSH.
            answers = await self.run(("EVAL", script.text, *rest), *behind)
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
        # From here on one limit holds for sending and all answers; redis-py's own make a task for each command.
        self._connection.socket_timeout = None
        return self._connection


async def _answer(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except (ResponseError, BusyLoadingError, AuthenticationError) as error:
        return error
