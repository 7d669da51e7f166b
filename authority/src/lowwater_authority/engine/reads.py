"""Questions to a shard, answered as of the last durable round."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.history import Completion
    from lowwater_authority.core.interval_map import Range
    from lowwater_authority.engine.requests import Requests
    from lowwater_authority.engine.round import Round

T = TypeVar("T")


class Reads:
    """Answers questions, as of the last durable round.

    All methods raise ShuttingDown, and Unavailable when a staged round is not durable within
    ``wait_seconds``.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._served = requests.served
        self._holdings = requests.held

    async def look(self, read: Callable[[Mapping[str, Computation]], T]) -> T:
        """Return ``read(computations by name)``, called once, on the event loop.

        The computations are those that this shard serves, without those whose memory and store
        differ; see Holding.unwritten.
        """
        served = self._holdings.served
        return await self._requests.read(
            lambda _: read({n: holding.computation for n, holding in served.items() if holding.unwritten is None})
        )

    async def ask(self, name: str, read: Callable[[Computation, int], T]) -> T:
        """Return ``read(computation, processing time)``."""
        return await self._requests.read(lambda round_: read(self._served.computation(name), round_.now))

    async def ranges(self, name: str, *, below: int | None, limit: int) -> tuple[list[Range], int, int, int]:
        """Return the ranges furthest behind, the number of all, incarnation, and newest claim."""

        def read(_: Round) -> tuple[list[Range], int, int, int]:
            computation = self._served.computation(name)
            map_ = computation.map
            ranges, total = map_.all_ranges(limit) if below is None else map_.held_below(below, limit)
            return ranges, total, computation.incarnation, computation.last_sequencer

        return await self._requests.read(read)

    async def history(self, name: str, *, since: int | None, limit: int) -> tuple[list[Completion], int]:
        """Return when the newest event-time steps became complete. See History.newest."""
        return await self._requests.read(lambda _: self._served.computation(name).history.newest(since, limit))
