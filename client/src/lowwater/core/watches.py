"""Watermarks as one process learns them: from a shard's stream to the readers in this process.

Readers wait for a time, iterate over changes, or fold several computations.

How a value flows. Each reader has a :class:`Subscription` to the computations that it follows. The
:class:`Placement` places each computation at the stream of the shard that serves it, and searches
for that shard after a redirect or a failure. A :class:`WatchStream` opens one stream after the
other to one shard. Its messages pass the ratchet, which holds back every value lower than one seen
before, and show how fresh the values are. :class:`WatchState` has all of that; readers store no
values of their own. :class:`Waiting`, :class:`Changes`, :class:`Folding` and :class:`FoldChanges`
look at the newest values when they are woken, and tell whether there is something to show. So a
slow reader gets the newest value and no backlog.

This module is pure: no I/O, no locks, no waiting; clock and randomness are passed in. The shells
(``_async/watcher.py``, and ``_sync/watcher.py``, which is generated from it) open the streams that
:meth:`Placement.tend` returns, pass each message to :meth:`WatchStream.take`, and wake all readers
after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial

import grpc

from lowwater import errors
from lowwater.core import checks, wire
from lowwater.core.ages import BEAT, LATE, SLEW, Ages
from lowwater.core.attempts import DENIED, error_of_call, words_of
from lowwater.core.backoff import CAP, FIRST
from lowwater.core.denials import Denials
from lowwater.core.fold import Reading, fold_inputs
from lowwater.core.followed import Followed
from lowwater.core.raising import own_copy
from lowwater.core.ratchet import Ratchet
from lowwater.core.router import HOME, MOST_HOPS, MOST_NAMES, Router
from lowwater.core.search import Search
from lowwater.core.settings import Settings
from lowwater.core.streams import Many, ShardStream
from lowwater.core.surroundings import Surroundings
from lowwater.core.text import duration
from lowwater.core.why import Why
from lowwater.v1 import types_pb2, watermarks_pb2
from lowwater.views import Inputs, Promise, WatermarkView
from lowwater.watermark import EventTime, Watermark

__all__ = [
    "BEAT",
    "LATE",
    "MOST_NAMES",
    "SLEW",
    "Changes",
    "FoldChanges",
    "Folding",
    "Placement",
    "Subscription",
    "Waiting",
    "WatchState",
    "WatchStream",
    "WatcherStatistics",
    "check_followed",
    "closed_reader",
]

logger: logging.Logger = logging.getLogger("lowwater")

_LATELY = 5.0
"""Seconds of silence after which the authority is asked nothing more for an error text. A healthy
authority sends a message every second or so."""


@dataclass(frozen=True, slots=True)
class WatcherStatistics:
    """Counters of a client's watch streams."""

    streams: int
    """Number of watch streams opened so far."""
    messages: int
    """Number of messages received, beats included."""
    held_back: int
    """Number of values that were lower than one seen before, and so were not shown."""
    unserved: tuple[str, ...] = ()
    """Followed computations that the search looked for and no stream serves now. Their values are
    the last ones seen, and grow stale."""
    stale_for: float = float("inf")
    """Seconds since all followed values were last confirmed as the newest; infinite before the
    first time."""


class Subscription:
    """One reader's subscription to some computations. No names: all registered, now and later."""

    __slots__ = ("confirmed", "names", "streams", "unheard")

    def __init__(self, names: tuple[str, ...], streams: int) -> None:
        self.names: tuple[str, ...] = names
        self.streams: int = streams
        """Number of streams the client had opened before. Messages of a later stream were sent
        after the subscription began."""
        self.confirmed: bool = False
        """True once the streams of all the names have had fresh news since the subscription began.

        Before, the ratchet's values may belong to an incarnation that ended while nobody followed
        the names, and must not be used."""
        self.unheard: dict[str, None] | None = dict.fromkeys(names) or None
        """Names without fresh news so far. One that no shard serves stays here, and the others are
        shown. None: home has not yet listed what is registered."""


