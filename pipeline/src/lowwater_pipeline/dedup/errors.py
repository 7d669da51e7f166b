"""How a lane ends that cannot go on."""

from __future__ import annotations

__all__ = ["Held", "Refused"]


class Refused(Exception):
    """It would have to guess: somebody has to look. Says what is wrong, and what to do."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}. {fix}")
        self.what = what
        self.fix = fix


class Held(Exception):
    """It cannot go on now, and may later: a broker is away, or a transaction of somebody else is open."""
