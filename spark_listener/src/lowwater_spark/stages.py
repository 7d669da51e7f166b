"""What a user declares: a stage with inputs, or an injector without, and the query that runs it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lowwater
from lowwater_spark.authority import Authority, Registration
from lowwater_spark.batch import Keyed
from lowwater_spark.driver import Run, WriteBatch
from lowwater_spark.plan import absolute, check_plan, check_session, check_trigger
from lowwater_spark.query import INTERVAL, TrackedQuery
from lowwater_spark.ranges import range_bounds
from lowwater_spark.runs import identity, new_ordinal
from lowwater_spark.sourcelog import CheckpointLog
from lowwater_spark.ticks import with_ticks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Stage", "injector", "stage"]

Stamp = timedelta | str
"""``"event"``, or the length of windows that are stamped by their start."""

_EVERY_BATCH: Final[Mapping[str, Any]] = {"processingTime": "0 seconds"}


def stage(
    spark: SparkSession,
    name: str,
    *,
    inputs: Sequence[str],
    key: str | Column | Sequence[str | Column],
    event_time: str | Column,
    ranges: int = 64,
    heuristics: Sequence[float] = (0.99,),
    stamp: Stamp = "event",
    address: str | None = None,
    client: lowwater.Client | None = None,
) -> Stage:
    """Declare a tracked stage: a query over files whose low watermark is exact. Nothing is registered before it runs.

    Args:
        spark: A classic session.
        name: The computation's name. One checkpoint at a time runs under it.
        inputs: The computations whose output it reads; every writer of what it reads must be named.
        key: Column(s) whose xxhash64 decides the key range.
        event_time: A timestamp column.
        ranges: Number of equal key ranges, 1 to 65,536; a stage with state keeps its number.
        heuristics: Shares of the heuristic watermarks.
        stamp: What the stage stamps its output with: ``"event"``, event times, or the length of windows stamped by their start.
            The watermark is then floored to the start of the window, since a row at 14:25 opens the one of 14:00. The windows
            must be tumbling ones that start at whole multiples of the length since 1970 in UTC, as Spark's do without
            ``startTime``: for sliding or shifted windows, sessions and days of a local time zone the floor would be too high.
            ``batch.stateful`` raises ValueError when a range holds a stamp below it; what is written without state is not checked.
        address: The authority's; by default ``LOWWATER_ADDRESS``, else ``localhost:7420``. Executors must reach it as well.
        client: Instead of an address: a client with TLS, tokens and so on. Its settings travel to the executors.

    Raises ValueError for arguments that make no stage.
    """
    if not inputs:
        msg = f"{name} has no inputs; a stage that brings records in from outside is lws.injector(...)"
        raise ValueError(msg)
    return _declare(spark, name, tuple(inputs), key, event_time, ranges, heuristics, stamp, address, client)


def injector(
    spark: SparkSession,
    name: str,
    *,
    key: str | Column | Sequence[str | Column],
    event_time: str | Column,
    ranges: int = 64,
    heuristics: Sequence[float] = (0.99,),
    stamp: Stamp = "event",
    address: str | None = None,
    client: lowwater.Client | None = None,
) -> Stage:
    """Declare an injector: a stage that has no inputs and says itself, by ``batch.frontier()``, what it has brought in.

    What is outstanding is kept with ``batch.stateful()``: the low watermark is the least of the frontier and the oldest
    outstanding record. Arguments as for :func:`stage`.
    """
    return _declare(spark, name, (), key, event_time, ranges, heuristics, stamp, address, client)


def _declare(
    spark: SparkSession,
    name: str,
    inputs: tuple[str, ...],
    key: str | Column | Sequence[str | Column],
    event_time: str | Column,
    ranges: int,
    heuristics: Sequence[float],
    stamp: Stamp,
    address: str | None,
    client: lowwater.Client | None,
) -> Stage:
    if address is not None and client is not None:
        msg = "pass an address or a client, not both"
        raise ValueError(msg)
    window = None if stamp == "event" else stamp
    if isinstance(window, str) or (window is not None and window <= timedelta(0)):
        msg = f'stamp is "event" or the positive length of the windows, not {stamp!r}'
        raise ValueError(msg)
    range_bounds(ranges)
    keys: tuple[Any, ...] = tuple(key) if isinstance(key, list | tuple) else (key,)
    keyed = Keyed(keys, event_time, ranges, injector=not inputs, window=window)
    return Stage(spark, name, inputs, keyed, tuple(heuristics), address, client)


_running: Final[weakref.WeakSet[TrackedQuery]] = weakref.WeakSet()
"""The queries that this process has started."""


@dataclass(frozen=True)
class Stage:
    """A declared stage; :func:`stage` and :func:`injector` make it."""

    spark: SparkSession
    name: str
    inputs: tuple[str, ...]
    keyed: Keyed
    heuristics: tuple[float, ...]
    address: str | None = None
    client: lowwater.Client | None = None
    interval: float = field(default=INTERVAL, kw_only=True)
    """Seconds between two looks at the inputs and the sources."""

    def foreach_batch(
        self,
        df: DataFrame,
        write_batch: WriteBatch,
        *,
        checkpoint: str | os.PathLike[str],
        trigger: Mapping[str, Any] | None = None,
        name: str | None = None,
        adopt: bool = False,
        probe: Callable[[str, int], None] = lambda _point, _batch: None,
    ) -> TrackedQuery:
        """Start the stage over a streaming DataFrame and return its query.

        ``write_batch(batch_df, batch)`` runs in the driver for every micro-batch, as Spark's foreachBatch does, with a
        :class:`~lowwater_spark.Batch` that has the watermark, the hand-over and the state. Spark may call it again for the same
        batch after a crash.

        Args:
            df: Over one or more file sources, without streaming state but dropDuplicates.
            write_batch: What to do with a batch.
            checkpoint: Directory on a local or NFS file system, of this query alone, and the stage's from its first batch on.
            trigger: Arguments of Spark's ``trigger``; by default batch after batch.
            name: Spark's name of the query; the stage's by default.
            adopt: Take the name over from another checkpoint by starting a new life of the computation.
            probe: Called with the name of each step of a batch and its number; for tests and tracing.

        Raises Unsupported, before anything is touched, when the query cannot be tracked exactly; and, before the query starts,
        IdentityMismatch (another checkpoint has the name), Rewound (the checkpoint is older than what was published),
        OlderClaim (a newer run exists), IncarnationChanged (an input was reset), RegistrationConflict, CheckpointMismatch. When the
        authority is away the query starts all the same, holds, and claims as soon as it answers.
        """
        triggered = dict(_EVERY_BATCH if trigger is None else trigger)
        check_session(self.spark)
        check_trigger(triggered)
        sources = check_plan(self.spark, df)
        _check_columns(df, self.keyed)
        folder = absolute(checkpoint, self.spark)
        self._check_running(folder, name or self.name)
        frame = with_ticks(self.spark, df, folder)
        client = lowwater.connect(self.address) if self.client is None else self.client
        authority = Authority(client, self._registration(folder, adopt=adopt))
        try:
            run = Run(folder, sources, self.keyed, authority, write_batch, probe)
            run.start()
            writer = frame.writeStream.foreachBatch(run.run_batch).queryName(name or self.name)
            query = writer.option("checkpointLocation", f"file://{folder}").trigger(**triggered).start()
        except BaseException:
            authority.close()
            if self.client is None:
                client.close()
            raise
        tracked = TrackedQuery(run, query, interval=self.interval, owned=client if self.client is None else None)
        _running.add(tracked)
        return tracked

    def _check_running(self, checkpoint: Path, name: str) -> None:
        """Find what Spark would refuse, before the claim fences a query that runs."""
        if any(query.name == name for query in self.spark.streams.active):
            msg = f"a query named {name!r} is running in this session; stop it first, or pass another name"
            raise ValueError(msg)
        if any(query.checkpoint == checkpoint and query.query.isActive for query in _running):
            msg = f"the query of {checkpoint} is running in this process; stop it first"
            raise ValueError(msg)

    def _registration(self, checkpoint: Path, *, adopt: bool) -> Registration:
        log = CheckpointLog(checkpoint)
        last = log.last_committed()
        first = 0 if last is None else last + 1
        planned = log.plan(first)
        return Registration(
            name=self.name,
            inputs=self.inputs,
            heuristics=self.heuristics,
            ranges=self.keyed.ranges,
            identity=identity(checkpoint),
            generation=first,
            ordinal=new_ordinal(checkpoint),
            digest=b"" if planned is None else bytes.fromhex(planned.digest),
            adopt=adopt,
        )


def _check_columns(df: DataFrame, keyed: Keyed) -> None:
    """Find a wrong column name or type here, and not in the first batch."""
    from lowwater_spark.ranges import range_column
    from lowwater_spark.tracking import event_micros

    df.select(range_column(keyed.key, keyed.ranges), event_micros(df, keyed.event_time))
