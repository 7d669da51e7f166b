"""Runs `tests/iceberg` where Iceberg can be had: its newest runtime is made for the Spark before the one of `uv.lock`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.compatibility.environments import ROOT, clean_environ
from tests.floors.environments import NOTEBOOK, NotFetchedError, environment
from tests.floors.test_floor import BETWEEN
from tests.kit.program import run_program

TOOLS = ("hypothesis", "pandas<3", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "redis", "trustme")

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.parametrize("which", ["not long", pytest.param("long", marks=pytest.mark.long)])
def test_tables_of_iceberg_are_tracked_and_written(tmp_path: Path, which: str) -> None:
    locked = (ROOT / "uv.lock").read_text(encoding="utf-8")
    pinned = [
        f"{tool}=={match[1]}"
        if (match := re.search(rf'^name = "{tool}"\nversion = "(.+)"$', locked, re.MULTILINE))
        else tool
        for tool in TOOLS
    ]
    try:
        python = environment(BETWEEN, NOTEBOOK, *pinned, name="iceberg")
    except NotFetchedError as away:
        pytest.skip(f"PySpark {BETWEEN} cannot be fetched: {away}")
    environ = {name: value for name, value in clean_environ().items() if name not in ("SPARK_HOME", "PYSPARK_PYTHON")}
    done = run_program(
        [
            *(python, "-m", "pytest", "tests/iceberg", "-m", which, "-p", "no:cacheprovider", "--basetemp"),
            str(tmp_path / "iceberg"),
        ],
        cwd=ROOT,
        env={**environ, "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    print(done.stdout[-20_000:])
    assert done.returncode == 0, done.stderr[-10_000:]
