"""A batch: its watermark, its outputs and its state, for the user's function."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import lowwater
from lowwater.layout import SLOTS, Layout
from lowwater.watermark import MAX, MIN
from lowwater_spark.checkpoint.durable import NotDurable
from lowwater_spark.checkpoint.identity import identity
from lowwater_spark.checkpoint.location import Location, local, location_of, real
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.complete.folder import first_of, say
from lowwater_spark.complete.mark import Claim, Standing
from lowwater_spark.errors import CheckpointMismatch, StateLost
from lowwater_spark.sources.bookmarks import removed
from lowwater_spark.sources.delta import app_id
from lowwater_spark.sources.delta_log import DeltaLog, path_of
from lowwater_spark.sources.iceberg_log import IcebergLog, find
from lowwater_spark.sources.sink_log import refuse_sink
from lowwater_spark.sources.writers import mark_writer
from lowwater_spark.track import iceberg_out, table_out
from lowwater_spark.track.batch_log import BatchEntry, BatchLog
from lowwater_spark.track.cut import EQUAL, Cut
from lowwater_spark.track.frontier import Bounds
from lowwater_spark.track.handover import hand_over, sweep
from lowwater_spark.track.inputs import floor_stamp
from lowwater_spark.track.kafka_out import KafkaOut
from lowwater_spark.track.load import loads_of
from lowwater_spark.track.outputs import remember, remembered
from lowwater_spark.track.plan import check_windows, refuse_pattern
from lowwater_spark.track.ranges import key_text, key_zone
from lowwater_spark.track.receipt import Destination, Receipt
from lowwater_spark.track.removal import Removal
from lowwater_spark.track.segments import SegmentUpdate, SendingUpdate, Unsent
from lowwater_spark.track.state import Place, StateStore, Version
from lowwater_spark.track.update import Terms, Update, build_version, can_pin, fixed, partitions_of, restage, rows_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from lowwater_spark.track.rows import Actions, Rows

__all__ = ["Batch", "Claimed", "Keyed", "Outcome"]

logger = logging.getLogger("lowwater.spark")

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Calls:
    """The running calls of a batch's methods, on any thread and for all stages of its query.

    There is no lock, because the closure of an update could not be pickled with one. A caller
    notes its call before it tests ``ended``, and the closer sets ``ended`` before it looks for
    calls, so one of the two always sees the other.
    """

    under_way: list[str] = field(default_factory=list)
    """The names of the methods that have not returned."""
    ended: bool = False

    def begin(self, method: str, batch: int) -> None:
        """Note a call. Raises ValueError if the batch has ended."""
        self.under_way.append(method)
        if self.ended:
            self.under_way.remove(method)
            msg = (
                f"{method} of batch {batch} was called after the function had returned, so its result would be lost. Call a batch's methods only while the "
                "function runs, and join the threads that use it before it returns."
            )
            raise ValueError(msg)

    def end(self) -> list[str]:
        """End the batch, and return the names of the methods that are still running."""
        self.ended = True
        return list(self.under_way)


def _ends_the_batch(method: Callable[Concatenate[Batch, P], T]) -> Callable[Concatenate[Batch, P], T]:
    """Decorate a method so that an error it raises ends the batch.

    The batch keeps the error, and raises it again from every later call and after the function has
    returned. If a function could catch it and go on, Spark would commit a batch whose rows were
    not written, and a replay would find and skip what the function wrote afterwards. The decorator
    also refuses calls after the function has returned.
    """

    @functools.wraps(method)
    def call(batch: Batch, /, *args: P.args, **options: P.kwargs) -> T:
        batch._refuse_failed()
        batch._calls.begin(method.__name__, batch.id)
        try:
            return method(batch, *args, **options)
        except BaseException as failure:
            batch._failures.append(failure)
            raise
        finally:
            batch._calls.under_way.remove(method.__name__)

    return call


def _own_staging(place: Place) -> Path:
    """Return the default staging folder for Kafka.

    Raises Unsupported for a checkpoint that is not local.
    """
    fix = "Pass batch.write_kafka() a path= on a file system that the driver and all executors mount; the checkpoint may stay."
    return local(place.home, "What is staged for Kafka in the checkpoint", fix) / "lowwater" / "kafka"


def _own_state(place: Place) -> Path:
    """Return the default folder of a stage's state.

    Raises Unsupported for a checkpoint that is not local, because executor tasks write there.
    """
    fix = "Pass batch.stateful() a path= on a file system that the driver and all executors mount; the checkpoint may stay."
    return local(place.home, "State in the checkpoint", fix) / "lowwater" / "state"


@dataclass(frozen=True, slots=True)
class Keyed:
    """A stage's rule for the key range and the event time of a row."""

    key: Sequence[str | Column]
    event_time: str | Column
    ranges: int
    """Number of key ranges, as declared."""
    injector: bool
    window: timedelta | None = None
    """Length of the windows whose start is the rows' stamp; None: the event time is the stamp."""
    bounds: Bounds | None = None
    """Declared limits of an injector's source, from which its frontier is computed; None: the
    function sets the frontier."""
    balance: bool = False
    """True: the driver requests another layout when the loads of the ranges are uneven."""
    budgeted: bool = False
    """True: the stage has a lateness budget, so the lateness of its rows is counted."""
    layout: lowwater.Layout = EQUAL
    """The current layout; version 0: the key space is cut into equal parts."""
    window_start: timedelta = timedelta()
    """Shift of those windows, Spark's startTime. Only a sidecar declares one."""

    @property
    def cut(self) -> Cut:
        """The cut of the key space."""
        return Cut(self.ranges, self.layout)


