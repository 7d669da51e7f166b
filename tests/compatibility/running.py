"""Programs and servers of other environments."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Self

from tests.compatibility.environments import Environment, clean_environ
from tests.kit.program import run_program
from tests.process.serving import READY, Serving

Lows = dict[str, list[int]]
PROGRAM = Path(__file__).with_name("program.py")
SECONDS = 60.0


class Installed(Serving):
    def __init__(self, environment: Environment, data: Path, *, port: int = 0) -> None:
        super().__init__(data, port=port)
        self.environment = environment
        self._http = "--metrics" if environment.versions()["lowwater-authority"] == "0.1.0" else "--http"

    @property
    def _command(self) -> list[str]:
        command = [self.environment.lowwater, "serve", "--data", str(self.data)]
        return [*command, "--listen", self.address, self._http, "127.0.0.1:0"]

    def refuse(self) -> tuple[int, str]:
        done = run_program(self._command, env=clean_environ(), cwd=self.data.parent, timeout=SECONDS)
        return done.returncode, done.stderr

    def start(self) -> Self:
        log = self.data.parent / "serve.log"
        with log.open("a") as written:
            self.process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
                env=clean_environ(),
                cwd=self.data.parent,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = READY.match(line)
        assert match, f"no ready line but {line!r}:\n{log.read_text()}"
        self.port = int(match[1].rpartition(":")[2])
        self.metrics = match[3]
        return self


class Running:
    """``program.py`` under an interpreter, stopped half way until it is told to go on."""

    def __init__(self, python: str, kind: str, address: str, namespace: str) -> None:
        command = [python, "-I", "-W", "error", str(PROGRAM), kind, address, namespace]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environ(),
        )

    def half(self) -> Lows:
        return self._line()

    def end(self) -> Lows:
        """Let it go on; what it saw in all. It has ended, without a complaint."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.close()
        saw = self._line()
        errors = self._errors()
        assert (self._process.wait(SECONDS), errors) == (0, "")
        return saw

    def _line(self) -> Lows:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the program ended:\n{self._errors()}"
        saw: Lows = json.loads(line)
        return saw

    def _errors(self) -> str:
        """Return what the program wrote to standard error until its end; a few lines at most, so the pipe never fills."""
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def run(python: str, kind: str, address: str, namespace: str) -> Lows:
    with Running(python, kind, address, namespace) as program:
        program.half()
        saw = program.end()
    never_back(saw)
    return saw


def never_back(saw: Lows) -> None:
    assert set(saw) == {"flights", "enriched", "hourly"}
    for name, lows in saw.items():
        assert lows == sorted(lows), f"{name} went back: {lows}"
        assert len(set(lows)) > 2, f"{name} did not move: {lows}"
