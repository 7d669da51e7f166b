"""A writer's claim as it is shown to a store, and the slots of the key space that it covers."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

import lowwater
from lowwater_pipeline.guard.errors import Unaligned, Unfit

__all__ = ["Claim", "slot_bounds", "slot_of", "slots_between"]

MAX_SLOTS: Final = 65_536

_PLACES: Final = 1 << 64
_U64: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim that the authority has acknowledged, as stores see it. Plain values, picklable.

    The nonce, drawn by :meth:`of`, tells two claims with one token apart. So make a claim once for
    each lease, and keep it.
    """

    server_token: str
    """Identity of the authority's deployment."""
    computation: str
    """Full name of the computation; for a claim in a slice the name of the whole computation. If
    keys move to another slice, that slice's later sequencers are above their earlier ones."""
    incarnation: int
    """The computation's life number."""
    token: int
    """The sequencer, an unsigned 64-bit number."""
    nonce: str
    configuration: int = 0
    """Version of the configuration by which the writer works. Every change gets a higher number,
    also one that takes a change back."""
    identity: str = ""
    """Who counts the batches, such as a query's checkpoint: the identity of the authority's claim.
    Another identity begins to count anew, in a new incarnation."""

    def __post_init__(self) -> None:
        for name in ("incarnation", "token", "configuration"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= _U64:
                msg = f"{name}={value!r}: it is a whole number from 0 to 2**64 - 1"
                raise Unfit(msg)
        for name in ("server_token", "computation", "nonce", "identity"):
            value = getattr(self, name)
            if not isinstance(value, str) or "\0" in value or not (value or name == "identity"):
                msg = f"{name}={value!r}: it is a text that is not empty"
                raise Unfit(msg)

    @classmethod
    def of(cls, client: lowwater.Client, lease: lowwater.Lease, *, configuration: int = 0, identity: str = "") -> Self:
        """Return the claim of a lease of this client; ``identity`` is the worker's. No network."""
        return cls(
            client.server_token,
            lease.computation.partition("~")[0],
            lease.incarnation,
            lease.sequencer,
            secrets.token_hex(16),
            configuration,
            identity,
        )

    def same_grant(self, other: Claim) -> bool:
        """Return True if both are the same grant of the authority, whatever the nonces."""
        return replace(self, nonce=other.nonce) == other


def slot_bounds(slots: int) -> list[bytes]:
    """Return the ``slots + 1`` bounds of equal slots over hashed keys of 8 bytes.

    The first and the last are empty: no bound. They are the bounds of a tracked stage's key ranges,
    so a stage of 64 ranges is aligned to 64 slots and to each divisor of 64.

    >>> [bound.hex() for bound in slot_bounds(4)]
    ['', '4000000000000000', '8000000000000000', 'c000000000000000', '']
    """
    if type(slots) is not int or not 1 <= slots <= MAX_SLOTS:
        msg = f"slots={slots!r}: a guard has 1 to {MAX_SLOTS} slots"
        raise Unfit(msg)
    inner = [(-(-i * _PLACES // slots)).to_bytes(8, "big") for i in range(1, slots)]
    return [b"", *inner, b""]


def slot_of(key: bytes, slots: int) -> int:
    r"""Return the slot of a hashed key of 8 bytes; a shorter key is padded with zeros. O(1).

    >>> slot_of(b"\x40", 4), slot_of(b"\x3f\xff", 4), slot_of(b"", 4)
    (1, 0, 0)
    """
    return int.from_bytes(key[:8].ljust(8, b"\0"), "big") * slots // _PLACES


def slots_between(bounds: Iterable[bytes], slots: int) -> range:
    r"""Return the slots of a claim, given its first and last bound or all bounds.

    Raises Unaligned when the claim ends inside of a slot: another owner may have the rest of it,
    and both would share its row.

    >>> slots_between([b"\x40", b"\x80"], 4), slots_between([b"", b""], 4)
    (range(1, 2), range(0, 4))
    """
    keys = list(bounds)
    places = {bound.rstrip(b"\0"): slot for slot, bound in enumerate(slot_bounds(slots)[:-1])}
    first, last = places.get(keys[0].rstrip(b"\0")), slots if not keys[-1] else places.get(keys[-1].rstrip(b"\0"))
    if first is None or last is None or first >= last:
        msg = (
            f"the claim from {keys[0].hex() or 'the first key'} to {keys[-1].hex() or 'the last'} is not made of whole slots of {slots}: a row would have two "
            "owners, and each would fence the other. Claim between bounds of slot_bounds(), or make the guard with more slots."
        )
        raise Unaligned(msg)
    return range(first, last)