class WatchStream(ShardStream):
    """One stream at a time to one shard.

    A stream follows the names that were placed here when it was opened. When a name is added, the
    stream is renewed as soon as its first message has arrived. After a failure another is opened,
    with a backoff. A name that the shard redirects is no longer followed here until the shard sends
    it again; a stream without any name left is closed.
    """

    def __init__(self, state: WatchState, key: str) -> None:
        super().__init__("watch", key, state.router, state.surroundings)
        self.number: int = 0
        """Number of the newest stream, counted over the whole client. Its messages were sent after
        any subscription that began earlier."""
        self.renewing: bool = False
        """True when the open stream has to end because it does not follow all that it should."""
        self.covers_all: bool = False
        """True when the open stream follows every registered computation."""
        self._state = state
        self._ages: Ages | None = None  # Ages of the open stream's messages.
        self.concerned: Set[str] | None = None
        """See Streamed. None also when values were held back or the followed names changed: readers
        of other names may then have something new."""
        # True when the newest message neither held values back nor changed what is followed.
        self._settled = False
        # Names of the request, in order: the order of a set would make a simulated run
        # unrepeatable.
        self._covered: dict[str, None] = {}
        self._departed: set[str] = set()
        self._sent_promises: dict[str, Promise | None] = {}
        """Promise that the open stream last sent of each computation. Later messages leave it out
        until it changes."""

    @property
    def failure(self) -> errors.LowwaterError | None:
        """Error that ended all watching; None while it goes on."""
        return self._state.failure

    @property
    def needed(self) -> bool:
        """True when some subscription follows a computation placed here."""
        return self._state.placement.needed_at(self.key)

    @property
    def live(self) -> bool:
        """True when a stream is open and its first message, about all it follows, is here."""
        return self._ages is not None and self._ages.confirmed_at is not None

    @property
    def open_now(self) -> bool:
        """True when a stream is open."""
        return self._ages is not None

    @property
    def interrupted(self) -> bool:
        """True when the open stream has to end now; frequent renewals await its first message."""
        return self.renewing and self.live

    def follows(self, name: str) -> bool:
        """Return True when the open stream covers a computation that is placed here."""
        return (
            (self.covers_all or name in self._covered)
            and name not in self._departed
            and self._state.placement.at(name) == self.key
        )

    @property
    def idle(self) -> bool:
        """True when the open stream is live and no longer follows anything."""
        return self.live and not self.covers_all and not any(map(self.follows, self._covered))

    @property
    def confirmed_at(self) -> float | None:
        """Time of the last confirmation of the open stream's values; None before the first."""
        return self._ages.confirmed_at if self._ages is not None else None

    @property
    def holding(self) -> bool:
        """True when a late message was read, so that newer values are in the buffer behind it."""
        return self._ages is not None and self._ages.holding

    def confirms(self, subscription: Subscription) -> bool:
        """Return True when the open stream's values are fresh news to a subscription."""
        ages = self._ages
        return ages is not None and ages.fresh and (ages.prompt or subscription.streams < self.number)

    def must_renew_for(self, waiting: Iterable[Subscription]) -> bool:
        """True when this stream cannot measure ages, and so would never confirm a subscription."""
        ages = self._ages
        if ages is None or (ages.prompt and not ages.astray):
            return False
        affected = (
            subscription
            for subscription in waiting
            if (self.covers_all and not subscription.names) or any(map(self.follows, subscription.names))
        )
        return any(ages.astray or subscription.streams >= self.number for subscription in affected)

    # -- the stream --------------------------------------------------------------------------------

    def open(self, address: str) -> watermarks_pb2.WatchRequest:
        """Begin a stream to an address; return its request, with all that is followed here."""
        state = self._state
        request = watermarks_pb2.WatchRequest(
            server_token=state.ratchet.server_token, interval_millis=state.interval_millis
        )
        names = sorted(state.placement.placed(self.key))
        # A stream to another shard than home follows everything when there are too many names for
        # one request; surplus values are ignored.
        self.covers_all = (self.key == HOME and state.placement.everything) or len(names) > MOST_NAMES
        if not self.covers_all:
            request.computations.extend(names)
        self._covered, self._departed, self._sent_promises = dict.fromkeys(request.computations), set(), {}
        self._settled = False
        self._ages = Ages(state.surroundings.monotonic)
        self._opened_at, self._retry_after, self.renewing = address, None, False
        self.number = state.opened()
        return request

    def take(self, response: watermarks_pb2.WatchResponse) -> bool:
        """Take a message; return True when the stream has to end. Raises ServerTokenMismatch."""
        state, was_settled = self._state, self._settled and not self._state.any_unconfirmed
        self.concerned, self._settled = None, False
        state.ratchet.check_token(response.server_token)
        state.received()
        for redirect in response.redirects:
            self._redirect(redirect)
        departed_before = len(self._departed)
        arrived = [message for message in response.watermarks if self._admit(message)]
        for message in response.dropped:
            state.dropped(wire.watermark_view(message))
        if self._ages is not None:
            self._ages.read(response.time_micros, response.clock_micros)
            if self._ages.lasted > CAP:
                state.placement.lasted(self)
        if response.redirects or arrived:
            state.placement.tidy()
        state.confirm()
        if response.HasField("go_away"):
            return self._leave(response.go_away)
        self.renewing = self.renewing or state.must_renew(self)
        self._settled = not (self.renewing or self.holding or state.any_unconfirmed)
        if (
            was_settled
            and self._settled
            and len(self._departed) == departed_before
            and not (response.redirects or arrived or response.dropped)
        ):
            self.concerned = {message.computation for message in response.watermarks}
        return self.renewing

    def _redirect(self, redirect: types_pb2.Redirect) -> None:
        # This comes before the message counts as news: it brings no news of a name that it
        # redirects.
        self._state.placement.redirected(self, redirect.computation, redirect.address, redirect.epoch)
        self._departed.add(redirect.computation)
        self._sent_promises.pop(redirect.computation, None)

    def _admit(self, message: types_pb2.Watermark) -> bool:
        """Take a value; return True when its computation is newly placed here."""
        name, ratchet = message.computation, self._state.ratchet
        try:
            view = wire.watermark_view(message, self._sent_promises.get(name))
            ratchet.admit(view)
            if message.registered:
                self._sent_promises[name] = view.promise
            else:
                self._sent_promises.pop(name, None)
        except errors.StaleEpoch as stale:
            logger.warning("%s", stale)  # an ordinary event: the shard was replaced a moment ago
            self._state.placement.refused(self, name)
            self._departed.add(name)
            return False
        unplaced = name in self._departed or (self.covers_all and self._state.placement.at(name) != self.key)
        arrived = unplaced and self._state.placement.arrived(self, name, self._opened_at, message.epoch)
        if arrived:
            self._departed.discard(name)
        self._state.placement.served(self, name, message.epoch)
        return arrived

    def ended(self, failure: Exception | None) -> float:
        """Take the end of a stream and its error, if any; return the seconds until the next.

        Only another deployment at an address given to ``connect`` ends all watching. After any
        other error it must go on: a stage whose inputs are never heard again holds everything
        downstream. A busy shard is asked again after the delay that it named. When a shard refuses
        one computation, the others are asked for at once.
        """
        state = self._state
        if self._ages is not None and self._ages.confirmed_at is not None:
            state.keep_ages(filter(self.follows, self._possible_names()), self._ages.confirmed_at)
            # One message proves little: if it reset the backoff, a stream that fails right after it
            # would be opened again and again without a pause.
            if self._ages.lasted > CAP:
                self._backoff.reset()
        renewed, self.renewing = self.renewing, False
        covered, self._ages, self.covers_all, self._covered = self._covered, None, False, {}
        if renewed and (failure is None or isinstance(failure, grpc.RpcError)):
            return 0.0
        if isinstance(failure, grpc.RpcError):
            failure = error_of_call(failure, self._opened_at)
        if self._is_foreign(failure):
            logger.error("stopped watching: %s", failure)
            state.failure = failure
            return 0.0
        if isinstance(failure, errors.PermissionDenied) and failure.metadata.get("computation") in covered:
            state.placement.deny(self, failure.metadata["computation"], failure)
            # Each refusal takes one name out, so this ends.
            return FIRST * state.surroundings.random()
        state.last_error = failure or state.last_error
        return self._pause_after(failure)

    def _possible_names(self) -> Sequence[str]:
        return list(self._state.ratchet.names if self.covers_all else self._covered.keys())

    def _lose_all(self, at_least: float) -> None:
        self._state.placement.lose_all(self, at_least)

    def retire(self) -> None:
        """Remove this stream from the state: the shell no longer drives it."""
        self._state.placement.retired(self)


