"""The committed code is what its generators write: from proto/, and the client on threads. What the first runs under: tests/compatibility/test_floors.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.compatibility.environments import ROOT, UV

SHELLS = "client/src/lowwater"

TREES = ("client/src/lowwater/v1", "authority/src/lowwater_authority/records")


def modules() -> list[str]:
    """The import names of all generated modules."""
    names = []
    for tree in TREES:
        source = (ROOT / tree).parent.parent
        names += [".".join(path.relative_to(source).with_suffix("").parts) for path in (ROOT / tree).rglob("*_pb2*.py")]
    return sorted(names)


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def check(root: Path) -> subprocess.CompletedProcess[str]:
    return run(UV, "run", "--quiet", "--script", str(root / "scripts/generate_protos.py"), "--check", cwd=root)


def test_the_committed_code_is_what_the_generator_writes() -> None:
    done = check(ROOT)
    assert done.returncode == 0, done.stderr


def test_it_imports_without_a_warning() -> None:
    done = run(sys.executable, "-W", "error", "-c", f"import {', '.join(modules())}")
    assert done.returncode == 0, done.stderr


def generate_sync(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "scripts.generate_sync", *arguments, cwd=root)


def test_the_committed_client_on_threads_is_what_the_generator_writes() -> None:
    done = generate_sync(ROOT, "--check")
    assert done.returncode == 0, done.stderr


def test_nothing_of_asyncio_is_left_in_the_client_on_threads() -> None:
    for path in sorted((ROOT / SHELLS / "_sync").glob("*.py")):
        first, _, rest = path.read_text("utf-8").partition("\n")
        assert first.endswith(f"from _async/{path.name}: change that one.")
        assert not re.search(r"(?i)async|await|cancelled|event loop", rest), path
