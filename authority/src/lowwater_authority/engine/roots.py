"""Messages of a slice to its root, and the protocols that carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from lowwater_authority.core.cut import WHOLE
from lowwater_authority.core.slicing import CLAIMS_OF_ONE, CUTS_OF_ONE

if TYPE_CHECKING:
    from lowwater_authority.core.groups import Mass
    from lowwater_authority.core.requests import Fold


class SliceReport(NamedTuple):
    """State of a slice, for its root. All of this is durable in the slice's log."""

    incarnation: int
    fold: Fold
    """Inputs that its values were folded from, as its own log has them, never as the root does."""
    current: bool
    """True if its log has the newest inputs. Until then the slice must report nothing."""
    vouched: int
    """Event time up to which outputs may call themselves complete. The root adds no input below."""
    low: int
    """Least value of its ranges. Unlike the published value, this one goes down with them."""
    retired: bool
    """True if all of its ranges are retired. Then the root retires the slice's range: no owner has
    finished it."""
    budgets: tuple[tuple[int, int, int, int], ...]
    """Lateness budgets, each as (ppm, watermark, all records, records behind the watermark)."""
    oldest_operation: int
    waiting_for: str
    identity: str | None = None
    """Identity of its workers; None: no worker has claimed in it yet."""
    span: tuple[bytes, bytes] = WHOLE
    """Key space of its log."""
    cut_version: int = 0
    """Version of the cut that gave it these keys, as its log has it."""
    has_keys: bool = True
    """True if the graph gives it these keys. Until then the slice must report nothing."""


class SliceClaim(NamedTuple):
    """A claim of a slice at the root."""

    root: str
    name: str
    span: tuple[bytes, bytes]
    host: str
    epoch: int
    """Ownership number of the slice."""
    claims: int
    """Number of claims under that ownership, with this one."""
    bound: int
    request_id: bytes
    identity: str
    """Identity of the claim. It carries the identity of the slice's workers, if there is one."""
    incarnation: int = 1
    """Incarnation of the slice."""
    cut_version: int = 0
    """Version of the cut that gave the slice these keys."""

    @property
    def generation(self) -> int:
        """Order of this claim among those of all slices that ever had these keys.

        It comes before ``ordinal``, because epochs of two slices cannot be compared. The
        cut version is journaled by the slice. So a newer owner never has a lower version than the
        one before, and claims by the higher order of the two. A replaced owner may learn of a newer
        incarnation. But that owner can append nothing there, and so reports only that nothing is
        known.
        """
        return self.incarnation * CUTS_OF_ONE + min(self.cut_version, CUTS_OF_ONE - 1)

    @property
    def ordinal(self) -> int:
        """Order of this claim among those of its slice."""
        return self.epoch * CLAIMS_OF_ONE + min(self.claims, CLAIMS_OF_ONE - 1)


class Range(Protocol):
    """The range of a slice at the root, as the root granted it."""

    incarnation: int
    """Incarnation of the root."""
    input_version: int
    """Version of the root's inputs; 0 for an injector."""
    span: tuple[bytes, bytes]
    """Keys of the claim."""
    low: int
    """Value of the range when it was granted."""

    async def report(self, report: SliceReport, mass: Mass | None) -> None:
        """Report, with the mass of all claims if that has changed.

        Returns when the report is durable at the root. Raises StaleSequencer if the range is lost,
        Unavailable, ...
        """
        ...

    async def vouch(self, report: SliceReport) -> None:
        """Report how far outputs may call themselves complete. A repeat is harmless.

        Raises as ``report``.
        """
        ...

    async def retire(self) -> None:
        """Retire the range at the root, which ends the claim. A repeat is harmless.

        Raises as ``report``.
        """
        ...

    @property
    def lost(self) -> bool:
        """True if this process knows that the claim of the range has ended."""
        ...

    def close(self) -> None:
        """Report no more. The range keeps its value."""
        ...


class Above(Protocol):
    """The way to roots that other processes serve."""

    async def claim(self, claim: SliceClaim) -> Range:
        """Claim the range of a slice. Raises OlderClaim, IdentityMismatch, Unavailable, ..."""
        ...

    async def epoch(self, root: str) -> int:
        """Return the epoch of a root. Raises Unavailable, ..."""
        ...
