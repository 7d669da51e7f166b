"""``lowwater watch`` on a pseudo-terminal, against a real authority; what it shows is told in tests/unit/test_client_cli_live.py."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import lowwater
from tests.kit.eventually import eventually
from tests.process.serving import Serving

ESCAPES = re.compile(r"\x1b\[[?>]?[0-9;]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>78M]")


class Terminal:
    def __init__(self, *command: str, **environment: str) -> None:
        self.master, slave = pty.openpty()
        self.raw = ""
        """All it has written, with the escape sequences."""
        self._size(100)
        # The size is the terminal's to say; pytest-xdist puts one into the environment, which curses would believe for ever.
        inherited = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        env = {**inherited, "TERM": "xterm-256color", **environment}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        os.close(slave)

    def _size(self, columns: int) -> None:
        self.columns = columns
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait_for(self, pattern: str) -> None:
        """Give it another size, for which it draws everything anew, until what it draws fits a pattern."""

        def fits() -> bool:
            self.read()
            begin = len(self.raw)
            self._size(201 - self.columns)
            self.process.send_signal(signal.SIGWINCH)
            self.read(0.5)
            return re.search(pattern, ESCAPES.sub(" ", self.raw[begin:])) is not None

        eventually(fits, seen=lambda: self.raw[-2000:])

    def read(self, seconds: float = 0.0) -> bool:
        """Read until nothing comes for a while; returns whether the other side is open."""
        while select.select([self.master], [], [], seconds)[0]:
            try:
                self.raw += os.read(self.master, 65_536).decode(errors="replace")
            except OSError:  # the other side was closed
                return False
        return True


@contextmanager
def watching(server: Serving, **environment: str) -> Iterator[Terminal]:
    command = [sys.executable, "-m", "lowwater.cli", "watch", "--address", server.address, "--answer-within", "1s"]
    terminal = Terminal(*command, **environment)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)


def quits(terminal: Terminal) -> int:
    terminal.press("q")
    eventually(lambda: not terminal.read(0.1) or terminal.process.poll() is not None)
    return terminal.process.wait(60)


def test_the_live_view_on_a_terminal(server: Serving, lw: lowwater.Client) -> None:
    lw.register("flights")
    lw.register("hourly", inputs=["flights"])
    lw.worker("flights", name="exec-7").claim()
    with watching(server) as terminal:
        terminal.wait_for(r"flights[\s\S]*exec-7")
        assert "\x1b[3" in terminal.raw, "it is coloured"
        terminal.press("/hou\r")
        terminal.wait_for(r'with "hou" in the name')
        terminal.press("\r")
        terminal.wait_for(r"why hourly")
        server.kill()
        terminal.wait_for(r"NO ANSWER")
        server.start()
        terminal.wait_for(r"^(?![\s\S]*NO ANSWER)[\s\S]*hourly")
        terminal.press("\x1b")
        assert quits(terminal) == 0
    assert "Traceback" not in terminal.raw


def test_no_color_is_honoured_and_a_simple_terminal_gets_a_table(server: Serving, lw: lowwater.Client) -> None:
    lw.register("flights")
    with watching(server, NO_COLOR="1") as terminal:
        terminal.wait_for(r"flights")
        assert re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.raw) is None
        assert quits(terminal) == 0
    with watching(server, TERM="dumb") as terminal:
        eventually(lambda: terminal.read(0.1) and "Ctrl-C ends this" in terminal.raw and "HELD BY" in terminal.raw)
