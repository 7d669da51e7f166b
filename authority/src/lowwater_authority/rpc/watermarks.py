"""Reads and watch streams over gRPC. Every answer has only published values."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater.v1 import watermarks_pb2 as pb
from lowwater.v1 import watermarks_pb2_grpc
from lowwater_authority.access.caller import calling, demand_some_read, holder, visible
from lowwater_authority.engine.placement import moved
from lowwater_authority.promises import NOTHING
from lowwater_authority.rpc import codec
from lowwater_authority.rpc.refusals import at_most, check_token, refuse, refusing
from lowwater_authority.rpc.rooms import enter, inside, leave, watched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from lowwater.v1 import types_pb2
    from lowwater_authority.core.computation import View
    from lowwater_authority.core.topology import Topology
    from lowwater_authority.engine.hub import Subscription
    from lowwater_authority.engine.shard import Shard
    from lowwater_authority.rpc.services import Context, Services
    from lowwater_authority.rpc.streams import Streams

BEAT_SECONDS: Final = 1.0
"""Most seconds between two messages of a watch stream. A subscriber that gets none for several of
these takes the authority for lost."""

MAX_INTERVAL_MILLIS: Final = 1000
"""Longest interval that a subscriber may ask for, in milliseconds: one beat."""

DEFAULT_HOLDERS: Final = 10
MAX_HOLDERS: Final = 1000
DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 10_000


SentPromise = tuple[int, "types_pb2.Promise"]
"""The promise that a stream has sent last of a computation, and the incarnation at that moment."""


MOST_CACHED: Final = 10_000
"""Messages of computations in the cache: as many as one request may name."""


class WatermarkServicer(watermarks_pb2_grpc.WatermarkServiceServicer):
    """See proto/lowwater/v1/watermarks.proto."""

    def __init__(self, services: Services, streams: Streams) -> None:
        self.services = services
        self._starting = streams.admission.watches
        self._open = streams.admission.open_watches
        self._watched = streams.watched
        self._messages = Messages(services.shard)

    @refusing
    async def GetWatermarks(self, request: pb.GetWatermarksRequest, context: Context) -> pb.GetWatermarksResponse:  # noqa: N802
        """Return the published watermarks."""
        shard = self.services.shard
        confirmed, names, elsewhere = await self._look(list(request.computations))
        return pb.GetWatermarksResponse(
            server_token=self.services.token,
            watermarks=[self._promised(name, shard.served.view(name)) for name in names],
            time_micros=confirmed,
            redirects=await self.services.redirects(elsewhere),
        )

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.WatchResponse]:  # noqa: N802
        """Send watermarks as they change, conflated. The first values are as those of a read."""
        services, shard = self.services, self.services.shard
        subscription: Subscription | None = None
        counted, who = False, holder()
        room = ExitStack()
        try:
            services.check()
            check_token(services.token, request.server_token)
            interval = at_most("interval_millis", request.interval_millis, MAX_INTERVAL_MILLIS) / 1000
            if not request.computations:
                demand_some_read()
            await enter(self._open, who)
            counted = True
            names = list(dict.fromkeys(request.computations))
            room.enter_context(watched(self._watched, names))
            rights = _rights()
            async with inside(self._starting, who):
                subscription = shard.hub.subscribe(names)
                confirmed, unknown = await self._begin(subscription, names)
            views = await subscription.take(0)
            promised: dict[str, SentPromise] = {}
            dropped = [] if names else visible(sorted(shard.topology.dropped))
            views = views if names else _readable(views)
            yield await self._response(views, promised, confirmed, unknown, dropped=dropped)
            del unknown, dropped  # a stream may be open for weeks
            while not services.leaving.is_set():
                if not names and rights != _rights():
                    # The caller may read more now: send those values, which may not change for
                    # long.
                    rights = _rights()
                    async with inside(self._starting, who):
                        await self._begin(subscription, names)
                views = await subscription.take(BEAT_SECONDS, interval)
                views = views if names else _readable(views)
                waited = subscription.waited if views else None
                yield await self._response(views, promised, waited=waited)
            yield await self._response({}, promised, go_away=services.go_away())
        except errors.LowwaterError as error:
            services.observer.refused("Watch", error.reason)
            await refuse(context, error)
        finally:
            if subscription is not None:
                shard.hub.unsubscribe(subscription)
            room.close()
            if counted:
                leave(self._open, who)

    @refusing
    async def CheckComplete(self, request: pb.CheckCompleteRequest, context: Context) -> pb.CheckCompleteResponse:  # noqa: N802
        """Return whether all before an event time is complete, and which ranges hold it if not."""
        limit = at_most("max_holders", request.max_holders, MAX_HOLDERS) or DEFAULT_HOLDERS
        shard = self.services.shard
        confirmed = await self.services.confirm(request.computation)
        shard.topology.refuse_slice(request.computation)
        holders, holding, *_ = await shard.reads.ranges(request.computation, below=request.until_micros, limit=limit)
        view = shard.served.view(request.computation)
        if view is None:
            raise moved(request.computation)
        complete = request.until_micros <= view.low
        return pb.CheckCompleteResponse(
            complete=complete,
            watermark=self._promised(request.computation, view),
            holders=() if complete else map(codec.key_range_message, holders),
            holding=0 if complete else holding,
            time_micros=confirmed,
        )

    @refusing
    async def ListRanges(self, request: pb.ListRangesRequest, context: Context) -> pb.ListRangesResponse:  # noqa: N802
        """Return ranges, those furthest behind first."""
        limit = at_most("page_size", request.page_size, MAX_PAGE) or DEFAULT_PAGE
        below = request.below_micros if request.HasField("below_micros") else None
        await self.services.confirm(request.computation)
        shard, name = self.services.shard, request.computation
        ranges, total, incarnation, newest_claim = await shard.reads.ranges(name, below=below, limit=limit)
        return pb.ListRangesResponse(
            ranges=map(codec.key_range_message, ranges),
            total=total,
            incarnation=incarnation,
            newest_claim=newest_claim,
        )

    @refusing
    async def GetHistory(self, request: pb.GetHistoryRequest, context: Context) -> pb.GetHistoryResponse:  # noqa: N802
        """Return when steps of event time became complete, the newest ones."""
        limit = at_most("page_size", request.page_size, MAX_PAGE) or DEFAULT_PAGE
        since = request.since_micros if request.HasField("since_micros") else None
        shard = self.services.shard
        await self.services.confirm(request.computation)
        completions, total = await shard.reads.history(request.computation, since=since, limit=limit)
        return pb.GetHistoryResponse(
            step_micros=shard.topology.get(request.computation).history_step,
            completions=map(codec.completion_message, completions),
            total=total,
        )

    async def _begin(self, subscription: Subscription, names: list[str]) -> tuple[int, list[types_pb2.Watermark]]:
        """Put the current values into a subscription.

        Returns when these were the newest, and the messages about unregistered names.
        """
        shard = self.services.shard
        confirmed, here, elsewhere = await self._look(names)
        unknown = []
        for name in here:
            view = shard.served.view(name)
            if view is None:
                unknown.append(self._messages.of(name, None))
            else:
                subscription.put(name, view)
        for name in elsewhere:
            subscription.put(name, None)
        return confirmed, unknown

    async def _look(self, requested: list[str]) -> tuple[int, list[str], list[str]]:
        """Confirm the values that this shard serves, and take over those that it is to serve.

        Returns when these values were the newest, the names that this shard serves or that are
        unregistered, and the names that other shards serve. None
        ``requested``: all that the caller may read.
        """
        shard = self.services.shard
        if not requested or any(name not in shard.topology.computations for name in requested):
            await shard.confirmation.confirm(())
        names = requested or visible(sorted(shard.topology.computations))
        registered = [name for name in names if name in shard.topology.computations]
        if len(registered) == 1:
            with suppress(errors.Unavailable):
                await shard.takeover.serve(registered[0])
        else:
            await shard.takeover.serve_those(registered)
        # If none of them can be confirmed, the refusal of those that are served says why.
        confirmable = [name for name in names if shard.served.confirms(name)] or [
            name for name in names if name in shard.served
        ]
        confirmed = await shard.confirmation.confirm(confirmable)
        elsewhere = [name for name in names if name in shard.topology.computations and not shard.served.confirms(name)]
        away = set(elsewhere)
        return confirmed, [name for name in names if name not in away], elsewhere

    async def _response(
        self,
        views: dict[str, View | None],
        promised: dict[str, SentPromise],
        confirmed: int | None = None,
        unknown: Iterable[types_pb2.Watermark] = (),
        go_away: types_pb2.GoAway | None = None,
        *,
        waited: float | None = None,
        dropped: Sequence[str] = (),
    ) -> pb.WatchResponse:
        """Return the next message of a stream, with the views just taken from its subscription.

        ``confirmed`` is when they were the newest; None: now.
        """
        shard = self.services.shard
        now = shard.now
        registered = shard.topology.computations
        watermarks, elsewhere = list(unknown), list[str]()
        for name, view in views.items():
            if view is not None or name not in registered:
                watermarks.append(self._news(name, view, promised))
            else:
                promised.pop(name, None)  # its next shard may read another file of promises
                if not shard.served.confirms(name):
                    elsewhere.append(name)
        if views or watermarks:
            self.services.observer.pushed(len(watermarks), waited)
        response = pb.WatchResponse(
            server_token=self.services.token,
            watermarks=watermarks,
            time_micros=shard.confirmation.confirmed_at(now) if confirmed is None else confirmed,
            clock_micros=now,
        )
        if elsewhere or dropped or go_away is not None:  # hardly ever
            response.redirects.extend(await self.services.redirects(elsewhere))
            response.dropped.extend(self._messages.of(name, None) for name in dropped)
            if go_away is not None:
                response.go_away.CopyFrom(go_away)
        return response

    def _news(self, name: str, view: View | None, promised: dict[str, SentPromise]) -> types_pb2.Watermark:
        """Return the message about a computation for a stream that has sent ``promised``.

        An unchanged promise is left out: it is as long as the rest of the message.
        """
        if view is None or name not in self.services.shard.topology.computations:
            promised.pop(name, None)  # it may be registered again
            return self._messages.of(name, view)
        promise, (incarnation, before) = self.services.promises.of(name), promised.get(name, (0, NOTHING))
        if promise is NOTHING:
            promised.pop(name, None)
        else:
            promised[name] = view.incarnation, promise
        # A computation that was dropped and registered again gets its promise again.
        same = promise is NOTHING or incarnation == view.incarnation
        return self._messages.of(name, view, None if same and promise == before else promise)

    def _promised(self, name: str, view: View | None) -> types_pb2.Watermark:
        """Return the message about a computation, with its promise if there is one."""
        if view is None or name not in self.services.shard.topology.computations:
            return self._messages.of(name, view)
        promise = self.services.promises.of(name)
        return self._messages.of(name, view, None if promise is NOTHING else promise)


class Messages:
    """The messages about computations. One message serves all streams and answers.

    A message is built once for each published value.
    """

    def __init__(self, shard: Shard, most: int = MOST_CACHED) -> None:
        self._shard = shard
        self._most = most
        self._cache: dict[str, tuple[View, Topology, int, types_pb2.Watermark]] = {}
        """Messages without promises by name, each with the values that it was built from. These
        values are immutable, so the message is current while they are the same objects."""

    def __len__(self) -> int:
        """Return the number of cached messages."""
        return len(self._cache)

    def of(self, name: str, view: View | None, promise: types_pb2.Promise | None = None) -> types_pb2.Watermark:
        """Return the message about a computation; the caller must not change it.

        ``view`` is its published value; None: the name is not registered.
        """
        shard = self._shard
        topology, epoch = shard.topology, shard.served.epoch(name)
        if view is None or promise is not None:
            return codec.watermark_message(name, view, topology, epoch, promise)
        cached = self._cache.get(name)
        if cached is not None and cached[0] is view and cached[1] is topology and cached[2] == epoch:
            return cached[3]
        message = codec.watermark_message(name, view, topology, epoch)
        if len(self._cache) >= self._most:
            self._cache.clear()
        self._cache[name] = view, topology, epoch, message
        return message


def _readable(views: dict[str, View | None]) -> dict[str, View | None]:
    """Return the views that the caller may read, for a stream that follows all computations.

    For a stream that names its computations the guard has decided.
    """
    return {name: views[name] for name in visible(list(views))} if views and calling() is not None else views


def _rights() -> object:
    """Return the rules that decide what the caller may read; the access file may change them."""
    caller = calling()
    return None if caller is None else caller.principal.allow
