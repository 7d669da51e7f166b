"""The process of an embedded authority: ``lowwater serve`` until its standard input ends."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn

GRACE: Final = 13.0
"""Seconds for an orderly stop, after which the process exits; its journal survives that."""


def main() -> int:
    """Serve on free ports of the loopback interface; return ``lowwater serve``'s exit code."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("data", type=Path)
    parse.add_argument("--temporary", action="store_true")
    args = parse.parse_args()
    # Until the server installs its own handler. SystemExit lets the folder be removed.
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_follow, args=(args.data, args.temporary), daemon=True).start()
    try:
        from lowwater_authority.serve import main as serve

        page = "off" if find_spec("lowwater_page") is None else "127.0.0.1:0"
        return serve(["--data", str(args.data), "--listen", "127.0.0.1:0", "--http", "off", "--page", page])
    finally:
        _remove(args.data, temporary=args.temporary)


def _leave(_number: int, _frame: object) -> NoReturn:
    sys.exit(143)


def _follow(data: Path, temporary: bool) -> None:
    """Stop this process when the other end of its standard input is closed."""
    # os.read, since this thread would hold the lock of sys.stdin when the interpreter ends.
    while os.read(0, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE)
    _remove(data, temporary=temporary)
    os._exit(1)


def _remove(data: Path, *, temporary: bool) -> None:
    if temporary:
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
