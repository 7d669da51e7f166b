"""What one process has heard of watermarks: the state machine of its watch stream."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import grpc

from lowwater import errors
from lowwater._core import checks, wire
from lowwater._core.attempts import error_of_call
from lowwater._core.backoff import Backoff
from lowwater._core.ratchet import Ratchet
from lowwater._core.settings import Settings
from lowwater._core.surroundings import Surroundings
from lowwater._pb.lowwater.v1 import watermarks_pb2
from lowwater.views import WatermarkView

__all__ = ["BEAT", "LATE", "SLEW", "Subscription", "WatchState", "WatcherStatistics"]

logger = logging.getLogger("lowwater")

BEAT: Final = 1.0
"""Seconds after which the authority repeats itself when nothing changes."""

LATE: Final = 2 * BEAT
"""A message that is older than so many seconds when it is read has been waiting in a buffer."""

MOST_NAMES: Final = 10_000
"""Most names in one read, as the authority takes them."""

SLEW: Final = 0.0005
"""How fast two clocks may drift apart: NTP corrects by at most this rate, and plain clocks drift by less."""


@dataclass(frozen=True, slots=True)
class WatcherStatistics:
    """What the watch stream of a client has done."""

    streams: int
    """Watch streams opened so far."""
    messages: int
    """Messages received, beats included."""
    held_back: int
    """Values that came lower than seen before, and were not shown."""


class Subscription:
    """Names that somebody follows; none means all that are registered, now and later."""

    __slots__ = ("confirmed", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names: tuple[str, ...] = names
        self.confirmed: bool = False
        """Whether a stream that follows all the names was live at the subscription or since. Before, what the ratchet has of
        them may be of a life that ended while nobody followed them, and must not be used."""


class WatchState:
    """The newest watermarks of all that is followed, over one stream at a time.

    A stream follows the names that were subscribed when it was opened. When more are added it is renewed, and after
    every failure another is opened, with a backoff. What was seen stays; it only gets stale.

    **How old a message is.** The processing time in a message says when, by the authority's clock, its values were confirmed as
    the newest. The message that travelled fastest tells how that clock stands to this process's own: the *offset* is the least
    of (time read - time confirmed) over the stream, allowed to grow by ``SLEW`` because clocks drift. So a process that was
    stopped, and then reads a minute of messages from gRPC's buffers at once, knows how old each is. When the
    authority's clock jumps forward, the next message lowers the offset by the jump. When it jumped back the values seem
    older than they are, until the drift has caught up or the stream is renewed. A message whose time did not grow is
    no news: the authority's journal hangs, and it cannot say that its values are still the newest.

    **The newest first.** While the newest message is late, newer ones stand right behind it. Its values pass the ratchet, but
    :attr:`holding` keeps those who show every change asleep, until a message is not late, the stream ends, or a beat has
    passed: a buffer is read within that time, so by then it is the clocks that moved.

    Nothing here waits or locks. Costs: O(names) a stream, O(names x shares) a message.
    """

    def __init__(self, settings: Settings, surroundings: Surroundings) -> None:
        self.ratchet: Ratchet = Ratchet(settings.server_token)
        self.failure: errors.LowwaterError | None = None
        """Why nothing will ever be heard again."""
        self.holding: bool = False
        """Whether values newer than those known are about to come."""
        self.live: bool = False
        """Whether a stream is open that has told of all it follows."""
        self.renewing: bool = False
        """Whether the open stream is to be ended because it does not follow all that is wanted."""
        self._address = settings.address
        self._monotonic = surroundings.monotonic
        self._backoff = Backoff(surroundings.random)
        self._names: Counter[str] = Counter()
        self._everything = 0
        self._unconfirmed: dict[Subscription, None] = {}
        self._heard: dict[str, float] = {}
        self._streams = 0
        self._messages = 0
        # Of the open stream.
        self._open = False
        self._covered: frozenset[str] = frozenset()
        self._covers_all = False
        self._leaving = 0.0
        self._offset = float("inf")
        self._confirmed_to = 0
        self._heard_at = 0.0
        self._late_since: float | None = None

    # -- subscriptions ------------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether anybody follows anything."""
        return bool(self._names or self._everything)

    def subscribe(self, names: Iterable[str]) -> Subscription:
        """Follow names from now on; ``renewing`` tells whether the open stream has to make room for one that follows them.

        Raises InvalidArgument, and changes nothing: what the stream cannot carry would end every stream from now on.
        """
        subscription = Subscription(tuple(checks.known_name("names", name) for name in checks.listed("names", names)))
        followed = len(self._names.keys() | set(subscription.names))
        if subscription.names and followed > MOST_NAMES:
            msg = (
                f"names: a client follows at most {MOST_NAMES} computations by name, not {followed}; name none, for all"
            )
            raise errors.InvalidArgument(msg, metadata={"field": "names", "fix": "name none, for all"})
        self._names.update(subscription.names)
        self._everything += not subscription.names
        if self._open and not self._covers(subscription.names):
            self.renewing = True
        self._unconfirmed[subscription] = None
        self._confirm()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Follow them no longer; once."""
        self._unconfirmed.pop(subscription, None)
        self._names.subtract(subscription.names)
        self._names = +self._names
        self._everything -= not subscription.names

    def _covers(self, names: Sequence[str]) -> bool:
        return self._covers_all or (bool(names) and self._covered.issuperset(names))

    def _confirm(self) -> None:
        """Let subscriptions use what is known, if the stream that is open now has told of all their names."""
        if self.live:
            for subscription in [each for each in self._unconfirmed if self._covers(each.names)]:
                subscription.confirmed = True
                del self._unconfirmed[subscription]

    # -- reading ------------------------------------------------------------------------------------------------------

    def stale_for(self, names: Sequence[str]) -> float:
        """Return how many seconds ago the values of all the names were confirmed last; infinite when they never were."""
        now = self._monotonic()
        return max((now - self._heard_of(name) for name in names), default=0.0)

    def _heard_of(self, name: str) -> float:
        if self.live and (self._covers_all or name in self._covered):
            return self._heard_at
        return self._heard.get(name, float("-inf"))

    def check(self) -> None:
        """Raise what ended the watching, if something did."""
        if self.failure is not None:
            raise self.failure

    @property
    def server_token(self) -> str:
        """The deployment this client belongs to; empty before the first answer."""
        return self.ratchet.server_token

    def admit(self, server_token: str | None, views: Iterable[WatermarkView] = ()) -> list[WatermarkView]:
        """Pass what a unary call answered through the ratchet, and return what may be shown.

        Raises ServerTokenMismatch and StaleEpoch.
        """
        if server_token is not None:
            self.ratchet.check_token(server_token)
        shown: list[WatermarkView] = []
        for view in views:
            self.ratchet.admit(view)
            shown.append(self.ratchet.get(view.computation))
        return shown

    def begin(self, lives: Iterable[tuple[str, int]]) -> None:
        """Take over the new lives (name, incarnation) of computations that were reset."""
        for name, incarnation in lives:
            self.ratchet.begin(name, incarnation)

    def statistics(self) -> WatcherStatistics:
        """Return what was done so far."""
        return WatcherStatistics(self._streams, self._messages, self.ratchet.held_back)

    # -- the stream ---------------------------------------------------------------------------------------------------

    def open(self) -> watermarks_pb2.WatchRequest:
        """Begin a stream that follows all that is wanted now; returns its request."""
        request = watermarks_pb2.WatchRequest(server_token=self.ratchet.server_token)
        self._covers_all = bool(self._everything)
        if not self._covers_all:
            request.computations.extend(sorted(self._names))
        self._covered = frozenset(request.computations)
        self._open = True
        self.renewing = False
        self._leaving = 0.0
        self._offset, self._confirmed_to, self._late_since = float("inf"), 0, None
        self._streams += 1
        return request

    def take(self, response: watermarks_pb2.WatchResponse) -> bool:
        """Take a message; returns whether the stream is to be left. Raises ServerTokenMismatch and StaleEpoch."""
        self.ratchet.check_token(response.server_token)
        self._messages += 1
        for message in response.watermarks:
            self.ratchet.admit(wire.watermark_view(message))
        self._date(response.time_micros)
        self.live = True
        self._confirm()
        self._backoff.reset()
        if not response.HasField("go_away"):
            return False
        logger.info("the authority goes away: %s", response.go_away.reason)
        self._leaving = response.go_away.retry_after_millis / 1e3
        return True

    def _date(self, time_micros: int) -> None:
        """Note when the newest values were confirmed, and whether newer ones are about to come."""
        now = self._monotonic()
        if time_micros > self._confirmed_to:
            moment = time_micros / 1e6
            drift = (time_micros - self._confirmed_to) / 1e6 * SLEW
            self._offset = min(now - moment, self._offset + drift)
            self._confirmed_to = time_micros
            self._heard_at = moment + self._offset
            if now - self._heard_at <= LATE:
                self._late_since = None
            elif self._late_since is None:
                self._late_since = now
        self.holding = self._late_since is not None and now - self._late_since <= BEAT

    def ended(self, failure: Exception | None) -> float:
        """Take the end of a stream, and what ended it if something did; returns the seconds to wait before the next.

        Another deployment ends the watching, :attr:`failure` says so. Whatever else it is, watching must go on: a stage whose
        inputs are never heard again holds all behind it.
        """
        if self.live:
            names = self.ratchet.views if self._covers_all else self._covered
            self._heard.update(dict.fromkeys(names, self._heard_at))
        renewed, self.renewing = self.renewing, False
        self._open = self.live = self._covers_all = self.holding = False
        self._covered = frozenset()
        if isinstance(failure, grpc.RpcError):
            if renewed:
                return 0.0
            failure = error_of_call(failure, self._address)
        if failure is None:
            return 0.0 if renewed else self._leaving + self._backoff.next()
        if isinstance(failure, errors.ServerTokenMismatch):
            logger.error("stopped watching: %s", failure)
            self.failure = failure
            return 0.0
        if isinstance(failure, errors.StaleEpoch):
            logger.error("%s", failure)
        elif isinstance(failure, errors.Unavailable | errors.ShuttingDown):
            logger.info("the watch stream ended: %s", failure)
        elif isinstance(failure, errors.LowwaterError):
            logger.warning("the watch stream ended: %s", failure)
        else:
            logger.error("the watch stream failed; it is opened anew", exc_info=failure)
        return self._backoff.next()
