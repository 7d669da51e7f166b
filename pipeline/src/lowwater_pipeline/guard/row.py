"""The row of a guard, and the judgement by it.

Pure: a store reads the rows under its lock, asks here, and writes the answer. The order of steps is
what fences (MillWheel 6.2, figure 12):

    claim acknowledged -> raise in the store -> read the state -> write

The raise is where one owner ends and the next begins, in this store: the new owner reads what an
older one wrote before it, and the store refuses what an older one writes after it. So a raise only
goes up. A write needs an *equal* token: a lower one is a zombie's, and a higher one has skipped its
raise, and has read a state that others could still change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Self

from lowwater_pipeline.guard.claim import Claim
from lowwater_pipeline.guard.errors import (
    Damaged,
    Fenced,
    GuardError,
    NonceMismatch,
    NotRaised,
    OldConfiguration,
    Rewound,
    StoreReplaced,
    Unfit,
    WrongOwner,
)

__all__ = ["FIELDS", "NOTHING", "Row", "check_begin", "check_steps", "judge", "raised", "refused", "refused_raise"]

NOTHING: Final = -1
"""Number before the first batch."""

MAX_BATCH: Final = (1 << 63) - 1
MAX_DIGEST: Final = 256
"""Greatest number of characters of a digest."""

_ANEW: Final = "Claim again, raise the new claim, and read the state again before the next write."


@dataclass(frozen=True, slots=True)
class Row:
    """A store's record of one slot of a guard."""

    server_token: str
    computation: str
    identity: str
    incarnation: int
    token: int
    nonce: str
    configuration: int
    life: str
    """Life of the store when the claim was raised in it."""
    batch: int
    """Number of the last batch that was written; one below the first batch when none was."""
    digest: str
    """Digest of that batch; empty when none was written."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the row of these fields, whose numbers may be texts.

        Raises KeyError, TypeError and ValueError for others.
        """
        own: dict[str, Any] = {name: int(values[name]) if name in _NUMBERS else values[name] for name in FIELDS}
        return cls(**own)

    def texts(self) -> dict[str, str]:
        """Return the fields as texts.

        Readers that use doubles would confuse two numbers of 64 bits.
        """
        return {name: str(value) for name, value in asdict(self).items()}


FIELDS: Final = tuple(field.name for field in fields(Row))
"""Names of a row's fields, in their order in every store."""

_NUMBERS: Final = frozenset({"incarnation", "token", "configuration", "batch"})


def raised(row: Row | None, claim: Claim, life: str, begin: int, where: str) -> Row:
    """Return the row after a claim's raise. Raises a GuardError when the raise is refused.

    ``begin`` is the number of the first batch. It counts for a slot without a row, or with one of
    another identity and an earlier incarnation. A repeat changes nothing.
    """
    problem = refused_raise(row, claim, life, where)
    if problem is not None:
        raise problem
    if row is not None and row.token == claim.token:
        return row
    fresh = Row(**asdict(claim), life=life, batch=begin - 1, digest="")
    if row is not None and row.identity == claim.identity:
        return replace(fresh, batch=row.batch, digest=row.digest)
    return fresh


def refused_raise(row: Row | None, claim: Claim, life: str, where: str) -> GuardError | None:
    """Return why a claim must not be raised over a row; None if it may be, or was raised."""
    if row is None:
        return None
    if problem := _stranger(row, claim, where):
        return problem
    if row.token > claim.token or row.incarnation > claim.incarnation:
        return _fenced(row, claim, where)
    if row.token == claim.token:
        return _unequal(row, claim, life, where)
    if row.identity != claim.identity and row.incarnation == claim.incarnation:
        return WrongOwner(
            f"{where} counts the batches of {row.identity or 'a writer without identity'}, and this writer is {claim.identity or 'without identity'} in the same incarnation: "
            "two would count by the same numbers. Begin a new incarnation (adopt=True), or use another guard."
        )
    if claim.configuration < row.configuration:
        return OldConfiguration(
            f"{where} is written by configuration {row.configuration}, and this writer works by {claim.configuration}: start it with the newer one. To go back "
            "to an older one, give that a higher number."
        )
    return None


def judge(
    rows: Mapping[int, Row | None],
    claim: Claim,
    life: str,
    steps: Mapping[int, int],
    digest: str,
    guard: str,
    after: int | None = None,
) -> bool:
    """Return True if a batch is to be written, False if the store has it. O(slots touched).

    ``steps`` has the batch's number for each slot that it touches. ``after`` is the last batch that
    the writer has noted as written; by default the number before. Raises a GuardError when the
    batch is refused.
    """
    states = set()
    for slot in sorted(steps):
        row, where = rows[slot], f"slot {slot} of the guard {guard}"
        problem = refused(row, claim, life, steps[slot], digest, where, after)
        if problem is not None:
            raise problem
        assert row is not None
        states.add(row.batch == steps[slot])
    if len(states) == 2:
        msg = (
            f"the guard {guard} has the batch {digest} in some of its slots and not in others, though a store writes it in all or none: the store was restored in "
            "part. Restore all of it from one moment."
        )
        raise Rewound(msg)
    return states == {False}


