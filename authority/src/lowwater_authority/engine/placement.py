"""Which computations are a shard's, and how it hears of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lowwater import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowwater_authority.engine.roots import Above

Lows = dict[str, tuple[int, int]]
"""Of computations that other shards serve: incarnation and published low watermark."""


class Placement(Protocol):
    """Which computations are this shard's, and how it hears of the others."""

    def mine(self, name: str) -> bool:
        """Return whether this shard is to serve a computation."""
        ...

    def home(self, name: str) -> str:
        """Return the address of the shard that is to serve a computation; empty: there is none."""
        ...

    def may_heal(self) -> bool:
        """Return whether this shard may put back from memory what the store has lost: not when others may know more."""
        ...

    async def outvoted(self) -> None:
        """Look again who the members are: one of them knew better."""

    async def lives_elsewhere(self, name: str) -> bool:
        """Return whether another shard owns a computation, and lives. Raises Unavailable."""
        ...

    async def wait_for_graph(self) -> bool:
        """Let the other shards hear that this one cannot read the graph, and wait a moment; False when none lives that has it in memory."""
        ...

    async def lows(self, names: Sequence[str]) -> Lows:
        """Ask the shards that serve them how far computations are. Raises Unavailable."""
        ...

    @property
    def above(self) -> Above | None:
        """The way to what other shards serve; None: there are none."""
        ...


class Alone:
    """The placement of the only process of a deployment."""

    def mine(self, name: str) -> bool:
        """See Placement."""
        del name
        return True

    def home(self, name: str) -> str:
        """See Placement: there is nobody else."""
        del name
        return ""

    def may_heal(self) -> bool:
        """See Placement."""
        return True

    async def outvoted(self) -> None:
        """See Placement: there is nobody else."""

    async def lives_elsewhere(self, name: str) -> bool:
        """See Placement: there is nobody else."""
        del name
        return False

    async def wait_for_graph(self) -> bool:
        """See Placement: there is nobody else."""
        return False

    async def lows(self, names: Sequence[str]) -> Lows:
        """See Placement: there is nobody to ask."""
        del names
        return {}

    @property
    def above(self) -> None:
        """See Placement."""
        return


def moved(name: str) -> errors.Moved:
    """Return the refusal of a computation that another shard serves; the services say which."""
    return errors.Moved(f"another shard serves {name}", metadata={"computation": name})
