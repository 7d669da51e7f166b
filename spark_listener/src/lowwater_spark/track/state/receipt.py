"""The end of an executor's task: it sends its part of the batch, and returns a receipt.

A report from inside a micro-batch is not true yet, so a task only sends its part, by one unary call
named by its attempt, and the authority keeps it aside. A Spark action returns the rows of exactly
one attempt per partition, so the receipts name the accepted attempts, and the authority checks that
each of them arrived. A call that fails must not fail the task: the pipeline goes on, and the stage
holds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import lowwater
from lowwater_spark.settings import SparkSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from lowwater import Settings

__all__ = ["RECEIPT", "Destination", "Receipt", "receipt_of", "send_part"]

RECEIPT: Final = "stage int, partition int, attempt long, detail string"
"""Schema of the rows that tracked jobs return."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The address to which a task sends its part. Plain values, pickled into the closure."""

    settings: Settings | None
    """Settings of the authority's client; None: the authority was away, and no task calls it."""
    computation: str
    sequencer: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """One accepted attempt, with its details for the driver."""

    task: lowwater.TaskAttempt
    detail: dict[str, Any]


def send_part(
    destination: Destination,
    batch: int,
    detail: dict[str, Any],
    *,
    handles: Sequence[int],
    oldest: Sequence[int | None],
    pending: lowwater.Histogram,
    finished: int,
) -> pa.RecordBatch:
    """Send the stamps and records that a task holds, once, and return the receipt. Never raises.

    Call it last: no later step may fail. Spark's worker ends without exit handlers. The driver sees
    a failed call when it prepares the batch: the authority then lacks this attempt.
    """
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    task = lowwater.TaskAttempt(context.stageId(), context.partitionId(), context.taskAttemptId())
    if destination.settings is not None:
        with suppress(lowwater.LowwaterError):
            _client(destination.settings).batches.stage_task(
                destination.computation,
                destination.sequencer,
                batch,
                task,
                handles=handles,
                oldest=oldest,
                pending=pending,
                finished=finished,
            )
    columns = [[task.stage], [task.partition], [task.attempt], [json.dumps(detail)]]
    types = [pa.int32(), pa.int32(), pa.int64(), pa.string()]
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["stage", "partition", "attempt", "detail"])


def receipt_of(row: Any) -> Receipt:
    """Return the receipt in a collected row."""
    return Receipt(lowwater.TaskAttempt(row.stage, row.partition, row.attempt), json.loads(row.detail))


_clients: dict[Settings, lowwater.Client] = {}


def _client(settings: Settings) -> lowwater.Client:
    """Return this process's client, made at the first use. A client handles forks by itself.

    Raises InvalidArgument for an unusable file.
    """
    client = _clients.get(settings)
    if client is None:
        here = settings.read() if isinstance(settings, SparkSettings) else settings
        client = _clients[settings] = lowwater.Client(here)
    return client
