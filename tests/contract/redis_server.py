"""A real redis-server for a test: on a port of its own, in a directory of its own, gone afterwards."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
from collections import deque
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Self

import redis

READY = "Ready to accept connections"

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
"""Acknowledged means synced."""

QUIET = ("--save", "", "--auto-aof-rewrite-percentage", "0", "--repl-diskless-sync-delay", "0")
"""Nothing that forks by itself."""

STARTS_WITHIN = 30.0


PORTS = range(12_000, 22_000)
"""Tests side by side share them out: each process leaves the others the ports of servers that they will start again."""


def own_ports() -> range:
    """Those of this process of pytest-xdist, or all."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = len(PORTS) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return PORTS[number * share : (number + 1) * share]


def free_port() -> int:
    """A port that nobody listens on.

    Below the range from which the system takes ports for outgoing connections: a server that is killed must find its port
    free again. A cluster node listens 10,000 higher too.
    """
    ports = own_ports()
    while True:
        port = random.choice(ports)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class RedisServer:
    """One redis-server, started by ``start``. It survives ``kill`` as a directory, from which ``start`` continues.

    ``with RedisServer(...) as server`` kills it at the end; it does not start it.
    """

    def __init__(self, directory: Path, *options: str, ready: str = READY) -> None:
        binary = shutil.which("redis-server")
        assert binary is not None, "there is no redis-server: run scripts/setup.sh --tests"
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.port = free_port()
        self.options = options
        self._binary = binary
        self._ready = ready
        self._said: deque[str] = deque(maxlen=200)
        self._heard = Condition()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """Where a journal finds it."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Run it, and return when it serves."""
        command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        return self._start([*command, *QUIET, *self.options])

    def start_sentinel(self, configuration: str) -> Self:
        """Run it as a sentinel."""
        path = self.directory / "sentinel.conf"
        path.write_text(f"port {self.port}\nbind 127.0.0.1\n{configuration}\n")
        return self._start([self._binary, str(path), "--sentinel"])

    def kill(self) -> None:
        """End it as kill -9 does, also while it is stopped."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP; returns when it is stopped."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wait_for(self, words: str) -> None:
        """Return when a line with these words was, or is, written to its log."""
        with self._heard:
            found = self._heard.wait_for(lambda: any(words in line for line in self._said), STARTS_WITHIN)
        assert found, f"never said {words!r}:\n" + "".join(self._said)

    def execute(self, *command: str | bytes | int) -> Any:
        """Run one command beside the journal."""
        with redis.Redis(port=self.port, protocol=2) as client:
            return client.execute_command(*command)

    def _start(self, command: list[str]) -> Self:
        self._said.clear()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        try:
            self.wait_for(self._ready)
        except BaseException:
            self.kill()
            raise
        return self

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                with self._heard:
                    self._said.append(line)
                    self._heard.notify_all()
