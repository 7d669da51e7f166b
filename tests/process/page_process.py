"""The status page as a process of its own, for tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.process.nursery import Nursling, nursery

READY = re.compile(r"lowwater: page (\S+)")


class PageProcess:
    """One page of the authority at an address; ``flags`` are more arguments, ``token`` is what it presents, ``python`` what it runs with."""

    def __init__(self, folder: Path, address: str, *flags: str, token: str = "", python: str = sys.executable) -> None:
        self._log = folder / "page.log"
        self._arguments = ["--address", address, "--listen", "127.0.0.1:0", "--log-format", "json", *flags]
        self._python = python
        self._environment = dict(os.environ)
        if token:
            file = folder / "page.token"
            file.write_text(f"{token}\n")
            self._environment["LOWWATER_TOKEN_FILE"] = str(file)
        self._process: subprocess.Popen[str] | Nursling | None = None
        self.page = ""
        """Its URL, with a slash behind it."""

    @property
    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def __enter__(self) -> Self:
        with self._log.open("a") as log:
            if self._python == sys.executable:
                self._process = nursery().start(
                    self._arguments, log, module="lowwater_page.process", environment=self._environment
                )
            else:
                command = [self._python, "-m", "lowwater_page", *self._arguments]
                self._process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
                )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        match = READY.match(line)
        assert match, f"no ready line but {line!r}:\n{self.log}"
        self.page = match[1]
        return self

    def __exit__(self, *failure: object) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()
