"""The script ``lowwater``, from its first instruction on.

It handles SIGTERM before anything else. The first process of a container gets no signal without a
handler: a SIGTERM would be lost, and its sender would wait until it kills. So this module is not
in the package ``lowwater``, whose import takes half a second. Only while Python itself starts, for
some hundredths of a second, there is no handler.
"""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command; returns its exit code.

    SIGTERM raises SystemExit: 0 for servers and the demo, 143 for other commands.
    """
    signal.signal(signal.SIGTERM, _leave)
    try:
        from lowwater.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


def _leave(number: int, _frame: object) -> None:
    # A second SIGTERM, as `timeout` sends it, would interrupt the end of Python, which complains.
    # With the default handler it just ends the process.
    signal.signal(number, signal.SIG_DFL)
    # SIGTERM is the normal end of an authority; for other commands 0 would be an answer.
    raise SystemExit(0 if sys.argv[1:2] in (["serve"], ["global"], ["region"], ["demo"]) else 128 + number)
