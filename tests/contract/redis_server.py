"""A real redis-server for a test: on a port of its own, in a directory of its own, gone afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Self

import redis

from tests.kit.ports import free_port
from tests.kit.program import Program

READY = "Ready to accept connections"

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
"""Acknowledged means synced."""

QUIET = ("--save", "", "--auto-aof-rewrite-percentage", "0", "--repl-diskless-sync-delay", "0")
"""Options that keep Redis from forking by itself."""


class RedisServer(Program):
    def __init__(self, directory: Path, *options: str, ready: str = READY) -> None:
        binary = shutil.which("redis-server")
        assert binary is not None, "there is no redis-server: run scripts/setup.sh --tests"
        super().__init__(directory)
        self.port = free_port()
        self.options = options
        self._binary = binary
        self._ready = ready

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> Self:
        command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        return self.run([*command, *QUIET, *self.options], self._ready)

    def start_sentinel(self, configuration: str) -> Self:
        path = self.directory / "sentinel.conf"
        path.write_text(f"port {self.port}\nbind 127.0.0.1\n{configuration}\n")
        return self.run([self._binary, str(path), "--sentinel"], self._ready)

    def execute(self, *command: str | bytes | int) -> Any:
        with redis.Redis(port=self.port, protocol=2) as client:
            return client.execute_command(*command)
