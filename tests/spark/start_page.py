"""docs/start/tutorial.md as a reader follows it: every block in the order of the page, each compared with what the page says it prints."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lowwater.cli import main as lowwater
from tests.kit.eventually import eventually

PAGE = Path(__file__).parents[2] / "docs/start/tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
"""A command of a console, and what it prints."""
ADDRESS = "localhost:7420"


class Reader:
    """Does what the page says: in one Python, and in a shell in the same folder."""

    def __init__(self, serve: Callable[[Sequence[str]], str]) -> None:
        """``serve`` runs ``lowwater`` with these arguments, on a port that is free, and returns the address."""
        self._serve = serve
        self._names: dict[str, Any] = {"__name__": PAGE.stem}
        self._address = ""

    def follow(self) -> None:
        blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
        followed = [*blocks[1:], ("", "")]
        for (language, block), (after, text) in zip(blocks, followed, strict=True):
            if language != "text":
                getattr(self, language)(block, text if after == "text" else "")

    def sh(self, block: str, _: str) -> None:
        """The authority."""
        program, *arguments = shlex.split(block)
        assert program == "lowwater"
        self._address = os.environ["LOWWATER_ADDRESS"] = self._serve(arguments)

    def python(self, block: str, text: str) -> None:
        patient = block.replace("timeout=60", "timeout=300")  # a busy machine takes longer than a reader's
        code = compile(patient.replace(ADDRESS, self._address), PAGE.name, "exec")

        def run() -> None:
            exec(code, self._names)

        # Spark tells its listeners of a batch some time later; a reader who sees too little looks again.
        expect(run, text, block, again=block.startswith("print(") and block.count("\n") == 1)

    def console(self, block: str, _: str) -> None:
        for command, text in COMMAND.findall(block):
            program, *arguments = shlex.split(command)
            assert program == "lowwater"

            def run(arguments: list[str] = arguments) -> None:
                lowwater(arguments)

            expect(run, text, command, again=True)


def expect(run: Callable[[], None], text: str, what: str, *, again: bool) -> None:
    """Run what prints that, repeatedly if it only looks."""
    last = ""

    def prints() -> bool:
        nonlocal last
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run()
        last = printed.getvalue()
        return doctest.OutputChecker().check_output(text, last, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)

    if again:
        with contextlib.suppress(AssertionError):
            eventually(prints, what, seconds=60)
            return
    assert prints(), f"{what}\nprints\n{last}\nand not\n{text}"