def refused(
    row: Row | None, claim: Claim, life: str, batch: int, digest: str, where: str, after: int | None = None
) -> GuardError | None:
    """Return why a batch must not be written over a row; None if it may be, or is there."""
    if row is None:
        return NotRaised(f"nothing was ever raised for {where}. {_ANEW}")
    if problem := _stranger(row, claim, where):
        return problem
    if row.token > claim.token:
        return _fenced(row, claim, where)
    if row.token < claim.token:
        return NotRaised(
            f"{where} stands at claim {row.token}, and claim {claim.token} was not raised there: the state that it has read may have changed since. {_ANEW}"
        )
    if problem := _unequal(row, claim, life, where):
        return problem
    if row.batch == batch and row.digest == digest:
        return None
    if row.batch == batch and row.digest:
        return Rewound(
            f"{where} has batch {batch} already, of other content (digest {row.digest}, not {digest}): the writer's own state is older than the store, or was copied. "
            "Restore both from one moment."
        )
    before = batch - 1 if after is None else after
    if row.batch != before:
        fault = (
            "the store has lost its tail" if row.batch < before else "the writer's own state is older than the store"
        )
        skipped = (
            ", or a batch was left out: write one under every number, also one without rows" if after is None else ""
        )
        return Rewound(
            f"{where} has the batches up to {row.batch}, and batch {batch} follows {before}: it does not follow. {fault[0].upper()}{fault[1:]}{skipped}. Restore both from one "
            f"moment, or begin a new incarnation of {row.computation}."
        )
    return None


def check_begin(begin: int) -> None:
    """Raise Unfit for a value that is no number of a first batch."""
    if type(begin) is not int or not 0 <= begin <= MAX_BATCH:
        msg = f"begin={begin!r}: the number of the first batch is a whole number from 0 on"
        raise Unfit(msg)


def check_steps(slots: range, batch: int | Mapping[int, int], digest: str, guard: str) -> dict[int, int]:
    """Return the number of a batch in each slot that it touches: the same in all, or as given.

    Raises Unfit for numbers or a digest that are no batch of this writer.
    """
    steps = dict.fromkeys(slots, batch) if isinstance(batch, int) else dict(batch)
    if not steps or not all(slot in slots for slot in steps):
        msg = f"a batch of this writer touches one or more of the slots {slots.start} to {slots.stop - 1} of the guard {guard}, not {sorted(steps)}"
        raise Unfit(msg)
    if not all(type(batch) is int and 0 <= batch <= MAX_BATCH for batch in steps.values()):
        msg = f"the number of a batch is a whole number from 0 on, one more than the last: {steps}"
        raise Unfit(msg)
    if not 0 < len(digest) <= MAX_DIGEST or "\0" in digest:
        msg = f"digest={digest!r}: it tells the content of one batch from another's under the same number, in 1 to {MAX_DIGEST} characters"
        raise Unfit(msg)
    return steps


def _stranger(row: Row, claim: Claim, where: str) -> GuardError | None:
    if (row.server_token, row.computation) == (claim.server_token, claim.computation):
        return None
    return WrongOwner(
        f"{where} belongs to {row.computation} of the deployment {row.server_token}, and this writer is {claim.computation} of {claim.server_token}: their claims do "
        "not compare. Give the guard another name, or, when the old deployment and its writers are gone for good, remove its rows."
    )


def _fenced(row: Row, claim: Claim, where: str) -> Fenced:
    return Fenced(
        f"{where} was taken over by claim {row.token} (incarnation {row.incarnation}), and this writer has claim {claim.token} (incarnation {claim.incarnation}): "
        "it is a zombie, and must stop."
    )


def _unequal(row: Row, claim: Claim, life: str, where: str) -> GuardError | None:
    """Return the refusal for a row that has the claim's token but differs otherwise."""
    if row.nonce != claim.nonce:
        return NonceMismatch(
            f"{where} was taken over by another claim with the same number {claim.token}: the authority has granted it twice, so it has lost its epoch. {_ANEW}"
        )
    if row.life != life:
        return StoreReplaced(
            f"{where} was raised in the store {row.life}, and this is {life}: it was restored, or another server has taken over, and what was raised last may be "
            f"lost. {_ANEW}"
        )
    if row.configuration != claim.configuration:
        return OldConfiguration(
            f"{where} was raised with configuration {row.configuration}, and this writer works by {claim.configuration}: a change is raised with a new claim"
        )
    return None


def damaged(where: str, what: object) -> Damaged:
    """Return the error for a row that cannot be read."""
    return Damaged(
        f"{where} cannot be read: {what}. Nothing was written. Restore the store, or remove the rows of this guard once no writer of it runs."
    )
