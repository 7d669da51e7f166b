"""Stages and injectors as users declare them, and the queries that run them."""

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
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import lowwater
from lowwater import errors
from lowwater.core import checks
from lowwater.core.calls import full_name
from lowwater.core.text import did_you_mean
from lowwater_spark.checkpoint.identity import check_names, home_of, identity, new_ordinal
from lowwater_spark.checkpoint.location import Location, glance, local_directory, real
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.columns import check_column, columns_of, own_name
from lowwater_spark.drive.frame import drive, drive_of
from lowwater_spark.drive.watermark import Driving, is_approximate
from lowwater_spark.errors import Unsupported
from lowwater_spark.settings import connection
from lowwater_spark.sources.files.sink_log import check_sink
from lowwater_spark.sources.files.writers import check_alone
from lowwater_spark.sources.ticks import with_ticks
from lowwater_spark.track.output.outputs import needed_options
from lowwater_spark.track.plan.checked import (
    Checked,
    absolute,
    check_arriving,
    check_classic,
    check_output_mode,
    check_plan,
    check_session,
    check_trigger,
    check_windows,
    is_file_format,
)
from lowwater_spark.track.plan.operators import is_windows
from lowwater_spark.track.plan.shape import check_shape
from lowwater_spark.track.plan.writer import Writer, writer_of
from lowwater_spark.track.query import INTERVAL, TrackedQuery
from lowwater_spark.track.rows.frontier import PARTITION, Bounds
from lowwater_spark.track.rows.keyed import Keyed
from lowwater_spark.track.rows.ranges import range_bounds
from lowwater_spark.track.run.authority import Authority, Registration
from lowwater_spark.track.run.events import observe_oldest
from lowwater_spark.track.run.hook import Hook, WriteBatch
from lowwater_spark.track.run.plain import Plain
from lowwater_spark.track.run.run import Run
from lowwater_spark.track.run.stage_run import StageRun
from lowwater_spark.tracked import started, started_surely

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    Stamp = timedelta | str | Column
    """``"event"``, the length of windows whose start is the stamp, or the column that is it."""

__all__ = ["Declared", "Stage", "check_together", "injector", "stage"]

_RANGES: Final = 64
"""Default number of key ranges of a stage with a function."""


class CommonOptions(TypedDict, total=False):
    """Arguments of :func:`stage` and :func:`injector`."""

    ranges: int | None
    heuristics: Sequence[float]
    lateness_budget: float | Sequence[float]
    stamp: Stamp
    max_skew: timedelta | None
    address: str | None
    client: lowwater.Client | None


class StageOptions(CommonOptions, total=False):
    """Further arguments of :func:`stage`."""

    retention: timedelta | None
    balance: bool


class InjectorOptions(CommonOptions, total=False):
    """Further arguments of :func:`injector`: the limits of its source."""

    disorder: timedelta | None
    across: timedelta | None
    delay: timedelta | None
    producer: str | Column | None
    producers: Sequence[str] | None
    ahead: timedelta | None
    skew_limit: timedelta | None


