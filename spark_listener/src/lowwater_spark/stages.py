"""What a user declares: a stage with inputs, or an injector without, which of them may stand together, and the query that runs them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lowwater
from lowwater.core.calls import full_name
from lowwater_spark.checkpoint.identity import check_names, home_of, identity, new_ordinal
from lowwater_spark.checkpoint.location import Location, glance, real
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.columns import check_column, columns_of, own_name
from lowwater_spark.drive.frame import drive, drive_of
from lowwater_spark.drive.watermark import Driving, is_approximate
from lowwater_spark.errors import Unsupported
from lowwater_spark.settings import connection
from lowwater_spark.sources.delta import DELTA, marked
from lowwater_spark.sources.iceberg import ICEBERG, MARK
from lowwater_spark.sources.sink_log import check_sink
from lowwater_spark.sources.ticks import with_ticks
from lowwater_spark.sources.writers import check_alone
from lowwater_spark.track.authority import Authority, Registration
from lowwater_spark.track.batch import Keyed
from lowwater_spark.track.events import observe_oldest
from lowwater_spark.track.frontier import PARTITION, Bounds
from lowwater_spark.track.hook import Hook, WriteBatch
from lowwater_spark.track.operators import is_windows
from lowwater_spark.track.part import Part
from lowwater_spark.track.plain import Plain
from lowwater_spark.track.plan import (
    Checked,
    absolute,
    check_arriving,
    check_output_mode,
    check_plan,
    check_session,
    check_windows,
    is_file_format,
    local_directory,
)
from lowwater_spark.track.query import INTERVAL, TrackedQuery
from lowwater_spark.track.ranges import range_bounds
from lowwater_spark.track.run import Run
from lowwater_spark.track.shape import check_shape
from lowwater_spark.track.times import check_times, exact_times
from lowwater_spark.track.writer import Writer, writer_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    Stamp = timedelta | str | Column
    """``"event"``, the length of windows that are stamped by their start, or the column that has
    the stamp."""

__all__ = ["Declared", "Stage", "check_together", "injector", "stage"]

_MARKED_BY: Final = {DELTA: "userMetadata", ICEBERG: f"snapshot-property.{MARK}"}
"""By the format of a table: the option of its sink that leaves a mark in each commit."""

_RANGES: Final = 64
"""Key ranges of a stage with a function that does not say how many."""


def stage(
    spark: SparkSession,
    name: str,
    *,
    inputs: Sequence[str],
    key: str | Column | Sequence[str | Column],
    event_time: str | Column,
    ranges: int | None = None,
    heuristics: Sequence[float] = (0.99,),
    lateness_budget: float | Sequence[float] = (),
    stamp: Stamp = "event",
    retention: timedelta | None = None,
    max_skew: timedelta | None = None,
    balance: bool = False,
    address: str | None = None,
    client: lowwater.Client | None = None,
) -> Stage:
    """Declare a tracked stage: a query whose low watermark is exact.

    Nothing is registered before it runs.

    Args:
        spark: A classic session.
        name: The computation's name. One checkpoint at a time runs under it.
        inputs: The computations whose output it reads; every writer of what it reads must be named.
            Those that have left their mark there are compared: a stage that forgets one is refused,
            or holds if the writer comes later.
        key: Column(s) whose xxhash64 decides the key range.
        event_time: The event time of the frame that it reads, a timestamp column.
        ranges: Number of equal key ranges, 1 to 65,536; a stage with state keeps its number. By
            default 64 of a stage with a function, which may hold some of them back, and one of a
            plain query, whose ranges all stand at the same value.
        heuristics: Shares of the heuristic watermarks.
        lateness_budget: A share of the rows, or up to four of them, each with a watermark behind
            which at most about that share comes (``docs/lateness-budget.md``). For
            :meth:`Stage.foreach_batch`, as the first stage of its query. How late the rows of a
            batch are is counted while they are read.
        stamp: What the stage stamps its output with: ``"event"``, event times; a column of the
            frame that is started, where that has no event times any more, as
            ``F.col("window.start")`` of Spark's windows; or, of windows by ``batch.stateful``,
            their length: they are stamped by their start. Then the watermark is floored to the
            start of the window, since a row at 14:25 opens the one of 14:00. The windows must be
            tumbling ones that start at whole multiples of the length since 1970 in UTC, as Spark's
            do without ``startTime``: for sliding or shifted windows, sessions and days of a local
            time zone the floor would be too high. ``batch.stateful`` raises ValueError when a range
            holds a stamp below it. In what is written, the start of a ``window()`` of another kind
            is refused without one that fits; whatever else makes an older stamp, such as
            ``date_trunc``, is not checked.
        retention: For a query with Spark's own stateful operators and ``withWatermark``: how far
            below Spark's watermark what they still hold can be stamped when it comes out. Nothing
            has to be declared where the plan says it: ``stamp`` is the start or end of a window,
            the end of a session, the event time by which rows are grouped, an event time of a join
            that is bounded both ways, or a ``date_trunc`` of one of these; and for
            dropDuplicatesWithinWatermark. Otherwise: of what else is made of a window its length
            and what the stamp is below its start; of a join of two streams how long a row waits for
            its match; of a stateful function what it keeps; of several of them, one above the
            other, the sum. The stage then reports the lesser of what it reports otherwise and
            Spark's watermark minus this. A declaration below what the plan says is refused, and so
            is one below that of the checkpoint; a larger one is taken. Where the plan says nothing,
            one that is too small leads.
        max_skew: How far ahead of the authority's clock its watermark may be, where event times are
            rightly in the future, as of bookings. By default as it was registered, else a day, and
            not less than that of any input. It may grow with a later start.
        balance: Whether the driver asks for another layout of its key ranges when some of them take
            much longer than others, as an operator can with `lowwater split`
            (``docs/hot-ranges.md``). It follows such layouts in any case. Where the authority has
            an access file, the driver's token needs ``operate`` for it.
        address: The authority's; by default the session's ``spark.lowwater.address``, else
            ``LOWWATER_ADDRESS``, else ``localhost:7420``. Executors must reach it as well. Token,
            certificates and namespace come from ``spark.lowwater.*``.
        client: Instead of all these: a client of your own. Its settings, with what they hold,
            travel to the executors.

    Raises ValueError for arguments that make no stage.
    """
    if not inputs:
        msg = f"{name} has no inputs; a stage that brings records in from outside is lws.injector(...)"
        raise ValueError(msg)
    if retention is not None and retention < timedelta(0):
        msg = f"retention says how far below Spark's watermark rows can come out, so it is not negative: {retention!r}"
        raise ValueError(msg)
    declared = _declare(
        spark, name, tuple(inputs), key, event_time, ranges, heuristics, lateness_budget, stamp, address, client
    )
    keyed = dataclasses.replace(declared.keyed, balance=balance)
    return dataclasses.replace(declared, keyed=keyed, retention=retention, max_skew=max_skew)


def injector(
    spark: SparkSession,
    name: str,
    *,
    key: str | Column | Sequence[str | Column],
    event_time: str | Column,
    ranges: int | None = None,
    heuristics: Sequence[float] = (0.99,),
    lateness_budget: float | Sequence[float] = (),
    stamp: Stamp = "event",
    disorder: timedelta | None = None,
    across: timedelta | None = None,
    delay: timedelta | None = None,
    producer: str | Column | None = None,
    producers: Sequence[str] | None = None,
    ahead: timedelta | None = None,
    skew_limit: timedelta | None = None,
    max_skew: timedelta | None = None,
    address: str | None = None,
    client: lowwater.Client | None = None,
) -> Stage:
    """Declare an injector: a stage that has no inputs and says itself, by ``batch.frontier()``, what it has brought in.

    It may read any source that Spark can read again after a crash: Kafka, Kinesis, a table, a Python data source. What is outstanding is kept with
    ``batch.stateful()``: the low watermark is the least of the frontier and the oldest outstanding record. Arguments as for :func:`stage`.

    Where the rows themselves say how far the source has come, declare it, and do not call ``batch.frontier()``; ``batch.low`` is the frontier then:

    * ``disorder``: how much older than a row before it in its partition of Kafka a row may be; ``timedelta(0)`` where they come in order. The
      frontier is the least, over all partitions, of the greatest event time seen there minus this. A partition without rows holds it. The frame keeps the source's
      columns ``topic`` and ``partition``, and ``offset`` if examples are to name it.
    * ``across``: a partition that was read to its end may also move without rows of its own: how much older than a row of any partition a row may be
      that is appended after it.
    * ``delay``: the same by the clock, also when no rows come at all: how much older than the driver's clock a row may be when it is appended. Not for topics that
      are read again, whose rows are old. Both need the number of brokers, the option ``lowwater.brokers`` of the source.
    * ``producer``: go by a column that names the producer of a row, or its file, and not by partitions. Any source will do, but for ``across`` and ``delay``.
      ``disorder`` is then of the rows of one producer, as the query reads them: all in one partition of Kafka, or it contains how far those may be apart.
    * ``producers``: all producers that are waited for. One that is not declared and has rows holds the frontier.
    * ``ahead``: how far beyond the driver's clock an event time may be, by default a day. Rows beyond do not move the frontier: they are counted and named.
    * ``max_skew``: as of a stage. Where rows are rightly in the future by more than a day, declare it, and ``ahead`` as well.
    * ``skew_limit``: how far ahead of the slowest partition others are read. The topics are then read by :meth:`Stage.read_kafka`.

    Raises ValueError and TypeError for arguments that make no injector.
    """
    bounds = Bounds.of(disorder, across, delay, ahead, producer, producers, skew_limit)
    declared = _declare(spark, name, (), key, event_time, ranges, heuristics, lateness_budget, stamp, address, client)
    return dataclasses.replace(declared, keyed=dataclasses.replace(declared.keyed, bounds=bounds), max_skew=max_skew)


def _declare(
    spark: SparkSession,
    name: str,
    inputs: tuple[str, ...],
    key: str | Column | Sequence[str | Column],
    event_time: str | Column,
    ranges: int | None,
    heuristics: Sequence[float],
    lateness_budget: float | Sequence[float],
    stamp: Stamp,
    address: str | None,
    client: lowwater.Client | None,
) -> Stage:
    if address is not None and client is not None:
        msg = "pass an address or a client, not both"
        raise ValueError(msg)
    from pyspark.sql import Column

    column: Column | None = None
    window: timedelta | None = None
    if isinstance(stamp, Column):
        column = stamp
    elif isinstance(stamp, timedelta) and stamp > timedelta(0):
        window = stamp
    elif stamp != "event":
        msg = (
            f'stamp is "event", a column as F.col("window.start"), or the positive length of the windows, not {stamp!r}'
        )
        raise ValueError(msg)
    range_bounds(_RANGES if ranges is None else ranges)
    keys: tuple[Any, ...] = tuple(key) if isinstance(key, list | tuple) else (key,)
    time = event_time if column is None else column
    keyed = Keyed(keys, time, _RANGES if ranges is None else ranges, injector=not inputs, window=window)
    budgets = (lateness_budget,) if isinstance(lateness_budget, int | float) else tuple(lateness_budget)
    made = Stage(spark, name, inputs, keyed, tuple(heuristics), address, client, default_ranges=ranges is None)
    keyed = dataclasses.replace(keyed, budgeted=bool(budgets))
    return dataclasses.replace(made, keyed=keyed, event_time=event_time, lateness_budgets=budgets)


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
    retention: timedelta | None = None
    max_skew: timedelta | None = field(default=None, kw_only=True)
    event_time: str | Column = field(default="", kw_only=True)
    """Of the frame that it reads. What its output is stamped with, by which its rows are counted,
    stands in ``keyed``."""
    lateness_budgets: tuple[float, ...] = field(default=(), kw_only=True)
    default_ranges: bool = field(default=False, kw_only=True)
    """Whether nobody has said how many key ranges it has."""
    interval: float = field(default=INTERVAL, kw_only=True)
    """Seconds between two looks at the inputs and the sources."""

    def read_kafka(self, options: Mapping[str, object]) -> DataFrame:
        """Return topics as a streaming frame, for an injector with ``skew_limit``: partitions that are far ahead of the slowest are held back in Kafka.

        The frame has the columns of Spark's own source. ``options`` are ``subscribe``, those of Kafka's client as Spark names them, ``kafka.bootstrap.servers`` at least, as far as librdkafka
        takes them, and ``lowwater.brokers``. The topics are read from their beginning. The times of Kafka's records should be the event times, or near to them.

        Needs PySpark 4.2 and the package confluent-kafka on the driver and on the executors: ``lowwater-spark[kafka]``. Raises Unsupported without them, and ValueError for a stage without
        ``skew_limit`` and options that are not taken.
        """
        from lowwater_spark.sources.paced_reader import read_paced

        if self.keyed.bounds is None or self.keyed.bounds.skew is None:
            msg = f"{self.name} has no limit to read by: declare it by lws.injector(..., disorder=..., skew_limit=...), or read the topics by spark.readStream"
            raise ValueError(msg)
        return read_paced(self.spark, options, max(self.keyed.bounds.skew // 1000, 1))

    def drive(
        self,
        df: DataFrame,
        *,
        event_time: str | None = None,
        step: timedelta | None = None,
        within: timedelta | None = None,
        approximate: float | None = None,
        lateness_budget: float | None = None,
        late: str | os.PathLike[str] | None = None,
    ) -> DataFrame:
        """Return ``df`` under the low watermark of the stage's inputs, to be started by it: :func:`~lowwater_spark.drive`, with the inputs said once.

        ``event_time`` is a column of ``df``, by default the stage's. Other arguments, and what is raised, as of :func:`~lowwater_spark.drive`; ValueError for an injector.
        """
        time = self.event_time if event_time is None else event_time
        if not isinstance(time, str):
            msg = f"the event_time of {self.name} is an expression; declare it by a column's name, or pass drive(..., event_time=NAME)"
            raise TypeError(msg)
        return drive(
            df,
            inputs=self.inputs,
            event_time=time,
            step=step,
            within=within,
            approximate=approximate,
            lateness_budget=lateness_budget,
            late=late,
        )

    def foreach_batch(
        self,
        df: DataFrame | DataStreamWriter,
        write_batch: WriteBatch,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        also: Sequence[Stage] = (),
        output_mode: str | None = None,
        trigger: Mapping[str, Any] | None = None,
        name: str | None = None,
        adopt: bool = False,
        single_driver: bool = False,
        skip_removed: bool = False,
        probe: Callable[[str, int], None] = lambda _point, _batch: None,
    ) -> TrackedQuery:
        """Start the stage over a streaming DataFrame and return its query.

        ``write_batch(batch_df, batch)`` runs in the driver for every micro-batch, as Spark's
        foreachBatch does, with a :class:`~lowwater_spark.Batch` that has the watermark, the
        hand-over and the state. Spark may call it again for the same batch after a crash.

        Args:
            df: Over one or more sources: files, tables of Delta or Iceberg, or Kafka whose brokers
                are declared; of an injector any that Spark can read again after a crash. With
                Spark's own stateful operators if the stage declares its ``retention``. Or a
                ``DataStreamWriter`` over it, as of ``df.writeStream``, that was told its
                checkpoint, and output mode, trigger and query name as far as they are not the
                default ones; these are no arguments then.
            write_batch: What to do with a batch.
            checkpoint: Directory on a local or NFS file system, on HDFS, or on S3 (``s3a://``) with
                ``single_driver``, of this query alone, and the stage's from its first batch on.
            also: Further stages that the query runs, with outputs, keys, ranges, stamps and states
                of their own. Each reads the inputs that this one reads, or earlier stages of the
                query, by what they have emitted in the same batch. ``batch.of(name)`` is the batch
                of one. All declare the same ``retention``, which is needed if the plan does not say
                of each stamp how low it can be. A checkpoint keeps its stages.
            output_mode: Spark's: ``append`` by default, or ``update``, where each batch has the
                windows that it has changed, complete or not. Those stamped below ``batch.low`` do
                not come again.
            trigger: Arguments of Spark's ``trigger``; by default batch after batch, and where the
                checkpoint is on S3 one a second at most.
            name: Spark's name of the query; the stage's by default.
            adopt: Take the name over from another checkpoint by starting a new incarnation of the
                computation.
            single_driver: Declares that no other driver runs with this checkpoint before this one
                has ended, its JVM with it. Needed on S3, where Spark lets two of them both take a
                batch.
            skip_removed: Let a new checkpoint begin at what is left of an output whose old batches
                were removed; else it is refused.
            probe: Called with the name of each step of a batch and its number; for tests and
                tracing.

        Raises Unsupported, before anything is touched, when the query cannot be tracked exactly;
        and, before the query starts, IdentityMismatch (another checkpoint has the name), Rewound
        (the checkpoint is older than what was published), OlderClaim (a newer run exists),
        IncarnationChanged (an input was reset), RegistrationConflict, CheckpointMismatch (also:
        batches were removed that the checkpoint has not read). When the authority is away the query
        starts all the same, holds, and claims as soon as it answers.
        """
        stages = (self, *also)
        if budget := [stage.name for stage in also if stage.lateness_budgets]:
            raise Unsupported(
                f"The lateness budget of {budget[0]}, which is not the first stage of its query",
                "how late rows are is counted where the query reads them",
                f"Declare it of {self.name}, or make {budget[0]} a query of its own.",
            )
        earlier = check_together([stage._declared() for stage in stages])
        asked = writer_of(df, checkpoint=checkpoint, output_mode=output_mode, trigger=trigger, name=name)
        asked.check_no_sink()
        frame, query_name = asked.frame, asked.name or self.name
        check_session(self.spark)
        check_session(frame.sparkSession)  # the query runs with its settings
        self._check_time(frame)
        # The stages that the frame's plan bounds. A later stage that stamps by the times of what it
        # reads of an earlier one is bounded by that one, and an injector says itself how far it is.
        stamped = [
            stage
            for stage, inner in zip(stages, earlier, strict=True)
            if stage.inputs and not (inner and stage.keyed.event_time is stage.event_time)
        ]
        checked = check_plan(
            frame.sparkSession,
            frame,
            retention=self.retention,
            event_time=self.keyed.event_time,
            also=[stage.keyed.event_time for stage in stamped if stage is not self],
        )
        if checked.retention is None:
            for stage in stamped:
                check_arriving(frame, stage.keyed.event_time)
                check_windows(frame, stage.keyed.window)
        check_output_mode(checked, asked.output_mode, function=True)
        _check_columns(frame, self.keyed)
        self._warn_of_windows(frame, checked)
        folder = absolute(asked.checkpoint, self.spark, single_driver=single_driver)
        self._check_running(folder, query_name)
        reads = [stage.inputs for stage, inner in zip(stages, earlier, strict=True) if stage.inputs and not inner]
        checked = self._waiting_for(checked, reads[0]) if reads else checked
        checked = _check_bounds(
            frame, checked, [stage.keyed.bounds for stage in stages if stage.keyed.bounds is not None]
        )
        check_names(folder, [stage.name for stage in stages])
        driving = Driving.of(self.spark, frame, checked, folder, self.inputs, asked.trigger)
        checked.check_writers()
        check_shape(folder, "function", checked)
        ticking = with_ticks(self.spark, frame, folder)
        client = self._connect() if self.client is None else self.client
        parts = self._parts(
            client,
            folder,
            checked,
            list(zip(stages, earlier, strict=True)),
            adopt=adopt,
            estimated=is_approximate(driving),
        )
        with self._beginning(client, [part.authority for part in parts], driving) as begin:
            hook = Hook(write_batch, probe)
            run = Run(folder, checked, parts, hook, skip_removed=skip_removed)
            # Spark lists the ticks with each look for rows.
            writer = asked.with_pause(glance(folder)).onto(ticking, folder, query_name)
            return begin(run, writer.foreachBatch(hook.run_batch))

    def start(
        self,
        df: DataFrame | DataStreamWriter,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        format: str | None = None,  # noqa: A002 - Spark's own name for it
        path: str | os.PathLike[str] | None = None,
        output_mode: str | None = None,
        partition_by: str | Sequence[str] | None = None,
        trigger: Mapping[str, Any] | None = None,
        name: str | None = None,
        adopt: bool = False,
        single_driver: bool = False,
        skip_removed: bool = False,
        **options: Any,
    ) -> TrackedQuery:
        """Start the stage as a plain query, with a sink of Spark's own, and return its query.

        No code runs in its batches and no rows are read twice; a clock in the driver reads Spark's
        checkpoint. What the stage reports is exact if the sink is *visible before commit*: what
        batch N has written can be read when N stands in Spark's commit log. Files, Kafka (with
        ``acks=all``), Delta and Iceberg are. A replay writes a batch again: whether rows then come
        twice is a matter of the sink. Spark's file sink knows the batches it has (when read by its
        log, as another stage does); Kafka, the console and memory do not, and downstream has to
        bear with repeated rows.

        Args:
            df: Over one or more sources: files, tables of Delta or Iceberg, or Kafka whose brokers
                are declared; with Spark's own stateful operators if the stage declares its
                ``retention``. Or a ``DataStreamWriter`` over it, ready to be started: then it is
                started as it was told, and this call has no argument but ``adopt``,
                ``single_driver`` and ``skip_removed``. Its ``foreachBatch`` function gets what
                Spark gives it, and must return when its rows are written and durable. ``foreach``
                and ``clusterBy`` are refused; a table is written by ``format`` and ``path``.
            checkpoint: Directory on a local or NFS file system, on HDFS, or on S3 (``s3a://``) with
                ``single_driver``, of this query alone.
            format: Of the sink: ``parquet``, ``json``, ``csv``, ``orc``, ``kafka``, ``console``,
                ``memory``, ``noop`` or any other that Spark knows.
            path: Of a sink that has one. Of files: a directory of this checkpoint alone.
            output_mode: ``append``, or ``update`` for a sink that takes it.
            partition_by: Columns to lay files out by.
            trigger: Arguments of Spark's ``trigger``; by default batch after batch. With
                ``availableNow`` or ``once`` the query ends by itself, and what it has committed is
                reported first. That it has ended does not mean finished: the watermark stays where
                it is, unless all inputs are finished.
            name: Spark's name of the query; the stage's by default.
            adopt: Take the name over from another checkpoint by starting a new incarnation of the
                computation.
            single_driver: Declares that no other driver runs with this checkpoint before this one
                has ended, its JVM with it. Needed on S3, where Spark lets two of them both take a
                batch.
            skip_removed: Let a new checkpoint begin at what is left of an output whose old batches
                were removed; else it is refused.
            options: Of the sink, as for Spark's writeStream.

        Late rows are seen by the least event time of each batch: ``status().late_rows`` counts the
        batches that have any, which is the least number of rows there can be.

        Raises as :meth:`foreach_batch` does.
        """
        if not self.inputs:
            raise Unsupported(
                "An injector as a plain query",
                "nothing in it says how far the source has come",
                "Start it with foreach_batch and tell batch.frontier().",
            )
        if self.lateness_budgets:
            raise Unsupported(
                f"The lateness budget of {self.name} as a plain query",
                "a sink of Spark's own does not tell how late its rows are",
                "Start it with foreach_batch, or leave lateness_budget out.",
            )
        said = {"format": format, "path": path, "partition_by": partition_by, "options": options}
        asked = writer_of(df, checkpoint=checkpoint, output_mode=output_mode, trigger=trigger, name=name, **said)
        frame, query_name = asked.frame, asked.name or self.name
        check_session(self.spark)
        check_session(frame.sparkSession)  # the query runs with its settings
        asked.check_sink()
        self._check_time(frame)
        checked = check_plan(frame.sparkSession, frame, retention=self.retention, event_time=self.keyed.event_time)
        if checked.retention is None:
            check_arriving(frame, self.keyed.event_time)
            check_windows(frame, self.keyed.window)
        check_output_mode(checked, asked.output_mode)
        _check_columns(frame, self.keyed)
        self._warn_of_windows(frame, checked)
        folder = absolute(asked.checkpoint, self.spark, single_driver=single_driver)
        self._check_running(folder, query_name)
        checked = self._waiting_for(checked, self.inputs)
        keyed = dataclasses.replace(self.keyed, ranges=1) if self.default_ranges else self.keyed
        driving = Driving.of(self.spark, frame, checked, folder, self.inputs, asked.trigger)
        checked.check_writers()
        output = self._output(asked)
        if output is not None:
            check_sink(output, CheckpointLog(folder))
            check_alone(output, full_name(self._settings().namespace, self.name))
        check_shape(folder, "plain", checked)
        check_times(frame, asked.format or "", asked.options)
        asked = asked.with_options(**exact_times(asked.format or "", asked.options))
        if option := _MARKED_BY.get((asked.format or "").lower()):
            asked = asked.with_options(**{option: marked(full_name(self._settings().namespace, self.name))})
        writer = asked.onto(observe_oldest(frame, self.keyed.event_time), folder, query_name)
        client = self._connect() if self.client is None else self.client
        registration = self._registration(folder, checked, adopt=adopt, estimated=is_approximate(driving))
        authority = Authority(client, dataclasses.replace(registration, ranges=keyed.ranges))
        with self._beginning(client, [authority], driving) as begin:
            parts = [Part(authority, keyed, folder)]
            run = Run(folder, checked, parts, Plain(output), skip_removed=skip_removed)
            return begin(run, writer)

    @contextlib.contextmanager
    def _beginning(
        self, client: lowwater.Client, authorities: Sequence[Authority], driving: Driving | None
    ) -> Iterator[Callable[[Run, DataStreamWriter], TrackedQuery]]:
        """Give what begins a run and then its query; close everything again if that fails, or if what comes before it does."""

        def begin(run: Run, writer: DataStreamWriter) -> TrackedQuery:
            if driving is not None:
                driving.reserve(run.authority.registration, run.heads)
                if run.reader is not None:
                    run.reader.driven_holdback = driving.holdback(run.reader.keyed.window)
            run.start()
            if driving is not None:
                driving.open(run.authority)
                run.drive = driving
            owned = client if self.client is None else None
            tracked = TrackedQuery(run, writer.start(), interval=self.interval, owned=owned, driving=driving)
            _running.add(tracked)
            return tracked

        try:
            yield begin
        except BaseException:
            if driving is not None:
                driving.close()
            for authority in authorities:
                authority.close()
            if self.client is None:
                client.close()
            raise

    def _connect(self) -> lowwater.Client:
        return lowwater.Client(self._settings())

    def _settings(self) -> lowwater.Settings:
        if self.client is not None:
            return self.client.settings
        return connection(lambda name: self.spark.conf.get(name, None), self.address)

    def _waiting_for(self, checked: Checked, inputs: Sequence[str]) -> Checked:
        """Return what a plan reads with whom is waited for.

        Of several stages that read from outside, all wait for the same.
        """
        namespace = self._settings().namespace

        def full(names: Iterable[str]) -> list[str]:
            return [full_name(namespace, name) for name in names]

        driven = {number: full(drive_of(control.directory).inputs) for number, control in checked.controls.items()}
        return checked.waiting_for(full(inputs), driven)

    def _output(self, asked: Writer) -> Path | None:
        """Return the local directory that a sink of Spark's writes files to; None for any other sink."""
        if asked.path is None or asked.format is None or not is_file_format(self.spark, asked.format):
            return None
        try:
            return Path(local_directory(self.spark, os.fspath(asked.path), "The path"))
        except Unsupported:
            return None

    def _check_time(self, frame: DataFrame) -> None:
        """Find a frame of windows that has the declared event time no more. Raises ValueError."""
        time = self.event_time
        if (
            self.keyed.event_time is not time
            or not isinstance(time, str)
            or "." in time
            or own_name(frame.columns, time)
        ):
            return
        fields: list[Any] = frame.schema.fields
        windows = [each.name for each in fields if getattr(each.dataType, "names", None) == ["start", "end"]]
        if windows:
            msg = (
                f"the frame that is started has no {time} any more: declare what {self.name} stamps its output with, as "
                f'stamp=F.col("{windows[0]}.start")'
            )
            raise ValueError(msg)

    def _warn_of_windows(self, frame: DataFrame, checked: Checked) -> None:
        """Tell of a stage whose event time is a window's: before there was a name for the stamp, it was said so."""
        time, own = self.event_time, {watermark.column for watermark in checked.watermarks}
        if self.keyed.event_time is not time or str(time) in own | {f"Column<'{each}'>" for each in own}:
            return
        if any(operator.window is not None for operator in checked.operators) and is_windows(frame, time):
            warnings.warn(
                f"the event_time of {self.name} is a window's, and not that of the frame that it reads ({', '.join(sorted(own))}): declare that one, "
                "and the window's as stamp=. The next release refuses it.",
                DeprecationWarning,
                stacklevel=3,
            )

    def _check_running(self, checkpoint: Location, name: str) -> None:
        """Find what Spark would refuse, before the claim fences a query that runs."""
        if any(query.name == name for query in self.spark.streams.active):
            msg = f"a query named {name!r} is running in this session; stop it first, or pass another name"
            raise ValueError(msg)
        if any(real(query.checkpoint) == real(checkpoint) and query.query.isActive for query in _running):
            msg = f"the query of {checkpoint} is running in this process; stop it first"
            raise ValueError(msg)

    def _declared(self) -> Declared:
        client = self.address if self.client is None else self.client
        return Declared(self.name, self.inputs, self.heuristics, client, self.retention)

    def _parts(
        self,
        client: lowwater.Client,
        checkpoint: Location,
        checked: Checked,
        stages: Sequence[tuple[Stage, Sequence[str]]],
        *,
        adopt: bool,
        estimated: bool,
    ) -> list[Part]:
        """Make the query's stages, each with the names of the earlier ones that it reads.

        All of them are one run.
        """
        asked = self._registration(checkpoint, checked, adopt=adopt, estimated=estimated)
        parts: dict[str, Part] = {}
        for stage, earlier in stages:
            registration = dataclasses.replace(
                asked,
                name=stage.name,
                inputs=stage.inputs,
                heuristics=stage.heuristics,
                ranges=stage.keyed.ranges,
                lateness_budgets=stage.lateness_budgets,
                max_skew=stage.max_skew,
            )
            home = home_of(checkpoint, stage.name, first=stage is self)
            authority = Authority(client, registration)
            parts[stage.name] = Part(authority, stage.keyed, home, [parts[name] for name in earlier])
        return list(parts.values())

    def _registration(self, checkpoint: Location, checked: Checked, *, adopt: bool, estimated: bool) -> Registration:
        log = CheckpointLog(checkpoint)
        last = log.last_committed()
        first = 0 if last is None else last + 1
        planned = log.plan(first)
        for source, line in zip(checked.sources, () if planned is None else planned.lines, strict=False):
            source.check(line)
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
            estimated=estimated,
            lateness_budgets=self.lateness_budgets,
            max_skew=self.max_skew,
        )


