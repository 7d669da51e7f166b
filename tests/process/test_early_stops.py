"""A stop that is asked for before the authority serves, of the first process of a container: the kernel drops what it has no handler for."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lowwater
from tests.process.serving import serving

WITHIN = 60
"""Seconds for an end, on a busy machine."""

IMPORTING = """
import sys, threading

class Slow:
    @staticmethod
    def find_spec(name, *_):
        if name == "lowwater_authority.server":
            print("importing", flush=True)
            threading.Event().wait()

sys.meta_path.insert(0, Slow)
from lowwater.cli import main
sys.exit(main())
"""

REPLAYING = """
import asyncio, sys
from lowwater_authority.journal.sqlite import SqliteJournal
load = SqliteJournal.load

async def slowly(journal, log, **known):
    loaded = await load(journal, log, **known)
    if log == "b":
        print("replaying", flush=True)
        await asyncio.Event().wait()
    return loaded

SqliteJournal.load = slowly
from lowwater.cli import main
sys.exit(main())
"""
"""It stays in the middle of its replay: of two computations it has one, and the log of the other is taken."""

SERVING = "import sys; from lowwater.cli import main; sys.exit(main())"


@contextmanager
def first_process(program: str, log: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program as process 1 of a namespace of its own; what is given is the one that waits for it, with its exit code."""
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", program, "serve", *flags]
    command += ["--listen", "127.0.0.1:0", "--http", "off"]
    with log.open("w") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as outer:
        try:
            yield outer
        finally:
            outer.kill()


def stop(outer: subprocess.Popen[str], number: signal.Signals) -> int:
    """Send a signal to process 1; returns its exit code."""
    (inner,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    os.kill(int(inner), number)
    return outer.wait(WITHIN)


@pytest.mark.parametrize(
    ("program", "line", "number"),
    [
        pytest.param(IMPORTING, "importing", signal.SIGTERM, id="importing"),
        pytest.param(IMPORTING, "importing", signal.SIGINT, id="importing, by Ctrl-C"),
        pytest.param(REPLAYING, "replaying", signal.SIGTERM, id="replaying"),
        pytest.param(SERVING, "lowwater: serving", signal.SIGTERM, id="serving"),
    ],
)
def test_process_1_stops_when_it_is_asked_to(tmp_path: Path, program: str, line: str, number: signal.Signals) -> None:
    with serving(tmp_path) as server, lowwater.connect(server.address) as lw:
        lw.register("a")
        lw.register("b")
        server.kill()
        log = tmp_path / "first.log"
        with first_process(program, log, "--data", str(server.data)) as outer:
            assert outer.stdout is not None
            assert outer.stdout.readline().startswith(line), log.read_text()
            assert stop(outer, number) == 0, log.read_text()
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
        with first_process(SERVING, log, "--store", store, "--advertise", "127.0.0.1:7420") as outer:
            connection, _ = silent.accept()
            with connection:
                assert stop(outer, signal.SIGTERM) == 0, log.read_text()
    assert "Traceback" not in log.read_text()
