"""The errors that end a lane."""

from __future__ import annotations

__all__ = ["Held", "Refused"]


class Refused(Exception):
    """The lane would have to guess, so an operator must act. Says what is wrong, and the fix."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}. {fix}")
        self.what = what
        self.fix = fix


class Held(Exception):
    """The lane cannot go on now, but may later: a broker or a transaction keeps it waiting."""
