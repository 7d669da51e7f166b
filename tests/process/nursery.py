"""Starts the project's commands without their imports: a process that has made them once forks, for each that a test starts.

The imports are what an authority spends most of its start on, two thirds of a second of a core, and the tests start hundreds. What runs is a
process of its own, with its own arguments, environment and files; only its command line, in a list of processes, is that of the nursery.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import json
import os
import random
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any, NoReturn

SERVE = "lowwater_authority.serve"
MOST = 1 << 20
"""Bytes of a request, most of them the environment."""


class Nursling:
    """A process that the nursery has forked, with what the tests use of a Popen."""

    def __init__(self, nursery: Nursery, pid: int, stdout: IO[str]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._nursery = nursery
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        if self.returncode is None:
            status = self._nursery.ask({"poll": self.pid})["status"]
            if status is not None:
                self.returncode = os.waitstatus_to_exitcode(status)
                os.close(self._ended)
        return self.returncode

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            # Readable when it has ended.
            watched = select.poll()
            watched.register(self._ended, select.POLLIN)
            if not watched.poll(timeout * 1000):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def stopped(self) -> None:
        self._nursery.ask({"stopped": self.pid})


class Nursery:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=theirs.fileno(),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        atexit.register(self._close)

    def start(
        self,
        arguments: Sequence[str],
        stderr: IO[Any],
        constants: Mapping[str, float] | None = None,
        module: str = SERVE,
        environment: Mapping[str, str] = os.environ,
    ) -> Nursling:
        """Fork one that runs the ``main`` of a module with these arguments, in the folder of the caller.

        ``constants`` of modules of the authority have other values in it, by ``MODULE:NAME``.
        """
        reading, writing = os.pipe()
        request = {
            "start": list(arguments),
            "module": module,
            "environment": dict(environment),
            "folder": os.getcwd(),  # noqa: PTH109 - no path is made of it
            "constants": dict(constants or {}),
        }
        pid = self.ask(request, writing, stderr.fileno())["pid"]
        os.close(writing)
        return Nursling(self, pid, os.fdopen(reading, encoding="utf-8"))

    def ask(self, request: dict[str, Any], *files: int) -> dict[str, Any]:
        """Send a request, and open files; return the answer."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(files))
            answer: dict[str, Any] = json.loads(self._socket.recv(MOST))
        return answer

    def _close(self) -> None:
        self._socket.close()
        self._process.wait(30)


def serve() -> None:
    """Be the nursery until the tests are over; returns in no child."""
    answer: dict[str, Any]
    with socket.socket(fileno=os.dup(0)) as tests:
        while True:
            data, files, _, _ = socket.recv_fds(tests, MOST, 2)
            if not data:
                return
            request = json.loads(data)
            if "start" in request:
                pid = os.fork()
                if not pid:
                    tests.close()
                    become(request, *files)
                for file in files:
                    os.close(file)
                answer = {"pid": pid}
            elif "poll" in request:
                ended, status = os.waitpid(request["poll"], os.WNOHANG)
                answer = {"status": status if ended else None}
            else:
                os.waitpid(request["stopped"], os.WUNTRACED)
                answer = {}
            tests.send(json.dumps(answer).encode())


def become(request: dict[str, Any], stdout: int, stderr: int) -> NoReturn:
    """Be the process that was asked for."""
    with open(os.devnull) as nothing:  # noqa: PTH123 - no path
        os.dup2(nothing.fileno(), 0)
    for file, number in ((stdout, 1), (stderr, 2)):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    random.seed()
    for place, value in request["constants"].items():
        module, _, name = place.partition(":")
        changed = importlib.import_module(f"lowwater_authority.{module}")
        assert hasattr(changed, name), place
        setattr(changed, name, value)
    sys.argv = [request["module"], *request["start"]]
    raise SystemExit(importlib.import_module(request["module"]).main(request["start"]))


_nurseries: dict[int, Nursery] = {}


def nursery() -> Nursery:
    with _making:
        if os.getpid() not in _nurseries:
            _nurseries[os.getpid()] = Nursery()
    return _nurseries[os.getpid()]


_making = threading.Lock()

if __name__ == "__main__":
    # What is not to be imported anew, also what serve() imports only when it is asked for.
    for name in (SERVE, "lowwater_authority.stores.redis"):
        importlib.import_module(name)
    if importlib.util.find_spec("lowwater_page"):  # the environment of tests/iceberg has no page
        importlib.import_module("lowwater_page.process")

    # A collection in a child would touch, and hence copy, all that is shared with it.
    gc.collect()
    gc.freeze()
    with contextlib.suppress(KeyboardInterrupt):
        serve()
