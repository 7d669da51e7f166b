"""Protocol between a client's machines and the shells that drive their streams."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, Protocol

from lowwater import errors

__all__ = ["Many", "Streamed"]


class Streamed(Protocol):
    """A state machine that one stream after the other feeds, as the shells drive it."""

    @property
    def failure(self) -> errors.LowwaterError | None:
        """Error after which no further stream is opened; None while it goes on."""
        ...

    @property
    def wanted(self) -> bool:
        """True when a stream has to be opened."""
        ...

    @property
    def interrupted(self) -> bool:
        """True when the open stream has to end now; another follows if one is wanted."""
        ...

    @property
    def address(self) -> str:
        """Address of the next stream."""
        ...

    @property
    def first_pause(self) -> float:
        """Seconds to wait before the first stream, and again after ``hurried``."""
        ...

    @property
    def hurried(self) -> bool:
        """True when the pause before the next stream has to end now, for a shorter one."""
        ...

    def take(self, response: Any, /) -> bool:
        """Take a message; returns True when the stream has to end. Raising ends it as well."""
        ...

    @property
    def concerned(self) -> Set[str] | None:
        """Computations for whose readers the last message has news; None: possibly all."""
        ...

    def ended(self, failure: Exception | None, /) -> float:
        """Take the end of a stream and its error, if any; return the seconds until the next."""
        ...

    def retire(self) -> None:
        """Take the end of the driving: no stream is wanted until ``tend`` returns this again."""
        ...


class Many(Protocol):
    """State machines with common state, one for each shard that is needed."""

    def tend(self) -> Iterable[Streamed]:
        """Return the machines to drive, or whose stream may need a renewal, since the last call."""
        ...
