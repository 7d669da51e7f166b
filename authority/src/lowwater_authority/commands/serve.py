"""``lowwater serve``, from its first instruction: what it imports takes long, and it may be told to stop meanwhile."""

from __future__ import annotations

import signal
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the authority until it is told to stop.

    Returns the exit code; raises SystemExit for a stop before it serves.

    The first process of a container gets no signal that it has no handler for: one that came before
    would be lost, and whoever sent it would wait until it kills. These handlers hold until the
    event loop has its own.
    """
    return stoppable("lowwater_authority.serve", argv)


def stoppable(module: str, argv: Sequence[str] | None) -> int:
    """Import a module and run its ``main``; a signal during the import ends the process."""
    before = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        run: Callable[[Sequence[str] | None], int] = import_module(module).main
        return run(argv)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(0)
