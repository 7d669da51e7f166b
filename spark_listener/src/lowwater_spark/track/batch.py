"""What the user's function gets beside the rows: the W of the batch, the hand-over, and the keyed state."""

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
from lowwater_spark.track.update import Update, build_version, can_pin, fixed, partitions_of, restage, rows_of

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
    """The calls of a batch's methods, of all stages of its query.

    Several threads of the function may make them.

    Without a lock, which the closure of an update could not take along: who calls notes it before
    asking whether the batch has ended, and who ends the batch asks for calls after that. So one of
    the two sees the other.
    """

    under_way: list[str] = field(default_factory=list)
    """The names of the methods that have not returned."""
    ended: bool = False

    def begin(self, method: str, batch: int) -> None:
        """Note a call. Raises ValueError when the batch has ended."""
        self.under_way.append(method)
        if self.ended:
            self.under_way.remove(method)
            msg = (
                f"{method} of batch {batch} was called after the function had returned: nobody waits for what it does. A batch is valid while the "
                "function runs; join the threads that use it before it returns."
            )
            raise ValueError(msg)

    def end(self) -> list[str]:
        """Take no further call. Returns the names of the methods that have not returned."""
        self.ended = True
        return list(self.under_way)


def _ends_the_batch(method: Callable[Concatenate[Batch, P], T]) -> Callable[Concatenate[Batch, P], T]:
    """Let the batch remember what a method of it raises, and raise it again from every later one and when the function has returned.

    A function that catches it would otherwise go on to a commit of a batch whose rows are nowhere. What it wrote afterwards would be found by
    the replay, and skipped. For the same reason no call goes on, or begins, when the function has returned.
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
    """Return where batches for Kafka are staged by default.

    Raises Unsupported for a checkpoint that is not local.
    """
    fix = "Pass batch.write_kafka() a path= on a file system that the driver and all executors mount; the checkpoint may stay."
    return local(place.home, "What is staged for Kafka in the checkpoint", fix) / "lowwater" / "kafka"


def _own_state(place: Place) -> Path:
    """Return where a stage has its state by default.

    Raises Unsupported for a checkpoint that is not local: its tasks write files there.
    """
    fix = "Pass batch.stateful() a path= on a file system that the driver and all executors mount; the checkpoint may stay."
    return local(place.home, "State in the checkpoint", fix) / "lowwater" / "state"


@dataclass(frozen=True, slots=True)
class Keyed:
    """How a stage's rows get their key range and their event time."""

    key: Sequence[str | Column]
    event_time: str | Column
    ranges: int
    """As declared."""
    injector: bool
    window: timedelta | None = None
    """The length of the windows by whose start the stage stamps what it emits; None when it stamps
    by event time."""
    bounds: Bounds | None = None
    """What an injector has declared of its source, from which its frontier is told; None: the
    function tells it."""
    balance: bool = False
    """Whether the driver asks for another layout when the loads of the ranges are uneven."""
    budgeted: bool = False
    """Whether it has a lateness budget, so that it is counted how late its rows are."""
    layout: lowwater.Layout = EQUAL
    """The layout that is followed; version 0: none, the key space is cut into equal parts."""
    window_start: timedelta = timedelta()
    """Time by which those windows are shifted, Spark's startTime. Only a sidecar declares one."""

    @property
    def cut(self) -> Cut:
        """How the key space is cut."""
        return Cut(self.ranges, self.layout)


@dataclass(frozen=True, slots=True)
class Ground:
    """What an output may say of its stage while a batch writes it, beside what the batch finds."""

    claim: Claim | None = None
    """None: the stage is not claimed, or not any more."""
    current: bool = True
    """Whether the batch's reading is of the inputs that are registered now."""
    stands: int = MIN
    """Where the stage stands by what is committed: the least of its ranges."""


class Claimed(NamedTuple):
    """The claim that a run writes under: what another store needs to refuse the writes of whoever does not own the stage any more."""

    server_token: str
    """The deployment of the authority."""
    computation: str
    """Its full name."""
    identity: str
    """The query's checkpoint, as the authority knows it."""
    incarnation: int
    sequencer: int


