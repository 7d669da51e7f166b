"""``lowwater global``, from its first instruction: see ``lowwater serve``."""

from __future__ import annotations

from collections.abc import Sequence

from lowwater_authority.commands.serve import stoppable


def main(argv: Sequence[str] | None = None) -> int:
    """Run the global authority until it is told to stop. Returns the exit code."""
    return stoppable("lowwater_regions.serve", argv)
