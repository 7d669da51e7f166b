"""How two processes share a run (pytest-xdist), and the soak, which goes beside it: begun before the first test, judged after the last.

The soak takes minutes and little else. Whoever hands out the tests starts it: the only process of a run, or the one that has others run them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.process.soaking import Soaking

TOGETHER = ("tests/compatibility/", "tests/cluster/")
"""Folders whose files share what takes long to make, or is not to be made twice at a time: one process runs all of such a folder."""

SOAK = "tests/process/test_soak.py"
SECONDS = 180.0
RANGES = 100_000

SOAKING = pytest.StashKey[Soaking]()
FOLDER = pytest.StashKey[Path]()


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
    """Make the folder of a soak; whatever ends the run ends the soak and removes the folder."""
    handed: dict[str, str] | None = getattr(config, "workerinput", None)
    if handed is not None:
        config.stash[FOLDER] = Path(handed["soak"])
    else:
        config.pluginmanager.register(Verdict())
        soaking = config.stash[SOAKING] = Soaking(SECONDS, RANGES)
        config.add_cleanup(soaking.stop)
        config.stash[FOLDER] = soaking.folder


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
        """Of each process that has ended."""
        self._lost |= error is not None

    def pytest_runtest_logreport(self) -> None:
        """Of each part of each test, wherever it ran."""
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


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process that will run tests where the soak is."""
    node.workerinput["soak"] = str(node.config.stash[FOLDER])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Of each process, before the first test of any."""
    begin(node.config, ids)


def pytest_collection_finish(session: pytest.Session) -> None:
    """In the process that has found the tests."""
    begin(session.config, [item.nodeid for item in session.items])


def begin(config: pytest.Config, tests: Iterable[str]) -> None:
    """Start the soak, once, if it is to be judged."""
    soaking = config.stash.get(SOAKING, None)
    if soaking is not None and not config.option.collectonly and any(test.startswith(SOAK) for test in tests):
        soaking.start()


@pytest.fixture
def soaking(request: pytest.FixtureRequest) -> Path:
    """The folder of the soak that was started with the run."""
    return request.config.stash[FOLDER]
