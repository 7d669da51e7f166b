"""Protocol between a client's machines and the shells that drive their streams."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Set
from typing import Any, Generic, Protocol, TypeGuard, TypeVar

from lowwater import errors
from lowwater.core.attempts import BUSY, DENIED
from lowwater.core.backoff import Backoff
from lowwater.core.router import HOME, Router
from lowwater.core.surroundings import Surroundings
from lowwater.v1 import types_pb2

__all__ = ["Many", "ShardStream", "Streamed"]

logger: logging.Logger = logging.getLogger("lowwater")


class Streamed(Protocol):
    """A state machine that one stream after the other feeds, as the shells drive it."""

    @property
    def failure(self) -> errors.LowwaterError | None:
        """Error after which no further stream is opened; None while it goes on."""
        ...

    @property
    def needed(self) -> bool:
        """True when a stream has to be opened."""
        ...

    @property
    def interrupted(self) -> bool:
        """True when the open stream has to end now; another follows if one is needed."""
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
        """Take the end of the driving: no stream is needed until ``tend`` returns this again."""
        ...


class ShardStream(ABC):
    """Report or watch streams to one shard, one after the other: their address, and their ends."""

    first_pause: float = 0.0
    hurried: bool = False

    def __init__(self, kind: str, key: str, router: Router, surroundings: Surroundings) -> None:
        self.key: str = key
        """Address of the shard, or ``HOME``."""
        self._kind = kind
        self._router = router
        self._backoff = Backoff(surroundings.random)
        self._opened_at = ""  # address of the newest stream
        self._retry_after: float | None = None

    @property
    def address(self) -> str:
        """Address of the next stream."""
        return self.key or self._router.home

    @abstractmethod
    def _lose_all(self, at_least: float) -> None:
        """Search for all that the stream carried, in ``at_least`` seconds at the earliest."""

    def _leave(self, go_away: types_pb2.GoAway) -> bool:
        """Take the shard's request to leave; returns True, because the stream has to end."""
        logger.info("the authority goes away, at %s: %s", self._opened_at, go_away.reason)
        self._retry_after = go_away.retry_after_millis / 1e3
        return True

    def _is_foreign(self, failure: Exception | None) -> TypeGuard[errors.ServerTokenMismatch]:
        """Return True for another deployment at an address given to ``connect``."""
        mismatch = isinstance(failure, errors.ServerTokenMismatch)
        return mismatch and self.key == HOME and self._router.configured(self._opened_at)

    def _pause_after(self, failure: Exception | None) -> float:
        """Leave a shard that failed or goes away; return the seconds until the next stream."""
        if isinstance(failure, errors.Unavailable | errors.ShuttingDown | errors.OldStream):
            logger.info("the %s stream to %s ended: %s", self._kind, self._opened_at, failure)
        elif isinstance(failure, errors.LowwaterError):
            logger.warning("the %s stream to %s ended: %s", self._kind, self._opened_at, failure)
        elif failure is not None:
            msg = "the %s stream to %s failed; it is opened again"
            logger.error(msg, self._kind, self._opened_at, exc_info=failure)
        retry_after, self._retry_after = self._retry_after, None
        at_least = failure.retry_after if isinstance(failure, errors.LowwaterError) else retry_after or 0.0
        if failure is not None or retry_after is not None:
            busy = isinstance(failure, (*BUSY, *DENIED))
            if not busy:
                self._router.failed(self._opened_at)
            if self.key != HOME:
                self._lose_all(self._backoff.spread(at_least) if busy else 0.0)
                return 0.0  # the search for what it carried has its own delays
        return self._backoff.next(at_least)


Stream = TypeVar("Stream", bound=ShardStream)


class Many(Generic[Stream]):
    """State machines with common state, one for each shard that is needed."""

    def __init__(self, make: Callable[[str], Stream]) -> None:
        self.streams: dict[str, Stream] = {HOME: make(HOME)}
        """Streams by address, or ``HOME``."""
        self._make = make
        self._untended: dict[Streamed, None] = {}

    def tend(self) -> Iterable[Streamed]:
        """Return the machines to drive, or whose stream may need a renewal, since the last call."""
        untended, self._untended = self._untended, {}
        return untended

    def stream(self, key: str = HOME) -> Stream:
        """Return the stream to an address, or to home; a new one when there is none."""
        if key not in self.streams:
            self.streams[key] = self._make(key)
        return self.streams[key]

    def retired(self, stream: Stream) -> bool:
        """Forget a stream that the shell no longer drives; False for one that is not to go."""
        removed = stream.key != HOME and self.streams.get(stream.key) is stream
        if removed:
            del self.streams[stream.key]
        return removed
