"""The other versions of PySpark: the oldest that lowwater is made for, and the newest."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.compatibility.environments import clean_environ
from tests.floors.environments import CLIENTS, NOTEBOOK, NotFetchedError, environment
from tests.kit.program import run_program
from tests.process.serving import serving

SMOKE = Path(__file__).with_name("smoke.py")
FLOOR = "4.0.5"
"""The newest patch of the oldest PySpark."""
BETWEEN = "4.1.1"
"""The newest patch of the line after it, which is the newest line with a connector for Iceberg."""
NEWEST = "4.3.0"
"""The newest that `spark_listener/pyproject.toml` admits."""
LOWEST = ("pandas==2.0.0", "pyarrow==15.0.0")
"""The oldest pandas that PySpark 4.0 admits, and the oldest pyarrow that lowwater-spark does."""

# The first time they fetch 450 MB each.
pytestmark = pytest.mark.timeout(1500)


def python_with(pyspark: str, members: tuple[str, ...], *others: str) -> str:
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
    done = run_program(
        [python, "-I", str(SMOKE), str(folder), address, ",".join(expected), *steps],
        cwd=folder,
        env={**environ, "PYSPARK_PYTHON": python},
        timeout=600,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-10_000:]
    return done.stdout.splitlines()


TRACKS = ("attach", "counted", "windows", "plain")
TRACKS_SHOW = ("attach:", "foreach_batch:", "stateful:", "start:")
DRIVES = ("driven", "behind", "refused")
DRIVES_SHOW = ("drive: Spark's windows follow", "behind:", "drive: refused")


def check(shown: list[str], *whats: str) -> None:
    for what in whats:
        assert any(line.startswith(what) for line in shown), f"{what} was not shown"


@pytest.mark.parametrize(("steps", "shows"), [(TRACKS, TRACKS_SHOW), (DRIVES, DRIVES_SHOW)])
def test_it_works_on_its_floor(tmp_path: Path, steps: tuple[str, ...], shows: tuple[str, ...]) -> None:
    """What is driven has a source of its own time, so it runs by itself."""
    python, expected = python_with(FLOOR, CLIENTS, *LOWEST), [f"pyspark=={FLOOR}", *LOWEST]
    (tmp_path / "authority").mkdir()
    with serving(tmp_path / "authority") as authority:
        shown = smoke(python, tmp_path, authority.address, expected, [*steps])
    check(shown, *shows)


@pytest.mark.long  # drive() refuses joins there, until this has run
def test_a_driven_join_keeps_every_row_on_its_floor(tmp_path: Path) -> None:
    python, expected = python_with(FLOOR, CLIENTS, *LOWEST), [f"pyspark=={FLOOR}", *LOWEST]
    (tmp_path / "authority").mkdir()
    with serving(tmp_path / "authority") as authority:
        check(smoke(python, tmp_path, authority.address, expected, ["one_sided"]), "one-sided:")


@pytest.mark.long  # every test of Spark runs on 4.2, which has the same data sources as the newest
@pytest.mark.parametrize(
    ("steps", "shows"), [(("attach", "driven"), ("attach:", "drive: Spark's windows follow")), (TRACKS, TRACKS_SHOW)]
)
def test_it_works_on_the_newest(tmp_path: Path, steps: tuple[str, ...], shows: tuple[str, ...]) -> None:
    """Here attach starts the authority. What is driven has a source of its own time, so it runs by itself."""
    check(smoke(python_with(NEWEST, NOTEBOOK), tmp_path, "", [f"pyspark=={NEWEST}"], [*steps]), *shows)
