"""What `scripts/setup.sh` says of a disk that is too full for the tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("what", ["--tests", "--long"])
def test_a_disk_that_is_too_full_ends_it_before_anything_is_installed(tmp_path: Path, what: str) -> None:
    """The system's df, of a place that is as full as a test cannot make it."""
    (tmp_path / "df").write_text(
        "#!/bin/sh\n"
        "echo Filesystem 1024-blocks Used Available Capacity Mounted on\n"
        "echo map auto_home 250000000 247000000 3000000 99% /\n"
    )
    (tmp_path / "df").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", ROOT / "scripts/setup.sh", what], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the tests need 10 GB in {tmp_path}, and 3 are free" in done.stderr
    assert "uv cache prune" in done.stderr
