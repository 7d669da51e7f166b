"""What one process hears of watermarks: from the stream of a shard to those who wait for a time, look for changes, or fold several.

How it flows. Whoever follows computations has a :class:`Subscription`. :class:`WatchState` places each name at the stream of the shard that
serves it, as far as that is known, and looks for it where a shard redirects or fails. A :class:`WatchStream` is one stream after the other to
one shard: its messages pass the ratchet, which shows nothing that goes back, and tell how fresh the values are. Readers keep no values of
their own. :class:`Waiting`, :class:`Changes`, :class:`Folding` and :class:`FoldChanges` each look at what is known, and say whether there is
something for them by now: so a reader that is slow finds the newest, and no backlog.

All of it is pure: no I/O, no locks, no waiting, and the only clock and randomness are those passed in. The shells (``_async/watcher.py``,
and ``_sync/watcher.py``, which is made of it) open the streams that :meth:`WatchState.tend` names, give what comes to
:meth:`WatchStream.take`, and have all who wait look again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import grpc

from lowwater import errors
from lowwater.core import checks, wire
from lowwater.core.ages import BEAT, LATE, SLEW, Ages
from lowwater.core.attempts import BUSY, DENIED, error_of_call, words_of
from lowwater.core.backoff import CAP, FIRST, Backoff
from lowwater.core.denials import Denials
from lowwater.core.fold import Reading, fold_inputs
from lowwater.core.followed import Followed
from lowwater.core.raising import own_copy
from lowwater.core.ratchet import Ratchet
from lowwater.core.router import HOME, MOST_HOPS, MOST_NAMES, Router
from lowwater.core.search import Search
from lowwater.core.settings import Settings
from lowwater.core.streams import Streamed
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
"""Seconds without a word from the authority until a question to it is not worth its time; a healthy
one is heard every second or so."""


@dataclass(frozen=True, slots=True)
class WatcherStatistics:
    """What the watch streams of a client have done."""

    streams: int
    """Watch streams opened so far."""
    messages: int
    """Messages received, beats included."""
    held_back: int
    """Values that came lower than seen before, and were not shown."""
    unserved: tuple[str, ...] = ()
    """What is followed and was looked for, but no shard tells of just now; its values are those
    seen last, and grow stale."""
    stale_for: float = float("inf")
    """Seconds since the values of all that is followed were confirmed as the newest; infinite when
    they never were."""


class Subscription:
    """Names that somebody follows; none means all that are registered, now and later."""

    __slots__ = ("confirmed", "names", "streams", "unheard")

    def __init__(self, names: tuple[str, ...], streams: int) -> None:
        self.names: tuple[str, ...] = names
        self.streams: int = streams
        """How many streams had been opened before: what any later one brings was sent after the
        subscription."""
        self.confirmed: bool = False
        """Whether the streams that follow all the names had fresh news at the subscription or
        since. Before, what the ratchet has of them may be of an incarnation that ended while nobody
        followed them or read, and must not be used."""
        self.unheard: dict[str, None] | None = dict.fromkeys(names) or None
        """Of which of the names there was no such news yet, so that one that nobody serves does not
        keep the others from being shown. None: of all, as home has not told yet what there is."""


class WatchStream:
    """One stream at a time to one shard.

    A stream follows the names that were placed here when it was opened. When more are, it is
    renewed as soon as it has told of those, and after every failure another is opened, with a
    backoff. Names that it redirects it tells no more of, until they come back; when all have gone
    it is left.
    """

    first_pause: float = 0.0
    hurried: bool = False

    def __init__(self, known: WatchState, key: str) -> None:
        self.key = key
        """The shard's address, or ``HOME``."""
        self.number: int = 0
        """Of the newest stream, among all of the client: what it brings was sent after whatever was
        asked before."""
        self.renewing: bool = False
        """Whether the open stream is to be ended because it does not follow all that it should."""
        self.covers_all: bool = False
        """Whether the open stream follows all that are registered."""
        self._known = known
        self._backoff = Backoff(known.surroundings.random)
        self._ages: Ages | None = None  # of the open stream
        self.concerned: Set[str] | None = None
        """See Streamed. Where values stood back, or who follows what changes, one that waits for
        other names may be concerned, too."""
        self._settled = False  # whether the newest message left neither
        self._covered: dict[str, None] = {}  # for its order: no run could be repeated with that of a set
        self._gone: set[str] = set()
        self._told: dict[str, Promise | None] = {}
        """What the open stream has told that was promised of a computation. It leaves out what it
        has told already."""
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
        return self.key or self._known.router.home

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

    # -- the stream --------------------------------------------------------------------------------

    def open(self, address: str) -> watermarks_pb2.WatchRequest:
        """Begin a stream to an address that follows all that is wanted here now; returns its request."""
        known = self._known
        request = watermarks_pb2.WatchRequest(
            server_token=known.ratchet.server_token, interval_millis=known.interval_millis
        )
        names = sorted(known.placed(self.key))
        # Of another shard than home, all is what there is no room to name; it is ignored where it
        # is not followed there.
        self.covers_all = (self.key == HOME and known.everything) or len(names) > MOST_NAMES
        if not self.covers_all:
            request.computations.extend(names)
        self._covered, self._gone, self._told = dict.fromkeys(request.computations), set(), {}
        self._settled = False
        self._ages = Ages(known.surroundings.monotonic)
        self._opened_at, self._leaving, self.renewing = address, None, False
        self.number = known.opened()
        return request

    def take(self, response: watermarks_pb2.WatchResponse) -> bool:
        """Take a message; returns whether the stream is to be left. Raises ServerTokenMismatch."""
        known, settled = self._known, self._settled and not self._known.any_unconfirmed
        self.concerned, self._settled = None, False
        known.ratchet.check_token(response.server_token)
        known.received()
        for redirect in response.redirects:
            self._redirect(redirect)
        gone = len(self._gone)
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
        self._settled = not (self.renewing or self.holding or known.any_unconfirmed)
        if (
            settled
            and self._settled
            and len(self._gone) == gone
            and not (response.redirects or arrived or response.dropped)
        ):
            self.concerned = {message.computation for message in response.watermarks}
        return self.renewing

    def _redirect(self, redirect: types_pb2.Redirect) -> None:
        # Before the message counts as news: it is none of what it redirects.
        self._known.redirected(self, redirect.computation, redirect.address, redirect.epoch)
        self._gone.add(redirect.computation)
        self._told.pop(redirect.computation, None)

    def _admit(self, message: types_pb2.Watermark) -> bool:
        """Take a value; returns whether its computation has come here."""
        name, ratchet = message.computation, self._known.ratchet
        try:
            view = wire.watermark_view(message, self._told.get(name))
            ratchet.admit(view)
            if message.registered:
                self._told[name] = view.promise
            else:
                self._told.pop(name, None)
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
            # Bringing something proves little: a stream that is opened and fails at once, again and
            # again, has to back off.
            if self._ages.lasted > CAP:
                self._backoff.reset()
        renewed, self.renewing = self.renewing, False
        covered, self._ages, self.covers_all, self._covered = self._covered, None, False, {}
        if renewed and (failure is None or isinstance(failure, grpc.RpcError)):
            return 0.0
        if isinstance(failure, grpc.RpcError):
            failure = error_of_call(failure, self._opened_at)
        given = self.key == HOME and known.router.given(self._opened_at)
        if isinstance(failure, errors.ServerTokenMismatch) and given:
            logger.error("stopped watching: %s", failure)
            known.failure = failure
            return 0.0
        if isinstance(failure, errors.PermissionDenied) and failure.metadata.get("computation") in covered:
            known.deny(self, failure.metadata["computation"], failure)
            return FIRST * known.surroundings.random()  # each refusal leaves out another, so there is an end to them
        self._log(failure)
        known.last_error = failure or known.last_error
        leaving, self._leaving = self._leaving, None
        at_least = failure.retry_after if isinstance(failure, errors.LowwaterError) else leaving or 0.0
        if failure is not None or leaving is not None:
            busy = isinstance(failure, (*BUSY, *DENIED))
            if not busy:
                known.router.failed(self._opened_at)
            if self.key != HOME:
                known.lose_all(self, self._backoff.spread(at_least) if busy else 0.0)
                return 0.0  # what was followed here is looked for, which has delays of its own
        return self._backoff.next(at_least)

    def _ever_told(self) -> Sequence[str]:
        return list(self._known.ratchet.names if self.covers_all else self._covered.keys())

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