def stage(
    spark: SparkSession,
    name: str,
    *,
    inputs: Sequence[str],
    key: str | Column | Sequence[str | Column],
    event_time: str | Column,
    **options: Unpack[StageOptions],
) -> Stage:
    """Declare a tracked stage: a query whose low watermark is exact. Registers nothing yet.

    Args:
        spark: A classic session.
        name: Name of the computation. One checkpoint at a time runs under it.
        inputs: Names of the computations whose output it reads. Every writer of what it reads must
            be named. Writers that left their mark there are compared: a stage that omits one is
            refused, or holds if the writer comes later.
        key: Column(s) whose xxhash64 decides the key range.
        event_time: Event time of the frame that it reads, a timestamp column.
        ranges: Number of equal key ranges, 1 to 65,536; a stage with state keeps its number.
            Default: 64 for a stage with a function, which may hold some of them back, and 1 for a
            plain query, whose ranges all have the same value.
        heuristics: Shares of the heuristic watermarks. Default: ``(0.99,)``.
        lateness_budget: A share of the rows, or up to four. Each gets a watermark behind which at
            most about that share comes (``docs/concepts/lateness-budget.md``). Only for
            :meth:`Stage.foreach_batch`, as the first stage of its query. The lateness of rows is
            counted while they are read. Default: none.
        stamp: What stamps the output. ``"event"``, the default: event times. A column of the
            started frame, if it has no event times any more, as ``F.col("window.start")`` of
            Spark's windows. A length, for windows by ``batch.stateful``: their start stamps the
            output, and the watermark is floored to the start of the window, since a row at 14:25
            opens the window of 14:00. The windows must be tumbling ones that start at whole
            multiples of the length since 1970 in UTC, as Spark's do without ``startTime``. For
            sliding or shifted windows, sessions and days of a local time zone the floor would be
            too high.
            ``batch.stateful`` raises ValueError when a range holds a stamp below it. In written
            output, the start of a ``window()`` of another kind is refused without a stamp that
            fits; other functions that make older stamps, such as ``date_trunc``, are not checked.
        retention: For a query with Spark's own stateful operators and ``withWatermark``: greatest
            distance below Spark's watermark of the stamps of rows that they still hold. The plan
            often shows it, and then nothing is needed: when ``stamp`` is the start or end of a
            window, the end of a session, the event time by which rows are grouped, an event time of
            a join that is bounded both ways, or a ``date_trunc`` of one of these; and for
            dropDuplicatesWithinWatermark. Otherwise declare: for another value made of a window,
            the window's length plus the stamp's distance below its start; for a join of two
            streams, how long a row waits for its match; for a stateful function, how long it keeps
            rows; for several operators above one another, the sum. The stage then reports at most
            Spark's watermark minus this. A declaration below what the plan shows, or below the
            checkpoint's, is refused; a larger one is accepted. If the plan shows nothing, and the
            declaration is too small, the watermark leads. Default: none is declared.
        max_skew: How far the watermark may be ahead of the authority's clock, if event times are
            rightly in the future, as of bookings. Default: as registered, else a day, and not less
            than that of any input. A later start may raise it.
        balance: True lets the driver ask for another layout of its key ranges when some of them
            take much longer than others, as an operator can with `lowwater split`
            (``docs/operate/scale.md``). It follows such layouts in any case. If the authority
            has an access file, the driver's token needs ``operate`` for it. Default: False.
        address: Address of the authority; default the session's ``spark.lowwater.address``, else
            ``LOWWATER_ADDRESS``, else ``localhost:7420``. Executors must reach it as well. Token,
            certificates and namespace come from ``spark.lowwater.*``.
        client: A client of your own, instead of all these. Its settings, contents included, travel
            to the executors.

    Raises ValueError for arguments that make no stage, and Unsupported in Spark Connect.
    """
    if not inputs:
        msg = f"{name} has no inputs; a stage that brings records in from outside is lws.injector(...)"
        raise ValueError(msg)
    _check_names("stage", options, StageOptions)
    retention = options.get("retention")
    if retention is not None and retention < timedelta(0):
        msg = f"retention says how far below Spark's watermark rows can come out, so it is not negative: {retention!r}"
        raise ValueError(msg)
    declared = _declare(spark, name, tuple(checks.names("inputs", inputs)), key, event_time, options)
    keyed = dataclasses.replace(declared.keyed, balance=options.get("balance", False))
    return dataclasses.replace(declared, keyed=keyed, retention=retention)


