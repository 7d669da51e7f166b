"""What one process has heard of watermarks, over the watch streams to all shards that it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lowwater import errors
from lowwater._core import checks
from lowwater._core.ages import BEAT, LATE, SLEW
from lowwater._core.attempts import DENIED
from lowwater._core.forbidden import Forbidden
from lowwater._core.locating import Locating
from lowwater._core.ratchet import Ratchet
from lowwater._core.routes import HOME, MOST_HOPS, MOST_NAMES, Routes
from lowwater._core.settings import Settings
from lowwater._core.streams import Streamed
from lowwater._core.surroundings import Surroundings
from lowwater._core.watch_stream import WatchStream
from lowwater.views import WatermarkView

__all__ = ["BEAT", "LATE", "MOST_NAMES", "SLEW", "Subscription", "WatchState", "WatcherStatistics"]


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
    """What is followed and was looked for, but no shard tells of just now; its values are those seen last, and grow stale."""
    stale_for: float = float("inf")
    """Seconds since the values of all that is followed were confirmed as the newest; infinite when they never were."""


class Subscription:
    """Names that somebody follows; none means all that are registered, now and later."""

    __slots__ = ("confirmed", "names", "streams", "unheard")

    def __init__(self, names: tuple[str, ...], streams: int) -> None:
        self.names: tuple[str, ...] = names
        self.streams: int = streams
        """How many streams had been opened before: what any later one brings was sent after the subscription."""
        self.confirmed: bool = False
        """Whether the streams that follow all the names had fresh news at the subscription or since. Before, what the ratchet has
        of them may be of a life that ended while nobody followed them or read, and must not be used."""
        self.unheard: dict[str, None] | None = dict.fromkeys(names) or None
        """Of which of the names there was no such news yet, so that one that nobody serves does not keep the others from being shown.
        None: of all, as home has not told yet what there is."""


class WatchState:
    """The newest watermarks of all that is followed, over one stream at a time to each shard that is needed.

    Each computation is placed at one stream: of its shard where that is known, else at home, whose redirects tell. Those of a shard that
    fails are looked for, and what a stream is refused for is asked for on its own. Who follows everything follows home without names, and by name what home redirects. What was
    seen stays; it only gets stale.

    **The newest first.** While the newest message of a stream is late, newer ones stand right behind it. Its values pass the ratchet, but
    :meth:`holding` keeps those who show every change asleep, until a message is not late, the stream ends, or a beat has
    passed: a buffer is read within that time, so by then it is the clocks that moved. See :class:`~lowwater._core.ages.Ages`.

    **Fresh news.** Somebody who begins to follow what is followed already may use what is known only when it was confirmed
    within ``LATE``; else a later message has to confirm it. A stream whose messages are late without a buffer, or whose first
    message took long, cannot tell how old they are: it is renewed for those who wait. What the next one brings is new for sure.

    Nothing here waits or locks. Costs: O(names) a stream, O(names x shares) a message.
    """

    def __init__(self, settings: Settings, surroundings: Surroundings, routes: Routes) -> None:
        self.ratchet: Ratchet = Ratchet(settings.server_token)
        self.failure: errors.LowwaterError | None = None
        """Why nothing will ever be heard again."""
        self.routes: Routes = routes
        self.surroundings: Surroundings = surroundings
        self.locating: Locating = Locating(routes, surroundings, self._found)
        self.forbidden: Forbidden = Forbidden(
            routes, surroundings, self.ratchet, followed=self._is_followed, allowed=self._found
        )
        self._streams: dict[str, WatchStream] = {HOME: WatchStream(self, HOME)}
        self._untended: dict[Streamed, None] = {}
        self._names: Counter[str] = Counter()
        self._everything = 0
        self._elsewhere: dict[str, None] = {}  # what home does not tell of everything
        self._at: dict[str, str] = {}  # whose stream each is placed at, unless it is looked for; by default home's
        self._hops: dict[str, int] = {}
        self._unconfirmed: dict[Subscription, None] = {}
        self.last_error: Exception | None = None
        """Why a stream ended; None after an answer to any."""
        self._heard: dict[str, float] = {}
        self._opened = 0
        self._messages = 0

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscribe(self, names: Iterable[str]) -> Subscription:
        """Follow names from now on. Ask :meth:`tend` afterwards.

        Raises InvalidArgument, and changes nothing: what the stream cannot carry would end every stream from now on.
        """
        listed = tuple(checks.known_name("names", name) for name in checks.listed("names", names))
        subscription = Subscription(listed, self._opened)
        followed = len(self._names.keys() | set(subscription.names))
        if subscription.names and followed > MOST_NAMES:
            msg = (
                f"names: a client follows at most {MOST_NAMES} computations by name, not {followed}; name none, for all"
            )
            raise errors.InvalidArgument(msg, metadata={"field": "names", "fix": "name none, for all"})
        self._names.update(subscription.names)
        if not subscription.names:
            self._everything += 1
            home = self._streams[HOME]
            home.renewing = home.renewing or (home.open_now and not home.covers_all)
            self._untended[home] = None
        for name in subscription.names or self._elsewhere:
            self._follow(name)
        for name in filter(self.forbidden.__contains__, subscription.names):
            self.forbidden.hurry(name)
        self._unconfirmed[subscription] = None
        self.confirm()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Follow them no longer; once."""
        self._unconfirmed.pop(subscription, None)
        self._names.subtract(subscription.names)
        self._names = +self._names
        self._everything -= not subscription.names
        for name in subscription.names or self._elsewhere:
            if not self._is_followed(name):
                self.locating.forget(name)
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
        # What nothing is known of cannot be misused: one shard that is out of reach does not keep all from being shown.
        return [name for name in self._elsewhere if name in self.ratchet.views]

    def _is_followed(self, name: str) -> bool:
        return name in self._names or (self.everything and name in self._elsewhere)

    def _teller(self, name: str) -> WatchStream | None:
        """Return the stream that tells of a computation now, if one does."""
        key = self.at(name)
        stream = self._streams.get(key) if key is not None else None
        return stream if stream is not None and stream.follows(name) else None

    # -- reading ------------------------------------------------------------------------------------------------------

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
        return heard_at if heard_at is not None else self._heard.get(name, float("-inf"))

    def holding(self, names: Sequence[str]) -> bool:
        """Whether values newer than those known of any of the names are about to come; no names means all."""
        late = [stream for stream in self._streams.values() if stream.holding]
        return any(not names or any(map(stream.follows, names)) for stream in late)

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
            self.routes.seen(view.computation, view.epoch)
            shown.append(self.ratchet.get(view.computation))
        return shown

    def begin(self, lives: Iterable[tuple[str, int]]) -> None:
        """Take over the new lives (name, incarnation) of computations that were reset."""
        for name, incarnation in lives:
            self.ratchet.begin(name, incarnation)

    def statistics(self) -> WatcherStatistics:
        """Return what was done so far."""
        followed = list(self.ratchet.views if self.everything else self._names)
        # Where nothing is registered yet, that is what home has said.
        heard_at = min(map(self._heard_of, followed), default=self._streams[HOME].heard_at)
        stale_for = float("inf") if heard_at is None else max(0.0, self.surroundings.monotonic() - heard_at)
        return WatcherStatistics(self._opened, self._messages, self.ratchet.held_back, self.unserved, stale_for)

    @property
    def unserved(self) -> tuple[str, ...]:
        """What is followed and was looked for, but no shard tells of just now. O(names looked for)."""
        return tuple(name for name in self.locating.suspects if self._teller(name) is None)

    def denied(self, names: Collection[str]) -> errors.LowwaterError | None:
        """Return why the authority tells nothing of names, of none: all, to whoever calls; None when it does, or does not say."""
        for name in names:
            refusal = self.forbidden.error(name)
            if refusal is not None:
                return refusal
        error = self.last_error
        if not isinstance(error, DENIED):
            return None
        about = error.metadata.get("computation", "")
        return error if not about or not names or about in names else None

    # -- for the streams ----------------------------------------------------------------------------------------------

    @property
    def everything(self) -> bool:
        """Whether somebody follows all that are registered."""
        return self._everything > 0

    def at(self, name: str) -> str | None:
        """Return whose stream a computation is placed at; None while it is looked for, or forbidden."""
        return None if self.locating.lost(name) or name in self.forbidden else self._at.get(name, HOME)

    def placed(self, key: str) -> list[str]:
        """Return what somebody follows by name at a stream."""
        followed = self._names.keys() | self._elsewhere.keys() if self.everything else self._names.keys()
        return [name for name in followed if self.at(name) == key]

    def wanted_at(self, key: str) -> bool:
        """Whether anybody follows anything at a stream."""
        return (key == HOME and self.everything) or bool(self.placed(key))

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
        if epoch > self.routes.epoch_of(name):
            self.routes.seen(name, epoch)
        if self.at(name) == stream.key:
            self._hops.pop(name, None)

    def lasted(self, stream: WatchStream) -> None:
        """A stream has been open for a while: what it tells of was found for good."""
        for name in self.locating.suspects:
            if self._teller(name) is stream:
                self.locating.heard(name)

    def redirected(self, stream: WatchStream, name: str, address: str, epoch: int) -> None:
        """A stream tells of a computation no longer, and where it is."""
        followed = self.routes.redirected(name, address, epoch)
        self._part(stream, name)
        if self.at(name) != stream.key:
            return
        self._keep_age(stream, name)
        self._hops[name] = self._hops.get(name, 0) + 1
        place = self.routes.place(name)
        if followed and self._hops[name] <= MOST_HOPS and place != stream.key:
            self._place(name, place)
        else:
            self.refused(stream, name)

    def arrived(self, stream: WatchStream, name: str, address: str, epoch: int) -> bool:
        """A stream tells of a computation that was placed elsewhere; returns whether it is now placed there."""
        if not self.routes.redirected(name, address, epoch):
            return False
        self.locating.forget(name)
        self.forbidden.forget(name)
        teller = self._teller(name)
        if teller is not None:
            self._keep_age(teller, name)
        if stream.covers_all and stream.key == HOME:
            self._elsewhere.pop(name, None)
        self._at[name] = stream.key
        return True

    def dropped(self, view: WatermarkView) -> None:
        """A computation was dropped while no stream told of it; what was never heard of stays so."""
        if view.computation in self.ratchet.views:
            self.ratchet.admit(view)

    def refused(self, stream: WatchStream, name: str) -> None:
        """A shard does not serve a computation, and it is not known who does: look for it, the later the more often this happens."""
        self._part(stream, name)
        if self.at(name) == stream.key:
            self.lose(stream, name, self.locating.refused(name))

    def lose(self, stream: WatchStream, name: str, at_least: float = 0.0) -> None:
        """A stream does not serve a computation: look for it, if it was placed there, in so many seconds at the earliest."""
        if self.at(name) != stream.key:
            return
        self._keep_age(stream, name)
        self._at.pop(name, None)
        if self._is_followed(name):
            self.locating.lose(name, at_least)
            self._untended[self.locating] = None

    def forbid(self, stream: WatchStream, name: str, error: errors.LowwaterError) -> None:
        """A stream that has ended was refused for a computation: ask for it on its own, so that the next stream is not."""
        if self.at(name) == stream.key:
            self._at.pop(name, None)
            self.forbidden.add(name, error)
            self._untended[self.forbidden] = None

    def lose_all(self, stream: WatchStream, at_least: float) -> None:
        """A stream serves nothing of what was placed there."""
        for name in [name for name, key in self._at.items() if key == stream.key]:
            self.lose(stream, name, at_least)

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

    def cannot_tell(self, stream: WatchStream) -> bool:
        """Whether somebody waits for news of a stream that cannot tell how old its messages are."""
        return stream.cannot_tell(self._unconfirmed)

    def keep_ages(self, names: Iterable[str], heard_at: float) -> None:
        """Note when the values of computations were confirmed last, by a stream that has ended."""
        self._heard.update(dict.fromkeys(names, heard_at))

    def _keep_age(self, stream: WatchStream, name: str) -> None:
        # One that has come back to a stream is told of by the next only.
        if stream.heard_at is not None and stream.follows(name):
            self._heard[name] = stream.heard_at

    def _part(self, stream: WatchStream, name: str) -> None:
        """A stream does not tell of a computation: if it follows all, that one has to be followed by name."""
        if not stream.covers_all or name in self._elsewhere:
            return
        self._elsewhere[name] = None
        if self.everything and self.at(name) != stream.key:
            self._follow(name)  # whoever followed it by name where it is may have left since

    def _follow(self, name: str) -> None:
        key = self._at.get(name, HOME)
        self._place(name, key if name in self._at and key in self._streams else self.routes.place(name))

    def _place(self, name: str, key: str) -> None:
        if self.locating.lost(name):
            self._untended[self.locating] = None
            return
        if name in self.forbidden:
            self._untended[self.forbidden] = None
            return
        self._at[name] = key
        stream = self.stream(key)
        stream.renewing = stream.renewing or (stream.open_now and not stream.follows(name))
        self._untended[stream] = None

    def _found(self, name: str) -> None:
        self._hops.pop(name, None)
        if self._is_followed(name):
            self._place(name, self.routes.place(name))
