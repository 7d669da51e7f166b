"""docs/start/tutorial.md as a reader follows it: every block in the order of the page, each compared with what the page says it prints."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lowwater.cli import main as lowwater

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
        code = compile(block.replace(ADDRESS, self._address), PAGE.name, "exec")
        expect(lambda: exec(code, self._names), text, block)

    def console(self, block: str, _: str) -> None:
        for command, text in COMMAND.findall(block):
            program, *arguments = shlex.split(command)
            assert program == "lowwater"
            expect(partial(lowwater, arguments), text, command)


def expect(run: Callable[[], object], text: str, what: str) -> None:
    """Run it once, and compare what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run()
    seen = printed.getvalue()
    agrees = doctest.OutputChecker().check_output(text, seen, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert agrees, f"{what}\nprints\n{seen}\nand not\n{text}"