def injector(
    spark: SparkSession,
    name: str,
    *,
    key: str | Column | Sequence[str | Column],
    event_time: str | Column,
    **options: Unpack[InjectorOptions],
) -> Stage:
    """Declare an injector: a stage without inputs that reports its own frontier.

    ``batch.frontier()`` tells what it has brought in. It may read any source that Spark can read
    again after a crash: Kafka, Kinesis, a table, a Python data source. Outstanding records are kept
    with ``batch.stateful()``: the low watermark is the lesser of the frontier and the oldest
    outstanding record. It also takes ``ranges``, ``heuristics``, ``lateness_budget``, ``stamp``,
    ``address`` and ``client``, as :func:`stage` does and with the same defaults.

    If the rows themselves show the frontier, declare how, and do not call ``batch.frontier()``;
    ``batch.low`` is the frontier then. By default none of these is declared.

    * ``disorder``: Greatest age of a row below an earlier row of its partition of Kafka;
      ``timedelta(0)`` if rows come in order. The frontier is the least, over all partitions, of
      the greatest event time seen minus this. A partition without rows holds it. The frame
      keeps the source's columns ``topic`` and ``partition``, and ``offset`` if examples are to
      name it.
    * ``across``: Greatest age of a row below any row, of any partition, that was appended
      before it. A partition that was read to its end then moves without rows of its own.
    * ``delay``: Greatest age of a row below the driver's clock when it is appended. The
      frontier then moves even if no rows come. Not for topics that are read again, whose rows
      are old. Both ``across`` and ``delay`` need ``lowwater.brokers``, the number of brokers,
      as an option of the source.
    * ``producer``: Column that names the producer of a row, or its file, in place of the
      partition. Any source will do, but without ``across`` and ``delay``. ``disorder`` is then
      among the rows of one producer, in the order in which the query reads them: put them into
      one partition of Kafka, or add how far apart those may be.
    * ``producers``: All producers to wait for. Rows of another one hold the frontier.
    * ``ahead``: Greatest distance of an event time ahead of the driver's clock, a day by
      default. Rows beyond it do not move the frontier: they are counted and named.
    * ``max_skew``: As for a stage. If rows are rightly more than a day in the future, declare
      both this and ``ahead``.
    * ``skew_limit``: Greatest distance of a partition ahead of the slowest. Topics are then
      read by :meth:`Stage.read_kafka`.

    Raises ValueError and TypeError for arguments that make no injector.
    """
    _check_names("injector", options, InjectorOptions)
    bounds = Bounds.of(
        options.get("disorder"),
        options.get("across"),
        options.get("delay"),
        options.get("ahead"),
        options.get("producer"),
        options.get("producers"),
        options.get("skew_limit"),
    )
    declared = _declare(spark, name, (), key, event_time, options)
    return dataclasses.replace(declared, keyed=dataclasses.replace(declared.keyed, bounds=bounds))


def _check_names(function: str, options: Mapping[str, object], names: type) -> None:
    """Raise TypeError for an option that a function does not have."""
    for name in options.keys() - names.__annotations__.keys():
        msg = f"{function}() got an unexpected keyword argument {name!r}{did_you_mean(name, names.__annotations__)}"
        raise TypeError(msg)


_BY_A_WORKER: Final = "Run the injector in a classic session, or have the program that writes the rows report their times: lowwater.connect().worker(NAME)."


def _declare(
    spark: SparkSession,
    name: str,
    inputs: tuple[str, ...],
    key: str | Column | Sequence[str | Column],
    event_time: str | Column,
    options: CommonOptions,
) -> Stage:
    if inputs:
        check_classic(spark, "A stage in a Spark Connect session")
    else:
        # A sidecar needs an input, whose watermark counts when the checkpoint has read it.
        check_classic(spark, "An injector in a Spark Connect session", _BY_A_WORKER)
    ranges, stamp = options.get("ranges"), options.get("stamp", "event")
    heuristics, lateness_budget = options.get("heuristics", (0.99,)), options.get("lateness_budget", ())
    address, client = options.get("address"), options.get("client")
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
    budgets = (lateness_budget,) if isinstance(lateness_budget, int | float) else tuple(lateness_budget)
    count = _RANGES if ranges is None else ranges
    keyed = Keyed(keys, time, count, injector=not inputs, window=window, budgeted=bool(budgets))
    declared = Stage(spark, name, inputs, keyed, tuple(heuristics), address, client, default_ranges=ranges is None)
    return dataclasses.replace(
        declared, event_time=event_time, lateness_budgets=budgets, max_skew=options.get("max_skew")
    )


