"""What the streams of a client have in common."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, Protocol

from lowwater import errors

__all__ = ["Many", "Streamed"]


class Streamed(Protocol):
    """A state machine that is fed by one stream after the other, as the shells drive it."""

    @property
    def failure(self) -> errors.LowwaterError | None:
        """Why there will be no further stream."""
        ...

    @property
    def wanted(self) -> bool:
        """Whether a stream has to be opened."""
        ...

    @property
    def interrupted(self) -> bool:
        """Whether the open stream is to be ended now; another follows if one is wanted."""
        ...

    @property
    def address(self) -> str:
        """Where the next stream goes."""
        ...

    @property
    def first_pause(self) -> float:
        """Seconds to wait before the first stream, and once it is hurried."""
        ...

    @property
    def hurried(self) -> bool:
        """Whether the pause before the next stream is to end now: the next one need not wait for so long any more."""
        ...

    def take(self, response: Any, /) -> bool:
        """Take a message; returns whether the stream is to be left.

        What it raises ends the stream.
        """
        ...

    @property
    def concerned(self) -> Set[str] | None:
        """Of which computations the last message told those who wait anything new; None: perhaps of all."""
        ...

    def ended(self, failure: Exception | None, /) -> float:
        """Take the end of a stream, and what ended it if something did; returns the seconds to wait before the next."""
        ...

    def retire(self) -> None:
        """No further stream is wanted: nobody drives this any more, until it is handed out again."""
        ...


class Many(Protocol):
    """State machines that share what they know, one for each shard that is needed."""

    def tend(self) -> Iterable[Streamed]:
        """Return those that have to be driven from now on, or whose stream may have to be renewed, since this was asked last."""
        ...