class Placement(Many[WatchStream]):
    """The stream that carries each followed computation.

    There is one stream at a time to each shard that is needed. Each computation has one record,
    :class:`~lowwater.core.followed.Followed`, placed at the stream of its shard or, while that is
    unknown, at home, which redirects. The search looks for the computations of a shard that failed;
    :class:`Denials` asks alone for each computation that a stream was refused for. A reader of
    everything follows home without names, and by name what home redirects.
    """

    def __init__(
        self, ratchet: Ratchet, router: Router, surroundings: Surroundings, make_stream: Callable[[str], WatchStream]
    ) -> None:
        self._ratchet = ratchet
        self._router = router
        super().__init__(make_stream)
        self.search: Search[Followed] = Search(router, surroundings, self._relocated)
        self.denials: Denials = Denials(
            router, surroundings, ratchet, followed=self._is_followed, allowed=self._relocated
        )
        self.records: dict[str, Followed] = {}
        """Records by name of all computations that are followed or denied."""
        self.named: dict[str, Followed] = {}
        """Records that a subscription names."""
        self.elsewhere: dict[str, Followed] = {}
        """Records that home does not send to a reader of everything."""
        self._everything = 0

    # -- for subscriptions -------------------------------------------------------------------------

    def follow(self, names: Sequence[str]) -> None:
        """Follow names, or everything without names. Raises InvalidArgument for too many."""
        count = len(self.named) + len(set(names).difference(self.named))
        if names and count > MOST_NAMES:
            msg = f"names: a client follows at most {MOST_NAMES} computations by name, not {count}; name none, for all"
            raise errors.InvalidArgument(msg, metadata={"field": "names", "fix": "name none, for all"})
        records = [self._record(name) for name in names]
        for record in records:
            record.readers += 1
            self.named[record.name] = record
        if not names:
            self._everything += 1
            home = self.streams[HOME]
            home.renewing = home.renewing or (home.open_now and not home.covers_all)
            self._untended[home] = None
        for record in records or list(self.elsewhere.values()):
            self._follow(record)
        for record in records:
            self.denials.hurry(record)

    def unfollow(self, names: Sequence[str]) -> None:
        """Undo one :meth:`follow`."""
        records = [self._record(name) for name in names]
        for record in records:
            record.readers -= 1
            if not record.readers:
                del self.named[record.name]
        self._everything -= not names
        for record in records or self.elsewhere.values():
            if not self._is_followed(record):
                self.search.forget(record)
        for record in records:
            self._let_go(record)
        for key, stream in self.streams.items():
            if key != HOME and stream.open_now and not stream.needed:
                stream.renewing = True
                self._untended[stream] = None

    def stream_of(self, name: str) -> WatchStream | None:
        """Return the stream that serves a computation now; None when none does."""
        key = self.at(name)
        stream = self.streams.get(key) if key is not None else None
        return stream if stream is not None and stream.follows(name) else None

    # -- for the streams ---------------------------------------------------------------------------

    def at(self, name: str) -> str | None:
        """Return the key of a computation's stream; None while it is searched for or denied."""
        record = self.records.get(name)
        return HOME if record is None else record.at

    @property
    def everything(self) -> bool:
        """True when a subscription follows all registered computations."""
        return self._everything > 0

    def placed(self, key: str) -> list[str]:
        """Return the names placed at a stream that a subscription follows by name. O(names)."""
        records = {**self.named, **self.elsewhere} if self.everything else self.named
        return [record.name for record in records.values() if record.at == key]

    def needed_at(self, key: str) -> bool:
        """True when a subscription follows a computation placed at a stream. O(names)."""
        if self.everything and (key == HOME or any(record.at == key for record in self.elsewhere.values())):
            return True
        return any(record.at == key for record in self.named.values())

    def served(self, stream: WatchStream, name: str, epoch: int) -> None:
        """Note that a stream sent a value: the computation has stopped hopping."""
        self._router.note_epoch(name, epoch)
        record = self.records.get(name)
        if record is not None and record.at == stream.key:
            record.hops = 0

    def lasted(self, stream: WatchStream) -> None:
        """End the search for names whose stream has been open for a while."""
        for record in self.search.suspects:
            if self.stream_of(record.name) is stream:
                self.search.served(record)

    def redirected(self, stream: WatchStream, name: str, address: str, epoch: int) -> None:
        """Place a computation where a shard redirects it to."""
        accepted = self._router.redirected(name, address, epoch)
        record = self._record(name)
        self._part(stream, record)
        if record.at != stream.key:
            self._let_go(record)
            return
        self._keep_age(stream, record)
        record.hops += 1
        place = self._router.place(name)
        if accepted and record.hops <= MOST_HOPS and place != stream.key:
            self._place(record, place)
        else:
            self.refused(stream, name)
        self._let_go(record)

    def arrived(self, stream: WatchStream, name: str, address: str, epoch: int) -> bool:
        """Place a computation at a stream that sent it; returns False for a stale epoch."""
        if not self._router.redirected(name, address, epoch):
            return False
        record = self._record(name)
        self.search.forget(record)
        self.denials.forget(record)
        previous = self.stream_of(name)
        if previous is not None:
            self._keep_age(previous, record)
        if stream.covers_all and stream.key == HOME:
            record.elsewhere = False
            self.elsewhere.pop(name, None)
        record.place = stream.key
        self._let_go(record)
        return True

    def refused(self, stream: WatchStream, name: str) -> None:
        """Search for a computation that a shard refuses; the pause grows with each refusal."""
        record = self._record(name)
        self._part(stream, record)
        if record.at == stream.key:
            self._lose(stream, record, self.search.refused(record))
        self._let_go(record)

    def deny(self, stream: WatchStream, name: str, error: errors.LowwaterError) -> None:
        """Take out a computation that ended a stream by its refusal; it is asked for alone."""
        record = self._record(name)
        if record.at == stream.key:
            record.place = None
            for forgotten in self.denials.add(record, error):
                self._let_go(forgotten)
            self._untended[self.denials] = None
        else:
            self._let_go(record)

    def lose_all(self, stream: WatchStream, at_least: float) -> None:
        """Search for all that a stream carried, in ``at_least`` seconds or later. O(names)."""
        for record in self.records.values():
            if record.place == stream.key:
                self._lose(stream, record, at_least)

    def tidy(self) -> None:
        """Mark streams that follow nothing any more, so that they end."""
        for stream in self.streams.values():
            if stream.idle:
                stream.renewing = True
                self._untended[stream] = None

    def _lose(self, stream: WatchStream, record: Followed, at_least: float) -> None:
        if record.at != stream.key:
            return
        self._keep_age(stream, record)
        record.place = None
        if self._is_followed(record):
            self.search.lose(record, at_least)
            self._untended[self.search] = None

    def _keep_age(self, stream: WatchStream, record: Followed) -> None:
        # A computation that has come back to a stream is sent again by the next one only.
        if stream.confirmed_at is not None and stream.follows(record.name):
            self._ratchet.note_confirmed(record.name, stream.confirmed_at)

    def _part(self, stream: WatchStream, record: Followed) -> None:
        """Follow a computation by name when a stream that follows all does not send it."""
        if not stream.covers_all or record.elsewhere:
            return
        record.elsewhere = True
        self.elsewhere[record.name] = record
        if self.everything and record.at != stream.key:
            self._follow(record)  # whoever followed it by name at its shard may have left since

    def _follow(self, record: Followed) -> None:
        place = record.place
        self._place(record, self._router.place(record.name) if place is None or place not in self.streams else place)

    def _place(self, record: Followed, key: str) -> None:
        if record.lost:
            self._untended[self.search] = None
            return
        if record.denial is not None:
            self._untended[self.denials] = None
            return
        record.place = key
        stream = self.stream(key)
        stream.renewing = stream.renewing or (stream.open_now and not stream.follows(record.name))
        self._untended[stream] = None

    def _relocated(self, record: Followed) -> None:
        record.hops = 0
        if self._is_followed(record):
            self._place(record, self._router.place(record.name))
        else:
            self._let_go(record)

    def _record(self, name: str) -> Followed:
        """Return the record of a computation; a new one when there is none."""
        record = self.records.get(name)
        if record is None:
            record = self.records[name] = Followed(name)
        return record

    def _let_go(self, record: Followed) -> None:
        """Delete the record of a computation that is followed no longer, else records pile up."""
        if record.readers or record.elsewhere or record.suspect or record.denial is not None:
            return
        stream = self.stream_of(record.name)
        if stream is not None:
            self._keep_age(stream, record)
        self.records.pop(record.name, None)
        self._ratchet.forget(record.name)

    def _is_followed(self, followed: Followed) -> bool:
        return followed.readers > 0 or (self.everything and followed.elsewhere)


