"""Errors that the Spark side raises itself, beside the client's."""

from __future__ import annotations

from typing import Final

from lowwater import errors

__all__ = ["AWAY", "CheckpointMismatch", "StateLost", "Unsupported"]

AWAY: Final = (
    errors.JournalFailed,
    errors.Moved,
    errors.OldStream,
    errors.Overloaded,
    errors.ShuttingDown,
    errors.StaleEpoch,
    errors.Timeout,
    errors.Unavailable,
)
"""Errors of the client after which a request is repeated: no answer came, or "later"."""


class Unsupported(ValueError):
    """The query cannot be tracked exactly. The message says what prevents it, why, and the fix.

    Raised before the query starts: nothing has been claimed, read or written.
    """

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(f"{what} cannot be tracked exactly: {why}. {fix}")
        self.what = what
        self.why = why
        self.fix = fix


class CheckpointMismatch(RuntimeError):
    """Stored files of a batch were made from another plan of that batch.

    Spark's offset log and lowwater's files no longer belong together, for example because one of
    them was restored from a copy, or edited. Going on would lose rows or write them twice.
    """


class StateLost(RuntimeError):
    """The state version on which a batch builds is gone; going on would start from empty state."""