@dataclass(frozen=True, slots=True)
class Ground:
    """The state of a stage while a batch writes an output, besides the batch's own values."""

    claim: Claim | None = None
    """The stage's claim; None: it has not been claimed, or lost its claim."""
    current: bool = True
    """True: the batch read the inputs that are registered now."""
    stands: int = MIN
    """The stage's committed low watermark, microseconds: the least of its ranges."""


class Claimed(NamedTuple):
    """The claim under which a run writes. Another store compares it to refuse a former owner."""

    server_token: str
    computation: str
    """Full name of the computation."""
    identity: str
    """Identity of the query's checkpoint, as the authority knows it."""
    incarnation: int
    sequencer: int


@dataclass(slots=True)
class Outcome:
    """The results of a batch that the driver reports and commits."""

    receipts: list[Receipt] = field(default_factory=list)
    manifest: Version | None = None
    """The state version that the batch made; None for a stage without state."""
    finished: int = 0
    late: int = 0
    late_example: int | None = None
    """Event time of the oldest late row, microseconds."""
    late_handle: int | None = None
    """Key range of that row."""
    loads: Sequence[lowwater.RangeLoad] = ()
    """Cost of each range; empty without state, and for a version made by an earlier run."""
    tasks: int = 1
    workers: int = 1
    """Number of tasks that can run side by side when there are enough ranges."""
    unsent: Sequence[Unsent] = ()
    """Segments that the update keeps until another store has accepted them."""
    fixed: str = ""
    """Why the ranges of the state cannot be cut again; empty: they can, or there is no state."""
    partitions: int = SLOTS
    """Greatest number of tasks that can share the ranges."""
    arrived: lowwater.Arrived | None = None
    """Lateness of the rows read (of an injector with state: emitted); None without a budget."""
    untimed: int = 0
    """Number of rows without an event time."""


