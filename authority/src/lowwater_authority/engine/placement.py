"""Placement of computations: which of them a shard serves, and how it reaches the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowwater import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowwater_authority.engine.roots import Above

Lows = dict[str, tuple[int, int]]
"""Incarnation and published low watermark by name of computations that other shards serve."""


class Placement:
    """Says which computations this shard serves, and reaches the other shards.

    The default has no other shards: it is the placement of the only process of a deployment.
    """

    def mine(self, name: str) -> bool:
        """Return whether this shard is to serve a computation."""
        del name
        return True

    def home(self, name: str) -> str:
        """Return the address of the shard that is to serve a computation; empty: there is none."""
        del name
        return ""

    def may_heal(self) -> bool:
        """Return whether this shard may put back lost records from memory.

        False while another shard may have newer ones.
        """
        return True

    async def outvoted(self) -> None:
        """Read the membership again: another member takes logs by a newer one."""

    async def lives_elsewhere(self, name: str) -> bool:
        """Return whether another living shard owns a computation. Raises Unavailable."""
        del name
        return False

    async def wait_for_graph(self) -> bool:
        """Announce to other shards that this one cannot read the graph, and wait a moment.

        Returns False if no living shard has the graph in memory.
        """
        return False

    async def lows(self, names: Sequence[str]) -> Lows:
        """Return the low watermarks of computations that other shards serve. Raises Unavailable."""
        del names
        return {}

    @property
    def above(self) -> Above | None:
        """Way to roots that other shards serve; None: there is no other shard."""
        return None


def moved(name: str) -> errors.Moved:
    """Return the refusal of a computation that another shard serves; the services say which."""
    return errors.Moved(f"another shard serves {name}", metadata={"computation": name})
