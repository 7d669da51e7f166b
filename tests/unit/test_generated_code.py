"""The committed protobuf code is what the generator writes. What it runs under: tests/compatibility/test_floors.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compatibility.environments import ROOT, UV

TREES = ("client/src/lowwater/_pb", "authority/src/lowwater_authority/_pb")


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


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources and the generated code, free to be spoilt."""
    for part in ("proto", "scripts", *TREES):
        shutil.copytree(ROOT / part, tmp_path / part)
    return tmp_path


def test_the_committed_code_is_what_the_generator_writes() -> None:
    done = check(ROOT)
    assert done.returncode == 0, done.stderr


def test_a_changed_source_is_noticed(copy: Path) -> None:
    source = copy / "proto/lowwater/v1/types.proto"
    source.write_text(source.read_text().replace("share_ppm = 1", "share_ppm = 9"))
    done = check(copy)
    assert done.returncode == 1
    assert "client/src/lowwater/_pb" in done.stderr
    assert "make gen" in done.stderr


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the floor of grpcio has no wheel for Python 3.14 or newer")
@pytest.mark.parametrize("tree", TREES)
def test_a_hand_edited_file_is_noticed(copy: Path, tree: str) -> None:
    edited = min((copy / tree).rglob("*_pb2.pyi"))
    edited.write_text(edited.read_text() + "# by hand\n")
    done = check(copy)
    assert done.returncode == 1
    assert edited.name in done.stderr
    assert "make gen" in done.stderr


def test_it_imports_without_a_warning() -> None:
    done = run(sys.executable, "-W", "error", "-c", f"import {', '.join(modules())}")
    assert done.returncode == 0, done.stderr
