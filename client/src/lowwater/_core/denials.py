"""Computations that the caller may not read, each asked for on its own, so that it stops no stream that others share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc

from lowwater import errors
from lowwater._core.attempts import AWAY, DENIED, error_of_call
from lowwater._core.backoff import PATIENCE
from lowwater._core.ratchet import Ratchet
from lowwater._core.router import HOME, MOST_NAMES, Router
from lowwater._core.surroundings import Surroundings
from lowwater._pb.lowwater.v1 import watermarks_pb2

__all__ = ["Denials"]

logger = logging.getLogger("lowwater")

_SOON: Final = 10.0
"""Upper bound of the seconds until one is asked for again, the first time."""

_LATE: Final = 60.0
"""The same when it has been refused again and again."""

_QUIET_SECONDS: Final = 600.0
"""Between two lines in the log about one computation."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What is known of a computation that was refused."""

    error: errors.LowwaterError | None
    """Why; None while somebody new waits to be told, who shall not get an old answer."""
    earliest: float
    """When it may be asked for."""
    times: int
    """How often it was refused."""


class Denials:
    """The computations that a stream was refused for, until they may be read.

    A stream is refused whole for one of its names, and repeating it would stop the news of all the others for as long as that one is
    forbidden. So it is left out, and asked for alone: one after the other, each after 5 to 10 s the first time and after 30 to 60 s
    in the end, and at once when somebody begins to follow it. What is answered goes back to the stream of its shard.
    What nobody follows any more is remembered, but not asked for: else who follows it again and again would stop the others each time.
    """

    failure: errors.LowwaterError | None = None
    interrupted: bool = False

    def __init__(
        self,
        router: Router,
        surroundings: Surroundings,
        ratchet: Ratchet,
        *,
        followed: Callable[[str], bool],
        allowed: Callable[[str], None],
    ) -> None:
        self._router = router
        self._monotonic = surroundings.monotonic
        self._random = surroundings.random
        self._ratchet = ratchet
        self._followed = followed
        self._allowed = allowed
        self._refused: dict[str, _Refusal] = {}
        self._told: dict[str, float] = {}
        self._asked = ""
        self._opened_at = ""
        self._due = 0.0  # when the pause before the next question is over

    def __contains__(self, name: str) -> bool:
        """Whether a computation is left out of the streams. O(1)."""
        return name in self._refused

    def error(self, name: str) -> errors.LowwaterError | None:
        """Return why a computation may not be followed, as it was said last; None when that is not known."""
        refusal = self._refused.get(name)
        return None if refusal is None else refusal.error

    def add(self, name: str, error: errors.LowwaterError) -> None:
        """A stream was refused for a computation. O(1), but O(denied) when there are many that nobody follows."""
        if len(self._refused) >= MOST_NAMES:
            self._refused = {each: kept for each, kept in self._refused.items() if self._followed(each)}
        self._refuse(name, error)

    def hurry(self, name: str) -> None:
        """Somebody begins to follow a computation, and is told what the authority says now."""
        self._refused[name] = _Refusal(None, self._monotonic(), self._refused[name].times)

    def forget(self, name: str) -> None:
        """A computation is told of after all."""
        self._refused.pop(name, None)

    # -- as a stream of one message -----------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """Whose shard is asked: of whichever is asked for."""
        return HOME

    @property
    def wanted(self) -> bool:
        """Whether anybody follows what is forbidden. O(denied)."""
        return any(map(self._followed, self._refused))

    @property
    def address(self) -> str:
        """Who is asked next."""
        return self._router.address_of(self._next())

    @property
    def first_pause(self) -> float:
        """Seconds to wait before the first question."""
        return self._pause()

    @property
    def hurried(self) -> bool:
        """Whether something need not wait for as long as the pause lasts. O(denied)."""
        left = self._due - self._monotonic()
        return left > PATIENCE and self._wait() < left - PATIENCE

    def retire(self) -> None:
        """Nothing is asked for any more."""

    def open(self, address: str) -> watermarks_pb2.WatchRequest:
        """Ask at an address; returns the request, which names one computation."""
        self._asked, self._opened_at = self._next(), address
        return watermarks_pb2.WatchRequest(server_token=self._ratchet.server_token, computations=[self._asked])

    def take(self, response: watermarks_pb2.WatchResponse) -> bool:
        """Take a message: any says that the computation may be followed. Raises ServerTokenMismatch."""
        self._ratchet.check_token(response.server_token)
        if not response.HasField("go_away"):
            self.forget(self._asked)
            self._allowed(self._asked)
        return True

    def ended(self, failure: Exception | None) -> float:
        """Take the end of a question, and what it failed of if it did; returns the seconds to wait before the next."""
        if isinstance(failure, grpc.RpcError):
            failure = error_of_call(failure, self._opened_at)
        refusal = self._refused.get(self._asked)
        if isinstance(failure, AWAY):
            self._router.failed(self._opened_at)
        if refusal is not None:  # else it was answered
            if isinstance(failure, DENIED):
                self._refuse(self._asked, failure)
            else:
                self._refused[self._asked] = _Refusal(refusal.error, self._again(0), refusal.times)
        if failure is not None and not isinstance(failure, DENIED):
            logger.info("whether %s may be followed could not be asked: %s", self._asked, failure)
        return self._pause()

    def _refuse(self, name: str, error: errors.LowwaterError) -> None:
        refusal = self._refused.get(name)
        times = 0 if refusal is None else refusal.times + 1
        self._refused[name] = _Refusal(error, self._again(times), times)
        now = self._monotonic()
        if now - self._told.get(name, float("-inf")) < _QUIET_SECONDS:
            return
        if len(self._told) >= MOST_NAMES:
            self._told = {each: told for each, told in self._told.items() if now - told < _QUIET_SECONDS}
        self._told[name] = now
        logger.warning("%s is followed without the others, and asked for again: %s", name, error)

    def _again(self, times: int) -> float:
        """Return when to ask again: half of the delay is random, for all clients hear of new rules at one moment."""
        bound = min(_LATE, _SOON * 2.0 ** min(times, 32))
        return self._monotonic() + bound * (1.0 + self._random()) / 2.0

    def _next(self) -> str:
        due = {name: refusal.earliest for name, refusal in self._refused.items() if self._followed(name)}
        return min(due, key=due.__getitem__, default="")

    def _pause(self) -> float:
        # However many are denied, and whoever begins to follow one again and again: so many questions a second at most.
        pause = max(PATIENCE / 4 * (1.0 + self._random()), self._wait())
        self._due = self._monotonic() + pause
        return pause

    def _wait(self) -> float:
        """Return the seconds until anything may be asked for; 0 when nobody follows any, so that it is retired."""
        earliest = min((each.earliest for name, each in self._refused.items() if self._followed(name)), default=0.0)
        return max(0.0, earliest - self._monotonic())