class WatchState:
    """The newest watermarks of all followed computations.

    Their streams are those of the :class:`Placement`. Values already seen stay when their stream
    ends; they only grow stale.

    **The newest first.** While a stream's newest message is late, newer ones are in the buffer
    behind it. Its values pass the ratchet, but :meth:`holding` keeps readers asleep until a message
    is in time, the stream ends, or a beat has passed. A buffer is read within a beat, so after that
    the clocks have moved. See :class:`~lowwater.core.ages.Ages`.

    **Fresh news.** A new reader may use a value that is already there only when it was confirmed
    within ``LATE``; otherwise a later message has to confirm it. A stream whose messages are late
    without a buffer, or whose first message took long, cannot measure their age. It is renewed for
    the readers that wait: messages of the next stream are certainly newer.

    No method waits or locks. Costs: O(names) per stream, O(names x shares) per message.
    """

    def __init__(self, settings: Settings, surroundings: Surroundings, router: Router) -> None:
        self.ratchet: Ratchet = Ratchet(settings.server_token)
        self.failure: errors.LowwaterError | None = None
        """Error that ended all watching; None while it goes on."""
        self.router: Router = router
        self.surroundings: Surroundings = surroundings
        self.interval_millis: int = round(1000 * settings.watch_interval)
        """Least milliseconds between two messages with watermarks of one stream."""
        self.placement: Placement = Placement(self.ratchet, router, surroundings, partial(WatchStream, self))
        self._unconfirmed: dict[Subscription, None] = {}
        self.last_error: Exception | None = None
        """Error of the last stream that ended; None after a message of any stream."""
        self._opened = 0
        self._messages = 0

    # -- subscriptions -----------------------------------------------------------------------------

    def subscribe(self, names: Iterable[str]) -> Subscription:
        """Follow names from now on. Tend :attr:`placement` afterwards.

        Raises InvalidArgument, and then changes nothing: a name that no request can carry would end
        every later stream.
        """
        listed = tuple(checks.followed_name("names", name) for name in checks.listed("names", names))
        subscription = Subscription(listed, self._opened)
        self.placement.follow(listed)
        self._unconfirmed[subscription] = None
        self.confirm()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription. Call it once."""
        self._unconfirmed.pop(subscription, None)
        self.placement.unfollow(subscription.names)

    def confirm(self) -> None:
        """Confirm each subscription for whose names all the open streams have fresh news."""
        for subscription in list(self._unconfirmed):
            self._hear(subscription)
            if self._is_fresh(subscription):
                subscription.confirmed = True
                del self._unconfirmed[subscription]

    def _hear(self, subscription: Subscription) -> None:
        """Take the names with fresh news out of a subscription's ``unheard``."""
        home = self.placement.streams[HOME]
        if subscription.unheard is None and home.covers_all and home.confirms(subscription):
            subscription.unheard = dict.fromkeys(self._known_elsewhere())
        unheard = subscription.unheard or {}
        for name in list(unheard):
            stream = self.placement.stream_of(name)
            if stream is not None and stream.confirms(subscription):
                del unheard[name]

    def _is_fresh(self, subscription: Subscription) -> bool:
        home = self.placement.streams[HOME]
        if not subscription.names and not (home.covers_all and home.confirms(subscription)):
            return False
        # A confirmed subscription is not looked at again, so the rest would stay unheard.
        if subscription.unheard:
            return False
        streams = map(self.placement.stream_of, subscription.names or self._known_elsewhere())
        return all(stream is not None and stream.confirms(subscription) for stream in streams)

    def _known_elsewhere(self) -> Iterable[str]:
        # A name without any value cannot show a wrong one, so one unreachable shard does not keep
        # the others from being shown.
        return [name for name in self.placement.elsewhere if name in self.ratchet.names]

    @property
    def any_unconfirmed(self) -> bool:
        """True when a subscription waits for fresh news."""
        return bool(self._unconfirmed)

    def must_renew(self, stream: WatchStream) -> bool:
        """Return True when a waiting subscription needs this stream to be renewed."""
        return stream.must_renew_for(self._unconfirmed)

    # -- reading -----------------------------------------------------------------------------------

    @property
    def live(self) -> bool:
        """True when some open stream has had its first message."""
        return any(stream.live for stream in self.placement.streams.values())

    def stale_for(self, names: Sequence[str]) -> float:
        """Seconds since all the names were last confirmed; infinite before the first time."""
        now = self.surroundings.monotonic()
        return max((max(0.0, now - self._confirmed_at(name)) for name in names), default=0.0)

    def _confirmed_at(self, name: str) -> float:
        stream = self.placement.stream_of(name)
        confirmed_at = stream.confirmed_at if stream is not None else None
        if confirmed_at is not None:
            return confirmed_at
        return self.ratchet.confirmed_at(name)

    def holding(self, names: Sequence[str]) -> bool:
        """Return True when newer values of a name are in a buffer; no names means all."""
        late = [stream for stream in self.placement.streams.values() if stream.holding]
        return any(not names or any(map(stream.follows, names)) for stream in late)

    def check(self) -> None:
        """Raise the error that ended the watching, if one did."""
        if self.failure is not None:
            raise own_copy(self.failure)

    @property
    def server_token(self) -> str:
        """Token of the deployment this client belongs to; empty before the first answer."""
        return self.ratchet.server_token

    def admit(self, server_token: str | None, views: Iterable[WatermarkView] = ()) -> list[WatermarkView]:
        """Pass a unary call's answer through the ratchet; returns the views to show.

        Raises ServerTokenMismatch and StaleEpoch.
        """
        if server_token is not None:
            self.ratchet.check_token(server_token)
        shown: list[WatermarkView] = []
        for view in views:
            self.ratchet.admit(view)
            self.router.note_epoch(view.computation, view.epoch)
            shown.append(self.ratchet.get(view.computation))
            if view.computation not in self.placement.records:
                self.ratchet.forget(view.computation)
        return shown

    def begin(self, incarnations: Iterable[tuple[str, int]]) -> None:
        """Take over the new incarnations of computations that were reset."""
        for name, incarnation in incarnations:
            self.ratchet.begin(name, incarnation)

    def statistics(self) -> WatcherStatistics:
        """Return the counters so far."""
        followed = list(self.ratchet.names if self.placement.everything else self.placement.named.keys())
        # Without any registered computation, home's last message counts.
        confirmed_at = min(map(self._confirmed_at, followed), default=self.placement.streams[HOME].confirmed_at)
        stale_for = float("inf") if confirmed_at is None else max(0.0, self.surroundings.monotonic() - confirmed_at)
        return WatcherStatistics(self._opened, self._messages, self.ratchet.held_back, self.unserved, stale_for)

    @property
    def unserved(self) -> tuple[str, ...]:
        """Followed computations for which a search found no shard. O(names searched for)."""
        return tuple(
            record.name for record in self.placement.search.suspects if self.placement.stream_of(record.name) is None
        )

    def denied(self, names: Collection[str]) -> errors.LowwaterError | None:
        """Return why the authority refuses this caller the names, or all; None when it does not."""
        for name in names:
            record = self.placement.records.get(name)
            if record is not None and record.denial is not None and record.denial.error is not None:
                return record.denial.error
        error = self.last_error
        if not isinstance(error, DENIED):
            return None
        about = error.metadata.get("computation", "")
        return error if not about or not names or about in names else None

    # -- for the streams ---------------------------------------------------------------------------

    def opened(self) -> int:
        """Count a new stream and return its number."""
        self._opened += 1
        return self._opened

    def received(self) -> None:
        """Count a message."""
        self._messages += 1
        self.last_error = None

    def dropped(self, view: WatermarkView) -> None:
        """Take the drop of a computation that no stream was sending; an unknown one is ignored."""
        if view.computation in self.ratchet.names:
            self.ratchet.admit(view)

    def keep_ages(self, names: Iterable[str], confirmed_at: float) -> None:
        """Note when the values of an ended stream were last confirmed."""
        for name in names:
            self.ratchet.note_confirmed(name, confirmed_at)


