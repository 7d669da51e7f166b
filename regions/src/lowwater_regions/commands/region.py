"""``lowwater region``, from its first instruction: see ``lowwater serve``."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from lowwater_authority.commands.serve import leave

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent of a region until it is told to stop.

    Returns the exit code; raises SystemExit for a stop before it serves.
    """
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        from lowwater_regions import region

        return region.main(argv)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
