"""The rules of every test run: order, marks, and which skips are allowed."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent

pytest_plugins = ["tests.checkout", "tests.durations", "tests.side_by_side"]

# Cheap first: a broken rule shows before any process or JVM is started. Then what takes longest in one piece, so that the
# processes that share the run end together.
ORDER = (
    *("unit", "property", "contract", "simulation"),
    *(
        *("cluster", "integrations", "pipeline", "floors", "iceberg", "spark", "compatibility", "container"),
        *("chart", "browser", "monitoring", "guard", "process"),
    ),
)
# A folder whose tests all start something expensive marks them by itself.
MARKED = {
    **dict.fromkeys(("process", "browser", "monitoring", "guard", "integrations", "pipeline"), "process"),
    **dict.fromkeys(("compatibility", "container", "chart"), "process"),
    **dict.fromkeys(("spark", "floors", "iceberg", "cluster"), "spark"),
}

# Every reason for which a test may be skipped. Any other skip fails.
ALLOWED_SKIPS = (
    "the floor of grpcio has no wheel for Python 3.14 or newer",
    "cannot be fetched",  # the other PySparks of tests/floors
    "zsh is not installed",
    "fish is not installed",
    "they are written with 3.11",  # the pages that argparse lays out
    "buildah, mmdebstrap and root are needed",  # tests/container/test_engine.py
    "no process can be the first one of a namespace here",  # tests/process/test_early_stops.py
)

# Spark's Python workers are the interpreter of the tests, also when the environment is not activated.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

# Two busy cores: a slow example is no defect. A failure prints how to repeat it.
settings.register_profile(
    "lowwater", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("lowwater")


def folder(item: pytest.Item) -> str:
    return item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if folder(item) in MARKED:
            item.add_marker(MARKED[folder(item)])
    items.sort(key=lambda item: ORDER.index(folder(item)) if folder(item) in ORDER else -1)


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(allowed in reason for allowed in ALLOWED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"{reason}\nA skip needs a reason from ALLOWED_SKIPS in tests/conftest.py."


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, Any]:
    report = yield
    refuse_skip(report)
    return report


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """The logging of the test run as it was: what runs a server in this process has it log to a stream that ends with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
