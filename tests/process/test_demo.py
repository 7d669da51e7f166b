"""`lowwater demo`: what it prints can be typed, the slow source is named, and nothing is left of it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sysconfig
import urllib.request
from pathlib import Path

import pytest

import lowwater
from lowwater.cli import main
from tests.kit.eventually import eventually
from tests.kit.program import run_program

COMMAND = re.compile(r"^  lowwater (.+)$", re.MULTILINE)
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
LOWWATER = str(Path(sysconfig.get_path("scripts"), "lowwater"))


def test_what_it_prints_can_be_typed_and_names_the_slow_source(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("LOWWATER_STORE", "redis://not-of-the-demo")
    with subprocess.Popen([LOWWATER, "demo"], stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            printed = "".join(iter(demo.stdout.readline, "to type in another terminal:\n"))
            commands = COMMAND.findall("".join(demo.stdout.readline() for _ in range(3)))
            asked = {command.split()[0]: asking(command, capsys) for command in commands}
            assert list(asked) == ["status", "why", "wait"]
            assert re.search(r"^revenue .*\bparis all keys", asked["status"], re.MULTILINE), asked["status"]
            (shown,) = re.findall(r"^\$ lowwater why revenue\n(.+)$", README, re.MULTILINE)
            assert without_figures(asked["why"].splitlines()[0]) == without_figures(shown)
            assert re.match("revenue is complete to ", asked["wait"])
            page = re.search(r"^the status page: (\S+)$", printed, re.MULTILINE)
            assert page
            with urllib.request.urlopen(page[1], timeout=30) as answer:
                assert answer.status == 200
            address = shlex.split(commands[0])[-1]
            demo.send_signal(signal.SIGINT)
            closed = re.search(r"closed (\d+) windows of 10 s; 0 orders came too late", demo.stdout.read())
            assert demo.wait(30) == 0
        finally:
            demo.kill()
    assert closed
    assert int(closed[1]) > 0
    assert list(tmp_path.iterdir()) == []
    with lowwater.connect(address, timeout=0.1) as lw, pytest.raises(lowwater.LowwaterError):
        lw.get()


def without_figures(sentence: str) -> str:
    """Return who holds what of a sentence of `why`; what follows depends on the moment."""
    return re.sub(r"\d+ min( \d+ s)?|\d+:\d+(:\d+)?", "_", sentence.partition(" (")[0])


def asking(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(shlex.split(command)) == 0
    return capsys.readouterr().out


def test_an_interrupt_while_it_starts_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen([LOWWATER, "demo"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        eventually(lambda: any(tmp_path.iterdir()), "its authority starts")
        demo.send_signal(signal.SIGINT)
        assert not demo.communicate(timeout=30)[0]
    assert demo.returncode == 0
    eventually(lambda: not any(tmp_path.iterdir()), "its folder is removed")


def test_a_port_that_does_not_exist_and_no_time_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--port", "99999"]) == 2
    assert "not '127.0.0.1:99999'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["demo", "--seconds", "nan"])
    assert "'nan' is no duration" in capsys.readouterr().err


def test_a_port_that_is_taken_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["demo", "--port", str(taken.getsockname()[1])]) == 2
    said = capsys.readouterr().err
    assert "cannot listen on 127.0.0.1:" in said
    assert "Leave --port out" in said


def test_an_authority_that_cannot_be_imported_is_said(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('no numpy for this machine')")
    (tmp_path / "temporary").mkdir()
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path / "temporary")}
    done = run_program([LOWWATER, "demo"], env=environ)
    assert done.returncode == 2
    assert "no numpy for this machine" in done.stderr
    assert not list((tmp_path / "temporary").iterdir())
