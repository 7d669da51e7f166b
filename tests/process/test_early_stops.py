"""A stop that is asked for before the authority serves, of the first process of a container: the kernel drops what it has no handler for."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lowwater
from tests.kit.program import run_program
from tests.process.serving import serving

WITHIN = 60
"""Seconds for an end, on a busy machine."""

SCRIPT = f"import runpy; runpy.run_path({sysconfig.get_path('scripts') + '/lowwater'!r}, run_name='__main__')"


def importing(module: str, program: str) -> str:
    return f"""
import sys, threading

class Slow:
    @staticmethod
    def find_spec(name, *_):
        if name == {module!r}:
            print("importing", flush=True)
            threading.Event().wait()

sys.meta_path.insert(0, Slow)
{program}
"""


CLIENT = importing("grpc", SCRIPT)
SERVER = importing("lowwater_authority.serve", SCRIPT)


@functools.cache
def namespace() -> tuple[str, ...]:
    """Return a command that makes a namespace of processes: root may, and others may as root of a namespace of users. Skips the test where neither is allowed."""
    refused = []
    for way in (("unshare",), ("unshare", "--user", "--map-root-user")):
        command = (*way, "--pid", "--fork", "--kill-child")
        tried = run_program([*command, "true"], timeout=WITHIN)
        if tried.returncode == 0:
            return command
        refused.append(tried.stderr.strip())
    pytest.skip(f"no process can be the first one of a namespace here: {'; '.join(refused)}")


@contextmanager
def first_process(program: str, log: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program as process 1 of a namespace of its own; what is given is the one that waits for it, with its exit code."""
    command = [*namespace(), sys.executable, "-c", program, *arguments]
    with log.open("w") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as outer:
        try:
            yield outer
        finally:
            outer.kill()


def serve(*flags: str) -> list[str]:
    return ["serve", *flags, "--listen", "127.0.0.1:0", "--http", "off"]


def stop(outer: subprocess.Popen[str], number: signal.Signals) -> int:
    (inner,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    os.kill(int(inner), number)
    return outer.wait(WITHIN)


@pytest.mark.parametrize(("program", "line"), [(SERVER, "importing"), (SCRIPT, "lowwater: serving")])
def test_process_1_stops_when_it_is_asked_to(tmp_path: Path, program: str, line: str) -> None:
    with serving(tmp_path) as server, lowwater.connect(server.address) as lw:
        lw.register("a")
        lw.register("b")
        server.kill()
        log = tmp_path / "first.log"
        with first_process(program, log, *serve("--data", str(server.data))) as outer:
            assert outer.stdout is not None
            assert outer.stdout.readline().startswith(line), log.read_text()
            assert stop(outer, signal.SIGTERM) == 0, log.read_text()
            assert not outer.stdout.read(), "it does not serve any more"
        assert "Traceback" not in log.read_text()
        assert "never retrieved" not in log.read_text()
        server.start()
        assert set(lw.get("a", "b")) == {"a", "b"}


def test_process_1_stops_while_its_store_does_not_answer(tmp_path: Path) -> None:
    log = tmp_path / "first.log"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WITHIN)
        store = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        with first_process(SCRIPT, log, *serve("--store", store, "--advertise", "127.0.0.1:7420")) as outer:
            connection, _ = silent.accept()
            with connection:
                assert stop(outer, signal.SIGTERM) == 0, log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_command_stopped_before_it_asks_has_no_answer(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """An exit code of 0 would say that everything is here."""
    log = tmp_path / "first.log"
    with first_process(CLIENT, log, "wait", "a", "--until", "finished") as outer:
        assert outer.stdout is not None
        assert outer.stdout.readline() == "importing\n", log.read_text()
        assert stop(outer, number) == code
    assert not log.read_text()