_running: Final[weakref.WeakSet[TrackedQuery]] = weakref.WeakSet()
"""Queries that this process has started."""


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
    """Event time of the frame that the stage reads. ``keyed.event_time`` stamps its output, and is
    the time by which rows are counted."""
    lateness_budgets: tuple[float, ...] = field(default=(), kw_only=True)
    default_ranges: bool = field(default=False, kw_only=True)
    """True when the number of key ranges was not declared."""
    interval: float = field(default=INTERVAL, kw_only=True)
    """Longest time between two looks at the inputs and the sources, seconds."""

    def read_kafka(self, options: Mapping[str, object]) -> DataFrame:
        """Return topics as a streaming frame, for an injector with ``skew_limit``.

        Partitions far ahead of the slowest one are held back in Kafka. The frame has the columns of
        Spark's own source. ``options`` are ``subscribe``, ``lowwater.brokers``, and options of
        Kafka's client, named as in Spark, that librdkafka takes; ``kafka.bootstrap.servers`` is
        required. Topics are read from their beginning. The times of Kafka's records should be near
        the event times.

        Needs PySpark 4.2, and confluent-kafka on driver and executors (``lowwater-spark[kafka]``);
        raises Unsupported without them. Raises ValueError for a stage without ``skew_limit``, and
        for other options.
        """
        from lowwater_spark.sources.kafka.paced_reader import read_paced

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
        """Return ``df`` under the low watermark of the stage's inputs, to be started by the stage.

        ``event_time`` is a column of ``df``, by default the stage's. Other arguments and errors as
        for :func:`~lowwater_spark.drive`; ValueError for an injector.
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
            df: A frame over files, tables of Delta or Iceberg, or Kafka with declared brokers; for
                an injector over any source that Spark can read again after a crash. Spark's own
                stateful operators need the stage's ``retention``. Or a ``DataStreamWriter``, from
                ``df.writeStream``, with the checkpoint and any output mode, trigger and query name
                set on it; these are then no arguments.
            write_batch: Function that handles a batch.
            checkpoint: Directory on a local or NFS file system, on HDFS, or on S3 or GCS with
                ``single_driver``. It belongs to this query alone, and to the stage from its first
                batch on.
            also: Further stages of the query, with outputs, keys, ranges, stamps and states of
                their own. Each reads the inputs that this stage reads, or earlier stages, in the
                same batch. ``batch.of(name)`` is a stage's batch. All declare the same
                ``retention``, unless the plan shows how low each stamp can be. A checkpoint keeps
                its stages.
            output_mode: ``append``, the default, or ``update``: each batch then has the windows
                that it has changed, complete or not. Windows stamped below ``batch.low`` do not
                come again.
            trigger: Arguments of Spark's ``trigger``. Default: batch after batch, and with a
                checkpoint on S3 at most one a second.
            name: Spark's name of the query; default: the stage's.
            adopt: True takes the name over from another checkpoint, by a new incarnation of the
                computation.
            single_driver: True declares that no other driver runs with this checkpoint before this
                one and its JVM have ended. Needed on S3, where two drivers could take one batch.
            skip_removed: True lets a new checkpoint begin at what is left of an output whose old
                batches were removed; otherwise that is refused.
            probe: Called with the name of each step of a batch and its number; for tests and
                tracing.

        Raises Unsupported, before anything is touched, when the query cannot be tracked exactly.
        Before the query starts it raises IdentityMismatch (another checkpoint owns the name),
        Rewound (the checkpoint is older than what was published), OlderClaim (a newer run exists),
        IncarnationChanged (an input was reset), RegistrationConflict, CheckpointMismatch (also for
        removed batches that the checkpoint has not read). When the authority is away the query
        starts all the same, holds, and claims as soon as it answers.
        """
        if isinstance(also, Stage | str):
            msg = f"also={getattr(also, 'name', also)!r} is no list: pass a list of stages, also=[...]"
            raise TypeError(msg)
        stages = (self, *also)
        if budget := [stage.name for stage in also if stage.lateness_budgets]:
            raise Unsupported(
                f"The lateness budget of {budget[0]}, which is not the first stage of its query",
                "how late rows are is counted where the query reads them",
                f"Declare it of {self.name}, or make {budget[0]} a query of its own.",
            )
        earlier = check_together([stage._declared() for stage in stages])
        writer_options = writer_of(df, checkpoint=checkpoint, output_mode=output_mode, trigger=trigger, name=name)
        writer_options.check_no_sink()
        frame, query_name = writer_options.frame, writer_options.name or self.name
        # ``stamped``: the stages for which _check() refuses the query unless its plan or a declared
        # retention shows that no row is stamped below the watermark. A stage without ``inputs``, an
        # injector, is none of them: it reports its own frontier. Nor is one that reads earlier
        # stages of the query (``inner``), unless its ``stamp`` is a column: otherwise
        # keyed.event_time is its event_time, that of the earlier stages' rows, which their
        # watermarks bound. The frame may lack this column, so a sound query would be refused.
        stamped = [
            stage
            for stage, inner in zip(stages, earlier, strict=True)
            if stage.inputs and not (inner and stage.keyed.event_time is stage.event_time)
        ]
        checked, folder = self._check(writer_options, stamped, single_driver=single_driver, function=True)
        reads = [stage.inputs for stage, inner in zip(stages, earlier, strict=True) if stage.inputs and not inner]
        checked = self._waiting_for(checked, reads[0]) if reads else checked
        checked = _check_bounds(
            frame, checked, [stage.keyed.bounds for stage in stages if stage.keyed.bounds is not None]
        )
        check_names(folder, [stage.name for stage in stages])
        driving = Driving.of(self.spark, frame, checked, folder, self.inputs, writer_options.trigger)
        checked.check_writers()
        check_shape(folder, "function", checked)
        ticking = with_ticks(self.spark, frame, folder)
        client = self._connect() if self.client is None else self.client
        stage_runs = self._stage_runs(
            client,
            folder,
            checked,
            list(zip(stages, earlier, strict=True)),
            adopt=adopt,
            estimated=is_approximate(driving),
        )
        with self._beginning(client, [run.authority for run in stage_runs], driving) as begin:
            hook = Hook(write_batch, probe)
            run = Run(folder, checked, stage_runs, hook, skip_removed=skip_removed)
            # Whenever Spark looks for rows, it lists the directory of ticks in the checkpoint. On a
            # remote store a listing is a request, on S3 one that costs money: with_pause() leaves
            # some time between two of them.
            stream_writer = writer_options.with_pause(glance(folder)).onto(ticking, folder, query_name)
            return begin(run, stream_writer.foreachBatch(hook.run_batch), query_name)

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

        No code runs in its batches, and no rows are read twice; a clock in the driver reads Spark's
        checkpoint. Reports are exact if the sink is *visible before commit*: the rows of batch N
        can be read when N is in Spark's commit log. Files, Kafka (with ``acks=all``), Delta and
        Iceberg are. A replay writes a batch again, and the sink decides whether rows come twice.
        Spark's file sink knows its batches (for readers of its log, such as other stages). Kafka,
        the console and memory do not, so readers must bear repeated rows.

        Args:
            df: A frame over files, tables of Delta or Iceberg, or Kafka with declared brokers.
                Spark's own stateful operators need the stage's ``retention``. Or a
                ``DataStreamWriter`` that is ready to start; then only ``adopt``, ``single_driver``
                and ``skip_removed`` are arguments. Its ``foreachBatch`` function must return only
                when its rows are written and durable. ``foreach`` and ``clusterBy`` are refused; a
                table is written by ``format`` and ``path``.
            checkpoint: Directory on a local or NFS file system, on HDFS, or on S3 or GCS with
                ``single_driver``, of this query alone.
            format: Format of the sink: ``parquet``, ``json``, ``csv``, ``orc``, ``kafka``,
                ``console``, ``memory``, ``noop`` or any other that Spark knows.
            path: Path of the sink, if it has one; for files a directory of this checkpoint alone.
            output_mode: ``append``, or ``update`` for a sink that takes it.
            partition_by: Columns to lay files out by.
            trigger: Arguments of Spark's ``trigger``; default: batch after batch. With
                ``availableNow`` or ``once`` the query ends by itself, after its committed batches
                are reported. Its end does not mean finished: the watermark stays where it is,
                unless all inputs are finished.
            name: Spark's name of the query; default: the stage's.
            adopt: See :meth:`foreach_batch`.
            single_driver: See :meth:`foreach_batch`.
            skip_removed: See :meth:`foreach_batch`.
            options: Options of the sink, as for Spark's writeStream.

        Late rows show in the least event time of each batch. So ``status().late_rows`` counts the
        batches that have any: there are at least that many late rows. Raises what
        :meth:`foreach_batch` raises.
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
        sink_options = {"format": format, "path": path, "partition_by": partition_by, "options": options}
        writer_options = writer_of(
            df, checkpoint=checkpoint, output_mode=output_mode, trigger=trigger, name=name, **sink_options
        )
        frame, query_name = writer_options.frame, writer_options.name or self.name
        checked, folder = self._check(writer_options, [self], single_driver=single_driver, function=False)
        checked = self._waiting_for(checked, self.inputs)
        keyed = dataclasses.replace(self.keyed, ranges=1) if self.default_ranges else self.keyed
        driving = Driving.of(self.spark, frame, checked, folder, self.inputs, writer_options.trigger)
        checked.check_writers()
        output = self._output(writer_options)
        if output is not None:
            check_sink(output, CheckpointLog(folder))
            check_alone(output, full_name(self._settings().namespace, self.name))
        check_shape(folder, "plain", checked)
        writer_name = full_name(self._settings().namespace, self.name)
        needed = needed_options(frame, writer_options.format or "", writer_options.options, writer_name)
        writer_options = writer_options.with_options(**needed)
        stream_writer = writer_options.onto(observe_oldest(frame, self.keyed.event_time), folder, query_name)
        client = self._connect() if self.client is None else self.client
        registration = self._registration(folder, checked, adopt=adopt, estimated=is_approximate(driving))
        authority = Authority(client, dataclasses.replace(registration, ranges=keyed.ranges))
        with self._beginning(client, [authority], driving) as begin:
            stage_runs = [StageRun(authority, keyed, folder)]
            run = Run(folder, checked, stage_runs, Plain(output), skip_removed=skip_removed)
            return begin(run, stream_writer, query_name)

    def _check(
        self, options: Writer, stamped: Sequence[Stage], *, single_driver: bool, function: bool
    ) -> tuple[Checked, Location]:
        """Return a query's plan and checkpoint, which nothing has touched yet.

        The frame's plan bounds the stamps of the stages ``stamped``. ``function``: a function
        handles the batches. Raises for a query that cannot be tracked exactly.
        """
        frame = options.frame
        check_session(self.spark)
        check_session(frame.sparkSession)  # the query runs with this one's settings, if it is another
        if not function:
            options.check_sink()
        check_trigger(options.trigger, function=function or options.function is not None)
        self._check_time(frame)
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
        check_output_mode(checked, options.output_mode, function=function)
        _check_columns(frame, self.keyed)
        self._warn_of_windows(frame, checked)
        folder = absolute(options.checkpoint, self.spark, single_driver=single_driver)
        self._check_running(folder, options.name or self.name)
        return checked, folder

    @contextlib.contextmanager
    def _beginning(
        self, client: lowwater.Client, authorities: Sequence[Authority], driving: Driving | None
    ) -> Iterator[Callable[[Run, DataStreamWriter, str], TrackedQuery]]:
        """Yield a function that begins a run and its query; close everything if that fails."""

        def begin(run: Run, writer: DataStreamWriter, name: str) -> TrackedQuery:
            if driving is not None:
                driving.reserve(run.authority.registration, run.heads)
                if run.reader is not None:
                    run.reader.driven_holdback = driving.holdback(run.reader.keyed.window)
            try:
                run.start()
            except errors.IdentityMismatch as refused:
                raise _other_checkpoint(refused, run.checkpoint) from None
            if driving is not None:
                driving.open(run.authority)
                run.drive = driving
            owned = client if self.client is None else None
            in_python = driving is not None or any(source.pace for source in run.checked.sources)
            streams = self.spark.streams
            query = started_surely(writer, name, streams) if in_python else started(writer, name)
            tracked = TrackedQuery(run, query, interval=self.interval, owned=owned, driving=driving)
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
        """Return the plan with the computations for which each source waits.

        Stages of one query that read from outside all wait for the same ones.
        """
        namespace = self._settings().namespace

        def full(names: Iterable[str]) -> list[str]:
            return [full_name(namespace, name) for name in names]

        driven = {number: full(drive_of(control.directory).inputs) for number, control in checked.controls.items()}
        return checked.waiting_for(full(inputs), driven)

    def _output(self, writer_options: Writer) -> Path | None:
        """Return the local directory of a file sink; None for any other sink."""
        path, kind = writer_options.path, writer_options.format
        if path is not None and kind is not None and is_file_format(self.spark, kind):
            return local_directory(self.spark, os.fspath(path))
        return None

    def _check_time(self, frame: DataFrame) -> None:
        """Raise ValueError for a frame of windows that has lost the declared event time."""
        time = self.event_time
        if (
            self.keyed.event_time is not time
            or not isinstance(time, str)
            or "." in time
            or own_name(frame.columns, time)
        ):
            return
        fields: list[Any] = frame.schema.fields
        windows = [column.name for column in fields if getattr(column.dataType, "names", None) == ["start", "end"]]
        if windows:
            msg = (
                f"the frame that is started has no {time} any more: declare what {self.name} stamps its output with, as "
                f'stamp=F.col("{windows[0]}.start")'
            )
            raise ValueError(msg)

    def _warn_of_windows(self, frame: DataFrame, checked: Checked) -> None:
        """Warn of an event time that is a window's, as it was declared before ``stamp`` existed."""
        time, own = self.event_time, {watermark.column for watermark in checked.watermarks}
        if self.keyed.event_time is not time or str(time) in own | {f"Column<'{column}'>" for column in own}:
            return
        if any(operator.window is not None for operator in checked.operators) and is_windows(frame, time):
            warnings.warn(
                f"the event_time of {self.name} is a window's, and not that of the frame that it reads ({', '.join(sorted(own))}): declare that one, "
                "and the window's as stamp=. The next release refuses it.",
                DeprecationWarning,
                stacklevel=4,
            )

    def _check_running(self, checkpoint: Location, name: str) -> None:
        """Raise the refusals of Spark itself before a claim would fence a running query."""
        if any(query.name == name for query in self.spark.streams.active):
            msg = f"a query named {name!r} is running in this session; stop it first, or pass another name"
            raise ValueError(msg)
        if any(real(query.checkpoint) == real(checkpoint) and query.query.isActive for query in _running):
            msg = f"the query of {checkpoint} is running in this process; stop it first"
            raise ValueError(msg)

    def _declared(self) -> Declared:
        client = self.address if self.client is None else self.client
        return Declared(self.name, self.inputs, self.heuristics, client, self.retention)

    def _stage_runs(
        self,
        client: lowwater.Client,
        checkpoint: Location,
        checked: Checked,
        stages: Sequence[tuple[Stage, Sequence[str]]],
        *,
        adopt: bool,
        estimated: bool,
    ) -> list[StageRun]:
        """Make the runs of the query's stages, each with the earlier stages that it reads."""
        registration = self._registration(checkpoint, checked, adopt=adopt, estimated=estimated)
        stage_runs: dict[str, StageRun] = {}
        for stage, earlier in stages:
            own_registration = dataclasses.replace(
                registration,
                name=stage.name,
                inputs=stage.inputs,
                heuristics=stage.heuristics,
                ranges=stage.keyed.ranges,
                lateness_budgets=stage.lateness_budgets,
                max_skew=stage.max_skew,
            )
            home = home_of(checkpoint, stage.name, first=stage is self)
            authority = Authority(client, own_registration)
            stage_runs[stage.name] = StageRun(authority, stage.keyed, home, [stage_runs[name] for name in earlier])
        return list(stage_runs.values())

    def _registration(self, checkpoint: Location, checked: Checked, *, adopt: bool, estimated: bool) -> Registration:
        first, planned = CheckpointLog(checkpoint).next()
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


