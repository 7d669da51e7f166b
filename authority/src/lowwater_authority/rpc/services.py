"""What all servicers share: the shard, its cluster, and redirects to the shards of the cluster."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc.aio

from lowwater import errors
from lowwater.core.events import Limited
from lowwater.v1 import types_pb2
from lowwater_authority.access.policy import Limits
from lowwater_authority.engine.placement import moved
from lowwater_authority.promises import Promises

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lowwater_authority.access.policy import Access
    from lowwater_authority.cluster.cluster import Cluster
    from lowwater_authority.engine.observer import Observer
    from lowwater_authority.engine.shard import Shard

HOLD_SECONDS: Final = 1.0
"""Most seconds that a call waits for the successor of a shard that has just died. A client that
polls instead would find the successor later."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

GO_AWAY_MILLIS: Final = 500
"""Milliseconds, before jitter, after which clients connect again after a planned stop."""


@dataclass(slots=True)
class Services:
    """What the servicers of one process share."""

    shard: Shard
    observer: Observer
    cluster: Cluster | None = None
    """The other shards; None: this process is alone."""
    promises: Promises = field(default_factory=Promises)
    """Promises about computations; replaced when their file changes."""
    access: Callable[[], Access] | None = None
    """Function that returns the access rules in force; None: every caller may do everything."""
    limits: Limits = field(default_factory=Limits)
    """Limits of all callers together where there are no access rules."""
    quiet: Limited = field(default_factory=Limited)
    """Counter by which lines that callers can cause are logged only once in a while."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while streams are to end: for good when the process stops, and for as long as it is cut
    off from its store."""

    @property
    def token(self) -> str:
        """The deployment's identity."""
        return self.shard.journal.server_token

    def go_away(self) -> types_pb2.GoAway:
        """Return the last message of every stream."""
        cut_off = self.cluster is not None and self.cluster.contact.cut_off
        reason = "the authority is cut off from its store" if cut_off else "the authority is stopping"
        return types_pb2.GoAway(reason=reason, retry_after_millis=GO_AWAY_MILLIS)

    def check(self) -> None:
        """Raise Unavailable while this shard is cut off: another may serve its computations."""
        if self.cluster is not None and self.cluster.contact.cut_off:
            msg = (
                "this shard is cut off from its store, and another one may serve what it did: ask another, or try later"
            )
            raise errors.Unavailable(msg)

    async def reach(self, name: str) -> None:
        """Return when this shard serves a computation; take it over if this shard is to.

        Raises UnknownComputation, Moved without an address, Unavailable.
        """
        shard = self.shard
        if name in shard.served:
            return
        if name not in shard.topology.computations:
            await shard.confirmation.confirm(())  # it may be registered at another shard since
        shard.topology.get(name)
        if not await shard.takeover.serve(name):
            raise moved(name)

    async def confirm(self, name: str) -> int:
        """Confirm that this shard owns a computation; returns when its value was the newest.

        Raises as :meth:`reach`.
        """
        await self.reach(name)
        confirmed = await self.shard.confirmation.confirm([name])
        await self.reach(name)
        return confirmed

    async def redirects(self, names: Iterable[str]) -> list[types_pb2.Redirect]:
        """Return the places of registered computations that other shards serve."""
        names = list(names)
        if not names:
            return []
        if self.cluster is None:
            return [types_pb2.Redirect(computation=name) for name in names]
        places = await self.cluster.locate(names)
        return [
            types_pb2.Redirect(computation=name, address=place.address, epoch=place.epoch)
            for name, place in places.items()
        ]

    async def settle(self, names: Iterable[str], context: Context) -> None:
        """Wait while computations are at shards that seem dead.

        It waits ``HOLD_SECONDS`` at most, and half of the time that the caller has left.
        """
        if self.cluster is not None:
            within = min(HOLD_SECONDS, (context.time_remaining() or math.inf) / 2)  # None: without end
            await self.cluster.settle([name for name in names if name in self.shard.topology.computations], within)

    async def located(self, refusal: errors.Moved) -> errors.Moved:
        """Return a refusal with the place of the computation. Raises Unavailable."""
        [redirect] = await self.redirects([refusal.metadata["computation"]])
        metadata = {**refusal.metadata, "address": redirect.address, "epoch": str(redirect.epoch)}
        where = f"at {redirect.address}: go there" if redirect.address else "as soon as one is free: try again later"
        return errors.Moved(f"{refusal.message}, {where}", metadata=metadata)