def _check_bounds(df: DataFrame, checked: Checked, declared: Sequence[Bounds]) -> Checked:
    """Return the plan with what the injectors' declarations ask of it.

    Raises Unsupported, and what Spark does for a column that is not there.
    """
    for bounds in declared:
        if bounds.producer is None:
            checked.check_parts(df, PARTITION, paced=bounds.skew is not None)
        else:
            check_column(df, bounds.producer, "producer")
    return checked.telling_ends() if any(bounds.lists for bounds in declared) else checked


def _check_columns(df: DataFrame, keyed: Keyed) -> None:
    """Find a wrong column name or type here, and not in the first batch."""
    from lowwater_spark.track.ranges import range_column
    from lowwater_spark.track.rows import event_micros

    check_column(df, keyed.event_time, "event_time")
    for each in keyed.key:
        check_column(df, each, "key")
    df.select(range_column(columns_of(df, keyed.key), keyed.ranges), event_micros(df, keyed.event_time))


@dataclass(frozen=True, slots=True)
class Declared:
    """What decides whether a stage can stand beside others.

    ``client`` is compared by equality: an address, or a client's identity.
    """

    name: str
    inputs: Sequence[str]
    heuristics: Sequence[float]
    client: object
    retention: timedelta | None = None


def check_together(stages: Sequence[Declared]) -> list[Sequence[str]]:
    """Return for each stage the names of the earlier stages of the query that it reads; of a reader and of an injector: none.

    Raises ValueError for stages that do not go together, and Unsupported for inputs that cannot be folded exactly.
    """
    names = [stage.name for stage in stages]
    outside: Declared | None = None
    found: list[Sequence[str]] = []
    for i, stage in enumerate(stages):
        if stage.name in names[:i]:
            msg = f"two stages of the query are named {stage.name!r}; a computation's name is its own"
            raise ValueError(msg)
        if stage.client != stages[0].client:
            msg = f"{stage.name} and {stages[0].name} reach the authority by different clients; pass both stages the same one"
            raise ValueError(msg)
        if stage.inputs and stage.retention != stages[0].retention:
            msg = (
                f"{stage.name} has the retention {stage.retention} and {stages[0].name}, the first stage, {stages[0].retention}: what Spark's "
                "operators hold back, they hold back of all stages of the query; declare the largest one in all of them"
            )
            raise ValueError(msg)
        later = [name for name in stage.inputs if name in names[i:]]
        if later:
            msg = f"{stage.name} reads {later[0]}, which does not come before it in the query; name {later[0]} first"
            raise ValueError(msg)
        inner = [name for name in stage.inputs if name in names[:i]]
        if inner and len(inner) < len(stage.inputs):
            other = next(name for name in stage.inputs if name not in inner)
            raise Unsupported(
                f"The stage {stage.name}, which reads {inner[0]} of the same query and {other} from outside,",
                "the two are known by different evidence, which this release does not bring together",
                f"Let {inner[0]} pass on what {stage.name} needs of {other}, and name {inner[0]} alone; or make {stage.name} a query of its own.",
            )
        if stage.inputs and not inner:
            if outside is None:
                outside = stage
            _check_same(stage, outside)
        found.append(inner)
    return found


def _check_same(stage: Declared, other: Declared) -> None:
    if sorted(stage.inputs) != sorted(other.inputs):
        msg = f"{stage.name} reads {', '.join(stage.inputs)} and {other.name} reads {', '.join(other.inputs)}: stages of one query read the same"
        raise ValueError(msg)
    if sorted(stage.heuristics) != sorted(other.heuristics):
        msg = f"{stage.name} and {other.name} have different heuristics; stages of one query have the same"
        raise ValueError(msg)
