"""Where the time of a run went, and which tests failed: what a run prints last, and what ``.ci/run`` reads."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

SLOWEST = 10
"""Number of single tests that are named with their time."""

FAILURES = Path("build/failed-tests.txt")
"""Node ids of the tests that failed, one a line, below the root. Only a run that ran all of its tests leaves this file."""

SECONDS = Path("build/test-seconds.tsv")
"""Seconds of every test with set-up and teardown, one a line behind its node id, below the root."""


def folder(nodeid: str) -> str:
    """Return the folder that a test is counted under: ``tests/unit``; doctests count under their distribution."""
    parts = nodeid.partition("::")[0].split("/")
    return "/".join(parts[:2]) if parts[0] == "tests" and len(parts) > 2 else parts[0]


def pytest_configure(config: pytest.Config) -> None:
    """Add up in the process that starts the others, which hears of every test."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(config.rootpath))


class Durations:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: dict[str, None] = {}
        self._session: pytest.Session | None = None
        (root / FAILURES).unlink(missing_ok=True)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session, whose exit status other plugins may still change after the last test."""
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._seconds or self._session is None:
            return
        (self._root / FAILURES).parent.mkdir(exist_ok=True)
        if self._session.exitstatus == pytest.ExitCode.TESTS_FAILED:
            (self._root / FAILURES).write_text("".join(f"{nodeid}\n" for nodeid in self._failed))
        (self._root / SECONDS).write_text("".join(f"{nodeid}\t{t:.3f}\n" for nodeid, t in self._seconds.items()))
        tests = Counter(folder(nodeid) for nodeid in self._seconds)
        if len(self._seconds) <= SLOWEST:
            return
        terminalreporter.section(f"slowest {SLOWEST} tests, then all by folder")
        for nodeid, seconds in sorted(self._seconds.items(), key=lambda one: -one[1])[:SLOWEST]:
            terminalreporter.write_line(f"{seconds:8.1f} s  {nodeid}")
        folders = {name: sum(s for nodeid, s in self._seconds.items() if folder(nodeid) == name) for name in tests}
        for name, seconds in sorted(folders.items(), key=lambda one: -one[1]):
            terminalreporter.write_line(f"{seconds:8.1f} s  {name}: {tests[name]} tests")
