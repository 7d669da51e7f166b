"""What the two streams of a client have in common."""

from __future__ import annotations

from typing import Any, Protocol

from lowwater import errors

__all__ = ["Streamed"]


class Streamed(Protocol):
    """A state machine that is fed by one stream after the other, as the shells drive it."""

    failure: errors.LowwaterError | None
    """Why there will be no further stream."""

    @property
    def wanted(self) -> bool:
        """Whether a stream has to be opened."""
        ...

    def take(self, response: Any, /) -> bool:
        """Take a message; returns whether the stream is to be left. What it raises ends the stream."""
        ...

    def ended(self, failure: Exception | None, /) -> float:
        """Take the end of a stream, and what ended it if something did; returns the seconds to wait before the next."""
        ...
