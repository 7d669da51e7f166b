"""The client under test: a program that takes commands on its standard input, one JSON object a line. docs/reference/protocol.md lists them."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

PATIENCE: Final = 30.0
"""Seconds that a command may take: a client waits for seconds before it tries again."""


class Broken(Exception):
    """The client under test did what it must not, or not what it has to; the message says what was expected."""


class Pending:
    """A command that was sent."""

    def __init__(self, program: Program, command: dict[str, Any]) -> None:
        self._program = program
        self._command = command
        self.answer: dict[str, Any] | None = None

    def result(self, within: float = PATIENCE) -> dict[str, Any]:
        """Wait for the answer: what the client tells of it, when it has worked.

        Raises Broken for an error.
        """
        answer = self._answered(within)
        if "error" in answer:
            raise Broken(f"{self._command} was expected to work, but the client says {answer}")
        result = answer.get("ok", {})
        return result if isinstance(result, dict) else {}

    def error(self, *expected: str, within: float = PATIENCE) -> str:
        """Wait for the answer, which has to be one of some errors."""
        answer = self._answered(within)
        if answer.get("error") not in expected:
            raise Broken(
                f"{self._command} was expected to fail with {' or '.join(expected)}, but the client says {answer}"
            )
        return str(answer["error"])

    def outcome(self, within: float = PATIENCE) -> str:
        """Wait for the answer, whatever it is: the error, or nothing."""
        return str(self._answered(within).get("error", ""))

    def comes(self, within: float) -> bool:
        """Return True if the answer comes in so many seconds."""
        with self._program.changed:
            return self._program.changed.wait_for(lambda: self.answer is not None, within)

    def _answered(self, within: float) -> dict[str, Any]:
        self._program.until(lambda: self.answer is not None, f"an answer to {self._command}", within)
        assert self.answer is not None
        return self.answer


class Program:
    """One process of the client under test."""

    def __init__(self, command: Sequence[str]) -> None:
        self.changed = threading.Condition()
        self.shown: list[tuple[str, int, int]] = []
        """The low watermarks that the client has shown: the name, the incarnation, the low
        watermark."""
        self._pending: deque[Pending] = deque()
        self._ended = False
        self._problem = ""
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, do: str, **fields: object) -> Pending:
        """Send a command."""
        command = {"do": do, **fields}
        pending = Pending(self, command)
        with self.changed:
            self._pending.append(pending)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Broken(f"the client ended before {command}: {error}") from None
        return pending

    def do(self, do: str, **fields: object) -> dict[str, Any]:
        """Send a command, which has to work."""
        return self.start(do, **fields).result()

    def until(self, condition: Callable[[], object], what: str, within: float = PATIENCE) -> None:
        """Wait for something that the client tells. Raises Broken."""
        with self.changed:
            self.changed.wait_for(lambda: condition() or self._ended or self._problem, within)
            if self._problem:
                raise Broken(self._problem)
            if not condition():
                raise Broken(
                    f"{what} was expected, but {'the client ended' if self._ended else f'nothing came in {within:g} s'}"
                )

    def until_seen(self, name: str, low: int) -> None:
        """Wait until the client has shown a low watermark."""
        self.until(
            lambda: any(line[0] == name and line[2] == low for line in self.shown),
            f"the client to show {low} of {name}",
        )

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(5)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self.changed:
                self._take(line)
                self.changed.notify_all()
        with self.changed:
            self._ended = True
            self.changed.notify_all()

    def _take(self, line: str) -> None:
        try:
            message = json.loads(line)
            if "seen" in message:
                value = message["seen"]
                self.shown.append((value["name"], value["incarnation"], value["low"]))
                return
            if "ok" not in message and "error" not in message:
                raise KeyError("ok")
            self._pending.popleft().answer = message
        except (ValueError, KeyError, TypeError, IndexError) as error:
            self._problem = f"a line of JSON with ok, error or seen was expected, once for each command, but the client wrote {line!r}: {error!r}"