class Waiting:
    """One wait until a computation reaches a time, within one incarnation.

    ``registered``: True makes an unregistered computation an error; otherwise it is waited for, as
    it may be registered at any time. Raises InvalidArgument for a bad timeout.
    """

    def __init__(self, name: str, until: EventTime, timeout: float | None, *, registered: bool = False) -> None:
        self.name: str = checks.known_name("name", name)
        self.target: Watermark = Watermark.of(until)
        if timeout is not None:
            checks.seconds("timeout", timeout)
        self._timeout = timeout
        self._registered = checks.flag("registered", registered)
        self._incarnation = 0

    def reached(self, state: WatchState, subscription: Subscription) -> bool:
        """Return True when the computation is at the time.

        Raises IncarnationChanged when it was reset or dropped meanwhile, and UnknownComputation
        when it has to be registered and is not. Before the first confirmed value, raises the error
        for which the authority refuses the caller.
        """
        # A value from before the subscription, or a late one, may belong to an incarnation that has
        # ended.
        if not subscription.confirmed:
            _check_allowed(state, [self.name])
            return False
        if state.holding([self.name]):
            return False
        view = state.ratchet.get(self.name)
        if view.registered:
            self._incarnation = self._incarnation or view.incarnation
        elif self._incarnation:
            msg = (
                f"{self.name} was dropped during the wait: its incarnation {self._incarnation} ended, and no worker "
                "reports for it any more. Wait again when it is registered again."
            )
            raise checks.other_incarnation(self.name, self._incarnation, 0, msg)
        elif self._registered:
            raise checks.unknown_computation(self.name)
        if view.registered and view.incarnation != self._incarnation:
            msg = f"{self.name} was reset during the wait: incarnation {self._incarnation} ended, {view.incarnation} began. Wait again."
            raise checks.other_incarnation(self.name, self._incarnation, view.incarnation, msg)
        return view.registered and view.low >= self.target

    def answers(self, state: WatchState) -> bool:
        """Return True when the authority sent a message lately, so that it is worth a question."""
        return state.stale_for([self.name]) <= _LATELY and self.name not in state.unserved

    def whereabouts(self, state: WatchState, why: Why | None) -> str:
        """Return where the computation is, and what holds it, if that is known."""
        if state.stale_for([self.name]) == float("inf"):
            reason = "" if state.last_error is None else f": {words_of(state.last_error)}"
            return f"the authority has never answered{reason}"
        view = state.ratchet.get(self.name)
        position = why.sentence.rstrip(".") if why is not None else f"it is {view.low}"
        return position if view.registered else "it is not registered"

    def too_late(self, state: WatchState, why: Why | None) -> errors.Timeout:
        """Return the error of a wait that timed out; it names what holds, if that is known."""
        view = state.ratchet.get(self.name)
        stale, where = state.stale_for([self.name]), self.whereabouts(state, why)
        if stale == float("inf"):
            fix = "Check the address, or start `lowwater serve` there."
        else:
            where += f"; the authority last answered {duration(stale)} ago"
            fix = (
                f"Ask why({self.name!r})."
                if view.registered
                else "Start the job that registers it, or check the spelling."
            )
        if self.name in state.unserved:
            where += "; no shard serves it now"
        end = "" if where.endswith((".", "?")) else "."
        msg = f"{self.name} did not reach {self.target} within {self._timeout:g} s: {where}{end} {fix}"
        metadata = {"computation": self.name, "until": str(self.target), "low": str(view.low), "fix": fix}
        metadata |= {"stale_for": f"{stale:g}"} | ({} if why is None else {"guilty": why.guilty.computation})
        return errors.Timeout(msg, metadata=metadata)


