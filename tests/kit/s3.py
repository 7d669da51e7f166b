"""A real S3 server for a test, reached by ``s3a://``: Hadoop's client of S3 speaks to it as to any other."""

from __future__ import annotations

import urllib.request
import uuid
from pathlib import Path
from typing import Final, Self

from scripts.s3_server import command
from tests.kit.ports import free_port
from tests.kit.program import Program

READY: Final = "Running on http"


class S3(Program):
    """An S3 with one bucket. Its objects are lost when it is killed; ``pause`` makes one that does not answer.

    ``with S3(tmp_path / "s3").start() as s3`` kills it at the end.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()
        self.bucket = f"bucket-{uuid.uuid4().hex}"
        """Hadoop keeps a client for each bucket of which it has heard."""

    def start(self) -> Self:
        self.run(command(self.port), READY)
        request = urllib.request.Request(f"{self.endpoint}/{self.bucket}", method="PUT")
        urllib.request.urlopen(request).close()
        return self

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        return {
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.access.key": "anybody",
            "fs.s3a.secret.key": "anything",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
            # S3 itself lists a thousand objects at most. The server lists as many as it is asked for.
            "fs.s3a.paging.maximum": "1000",
        }

    def path(self, name: str) -> str:
        return f"s3a://{self.bucket}/{name}"
