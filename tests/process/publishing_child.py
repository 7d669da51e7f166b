"""Runs ``lowwater publish`` again and again over one cursor, killed at its first step, then at its second, and so on; the last run is left alone.

A step is a file that is opened to write, a rename, a folder, or a request over HTTP. Each run is a process of its own, and dies by SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

STEPS = {"os.rename", "os.mkdir", "os.remove", "urllib.Request", "socket.connect", "http.client.send"}


def killed_at(step: int) -> None:
    remaining = step

    def look(event: str, about: tuple[Any, ...]) -> None:
        nonlocal remaining
        writes = event == "open" and isinstance(about[2], int) and about[2] & (os.O_WRONLY | os.O_RDWR)
        if event in STEPS or writes:
            remaining -= 1
            if not remaining:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def main() -> None:
    """KILLS and the arguments of the command; prints how each run ended."""
    from lowwater.cli import main as command

    ends = []
    for step in [*range(1, int(sys.argv[1]) + 1), 0]:
        pid = os.fork()
        if not pid:
            os.dup2(2, 1)
            if step:
                killed_at(step)
            os._exit(command(sys.argv[2:]))
        ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
