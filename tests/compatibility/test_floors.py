"""The lowest and the highest versions of what the distributions need."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import lowwater
from tests.compatibility.environments import ROOT, Environment, clean_environ
from tests.compatibility.running import Installed, run
from tests.kit.eventually import eventually
from tests.kit.program import run_program
from tests.process.browsing import ask
from tests.process.page_process import PageProcess
from tests.process.serving import Serving

CLIENTS = ("sync", "aio")


def floors(member: str) -> dict[str, str]:
    project = tomllib.loads((ROOT / member / "pyproject.toml").read_text())["project"]
    matches = map(re.compile(r"([\w-]+)>=([\d.]+)").match, project["dependencies"])
    return {match[1]: match[2] for match in matches if match}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def check_floors(environment: Environment, member: str) -> None:
    """The environment has the floors; with a newer Python perhaps the first versions that have a wheel for it."""
    installed = environment.versions()
    for name, floor in floors(member).items():
        lead = numbers(installed[name])[: len(numbers(floor))]
        assert lead >= numbers(floor), name
        if sys.version_info < (3, 12):
            assert lead == numbers(floor), name


def import_alone(environment: Environment) -> None:
    run = "import lowwater, lowwater.aio, sys; assert not {'numpy', 'pyspark', 'lowwater_authority'} & set(sys.modules)"
    command = [environment.python, "-I", "-W", "error", "-c", run]
    done = run_program(command, env=clean_environ())
    assert (done.returncode, done.stderr) == (0, "")


def test_the_client_works_under_its_floors(lowest_client: Environment, current: Serving) -> None:
    check_floors(lowest_client, "client")
    import_alone(lowest_client)
    run(lowest_client.python, "aio", current.address, "lowest")


def test_the_authority_serves_under_its_floors(lowest: Environment, tmp_path: Path) -> None:
    for member in ("server", "authority"):
        check_floors(lowest, member)
    with Installed(lowest, tmp_path / "data") as server:
        for kind in CLIENTS:
            run(sys.executable, kind, server.address, kind)
        server.kill()
        # What it wrote is also read under its floors.
        server.start()
        assert server.stop() == 0


def test_regions_write_and_read_their_journal_under_their_floors(lowest: Environment) -> None:
    check_floors(lowest, "regions")
    code = """
from lowwater_regions import region, serve
from lowwater_regions.change import Change, decode
from lowwater_regions.reference import LOCAL, Move, Reference
change = Change((Reference("hourly", ("clicks",), ("A", "B"), LOCAL, "A", move=Move("B")),))
assert decode(change.encode()) == change
"""
    command = [lowest.python, "-I", "-c", code]
    done = run_program(command, env=clean_environ())
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_serves_alone_under_its_floors(lowest_page: Environment, current: Serving, tmp_path: Path) -> None:
    check_floors(lowest_page, "page")
    assert "lowwater-authority" not in lowest_page.versions()
    with lowwater.connect(current.address) as lw:
        lw.register("floors/shown")
    with PageProcess(tmp_path, current.address, python=lowest_page.python) as page:
        # Until it has reached the authority, nobody can tell who may look: 503.
        eventually(lambda: b"floors/shown" in ask(page.page, "api/snapshot").body)
        assert page.stop() == 0
