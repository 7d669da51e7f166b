"""Several processes share one run of the tests (pytest-xdist)."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/compatibility/", "tests/cluster/")
"""Folders whose files share what takes long to make, or is not to be made twice at a time: one process runs all of such a folder."""


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Hands out file by file, or folder by folder, in the order of the run, to whichever process is free."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in TOGETHER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler:
    """Takes the place of ``--dist``."""
    return Scheduler(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Watch the processes of a run, from the one that starts them."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Verdict())


class Verdict:
    """Makes a run fail that has not run its tests.

    Processes are not replaced (``--max-worker-restart=0``). pytest-xdist fails the test that one died of, and passes if it died of none:
    while it collected, or after its last test.
    """

    def __init__(self) -> None:
        self._lost = False
        self._reports = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._lost |= error is not None

    def pytest_runtest_logreport(self) -> None:
        self._reports += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """After all processes have ended."""
        # A process that is lost early leaves a run that calls itself one without tests.
        if session.exitstatus not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            return
        if self._lost:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        elif session.testscollected and not self._reports and not session.config.option.collectonly:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
