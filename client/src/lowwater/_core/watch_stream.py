"""The watch stream to one shard: which names it follows, and what its messages mean."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import grpc

from lowwater import errors
from lowwater._core import wire
from lowwater._core.ages import Ages
from lowwater._core.attempts import BUSY, DENIED, error_of_call
from lowwater._core.backoff import CAP, FIRST, Backoff
from lowwater._core.routes import HOME, MOST_NAMES
from lowwater._pb.lowwater.v1 import types_pb2, watermarks_pb2

if TYPE_CHECKING:
    from lowwater._core.watching import Subscription, WatchState

__all__ = ["WatchStream"]

logger = logging.getLogger("lowwater")


class WatchStream:
    """One stream at a time to one shard.

    A stream follows the names that were placed here when it was opened. When more are, it is renewed as soon as it has told of those,
    and after every failure another is opened, with a backoff. Names that it redirects it tells no more of, until they come back;
    when all have gone it is left.
    """

    first_pause: float = 0.0
    hurried: bool = False

    def __init__(self, known: WatchState, key: str) -> None:
        self.key = key
        """The shard's address, or ``HOME``."""
        self.number: int = 0
        """Of the newest stream, among all of the client: what it brings was sent after whatever was asked before."""
        self.renewing: bool = False
        """Whether the open stream is to be ended because it does not follow all that it should."""
        self.covers_all: bool = False
        """Whether the open stream follows all that are registered."""
        self._known = known
        self._backoff = Backoff(known.surroundings.random)
        self._ages: Ages | None = None  # of the open stream
        self._covered: dict[str, None] = {}  # for its order: no run could be repeated with that of a set
        self._gone: set[str] = set()
        self._opened_at = ""
        self._leaving: float | None = None

    @property
    def failure(self) -> errors.LowwaterError | None:
        """Why nothing will ever be heard again."""
        return self._known.failure

    @property
    def wanted(self) -> bool:
        """Whether anybody follows anything here."""
        return self._known.wanted_at(self.key)

    @property
    def address(self) -> str:
        """Where the next stream goes."""
        return self.key or self._known.routes.home

    @property
    def live(self) -> bool:
        """Whether a stream is open that has told of all it follows."""
        return self._ages is not None and self._ages.heard_at is not None

    @property
    def open_now(self) -> bool:
        """Whether a stream is open."""
        return self._ages is not None

    @property
    def interrupted(self) -> bool:
        """Whether the open stream is to be ended now: once it has told of what it follows, so that this happens at last."""
        return self.renewing and self.live

    def follows(self, name: str) -> bool:
        """Whether the open stream tells of a computation that is placed here."""
        return (
            (self.covers_all or name in self._covered) and name not in self._gone and self._known.at(name) == self.key
        )

    @property
    def idle(self) -> bool:
        """Whether the open stream has told of all it follows, and follows nothing any more."""
        return self.live and not self.covers_all and not any(map(self.follows, self._covered))

    @property
    def heard_at(self) -> float | None:
        """When the values of the open stream were confirmed last; None before its first message."""
        return self._ages.heard_at if self._ages is not None else None

    @property
    def holding(self) -> bool:
        """Whether values newer than those known are about to come."""
        return self._ages is not None and self._ages.holding

    def confirms(self, subscription: Subscription) -> bool:
        """Whether what the open stream says is fresh news to a subscription."""
        ages = self._ages
        return ages is not None and ages.fresh and (ages.prompt or subscription.streams < self.number)

    def cannot_tell(self, waiting: Iterable[Subscription]) -> bool:
        """Whether one of those who wait for news of this stream would wait for ever: it cannot tell how old its messages are."""
        ages = self._ages
        if ages is None or (ages.prompt and not ages.astray):
            return False
        each = (
            subscription
            for subscription in waiting
            if (self.covers_all and not subscription.names) or any(map(self.follows, subscription.names))
        )
        return any(ages.astray or subscription.streams >= self.number for subscription in each)

    # -- the stream ---------------------------------------------------------------------------------------------------

    def open(self, address: str) -> watermarks_pb2.WatchRequest:
        """Begin a stream to an address that follows all that is wanted here now; returns its request."""
        known = self._known
        request = watermarks_pb2.WatchRequest(server_token=known.ratchet.server_token)
        names = sorted(known.placed(self.key))
        # Of another shard than home, all is what there is no room to name; it is ignored where it is not followed there.
        self.covers_all = (self.key == HOME and known.everything) or len(names) > MOST_NAMES
        if not self.covers_all:
            request.computations.extend(names)
        self._covered, self._gone = dict.fromkeys(request.computations), set()
        self._ages = Ages(known.surroundings.monotonic)
        self._opened_at, self._leaving, self.renewing = address, None, False
        self.number = known.opened()
        return request

    def take(self, response: watermarks_pb2.WatchResponse) -> bool:
        """Take a message; returns whether the stream is to be left. Raises ServerTokenMismatch."""
        known = self._known
        known.ratchet.check_token(response.server_token)
        known.received()
        for redirect in response.redirects:
            self._redirect(redirect)
        arrived = [message for message in response.watermarks if self._admit(message)]
        for message in response.dropped:
            known.dropped(wire.watermark_view(message))
        if self._ages is not None:
            self._ages.read(response.time_micros, response.clock_micros)
            if self._ages.lasted > CAP:
                known.lasted(self)
        if response.redirects or arrived:
            known.tidy()
        known.confirm()
        if response.HasField("go_away"):
            logger.info("the authority goes away, at %s: %s", self._opened_at, response.go_away.reason)
            self._leaving = response.go_away.retry_after_millis / 1e3
            return True
        self.renewing = self.renewing or known.cannot_tell(self)
        return self.renewing

    def _redirect(self, redirect: types_pb2.Redirect) -> None:
        # Before the message counts as news: it is none of what it redirects.
        self._known.redirected(self, redirect.computation, redirect.address, redirect.epoch)
        self._gone.add(redirect.computation)

    def _admit(self, message: types_pb2.Watermark) -> bool:
        """Take a value; returns whether its computation has come here."""
        name = message.computation
        try:
            self._known.ratchet.admit(wire.watermark_view(message))
        except errors.StaleEpoch as stale:
            logger.warning("%s", stale)  # an ordinary event: the shard was replaced a moment ago
            self._known.refused(self, name)
            self._gone.add(name)
            return False
        strange = name in self._gone or (self.covers_all and self._known.at(name) != self.key)
        arrived = strange and self._known.arrived(self, name, self._opened_at, message.epoch)
        if arrived:
            self._gone.discard(name)
        self._known.heard(self, name, message.epoch)
        return arrived

    def ended(self, failure: Exception | None) -> float:
        """Take the end of a stream, and what ended it if something did; returns the seconds to wait before the next.

        Another deployment at a home that was given ends the watching. Whatever else it is, watching must go on: a
        stage whose inputs are never heard again holds all behind it. A shard that is only busy is asked again when it said, and
        one that refuses a computation is asked for the others at once.
        """
        known = self._known
        if self._ages is not None and self._ages.heard_at is not None:
            known.keep_ages(filter(self.follows, self._ever_told()), self._ages.heard_at)
            # Bringing something proves little: a stream that is opened and fails at once, again and again, has to back off.
            if self._ages.lasted > CAP:
                self._backoff.reset()
        renewed, self.renewing = self.renewing, False
        covered, self._ages, self.covers_all, self._covered = self._covered, None, False, {}
        if renewed and (failure is None or isinstance(failure, grpc.RpcError)):
            return 0.0
        if isinstance(failure, grpc.RpcError):
            failure = error_of_call(failure, self._opened_at)
        given = self.key == HOME and known.routes.given(self._opened_at)
        if isinstance(failure, errors.ServerTokenMismatch) and given:
            logger.error("stopped watching: %s", failure)
            known.failure = failure
            return 0.0
        if isinstance(failure, errors.PermissionDenied) and failure.metadata.get("computation") in covered:
            known.forbid(self, failure.metadata["computation"], failure)
            return FIRST * known.surroundings.random()  # each refusal leaves out another, so there is an end to them
        self._log(failure)
        known.last_error = failure or known.last_error
        leaving, self._leaving = self._leaving, None
        at_least = failure.retry_after if isinstance(failure, errors.LowwaterError) else leaving or 0.0
        if failure is not None or leaving is not None:
            busy = isinstance(failure, (*BUSY, *DENIED))
            if not busy:
                known.routes.failed(self._opened_at)
            if self.key != HOME:
                known.lose_all(self, self._backoff.spread(at_least) if busy else 0.0)
                return 0.0  # what was followed here is looked for, which has delays of its own
        return self._backoff.next(at_least)

    def _ever_told(self) -> Sequence[str]:
        return list(self._known.ratchet.views if self.covers_all else self._covered)

    def _log(self, failure: Exception | None) -> None:
        if isinstance(failure, errors.Unavailable | errors.ShuttingDown):
            logger.info("the watch stream to %s ended: %s", self._opened_at, failure)
        elif isinstance(failure, errors.LowwaterError):
            logger.warning("the watch stream to %s ended: %s", self._opened_at, failure)
        elif failure is not None:
            logger.error("the watch stream to %s failed; it is opened anew", self._opened_at, exc_info=failure)

    def retire(self) -> None:
        """Nobody follows anything here."""
        self._known.retired(self)
