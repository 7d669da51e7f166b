"""The conformance suite: our client and our authority pass it, and it finds what is planted in either."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from conformance.__main__ import check_authority, check_client, main
from conformance.authority_checks import CHECKS
from conformance.client_scenarios import SCENARIOS
from conformance.python_client import Commands
from tests.process import faulty_client
from tests.process.exchanges import PAGE
from tests.process.faulty_authority import FAULTS, Fault, FaultyChannel
from tests.process.serving import Serving, serving

PYTHON = sys.executable


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("conformance")) as one:
        yield one


def test_the_client_in_python_does_what_a_client_has_to_do() -> None:
    lines: list[str] = []
    assert check_client([PYTHON, "-m", "conformance.python_client"], SCENARIOS, lines.append) == [], "\n".join(lines)
    assert len(lines) == len(SCENARIOS)


def test_the_authority_does_what_an_authority_has_to_do(server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["authority", "--address", server.address])
    output = capsys.readouterr().out
    assert code == 0, output
    assert f"{len(CHECKS)} of {len(CHECKS)} passed" in output


def test_faults_of_a_client_are_found() -> None:
    def find(fault: str) -> None:
        _, name = faulty_client.FAULTS[fault]
        lines: list[str] = []
        scenarios = [scenario for scenario in SCENARIOS if scenario.name == name]
        failed = check_client([PYTHON, "-m", "tests.process.faulty_client", fault], scenarios, lines.append)
        assert failed == [name], (fault, lines)
        assert "expected" in lines[0].partition("\n")[2]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(find, faulty_client.FAULTS))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name == "watch" else name for name in FAULTS]
)
def test_a_fault_of_an_authority_is_found(server: Serving, name: str) -> None:
    lines: list[str] = []
    with grpc.insecure_channel(server.address) as channel:
        faulty: Any = FaultyChannel(channel, FAULTS[name]())
        assert check_authority(faulty, [check for check in CHECKS if check.name == name], lines.append) == [name], lines
    assert "expected" in lines[0]


def test_the_channel_alone_is_no_fault(server: Serving) -> None:
    lines: list[str] = []
    with grpc.insecure_channel(server.address) as channel:
        plain: Any = FaultyChannel(channel, Fault({}))
        assert check_authority(plain, [check for check in CHECKS if check.name in FAULTS], lines.append) == [], lines


def test_a_program_that_answers_nonsense_or_ends_is_told_of(tmp_path: Path) -> None:
    for text, words in (("print('nonsense', flush=True); input(); input()", "a line of JSON"), ("", "ended")):
        script = tmp_path / "client.py"
        script.write_text(text)
        lines: list[str] = []
        assert check_client([PYTHON, str(script)], SCENARIOS[:1], lines.append)
        assert words in lines[0]


def test_a_name_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run([PYTHON, "-m", "conformance", "client", "--list"], capture_output=True, text=True, check=True)
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [scenario.name for scenario in SCENARIOS]
    with pytest.raises(SystemExit):
        main(["authority", "--only", "nothing"])
    assert "--list" in capsys.readouterr().err


def test_the_page_lists_the_commands_of_a_client() -> None:
    section = PAGE.read_text().partition("\n### A client\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, re.MULTILINE)
    listed = {name: re.findall(r"`(\w+)`", fields) for name, fields in rows if name != "do"}
    methods = {name: method for name, method in vars(Commands).items() if name[0] != "_" and callable(method)}
    assert listed == {
        name: ["as" if field == "label" else field for field in inspect.signature(method).parameters if field != "self"]
        for name, method in methods.items()
    }