class Changes:
    """One iteration over the changes of some computations, or of all.

    Conflated: only the fact of a change is stored, and the newest value is looked up when it is
    shown. O(names) per change. A computation without fresh news, because no shard serves it, is
    shown later; the others do not wait for it.
    """

    def __init__(self, followed: Sequence[str]) -> None:
        self._followed = frozenset(followed)
        self._version = 0
        self._changed: dict[str, None] = {}
        self._unheard: Collection[str] = ()

    def come(self, state: WatchState, subscription: Subscription) -> bool:
        """Return True when there is a change to show.

        Raises, before the first confirmed value, the error for which the authority refuses the
        caller.
        """
        if not subscription.confirmed and not self._version:
            _check_allowed(state, self._followed)
        if subscription.unheard is None or state.holding(subscription.names):
            return False
        self._unheard = subscription.unheard
        for view in state.ratchet.changed_since(self._version) if state.ratchet.version > self._version else ():
            if not self._followed or view.computation in self._followed:
                self._changed.setdefault(view.computation)
        self._version = state.ratchet.version
        return any(name not in self._unheard for name in self._changed)

    def take(self, state: WatchState) -> WatermarkView:
        """Return the newest view of the computation that waited longest, after :meth:`come`."""
        name = next(name for name in self._changed if name not in self._unheard)
        del self._changed[name]
        return state.ratchet.get(name)


