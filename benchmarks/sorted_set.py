"""The baseline that many build first: a Redis sorted set of key ranges, scored by watermark."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import redis
    from redis.connection import AbstractConnection

    from benchmarks.workload import Update

KEY: Final = "watermarks"
WINDOW: Final = 32
"""Commands sent ahead of their answers, so that the server never waits for the client."""

DURABLE: Final = ("--appendonly", "yes", "--appendfsync", "always")
"""Acknowledged means synced, as for the authority. The log is never rewritten, which spares Redis
that work."""

IN_MEMORY: Final = ("--appendonly", "no")

STARTS_WITHIN: Final = 10.0


def missing() -> str | None:
    """Return why this baseline cannot run here; None when it can."""
    try:
        import redis  # noqa: F401
    except ImportError:
        return "the redis package is not in this environment: run `make setup`"
    if shutil.which("redis-server") is None:
        return "there is no redis-server on PATH: run `make setup`, or apt-get install redis-server"
    return None


class SortedSet:
    """One member per key range; ZADD takes a message over, ZRANGE 0 0 answers the least."""

    def __init__(self, connection: AbstractConnection, keys: list[bytes]) -> None:
        self._connection = connection
        self._keys = keys
        self.low = 0
        """The least score that the last ZRANGE answered."""

    def encode(self, updates: Iterable[Update]) -> list[bytes]:
        """Return the commands of messages, encoded before the clock runs."""
        least = b"".join(self._connection.pack_command("ZRANGE", KEY, 0, 0, "WITHSCORES"))
        packed = []
        for update in updates:
            members = self._keys[update.first : update.first + len(update.values)]
            pairs = (item for pair in zip(update.values.tolist(), members, strict=True) for item in pair)
            packed.append(b"".join(self._connection.pack_command("ZADD", KEY, *pairs)) + least)
        return packed

    def take(self, messages: Sequence[bytes]) -> None:
        """Send commands, a window of them ahead of their answers; return when all are answered."""
        for sent, commands in enumerate(messages):
            self._connection.send_packed_command([commands])
            if sent >= WINDOW:
                self._answer()
        for _ in range(min(WINDOW, len(messages))):
            self._answer()

    def _answer(self) -> None:
        self._connection.read_response()
        [_, score] = self._connection.read_response()
        self.low = int(score)


@contextmanager
def sorted_set(folder: Path, keys: list[bytes], durability: tuple[str, ...]) -> Iterator[SortedSet]:
    """Run redis-server with only a Unix socket, which is faster than gRPC's loopback."""
    import redis

    folder.mkdir(parents=True)
    socket = folder / "socket"
    # Neither snapshots nor rewrites of the log, which would fork in the middle of a round.
    options = ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--save", "", *durability]
    command = ["redis-server", *options, "--auto-aof-rewrite-percentage", "0", "--daemonize", "no"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    client = redis.Redis(unix_socket_path=str(socket), protocol=2)
    try:
        deadline = time.monotonic() + STARTS_WITHIN
        while not _serves(client):
            if process.poll() is not None or time.monotonic() > deadline:
                msg = f"redis-server does not serve: {(folder / 'log').read_text()[-2000:]}"
                raise RuntimeError(msg)
            time.sleep(0.02)
        yield SortedSet(client.connection_pool.get_connection(), keys)
    finally:
        client.close()
        process.kill()
        process.wait()


def _serves(client: redis.Redis) -> bool:
    import redis

    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
