"""The oldest PySpark that attach and tracked stages are made for, and the oldest that a query can be driven on."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.compatibility.environments import clean_environ
from tests.floors.environments import CLIENTS, NOTEBOOK, NotFetchedError, environment
from tests.process.serving import serving

SMOKE = Path(__file__).with_name("smoke.py")
TRACKED = "4.0.5"
"""The newest patch of the oldest PySpark for attach and tracked stages."""
DRIVEN = "4.2.1"
"""The same for drive."""
LOWEST = ("pandas==2.0.0", "pyarrow==15.0.0")
"""The oldest pandas that PySpark 4.0 admits, and the oldest pyarrow that lowwater-spark does."""

# The first time they fetch 450 MB each.
pytestmark = pytest.mark.timeout(1500)


def python_with(pyspark: str, members: tuple[str, ...], *others: str) -> str:
    """The interpreter of an environment; skips, with the reason, where it cannot be had."""
    started = time.monotonic()
    try:
        python = environment(pyspark, members, *others)
    except NotFetchedError as away:
        pytest.skip(f"PySpark {pyspark} cannot be fetched: {away}")
    print(f"the environment was there after {time.monotonic() - started:.1f} s")
    return python


def smoke(python: str, folder: Path, address: str, expected: list[str], steps: list[str]) -> list[str]:
    """Run steps of the program in an environment with these versions; returns what it has shown, line by line."""
    environ = {name: value for name, value in clean_environ().items() if name not in ("SPARK_HOME", "PYSPARK_PYTHON")}
    done = subprocess.run(
        [python, "-I", str(SMOKE), str(folder), address, ",".join(expected), *steps],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**environ, "PYSPARK_PYTHON": python},
        timeout=600,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-10_000:]
    return done.stdout.splitlines()


def test_attach_and_tracked_stages_work_on_their_floor(tmp_path: Path) -> None:
    """With the oldest PySpark, pandas and pyarrow: attach, foreach_batch, state, a plain plan; drive is refused with the reason."""
    python = python_with(TRACKED, CLIENTS, *LOWEST)
    (tmp_path / "authority").mkdir()
    with serving(tmp_path / "authority") as authority:
        expected = [f"pyspark=={TRACKED}", *LOWEST]
        shown = smoke(
            python, tmp_path, authority.address, expected, ["attach", "counted", "windows", "plain", "refused"]
        )
    for what in ("attach:", "foreach_batch:", "stateful:", "start:", "drive: refused"):
        assert any(line.startswith(what) for line in shown), f"{what} was not shown"


@pytest.mark.long
def test_drive_works_on_its_floor(tmp_path: Path) -> None:
    """With the oldest PySpark that tells a source where it goes on from, and the authority that attach starts."""
    shown = smoke(python_with(DRIVEN, NOTEBOOK), tmp_path, "", [f"pyspark=={DRIVEN}"], ["attach", "driven"])
    for what in ("attach:", "drive: Spark's windows follow"):
        assert any(line.startswith(what) for line in shown), f"{what} was not shown"
