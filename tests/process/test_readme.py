"""README's lines for a program and for the service do what README says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lowwater_authority.commands.serve_arguments import parser
from tests.process.serving import Serving

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PROGRAM = re.compile(r"^```python\n(.*?)^```\n\n^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_program_prints_what_readme_says(server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    [(program, printed)] = PROGRAM.findall(README)
    assert "localhost:7420" in program
    exec(compile(program.replace("localhost:7420", server.address), "README.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_the_command_of_the_service_is_taken() -> None:
    (command,) = re.findall(r"^lowwater serve (.*)$", README, re.MULTILINE)
    assert parser().parse_args(shlex.split(command)).data == Path("lowwater-data")
