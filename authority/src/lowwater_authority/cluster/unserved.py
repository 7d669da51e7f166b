"""What a shard is to serve and does not serve yet."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowwater import errors
from lowwater.core.events import event

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowwater_authority.engine.shard import Shard

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Attempt:
    """One computation that is to be served here."""

    task: asyncio.Task[None] | None = None
    """Task that takes the computation over; None once its end has been seen."""
    logged: str = ""
    """Reason why the last attempt failed, as it was logged."""


class Unserved:
    """The computations that a shard is to serve and does not serve yet.

    Each is taken over in a task of its own: one that takes long holds up no other. ``mine`` says
    whether this shard is to serve a computation.
    """

    def __init__(self, mine: Callable[[str], bool]) -> None:
        self._mine = mine
        self._attempts: dict[str, _Attempt] = {}
        self._settled = 0, 0, 0
        """State (view, graph, logs let go) in which nothing was missing."""
        self._ended_view = 0
        """Version of the view for which the logs of dropped computations were ended."""

    @property
    def names(self) -> list[str]:
        """Names of the computations that are being taken over, or were refused."""
        return list(self._attempts)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Tasks that take computations over."""
        return [attempt.task for attempt in self._attempts.values() if attempt.task is not None]

    def take_over(self, shard: Shard) -> None:
        """Begin to take over what ``shard`` is to serve and does not, unless it has begun."""
        for attempt in self._attempts.values():
            if attempt.task is not None and attempt.task.done():
                attempt.task.result()
                attempt.task = None
        state = shard.held.logs.view, shard.topology.version, shard.held.losses
        if self._ended_view != shard.held.logs.view:
            self._ended_view = shard.held.logs.view
            shard.end_dropped()
        if self._settled != state:
            names = [name for name in shard.topology.computations if name not in shard.served and self._mine(name)]
            for name in names:
                attempt = self._attempts.setdefault(name, _Attempt())
                if attempt.task is None:
                    attempt.task = asyncio.create_task(_serve(shard, name, attempt))
            if not names:
                self._settled = state
        # A computation without a task is served here by now, or another shard is to serve it.
        self._attempts = {name: attempt for name, attempt in self._attempts.items() if attempt.task is not None}


async def _serve(shard: Shard, name: str, attempt: _Attempt) -> None:
    try:
        await shard.takeover.serve_in_turn(name)
    except errors.LowwaterError as error:
        if attempt.logged != str(error):
            facts = event("not_served", computation=name, reason=str(error))
            log.warning("%s is not served yet: %s", name, error, extra=facts)
            attempt.logged = str(error)