class WatchState:
    """The newest watermarks of all that is followed, over one stream at a time to each shard that is needed.

    Each computation has one record, :class:`~lowwater.core.followed.Followed`. It is placed at one stream: of its shard where that is
    known, else at home, whose redirects tell. Those of a shard that fails are looked for, and what a stream is refused for is asked for
    on its own. Who follows everything follows home without names, and by name what home redirects. What was seen stays; it only gets
    stale.

    **The newest first.** While the newest message of a stream is late, newer ones stand right behind it. Its values pass the ratchet, but
    :meth:`holding` keeps those who show every change asleep, until a message is not late, the stream ends, or a beat has
    passed: a buffer is read within that time, so by then it is the clocks that moved. See :class:`~lowwater.core.ages.Ages`.

    **Fresh news.** Somebody who begins to follow what is followed already may use what is known only when it was confirmed
    within ``LATE``; else a later message has to confirm it. A stream whose messages are late without a buffer, or whose first
    message took long, cannot tell how old they are: it is renewed for those who wait. What the next one brings is new for sure.

    Nothing here waits or locks. Costs: O(names) a stream, O(names x shares) a message.
    """

    def __init__(self, settings: Settings, surroundings: Surroundings, router: Router) -> None:
        self.ratchet: Ratchet = Ratchet(settings.server_token)
        self.failure: errors.LowwaterError | None = None
        """Why nothing will ever be heard again."""
        self.router: Router = router
        self.surroundings: Surroundings = surroundings
        self.interval_millis: int = round(1000 * settings.watch_interval)
        """What every stream leaves between two messages with watermarks."""
        self.search: Search[Followed] = Search(router, surroundings, self._found)
        self.denials: Denials = Denials(
            router, surroundings, self.ratchet, followed=self._is_followed, allowed=self._found
        )
        self.records: dict[str, Followed] = {}
        """What is known of each name that somebody follows, and of those that must not be read."""
        self._named: dict[str, Followed] = {}  # those of them that somebody follows by name
        self._elsewhere: dict[str, Followed] = {}  # those that home does not tell of to who follows all
        self._streams: dict[str, WatchStream] = {HOME: WatchStream(self, HOME)}
        self._untended: dict[Streamed, None] = {}
        self._everything = 0
        self._unconfirmed: dict[Subscription, None] = {}
        self.last_error: Exception | None = None
        """Why a stream ended; None after an answer to any."""
        self._opened = 0
        self._messages = 0

    # -- subscriptions -----------------------------------------------------------------------------

    def subscribe(self, names: Iterable[str]) -> Subscription:
        """Follow names from now on. Ask :meth:`tend` afterwards.

        Raises InvalidArgument, and changes nothing: what the stream cannot carry would end every
        stream from now on.
        """
        listed = tuple(checks.followed_name("names", name) for name in checks.listed("names", names))
        subscription = Subscription(listed, self._opened)
        followed = len(self._named) + len(set(subscription.names).difference(self._named))
        if subscription.names and followed > MOST_NAMES:
            msg = (
                f"names: a client follows at most {MOST_NAMES} computations by name, not {followed}; name none, for all"
            )
            raise errors.InvalidArgument(msg, metadata={"field": "names", "fix": "name none, for all"})
        named = [self._record(name) for name in subscription.names]
        for each in named:
            each.readers += 1
            self._named[each.name] = each
        if not subscription.names:
            self._everything += 1
            home = self._streams[HOME]
            home.renewing = home.renewing or (home.open_now and not home.covers_all)
            self._untended[home] = None
        for each in named or list(self._elsewhere.values()):
            self._follow(each)
        for each in named:
            self.denials.hurry(each)
        self._unconfirmed[subscription] = None
        self.confirm()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Follow them no longer; once."""
        self._unconfirmed.pop(subscription, None)
        named = [self._record(name) for name in subscription.names]
        for each in named:
            each.readers -= 1
            if not each.readers:
                del self._named[each.name]
        self._everything -= not subscription.names
        for each in named or self._elsewhere.values():
            if not self._is_followed(each):
                self.search.forget(each)
        for each in named:
            self._let_go(each)
        for key, stream in self._streams.items():
            if key != HOME and stream.open_now and not stream.wanted:
                stream.renewing = True
                self._untended[stream] = None

    def tend(self) -> Iterable[Streamed]:
        """Return what has to be driven, or looked at, since this was asked last."""
        untended, self._untended = self._untended, {}
        return untended

    def confirm(self) -> None:
        """Let subscriptions use what is known, if the streams that are open now have fresh news of all their names."""
        for subscription in list(self._unconfirmed):
            self._hear(subscription)
            if self._is_fresh(subscription):
                subscription.confirmed = True
                del self._unconfirmed[subscription]

    def _hear(self, subscription: Subscription) -> None:
        """Note of what a subscription has fresh news by now."""
        home = self._streams[HOME]
        if subscription.unheard is None and home.covers_all and home.confirms(subscription):
            subscription.unheard = dict.fromkeys(self._known_elsewhere())
        unheard = subscription.unheard or {}
        for name in list(unheard):
            stream = self._teller(name)
            if stream is not None and stream.confirms(subscription):
                del unheard[name]

    def _is_fresh(self, subscription: Subscription) -> bool:
        home = self._streams[HOME]
        if not subscription.names and not (home.covers_all and home.confirms(subscription)):
            return False
        if subscription.unheard:  # nobody would look again at what is left of it once this is confirmed
            return False
        streams = map(self._teller, subscription.names or self._known_elsewhere())
        return all(stream is not None and stream.confirms(subscription) for stream in streams)

    def _known_elsewhere(self) -> Iterable[str]:
        # What nothing is known of cannot be misused: one shard that is out of reach does not keep
        # all from being shown.
        return [name for name in self._elsewhere if name in self.ratchet.names]

    def _record(self, name: str) -> Followed:
        """Return what is known of a computation beside its value."""
        record = self.records.get(name)
        if record is None:
            record = self.records[name] = Followed(name)
        return record

    def _let_go(self, record: Followed) -> None:
        """Keep nothing of a computation that nobody follows but its value: a process may follow others of other names for weeks."""
        if record.readers or record.elsewhere or record.suspect or record.denial is not None:
            return
        teller = self._teller(record.name)
        if teller is not None:
            self._keep_age(teller, record)
        self.records.pop(record.name, None)
        self.ratchet.forget(record.name)

    def _is_followed(self, followed: Followed) -> bool:
        return followed.readers > 0 or (self.everything and followed.elsewhere)

    def _teller(self, name: str) -> WatchStream | None:
        """Return the stream that tells of a computation now, if one does."""
        key = self.at(name)
        stream = self._streams.get(key) if key is not None else None
        return stream if stream is not None and stream.follows(name) else None

    # -- reading -----------------------------------------------------------------------------------

    @property
    def live(self) -> bool:
        """Whether any stream is open that has told of all it follows."""
        return any(stream.live for stream in self._streams.values())

    def stream(self, key: str = HOME) -> WatchStream:
        """Return the stream to an address, or to home."""
        if key not in self._streams:
            self._streams[key] = WatchStream(self, key)
        return self._streams[key]

    def stale_for(self, names: Sequence[str]) -> float:
        """Return how many seconds ago the values of all the names were confirmed last; infinite when they never were."""
        now = self.surroundings.monotonic()
        return max((max(0.0, now - self._heard_of(name)) for name in names), default=0.0)

    def _heard_of(self, name: str) -> float:
        stream = self._teller(name)
        heard_at = stream.heard_at if stream is not None else None
        if heard_at is not None:
            return heard_at
        return self.ratchet.heard_at(name)

    def holding(self, names: Sequence[str]) -> bool:
        """Whether values newer than those known of any of the names are about to come; no names means all."""
        late = [stream for stream in self._streams.values() if stream.holding]
        return any(not names or any(map(stream.follows, names)) for stream in late)

    def check(self) -> None:
        """Raise what ended the watching, if something did."""
        if self.failure is not None:
            raise own_copy(self.failure)

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
            self.router.seen(view.computation, view.epoch)
            shown.append(self.ratchet.get(view.computation))
            if view.computation not in self.records:
                self.ratchet.forget(view.computation)
        return shown

    def begin(self, incarnations: Iterable[tuple[str, int]]) -> None:
        """Take over the new incarnations of computations that were reset, by name."""
        for name, incarnation in incarnations:
            self.ratchet.begin(name, incarnation)

    def statistics(self) -> WatcherStatistics:
        """Return what was done so far."""
        followed = list(self.ratchet.names if self.everything else self._named.keys())
        # Where nothing is registered yet, that is what home has said.
        heard_at = min(map(self._heard_of, followed), default=self._streams[HOME].heard_at)
        stale_for = float("inf") if heard_at is None else max(0.0, self.surroundings.monotonic() - heard_at)
        return WatcherStatistics(self._opened, self._messages, self.ratchet.held_back, self.unserved, stale_for)

    @property
    def unserved(self) -> tuple[str, ...]:
        """What is followed and was looked for, but no shard tells of just now.

        O(names looked for).
        """
        return tuple(each.name for each in self.search.suspects if self._teller(each.name) is None)

    def denied(self, names: Collection[str]) -> errors.LowwaterError | None:
        """Return why the authority tells nothing of names, of none: all, to whoever calls; None when it does, or does not say."""
        for name in names:
            record = self.records.get(name)
            if record is not None and record.denial is not None and record.denial.error is not None:
                return record.denial.error
        error = self.last_error
        if not isinstance(error, DENIED):
            return None
        about = error.metadata.get("computation", "")
        return error if not about or not names or about in names else None

    # -- for the streams ---------------------------------------------------------------------------

    @property
    def everything(self) -> bool:
        """Whether somebody follows all that are registered."""
        return self._everything > 0

    def at(self, name: str) -> str | None:
        """Return whose stream a computation is placed at; None while it is looked for, or denied."""
        record = self.records.get(name)
        return HOME if record is None else record.at

    def placed(self, key: str) -> list[str]:
        """Return what somebody follows by name at a stream. O(names)."""
        followed = {**self._named, **self._elsewhere} if self.everything else self._named
        return [each.name for each in followed.values() if each.at == key]

    def wanted_at(self, key: str) -> bool:
        """Whether anybody follows anything at a stream.

        O(names) when nobody does, and else it ends with the first that is there.
        """
        if self.everything and (key == HOME or any(each.at == key for each in self._elsewhere.values())):
            return True
        return any(each.at == key for each in self._named.values())

    def opened(self) -> int:
        """Count a stream; returns its number."""
        self._opened += 1
        return self._opened

    def received(self) -> None:
        """Count a message."""
        self._messages += 1
        self.last_error = None

    def heard(self, stream: WatchStream, name: str, epoch: int) -> None:
        """A stream told a value."""
        self.router.seen(name, epoch)
        record = self.records.get(name)
        if record is not None and record.at == stream.key:
            record.hops = 0

    def lasted(self, stream: WatchStream) -> None:
        """A stream has been open for a while: what it tells of was found for good."""
        for each in self.search.suspects:
            if self._teller(each.name) is stream:
                self.search.heard(each)

    def redirected(self, stream: WatchStream, name: str, address: str, epoch: int) -> None:
        """A stream tells of a computation no longer, and where it is."""
        followed = self.router.redirected(name, address, epoch)
        record = self._record(name)
        self._part(stream, record)
        if record.at != stream.key:
            self._let_go(record)
            return
        self._keep_age(stream, record)
        record.hops += 1
        place = self.router.place(name)
        if followed and record.hops <= MOST_HOPS and place != stream.key:
            self._place(record, place)
        else:
            self.refused(stream, name)
        self._let_go(record)

    def arrived(self, stream: WatchStream, name: str, address: str, epoch: int) -> bool:
        """A stream tells of a computation that was placed elsewhere; returns whether it is now placed there."""
        if not self.router.redirected(name, address, epoch):
            return False
        record = self._record(name)
        self.search.forget(record)
        self.denials.forget(record)
        teller = self._teller(name)
        if teller is not None:
            self._keep_age(teller, record)
        if stream.covers_all and stream.key == HOME:
            record.elsewhere = False
            self._elsewhere.pop(name, None)
        record.place = stream.key
        self._let_go(record)
        return True

    def dropped(self, view: WatermarkView) -> None:
        """A computation was dropped while no stream told of it; what was never heard of stays so."""
        if view.computation in self.ratchet.names:
            self.ratchet.admit(view)

    def refused(self, stream: WatchStream, name: str) -> None:
        """A shard does not serve a computation, and it is not known who does: look for it, the later the more often this happens."""
        record = self._record(name)
        self._part(stream, record)
        if record.at == stream.key:
            self._lose(stream, record, self.search.refused(record))
        self._let_go(record)

    def deny(self, stream: WatchStream, name: str, error: errors.LowwaterError) -> None:
        """A stream that has ended was refused for a computation: ask for it on its own, so that the next stream is not."""
        record = self._record(name)
        if record.at == stream.key:
            record.place = None
            for each in self.denials.add(record, error):
                self._let_go(each)
            self._untended[self.denials] = None
        else:
            self._let_go(record)

    def lose_all(self, stream: WatchStream, at_least: float) -> None:
        """A stream serves nothing of what was placed there: look for it, in so many seconds at the earliest. O(names)."""
        for record in self.records.values():
            if record.place == stream.key:
                self._lose(stream, record, at_least)

    def _lose(self, stream: WatchStream, record: Followed, at_least: float) -> None:
        if record.at != stream.key:
            return
        self._keep_age(stream, record)
        record.place = None
        if self._is_followed(record):
            self.search.lose(record, at_least)
            self._untended[self.search] = None

    def retired(self, stream: WatchStream) -> None:
        """Nobody drives a stream any more."""
        if stream.key != HOME and self._streams.get(stream.key) is stream:
            del self._streams[stream.key]

    def tidy(self) -> None:
        """Have the streams left that carry nothing any more."""
        for stream in self._streams.values():
            if stream.idle:
                stream.renewing = True
                self._untended[stream] = None

    @property
    def any_unconfirmed(self) -> bool:
        """Whether somebody waits for what is fresh news to him."""
        return bool(self._unconfirmed)

    def cannot_tell(self, stream: WatchStream) -> bool:
        """Whether somebody waits for news of a stream that cannot tell how old its messages are."""
        return stream.cannot_tell(self._unconfirmed)

    def keep_ages(self, names: Iterable[str], heard_at: float) -> None:
        """Note when the values of computations were confirmed last, by a stream that has ended."""
        for name in names:
            self.ratchet.heard(name, heard_at)

    def _keep_age(self, stream: WatchStream, record: Followed) -> None:
        # One that has come back to a stream is told of by the next only.
        if stream.heard_at is not None and stream.follows(record.name):
            self.ratchet.heard(record.name, stream.heard_at)

    def _part(self, stream: WatchStream, record: Followed) -> None:
        """A stream does not tell of a computation: if it follows all, that one has to be followed by name."""
        if not stream.covers_all or record.elsewhere:
            return
        record.elsewhere = True
        self._elsewhere[record.name] = record
        if self.everything and record.at != stream.key:
            self._follow(record)  # whoever followed it by name where it is may have left since

    def _follow(self, record: Followed) -> None:
        place = record.place
        self._place(record, self.router.place(record.name) if place is None or place not in self._streams else place)

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

    def _found(self, record: Followed) -> None:
        record.hops = 0
        if self._is_followed(record):
            self._place(record, self.router.place(record.name))
        else:
            self._let_go(record)


class Waiting:
    """One wait for a computation to come to a time, within one incarnation of it.

    Raises InvalidArgument for a bad timeout.

    ``registered``: one that is not registered is an error, instead of one that may be at any time.
    """

    def __init__(self, name: str, until: EventTime, timeout: float | None, *, registered: bool = False) -> None:
        self.name: str = checks.known_name("name", name)
        self._target = Watermark.of(until)
        if timeout is not None:
            checks.seconds("timeout", timeout)
        self._timeout = timeout
        self._registered = checks.flag("registered", registered)
        self._incarnation = 0

    def reached(self, known: WatchState, subscription: Subscription) -> bool:
        """Whether it is there.

        Raises IncarnationChanged when it was reset or dropped meanwhile; UnknownComputation when it
        is not registered and has to be; and as long as nothing was heard, why that is not allowed.
        """
        # What was heard late may be of an incarnation that ended since; the newest stands right
        # behind it.
        if not subscription.confirmed:
            _check_allowed(known, [self.name])
            return False
        if known.holding([self.name]):
            return False
        view = known.ratchet.get(self.name)
        if view.registered:
            self._incarnation = self._incarnation or view.incarnation
        elif self._incarnation:
            msg = (
                f"{self.name} was dropped while it was waited for: its incarnation {self._incarnation} ended, and nobody reports for it any more. Wait "
                "anew when it is registered again."
            )
            metadata = {"computation": self.name, "waited_for": str(self._incarnation), "incarnation": "0"}
            raise errors.IncarnationChanged(msg, metadata=metadata)
        elif self._registered:
            msg = f"there is no computation {self.name!r}; check the spelling and the namespace"
            raise errors.UnknownComputation(msg, metadata={"computation": self.name})
        if view.registered and view.incarnation != self._incarnation:
            msg = f"{self.name} was reset while it was waited for: incarnation {self._incarnation} ended, {view.incarnation} began. Wait anew."
            metadata = {
                "computation": self.name,
                "waited_for": str(self._incarnation),
                "incarnation": str(view.incarnation),
            }
            raise errors.IncarnationChanged(msg, metadata=metadata)
        return view.registered and view.low >= self._target

    def answers(self, known: WatchState) -> bool:
        """Whether the authority was heard a moment ago, so that it will say soon who holds it."""
        return known.stale_for([self.name]) <= _LATELY and self.name not in known.unserved

    def too_late(self, known: WatchState, why: Why | None) -> errors.Timeout:
        """Return the error of not being there in time; it says who holds it, unless nobody could tell."""
        view = known.ratchet.get(self.name)
        stale = known.stale_for([self.name])
        if stale == float("inf"):
            failed = "" if known.last_error is None else f": {words_of(known.last_error)}"
            where, fix = (
                f"the authority was never heard of{failed}",
                "Check the address, or start `lowwater serve` there.",
            )
        else:
            stands = why.sentence.rstrip(".") if why is not None else f"it is {view.low}"
            where = stands if view.registered else "it is not registered"
            where += f"; the authority was last heard {duration(stale)} ago"
            fix = f"Ask why({self.name!r})." if view.registered else "Start what registers it, or check the spelling."
        if self.name in known.unserved:
            where += "; no shard serves it just now"
        end = "" if where.endswith((".", "?")) else "."
        msg = f"{self.name} did not reach {self._target} within {self._timeout:g} s: {where}{end} {fix}"
        metadata = {
            "computation": self.name,
            "until": str(self._target),
            "low": str(view.low),
            "stale_for": f"{stale:g}",
            "fix": fix,
        } | ({} if why is None else {"guilty": why.guilty.computation})
        return errors.Timeout(msg, metadata=metadata)


class Changes:
    """One iteration over the changes of some computations, or of all.

    Conflated: what is noted is that a computation changed, and its newest value is looked up when
    it is shown. O(names) a change. One of which there is no fresh news, since no shard serves it,
    is shown when there is; the others do not wait for it.
    """

    def __init__(self, followed: Sequence[str]) -> None:
        self._followed = frozenset(followed)
        self._version = 0
        self._changed: dict[str, None] = {}
        self._unheard: Collection[str] = ()

    def come(self, known: WatchState, subscription: Subscription) -> bool:
        """Whether there is anything to show.

        Raises, as long as nothing was heard, why that is not allowed.
        """
        if not subscription.confirmed and not self._version:
            _check_allowed(known, self._followed)
        if subscription.unheard is None or known.holding(subscription.names):
            return False
        self._unheard = subscription.unheard
        for view in known.ratchet.changed_since(self._version) if known.ratchet.version > self._version else ():
            if not self._followed or view.computation in self._followed:
                self._changed.setdefault(view.computation)
        self._version = known.ratchet.version
        return any(name not in self._unheard for name in self._changed)

    def take(self, known: WatchState) -> WatermarkView:
        """Return the newest of the computation that has waited longest, after :meth:`come`."""
        name = next(name for name in self._changed if name not in self._unheard)
        del self._changed[name]
        return known.ratchet.get(name)


class Folding:
    """The minimum over some computations, as (name asked for -> full name), as far as a reader may know it."""

    def __init__(self, names: Mapping[str, str], reading: Reading | None) -> None:
        self._names = dict(names)
        self._reading = reading

    @property
    def followed(self) -> tuple[str, ...]:
        """The full names."""
        return tuple(self._names.values())

    @staticmethod
    def come(known: WatchState, subscription: Subscription) -> bool:
        """Whether a first read has something to return: something is known, and nothing newer is about to come."""
        return subscription.confirmed and not known.holding(subscription.names)

    def fold(self, known: WatchState, subscription: Subscription) -> Inputs:
        """Return the minimum as it is known now."""
        # What somebody else in this process heard before this reader may be of an incarnation that
        # has ended since.
        confirmed = subscription.confirmed
        views = {
            asked: known.ratchet.get(name) if confirmed else WatermarkView(name) for asked, name in self._names.items()
        }
        stale_for = known.stale_for(self.followed) if confirmed else float("inf")
        return fold_inputs(tuple(self._names), views, self._reading, stale_for)


class FoldChanges:
    """One iteration over the changes of a fold.

    Conflated. What changed elsewhere costs O(names), and no fold.
    """

    def __init__(self, folding: Folding) -> None:
        self.newest: Inputs | None = None
        """The fold to show, after :meth:`come`."""
        self._folding = folding
        self._looked_at: tuple[WatchState, int] | None = None

    def come(self, known: WatchState, subscription: Subscription) -> bool:
        """Whether there is a fold to show that shows something else than the last one did."""
        version = known.ratchet.version_of(self._folding.followed)
        if self._looked_at == (known, version) or not Folding.come(known, subscription):
            return False
        self._looked_at = known, version
        new = self._folding.fold(known, subscription)
        if _same(self.newest, new):
            return False
        self.newest = new
        return True


def _check_allowed(known: WatchState, names: Collection[str]) -> None:
    """Raise what the authority refuses the caller for, if it does."""
    denied = known.denied(names)
    if denied is not None:
        raise own_copy(denied)


def check_followed(names: Sequence[str]) -> None:
    """Raise InvalidArgument unless at least one computation is named, by its full name, and no slice: only the whole says what is complete."""
    if not names:
        msg = "name at least one computation"
        raise errors.InvalidArgument(msg, metadata={"field": "names", "fix": 'inputs("flights")'})
    for name in names:
        checks.known_name("names", name)


def closed_reader() -> errors.Closed:
    """Return the error of using a reader after its end."""
    return errors.Closed("the reader is closed; lw.inputs(...) makes a new one")


def _same(old: Inputs | None, new: Inputs) -> bool:
    """Whether two folds show the same, but for their age."""
    return old is not None and (old.low, old.heuristic, old.budget, old.held_by, old.incarnations) == (
        new.low,
        new.heuristic,
        new.budget,
        new.held_by,
        new.incarnations,
    )
