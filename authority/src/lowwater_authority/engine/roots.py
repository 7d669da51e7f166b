"""How a slice speaks to the root of its computation: what it reports, and the two protocols of the way there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from lowwater_authority.core.slicing import CLAIMS_OF_ONE, CUTS_OF_ONE
from lowwater_authority.core.topology import WHOLE

if TYPE_CHECKING:
    from lowwater_authority.core.groups import Mass
    from lowwater_authority.core.requests import Fold


class Told(NamedTuple):
    """What a slice says of itself to the root: all of it is durable in its log."""

    incarnation: int
    fold: Fold
    """Which inputs its values were folded from, as its own log knows: never what the root has told it."""
    current: bool
    """Whether that log knows the newest inputs; else nothing may be said until it does."""
    vouched: int
    """Up to here outputs of it say that they are complete: its root adds no input below."""
    low: int
    """The least value of its ranges. Not what it has published: that does not go down when they do."""
    retired: bool
    """Whether none of its ranges is left that anybody answers for: the root is to take it out, for nobody has finished it."""
    kept: tuple[tuple[int, int, int, int], ...]
    """Of each lateness budget in ppm: its watermark, all records, and those of them that came behind."""
    oldest_operation: int
    waiting_for: str
    identity: str | None = None
    """Of its workers; None: nobody has claimed any of it yet."""
    span: tuple[bytes, bytes] = WHOLE
    """The keys that its log has."""
    cut_version: int = 0
    """The version of the cut by which these are its keys, as its log knows it."""
    has_keys: bool = True
    """Whether these are the keys that the graph gives it; else nothing may be said until they are."""


class Asked(NamedTuple):
    """A claim of a slice at the root."""

    root: str
    name: str
    span: tuple[bytes, bytes]
    host: str
    epoch: int
    """The ownership number."""
    claims: int
    """How many it has made under it, with this one."""
    bound: int
    request_id: bytes
    identity: str
    """By which it claims: with its worker's, if it has one."""
    incarnation: int = 1
    """Of the slice."""
    cut_version: int = 0
    """The version of the cut by which it has these keys."""

    @property
    def generation(self) -> int:
        """What orders it among the claims of slices that had these keys, before ``ordinal`` does: their ownership numbers say nothing of each other.

        The version is journaled by the slice. So who owns it never knows a lower one than who did, and the newer of two owners claims by the higher order of
        both. Who was replaced may know of a newer incarnation, and can write nothing in it: it says no more than that nothing is known.
        """
        return self.incarnation * CUTS_OF_ONE + min(self.cut_version, CUTS_OF_ONE - 1)

    @property
    def ordinal(self) -> int:
        """What orders it among the claims of the slice."""
        return self.epoch * CLAIMS_OF_ONE + min(self.claims, CLAIMS_OF_ONE - 1)


class Range(Protocol):
    """The range of a slice at the root, as it was granted."""

    incarnation: int
    """Of the root."""
    input_version: int
    """Of its inputs; 0 for an injector."""
    span: tuple[bytes, bytes]
    """The keys that were claimed."""
    low: int
    """Where it stood then."""

    async def say(self, told: Told, mass: Mass | None) -> None:
        """Report, with the mass of all claims if it has changed; returns when the root has taken it over, durably, from the one who owns the range. Raises StaleSequencer, Unavailable, ..."""
        ...

    async def vouch(self, told: Told) -> None:
        """Let the root know how far outputs say that they are complete. A repeat is harmless. Raises as ``say``."""
        ...

    async def retire(self) -> None:
        """Take the range out of the root, and give it up by that. A repeat is harmless. Raises as ``say``."""
        ...

    @property
    def lost(self) -> bool:
        """Whether it is known that somebody else has it, or nobody."""
        ...

    def close(self) -> None:
        """Say no more. The range holds where it stands."""
        ...


class Above(Protocol):
    """The way to roots that other processes serve."""

    async def claim(self, asked: Asked) -> Range:
        """Claim the range of a slice. Raises OlderClaim, IdentityMismatch, Unavailable, ..."""
        ...

    async def epoch(self, root: str) -> int:
        """Return the ownership number of a root. Raises Unavailable, ..."""
        ...
