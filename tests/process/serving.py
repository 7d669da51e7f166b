"""A real ``lowwater serve`` for tests: started on free ports, killed or stopped by the test."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import grpc

from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.process.nursery import Nursling, nursery

READY = re.compile(r"lowwater: serving on (\S+) \((?:page (\S+), )?metrics (\S+)\)")


class Serving:
    """One process over one data folder. ``start`` after ``kill`` serves the same data on the same port."""

    def __init__(self, data: Path, *flags: str, port: int = 0, page: str = "off") -> None:
        self.data = data
        self.flags = flags
        self.port = port or free_port()
        self.http = "127.0.0.1:0"
        self.page_at = page
        """Where it serves the status page; most tests need none, and it is one process more."""
        self.constants: Mapping[str, float] = {}
        """Constants of the authority's modules that are others in this process, by ``MODULE:NAME``: how long something waits, as a rule."""
        self.page = ""
        """URL of the status page, with a slash behind it."""
        self.metrics = ""
        """URL of /metrics."""
        self.process: subprocess.Popen[str] | Nursling | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> str:
        """URL of what it serves over HTTP besides the page, with a slash behind it."""
        return self.metrics.removesuffix("metrics")

    def start(self) -> Self:
        arguments = [*self.journal(), *self.flags, "--listen", self.address]
        arguments += ["--http", self.http, *self.flags_of_page()]
        program = self.program()
        with (self.data.parent / "serve.log").open("a") as log:
            if program is None:
                self.process = nursery().start(arguments, log, self.constants)
            else:
                assert not self.constants, "its program has them as they are"
                self.process = subprocess.Popen([*program, *arguments], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = READY.match(line)
        assert match, f"no ready line but {line!r}:\n{(self.data.parent / 'serve.log').read_text()}"
        self.port = int(match[1].rpartition(":")[2])
        self.page, self.metrics = match[2], match[3]
        return self

    def program(self) -> list[str] | None:
        """Return the command of the server; None for ``lowwater serve`` from the nursery."""
        return None

    def flags_of_page(self) -> list[str]:
        return ["--page", self.page_at]

    def journal(self) -> list[str]:
        return ["--data", str(self.data)]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the server's log lines of a name, with ``--log-format json``."""
        lines = (self.data.parent / "serve.log").read_text().splitlines()
        # gRPC, and a page beside it, write there by themselves.
        return [item for item in (json.loads(line) for line in lines if line.startswith("{")) if item["event"] == name]

    def memory(self, field: str) -> int:
        """Bytes of memory by a field of its /proc/PID/status."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition(f"{field}:")[2].split()[0]) << 10

    def page_pid(self) -> int:
        """The process of the page that it began last. Waits for it."""
        pids = eventually(self._page_pids)
        return pids[-1]

    def _page_pids(self) -> list[int]:
        return [event["pid"] for event in self.events("page_begun")]

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def freeze(self) -> None:
        assert isinstance(self.process, Nursling)
        self.signal(signal.SIGSTOP)
        self.process.stopped()

    def wait(self) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        code = self.process.wait(30)
        self.process.stdout.close()
        return code

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.address)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *failure: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


@contextlib.contextmanager
def serving(folder: Path, *flags: str, page: str = "off") -> Iterator[Serving]:
    with Serving(folder / "data", *flags, page=page) as server:
        yield server
