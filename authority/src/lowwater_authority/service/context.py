"""What all servicers share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lowwater._pb.lowwater.v1 import types_pb2

if TYPE_CHECKING:
    from lowwater_authority.observer import Observer
    from lowwater_authority.shard import Shard

GO_AWAY_MILLIS: Final = 500
"""How long clients wait, with jitter, before they connect again after a planned stop."""


@dataclass(slots=True)
class Services:
    """The shard, who watches, and whether the process is about to stop."""

    shard: Shard
    observer: Observer
    leaving: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def token(self) -> str:
        """The deployment's identity."""
        return self.shard.journal.server_token

    def go_away(self) -> types_pb2.GoAway:
        """Return the farewell of every stream."""
        return types_pb2.GoAway(reason="the authority is stopping", retry_after_millis=GO_AWAY_MILLIS)
