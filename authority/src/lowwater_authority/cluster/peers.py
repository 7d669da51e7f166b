"""What a shard asks of the others: how far computations are that they serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowwater import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowwater.aio import Client
    from lowwater_authority.placement import Lows


class Peers:
    """Asks by the client library, which finds the shards. ``connect`` makes its client at the first question."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None

    async def lows(self, names: Sequence[str]) -> Lows:
        """See Placement."""
        if not names:
            return {}
        if self._client is None:
            self._client = self._connect()
        try:
            views = await self._client.get(*names)
        except (errors.Timeout, errors.StaleEpoch) as error:
            msg = f"the shards of {', '.join(names)} cannot be asked how far these are: {error}"
            raise errors.Unavailable(msg) from error
        return {name: (view.incarnation, view.low.micros) for name, view in views.items()}

    async def close(self) -> None:
        """Let go of the client."""
        if self._client is not None:
            await self._client.close()