@dataclass(slots=True)
class Outcome:
    """What a batch leaves behind, for the driver's side of the protocol."""

    receipts: list[Receipt] = field(default_factory=list)
    manifest: Version | None = None
    """The state version it made; None for a stage without state."""
    finished: int = 0
    late: int = 0
    late_example: int | None = None
    """Event time of the oldest late row, microseconds."""
    late_handle: int | None = None
    """Its key range."""
    loads: Sequence[lowwater.RangeLoad] = ()
    """What each range has cost; of a stage without state, and of a version that was found, nothing
    is known."""
    tasks: int = 1
    """How many tasks have shared the ranges."""
    workers: int = 1
    """How many tasks run side by side, if there are as many ranges."""
    unsent: Sequence[Unsent] = ()
    """What the update keeps until another store has taken it."""
    fixed: str = ""
    """Why the ranges of its state cannot be cut otherwise; empty: they can, or there is none."""
    partitions: int = SLOTS
    """How many tasks it has at most."""
    arrived: lowwater.Arrived | None = None
    """How late the rows were that it has read, those of an injector with state that it has emitted;
    None when nobody asks."""
    untimed: int = 0
    """Number of the rows that had no event time."""


class Batch:
    """One micro-batch of a tracked stage.

    Valid while the function runs: threads that use it are joined before it returns.

    A method that is called later raises ValueError, and one that is still running then ends the
    query. What one of its methods raises ends the query, also when the function catches it: the
    batch is run again by the next start. In a query of several stages the function gets the batch
    of the first, and with :meth:`of` the others'.
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
        """Its number, growing by one."""
        self.replayed = replayed
        """Whether an earlier run had begun it: same rows, same watermark."""
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
        """What stateful() has returned, if there is any row in it, and the metric on it."""
        first = next(iter(self._stages.values()), self)
        # Two stages that write into one directory would skip each other's rows.
        self._taken: set[Location] = set() if first is self else first._taken
        self._tables: set[str] = set()
        """The tables that this stage has written to."""
        self._failures: list[BaseException] = [] if first is self else first._failures
        """What methods of the batch have raised, of any stage of the query."""
        self._calls: _Calls = _Calls() if first is self else first._calls

    @_ends_the_batch
    def of(self, name: str) -> Batch:
        """Return the batch of the stage of this name, of the same query: same number, same inputs, a state of its own.

        Raises ValueError for a name that is no stage of the query.
        """
        if name not in self._stages:
            msg = f"{name!r} is no stage of this query; it has {', '.join(self._stages)}"
            raise ValueError(msg)
        return self._stages[name]

    @property
    @_ends_the_batch
    def low(self) -> lowwater.Watermark:
        """The low watermark that the batch runs with: rows below it are complete, those of this batch included.

        Durable, and the same in every replay. For an injector it is the frontier, once the batch has told it. For a stage that reads
        an earlier one of the query it is what that one's reports after this batch fold to: ask for it when the earlier stage is done with
        the batch, that is after its :meth:`stateful` or :meth:`frontier`, or ValueError is raised by whichever comes second.
        """
        return lowwater.Watermark(self._low())

    @property
    def promised(self) -> lowwater.Watermark:
        """The low watermark that the inputs had reached before the batch, as far as it was read then: rows below it are late. Durable, as :attr:`low`, which may be later by what the batch reads itself.

        Behind what Spark holds in its own state it is also no more than what Spark had let go of: the watermark that the batch before ran with, less the ``retention``. MIN for an injector, and before
        Spark has a watermark.
        """
        return lowwater.Watermark(self._entry.promised)

    @property
    def now(self) -> int:
        """The driver's clock when the batch first began, microseconds since the epoch: durable, the same in every replay, and never below that of the batch before.

        MIN in a replay of a batch that an older release began.
        """
        return self._entry.now

    @property
    def heuristic(self) -> Mapping[float, lowwater.Watermark]:
        """The heuristic watermarks by share, read together with :attr:`low`.

        A share of records, not a promise.
        """
        return {share / 1_000_000: lowwater.Watermark(t) for share, t in self._entry.reading.heuristics.items()}

    @property
    def budget(self) -> Mapping[float, lowwater.Watermark]:
        """The watermarks of the inputs' lateness budgets by share, read together with :attr:`low`: at most about that share of their records comes behind it, in the long run."""
        return {share / 1_000_000: lowwater.Watermark(t) for share, t in self._entry.reading.budgets.items()}

    @property
    def digest(self) -> str:
        """What tells the batch from another one of its number: the digest of its plan, the same in every replay."""
        return self._entry.digest

    @property
    def checkpoint(self) -> str:
        """The identity of the query's checkpoint: no other one has it, and all runs of this one do."""
        return identity(self._place.manifest.checkpoint)

    @property
    def claimed(self) -> Claimed | None:
        """The claim that the run has at this moment; None before the authority has acknowledged one. Nobody but a store that compares it keeps a zombie from writing."""
        return self._claimed()

    @_ends_the_batch
    def newest_in(self, output: str) -> int | None:
        """Return the newest batch that was noted of an output by :meth:`note_in`, in this checkpoint; None when none was."""
        return remembered(self._place.manifest, self._writer, output)

    @_ends_the_batch
    def note_in(self, output: str) -> None:
        """Note, durably, that the batch stands in an output of another package, which has a name of its own."""
        remember(self._place.manifest, self._writer, output, self.id)

    @property
    def previous_frontier(self) -> lowwater.Watermark:
        """The frontier that the batch before has told; for injectors."""
        return lowwater.Watermark(self._previous)

    @_ends_the_batch
    def frontier(self, value: lowwater.EventTime) -> None:
        """Say, for an injector, that nothing older will be injected after this batch.

        Compute it from the batch's rows and :attr:`previous_frontier` alone, never from a clock: a
        replay must find the same, and CheckpointMismatch is raised when it does not. Call it before
        :meth:`stateful`. Not called: it stays where it was. Raises ValueError when it goes back, or
        says finished (that is what :meth:`finish` is for).
        """
        micros = lowwater.Watermark.of(value).micros
        if micros == MAX:
            msg = "the frontier cannot be finished by its value; call batch.finish() to say that nothing will ever come"
            raise ValueError(msg)
        self._set_frontier(micros)

    def _told(self, frontier: int) -> None:
        """Take the frontier that was told from the rows, before the function is called."""
        self._frontier = frontier

    @_ends_the_batch
    def finish(self) -> None:
        """Say, for an injector, that nothing will ever come after this batch."""
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
        """Hand rows over to the readers of a directory, as ``path/batch=N``, once and whole; False if a replay found it done.

        ``path`` is an absolute directory on a local or NFS file system, or one on HDFS with its scheme (``hdfs://``), of this checkpoint alone; readers set
        recursiveFileLookup. Durable when it returns. Tracked stages do not read from HDFS yet, so ``keep`` is refused there.

        With ``keep`` the files of batches that were handed over longer ago are removed once every reader has committed them, those of a thousand
        batches in one call at most. Readers are the tracked stages that have begun to read: give it only to an output that nobody else
        reads. By default nothing is ever removed.

        Each batch says how far the directory is complete: :func:`lowwater_spark.complete_through` reads it. So call it after :meth:`stateful` and :meth:`frontier`, and in every batch.

        Raises CheckpointMismatch when it holds, or has held, a batch N that this checkpoint has not written, ValueError for a negative ``keep``, and
        Unsupported for a path that a reader would take for a pattern, or in the output of a Spark file sink, and for Parquet in a session that cuts times to milliseconds.
        """
        check_windows(frame, self._keyed.window)
        named = self._output(frame, os.fspath(path))
        if keep is not None and keep < timedelta(0):
            msg = f"keep says how long batches stay at least, so it is not negative: {keep!r}"
            raise ValueError(msg)
        refuse_pattern(str(named), "The path")
        if keep is not None:
            fix = "Leave keep= out, and remove old batches outside of Spark, by age."
            named = local(named, "The removal of batches in", fix)
        folder = real(named)
        if folder in self._taken:
            msg = (
                f"batch {self.id} has been written to {folder} already; a second write would be skipped. Unite the rows first, and give each "
                "stage a directory of its own."
            )
            raise ValueError(msg)
        self._taken.add(folder)
        if folder not in self._swept:
            refuse_sink(named)
            sweep(folder, self._ordinal)
            mark_writer(folder, self._writer)
            refuse_sink(named)  # one that begins at the same time has left its mark by now, or finds ours
            if isinstance(folder, Path):
                self._refuse_removed(folder)
            self._swept.add(folder)
        digest = self._entry.digest
        said = say(folder, self._writer, self.id, self._first(folder), self._standing())
        made = hand_over(frame, folder, self.id, digest, ordinal=self._ordinal, said=said, file_format=file_format)
        if not made and not self.replayed:
            msg = (
                f"{folder}/batch={self.id} exists, but no run of this checkpoint had begun batch {self.id}: the directory 'lowwater' of "
                "the checkpoint is older than its output, or another run of it goes on beside this one. Let only one run, and start it again; if that ends here too, restore both from one moment."
            )
            raise CheckpointMismatch(msg)
        if keep is not None and isinstance(folder, Path):
            self._remove(folder, keep)
        return made

    def _first(self, folder: Location) -> int:
        """Return the first batch that was handed over into a directory: noted before there is any."""
        manifest, output = self._place.manifest, str(folder)
        first = remembered(manifest, self._writer, output)
        if first is None:
            first = first_of(folder, self.id)
            remember(manifest, self._writer, output, first)
        return first

    @staticmethod
    def _output(frame: DataFrame, path: str) -> Location:
        """Return the directory that a path names.

        Raises ValueError for one that is not absolute, and Unsupported for one where nothing can be
        renamed at once.
        """
        named = SparkPath.of_text(path)
        if named.local is None:
            fix = "Write it with batch.write_table(), or with Spark's file sink by Stage.start(); or use a directory on one of these."
            return location_of(frame.sparkSession, path, "The path", fix)
        folder = Path(named.path)
        if not folder.is_absolute():
            msg = f"{path} is not an absolute path of a local directory, nor one of HDFS; batch.write renames in it"
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
        """Publish rows in a topic of Kafka, each once for readers with ``read_committed``; False if a replay found it done.

        The frame runs once, into files; then so many ``slots`` publish the files, each in a transaction that also says so in the topic ``lowwater-marks-TOPIC``. A batch
        that is run again publishes what is missing from the same files, so its rows may be anything but repeatable. Acknowledged by all replicas in sync when it returns.

        The frame's columns are those of Spark's own sink, but for ``topic``: ``value`` and perhaps ``key`` (text or bytes), ``headers``, ``partition``. Rows of one partition of
        the frame keep their order. ``options`` are those of Kafka's client as Spark names them, ``kafka.bootstrap.servers`` at least, as far as librdkafka takes them. The number of slots
        stays as long as the checkpoint: by default as many as tasks run side by side, eight at most. ``path`` is an absolute directory on a local or NFS
        file system, which all executors see, for the files; by default in the checkpoint. Those of the last three batches stay.

        The topic must be there. Needs the package confluent-kafka on the driver and on the executors: ``lowwater-spark[kafka]``. Costs two jobs, of which the second one runs
        a task for each slot, and for a batch that is not the first of its run about ten round trips.

        Raises Unsupported for a topic that is not there, options that are not taken, and under ``spark.speculation``; CheckpointMismatch when the topic was made anew, and when it has
        another batch of this checkpoint than it should: a newer run goes on, or the checkpoint is older than what it has written, or when another checkpoint has taken the computation over; ValueError for another frame; OSError
        when Kafka does not answer.
        """
        check_windows(frame, self._keyed.window)
        folder = (_own_staging(self._place) if path is None else Path(path)) / topic
        if not folder.is_absolute():
            msg = f"{path} is not an absolute path of a local directory"
            raise ValueError(msg)
        folder = Path(os.path.realpath(folder))
        if folder in self._taken:
            msg = f"batch {self.id} has been written to {topic} already; unite the rows first, and give each stage a path of its own"
            raise ValueError(msg)
        self._taken.add(folder)
        claim = self._ground().claim
        life = 0 if claim is None else claim.life
        output = self._topics.get(folder)
        if output is None or output.options != options or slots not in (None, output.slots):
            made = KafkaOut(self._place, folder, self._writer, topic, dict(options), self._ordinal)
            made.open(frame.sparkSession, self.id, slots, life)
            self._topics[folder] = output = made
        return output.write(frame, self.id, self._entry.digest, replayed=self.replayed, probe=self._probe, life=life)

    @_ends_the_batch
    def write_table(self, frame: DataFrame, table: str | os.PathLike[str]) -> bool:
        """Append rows to a table of Delta or Iceberg, as one version of it, once and whole; False if a replay found it done.

        ``table`` is an absolute path, or a name in one of the session's catalogs. A path where no table is gets one of Delta with the frame's columns; a table of Iceberg must be
        there. Several computations may write into one table. The rows may be anything but repeatable. Durable when it returns, in local directories by syncing what was written, elsewhere as far as the store
        keeps what it has acknowledged.

        A version has this checkpoint's name, the batch's number and the digest of its plan. And it says how far the table is complete: :func:`lowwater_spark.complete_through` reads
        it, so call this after :meth:`stateful` and :meth:`frontier`. Raises CheckpointMismatch when the table has a batch N that was planned otherwise, as after the checkpoint was restored from
        an older copy, does not show any more what it has, or has versions of a later life of the computation; Unsupported for a table that could not tell; ValueError for a second
        write to it in the batch; and when another run of the checkpoint writes at the same time, what Delta raises, or for Iceberg CheckpointMismatch.
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
        newest = remembered(manifest, self._writer, place)
        known = -1 if newest is None else newest
        standing = self._standing()
        if isinstance(log, IcebergLog):
            made = iceberg_out.append(frame, log, app, self.id, mark, standing, replayed=self.replayed, newest=known)
        else:
            made = table_out.append(frame, log, app, self.id, mark, standing, replayed=self.replayed, newest=known)
        if known < self.id:
            remember(manifest, self._writer, place, self.id)
        return made

    def _refuse_removed(self, folder: Path) -> None:
        """Refuse a batch that this output has never had, of a number below those that readers have read and that were removed."""
        through = removed(os.fspath(folder)).through
        if self.id <= through and not (folder / f"batch={self.id}").exists():
            msg = (
                f"{folder} has had the batches up to {through}, which were removed when all readers had read them, and not this batch {self.id}: the "
                "checkpoint is older than its output, or another one's. Use a directory of its own for each checkpoint; restore both from one moment."
            )
            raise CheckpointMismatch(msg)

    def _remove(self, folder: Path, keep: timedelta) -> None:
        """Remove what nobody needs any more.

        The batch does not fail for what cannot be removed: it stays.
        """
        removal = self._removals.setdefault(folder, Removal(folder))
        removal.probe = lambda point: self._probe(point, self.id)
        try:
            # Spark runs a batch when the one before it is committed.
            removal.remove(keep, self.id - 1, time.time())
        except (OSError, NotDurable) as error:
            logger.warning("nothing more is removed from %s now: %s", folder, error)

    @_ends_the_batch
    def stateful(
        self,
        frame: DataFrame,
        update: Update | SegmentUpdate,
        schema: StructType | str,
        path: str | os.PathLike[str] | None = None,
    ) -> DataFrame:
        """Update the state of every key range with the batch's rows, and return the rows that the updates emit.

        ``update(handle, state, rows, low)`` is called for every range in every batch, also without rows, in executor tasks, as

        * ``handle``: the range, 0 to ranges - 1;
        * ``state``: the pyarrow Table it returned in the batch before, None for nothing;
        * ``rows``: the range's rows of this batch, a pyarrow Table with the frame's columns;
        * ``low``: :attr:`low`.

        It returns ``(state, emitted, oldest, pending)``: the new state (the same object when it did not change), a Table with
        ``schema``'s columns or None, the oldest stamp that the range still holds (None: it holds nothing), and the event
        times of the records it still holds. It must depend on nothing else: an interrupted batch calls it again. An
        object that keeps its state in segments (``lowwater_spark.track.segments``) may stand in its place.

        The new version is durable when this returns, and has the emitted rows only for this batch: write what is returned, in the same
        batch. A frame with rows that no action has read is told as a warning. Call it once per batch, in every batch, with the same ``path`` (an absolute
        directory; by default in the checkpoint). Raises StateLost, CheckpointMismatch, Unsupported for a path that Spark takes for a
        pattern, and ValueError when a range holds a stamp that its rows cannot have got (see ``stamp`` of :func:`lowwater_spark.stage`), or
        a record older than the ``oldest`` it returns: one whose time is in ``pending``, or in the state in a timestamp column of the name
        of the stage's ``event_time``. With ``stamp`` as the length of windows, the start of the record's window counts.
        """
        from pyspark.sql.types import StructType

        if self._outcome.manifest is not None:
            msg = "batch.stateful() was called before in this batch; keep what belongs together in one state"
            raise ValueError(msg)
        self._refuse_counted_on("call batch.stateful()")
        root = _own_state(self._place) if path is None else Path(path)
        if not root.is_absolute():
            msg = f"{path} is not an absolute path of a local directory"
            raise ValueError(msg)
        refuse_pattern(os.fspath(root), "The path")
        real = Path(os.path.realpath(root))
        if real in self._taken:
            msg = f"{root} is taken by another stage of this query; give each its own"
            raise ValueError(msg)
        self._taken.add(real)
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
            key=self._keyed.key,
            event_time=self._keyed.event_time,
            digest=self._entry.digest,
            low=self._low(),
            promised=self._entry.promised,
            reference=self._reference(),
            budgeted=self._keyed.budgeted,
            injector=self._keyed.injector,
            window=self._keyed.window,
            destination=self._destination,
            cut=self._keyed.cut,
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
                self._keyed.cut, [each for one in receipts for each in one.detail.get("loads", ())], manifest.ranges
            )
            if any("loads" in one.detail for one in receipts)
            else (),
            self._keyed.cut.spread(partitions, pins=can_pin()),
            min(partitions, frame.sparkSession.sparkContext.defaultParallelism),
            update.unsent([one for each in manifest.ranges for one in each.segments])
            if isinstance(update, SendingUpdate)
            else (),
            fixed(update, [each for each in manifest.ranges if each.state or each.segmented]),
            partitions,
            manifest.arrived,
            manifest.untimed,
        )
        emitted = rows_of(frame.sparkSession, store, manifest, columns)
        # A replay may find all that it emits in the sink already, and read nothing.
        if self._actions is not None and not self.replayed and any(entry.emitted for entry in manifest.ranges):
            emitted, metric = self._actions.watch(emitted)
            self._emitted = emitted, metric
        return emitted

    @property
    def noted(self) -> Sequence[Sequence[int]]:
        """What the update of this batch has noted of each key range beside its segments (``NextSegments.facts``); the same when the batch runs again.

        Raises ValueError before :meth:`stateful`.
        """
        if self._outcome.manifest is None:
            msg = "call batch.stateful() first: it is what notes something"
            raise ValueError(msg)
        return [each.facts for each in self._outcome.manifest.ranges]

    def _low(self) -> int:
        if self._earlier:
            return min(batch._passed_on() for batch in self._earlier)
        if not self._keyed.injector:
            return self._entry.reading.low
        return self._previous if self._frontier is None else self._frontier

    def _passed_on(self) -> int:
        """Return what a later stage of the query may count on after this batch.

        Nothing that would lower it may follow.
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
        held = () if manifest is None else manifest.held
        return min([floor_stamp(self._low(), self._keyed.window), *(stamp for stamp in held if stamp is not None)])

    def _standing(self) -> Standing:
        """Return what an output of the batch may say. What would lower it is refused afterwards."""
        ground, low = self._ground(), self._through()
        current = ground.current and ground.claim is not None and self._vouched(low)
        return Standing(low, ground.claim, current)

    def _vouched(self, low: int) -> bool:
        """Return whether an output may say ``low``.

        From then on no input that is below is added to the stage, or to one of the query that it
        reads.

        What a later stage says stands on what the earlier ones have not reported yet either.
        """
        return low == MIN or (all(batch._vouched(batch._through()) for batch in self._earlier) and self._vouch(low))

    def _through(self) -> int:
        """Return the lowest stamp that later batches of the stage can still write, as far as it is known by now."""
        manifest, ground = self._outcome.manifest, self._ground()
        if manifest is None and StateStore.existing(self._place) is not None:
            return ground.stands  # what it will hold after this batch is not known yet
        if self._keyed.injector and self._frontier is None and manifest is None:
            return self._previous  # it may still be told
        self._counted_on = True
        self._fix_frontier()
        low = min(batch._through() for batch in self._earlier) if self._earlier else self._low()
        held = () if manifest is None else manifest.held
        return min([floor_stamp(low, self._keyed.window), *(stamp for stamp in held if stamp is not None)])

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
        """Return the event time that the ages of held records count from."""
        known = [t for t in (self._low(), *self._entry.reading.heuristics.values()) if t != MAX]
        return max(known, default=MIN)

    def _fix_frontier(self) -> None:
        """Make the frontier durable before anything is made from it."""
        if self._keyed.injector:
            self._log.set_frontier(self.id, self._low())

    def _close(self, rows: Rows) -> Outcome:
        """End the batch: fix the frontier, and count the rows of a stage that keeps nothing.

        Raises StateLost, what a method of the batch has raised before, and ValueError when one
        still runs. From now on all are refused.
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
        """Return the outcome of a stage that has let everything go."""
        if self._earlier:
            # What it has read is what they have finished; what was late for them they have counted.
            return Outcome(finished=sum(batch._outcome.finished for batch in self._earlier))
        counted = rows.counted()
        if self is not next(iter(self._stages.values())):
            # The first stage has counted the late ones, by its own key.
            return Outcome(finished=counted.rows)
        return Outcome(
            finished=counted.rows,
            arrived=counted.arrived,
            late=counted.late,
            late_example=counted.late_example,
            late_handle=counted.late_handle,
            untimed=counted.untimed,
        )
