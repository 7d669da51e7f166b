"""Computations that the caller may not read, each asked for alone, so that shared streams go on."""

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
"""Most seconds until the second question about a computation."""

_LATE: Final = 60.0
"""Most seconds between two questions after many refusals."""

_QUIET_SECONDS: Final = 600.0
"""Seconds between two lines in the log about one computation."""


class Denials(Question):
    """The computations that a stream was refused for, until they may be read.

    One forbidden name makes a shard refuse the whole stream, and a repetition would stop the news
    of all the other names. So the forbidden one is taken out and asked for alone, one name at a
    time: after 5 to 10 s the first time, after 30 to 60 s in the end, and at once when a reader
    subscribes to it. When the answer allows it, it goes back to the stream of its shard. A name
    without readers is remembered but not asked for. If it were forgotten, a reader that subscribes
    to it again and again would stop the other names each time.
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
        self._current: Followed | None = None
        self._opened_at = ""

    def add(self, record: Followed, error: errors.LowwaterError) -> list[Followed]:
        """Add a denied computation; returns forgotten ones without readers.

        O(1), O(denied) if full.
        """
        forgotten: list[Followed] = []
        if len(self._denied) >= MOST_NAMES:
            forgotten = [denied for denied in self._denied.values() if not self._followed(denied)]
            for denied in forgotten:
                self.forget(denied)
        self._refuse(record, error)
        return forgotten

    def hurry(self, record: Followed) -> None:
        """Ask at once for a denied computation that gets a reader: its old answer may be wrong."""
        if record.denial is not None:
            record.denial.error, record.denial.earliest = None, self._monotonic()

    def forget(self, record: Followed) -> None:
        """Remove a computation that may be read."""
        record.denial = None
        self._denied.pop(record.name, None)

    # -- as a stream of one message ----------------------------------------------------------------

    @property
    def needed(self) -> bool:
        """True when a denied computation has a reader. O(denied)."""
        return any(map(self._followed, self._denied.values()))

    @property
    def address(self) -> str:
        """Address of the next question."""
        following = self._next()
        return self._router.home if following is None else self._router.address_of(following.name)

    def open(self, address: str) -> watermarks_pb2.WatchRequest:
        """Begin a question to an address; returns its request, which names one computation."""
        record = self._next()
        # The caller checks needed; a request without a name would ask for everything.
        assert record is not None
        self._current, self._opened_at = record, address
        return watermarks_pb2.WatchRequest(server_token=self._ratchet.server_token, computations=[record.name])

    def take(self, response: watermarks_pb2.WatchResponse) -> bool:
        """Take a message: the computation may be read. Raises ServerTokenMismatch."""
        self._ratchet.check_token(response.server_token)
        if not response.HasField("go_away") and self._current is not None:
            self.forget(self._current)
            self._allowed(self._current)
        return True

    def ended(self, failure: Exception | None) -> float:
        """Take the end of a question and its error, if any; return the seconds until the next."""
        if isinstance(failure, grpc.RpcError):
            failure = error_of_call(failure, self._opened_at)
        if isinstance(failure, AWAY):
            self._router.failed(self._opened_at)
        record = self._current
        if record is not None and record.denial is not None:  # otherwise it was answered
            if isinstance(failure, DENIED):
                self._refuse(record, failure)
            else:
                record.denial.earliest = self._again(0)
        if record is not None and failure is not None and not isinstance(failure, DENIED):
            logger.info("the question whether %s may be read failed: %s", record.name, failure)
        return self._pause()

    def _refuse(self, record: Followed, error: errors.LowwaterError) -> None:
        times = 0 if record.denial is None else record.denial.times + 1
        record.denial = Denial(error, self._again(times), times)
        self._denied[record.name] = record
        now = self._monotonic()
        if now - record.warned_at >= _QUIET_SECONDS:
            record.warned_at = now
            logger.warning("%s may not be read, and is asked for alone: %s", record.name, error)

    def _again(self, times: int) -> float:
        """Return the next question's time; its delay is half random, as rules change for all."""
        bound = min(_LATE, _SOON * 2.0 ** min(times, 32))
        return self._monotonic() + bound * (1.0 + self._random()) / 2.0

    def _waiting(self) -> list[tuple[float, Followed]]:
        """Return (time of its next question, record) of each denied computation with a reader."""
        followed = filter(self._followed, self._denied.values())
        return [(record.denial.earliest, record) for record in followed if record.denial is not None]

    def _next(self) -> Followed | None:
        return min(self._waiting(), key=lambda pair: pair[0], default=(0.0, None))[1]

    def _least(self) -> float:
        # Bounds the questions per second, however many computations are denied, and however often
        # readers subscribe to them.
        return PATIENCE / 4 * (1.0 + self._random())

    def _wait(self) -> float:
        """Return the seconds until a computation may be asked for; 0 without readers, to end."""
        earliest = min((earliest for earliest, _ in self._waiting()), default=0.0)
        return max(0.0, earliest - self._monotonic())
