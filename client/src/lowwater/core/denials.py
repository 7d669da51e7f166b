"""Computations that the caller may not read, each asked for on its own, so that it stops no stream that others share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import grpc

from lowwater import errors
from lowwater.core.attempts import AWAY, DENIED, error_of_call
from lowwater.core.backoff import PATIENCE
from lowwater.core.followed import Denial, Followed
from lowwater.core.question import Question
from lowwater.core.ratchet import Ratchet
from lowwater.core.router import MOST_NAMES, Router
from lowwater.core.surroundings import Surroundings
from lowwater.v1 import watermarks_pb2

__all__ = ["Denials"]

logger: logging.Logger = logging.getLogger("lowwater")

_SOON: Final = 10.0
"""Upper bound of the seconds until one is asked for again, the first time."""

_LATE: Final = 60.0
"""The same when it has been refused again and again."""

_QUIET_SECONDS: Final = 600.0
"""Between two lines in the log about one computation."""


class Denials(Question):
    """The computations that a stream was refused for, until they may be read.

    A stream is refused whole for one of its names, and repeating it would stop the news of all the
    others for as long as that one is forbidden. So it is left out, and asked for alone: one after
    the other, each after 5 to 10 s the first time and after 30 to 60 s in the end, and at once when
    somebody begins to follow it. What is answered goes back to the stream of its shard. What nobody
    follows any more is remembered, but not asked for: else who follows it again and again would
    stop the others each time.
    """

    def __init__(
        self,
        router: Router,
        surroundings: Surroundings,
        ratchet: Ratchet,
        *,
        followed: Callable[[Followed], bool],
        allowed: Callable[[Followed], None],
    ) -> None:
        super().__init__(surroundings)
        self._router = router
        self._ratchet = ratchet
        self._followed = followed
        self._allowed = allowed
        self._denied: dict[str, Followed] = {}
        self._asked: Followed | None = None
        self._opened_at = ""

    def add(self, followed: Followed, error: errors.LowwaterError) -> list[Followed]:
        """A stream was refused for a computation; returns what is forgotten for it.

        O(1), but O(denied) when there are many that nobody follows.
        """
        forgotten: list[Followed] = []
        if len(self._denied) >= MOST_NAMES:
            forgotten = [each for each in self._denied.values() if not self._followed(each)]
            for each in forgotten:
                self.forget(each)
        self._refuse(followed, error)
        return forgotten

    def hurry(self, followed: Followed) -> None:
        """Somebody begins to follow a computation that is denied, and is told what the authority says now."""
        if followed.denial is not None:
            followed.denial.error, followed.denial.earliest = None, self._monotonic()

    def forget(self, followed: Followed) -> None:
        """A computation is told of after all."""
        followed.denial = None
        self._denied.pop(followed.name, None)

    # -- as a stream of one message ----------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether anybody follows what is forbidden. O(denied)."""
        return any(map(self._followed, self._denied.values()))

    @property
    def address(self) -> str:
        """Who is asked next."""
        following = self._next()
        return self._router.home if following is None else self._router.address_of(following.name)

    def open(self, address: str) -> watermarks_pb2.WatchRequest:
        """Ask at an address; returns the request, which names one computation."""
        asked = self._next()
        assert asked is not None  # it is wanted; and no name at all would ask for everything
        self._asked, self._opened_at = asked, address
        return watermarks_pb2.WatchRequest(server_token=self._ratchet.server_token, computations=[asked.name])

    def take(self, response: watermarks_pb2.WatchResponse) -> bool:
        """Take a message: any says that the computation may be followed.

        Raises ServerTokenMismatch.
        """
        self._ratchet.check_token(response.server_token)
        if not response.HasField("go_away") and self._asked is not None:
            self.forget(self._asked)
            self._allowed(self._asked)
        return True

    def ended(self, failure: Exception | None) -> float:
        """Take the end of a question, and what it failed of if it did; returns the seconds to wait before the next."""
        if isinstance(failure, grpc.RpcError):
            failure = error_of_call(failure, self._opened_at)
        if isinstance(failure, AWAY):
            self._router.failed(self._opened_at)
        asked = self._asked
        if asked is not None and asked.denial is not None:  # else it was answered
            if isinstance(failure, DENIED):
                self._refuse(asked, failure)
            else:
                asked.denial.earliest = self._again(0)
        if asked is not None and failure is not None and not isinstance(failure, DENIED):
            logger.info("whether %s may be followed could not be asked: %s", asked.name, failure)
        return self._pause()

    def _refuse(self, followed: Followed, error: errors.LowwaterError) -> None:
        times = 0 if followed.denial is None else followed.denial.times + 1
        followed.denial = Denial(error, self._again(times), times)
        self._denied[followed.name] = followed
        now = self._monotonic()
        if now - followed.warned_at >= _QUIET_SECONDS:
            followed.warned_at = now
            logger.warning("%s is followed without the others, and asked for again: %s", followed.name, error)

    def _again(self, times: int) -> float:
        """Return when to ask again: half of the delay is random, for all clients hear of new rules at one moment."""
        bound = min(_LATE, _SOON * 2.0 ** min(times, 32))
        return self._monotonic() + bound * (1.0 + self._random()) / 2.0

    def _waiting(self) -> list[tuple[float, Followed]]:
        """Return when each that somebody follows may be asked for."""
        followed = filter(self._followed, self._denied.values())
        return [(each.denial.earliest, each) for each in followed if each.denial is not None]

    def _next(self) -> Followed | None:
        return min(self._waiting(), key=lambda each: each[0], default=(0.0, None))[1]

    def _least(self) -> float:
        # However many are denied, and whoever begins to follow one again and again: so many
        # questions a second at most.
        return PATIENCE / 4 * (1.0 + self._random())

    def _wait(self) -> float:
        """Return the seconds until anything may be asked for; 0 when nobody follows any, so that it is retired."""
        earliest = min((earliest for earliest, _ in self._waiting()), default=0.0)
        return max(0.0, earliest - self._monotonic())
