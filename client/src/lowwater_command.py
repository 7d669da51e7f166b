"""The script ``lowwater``, from its first instruction on.

Not in the package ``lowwater``, whose import alone takes half a second.

The first process of a container gets no signal that it has no handler for: a SIGTERM would be lost,
and whoever sent it would wait until it kills. While Python itself starts, some hundredths of a
second, there is none yet.
"""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command; returns its exit code.

    Raises SystemExit when it is told to stop: 0 for the authority, 143 for others.
    """
    signal.signal(signal.SIGTERM, _leave)
    try:
        from lowwater.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


def _leave(number: int, _frame: object) -> None:
    # Whoever says it again, as `timeout` does, would break into the end of Python itself, which
    # complains. That one just ends it.
    signal.signal(number, signal.SIG_DFL)
    # To be stopped is how an authority ends; of all others 0 is an answer.
    raise SystemExit(0 if sys.argv[1:2] in (["serve"], ["global"], ["region"]) else 128 + number)
