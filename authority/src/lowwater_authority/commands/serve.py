"""``lowwater serve``, from its first instruction.

Its imports take long, and a stop may come meanwhile.
"""

from __future__ import annotations

import signal
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the authority until it is told to stop.

    Returns the exit code; raises SystemExit for a stop before it serves. The first process of a
    container gets only signals that it has a handler for. An earlier signal would be lost, and its
    sender would wait until it kills the process. These handlers are in force until the event loop
    has its own.
    """
    return stoppable("lowwater_authority.serve", argv)


def stoppable(module: str, argv: Sequence[str] | None) -> int:
    """Import a module and run its ``main``; a signal during the import ends the process."""
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        run: Callable[[Sequence[str] | None], int] = import_module(module).main
        return run(argv)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(_number: int, _frame: object) -> NoReturn:
    """End the process before it serves."""
    raise SystemExit(0)
