"""The checkout stays as it was: a run that leaves a new file in it fails and names the file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def untracked(root: Path) -> set[str]:
    """Return the files that git neither tracks nor ignores; none where there is no git or no checkout."""
    command = ["git", "-C", str(root), "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return set()
    return {line[3:] for line in listed.split("\0") if line.startswith(("?? ", "A  "))}


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Checkout(config.rootpath))


class Checkout:
    """Compares the files after the last test with those before the first one."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._before = untracked(root)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that would have passed. Files that somebody else wrote meanwhile are named like those of tests."""
        appeared = sorted(untracked(self._root) - self._before)
        if appeared and session.exitstatus == pytest.ExitCode.OK:
            names = ", ".join(appeared[:10])
            print(f"\nthe run left {len(appeared)} files in the checkout: {names}. Tests write to tmp_path or build/")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
