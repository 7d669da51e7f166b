"""The cluster over gRPC: places of computations, and how an operator moves them."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from lowwater import errors
from lowwater.core.events import event
from lowwater.v1 import cluster_pb2 as pb
from lowwater.v1 import cluster_pb2_grpc, types_pb2
from lowwater_authority.access.caller import calling
from lowwater_authority.access.policy import SHA256, Action
from lowwater_authority.core.computation import LARGEST_EPOCH
from lowwater_authority.core.requests import bad_field
from lowwater_authority.journal import JournalError
from lowwater_authority.rpc.refusals import refusing

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowwater_authority.cluster.cluster import Cluster
    from lowwater_authority.cluster.membership import View
    from lowwater_authority.rpc.services import Context, Services

log = logging.getLogger(__name__)


class ClusterServicer(cluster_pb2_grpc.ClusterServiceServicer):
    """See proto/lowwater/v1/cluster.proto."""

    def __init__(self, services: Services) -> None:
        self.services = services

    @refusing
    async def Locate(self, request: pb.LocateRequest, context: Context) -> pb.LocateResponse:  # noqa: N802
        """Return which shards serve computations."""
        cluster = self._cluster()
        names = list(request.computations)
        if len(request.epochs) not in {0, len(names)}:
            raise bad_field(
                "epochs", f"has {len(request.epochs)} numbers for {len(names)} computations", "send one each"
            )
        if any(epoch > LARGEST_EPOCH for epoch in request.epochs):
            raise bad_field("epochs", "has a number that no computation can have", f"send at most {LARGEST_EPOCH}")
        shard = self.services.shard
        await shard.confirmation.confirm(())
        await self.services.settle(names, context)
        await shard.takeover.serve_those(name for name in names if name in shard.topology.computations)
        numbers = list(zip(names, request.epochs or [0] * len(names), strict=True))
        for name, epoch in numbers:
            if name in shard.served and _may_raise(name):
                await shard.confirmation.rise(name, epoch)
        await shard.confirmation.confirm(name for name in names if name in shard.served)
        for name, epoch in numbers:
            if name in shard.served and epoch > shard.served.epoch(name):
                self._tell_ahead(name, epoch)
        registered = [name for name in names if name in shard.topology.computations]
        places = {redirect.computation: redirect for redirect in await self.services.redirects(registered)}
        # Any shard can answer for a dropped computation, and say why a damaged one is not served.
        dropped, me = shard.topology.dropped, cluster.me.address
        for name, epoch in numbers:
            if name in dropped or (name in places and not places[name].address and shard.takeover.is_damaged(name)):
                places[name] = types_pb2.Redirect(computation=name, address=me, epoch=epoch)
        redirects = [places.get(name) or types_pb2.Redirect(computation=name) for name in names]
        return pb.LocateResponse(server_token=self.services.token, redirects=redirects)

    @refusing
    async def ListShards(self, request: pb.ListShardsRequest, context: Context) -> pb.ListShardsResponse:  # noqa: N802
        """Return the living shards, and what each serves, as far as the caller may know."""
        cluster = self._cluster()
        await self.services.shard.confirmation.confirm(())
        try:
            view, beats = await cluster.look()
        except JournalError as error:
            raise _unreadable(error) from error
        caller = calling()
        registered = sorted(self.services.shard.topology.computations)
        pins = sorted(view.pins.items())
        if caller is not None:
            registered = [name for name in registered if caller.may_any(name)]
            pins = [(name, address) for name, address in pins if caller.may_any(name)]
        served: dict[str, list[str]] = {member.address: [] for member in view.members}
        unserved: list[str] = []
        for redirect in await self.services.redirects(registered):
            served.get(redirect.address, unserved).append(redirect.computation)
        return pb.ListShardsResponse(
            server_token=self.services.token,
            version=view.version,
            shards=[
                pb.Shard(
                    address=member.address,
                    id=member.id,
                    draining=member.draining,
                    silent_millis=max(0, beats.now - beats.last.get(member.id, 0)) // 1000,
                    computations=served[member.address],
                )
                for member in view.members
            ],
            pins=[pb.Pinned(computation=name, address=address) for name, address in pins],
            unserved=unserved,
        )

    @refusing
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:  # noqa: N802
        """Have a shard hand over all that it serves, or cancel that."""
        await self._change(
            request, lambda view: view.draining(request.address, on=not request.cancel), settles=request.cancel
        )
        registered = sorted(self.services.shard.topology.computations)
        places = await self.services.redirects(registered)
        return pb.DrainResponse(remaining=sum(place.address == request.address for place in places))

    @refusing
    async def Pin(self, request: pb.PinRequest, context: Context) -> pb.PinResponse:  # noqa: N802
        """Pin a computation to a shard, or unpin it."""
        self._cluster()
        name = request.computation
        await self.services.shard.confirmation.confirm(())
        self.services.shard.topology.get(name)
        view = await self._change(request, lambda view: view.pinned(name, request.address), settles=True)
        return pb.PinResponse(version=view.version)

    @refusing
    async def Identify(self, request: pb.IdentifyRequest, context: Context) -> pb.IdentifyResponse:  # noqa: N802
        """Return whose token it is, and what its principal may see over HTTP."""
        if request.token_sha256 and SHA256.fullmatch(request.token_sha256) is None:
            # The error does not quote it: it may be the token itself.
            fix = "send its SHA-256, 64 lower-case hexadecimal digits, and never the token itself"
            raise bad_field("token_sha256", "is no digest of a token", fix)
        token = self.services.token
        if self.services.access is None:
            return pb.IdentifyResponse(server_token=token, page=True, metrics=True)
        caller = calling()
        if request.token_sha256:
            principal = self.services.access().whose(request.token_sha256, time.time())  # in constant time
        else:
            principal = None if caller is None else caller.principal
        if principal is None:
            return pb.IdentifyResponse(server_token=token, controlled=True)
        return pb.IdentifyResponse(
            server_token=token,
            controlled=True,
            principal=principal.name,
            page=principal.page,
            metrics=principal.metrics,
        )

    def _tell_ahead(self, name: str, epoch: int) -> None:
        """Log that a reader has seen a computation at a higher epoch than the store has.

        The reader has no right to raise the epoch. One line in a while for each computation.
        """
        shard = self.services.shard
        count = self.services.quiet.count(("Locate", name), shard.now / 1e6)
        if count:
            fields = event(
                "store_lost_epochs", computation=name, seen=epoch, epoch=shard.served.epoch(name), count=count
            )
            log.warning(
                "a reader of %s has seen its epoch %d, and the store has only %d: the reader waits until a worker "
                "or an operator reports that number too, or until it is restarted; see docs/operate/durability.md",
                name,
                epoch,
                shard.served.epoch(name),
                extra=fields,
            )

    async def _change(
        self, request: pb.DrainRequest | pb.PinRequest, change: Callable[[View], View], *, settles: bool
    ) -> View:
        """Change the view, unless the change is in it already.

        ``settles``: a call that names a version begins a new one in any case, so that an opposite
        call that is delayed is refused. Raises InvalidArgument for an address that no shard has,
        and for a version that is not in force.
        """
        cluster, address, version = self._cluster(), request.address, request.version

        def checked(view: View) -> View:
            if version not in (0, view.version):
                raise bad_field("version", f"is {version}, and {view.version} is in force", "look at the shards again")
            return change(view)

        try:
            view, _ = await cluster.look()
            if address and view.at(address) is None:
                living = ", ".join(member.address for member in view.members)
                raise bad_field("address", f"{address!r} is no living shard's", f"name one of {living}")
            changed = change(view)
            if (changed.members, changed.pins) == (view.members, view.pins) and not (version and settles):
                return view
            return await cluster.change(checked)
        except JournalError as error:
            raise _unreadable(error) from error

    def _cluster(self) -> Cluster:
        cluster = self.services.cluster
        if cluster is None:
            fix = "serve with a shared store: `lowwater serve --store redis://...`"
            msg = f"this authority is alone, with a journal of its own. To have many shards, {fix}"
            raise errors.InvalidArgument(msg, metadata={"field": "", "fix": fix})
        return cluster


def _may_raise(name: str) -> bool:
    """Return whether the caller may raise the epoch of a computation.

    A caller that only reads may not: it could use up the epochs, and stop the worker each time.
    """
    caller = calling()
    return caller is None or caller.may(Action.REPORT, name) or caller.may(Action.OPERATE, name)


def _unreadable(error: JournalError) -> errors.Unavailable:
    return errors.Unavailable(f"this shard cannot reach the membership in its store: {error}")
