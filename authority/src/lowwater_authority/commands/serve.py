"""``lowwater serve``, from its first instruction.

Its imports take long, and a stop may come meanwhile.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the authority until it is told to stop.

    Returns the exit code; raises SystemExit for a stop before it serves. The first process of a
    container gets only signals that it has a handler for. An earlier signal would be lost, and its
    sender would wait until it kills the process. These handlers are in force until the event loop
    has its own.
    """
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        from lowwater_authority import serve

        return serve.main(argv)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(_number: int, _frame: object) -> NoReturn:
    """End the process before it serves."""
    raise SystemExit(0)