def _other_checkpoint(refused: errors.IdentityMismatch, checkpoint: Location) -> errors.IdentityMismatch:
    """Return the refusal of a checkpoint that does not own the name; it says which does."""
    msg = (
        f"{refused.message} This query's checkpoint is {checkpoint}; the owner's is the one whose file lowwater/identity "
        f"has {refused.metadata.get('bound_to', 'another identity')}. Start from that one, or pass adopt=True to begin anew with this one."
    )
    return errors.IdentityMismatch(msg, metadata=refused.metadata | {"checkpoint": str(checkpoint)})


def _check_bounds(df: DataFrame, checked: Checked, declared: Sequence[Bounds]) -> Checked:
    """Return the plan with what injectors need of it. Raises Unsupported, and Spark's errors."""
    for bounds in declared:
        if bounds.producer is None:
            checked.check_parts(df, PARTITION, paced=bounds.skew is not None)
        else:
            check_column(df, bounds.producer, "producer")
    return checked.telling_ends() if any(bounds.lists for bounds in declared) else checked


def _check_columns(df: DataFrame, keyed: Keyed) -> None:
    """Raise for a wrong column name or type now, and not in the first batch."""
    from lowwater_spark.columns import event_micros
    from lowwater_spark.track.rows.ranges import range_column

    check_column(df, keyed.event_time, "event_time")
    for column in keyed.key:
        check_column(df, column, "key")
    df.select(range_column(columns_of(df, keyed.key), keyed.ranges), event_micros(df, keyed.event_time))


@dataclass(frozen=True, slots=True)
class Declared:
    """The parts of a stage that decide whether it can be in a query with others.

    ``client`` is compared by equality: an address, or a client's identity.
    """

    name: str
    inputs: Sequence[str]
    heuristics: Sequence[float]
    client: object
    retention: timedelta | None = None


def check_together(stages: Sequence[Declared]) -> list[Sequence[str]]:
    """Return, for each stage, the earlier stages of the query that it reads; often none.

    Raises ValueError for stages that do not fit together, and Unsupported for inputs that cannot be
    folded exactly.
    """
    names = [stage.name for stage in stages]
    outside: Declared | None = None
    earlier_read: list[Sequence[str]] = []
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
        earlier_read.append(inner)
    return earlier_read


def _check_same(stage: Declared, other: Declared) -> None:
    if sorted(stage.inputs) != sorted(other.inputs):
        msg = f"{stage.name} reads {', '.join(stage.inputs)} and {other.name} reads {', '.join(other.inputs)}: stages of one query read the same"
        raise ValueError(msg)
    if sorted(stage.heuristics) != sorted(other.heuristics):
        msg = f"{stage.name} and {other.name} have different heuristics; stages of one query have the same"
        raise ValueError(msg)
