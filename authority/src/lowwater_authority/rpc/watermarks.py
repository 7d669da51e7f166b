"""Reading over gRPC: only published values are ever answered."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from lowwater import errors
from lowwater.v1 import watermarks_pb2 as pb
from lowwater.v1 import watermarks_pb2_grpc
from lowwater_authority.access.caller import calling, demand_some_read, holder, visible
from lowwater_authority.engine.placement import moved
from lowwater_authority.promises import NOTHING
from lowwater_authority.rpc import codec
from lowwater_authority.rpc.refusals import bad_field, check_token, refuse, refusing
from lowwater_authority.rpc.rooms import enter, inside, leave, watched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    import grpc

    from lowwater.v1 import types_pb2
    from lowwater_authority.core.computation import View
    from lowwater_authority.core.topology import Topology
    from lowwater_authority.engine.hub import Subscription
    from lowwater_authority.engine.shard import Shard
    from lowwater_authority.rpc.services import Services
    from lowwater_authority.rpc.streams import Streams

    Context = grpc.aio.ServicerContext[Any, Any]

BEAT_SECONDS: Final = 1.0
"""A subscriber that gets nothing for several of these knows that the authority is away."""

MAX_INTERVAL_MILLIS: Final = 1000
"""Between two messages with watermarks: whoever hears nothing for longer than a beat believes that
the authority is away."""

DEFAULT_HOLDERS: Final = 10
MAX_HOLDERS: Final = 1000
DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 10_000


Told = tuple[int, "types_pb2.Promise"]
"""What a stream has told that was promised of a computation, and of which incarnation."""


MOST_KEPT: Final = 10_000
"""Messages of computations that are kept to be used again: as many as one request may name."""


class Messages:
    """What is told of the computations of a shard.

    The message of what was published last is made once, for all streams and answers that tell of
    it.
    """

    def __init__(self, shard: Shard, most: int = MOST_KEPT) -> None:
        self._shard = shard
        self._most = most
        self._kept: dict[str, tuple[View, Topology, int, types_pb2.Watermark]] = {}
        """By name, without promises, and from what each was made: none of that changes, it is only
        replaced."""

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._kept)

    def of(self, name: str, view: View | None, promise: types_pb2.Promise | None = None) -> types_pb2.Watermark:
        """Return what is told of a computation of which a value is published; without one, of a name that is not registered. Not to be changed."""
        shard = self._shard
        topology, epoch = shard.topology, shard.served.epoch(name)
        if view is None or promise is not None:
            return codec.watermark_message(name, view, topology, epoch, promise)
        kept = self._kept.get(name)
        if kept is not None and kept[0] is view and kept[1] is topology and kept[2] == epoch:
            return kept[3]
        message = codec.watermark_message(name, view, topology, epoch)
        if len(self._kept) >= self._most:
            self._kept.clear()
        self._kept[name] = view, topology, epoch, message
        return message


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
        """Read the published watermarks now."""
        shard = self.services.shard
        asked = list(request.computations)
        confirmed, names, elsewhere = await self._look(asked)
        return pb.GetWatermarksResponse(
            server_token=self.services.token,
            watermarks=[self._promised(name, shard.served.view(name)) for name in names],
            time_micros=confirmed,
            redirects=await self.services.redirects(elsewhere),
        )

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.WatchResponse]:  # noqa: N802
        """Follow watermarks, conflated. The first values are confirmed like those of a get."""
        services, shard = self.services, self.services.shard
        subscription: Subscription | None = None
        counted, who = False, holder()
        room = ExitStack()
        try:
            services.check()
            check_token(services.token, request.server_token)
            interval = _interval(request.interval_millis)
            if not request.computations:
                demand_some_read()
            await enter(self._open, who)
            counted = True
            asked = list(dict.fromkeys(request.computations))
            room.enter_context(watched(self._watched, asked))
            rights = _rights()
            async with inside(self._starting, who):
                subscription = shard.hub.subscribe(asked)
                confirmed, unknown = await self._begin(subscription, asked)
            taken = await subscription.take(0)
            promised: dict[str, Told] = {}
            dropped = [] if asked else visible(sorted(shard.topology.dropped))
            taken = taken if asked else _readable(taken)
            yield await self._response(taken, promised, confirmed, unknown, dropped=dropped)
            del unknown, dropped  # a stream may be open for weeks
            while not services.leaving.is_set():
                if not asked and rights != _rights():
                    # What may be read only now is told as if asked for now: it may not change for
                    # long.
                    rights = _rights()
                    async with inside(self._starting, who):
                        await self._begin(subscription, asked)
                taken = await subscription.take(BEAT_SECONDS, interval)
                taken = taken if asked else _readable(taken)
                waited = subscription.waited if taken else None
                yield await self._response(taken, promised, waited=waited)
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
        """Answer whether everything before an event time is here, and if not, which ranges hold it."""
        limit = request.max_holders or DEFAULT_HOLDERS
        if limit > MAX_HOLDERS:
            raise bad_field("max_holders", f"is {limit}", f"ask for at most {MAX_HOLDERS}")
        shard = self.services.shard
        confirmed = await self.services.confirm(request.computation)
        shard.topology.refuse_slice(request.computation)
        holders, holding = await shard.reads.ranges(request.computation, below=request.until_micros, limit=limit)
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
        """List ranges, those furthest behind first."""
        limit = _page(request.page_size)
        below = request.below_micros if request.HasField("below_micros") else None
        await self.services.confirm(request.computation)
        shard, name = self.services.shard, request.computation
        ranges, total, incarnation, newest_claim = await shard.reads.ranges_and_claim(name, below=below, limit=limit)
        found = map(codec.key_range_message, ranges)
        return pb.ListRangesResponse(ranges=found, total=total, incarnation=incarnation, newest_claim=newest_claim)

    @refusing
    async def GetHistory(self, request: pb.GetHistoryRequest, context: Context) -> pb.GetHistoryResponse:  # noqa: N802
        """Tell when steps of event time became complete, the newest of them."""
        limit = _page(request.page_size)
        since = request.since_micros if request.HasField("since_micros") else None
        shard = self.services.shard
        await self.services.confirm(request.computation)
        completions, total = await shard.reads.history(request.computation, since=since, limit=limit)
        return pb.GetHistoryResponse(
            step_micros=shard.topology.get(request.computation).history_step,
            completions=map(codec.completion_message, completions),
            total=total,
        )

    async def _begin(self, subscription: Subscription, asked: list[str]) -> tuple[int, list[types_pb2.Watermark]]:
        """Have a subscription tell where all that it follows is.

        Returns when that was the newest, and what is told of unknown names.
        """
        shard = self.services.shard
        confirmed, names, elsewhere = await self._look(asked)
        unknown = []
        for name in names:
            view = shard.served.view(name)
            if view is None:
                unknown.append(self._messages.of(name, None))
            else:
                subscription.put(name, view)
        for name in elsewhere:
            subscription.put(name, None)
        return confirmed, unknown

    async def _look(self, asked: list[str]) -> tuple[int, list[str], list[str]]:
        """Return when what is published here was the newest, what of the names is here or nowhere, and what other shards serve.

        Without names: all that are registered and that the caller may read.
        """
        shard = self.services.shard
        if not asked or any(name not in shard.topology.computations for name in asked):
            await shard.confirmation.confirm(())
        names = asked or visible(sorted(shard.topology.computations))
        registered = [name for name in names if name in shard.topology.computations]
        if len(registered) == 1:
            with suppress(errors.Unavailable):
                await shard.takeover.serve(registered[0])
        else:
            await shard.takeover.serve_those(registered)
        # Where nothing else is asked for, the refusal says why nothing is told.
        told = [name for name in names if shard.served.confirms(name)] or [
            name for name in names if name in shard.served
        ]
        confirmed = await shard.confirmation.confirm(told)
        elsewhere = [name for name in names if name in shard.topology.computations and not shard.served.confirms(name)]
        away = set(elsewhere)
        return confirmed, [name for name in names if name not in away], elsewhere

    def _promised(self, name: str, view: View | None) -> types_pb2.Watermark:
        """Return what is published of a computation, with what was promised of it, if anything was."""
        if view is None or name not in self.services.shard.topology.computations:
            return self._messages.of(name, view)
        promise = self.services.promises.of(name)
        return self._messages.of(name, view, None if promise is NOTHING else promise)

    def _news(self, name: str, view: View | None, promised: dict[str, Told]) -> types_pb2.Watermark:
        """Return what is published of a computation, for a stream that was told what was ``promised``: only what is new of that.

        A promise is as long as the rest of the message, and hardly ever changes.
        """
        if view is None or name not in self.services.shard.topology.computations:
            promised.pop(name, None)  # it may be registered again
            return self._messages.of(name, view)
        promise, (incarnation, before) = self.services.promises.of(name), promised.get(name, (0, NOTHING))
        if promise is NOTHING:
            promised.pop(name, None)
        else:
            promised[name] = view.incarnation, promise
        # One that was dropped and registered again meanwhile is told anew.
        same = promise is NOTHING or incarnation == view.incarnation
        return self._messages.of(name, view, None if same and promise == before else promise)

    async def _response(
        self,
        taken: dict[str, View | None],
        promised: dict[str, Told],
        confirmed: int | None = None,
        unknown: Iterable[types_pb2.Watermark] = (),
        go_away: types_pb2.GoAway | None = None,
        *,
        waited: float | None = None,
        dropped: Sequence[str] = (),
    ) -> pb.WatchResponse:
        """Return the next message of a stream: what was ``taken`` in this moment, and what was ``confirmed``, which is also this moment when left out."""
        shard = self.services.shard
        now = shard.now
        known = shard.topology.computations
        watermarks, elsewhere = list(unknown), list[str]()
        for name, view in taken.items():
            if view is not None or name not in known:
                watermarks.append(self._news(name, view, promised))
            else:
                promised.pop(name, None)  # its next shard may have another file
                if not shard.served.confirms(name):
                    elsewhere.append(name)
        if taken or watermarks:
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


def _readable(taken: dict[str, View | None]) -> dict[str, View | None]:
    """Return what the caller may read of what it follows without naming it; what it named was decided before."""
    return {name: taken[name] for name in visible(list(taken))} if taken and calling() is not None else taken


def _rights() -> object:
    """Return what decides what the caller may read; it changes with the access file."""
    caller = calling()
    return None if caller is None else caller.principal.allow


def _interval(asked: int) -> float:
    """Return how many seconds a watch stream leaves between two messages with watermarks.

    Raises InvalidArgument.
    """
    if asked > MAX_INTERVAL_MILLIS:
        raise bad_field("interval_millis", f"is {asked}", f"ask for at most {MAX_INTERVAL_MILLIS}")
    return asked / 1000


def _page(asked: int) -> int:
    """Return how many a list may have. Raises InvalidArgument."""
    if asked > MAX_PAGE:
        raise bad_field("page_size", f"is {asked}", f"ask for at most {MAX_PAGE}")
    return asked or DEFAULT_PAGE
