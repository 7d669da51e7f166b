"""docs/start.md: every block is run, in the order of the page, and prints what the page says."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lowwater.cli import main
from tests.kit.eventually import eventually
from tests.process.serving import Serving

pytestmark = pytest.mark.timeout(1200)

PAGE = Path(__file__).parents[2] / "docs/start.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
"""A command of a console, and what it prints."""
ADDRESS = "localhost:7420"


class Reader:
    """Does what the page says: in one Python, and in a shell in the same folder."""

    def __init__(self, serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
        self._serving = serving
        self._monkeypatch = monkeypatch
        self._names: dict[str, Any] = {"__name__": PAGE.stem}

    def sh(self, block: str, _: str) -> None:
        """The authority, on a port that is free."""
        assert shlex.split(block) == ["lowwater", "serve", *self._serving.journal()]
        self._serving.start()
        self._monkeypatch.setenv("LOWWATER_ADDRESS", self._serving.address)

    def python(self, block: str, said: str) -> None:
        patient = block.replace("timeout=60", "timeout=300")  # a busy machine takes longer than a reader's
        code = compile(patient.replace(ADDRESS, self._serving.address), PAGE.name, "exec")

        def run() -> None:
            exec(code, self._names)

        # Spark tells its listeners of a batch some time later; a reader who sees too little looks again.
        expect(run, said, block, again=block.startswith("print(") and block.count("\n") == 1)

    def console(self, block: str, _: str) -> None:
        for command, said in COMMAND.findall(block):
            program, *arguments = shlex.split(command)
            assert program == "lowwater"

            def run(arguments: list[str] = arguments) -> None:
                main(arguments)

            expect(run, said, command, again=True)


def expect(run: Callable[[], None], said: str, what: str, *, again: bool) -> None:
    """Run what prints that, repeatedly if it only looks."""
    last = ""

    def prints() -> bool:
        nonlocal last
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run()
        last = printed.getvalue()
        return doctest.OutputChecker().check_output(said, last, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)

    if again:
        with contextlib.suppress(AssertionError):
            eventually(prints, what, seconds=60)
            return
    assert prints(), f"{what}\nprints\n{last}\nand not\n{said}"


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    serving = Serving(Path("authority"))
    yield Reader(serving, monkeypatch)
    serving.stop()


def test_every_block_runs_and_prints_what_the_page_says(spark: SparkSession, reader: Reader) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    followed = [*blocks[1:], ("", "")]
    for (language, block), (after, said) in zip(blocks, followed, strict=True):
        if language != "text":
            getattr(reader, language)(block, said if after == "text" else "")
    assert not spark.streams.active, "the page stops what it has started"
