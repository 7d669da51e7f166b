"""An authority beside another program: a child process that ends with it, however it ends.

``python -m lowwater_authority.embedded`` is that child: ``lowwater serve`` until its standard input
ends.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from lowwater.core.private import make_private_folder, open_private

if TYPE_CHECKING:
    from collections.abc import Sequence

START: Final = 60.0
"""Longest time until it serves, seconds; a busy machine takes long to import."""

STOP: Final = 15.0
"""Longest time for an orderly stop, seconds."""

GRACE: Final = 13.0
"""Seconds that the child takes for an orderly stop, after which it exits; its journal survives
that."""

_OWN: Final = "LOWWATER_"
"""Prefix of the variables that the child does not get: they may name a store of other authorities.
"""

_READY: Final = "lowwater: serving on "
_PAGE: Final = "(page "
_LOG: Final = "authority.log"
_LINES: Final = 5
"""Number of last lines of its log that an error shows."""


class EmbeddedAuthority:
    """A running authority over a folder of its own, on the loopback interface.

    Only this process holds the other end of its standard input, a pipe. When the pipe closes, by
    :meth:`stop` or because this process is gone, the authority stops.
    """

    def __init__(self, data: Path | None, *, port: int = 0, page: bool = False) -> None:
        """Start it, and wait until it serves.

        ``data`` is the folder of its journal; None: a temporary folder, which is removed with it.
        ``port``: 0 takes a free one. ``page``: a status page is at a free port, whose process
        starts when a browser first opens it. Raises RuntimeError with the end of the authority's
        log when it does not start. An interrupt stops it again.
        """
        self.temporary: bool = data is None
        """True if its folder is removed with it."""
        self.data: Path = Path(tempfile.mkdtemp(prefix="lowwater-")) if data is None else data
        command = [sys.executable, "-P", "-m", "lowwater_authority.embedded", os.fspath(self.data), f"--port={port}"]
        command += [flag for flag, wanted in (("--page", page), ("--temporary", self.temporary)) if wanted]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # it imports what this process imports
        try:
            make_private_folder(self.data)
            with open_private(self.data / _LOG, "a") as log:
                self.process: subprocess.Popen[str] = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=environ,
                    start_new_session=True,  # an interrupt at the terminal, or of a notebook, must not stop it
                )
        except BaseException:  # an interrupt; a child that was started removes its folder
            _remove(self.data, temporary=self.temporary)
            raise
        ready = self._ready()
        self.address: str = ready.split()[0]
        page_url = ready.partition(_PAGE)[2].partition(",")[0]
        self.page_url: str = page_url if page else ""
        """URL of its status page; empty without one."""

    def _ready(self) -> str:
        """Return its address and what follows, or raise RuntimeError with the end of its log."""
        assert self.process.stdout is not None
        late = threading.Timer(START, self.process.kill)
        late.start()
        try:
            line = self.process.stdout.readline()
        except BaseException:  # an interrupt
            self.stop()
            raise
        finally:
            late.cancel()
        if line.startswith(_READY):
            return line.removeprefix(_READY)
        log = (self.data / _LOG).read_text(encoding="utf-8", errors="replace") if (self.data / _LOG).exists() else ""
        self.stop()
        excerpt = "\n".join(log.splitlines()[-_LINES:]) or "it said nothing"
        raise RuntimeError(f"the embedded authority did not start over {self.data}:\n{excerpt}")

    @property
    def ended(self) -> bool:
        """True when the process is gone."""
        return self.process.poll() is not None

    def stop(self) -> None:
        """Stop it. Waits at most :data:`STOP` seconds, and then kills it."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _remove(self.data, temporary=self.temporary)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve on the loopback interface; return ``lowwater serve``'s exit code."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("data", type=Path)
    parse.add_argument("--port", type=int, default=0)
    parse.add_argument("--page", action="store_true")
    parse.add_argument("--temporary", action="store_true")
    args = parse.parse_args(argv)
    # Until the server installs its own handler. SystemExit lets the folder be removed.
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_follow, args=(args.data, args.temporary), daemon=True).start()
    try:
        from lowwater_authority.serve import main as serve

        page = "127.0.0.1:0" if args.page else "off"
        flags = ["--data", str(args.data), "--listen", f"127.0.0.1:{args.port}", "--http", "off"]
        flags += ["--page", page, "--page-on-visit"]
        code = serve(flags)
    except SystemExit:
        _remove(args.data, temporary=args.temporary)
        raise
    if not code:  # the parent reads the log of a failure first, and then removes the folder
        _remove(args.data, temporary=args.temporary)
    return code


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
