"""Reading over gRPC: only published values are ever answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lowwater import errors
from lowwater._pb.lowwater.v1 import watermarks_pb2 as pb
from lowwater._pb.lowwater.v1 import watermarks_pb2_grpc
from lowwater_authority.service import decode, encode
from lowwater_authority.service.refusals import bad_field, check_token, refuse, refusing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    import grpc

    from lowwater._pb.lowwater.v1 import types_pb2
    from lowwater_authority.core.computation import View
    from lowwater_authority.service.context import Services

    Context = grpc.aio.ServicerContext[Any, Any]

BEAT_SECONDS: Final = 1.0
"""A subscriber that gets nothing for several of these knows that the authority is away."""

DEFAULT_HOLDERS: Final = 10
MAX_HOLDERS: Final = 1000
DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 10_000


class WatermarkServicer(watermarks_pb2_grpc.WatermarkServiceServicer):
    """See proto/lowwater/v1/watermarks.proto."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.observer = services.observer

    @refusing
    async def GetWatermarks(self, request: pb.GetWatermarksRequest, context: Context) -> pb.GetWatermarksResponse:  # noqa: N802
        """Read the published watermarks now."""
        check_token(self.services.token, request.server_token)
        shard = self.services.shard
        names = decode.names("computations", request.computations) or shard.names()
        return pb.GetWatermarksResponse(
            server_token=self.services.token,
            watermarks=[self._watermark(name, shard.view(name)) for name in names],
            time_micros=shard.confirmed,
        )

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.WatchResponse]:  # noqa: N802
        """Follow watermarks, conflated."""
        services, shard = self.services, self.services.shard
        try:
            check_token(services.token, request.server_token)
            names = list(dict.fromkeys(decode.names("computations", request.computations)))
        except errors.LowwaterError as error:
            self.observer.refused("Watch", error.reason)
            await refuse(context, error)
        unknown = [self._watermark(name, None) for name in names if shard.view(name) is None]
        views = (shard.view(name) for name in names or shard.names())
        subscription = shard.hub.subscribe(names, [view for view in views if view is not None])
        try:
            yield self._response(await subscription.take(0), unknown)
            while not services.leaving.is_set():
                yield self._response(await subscription.take(BEAT_SECONDS))
            yield self._response((), go_away=services.go_away())
        finally:
            shard.hub.unsubscribe(subscription)

    @refusing
    async def CheckComplete(self, request: pb.CheckCompleteRequest, context: Context) -> pb.CheckCompleteResponse:  # noqa: N802
        """Answer whether everything before an event time is here, and if not, which ranges hold it."""
        check_token(self.services.token, request.server_token)
        limit = request.max_holders or DEFAULT_HOLDERS
        if limit > MAX_HOLDERS:
            raise bad_field("max_holders", f"is {limit}", f"ask for at most {MAX_HOLDERS}")
        shard = self.services.shard
        shard.topology.get(request.computation)
        holders, holding = await shard.ranges(request.computation, below=request.until_micros, limit=limit)
        view = shard.view(request.computation)
        assert view is not None
        complete = request.until_micros <= view.low
        return pb.CheckCompleteResponse(
            complete=complete,
            watermark=self._watermark(request.computation, view),
            holders=() if complete else map(encode.key_range, holders),
            holding=0 if complete else holding,
            time_micros=shard.confirmed,
        )

    @refusing
    async def ListRanges(self, request: pb.ListRangesRequest, context: Context) -> pb.ListRangesResponse:  # noqa: N802
        """List ranges, those furthest behind first."""
        check_token(self.services.token, request.server_token)
        limit = _page(request.page_size)
        below = request.below_micros if request.HasField("below_micros") else None
        ranges, total = await self.services.shard.ranges(request.computation, below=below, limit=limit)
        return pb.ListRangesResponse(ranges=map(encode.key_range, ranges), total=total)

    @refusing
    async def GetHistory(self, request: pb.GetHistoryRequest, context: Context) -> pb.GetHistoryResponse:  # noqa: N802
        """Tell when steps of event time became complete, the newest of them."""
        check_token(self.services.token, request.server_token)
        limit = _page(request.page_size)
        since = request.since_micros if request.HasField("since_micros") else None
        shard = self.services.shard
        completions, total = await shard.history(request.computation, since=since, limit=limit)
        return pb.GetHistoryResponse(
            step_micros=shard.topology.get(request.computation).history_step,
            completions=map(encode.completion, completions),
            total=total,
        )

    def _watermark(self, name: str, view: View | None) -> types_pb2.Watermark:
        shard = self.services.shard
        return encode.watermark(name, view, shard.topology, shard.journal.epoch)

    def _response(
        self,
        views: Iterable[View],
        unknown: Iterable[types_pb2.Watermark] = (),
        go_away: types_pb2.GoAway | None = None,
    ) -> pb.WatchResponse:
        watermarks = [*unknown, *(self._watermark(view.name, view) for view in views)]
        self.observer.pushed(len(watermarks))
        return pb.WatchResponse(
            server_token=self.services.token,
            watermarks=watermarks,
            time_micros=self.services.shard.confirmed,
            go_away=go_away,
            clock_micros=self.services.shard.now,
        )


def _page(asked: int) -> int:
    """Return how many a list may have. Raises InvalidArgument."""
    if asked > MAX_PAGE:
        raise bad_field("page_size", f"is {asked}", f"ask for at most {MAX_PAGE}")
    return asked or DEFAULT_PAGE
