"""What a run of a tracked Spark stage shows to a guard."""

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
    """Return the claim of a batch's run, with a nonce of its own.

    Raises Unclaimed before the authority has acknowledged one.
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
    """Return the number that a guard without a row begins at: this batch, for an output that is new to the checkpoint. Of one that it knows, a guard that is not there was lost."""
    return batch.id if batch.newest_in(output_of(guard)) is None else 0


def batch_before(batch: lws.Batch, guard: str, found: Row) -> int:
    """Return the last batch that a guarded output should have before this one, by what the checkpoint has noted of it: the function may have left out batches in between.

    ``found`` is the row as the run's raise has left it. Where nothing is noted, and nothing was written, it is where the guard begins.
    """
    noted = batch.newest_in(output_of(guard))
    if noted is not None:
        return noted
    return batch.id - 1 if found.digest else found.batch


def output_of(guard: str) -> str:
    """Return what a checkpoint knows a guarded output by."""
    return f"guard:{guard}"
