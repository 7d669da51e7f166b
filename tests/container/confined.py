"""A program as an engine would start it, as far as this machine allows: user 65532, nothing to write to but /data, no rights."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

USER: Final = 65532

# Every folder that anybody may write to, then the one that stays so; the program keeps the process's id.
_READ_ONLY: Final = """
set -e
for folder in / /tmp /var/tmp /dev/shm; do
    mount --rbind "$folder" "$folder"
    mount -o remount,bind,ro "$folder"
done
mount --bind "$1" "$1"
mount -o remount,bind,rw "$1"
shift
exec "$@"
"""


@functools.cache
def ways() -> tuple[str, ...]:
    if os.geteuid() != 0:
        return ()
    mounts = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], check=False, capture_output=True
    )
    return ("user 65532", "read-only root") if mounts.returncode == 0 else ("user 65532",)


def confined(command: list[str], *, data: Path, environment: Mapping[str, str]) -> list[str]:
    """A command that runs another in ``data``, as confined as can be, with these variables and no others."""
    inner = ["env", "--ignore-environment", f"--chdir={data}", *(f"{key}={text}" for key, text in environment.items())]
    inner += command
    if "user 65532" in ways():
        rights = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        inner = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *rights, *inner]
    if "read-only root" in ways():
        inner = ["unshare", "--mount", "sh", "-c", _READ_ONLY, "sh", str(data), *inner]
    return inner
