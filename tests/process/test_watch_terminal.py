"""``lowwater watch`` on a pseudo-terminal, against a real authority."""

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
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import lowwater
from tests.process.serving import Serving

TOKEN = re.compile(
    r"\x1b\[[?>]?(?P<numbers>[0-9;]*)(?P<final>[@-~])|\x1b[()][A-Z0-9]|\x1b[=>78M]|(?P<char>[^\x1b])", re.DOTALL
)
"""One character, or one escape sequence; nothing while that has not come whole."""
PATIENCE = 60.0
EIGHT = datetime(2013, 1, 9, 8, tzinfo=UTC)


class Terminal:
    """A program on a pseudo-terminal, and as much of a terminal as shows what is on its screen."""

    def __init__(self, *command: str, environment: Mapping[str, str], size: tuple[int, int] = (24, 100)) -> None:
        self.master, slave = pty.openpty()
        self.cells: list[list[str]] = []
        self.row, self.column = 0, 0
        self.raw = ""
        """All it has written, with the escape sequences."""
        self._rest = ""
        self._set(*size)
        # The size is the terminal's to say; pytest-xdist puts one into the environment, which curses would believe for ever.
        inherited = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        env = {**inherited, "TERM": "xterm-256color", **environment}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        os.close(slave)

    def _set(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.cells = [[" "] * columns for _ in range(rows)]
        self.region = 0, rows - 1
        """The rows that scroll."""

    def resize(self, rows: int, columns: int) -> None:
        """Give it another size; it draws all of it anew."""
        self._set(rows, columns)
        self.process.send_signal(signal.SIGWINCH)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self.master, keys.encode())

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join("".join(row).rstrip() for row in self.cells)

    def wait_for(self, pattern: str) -> None:
        """Read until the screen shows something."""
        deadline = time.monotonic() + PATIENCE
        while re.search(pattern, self.text) is None:
            assert time.monotonic() < deadline, f"never showed {pattern!r} but:\n{self.text}"
            assert self._read(), f"ended without {pattern!r}:\n{self.text}"

    def _read(self) -> bool:
        if not select.select([self.master], [], [], 1.0)[0]:
            return True
        try:
            data = os.read(self.master, 65_536)
        except OSError:  # the other side was closed
            return False
        text = data.decode(errors="replace")
        self.raw += text
        self._rest += text
        while self._rest and (found := TOKEN.match(self._rest)) is not None:
            self._rest = self._rest[found.end() :]
            if found["final"]:
                self._control(found["final"], [int(each or 0) for each in found["numbers"].split(";")])
            elif found["char"]:
                self._char(found["char"])
            elif found[0] == "\x1bM":
                self._char("M", reverse=True)
        return bool(data)

    def _char(self, char: str, *, reverse: bool = False) -> None:
        match char:
            case "\r":
                self.column = 0
            case "\n" if self.row == self.region[1]:
                self._scroll(up=True)
            case "\n":
                self.row += 1
            case "M" if reverse and self.row == self.region[0]:
                self._scroll(up=False)
            case "M" if reverse:
                self.row -= 1
            case "\b":
                self.column -= 1
            case "\t":
                self.column = (self.column // 8 + 1) * 8
            case _ if char.isprintable():
                if 0 <= self.row < len(self.cells) and 0 <= self.column < len(self.cells[0]):
                    self.cells[self.row][self.column] = char
                self.column += 1

    def _scroll(self, *, up: bool) -> None:
        first, last = self.region
        del self.cells[first if up else last]
        self.cells.insert(last if up else first, [" "] * len(self.cells[0]))

    def _control(self, final: str, numbers: list[int]) -> None:
        """One of the sequences that curses uses on xterm; others change no text."""
        count = max(1, numbers[0])
        row = self.cells[self.row] if 0 <= self.row < len(self.cells) else []
        width = len(self.cells[0])
        match final:
            case "H":
                self.row, self.column = count - 1, max(1, numbers[1] if len(numbers) > 1 else 1) - 1
            case "r":
                last = numbers[1] if len(numbers) > 1 else len(self.cells)
                self.region = count - 1, last - 1
                self.row, self.column = 0, 0
            case "S" | "T":
                for _ in range(count):
                    self._scroll(up=final == "S")
            case "d":
                self.row = count - 1
            case "G":
                self.column = count - 1
            case "A" | "B":
                self.row += count if final == "B" else -count
            case "C" | "D":
                self.column += count if final == "C" else -count
            case "J":
                self.cells = [[" "] * width for _ in self.cells] if numbers[0] == 2 else self.cells
                if numbers[0] == 0:
                    row[self.column :] = [" "] * (width - self.column)
                    self.cells[self.row + 1 :] = [[" "] * width for _ in self.cells[self.row + 1 :]]
            case "K" if numbers[0] == 1:
                row[: self.column + 1] = [" "] * (self.column + 1)
            case "K":
                row[self.column :] = [" "] * (width - self.column)
            case "X":
                row[self.column : self.column + count] = [" "] * len(row[self.column : self.column + count])
            case "P":
                row[self.column :] = [*row[self.column + count :], *[" "] * count][: width - self.column]
            case "@":
                row[self.column :] = [*[" "] * count, *row[self.column :]][: width - self.column]
            case "b":
                for _ in range(count):
                    self._char(row[self.column - 1])
            case _:
                pass

    def end(self) -> int:
        """Read until it ends; returns its exit code."""
        while self.process.poll() is None and self._read():
            pass
        return self.process.wait(PATIENCE)


@contextmanager
def watching(server: Serving, **environment: str) -> Iterator[Terminal]:
    """The live view of a server."""
    command = [sys.executable, "-m", "lowwater.cli", "watch", "--address", server.address, "--answer-within", "1s"]
    terminal = Terminal(*command, environment=environment)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)


