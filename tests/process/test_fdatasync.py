"""An acknowledged write is on the disk: shown by the calls that SQLite makes.

``kill -9`` shows none of this, because the page cache outlives the process. A small library (disk_shim.c), preloaded
into a process that appends, traces its writes and syncs; needs a C compiler, but no rights.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lowwater_authority.journal import JournalError, SqliteJournal
from tests.process.journal_child import LOGS, payload

APPENDS = 400
BROKEN = pytest.mark.xfail(
    strict=True, raises=(AssertionError, JournalError), reason="rule 2 is broken on purpose: synchronous = OFF"
)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler for the disk shim: apt-get install gcc libc6-dev")
    library = tmp_path_factory.mktemp("shim") / "disk_shim.so"
    source = Path(__file__).with_name("disk_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source, "-ldl"], check=True)
    return library


class Traced:
    def __init__(self, shim: Path, root: Path, *arguments: str) -> None:
        self.files = root / "files"
        self.files.mkdir()
        self.path = self.files / "journal.db"
        mode, *rest = arguments
        done = subprocess.run(
            [sys.executable, "-m", "tests.process.journal_child", mode, str(self.path), *rest],
            env={
                **os.environ,
                "LD_PRELOAD": str(shim),
                "LOWWATER_TRACE": str(root / "trace"),
                "LOWWATER_TRACE_DIR": f"{self.files}",
            },
            stdout=subprocess.PIPE,
            check=True,
        )
        self.answers: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        self.events = [line.split(" ", 1) for line in (root / "trace").read_text().splitlines()]
        """The calls and their paths, and an A at each acknowledgement."""


@pytest.fixture(scope="module", params=["full", pytest.param("unsafe", marks=BROKEN)])
def traced(request: pytest.FixtureRequest, shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """APPENDS appends to two logs with some snapshots: several checkpoints, several rounds through the file."""
    return Traced(shim, tmp_path_factory.mktemp("traced"), "trace", str(APPENDS), request.param)


def test_a_sync_stands_between_each_append_and_its_acknowledgement(traced: Traced) -> None:
    acknowledged, calls = 0, ""
    for call, path in traced.events:
        if call != "A":
            calls += call * path.endswith("-wal")
            continue
        assert "W" in calls, f"acknowledgement {path}: nothing was written"
        assert calls.endswith("S"), f"acknowledgement {path}: written, but not synced ({calls})"
        acknowledged, calls = acknowledged + 1, ""
    assert acknowledged == APPENDS


async def check(path: Path) -> int:
    """The last position of all logs; 0 when there is nothing. Everything found is what was appended."""
    journal = SqliteJournal(path)
    await journal.open()
    loaded = {log: await journal.load(log) for log in LOGS}
    await journal.close()
    for log, log_ in loaded.items():
        assert log_.records == [(n, payload(log, n)) for n in range(log_.snapshot_position + 1, log_.last + 1)]
        if log_.snapshot_position:
            assert log_.snapshot == payload("snapshot", log_.snapshot_position)
    assert len({found.last for found in loaded.values()}) == 1
    return loaded[LOGS[0]].last


@pytest.mark.parametrize(("call", "code"), [("sync", "EIO"), ("write", "EIO"), ("sync", "ENOSPC")])
def test_a_commit_that_fails_is_unknown_and_may_be_repeated(shim: Path, tmp_path: Path, call: str, code: str) -> None:
    failed, repeated = Traced(shim, tmp_path, "fail", call, code).answers
    assert failed["error"] == "JournalUnknown"
    assert "repeat the call" in failed["text"]
    assert (failed["found"], failed["unknown"]) == ([1, 1], 1)
    assert repeated["found"] == [3, 3]


def test_an_unknown_commit_may_have_happened(shim: Path, tmp_path: Path) -> None:
    """The sync failed, the process died, the next one finds the record: treating it as failed would be wrong."""
    traced = Traced(shim, tmp_path, "fail", "sync", "EIO", "and-die")
    assert traced.answers[0]["error"] == "JournalUnknown"
    assert asyncio.run(check(traced.path)) == 2


def test_a_disk_that_fills_up_in_the_commit_is_a_sure_failure(shim: Path, tmp_path: Path) -> None:
    failed, repeated = Traced(shim, tmp_path, "fail", "write", "ENOSPC").answers
    assert failed["error"] == "JournalFailed"
    assert "free space on its disk" in failed["text"]
    assert failed["found"] == [1, 1]
    assert repeated["found"] == [3, 3]