class Folding:
    """The minimum over some computations; ``names`` maps a reader's names to full names."""

    def __init__(self, names: Mapping[str, str], reading: Reading | None) -> None:
        self._names = dict(names)
        self._reading = reading

    @property
    def followed(self) -> tuple[str, ...]:
        """The full names."""
        return tuple(self._names.values())

    @staticmethod
    def come(state: WatchState, subscription: Subscription) -> bool:
        """Return True when the values are confirmed, and no newer ones are in a buffer."""
        return subscription.confirmed and not state.holding(subscription.names)

    def fold(self, state: WatchState, subscription: Subscription) -> Inputs:
        """Return the current minimum."""
        # An unconfirmed value was read before this reader began, perhaps in an incarnation that has
        # ended.
        confirmed = subscription.confirmed
        views = {
            short_name: state.ratchet.get(full_name) if confirmed else WatermarkView(full_name)
            for short_name, full_name in self._names.items()
        }
        stale_for = state.stale_for(self.followed) if confirmed else float("inf")
        return fold_inputs(tuple(self._names), views, self._reading, stale_for)


class FoldChanges:
    """One iteration over the changes of a fold. Conflated; another change costs O(names)."""

    def __init__(self, folding: Folding) -> None:
        self.newest: Inputs | None = None
        """The fold to show, after :meth:`come`."""
        self._folding = folding
        self._looked_at: tuple[WatchState, int] | None = None

    def come(self, state: WatchState, subscription: Subscription) -> bool:
        """Return True when there is a fold that differs from the last one shown."""
        version = state.ratchet.version_of(self._folding.followed)
        if self._looked_at == (state, version) or not Folding.come(state, subscription):
            return False
        self._looked_at = state, version
        new = self._folding.fold(state, subscription)
        if _same(self.newest, new):
            return False
        self.newest = new
        return True


def _check_allowed(state: WatchState, names: Collection[str]) -> None:
    """Raise the error for which the authority refuses the caller the names, if it does."""
    denied = state.denied(names)
    if denied is not None:
        raise own_copy(denied)


def check_followed(names: Sequence[str]) -> None:
    """Raise InvalidArgument for no names, a bad name, or a slice, which is never the whole."""
    if not names:
        msg = "name at least one computation"
        raise errors.InvalidArgument(msg, metadata={"field": "names", "fix": 'inputs("flights")'})
    for name in names:
        checks.known_name("names", name)


def closed_reader() -> errors.Closed:
    """Return the error of a reader that was used after its end."""
    return errors.Closed("the reader is closed; lw.inputs(...) makes a new one")


def _same(old: Inputs | None, new: Inputs) -> bool:
    """Return True when two folds differ only in their age."""
    return old is not None and (old.low, old.heuristic, old.budget, old.held_by, old.incarnations) == (
        new.low,
        new.heuristic,
        new.budget,
        new.held_by,
        new.incarnations,
    )
