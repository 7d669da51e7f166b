"""The claim and the batch numbers that a run of a tracked Spark stage gives a guard."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from lowwater_pipeline.guard.claim import Claim
from lowwater_pipeline.guard.errors import Unclaimed, Unfit

if TYPE_CHECKING:
    import lowwater_spark as lws
    from lowwater_pipeline.guard.row import Row

__all__ = ["GuardedOutput", "batch_before", "claim_of", "first_batch", "output_of"]


class _Writer(Protocol):
    """The owner of an output until the next raise."""

    @property
    def found(self) -> Mapping[int, Row]:
        """Row after the raise."""
        ...


W = TypeVar("W", bound=_Writer)


class GuardedOutput(Generic[W]):
    """One output that one tracked stage writes under its claim, whatever its store is."""

    def __init__(self, table: str, name: str, configuration: int) -> None:
        self.table = table
        self.name = name
        """Name of the guard."""
        self.configuration = configuration
        self.probe: Callable[[str], None] = lambda point: None
        """Called at the named points of a write; for tests."""
        self._claim: Claim | None = None
        """The run's claim, stored before its raise: a repeated raise must have the same nonce."""
        self._writer: W | None = None
        self._last: tuple[W, int] | None = None

    def _owned(self, batch: lws.Batch, raise_: Callable[[Claim, int], W]) -> W:
        """Raise the claim of the batch's run, once, and return its writer.

        ``raise_`` gets the claim and the number of the first batch.
        """
        claim = claim_of(batch, self.configuration, self.table)
        if self._claim is None or not self._claim.same_grant(claim):
            self._claim, self._writer = claim, None
        if self._writer is None:
            self._writer = raise_(self._claim, first_batch(batch, self.name))
        return self._writer

    def _written(self, batch: lws.Batch, writer: W, write: Callable[[int], bool]) -> bool:
        """Write a batch, and note it; ``write`` gets the number of the last batch before.

        Raises Unfit for a second write, and what ``write`` raises.
        """
        if self._last == (writer, batch.id):
            msg = f"batch {batch.id} has been written to {self.table} already; a second write would be skipped. Unite the rows first."
            raise Unfit(msg)
        written = write(batch_before(batch, self.name, writer.found[0]))
        self._last = writer, batch.id
        batch.note_in(output_of(self.name))
        return written


def claim_of(batch: lws.Batch, configuration: int, where: str) -> Claim:
    """Return the claim of a batch's run, with a new nonce.

    Raises Unclaimed before the authority has acknowledged a claim of the run.
    """
    claimed = batch.claimed
    if claimed is None:
        msg = f"{where}: the authority has not acknowledged a claim of this run, so the store could not tell its writes from a zombie's. Start the query again when the authority answers."
        raise Unclaimed(msg)
    return Claim(
        claimed.server_token,
        claimed.computation,
        claimed.incarnation,
        claimed.sequencer,
        secrets.token_hex(16),
        configuration,
        claimed.identity,
    )


def first_batch(batch: lws.Batch, guard: str) -> int:
    """Return the number of the first batch for a guard that has no row.

    It is this batch for an output that is new to the checkpoint, else 0: that guard's row was lost.
    """
    return batch.id if batch.newest_in(output_of(guard)) is None else 0


def batch_before(batch: lws.Batch, guard: str, row: Row) -> int:
    """Return the last batch before this one that a guarded output should have, by the checkpoint.

    Batches in between may have written nothing. ``row`` is the row after the run's raise. If the
    checkpoint notes nothing, and nothing was written, it is the number before the guard's first.
    """
    noted = batch.newest_in(output_of(guard))
    if noted is not None:
        return noted
    return batch.id - 1 if row.digest else row.batch


def output_of(guard: str) -> str:
    """Return the name under which a checkpoint knows a guarded output."""
    return f"guard:{guard}"
