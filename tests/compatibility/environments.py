"""Environments that hold built or released wheels; made once per machine, below .tools, and found again by their content."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.kit.program import run_program

ROOT = Path(__file__).resolve().parents[2]
UV = shutil.which("uv") or str(ROOT / ".tools/bin/uv")  # the second where scripts/setup.sh brought it
KEPT = ROOT / ".tools/compatibility"


class Environment:
    """A virtual environment with some of our wheels and what they need, and nothing of the source tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def python(self) -> str:
        return str(self.folder / "bin/python")

    @property
    def lowwater(self) -> str:
        return str(self.folder / "bin/lowwater")

    def versions(self) -> dict[str, str]:
        lines = uv("pip", "list", "--python", self.python, "--format", "freeze").splitlines()
        return {name: version for name, _, version in (line.partition("==") for line in lines)}


def environment(name: str, wheels: Iterable[Path], *, lowest: bool = False) -> Environment:
    """An environment with these wheels, and with the locked versions of what they need or the lowest that they allow.

    ``name`` is for people. Where the lowest version has no wheel for this Python, it is the lowest that has one.
    Costs about 0.5 s when made (from uv's cache), a read of the wheels when found.
    """
    wheels = sorted(wheels)
    kind = f"{sys.version} {sys.platform} {lowest}".encode()
    depends = kind + b"".join(wheel.name.encode() + wheel.read_bytes() for wheel in wheels)
    if not lowest:
        depends += (ROOT / "uv.lock").read_bytes()
    folder = KEPT / name / hashlib.sha256(depends).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Two runs of the tests at a time must not make the same one.
    with (KEPT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            for outdated in folder.parent.iterdir():
                shutil.rmtree(outdated)
            _make(folder, wheels, lowest=lowest)
            (folder / "complete").touch()
    return Environment(folder)


def _make(folder: Path, wheels: list[Path], *, lowest: bool) -> None:
    uv("venv", "--quiet", "--python", sys.executable, str(folder))
    if lowest:
        how = ["--resolution", "lowest"]
    else:
        locked = folder / "locked.txt"
        locked.write_text(uv("export", "--frozen", "--no-emit-workspace", "--no-hashes", "--all-packages", "--quiet"))
        how = ["--constraint", str(locked)]
    uv(
        *("pip", "install", "--quiet", "--python", str(folder / "bin/python"), "--only-binary", ":all:"),
        *how,
        *map(str, wheels),
    )


def build(folder: Path) -> dict[str, Path]:
    uv("build", "--quiet", "--all-packages", "--wheel", "--out-dir", str(folder))
    return {wheel.name.split("-")[0].replace("_", "-"): wheel for wheel in folder.glob("*.whl")}


def released() -> dict[str, list[Path]]:
    """The wheels of the client and the authority by version, of each version that upgrades are tried from."""
    wheels: dict[str, list[Path]] = {}
    for wheel in sorted((Path(__file__).parent / "released").glob("*.whl")):
        wheels.setdefault(wheel.name.split("-")[1], []).append(wheel)
    for paths in wheels.values():
        assert [wheel.name.split("-")[0] for wheel in paths] == ["lowwater", "lowwater_authority"]
    return wheels


def released_environment(version: str) -> Environment:
    environment_ = environment(f"released-{version}", released()[version])
    assert {environment_.versions()[name] for name in ("lowwater", "lowwater-authority")} == {version}
    return environment_


def clean_environ() -> dict[str, str]:
    """The environment variables for a program of an environment: none that lead it back to the source tree."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def uv(*arguments: str) -> str:
    done = run_program([UV, *arguments], cwd=ROOT, env=clean_environ())
    assert done.returncode == 0, f"uv {' '.join(arguments)}:\n{done.stderr}"
    return done.stdout
