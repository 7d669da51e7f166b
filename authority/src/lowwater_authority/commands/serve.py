"""``lowwater serve``, from its first instruction: what it imports takes long, and it may be told to stop meanwhile."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the authority until it is told to stop.

    Returns the exit code; raises SystemExit for a stop before it serves.

    The first process of a container gets no signal that it has no handler for: one that came before
    would be lost, and whoever sent it would wait until it kills. These handlers hold until the
    event loop has its own.
    """
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        from lowwater_authority import serve

        return serve.main(argv)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(_number: int, _frame: object) -> NoReturn:
    """End before anything is served."""
    raise SystemExit(0)
