"""A run whose tests have not run does not pass, also when the processes that should have run them are gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.program import run_program

ROOT = Path(__file__).parents[2]

CONFTEST = """
import os, signal

def pytest_sessionfinish():
    if os.environ.get("DIES") and os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        os.kill(os.getpid(), signal.SIGKILL)
"""

NOTHING_RUNS = """
def pytest_runtestloop(session):
    return True
"""


def run(folder: Path, *options: str, dies: bool = False, conftest: str = CONFTEST) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(conftest)
    for i in range(2):
        (folder / f"test_{i}.py").write_text("def test_passes(): pass\n")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-loadscope-reorder --max-worker-restart=0\n")
    plugins = [f"-p{name}" for name in ("xdist", "tests.side_by_side", "tests.checkout", "no:cacheprovider")]
    command = [sys.executable, "-m", "pytest", *plugins, *options]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {"DIES": "yes" * dies, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return run_program(command, cwd=folder, env=env, timeout=100)


def test_a_run_fails_that_has_lost_a_process_of_its_own(tmp_path: Path) -> None:
    """Without the care it passes: pytest-xdist knows of no test that failed."""
    done = run(tmp_path, "-n", "2", dies=True)
    assert "worker gw1 crashed" in done.stdout
    assert done.returncode == pytest.ExitCode.INTERNAL_ERROR, done.stdout


def test_a_run_fails_in_which_no_test_has_run(tmp_path: Path) -> None:
    done = run(tmp_path, conftest=NOTHING_RUNS)
    assert "collected 2 items" in done.stdout
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout


LEAVES_A_FILE = """
def pytest_runtest_teardown(item):
    item.path.with_name("left").touch()
"""


def test_a_run_fails_that_leaves_a_file_in_the_checkout(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    done = run(tmp_path, "-n", "2", conftest=LEAVES_A_FILE)
    assert "the run left 1 files in the checkout: left." in done.stdout, done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert run(tmp_path).returncode == pytest.ExitCode.OK, "what stood there before is no fault of the run"
