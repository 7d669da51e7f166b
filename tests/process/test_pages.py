"""The blocks of the pages: programs and commands that need no Spark are run, and all others are what the product takes."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowwater_authority.access.policy import Access
from lowwater_authority.promises import Promises
from lowwater_page.process import parser as page_parser
from lowwater_pipeline.command import parser as pipeline_parser
from lowwater_spark.command import parser as sidecar_parser
from lowwater_spark.sidecar.declaration import Declaration
from lowwater_spark.sidecar.pipeline import Pipeline
from scripts.generate_cli import whole
from tests.kit.program import run_program
from tests.process.serving import Serving
from tests.unit.test_docs import PAGES, ROOT, name

BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
SHELLS = ("sh", "bash", "console")
PROGRAMS = {
    "lowwater": whole,
    "lowwater-page": page_parser,
    "lowwater-pipeline": pipeline_parser,
    "lowwater-spark": sidecar_parser,
}
ASIDE = re.compile(r"(^|\s)(#.*|\d?>&\d|\d?[<>]\s*[^\s'\"]+)")
"""A comment or a redirection."""
VARIABLES = {"$start": "2013-01-09T13:00Z", "$end": "2013-01-09T14:00Z"}
"""What the variables of a shell block stand for."""


def blocks(page: Path, *languages: str) -> list[str]:
    return [block for language, block in BLOCK.findall(page.read_text("utf-8")) if language in languages]


def lines(page: Path) -> Iterator[str]:
    for language, block in BLOCK.findall(page.read_text("utf-8")):
        text = block.replace("\\\n", " ")
        if language in {"sh", "bash"}:
            yield from text.splitlines()
        elif language == "console":
            yield from re.findall(r"^\$ (.+)$", text, re.MULTILINE)


def calls(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line, also of those that a shell or a pod is given."""
    lexer = shlex.shlex(ASIDE.sub(" ", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    for token in [*lexer, ";"]:
        if set(token) - set("();|&"):
            words.append(token)
            continue
        given = [word for word in words if " " in word and re.search(r"\blowwater \w", word)]
        while words and re.fullmatch(r"\w+=.*|exec|time", words[0]):
            del words[0]
        if words[:1] == ["kubectl"] and "--" in words:
            del words[: words.index("--") + 1]
        elif words[:2] == ["docker", "run"]:
            words = ["lowwater", *re.split(r" lowwater:\d\S* ?", " ".join(words))[-1].split()]
        if words:
            yield words
        for script in given:
            yield from calls(script)
        words = []


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, *SHELLS)], ids=name)
def test_every_command_is_taken(page: Path) -> None:
    done = run_program(["bash", "-nc", "\n".join(lines(page))])
    assert (done.returncode, done.stderr) == (0, "")
    made = (ROOT / "Makefile").read_text("utf-8")
    for program, *arguments in (call for line in lines(page) for call in calls(line)):
        if program in PROGRAMS and arguments:
            PROGRAMS[program]().parse_args([VARIABLES.get(word, word) for word in arguments])
        elif program == "make":
            for word in arguments:
                assert re.search(rf"^{word}:|\$\(({word.partition('=')[0]})\b", made, re.MULTILINE), word
        elif program == "python" and arguments[0] == "-m" and arguments[1] != "pip":
            spec = importlib.util.find_spec(arguments[1])
            assert spec is not None
            assert spec.origin is not None
            source = "".join(path.read_text("utf-8") for path in Path(spec.origin).parent.rglob("*.py"))
            for option in (word for word in arguments[2:] if word.startswith("--") and word != "--help"):
                assert option in source or option.strip("-").replace("-", "_") in source, option


def test_settings_are_taken(tmp_path: Path) -> None:
    taken = set()
    for text in (text for page in PAGES for text in blocks(page, "toml")):
        (kind,) = {"principal", "promise", "query", "pipeline"} & tomllib.loads(text).keys()
        taken.add(kind)
        if kind == "principal":
            digest = "<64 hexadecimal digits>"
            Access.parse(text.replace(digest, "0" * 64, 1).replace(digest, "1" * 64).encode(), "page")
        elif kind == "promise":
            Promises.parse(text.encode(), "page")
        elif kind == "pipeline":
            for pipeline in tomllib.loads(text)["pipeline"]:
                Pipeline.parse(pipeline)
        else:
            for query in tomllib.loads(text)["query"]:
                Declaration.parse(query)
    assert len(taken) == 4
    for text in (text for page in PAGES for text in blocks(page, "json")):
        assert json.loads(text)
    (tmp_path / "prometheus.yml").write_text(block("docs/operate/monitoring.md", "scrape_configs"))
    done = run_program(["promtool", "check", "config", "--syntax-only", str(tmp_path / "prometheus.yml")])
    assert done.returncode == 0, done.stdout + done.stderr


