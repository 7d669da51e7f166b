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
from lowwater._core.backoff import CAP, Backoff
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

    __slots__ = ("confirmed", "names", "streams")

    def __init__(self, names: tuple[str, ...], streams: int) -> None:
        self.names: tuple[str, ...] = names
        self.streams: int = streams
        """How many streams had been opened before: what any later one brings was sent after the subscription."""
        self.confirmed: bool = False
        """Whether a stream that follows all the names had fresh news at the subscription or since. Before, what the ratchet has
        of them may be of a life that ended while nobody followed them or read, and must not be used."""


class WatchState:
    """The newest watermarks of all that is followed, over one stream at a time.

    A stream follows the names that were subscribed when it was opened. When more are added it is renewed, and after
    every failure another is opened, with a backoff. What was seen stays; it only gets stale.

    **How old a message is.** A message says when, by the authority's clock, it was sent, and when its values were confirmed as
    the newest. The message that travelled fastest tells how that clock stands to this process's own: the *offset* is the least
    of (time read - time sent) over the stream, allowed to grow by ``SLEW`` because clocks drift. So a process that was
    stopped, and then reads a minute of messages from gRPC's buffers at once, knows how old each is. When the
    authority's clock jumps forward, the next message lowers the offset by the jump. When it jumped back the values seem
    older than they are, until the drift has caught up or the stream is renewed. A message whose time confirmed did not grow
    is no news: the authority's journal hangs, and it cannot say that its values are still the newest. An authority
    of the first release does not say when it sent a message; there the two times count as one.

    **The newest first.** While the newest message is late, newer ones stand right behind it. Its values pass the ratchet, but
    :attr:`holding` keeps those who show every change asleep, until a message is not late, the stream ends, or a beat has
    passed: a buffer is read within that time, so by then it is the clocks that moved.

    **Fresh news.** Somebody who begins to follow what is followed already may use what is known only when it was confirmed
    within ``LATE``; else a later message has to confirm it. A stream whose messages are late without a buffer, or whose first
    message took long, cannot tell how old they are: it is renewed for those who wait. What the next one brings is new for sure.

    Nothing here waits or locks. Costs: O(names) a stream, O(names x shares) a message.
    """

    def __init__(self, settings: Settings, surroundings: Surroundings) -> None:
        self.ratchet: Ratchet = Ratchet(settings.server_token)
        self.failure: errors.LowwaterError | None = None
        """Why nothing will ever be heard again."""
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
        self._opened_at = 0.0
        self._prompt = False  # whether the first message came soon enough to measure with
        self._offset = float("inf")
        self._sent_to = 0
        self._confirmed_to = 0
        self._heard_at = float("-inf")
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
        listed = tuple(checks.known_name("names", name) for name in checks.listed("names", names))
        subscription = Subscription(listed, self._streams)
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
        """Let subscriptions use what is known, if the stream that is open now has fresh news of all their names."""
        if self.live and self._monotonic() - self._heard_at <= LATE:
            for subscription in [each for each in self._unconfirmed if self._covers(each.names)]:
                if self._prompt or subscription.streams < self._streams:
                    subscription.confirmed = True
                    del self._unconfirmed[subscription]

    @property
    def _cannot_tell(self) -> bool:
        """Whether somebody waits for news of an open stream that cannot tell how old its messages are."""
        waiting = [each for each in self._unconfirmed if self._covers(each.names)]
        if self._late_since is not None and not self.holding:
            return bool(waiting)
        return not self._prompt and any(each.streams == self._streams for each in waiting)

    # -- reading ------------------------------------------------------------------------------------------------------

    def stale_for(self, names: Sequence[str]) -> float:
        """Return how many seconds ago the values of all the names were confirmed last; infinite when they never were."""
        now = self._monotonic()
        return max((max(0.0, now - self._heard_of(name)) for name in names), default=0.0)

    def _heard_of(self, name: str) -> float:
        if self.live and (self._covers_all or name in self._covered):
            return self._heard_at
        return self._heard.get(name, float("-inf"))

    @property
    def holding(self) -> bool:
        """Whether values newer than those known are about to come."""
        return self._late_since is not None and self._monotonic() - self._late_since <= BEAT

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
        self._opened_at = self._monotonic()
        self._prompt, self._late_since = False, None
        self._offset, self._sent_to, self._confirmed_to = float("inf"), 0, 0
        self._streams += 1
        return request

    def take(self, response: watermarks_pb2.WatchResponse) -> bool:
        """Take a message; returns whether the stream is to be left. Raises ServerTokenMismatch and StaleEpoch."""
        self.ratchet.check_token(response.server_token)
        self._messages += 1
        for message in response.watermarks:
            self.ratchet.admit(wire.watermark_view(message))
        self._date(response.time_micros, response.clock_micros)
        self._confirm()
        if response.HasField("go_away"):
            logger.info("the authority goes away: %s", response.go_away.reason)
            self._leaving = response.go_away.retry_after_millis / 1e3
            return True
        self.renewing = self.renewing or self._cannot_tell
        return self.renewing

    def _date(self, time_micros: int, clock_micros: int) -> None:
        """Note when the newest values were sent and confirmed, and whether newer ones are about to come."""
        now = self._monotonic()
        if not self.live:
            self.live, self._prompt = True, now - self._opened_at <= LATE
        sent = max(time_micros, clock_micros)
        if sent > self._sent_to:
            drift = (sent - self._sent_to) / 1e6 * SLEW
            self._offset = min(now - sent / 1e6, self._offset + drift)
            self._sent_to = sent
            if now - (sent / 1e6 + self._offset) <= LATE:
                self._late_since = None
            elif self._late_since is None:
                self._late_since = now
        if time_micros > self._confirmed_to:
            self._confirmed_to = time_micros
            self._heard_at = time_micros / 1e6 + self._offset
        elif time_micros == self._confirmed_to:
            # A message that travelled faster tells that the same moment was longer ago.
            self._heard_at = min(self._heard_at, time_micros / 1e6 + self._offset)

    def ended(self, failure: Exception | None) -> float:
        """Take the end of a stream, and what ended it if something did; returns the seconds to wait before the next.

        Another deployment ends the watching, :attr:`failure` says so. Whatever else it is, watching must go on: a stage whose
        inputs are never heard again holds all behind it.
        """
        if self.live:
            names = self.ratchet.views if self._covers_all else self._covered
            self._heard.update(dict.fromkeys(names, self._heard_at))
            # Bringing something proves little: a stream that is opened and fails at once, again and again, has to back off.
            if self._monotonic() - self._opened_at > CAP:
                self._backoff.reset()
        renewed, self.renewing = self.renewing, False
        self._open = self.live = self._covers_all = False
        self._covered, self._late_since = frozenset(), None
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
