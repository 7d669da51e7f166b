"""The thread that follows watermarks, one per client however many subscriptions there are."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from lowwater import errors
from lowwater._core import wire
from lowwater._core.backoff import Backoff
from lowwater._core.ratchet import Ratchet
from lowwater._pb.lowwater.v1 import watermarks_pb2
from lowwater._sync.connection import Connection, closed_client, error_of_call
from lowwater.views import WatermarkView

__all__ = ["Subscription", "Watcher", "WatcherStatistics"]

logger = logging.getLogger("lowwater")


@dataclass(frozen=True, slots=True)
class WatcherStatistics:
    """What the watch thread of a client has done."""

    streams: int
    """Watch streams opened so far."""
    messages: int
    """Messages received, beats included."""
    held_back: int
    """Values that came lower than seen before, and were not shown."""


class Watcher:
    """Keeps the newest watermarks of all subscribed names. One stream, one thread, started by the first subscription.

    The stream is opened anew when names are added and after every failure, with a backoff. What was seen stays: values only
    get stale, and :meth:`stale_for` says by how much.
    """

    def __init__(self, connection: Connection) -> None:
        self.changed = threading.Condition()
        """Notified whenever something was heard. Guards everything here."""
        self.ratchet = Ratchet(connection.settings.server_token)
        self.failure: errors.LowwaterError | None = None
        """Why nothing will ever be heard again."""
        self._connection = connection
        self._thread: threading.Thread | None = None
        self._call: Any = None
        self._renewing = False
        self._names: Counter[str] = Counter()
        self._everything = 0
        self._covered: frozenset[str] = frozenset()
        self._covers_all = False
        self._live = False
        self._unconfirmed: set[Subscription] = set()
        self._heard_at = 0.0
        self._confirmed_to = 0
        """The processing time, by the authority's clock, up to which this stream's values are confirmed."""
        self._heard: dict[str, float] = {}
        self._streams = 0
        self._messages = 0

    # -- subscriptions ----------------------------------------------------------------------------------------------

    def subscribe(self, names: Iterable[str]) -> Subscription:
        """Follow names from now on; no names means all that are registered, now and later."""
        subscription = Subscription(self, tuple(names))
        with self.changed:
            self._names.update(subscription.names)
            self._everything += not subscription.names
            self._reopen_unless_covered(subscription.names)
            self._unconfirmed.add(subscription)
            self._confirm()
            if self._thread is None and not self._connection.closed.is_set():
                self._thread = threading.Thread(target=self._run, name="lowwater-watch", daemon=True)
                self._thread.start()
            self.changed.notify_all()
        return subscription

    def _unsubscribe(self, subscription: Subscription) -> None:
        with self.changed:
            self._unconfirmed.discard(subscription)
            self._names.subtract(subscription.names)
            self._names = +self._names
            self._everything -= not subscription.names

    def _reopen_unless_covered(self, names: Sequence[str]) -> None:
        covered = self._covers_all or (bool(names) and self._covered.issuperset(names))
        if not covered and self._call is not None:
            self._renewing = True
            self._call.cancel()

    def _is_live(self, name: str) -> bool:
        return self._live and (self._covers_all or name in self._covered)

    def _confirm(self) -> None:
        """Let subscriptions use what is known, if the stream that is open now has told of all their names."""
        for subscription in list(self._unconfirmed):
            names = subscription.names
            if self._live and (self._covers_all or (names and self._covered.issuperset(names))):
                subscription.confirmed = True
                self._unconfirmed.discard(subscription)

    def stale_for(self, names: Sequence[str]) -> float:
        """Return the seconds since the authority was last heard of all the names; infinite when never. Hold ``changed``."""
        now = time.monotonic()
        return max(
            (now - (self._heard_at if self._is_live(name) else self._heard.get(name, float("-inf"))) for name in names),
            default=0.0,
        )

    def wait(self, until: Callable[[], bool], deadline: float | None) -> bool:
        """Wait for a condition on what was heard; False when the deadline, on the monotonic clock, came first.

        Hold ``changed``. Raises what ended the watching, and Closed.
        """
        while not until():
            if self.failure is not None:
                raise self.failure
            if self._connection.closed.is_set():
                raise closed_client()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self.changed.wait(left)
        return True

    def wait_beyond(self, version: int, deadline: float | None, unless: Callable[[], bool] = lambda: False) -> bool:
        """Wait until something was heard that is newer than a version of the ratchet; as :meth:`wait`."""
        return self.wait(lambda: self.ratchet.version > version or unless(), deadline)

    def check(self) -> None:
        """Raise what ended the watching, if something did."""
        if self.failure is not None:
            raise self.failure

    def admit(self, server_token: str | None, views: Iterable[WatermarkView]) -> list[WatermarkView]:
        """Pass what a unary call answered through the ratchet, and return what may be shown.

        Raises ServerTokenMismatch and StaleEpoch.
        """
        with self.changed:
            if server_token is not None:
                self.ratchet.check_token(server_token)
            shown = []
            for view in views:
                if self.ratchet.admit(view):
                    self.changed.notify_all()
                shown.append(self.ratchet.get(view.computation))
            return shown

    def begin(self, lives: Iterable[tuple[str, int]]) -> None:
        """Take over the new lives (name, incarnation) of computations that were reset."""
        with self.changed:
            for name, incarnation in lives:
                if self.ratchet.begin(name, incarnation):
                    self.changed.notify_all()

    @property
    def server_token(self) -> str:
        """The deployment this client belongs to; empty before the first answer."""
        return self.ratchet.server_token

    def statistics(self) -> WatcherStatistics:
        """Return what was done so far."""
        return WatcherStatistics(self._streams, self._messages, self.ratchet.held_back)

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff(random.random)
        while not self._connection.closed.is_set() and self.failure is None:
            with self.changed:
                self.changed.wait_for(lambda: self._names or self._everything or self._connection.closed.is_set())
            delay = 0.0
            try:
                delay = self._follow(backoff)
            except errors.ServerTokenMismatch as error:
                logger.error("stopped watching: %s", error)
                with self.changed:
                    self.failure = error
            except errors.StaleEpoch as error:
                logger.error("%s", error)
                delay = backoff.next()
            except errors.Closed:
                break
            except Exception:
                # Whatever it is, watching must go on: a stage whose inputs are never heard again holds all behind it.
                logger.exception("the watch stream failed; it is opened anew")
                delay = backoff.next()
            with self.changed:
                self._end_stream()
            self._connection.closed.wait(delay)
        with self.changed:
            self.changed.notify_all()

    def _follow(self, backoff: Backoff) -> float:
        """Follow one stream to its end; returns the seconds to wait before the next."""
        watch = self._connection.watermarks.Watch
        with self.changed:
            request = watermarks_pb2.WatchRequest(server_token=self.ratchet.server_token)
            if not self._everything:
                request.computations.extend(sorted(self._names))
            self._covered, self._covers_all = frozenset(request.computations), bool(self._everything)
            self._renewing = False
            self._confirmed_to = 0
            if self._connection.closed.is_set():
                raise closed_client()
            self._call = call = watch(request, metadata=self._connection.metadata)
            self._streams += 1
        try:
            for response in call:
                self._take(response)
                backoff.reset()
                if response.HasField("go_away"):
                    logger.info("the authority goes away: %s", response.go_away.reason)
                    return response.go_away.retry_after_millis / 1e3 + backoff.next()
        except grpc.RpcError as failure:
            if self._renewing or self._connection.closed.is_set():
                return 0.0
            error = error_of_call(failure, self._connection.settings.address)
            if isinstance(error, errors.ServerTokenMismatch):
                raise error from None
            level = logging.INFO if isinstance(error, errors.Unavailable | errors.ShuttingDown) else logging.WARNING
            logger.log(level, "the watch stream ended: %s", error)
        finally:
            call.cancel()
        return backoff.next()

    def _take(self, response: watermarks_pb2.WatchResponse) -> None:
        views = [wire.watermark_view(message) for message in response.watermarks]
        with self.changed:
            self.ratchet.check_token(response.server_token)
            self._messages += 1
            for view in views:
                self.ratchet.admit(view)
            self._live = True
            # An authority whose journal hangs goes on beating, but cannot say that its values are still the newest.
            if response.time_micros > self._confirmed_to:
                self._confirmed_to = response.time_micros
                self._heard_at = time.monotonic()
            self._confirm()
            self.changed.notify_all()

    def _end_stream(self) -> None:
        if self._live:
            names = self.ratchet.views if self._covers_all else self._covered
            self._heard.update(dict.fromkeys(names, self._heard_at))
        self._live = self._covers_all = False
        self._covered = frozenset()
        self._call = None

    def stop(self) -> None:
        """End the stream; the connection must have been closed."""
        with self.changed:
            if self._call is not None:
                self._call.cancel()
            self.changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5.0)


class Subscription:
    """Names that somebody follows. Close it when nobody does any more."""

    def __init__(self, watcher: Watcher, names: tuple[str, ...]) -> None:
        self.names = names
        self.watcher = watcher
        self.confirmed = False
        """Whether a stream that follows all the names was live at the subscription or since. Before, what the ratchet has of
        them may be of a life that ended while nobody followed them, and must not be used. Hold ``watcher.changed``."""
        self._closed = False

    def close(self) -> None:
        """Follow them no longer."""
        if not self._closed:
            self._closed = True
            self.watcher._unsubscribe(self)
