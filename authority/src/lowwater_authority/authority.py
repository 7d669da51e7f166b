"""One authority, wired: journal -> shard -> services -> servicers.

The server that carries its messages is passed in.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lowwater.v1 import (
    cluster_pb2_grpc,
    tasks_pb2_grpc,
    topology_pb2_grpc,
    watermarks_pb2_grpc,
    workers_pb2_grpc,
)
from lowwater_authority.access.policy import Limits
from lowwater_authority.engine.shard import Shard
from lowwater_authority.rpc.cluster import ClusterServicer
from lowwater_authority.rpc.services import Services
from lowwater_authority.rpc.tasks import TaskServicer
from lowwater_authority.rpc.topology import TopologyServicer
from lowwater_authority.rpc.watermarks import WatermarkServicer
from lowwater_authority.rpc.workers import WorkerServicer

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

    from lowwater_authority.access.policy import Access
    from lowwater_authority.cluster.cluster import Cluster
    from lowwater_authority.engine.observer import Observer
    from lowwater_authority.engine.settings import ShardSettings
    from lowwater_authority.journal import Journal
    from lowwater_authority.promises import Promises
    from lowwater_authority.rpc.streams import Streams


class Authority:
    """One process of a deployment: with a ``cluster`` one shard among others, otherwise all of it.

    ``clock`` is the wall clock, in microseconds since the Unix epoch. It decides which event times
    are too far ahead. All else is measured by ``monotonic``, in microseconds since any moment;
    None: ``clock`` makes no steps, as in virtual time. ``access`` returns the access rules in
    force, by which Identify looks up tokens; None: there are none. Then ``limits`` are those of all
    callers together; None: no limits. ``settings`` has the bounds and waiting times of the shard;
    None: the defaults.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], int] | None = None,
        observer: Observer,
        cluster: Cluster | None = None,
        access: Callable[[], Access] | None = None,
        limits: Limits | None = None,
        settings: ShardSettings | None = None,
    ) -> None:
        self.shard = Shard(
            journal, clock=clock, monotonic=monotonic, observer=observer, placement=cluster, settings=settings
        )
        self._cluster = cluster
        self._services = Services(self.shard, observer, cluster, access=access, limits=limits or Limits())
        self._workers = WorkerServicer(self._services)
        self._stopping = False
        if cluster is not None:
            cluster.contact.on_cut_off = self._cut_off

    @property
    def streams(self) -> Streams:
        """The open report streams."""
        return self._workers.streams

    @property
    def promises(self) -> Promises:
        """Promises about computations."""
        return self._services.promises

    def promise(self, promises: Promises) -> None:
        """Show these promises from now on, on open watch streams too.

        On the event loop; O(computations served).
        """
        before, self._services.promises = self._services.promises, promises
        views = [view for view in map(self.shard.served.view, self.shard.served.names()) if view is not None]
        self.shard.hub.publish(view for view in views if before.of(view.name) != promises.of(view.name))

    async def recover(self) -> None:
        """Open the journal, and rebuild the state of this process from it.

        Raises the errors of the journal.
        """
        await self.shard.start()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add the servicers to a server that has not started."""
        services = self._services
        cluster_pb2_grpc.add_ClusterServiceServicer_to_server(ClusterServicer(services), server)
        topology_pb2_grpc.add_TopologyServiceServicer_to_server(TopologyServicer(services), server)
        readers = WatermarkServicer(services, self.streams)
        watermarks_pb2_grpc.add_WatermarkServiceServicer_to_server(readers, server)
        workers_pb2_grpc.add_WorkerServiceServicer_to_server(self._workers, server)
        tasks_pb2_grpc.add_TaskServiceServicer_to_server(TaskServicer(services, self.streams), server)

    async def run(self) -> None:
        """Run rounds, and be a member of the cluster, until :meth:`leave`.

        The server must have started. Raises JournalReplaced, Replaced and other errors after which
        this process must not go on.
        """
        tasks = [asyncio.create_task(self.shard.run())]
        if self._cluster is not None:
            tasks.append(asyncio.create_task(self._be_member(self._cluster)))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _be_member(self, cluster: Cluster) -> None:
        await cluster.join(self.shard)
        await cluster.run()

    async def hand_over(self) -> None:
        """Let other shards take over what this one serves; it goes on serving meanwhile.

        It gives up after some seconds.
        """
        if self._cluster is not None:
            await self._cluster.leave()

    def leave(self) -> None:
        """End every stream, refuse new requests, and let :meth:`run` end after those queued."""
        self._stopping = True
        self._end_streams()
        self.shard.stop()
        if self._cluster is not None:
            self._cluster.stop()

    async def close(self) -> None:
        """Close the journal, shortened; call it after :meth:`run` has ended by itself."""
        if self._cluster is not None:
            await self._cluster.close()
        await self.shard.close()

    def _cut_off(self, cut_off: bool) -> None:
        if cut_off:
            self._end_streams()
        elif not self._stopping:
            self._services.leaving.clear()

    def _end_streams(self) -> None:
        self._services.leaving.set()
        self.shard.hub.wake()
        self.streams.wake()
