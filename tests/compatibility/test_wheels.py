"""The built wheels, installed where there is nothing else of the project, and no PySpark."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.compatibility.environments import Environment, clean_environ
from tests.compatibility.running import Installed, run
from tests.kit.program import run_program


def command(environment: Environment, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_program([environment.lowwater, *arguments], cwd=folder, env=clean_environ())


def test_an_installed_command_serves_an_installed_client(installed: Environment, tmp_path: Path) -> None:
    assert not {"pyspark", "pandas", "pyarrow"} & installed.versions().keys()
    with Installed(installed, tmp_path / "data") as server:
        run(installed.python, "sync", server.address, "n")
        done = command(installed, "status", "--address", server.address, folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "n/enriched" in done.stdout
        assert server.stop() == 0


def test_the_command_of_the_client_alone(newest_client: Environment, tmp_path: Path) -> None:
    version = newest_client.versions()["lowwater"]
    assert command(newest_client, "--version", folder=tmp_path).stdout == f"lowwater {version}\n"
    done = command(newest_client, "--help", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "lowwater serve" in done.stdout
    done = command(newest_client, "serve", folder=tmp_path)
    assert done.returncode != 0
    assert "lowwater-authority" in done.stderr, "it says what is missing"
