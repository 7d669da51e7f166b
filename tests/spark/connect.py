"""A real server of Spark Connect, which tests kill and start again, and its clients in the process of the test."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pyspark
from pyspark.sql.connect.session import SparkSession

from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.spark.session import QUICK
from tests.spark.support import SETTINGS

HOME = Path(pyspark.__file__).parent


class ConnectServer:
    """A Connect server in a JVM of its own. ``start`` after ``kill`` serves on the same port, with all queries and sessions gone."""

    def __init__(
        self, folder: Path, *, python: str = sys.executable, settings: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.warehouse = folder / "warehouse"
        self._python, self._settings = python, settings or {}
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def start(self) -> None:
        settings = {
            **SETTINGS,
            "spark.sql.streaming.checkpointFileManagerClass": QUICK["spark.sql.streaming.checkpointFileManagerClass"],
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.sql.warehouse.dir": str(self.warehouse),
            "spark.sql.catalogImplementation": "in-memory",
            **self._settings,
        }
        conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        home = HOME
        if self._python != sys.executable:
            [home] = Path(self._python).parent.parent.glob("lib/*/site-packages/pyspark")
        command = [str(home / "bin/spark-submit"), "--master", "local[2]", *conf]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("LOWWATER", "SPARK_"))}
        with (self.folder / "connect.log").open("ab") as log:
            environ |= {"PYSPARK_PYTHON": self._python}
            self._process = subprocess.Popen(command, cwd=self.folder, env=environ, stdout=log, stderr=log)
        eventually(self._serves, "the Connect server serves", check=self._check)

    def _serves(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _check(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "connect.log").read_text()[-3000:]

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(60)

    @contextmanager
    def client(self, session: str = "", *, by: str = "") -> Iterator[Any]:
        """Yield a client in this process, of a new session or one that another client has left, also by way of a relay's URL."""
        url = f"{by or self.url}/;session_id={session}" if session else by or self.url
        spark = SparkSession.builder.remote(url).create()
        try:
            yield spark
        finally:
            with warnings.catch_warnings(action="ignore"):  # of a server that was killed meanwhile
                spark.client.close()

    def pipeline(self, specification: Path, *options: str) -> subprocess.Popen[str]:
        """Start a run of a declarative pipeline, as ``spark-pipelines run`` does."""
        command = [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec", str(specification), *options]
        environ = {**os.environ, "SPARK_REMOTE": self.url}
        return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Relay:
    """Passes connections on to the server until it is cut; then it ends them, and takes none until it is mended."""

    def __init__(self, server: ConnectServer) -> None:
        self._port = server.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"sc://127.0.0.1:{self._listener.getsockname()[1]}"
        self._whole = True
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self._whole:
                    near.close()
                    continue
                pair = near, socket.create_connection(("127.0.0.1", self._port))
                self._pairs.append(pair)
                for source, target in (pair, pair[::-1]):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with source, contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self._whole = False
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def mend(self) -> None:
        self._whole = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._listener.close()


@contextmanager
def connect_server(folder: Path) -> Iterator[ConnectServer]:
    server = ConnectServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def alive(process: subprocess.Popen[Any]) -> Callable[[], None]:
    """Return a check that raises when a process has ended."""

    def check() -> None:
        assert process.poll() is None

    return check


def sidecars(file: Path, state: Path, address: str) -> Sequence[str]:
    """Return the command that tracks the declared queries."""
    program = [sys.executable, "-m", "lowwater_spark.sidecar.command", "track", str(file)]
    return [*program, "--state", str(state), "--address", address]
