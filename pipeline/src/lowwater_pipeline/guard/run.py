"""The claim and the batch numbers that a run of a tracked Spark stage gives a guard."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from lowwater_pipeline.guard.claim import Claim
from lowwater_pipeline.guard.errors import Unclaimed

if TYPE_CHECKING:
    import lowwater_spark as lws
    from lowwater_pipeline.guard.row import Row

__all__ = ["batch_before", "claim_of", "first_batch", "output_of"]


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
