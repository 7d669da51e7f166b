"""A real GCS server for a test, reached by ``gs://``: Google's client for Hadoop speaks to it as to any other."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
import uuid
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import ClassVar, Final, Self
from urllib.parse import parse_qs, quote, urlsplit

from scripts.s3_server import gcs_command
from tests.kit.ports import free_port
from tests.kit.program import Program

READY: Final = "server started at"

_BYTES: Final = {
    "fs.gs.block.size": 64 << 20,
    "fs.gs.inputstream.inplace.seek.limit": 8 << 20,
    "fs.gs.inputstream.min.range.request.size": 2 << 20,
    "fs.gs.outputstream.buffer.size": 8 << 20,
    "fs.gs.rewrite.max.chunk.size": 512 << 20,
}
"""Settings that Hadoop 3.5 itself has as "64m" and the like, which this client of Google's does not read."""


class FrontServer(ThreadingHTTPServer):
    daemon_threads = True
    inner = 0
    """The port of the server behind it."""
    bucket = ""


class Front(BaseHTTPRequestHandler):
    """Passes requests on, and makes the condition of an upload hold when it ends, as GCS does.

    The server alone looks at the condition when an upload begins: of two uploads that demand a free name, it takes both.
    """

    protocol_version = "HTTP/1.1"
    one: ClassVar[Lock] = Lock()
    demands: ClassVar[set[str]] = set()
    """Uploads that demand a free name."""

    def _pass(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        body, upload = self._body(), query.get("upload_id", "")
        with Front.one if "uploadType" in query else contextlib.nullcontext():
            if upload in Front.demands and self._exists(query["name"]):
                answer = json.dumps({"error": {"code": 412, "message": "conditionNotMet"}}).encode()
                self._answer(412, [("Content-Type", "application/json")], answer)
                return
            connection = HTTPConnection("127.0.0.1", self._front.inner)
            with contextlib.closing(connection):
                skipped = ("transfer-encoding", "content-length", "connection")
                headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
                connection.request(self.command, self.path, body, headers)
                response = connection.getresponse()
                answered = response.read()
            location = response.getheader("Location") or ""
            if query.get("ifGenerationMatch") == "0" and "upload_id=" in location:
                Front.demands.add(parse_qs(urlsplit(location).query)["upload_id"][0])
        self._answer(response.status, response.getheaders(), answered)

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self._pass
        raise AttributeError(name)

    @property
    def _front(self) -> FrontServer:
        assert isinstance(self.server, FrontServer)
        return self.server

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _exists(self, name: str) -> bool:
        url = f"http://127.0.0.1:{self._front.inner}/storage/v1/b/{self._front.bucket}/o/{quote(name, safe='')}"
        try:
            urllib.request.urlopen(url).close()
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return False
        return True

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden method
        pass


class Gcs(Program):
    """A GCS with one bucket. Its objects are lost when it is killed; ``pause`` makes one that does not answer.

    ``with Gcs(tmp_path / "gcs").start() as gcs`` kills it at the end.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.bucket = f"bucket-{uuid.uuid4().hex}"
        self._front = FrontServer(("127.0.0.1", 0), Front)
        self._front.inner, self._front.bucket = free_port(), self.bucket

    def start(self) -> Self:
        self.run(gcs_command(self._front.inner, self._front.server_address[1]), READY)
        Thread(target=self._front.serve_forever, daemon=True).start()
        content = json.dumps({"name": self.bucket}).encode()
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(
            urllib.request.Request(f"{self.endpoint}/storage/v1/b?project=p", content, headers)
        ).close()
        return self

    def kill(self) -> None:
        if self.starts:
            self._front.shutdown()
        self._front.server_close()
        super().kill()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._front.server_address[1]}"

    @property
    def settings(self) -> dict[str, str]:
        return {
            "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
            "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
            "fs.gs.auth.type": "UNAUTHENTICATED",
            "fs.gs.project.id": "p",
            "fs.gs.storage.root.url": f"{self.endpoint}/",
            **{name: str(value) for name, value in _BYTES.items()},
        }

    def path(self, name: str) -> str:
        return f"gs://{self.bucket}/{name}"
