"""What the Spark side raises on purpose, beside the client's errors."""

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
"""The client's errors that are no answer, or "later": what was asked is asked again."""


class Unsupported(ValueError):
    """The query cannot be tracked exactly.

    The message names what is in the way, why, and what to do.

    Raised before the query starts: nothing has been claimed, read or written.
    """

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(f"{what} cannot be tracked exactly: {why}. {fix}")
        self.what = what
        self.why = why
        self.fix = fix


class CheckpointMismatch(RuntimeError):
    """What stands on disk for a batch was made from another plan of that batch.

    Spark's offset log and lowwater's files no longer belong together, for example because one of
    them was restored from a copy, or edited. Going on would lose rows or write them twice.
    """


class StateLost(RuntimeError):
    """The state version that a batch must be built from is gone; going on would start from nothing, silently."""
