"""A ``lowwater serve`` of the demo's own: started on a free port, stopped with the demo."""

from __future__ import annotations

import contextlib
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

STOP_SECONDS: Final = 15
_READY: Final = "lowwater: serving on "


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Run ``lowwater serve`` with its journal in a folder until the end; yield its address.

    What it logs goes to ``serve.log`` in the folder.

    Raises:
        RuntimeError: It did not start; the message names the log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = Path(sysconfig.get_path("scripts")) / "lowwater"
    arguments = ["serve", "--data", str(folder), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    log = folder / "serve.log"
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen([command, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            ready = process.stdout.readline() if process.stdout is not None else ""
            if not ready.startswith(_READY):
                raise RuntimeError(f"lowwater serve did not start; see {log}")
            yield ready.removeprefix(_READY).split()[0]
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
