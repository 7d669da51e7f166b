"""One authority, wired: journal -> shard -> services -> servicers. What carries its messages is passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowwater._pb.lowwater.v1 import topology_pb2_grpc, watermarks_pb2_grpc, workers_pb2_grpc
from lowwater_authority.service.context import Services
from lowwater_authority.service.topology import TopologyServicer
from lowwater_authority.service.watermarks import WatermarkServicer
from lowwater_authority.service.workers import WorkerServicer
from lowwater_authority.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

    from lowwater_authority.journal import Journal
    from lowwater_authority.observer import Observer
    from lowwater_authority.service.streams import Streams


class Authority:
    """Serves one journal. ``clock`` gives processing time in microseconds since the Unix epoch, UTC."""

    def __init__(self, journal: Journal, *, clock: Callable[[], int], observer: Observer) -> None:
        self.shard = Shard(journal, clock=clock, observer=observer)
        self._services = Services(self.shard, observer)
        self._workers = WorkerServicer(self._services)

    @property
    def streams(self) -> Streams:
        """The open report streams."""
        return self._workers.streams

    async def recover(self) -> None:
        """Take the journal over and rebuild everything from it. Raises what the journal raises."""
        await self.shard.start()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Let a server, not yet started, take the calls."""
        services = self._services
        topology_pb2_grpc.add_TopologyServiceServicer_to_server(TopologyServicer(services), server)
        watermarks_pb2_grpc.add_WatermarkServiceServicer_to_server(WatermarkServicer(services), server)
        workers_pb2_grpc.add_WorkerServiceServicer_to_server(self._workers, server)

    async def run(self) -> None:
        """Run rounds until :meth:`leave`. Raises JournalFenced and its like: this process must not go on."""
        await self.shard.run()

    def leave(self) -> None:
        """Say goodbye on every stream, take no more requests, and let :meth:`run` end with those that are queued."""
        self._services.leaving.set()
        self.shard.hub.wake()
        self.streams.wake()
        self.shard.stop()

    async def close(self) -> None:
        """Leave a short journal behind; to be called when :meth:`run` has ended by itself."""
        await self.shard.close()