def test_the_live_view_on_a_terminal(tmp_path: Path) -> None:
    """It shows, explains, filters, follows the size, says that the authority is away and comes back, and quits."""
    (tmp_path / "one").mkdir()
    with Serving(tmp_path / "one" / "data") as server, lowwater.connect(server.address) as lw:
        lw.register("flights")
        lw.register("hourly", inputs=["flights"])
        lease = lw.worker("flights", name="exec-7").claim()
        with watching(server) as terminal:
            terminal.wait_for(r"flights")
            terminal.wait_for(r"exec-7")
            assert "\x1b[3" in terminal.raw, "it is coloured"
            lease.advance(None, oldest=None, frontier=EIGHT)
            terminal.wait_for(r"2013-01-09 08:00 UTC")
            terminal.press("/hou\r")
            terminal.wait_for(r'with "hou" in the name')
            terminal.press("\r")
            terminal.wait_for(r"why hourly \(Esc closes\)\nhourly is unknown: held by hourly all keys")
            terminal.wait_for(r"which no worker ever claimed")
            terminal.press("\x1b")
            terminal.wait_for(r"^(?![\s\S]*Esc closes)")
            terminal.press("\x1b")
            terminal.wait_for(r"2 computations, by lag[\s\S]*flights")
            terminal.resize(8, 30)
            terminal.wait_for(r"COMPUTATION  LAG[\s\S]*hourly[\s\S]*flights[\s\S]*q quit")
            terminal.resize(24, 100)
            server.kill()
            terminal.wait_for(r"NO ANSWER for \d+ s, what follows is as of then: no authority answers")
            terminal.wait_for(r"exec-7")
            server.start()
            terminal.wait_for(r"^(?![\s\S]*NO ANSWER)[\s\S]*exec-7")
            terminal.press("s")
            terminal.wait_for(r"by stood")
            terminal.press("q")
            assert terminal.end() == 0
        assert "Traceback" not in terminal.raw


def test_no_color_is_honoured_and_a_simple_terminal_gets_a_table(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    with Serving(tmp_path / "one" / "data") as server, lowwater.connect(server.address) as lw:
        lw.register("flights")
        with watching(server, NO_COLOR="1") as terminal:
            terminal.wait_for(r"flights")
            assert re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.raw) is None
            terminal.press("q")
            assert terminal.end() == 0
        with watching(server, TERM="dumb") as terminal:
            terminal.wait_for(r"HELD BY")
            terminal.wait_for(r"Ctrl-C ends this")
