"""Requests about the graph over gRPC."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from lowwater import errors
from lowwater.v1 import topology_pb2 as pb
from lowwater.v1 import topology_pb2_grpc
from lowwater_authority.access.caller import calling, permit, room, room_for_slice, visible
from lowwater_authority.journal import JournalError
from lowwater_authority.rpc import codec
from lowwater_authority.rpc.refusals import refusing

if TYPE_CHECKING:
    from lowwater_authority.rpc.services import Context, Services


class TopologyServicer(topology_pb2_grpc.TopologyServiceServicer):
    """See proto/lowwater/v1/topology.proto."""

    def __init__(self, services: Services) -> None:
        self.services = services

    @refusing
    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterResponse:  # noqa: N802
        """Register a computation, or return the one that is registered the same."""
        shard, spec = self.services.shard, codec.spec(request)
        await shard.confirmation.confirm(())  # another shard may have registered it since
        caller = calling()
        spec = await shard.graph.register(
            spec,
            room=room(spec.name, len(spec.cut.parts), self.services.limits),
            principal="" if caller is None else caller.principal.name,
        )
        return pb.RegisterResponse(
            server_token=self.services.token, computation=codec.computation_message(spec, shard.topology)
        )

    @refusing
    async def GetTopology(self, request: pb.GetTopologyRequest, context: Context) -> pb.GetTopologyResponse:  # noqa: N802
        """Return the graph as the store has it, as far as the caller may read."""
        await self.services.shard.confirmation.confirm(())
        topology = self.services.shard.topology
        return pb.GetTopologyResponse(
            server_token=self.services.token,
            version=topology.version,
            computations=[
                codec.computation_message(topology.computations[name], topology)
                for name in visible(sorted(topology.computations))
            ],
        )

    @refusing
    async def SetInputs(self, request: pb.SetInputsRequest, context: Context) -> pb.SetInputsResponse:  # noqa: N802
        """Replace the inputs of a computation."""
        shard = self.services.shard
        await self.services.reach(request.computation)
        name = request.computation
        spec = await shard.graph.set_inputs(
            name,
            list(request.inputs),
            incarnation=request.incarnation,
            input_version=request.input_version,
            permit=permit(name),
        )
        return pb.SetInputsResponse(computation=codec.computation_message(spec, shard.topology))

    @refusing
    async def Reset(self, request: pb.ResetRequest, context: Context) -> pb.ResetResponse:  # noqa: N802
        """Begin new incarnations of a computation and of all that read it, directly or not."""
        shard = self.services.shard
        await shard.confirmation.confirm(())  # another shard may have registered it since
        name = request.computation
        specs = await shard.graph.reset(name, incarnation=request.incarnation, permit=permit(name))
        return pb.ResetResponse(computations=[codec.computation_message(spec, shard.topology) for spec in specs])

    @refusing
    async def SplitSlice(self, request: pb.SplitSliceRequest, context: Context) -> pb.SplitSliceResponse:  # noqa: N802
        """Cut a slice into two."""
        shard, name = self.services.shard, request.computation
        await shard.confirmation.confirm(())  # another shard may have cut it since
        spec = await shard.graph.split(
            name,
            request.slice,
            request.at,
            incarnation=request.incarnation,
            room=room_for_slice(name, self.services.limits),
        )
        return pb.SplitSliceResponse(slice=codec.computation_message(spec, shard.topology))

    @refusing
    async def Retire(self, request: pb.RetireRequest, context: Context) -> pb.RetireResponse:  # noqa: N802
        """Retire a key interval of a computation."""
        start, end = codec.interval(request.start, request.end)
        await self.services.reach(request.computation)
        ranges = await self.services.shard.owners.retire(
            request.computation,
            start,
            end,
            force=request.force,
            sequencer=request.sequencer,
            newest_claim=request.newest_claim if request.HasField("newest_claim") else None,
            incarnation=request.incarnation,
        )
        return pb.RetireResponse(ranges=ranges)

    @refusing
    async def ChangeLayout(self, request: pb.ChangeLayoutRequest, context: Context) -> pb.ChangeLayoutResponse:  # noqa: N802
        """Set the wanted layout of a computation."""
        wish = codec.layout_wish(request)
        await self.services.reach(request.computation)
        version = await self.services.shard.owners.change_layout(request.computation, *wish)
        return pb.ChangeLayoutResponse(version=version)

    @refusing
    async def GetLayout(self, request: pb.GetLayoutRequest, context: Context) -> pb.GetLayoutResponse:  # noqa: N802
        """Return the wanted layout, and the one that the owner reports."""
        await self.services.confirm(request.computation)
        return await self.services.shard.reads.ask(
            request.computation, lambda computation, _: codec.layouts_message(computation)
        )

    @refusing
    async def Drop(self, request: pb.DropRequest, context: Context) -> pb.DropResponse:  # noqa: N802
        """Drop a computation from the graph."""
        shard = self.services.shard
        await shard.confirmation.confirm(())  # another shard may have registered a reader of it since
        try:
            await self.services.reach(request.computation)
        except errors.Unavailable:
            if not shard.takeover.is_damaged(request.computation):
                raise
        dropped = await shard.graph.drop(request.computation, force=request.force, incarnation=request.incarnation)
        if self.services.cluster is not None:
            # If this fails, the first shard does it at one of its next beats.
            with suppress(JournalError, errors.LowwaterError):
                await self.services.cluster.unpin_dropped()
        return pb.DropResponse(computation=codec.tombstone_message(dropped))
