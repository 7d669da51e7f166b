"""What all servicers share: the shard, its place among others, and what is said of computations that are elsewhere."""

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
"""How long at most a call waits where a shard has just died: who asks again and again instead finds
the next one later."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

GO_AWAY_MILLIS: Final = 500
"""How long clients wait, with jitter, before they connect again after a planned stop."""


@dataclass(slots=True)
class Services:
    """The shard, who watches, and whether streams are to end."""

    shard: Shard
    observer: Observer
    cluster: Cluster | None = None
    """None: there is one process."""
    promises: Promises = field(default_factory=Promises)
    """What was promised of computations; replaced when its file changes."""
    access: Callable[[], Access] | None = None
    """Returns the access rules in force; None: there are none, and everybody may do everything."""
    limits: Limits = field(default_factory=Limits)
    """What everybody together may have where there are no access rules."""
    quiet: Limited = field(default_factory=Limited)
    """Keeps what callers can cause from flooding the log."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while streams are to end: for good when the process stops, and for as long as it is cut
    off from its store."""

    @property
    def token(self) -> str:
        """The deployment's identity."""
        return self.shard.journal.server_token

    def go_away(self) -> types_pb2.GoAway:
        """Return the farewell of every stream."""
        cut_off = self.cluster is not None and self.cluster.contact.cut_off
        reason = "the authority is cut off from its store" if cut_off else "the authority is stopping"
        return types_pb2.GoAway(reason=reason, retry_after_millis=GO_AWAY_MILLIS)

    def check(self) -> None:
        """Refuse to serve while nobody knows whether others do. Raises Unavailable."""
        if self.cluster is not None and self.cluster.contact.cut_off:
            msg = (
                "this shard is cut off from its store, and another one may serve what it did: ask another, or try later"
            )
            raise errors.Unavailable(msg)

    async def reach(self, name: str) -> None:
        """Return when this shard serves a computation.

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
        """Return when what is published of a computation here is known to be the newest; and when that was. Raises as reach."""
        await self.reach(name)
        confirmed = await self.shard.confirmation.confirm([name])
        await self.reach(name)
        return confirmed

    async def redirects(self, names: Iterable[str]) -> list[types_pb2.Redirect]:
        """Return where other shards serve registered computations."""
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
        """Wait while computations are at shards that seem dead, for a while, and for half the time that the caller has left at most."""
        if self.cluster is not None:
            within = min(HOLD_SECONDS, (context.time_remaining() or math.inf) / 2)  # None: for ever
            await self.cluster.settle([name for name in names if name in self.shard.topology.computations], within)

    async def located(self, refusal: errors.Moved) -> errors.Moved:
        """Return the refusal with the place in it. Raises Unavailable."""
        [redirect] = await self.redirects([refusal.metadata["computation"]])
        metadata = {**refusal.metadata, "address": redirect.address, "epoch": str(redirect.epoch)}
        where = f"at {redirect.address}: go there" if redirect.address else "as soon as one is free: try again later"
        return errors.Moved(f"{refusal.message}, {where}", metadata=metadata)