ENDLESS = re.compile(r"\blw\.(watch|intervals)\(|\.watch\(\)|tasks\.take\(")
AUTHORITY = re.compile(r"(localhost|shard-0):7420(,shard-1:7420)?")


class Reader:
    """Pastes blocks into Python and into a shell, each once. What they print is in ``printed``."""

    def __init__(self, address: str, folder: Path) -> None:
        self.printed = ""
        self._address = address
        self._folder = folder
        path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environ = {**os.environ, "PATH": path}

    def python(self, block: str, *before: str) -> None:
        """Run a block, after other lines. One that waits for more without end is stopped after its first line."""
        code = AUTHORITY.sub(self._address, "".join([*before, block]))
        if not ENDLESS.search(block):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "page", "exec"), {})
            self.printed = printed.getvalue()
            return
        with subprocess.Popen(
            [sys.executable, "-uc", code], env=self._environ, stdout=subprocess.PIPE, text=True
        ) as run:
            assert run.stdout is not None
            self.printed = run.stdout.readline()
            run.kill()
        assert self.printed, f"this ended before it printed:\n{block}"

    def sh(self, block: str) -> None:
        done = run_program(["bash", "-euc", block], env=self._environ, cwd=self._folder)
        assert done.returncode == 0, block + done.stderr
        self.printed = done.stdout

    def program(self, name: str, line: str) -> None:
        """Have a program that a page leaves to its reader."""
        path = self._folder / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)


@pytest.fixture
def reader(server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.setenv("LOWWATER_ADDRESS", server.address)
    return Reader(server.address, tmp_path)


def block(page: str, text: str) -> str:
    """Return the block of a page that has a text."""
    found: list[str] = [block for _, block in BLOCK.findall((ROOT / page).read_text("utf-8")) if text in block]
    assert len(found) == 1
    return found[0]


def test_the_program_of_readme_and_what_asks_about_it(reader: Reader) -> None:
    reader.python(block("README.md", "lowwater.connect"))
    assert reader.printed == block("README.md", "00:00Z\n") == "2013-01-09T14:00:00Z\n"
    reader.python(block("client/README.md", "lw.why"))
    assert reader.printed.startswith("hourly is at ")
    reader.program("upload.py", "print('uploads')")
    assert block("README.md", "upload.py") == block("docs/operate/schedule.md", "upload.py 13")
    reader.sh(block("README.md", "upload.py"))
    assert reader.printed == "uploads\nsales is at 2013-01-09T14:00:00Z\n"
    reader.sh(block("docs/operate/schedule.md", "upload.py 14"))
    assert reader.printed == "uploads\nsales is at 2013-01-09T15:00:00Z\n"
    reader.program("spark-submit", "echo starts $*")
    reader.sh(block("docs/operate/schedule.md", "lowwater wait"))
    assert reader.printed.endswith("starts report.py 2013-01-09T13:00Z\n")
    reader.program("close-the-day", "cat")
    reader.sh(block("docs/operate/schedule.md", "lowwater tasks create-group"))
    reader.python(
        block("docs/operate/schedule.md", 'tasks.create_group("daily"'),
        *("def close(at, until): return at\n", "def write(path, rows): print(rows)\n"),
    )
    assert reader.printed == "2013-01-02T00:00:00Z\n", "the shell has closed the first day"
    reader.sh(block("monitoring/runbooks/pipeline.md", "lowwater why"))
    assert reader.printed.startswith("hourly is at ")


def test_the_page_of_the_client_in_its_order_and_a_cut(reader: Reader) -> None:
    for program in blocks(ROOT / "docs/reference/client.md", "python"):
        reader.python(program)
        if said := re.findall(r"print\(.*\)  # (\d.*|False)$", program, re.MULTILINE):
            assert reader.printed.splitlines()[: len(said)] == said
    reader.python(block("docs/operate/scale.md", "from lowwater import connect"))
    assert reader.printed == "unknown\n"
    for command, text in re.findall(
        r"^\$ (.+)\n((?:[^$].*\n)*)", block("docs/operate/scale.md", "slices split"), re.MULTILINE
    ):
        reader.sh(command)
        assert reader.printed == text


def test_the_faults_of_a_pipeline_are_those_of_the_page(tmp_path: Path) -> None:
    page = "docs/concepts/computations.md"
    right, wrong = (f'Input("counts", key="query", event_time="{time}")' for time in ("start", "at"))
    (tmp_path / "zeitgeist.py").write_text(block(page, '"""zeitgeist.py').replace(right, wrong))
    done = run_program(["lowwater-pipeline", "graph", "zeitgeist"], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "lowwater-pipeline: " + block(page, "cannot run:"))