class Batch:
    """One micro-batch of a tracked stage.

    A batch is valid while the function runs: join the threads that use it before the function
    returns. A later call raises ValueError, and a call that is still running then ends the query.

    An error that a method raises ends the query, also when the function catches it; the next start
    runs the batch again. In a query of several stages the function receives the batch of the first
    stage, and :meth:`of` returns the others. Times are microseconds since the epoch, in UTC.
    """

    def __init__(
        self,
        entry: BatchEntry,
        keyed: Keyed,
        place: Place,
        log: BatchLog,
        destination: Destination,
        *,
        logged: Callable[[int], Layout | None],
        replayed: bool,
        previous_frontier: int,
        ordinal: int,
        swept: set[Location],
        probe: Callable[[str, int], None],
        writer: str = "",
        ground: Callable[[], Ground] = Ground,
        vouch: Callable[[int], bool] = lambda _: False,
        claimed: Callable[[], Claimed | None] = lambda: None,
        removals: dict[Path, Removal] | None = None,
        topics: dict[Path, KafkaOut] | None = None,
        stages: Mapping[str, Batch] | None = None,
        earlier: Sequence[str] = (),
        actions: Actions | None = None,
    ) -> None:
        self.id = entry.batch
        """Number of the batch; each batch has a greater one than the batch before."""
        self.replayed = replayed
        """True: an earlier run began this batch, with the same rows and the same watermark."""
        self._entry = entry
        self._keyed = keyed
        self._place = place
        self._log = log
        self._destination = destination
        self._logged = logged
        self._previous = previous_frontier
        self._frontier: int | None = None
        self._ordinal = ordinal
        self._swept = swept
        self._removals = {} if removals is None else removals
        self._topics = {} if topics is None else topics
        self._writer = writer or destination.computation
        self._ground = ground
        self._vouch = vouch
        self._claimed = claimed
        self._outcome = Outcome()
        self._probe = probe
        self._stages: Mapping[str, Batch] = {destination.computation: self} if stages is None else stages
        self._earlier = [self._stages[name] for name in earlier]
        self._counted_on = False
        self._actions = actions
        self._emitted: tuple[DataFrame, str] | None = None
        """The frame that stateful() returned and the metric on it; None without rows."""
        first = next(iter(self._stages.values()), self)
        # If two stages wrote into one directory, each would find the other's rows, and skip.
        self._output_folders: set[Location] = set() if first is self else first._output_folders
        self._tables: set[str] = set()
        """Tables to which this stage has written."""
        self._failures: list[BaseException] = [] if first is self else first._failures
        """Errors raised by methods of the batch, of any stage of the query."""
        self._calls: _Calls = _Calls() if first is self else first._calls

    @_ends_the_batch
    def of(self, name: str) -> Batch:
        """Return the batch of another stage of the query: same number and inputs, own state.

        Raises ValueError if the query has no stage of this name.
        """
        if name not in self._stages:
            msg = f"{name!r} is no stage of this query; it has {', '.join(self._stages)}"
            raise ValueError(msg)
        return self._stages[name]

    @property
    @_ends_the_batch
    def low(self) -> lowwater.Watermark:
        """The batch's low watermark: rows below it are complete, this batch included.

        It is durable and the same in every replay. An injector's value is its frontier, once
        it is set. A stage that reads an earlier stage of the query gets the minimum of what the
        earlier stages report after this batch. Ask for it after their :meth:`stateful` or
        :meth:`frontier` in this batch; otherwise the later of the two calls raises ValueError.
        """
        return lowwater.Watermark(self._low())

    @property
    def promised(self) -> lowwater.Watermark:
        """The inputs' low watermark before the batch, as last read: rows below it are late.

        The value is durable; :attr:`low` may be later, by what the batch itself reads. Downstream
        of Spark's own stateful operators it is at most the previous batch's Spark watermark less
        the ``retention``. MIN for an injector, and before Spark has a watermark.
        """
        return lowwater.Watermark(self._entry.promised)

    @property
    def now(self) -> int:
        """The driver's clock when the batch first began, microseconds since the epoch.

        The value is durable, the same in every replay, and never below the previous batch's.
        MIN in a replay of a batch that an older release began.
        """
        return self._entry.now

    @property
    def heuristic(self) -> Mapping[float, lowwater.Watermark]:
        """The heuristic watermarks by share, read together with :attr:`low`.

        Each is an estimate for that share of the records, not a promise.
        """
        return {share / 1_000_000: lowwater.Watermark(t) for share, t in self._entry.reading.heuristics.items()}

    @property
    def budget(self) -> Mapping[float, lowwater.Watermark]:
        """The watermarks of the inputs' lateness budgets by share, read together with :attr:`low`.

        In the long run at most about that share of the records arrives below it.
        """
        return {share / 1_000_000: lowwater.Watermark(t) for share, t in self._entry.reading.budgets.items()}

    @property
    def digest(self) -> str:
        """Digest of the batch's plan, the same in every replay. Another plan has another digest."""
        return self._entry.digest

    @property
    def checkpoint(self) -> str:
        """Identity of the query's checkpoint, the same for all of its runs and for no other one."""
        return identity(self._place.manifest.checkpoint)

    @property
    def claimed(self) -> Claimed | None:
        """The run's claim at this moment; None before the authority has acknowledged one.

        Only a store that compares it can refuse the writes of a former owner.
        """
        return self._claimed()

    @_ends_the_batch
    def newest_in(self, output: str) -> int | None:
        """Return the newest batch that :meth:`note_in` noted for an output, or None."""
        return remembered(self._place.manifest, self._writer, output)

    @_ends_the_batch
    def note_in(self, output: str) -> None:
        """Note durably that an output of another package, by its name, contains this batch."""
        remember(self._place.manifest, self._writer, output, self.id)

    @property
    def previous_frontier(self) -> lowwater.Watermark:
        """The frontier after the batch before; for injectors."""
        return lowwater.Watermark(self._previous)

    @_ends_the_batch
    def frontier(self, value: lowwater.EventTime) -> None:
        """Set an injector's frontier: no older row will be injected after this batch.

        Compute it from the batch's rows and :attr:`previous_frontier` only, never from a clock: a
        replay that computes another value raises CheckpointMismatch. Call it before
        :meth:`stateful`. Without a call the frontier stays. Raises ValueError when the value is
        lower than the previous one or is MAX (call :meth:`finish` for that).
        """
        micros = lowwater.Watermark.of(value).micros
        if micros == MAX:
            msg = "the frontier cannot be finished by its value; call batch.finish() to say that nothing will ever come"
            raise ValueError(msg)
        self._set_frontier(micros)

    def _set_computed_frontier(self, frontier: int) -> None:
        """Set the frontier that was computed from the rows, before the function runs."""
        self._frontier = frontier

    @_ends_the_batch
    def finish(self) -> None:
        """Finish an injector: no row at all will be injected after this batch."""
        self._set_frontier(MAX)

    def _set_frontier(self, micros: int) -> None:
        if not self._keyed.injector:
            msg = "this stage has inputs, so it has no frontier of its own; lws.injector(...) makes a stage that has"
            raise ValueError(msg)
        if self._keyed.bounds is not None:
            msg = (
                f"the frontier of {self._destination.computation} is told from its rows, as disorder= declares: it is batch.low. Leave batch.frontier() and "
                "batch.finish() out, or declare the injector without disorder= and tell the frontier yourself."
            )
            raise ValueError(msg)
        if micros < self._previous:
            msg = (
                f"the frontier went back from {lowwater.Watermark(self._previous)} to {lowwater.Watermark(micros)}; "
                "what was promised stays promised: pass max(value, batch.previous_frontier)"
            )
            raise ValueError(msg)
        if self._outcome.manifest is not None:
            msg = "tell the frontier before batch.stateful(): the state is updated with it"
            raise ValueError(msg)
        self._refuse_counted_on("tell the frontier")
        self._frontier = micros

    @_ends_the_batch
    def write(
        self,
        frame: DataFrame,
        path: str | os.PathLike[str],
        *,
        file_format: str = "parquet",
        keep: timedelta | None = None,
    ) -> bool:
        """Write rows as ``path/batch=N``, exactly once; False if an earlier run has written them.

        ``path`` is an absolute directory on a local or NFS file system, or on HDFS with its scheme
        (``hdfs://``), used by this checkpoint only. Readers set recursiveFileLookup. The rows are
        durable on return. Call it in every batch, after :meth:`stateful` and :meth:`frontier`: each
        batch notes how far the directory is complete (:func:`lowwater_spark.complete_through`).

        With ``keep``, batches older than that are removed once every tracked stage that has begun
        to read them has committed them, at most a thousand a call. Use it only for an output
        without other readers, and not on HDFS. By default no batch is removed.

        Raises CheckpointMismatch when the directory has, or had, a batch N of another checkpoint;
        ValueError for a negative ``keep`` and for a second write to the directory in this batch;
        Unsupported for a path with pattern characters, a directory of a Spark file sink, and
        Parquet in a session that truncates times to milliseconds.
        """
        check_windows(frame, self._keyed.window)
        named = self._output(frame, os.fspath(path))
        if keep is not None and keep < timedelta(0):
            msg = f"keep is the least time that a batch stays, so it must not be negative: {keep!r}"
            raise ValueError(msg)
        refuse_pattern(str(named), "The path")
        if keep is not None:
            fix = "Leave keep= out, and remove old batches outside of Spark, by age."
            named = local(named, "The removal of batches in", fix)
        folder = real(named)
        if folder in self._output_folders:
            msg = (
                f"batch {self.id} has been written to {folder} already; a second write would be skipped. Unite the rows first, and give each "
                "stage a directory of its own."
            )
            raise ValueError(msg)
        self._output_folders.add(folder)
        if folder not in self._swept:
            refuse_sink(named)
            sweep(folder, self._ordinal)
            mark_writer(folder, self._writer)
            refuse_sink(named)  # a sink that started meanwhile has left its mark by now, or finds ours
            if isinstance(folder, Path):
                self._refuse_removed(folder)
            self._swept.add(folder)
        digest = self._entry.digest
        mark = say(folder, self._writer, self.id, self._first(folder), self._standing())
        written = hand_over(frame, folder, self.id, digest, ordinal=self._ordinal, mark=mark, file_format=file_format)
        if not written and not self.replayed:
            msg = (
                f"{folder}/batch={self.id} exists, but no run of this checkpoint had begun batch {self.id}: the directory 'lowwater' of "
                "the checkpoint is older than its output, or another run of it goes on beside this one. Let only one run, and start it again; if that ends here too, restore both from one moment."
            )
            raise CheckpointMismatch(msg)
        if keep is not None and isinstance(folder, Path):
            self._remove(folder, keep)
        return written

    def _first(self, folder: Location) -> int:
        """Return the first batch written to a directory, noting it before the first write."""
        manifest, output = self._place.manifest, str(folder)
        first = remembered(manifest, self._writer, output)
        if first is None:
            first = first_of(folder, self.id)
            remember(manifest, self._writer, output, first)
        return first

    @staticmethod
    def _output(frame: DataFrame, path: str) -> Location:
        """Return the directory at a path.

        Raises ValueError for a relative path, Unsupported for a file system without renames.
        """
        named = SparkPath.of_text(path)
        if named.local is None:
            fix = "Write it with batch.write_table(), or with Spark's file sink by Stage.start(); or use a directory on one of these."
            return location_of(frame.sparkSession, path, "The path", fix)
        folder = Path(named.path)
        if not folder.is_absolute():
            msg = f"{path} is not an absolute path of a local directory or of HDFS. Pass an absolute path, or hdfs://... for HDFS"
            raise ValueError(msg)
        return folder

    @_ends_the_batch
    def write_kafka(
        self,
        frame: DataFrame,
        topic: str,
        *,
        options: Mapping[str, object],
        slots: int | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> bool:
        """Publish rows in a Kafka topic, exactly once for ``read_committed`` readers.

        Returns False if an earlier run has published them. On return all in-sync replicas have
        acknowledged the rows. The frame runs once, into files. Each of the ``slots`` then publishes
        its share in one transaction, together with a mark in the topic ``lowwater-marks-TOPIC``. A
        replay publishes what is missing from the same files, so the rows need not be repeatable.

        The columns are those of Spark's own sink without ``topic``: ``value`` and optionally
        ``key`` (string or binary), ``headers``, ``partition``. Rows of one partition of the frame
        keep their order. ``options`` are Kafka client options with Spark's prefix, at least
        ``kafka.bootstrap.servers``, as librdkafka supports them. The number of slots is fixed for
        the checkpoint; the default is the default parallelism, at most eight. ``path`` is an
        absolute directory on a file system that all executors mount, by default in the checkpoint;
        the staged files of the last three batches stay there.

        The topic must exist, and driver and executors need ``lowwater-spark[kafka]``. Cost: two
        jobs, the second with one task a slot, and about ten round trips a batch.

        Raises Unsupported for a missing topic, options that librdkafka refuses, and
        ``spark.speculation``; CheckpointMismatch when the topic was made anew or has another
        batch of this checkpoint than expected (a newer run goes on, the checkpoint is an older
        copy, or another checkpoint took the computation over); ValueError for a frame with other
        columns; OSError when Kafka does not answer.
        """
        check_windows(frame, self._keyed.window)
        folder = (_own_staging(self._place) if path is None else Path(path)) / topic
        if not folder.is_absolute():
            msg = f"{path} is not an absolute path of a local directory. Pass an absolute path"
            raise ValueError(msg)
        folder = Path(os.path.realpath(folder))
        if folder in self._output_folders:
            msg = f"batch {self.id} has been written to {topic} already; unite the rows first, and give each stage a path of its own"
            raise ValueError(msg)
        self._output_folders.add(folder)
        claim = self._ground().claim
        life = 0 if claim is None else claim.life
        output = self._topics.get(folder)
        if output is None or output.options != options or slots not in (None, output.slots):
            new_output = KafkaOut(self._place, folder, self._writer, topic, dict(options), self._ordinal)
            new_output.open(frame.sparkSession, self.id, slots, life)
            self._topics[folder] = output = new_output
        return output.write(frame, self.id, self._entry.digest, replayed=self.replayed, probe=self._probe, life=life)

    @_ends_the_batch
    def write_table(self, frame: DataFrame, table: str | os.PathLike[str]) -> bool:
        """Append rows to a Delta or Iceberg table as one version, exactly once.

        Returns False if an earlier run has appended them. ``table`` is an absolute path, or a name
        in one of the session's catalogs. A Delta table is created at an empty path, with the
        frame's columns; an Iceberg table must exist. Several computations may write to one table,
        and the rows need not be repeatable. The version is durable on return: local directories are
        synced, other stores keep what they have acknowledged.

        The version names this checkpoint, the batch and the digest of its plan, and says how far
        the table is complete (:func:`lowwater_spark.complete_through`): call this after
        :meth:`stateful` and :meth:`frontier`. Cost: one Spark write, and reads of the table's log.

        Raises CheckpointMismatch when the table has a batch N of another plan (as after the
        checkpoint was restored from an older copy), no longer shows a version it had, or has
        versions of a later life of the computation; Unsupported for a table whose log cannot show
        that; ValueError for a second write to the table in this batch. When another run of the
        checkpoint writes at the same time, Delta's own error or, for Iceberg, CheckpointMismatch.
        """
        check_windows(frame, self._keyed.window)
        spark = frame.sparkSession
        log = find(spark, os.fspath(table)) or DeltaLog(spark, path_of(spark, table))
        place = log.table().location
        if place in self._tables:
            msg = f"batch {self.id} has been written to {table} already; a second write would be skipped. Unite the rows first."
            raise ValueError(msg)
        self._tables.add(place)
        checkpoint = identity(self._place.manifest.checkpoint)
        mark = {
            "checkpoint": checkpoint,
            "run": self._ordinal,
            "batch": self.id,
            "digest": self._entry.digest,
        }
        app = app_id(self._writer, checkpoint)
        manifest = self._place.manifest
        noted = remembered(manifest, self._writer, place)
        newest = -1 if noted is None else noted
        standing = self._standing()
        if isinstance(log, IcebergLog):
            appended = iceberg_out.append(
                frame, log, app, self.id, mark, standing, replayed=self.replayed, newest=newest
            )
        else:
            appended = table_out.append(frame, log, app, self.id, mark, standing, replayed=self.replayed, newest=newest)
        if newest < self.id:
            remember(manifest, self._writer, place, self.id)
        return appended

    def _refuse_removed(self, folder: Path) -> None:
        """Refuse a batch that was never in this output, if later batches were read and removed."""
        through = removed(os.fspath(folder)).through
        if self.id <= through and not (folder / f"batch={self.id}").exists():
            msg = (
                f"{folder} has had the batches up to {through}, which were removed when all readers had read them, and not this batch {self.id}: the "
                "checkpoint is older than its output, or another one's. Use a directory of its own for each checkpoint; restore both from one moment."
            )
            raise CheckpointMismatch(msg)

    def _remove(self, folder: Path, keep: timedelta) -> None:
        """Remove the batches that no reader needs.

        A failed removal does not fail the batch: the files stay.
        """
        removal = self._removals.setdefault(folder, Removal(folder))
        removal.probe = lambda point: self._probe(point, self.id)
        try:
            # Spark starts a batch only after it has committed the one before.
            removal.remove(keep, self.id - 1, time.time())
        except (OSError, NotDurable) as error:
            logger.warning("stopped removing old batches from %s for now: %s", folder, error)

    @_ends_the_batch
    def stateful(
        self,
        frame: DataFrame,
        update: Update | SegmentUpdate,
        schema: StructType | str,
        path: str | os.PathLike[str] | None = None,
    ) -> DataFrame:
        """Update the state of every key range with the batch's rows, and return the emitted rows.

        ``update(handle, state, rows, low)`` runs in executor tasks, for every range in every batch,
        also without rows:

        * ``handle``: the range, 0 to ranges - 1;
        * ``state``: the pyarrow Table that it returned in the previous batch, None while the range
          has no state;
        * ``rows``: the range's rows of this batch, a pyarrow Table with the frame's columns;
        * ``low``: :attr:`low`.

        It returns ``(state, emitted, oldest, pending)``: the new state (the same object when it did
        not change), a Table with ``schema``'s columns or None, the oldest stamp that the range
        still holds or None, and the event times of the records that it still holds. It must depend
        on nothing else, because a replay calls it again. An object that keeps its state in segments
        (``lowwater_spark.track.segments``) can be passed instead.

        The new version is durable on return. It keeps the emitted rows only for this batch, so
        write the returned frame in the same batch; unread rows cause a warning. Call this once in
        every batch, with the same ``path`` (an absolute directory, by default in the checkpoint).
        Cost: one job over the rows, with a shuffle by key range.

        Raises StateLost; CheckpointMismatch; Unsupported for a path with pattern characters; and
        ValueError when a range holds a stamp below any that its rows can have (see ``stamp`` of
        :func:`lowwater_spark.stage`), or a record older than ``oldest``: one whose time is in
        ``pending``, or in a timestamp column of the state with the name of the stage's
        ``event_time``. If ``stamp`` is a window length, the start of the record's window counts.
        """
        from pyspark.sql.types import StructType

        if self._outcome.manifest is not None:
            msg = "batch.stateful() was called twice in this batch. Call it once, and keep what belongs together in one state"
            raise ValueError(msg)
        self._refuse_counted_on("call batch.stateful()")
        root = _own_state(self._place) if path is None else Path(path)
        if not root.is_absolute():
            msg = f"{path} is not an absolute path of a local directory"
            raise ValueError(msg)
        refuse_pattern(os.fspath(root), "The path")
        real = Path(os.path.realpath(root))
        if real in self._output_folders:
            msg = f"{root} is taken by another stage of this query; give each its own"
            raise ValueError(msg)
        self._output_folders.add(real)
        columns = schema if isinstance(schema, StructType) else cast(StructType, StructType.fromDDL(schema))
        self._fix_frontier()
        store = StateStore.opened(self._place, root, self._keyed.ranges, self.id, ordinal=self._ordinal)
        if root not in self._swept:
            zone = key_zone(frame, self._keyed.key)
            store.match(
                {
                    "key": key_text(frame, self._keyed.key),
                    **({"time zone": zone} if zone else {}),
                    "stamp": "event" if self._keyed.window is None else str(self._keyed.window),
                },
                {column.name: column.dataType.simpleString() for column in columns.fields},
                self.id,
            )
            store.sweep()
            self._swept.add(root)
        manifest, receipts = build_version(
            store,
            frame,
            update,
            columns,
            keyed=self._keyed,
            terms=Terms(self._entry.digest, self._low(), self._entry.promised, self._reference()),
            destination=self._destination,
            logged=self._logged,
        )
        self._probe("state", self.id)
        if not receipts:
            receipts = restage(frame.sparkSession, manifest, self._reference(), self._destination)
        partitions = partitions_of(frame.sparkSession)
        self._outcome = Outcome(
            receipts,
            manifest,
            manifest.finished,
            manifest.late,
            manifest.late_example,
            manifest.late_handle,
            loads_of(
                self._keyed.cut,
                [load for receipt in receipts for load in receipt.detail.get("loads", ())],
                manifest.ranges,
            )
            if any("loads" in receipt.detail for receipt in receipts)
            else (),
            self._keyed.cut.spread(partitions, pins=can_pin()),
            min(partitions, frame.sparkSession.sparkContext.defaultParallelism),
            update.unsent([segment for entry in manifest.ranges for segment in entry.segments])
            if isinstance(update, SendingUpdate)
            else (),
            fixed(update, [entry for entry in manifest.ranges if entry.state or entry.segmented]),
            partitions,
            manifest.arrived,
            manifest.untimed,
        )
        emitted = rows_of(frame.sparkSession, store, manifest, columns)
        # A replay may find all of its emitted rows in the sink already, and read none of them.
        if self._actions is not None and not self.replayed and any(entry.emitted for entry in manifest.ranges):
            emitted, metric = self._actions.watch(emitted)
            self._emitted = emitted, metric
        return emitted

    @property
    def noted(self) -> Sequence[Sequence[int]]:
        """The ``NextSegments.facts`` of each key range after this batch's update.

        They are the same in every replay. Raises ValueError before :meth:`stateful`.
        """
        if self._outcome.manifest is None:
            msg = "batch.noted is set by batch.stateful(): call that first"
            raise ValueError(msg)
        return [entry.facts for entry in self._outcome.manifest.ranges]

    def _low(self) -> int:
        if self._earlier:
            return min(batch._passed_on() for batch in self._earlier)
        if not self._keyed.injector:
            return self._entry.reading.low
        return self._previous if self._frontier is None else self._frontier

    def _passed_on(self) -> int:
        """Return the watermark that later stages of the query may rely on after this batch.

        From then on, calls that would lower it are refused.
        """
        manifest = self._outcome.manifest
        if manifest is None and StateStore.existing(self._place) is not None:
            msg = (
                f"what {self._destination.computation} still holds after batch {self.id} is not known yet: call its stateful() before the "
                "stages that read it ask for their low watermark"
            )
            raise ValueError(msg)
        self._counted_on = True
        self._fix_frontier()
        stamps = () if manifest is None else manifest.held
        return min([floor_stamp(self._low(), self._keyed.window), *(stamp for stamp in stamps if stamp is not None)])

    def _standing(self) -> Standing:
        """Return what an output of the batch may claim.

        Later calls that would lower it are refused.
        """
        ground, low = self._ground(), self._through()
        current = ground.current and ground.claim is not None and self._vouched(low)
        return Standing(low, ground.claim, current)

    def _vouched(self, low: int) -> bool:
        """Return whether an output may promise ``low``.

        From then on, no input below it can be added to the stage or to the stages of the query that
        it reads. A later stage's promise also rests on earlier stages, which have not reported yet.
        """
        return low == MIN or (all(batch._vouched(batch._through()) for batch in self._earlier) and self._vouch(low))

    def _through(self) -> int:
        """Return the lowest stamp that later batches of the stage can still write, as known now."""
        manifest, ground = self._outcome.manifest, self._ground()
        if manifest is None and StateStore.existing(self._place) is not None:
            return ground.stands  # stateful() has not yet decided what the stage will hold
        if self._keyed.injector and self._frontier is None and manifest is None:
            return self._previous  # the function may still set the frontier
        self._counted_on = True
        self._fix_frontier()
        low = min(batch._through() for batch in self._earlier) if self._earlier else self._low()
        stamps = () if manifest is None else manifest.held
        return min([floor_stamp(low, self._keyed.window), *(stamp for stamp in stamps if stamp is not None)])

    def _refuse_counted_on(self, what: str) -> None:
        if self._counted_on:
            msg = (
                f"a later stage of the query, or an output, says already what {self._destination.computation} holds after batch {self.id}; {what} "
                "before it"
            )
            raise ValueError(msg)

    def _refuse_failed(self) -> None:
        if self._failures:
            raise self._failures[0]

    def _reference(self) -> int:
        """Return the event time from which the ages of held records are counted."""
        times = [t for t in (self._low(), *self._entry.reading.heuristics.values()) if t != MAX]
        return max(times, default=MIN)

    def _fix_frontier(self) -> None:
        """Make the frontier durable before any output depends on it."""
        if self._keyed.injector:
            self._log.set_frontier(self.id, self._low())

    def _close(self, rows: Rows) -> Outcome:
        """End the batch: fix the frontier, and count the rows of a stage without state.

        Raises StateLost, an earlier error of one of the batch's methods, and ValueError when a
        method is still running. All later calls are refused.
        """
        running = self._calls.end()
        self._refuse_failed()
        if running:
            msg = (
                f"the function has returned while {', '.join(running)} of batch {self.id} still runs: the batch would be committed without what "
                "that does. Join the threads that use the batch before the function returns."
            )
            raise ValueError(msg)
        if self._outcome.manifest is None and StateStore.existing(self._place) is not None:
            msg = (
                f"batch {self.id} ended without a new version of the stage's state: call batch.stateful() in every batch, also an empty "
                "one, and let its errors pass. What the state holds would count as written otherwise."
            )
            raise StateLost(msg)
        if self._actions is not None and self._emitted is not None:
            self._actions.tell_unread(*self._emitted, self._destination.computation, self.id)
        self._fix_frontier()
        if self._outcome.manifest is None:
            self._outcome = self._count(rows)
        return self._outcome

    def _count(self, rows: Rows) -> Outcome:
        """Return the outcome of a stage that holds no rows after the batch."""
        if self._earlier:
            # The stage has read what the earlier ones finished; they have counted their late rows.
            return Outcome(finished=sum(batch._outcome.finished for batch in self._earlier))
        counted = rows.counted()
        if self is not next(iter(self._stages.values())):
            # The first stage has counted the late rows, by its own key.
            return Outcome(finished=counted.rows)
        return Outcome(
            finished=counted.rows,
            arrived=counted.arrived,
            late=counted.late,
            late_example=counted.late_example,
            late_handle=counted.late_handle,
            untimed=counted.untimed,
        )
