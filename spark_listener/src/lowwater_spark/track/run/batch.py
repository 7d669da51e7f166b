"""A batch: its watermark, its outputs and its state, for the user's function."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import lowwater
from lowwater.layout import SLOTS, Layout
from lowwater.watermark import MAX, MIN
from lowwater_spark.checkpoint.identity import identity
from lowwater_spark.checkpoint.location import local, refuse_pattern
from lowwater_spark.complete.mark import ClaimEpoch, Standing
from lowwater_spark.errors import StateLost
from lowwater_spark.track.facts import BatchFacts
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.output.outputs import OpenOutputs, OutputTurn, remember, remembered, write_once
from lowwater_spark.track.plan.checked import check_windows
from lowwater_spark.track.rows.counts import Counted
from lowwater_spark.track.rows.cut import EQUAL
from lowwater_spark.track.rows.keyed import floor_stamp
from lowwater_spark.track.rows.load import loads_of
from lowwater_spark.track.rows.ranges import key_text, key_zone
from lowwater_spark.track.run.progress import AfterBatch
from lowwater_spark.track.segments import SegmentUpdate, SendingUpdate, Unsent
from lowwater_spark.track.state.receipt import Receipt
from lowwater_spark.track.state.store import StageSection, StateStore, StateVersion
from lowwater_spark.track.state.update import (
    Update,
    build_version,
    can_pin,
    fixed,
    partitions_of,
    rows_of,
    send_again,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lowwater_spark.track.rows.counts import Actions, Rows
    from lowwater_spark.track.run.run import Run
    from lowwater_spark.track.run.stage_run import StageRun

__all__ = ["Batch", "Claimed", "MicroBatch", "Outcome"]

logger = logging.getLogger("lowwater.spark")

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class MicroBatch:
    """One micro-batch of a query: what the batches of its stages share.

    There is no lock for the running calls. A caller notes its call before it tests ``ended``, and
    the closer sets ``ended`` before it looks for calls, so one of the two always sees the other.
    """

    run: Run
    facts: BatchFacts
    """Facts of the query; those of a stage may have another reading and promise."""
    outputs: OpenOutputs
    """Outputs that the run has begun to write to."""
    probe: Callable[[str, int], None] = lambda _point, _batch: None
    actions: Actions | None = None
    """Watcher of the reads of emitted rows; None: they are not watched."""
    batches: dict[str, Batch] = field(default_factory=dict)
    """Batch of each stage, in the query's order."""
    taken: set[Hashable] = field(default_factory=set)
    """Outputs and folders of state that have been written to. If two stages wrote into one
    directory, each would find the other's rows, and skip."""
    failures: list[BaseException] = field(default_factory=list)
    """Errors raised by methods of the batches."""
    under_way: list[str] = field(default_factory=list)
    """Names of the methods that have not returned, on any thread."""
    ended: bool = False

    def refuse_failed(self) -> None:
        """Raise the first error that a method of the batches has raised, if there is one."""
        if self.failures:
            raise self.failures[0]


def _ends_the_batch(method: Callable[Concatenate[Batch, P], T]) -> Callable[Concatenate[Batch, P], T]:
    """Decorate a method so that an error it raises ends the batch.

    The batch keeps the error, and raises it again from every later call and after the function has
    returned. If a function could catch it and go on, Spark would commit a batch whose rows were
    not written, and a replay would find and skip what the function wrote afterwards. The decorator
    also refuses calls after the function has returned.
    """

    @functools.wraps(method)
    def call(batch: Batch, /, *args: P.args, **options: P.kwargs) -> T:
        shared, name = batch._shared, method.__name__
        shared.refuse_failed()
        shared.under_way.append(name)
        if shared.ended:
            shared.under_way.remove(name)
            msg = (
                f"{name} of batch {batch.id} was called after the function had returned, so its result would be lost. Call a batch's methods only while "
                "the function runs, and join the threads that use it before it returns."
            )
            raise ValueError(msg)
        try:
            return method(batch, *args, **options)
        except BaseException as failure:
            shared.failures.append(failure)
            raise
        finally:
            shared.under_way.remove(name)

    return call


def _own_state(section: StageSection) -> Path:
    """Return the default folder of a stage's state.

    Raises Unsupported for a checkpoint that is not local, because executor tasks write there.
    """
    fix = "Pass batch.stateful() a path= on a file system that the driver and all executors mount; the checkpoint may stay."
    return local(section.home, "State in the checkpoint", fix) / "lowwater" / "state"


class Claimed(NamedTuple):
    """The claim under which a run writes. Another store compares it to refuse a former owner."""

    server_token: str
    computation: str
    """Full name of the computation."""
    identity: str
    """Identity of the query's checkpoint, as the authority knows it."""
    incarnation: int
    sequencer: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a batch in one stage, which the driver prepares, commits and records."""

    after: AfterBatch = field(default_factory=AfterBatch)
    """The stage after the batch."""
    holding: str = ""
    """Why the authority has not prepared the batch, or not committed it; empty: it has."""
    receipts: Sequence[Receipt] = ()
    version: StateVersion | None = None
    """The version of the state that the batch made; None for a stage without state."""
    counted: Counted = field(default_factory=Counted)
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


class Batch:
    """One micro-batch of a tracked stage.

    A batch is valid while the function runs: join the threads that use it before the function
    returns. A later call raises ValueError, and a call that is still running then ends the query.

    An error that a method raises ends the query, also when the function catches it; the next start
    runs the batch again. In a query of several stages the function receives the batch of the first
    stage, and :meth:`of` returns the others. Times are microseconds since the epoch, in UTC.
    """

    def __init__(self, facts: BatchFacts, stage: StageRun, shared: MicroBatch) -> None:
        self.id = facts.batch
        """Number of the batch; each batch has a greater one than the batch before."""
        self.replayed = facts.replayed
        """True: an earlier run began this batch, with the same rows and the same watermark."""
        self._facts = facts
        self._run = shared.run
        self._stage = stage
        self._shared = shared
        self._keyed = stage.keyed
        self._section = stage.section
        self._destination = stage.authority.destination()
        self._previous = stage.progress.committed.reading.low
        self._frontier: int | None = None
        self._outcome = Outcome()
        self._earlier = [shared.batches[earlier.name] for earlier in stage.earlier]
        self._counted_on = False
        """True: a later stage or an output relies on what the stage holds, so that is final."""
        self._emitted: tuple[DataFrame, str] | None = None
        """The frame that stateful() returned and the metric on it; None without rows."""

    @_ends_the_batch
    def of(self, name: str) -> Batch:
        """Return the batch of another stage of the query: same number and inputs, own state.

        Raises ValueError if the query has no stage of this name.
        """
        if name not in self._shared.batches:
            msg = f"{name!r} is no stage of this query; it has {', '.join(self._shared.batches)}"
            raise ValueError(msg)
        return self._shared.batches[name]

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
        return lowwater.Watermark(self._facts.promised)

    @property
    def now(self) -> int:
        """The driver's clock when the batch first began, microseconds since the epoch.

        The value is durable, the same in every replay, and never below the previous batch's.
        MIN in a replay of a batch that an older release began.
        """
        return self._facts.now

    @property
    def heuristic(self) -> Mapping[float, lowwater.Watermark]:
        """The heuristic watermarks by share, read together with :attr:`low`.

        Each is an estimate for that share of the records, not a promise.
        """
        return {share / 1_000_000: lowwater.Watermark(t) for share, t in self._facts.reading.heuristics.items()}

    @property
    def budget(self) -> Mapping[float, lowwater.Watermark]:
        """The watermarks of the inputs' lateness budgets by share, read together with :attr:`low`.

        In the long run at most about that share of the records arrives below it.
        """
        return {share / 1_000_000: lowwater.Watermark(t) for share, t in self._facts.reading.budgets.items()}

    @property
    def digest(self) -> str:
        """Digest of the batch's plan, the same in every replay. Another plan has another digest."""
        return self._facts.digest

    @property
    def checkpoint(self) -> str:
        """Identity of the query's checkpoint, the same for all of its runs and for no other one."""
        return identity(self._section.manifest.checkpoint)

    @property
    def claimed(self) -> Claimed | None:
        """The run's claim at this moment; None before the authority has acknowledged one.

        Only a store that compares it can refuse the writes of a former owner.
        """
        with self._run.lock:
            authority, lease = self._stage.authority, self._stage.authority.lease
            if lease is None:
                return None
            return Claimed(
                authority.client.server_token,
                authority.full_name,
                authority.registration.identity,
                lease.incarnation,
                lease.sequencer,
            )

    @_ends_the_batch
    def newest_in(self, output: str) -> int | None:
        """Return the newest batch that :meth:`note_in` noted for an output, or None."""
        batch: int | None = remembered(self._section.manifest, self._stage.authority.full_name, output)
        return batch

    @_ends_the_batch
    def note_in(self, output: str) -> None:
        """Note durably that an output of another package, by its name, contains this batch."""
        remember(self._section.manifest, self._stage.authority.full_name, output, self.id)

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
        if self._outcome.version is not None:
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
        return self._write(frame, ["folder"], path, file_format=file_format, keep=keep)

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
        return self._write(frame, ["kafka"], topic, options=options, slots=slots, path=path)

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
        return self._write(frame, ["iceberg", "delta"], table)

    @_ends_the_batch
    def write_to(self, /, frame: DataFrame, kind: str, place: str | os.PathLike[str], **options: Any) -> bool:
        """Write rows to an output of any kind, exactly once.

        Returns False if an earlier run has written all of them, so that this call added nothing.

        ``kind`` is a name in ``lowwater_spark.track.output.outputs.KINDS``: ``folder``, ``kafka``,
        ``delta``, ``iceberg``, or one that was added there. ``options`` are those of the kind.
        Raises ValueError for an unknown kind, TypeError for an option that the kind has not, and
        as :meth:`write`. As there, call it after ``stateful()`` and ``frontier()``.
        """
        return self._write(frame, [kind], place, **options)

    def _write(self, frame: DataFrame, kinds: Sequence[str], place: str | os.PathLike[str], **options: Any) -> bool:
        check_windows(frame, self._keyed.window)
        shared, authority = self._shared, self._stage.authority
        turn = OutputTurn(
            self._facts,
            authority.registration.ordinal,
            authority.full_name,
            self._section,
            self._claim_epoch,
            self._standing,
            lambda point: shared.probe(point, self.id),
        )
        output = shared.outputs.open(
            kinds, frame, turn, os.fspath(place), options, window=self._keyed.window, taken=shared.taken
        )
        return write_once(output, frame, turn)

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

        if self._outcome.version is not None:
            msg = "batch.stateful() was called twice in this batch. Call it once, and keep what belongs together in one state"
            raise ValueError(msg)
        self._refuse_counted_on("call batch.stateful()")
        root = _own_state(self._section) if path is None else Path(path)
        if not root.is_absolute():
            msg = f"{path} is not an absolute path of a local directory"
            raise ValueError(msg)
        refuse_pattern(os.fspath(root), "The path")
        real = Path(os.path.realpath(root))
        if real in self._shared.taken:
            msg = f"{root} is taken by another stage of this query; give each its own"
            raise ValueError(msg)
        self._shared.taken.add(real)
        columns = schema if isinstance(schema, StructType) else cast(StructType, StructType.fromDDL(schema))
        self._fix_frontier()
        store = StateStore.opened(
            self._section, root, self._keyed.ranges, self.id, ordinal=self._stage.authority.registration.ordinal
        )
        if root not in self._shared.outputs.states:
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
            self._shared.outputs.states.add(root)
        version, receipts = build_version(
            store,
            frame,
            update,
            columns,
            keyed=self._keyed,
            facts=self._own_facts(),
            destination=self._destination,
            logged=self._logged,
        )
        self._shared.probe("state", self.id)
        if not receipts:
            receipts = send_again(frame.sparkSession, version, self._own_facts().reference, self._destination)
        self._outcome = self._outcome_of(frame.sparkSession, version, receipts, update)
        emitted = rows_of(frame.sparkSession, store, version, columns)
        # Watch whether an action reads the emitted rows, since unread rows are lost. Not in a
        # replay: its output may have the batch already, so that no action needs to read them.
        if self._shared.actions is not None and not self.replayed and any(entry.emitted for entry in version.ranges):
            emitted, metric = self._shared.actions.watch(emitted)
            self._emitted = emitted, metric
        return emitted

    def _outcome_of(
        self, session: SparkSession, version: StateVersion, receipts: Sequence[Receipt], update: Update | SegmentUpdate
    ) -> Outcome:
        """Return the outcome of a batch that has made a version of the state."""
        partitions = partitions_of(session)
        measures = [load for receipt in receipts for load in receipt.detail.get("loads", ())]
        sizes = [sum(segment.size for segment in entry.segments) for entry in version.ranges]
        return Outcome(
            receipts=receipts,
            version=version,
            counted=version.counted,
            loads=loads_of(self._keyed.cut, measures, sizes)
            if any("loads" in receipt.detail for receipt in receipts)
            else (),
            tasks=self._keyed.cut.spread(partitions, pins=can_pin()),
            workers=min(partitions, session.sparkContext.defaultParallelism),
            unsent=update.unsent([segment for entry in version.ranges for segment in entry.segments])
            if isinstance(update, SendingUpdate)
            else (),
            fixed=fixed(update, [entry for entry in version.ranges if entry.state or entry.segmented]),
            partitions=partitions,
        )

    @property
    def noted(self) -> Sequence[Sequence[int]]:
        """The ``NextSegments.facts`` of each key range after this batch's update.

        They are the same in every replay. Raises ValueError before :meth:`stateful`.
        """
        if self._outcome.version is None:
            msg = "batch.noted is set by batch.stateful(): call that first"
            raise ValueError(msg)
        return [entry.facts for entry in self._outcome.version.ranges]

    def _logged(self, batch: int) -> Layout | None:
        """Return the stage's layout in a batch; None if the log does not have the batch."""
        facts = self._run.stages[0].entries.read(batch)
        return None if facts is None else facts.layouts.get(self._section.name, EQUAL)

    def _low(self) -> int:
        if self._earlier:
            return min(batch._passed_on() for batch in self._earlier)
        if not self._keyed.injector:
            return self._facts.reading.low
        return self._previous if self._frontier is None else self._frontier

    def _passed_on(self) -> int:
        """Return the watermark that later stages of the query may rely on after this batch."""
        if self._outcome.version is None and StateStore.existing(self._section) is not None:
            msg = (
                f"what {self._destination.computation} still holds after batch {self.id} is not known yet: call its stateful() before the "
                "stages that read it ask for their low watermark"
            )
            raise ValueError(msg)
        return self._floored()

    def _claim_epoch(self) -> ClaimEpoch | None:
        """Return the stage's claim; None: it has not been claimed, or lost its claim."""
        with self._run.lock:
            lease = self._stage.authority.lease
            return None if lease is None or lease.lost else ClaimEpoch(lease.incarnation, lease.epoch)

    def _standing(self) -> Standing:
        """Return what an output of the batch may claim.

        Later calls that would lower it are refused.
        """
        stage, reader, reading = self._stage, self._run.reader, self._shared.facts.reading
        with self._run.lock:
            claim = self._claim_epoch()
            # ``current`` is False if an input of the query (``reader``) or of this stage was added
            # or reset since the batch's reading, which knows nothing of the new one: the output
            # would be marked as complete, though older rows of the new input may still come.
            current = reader is None or not reader.progress.is_outdated(reading)
            if current and reader is not None and stage.reads and reading.low != MIN:
                current = stage.translated(reading, reader).low != MIN
        low = self._through()
        return Standing(low, claim, current and claim is not None and self._vouched(low))

    def _vouched(self, low: int) -> bool:
        """Return whether an output may promise ``low``: the authority must acknowledge that first.

        From then on, no input below it can be added to the stage or to the stages of the query that
        it reads. A later stage's promise also rests on earlier stages, which have not reported yet.
        """
        if low == MIN:
            return True
        if not all(batch._vouched(batch._through()) for batch in self._earlier):
            return False
        stage, reader, reading = self._stage, self._run.reader, self._shared.facts.reading
        with self._run.lock:
            if stage.earlier or stage.keyed.injector:
                reading = stage.own(Reading(low))
            elif reader is not None:
                reading = stage.translated(reading, reader)
            return not stage.authority.vouch(low, reading)

    def _through(self) -> int:
        """Return the lowest stamp that later batches of the stage can still write, as known now."""
        version = self._outcome.version
        if version is None and StateStore.existing(self._section) is not None:
            # Before the batch's stateful() it is unknown what the stage will hold: only what it
            # reports at present, as of the batch before, is safe.
            with self._run.lock:
                return min(self._stage.progress.values(self._stage.progress.reading), default=MIN)
        if self._keyed.injector and self._frontier is None and version is None:
            return self._previous  # the function may still set the frontier, at this value or above
        return self._floored(min(batch._through() for batch in self._earlier) if self._earlier else None)

    def _floored(self, low: int | None = None) -> int:
        """Return the lowest stamp that the stage can still write, by ``low`` and what it holds.

        ``low`` is by default the batch's low watermark. Later calls that would lower the result are
        refused.
        """
        self._counted_on = True
        self._fix_frontier()
        low, version = self._low() if low is None else low, self._outcome.version
        stamps = () if version is None else version.held
        return min([floor_stamp(low, self._keyed.window), *(stamp for stamp in stamps if stamp is not None)])

    def _refuse_counted_on(self, what: str) -> None:
        if self._counted_on:
            msg = (
                f"a later stage of the query, or an output, says already what {self._destination.computation} holds after batch {self.id}; {what} "
                "before it"
            )
            raise ValueError(msg)

    def _own_facts(self) -> BatchFacts:
        """Return the facts by which the stage judges its rows: with its own low watermark.

        Each task gets them, and no task reads the layouts, which have a number for each key range.
        """
        reading = dataclasses.replace(self._facts.reading, low=self._low())
        return dataclasses.replace(self._facts, reading=reading, layouts={})

    def _fix_frontier(self) -> None:
        """Make the frontier durable before any output depends on it."""
        if self._keyed.injector:
            self._stage.entries.set_frontier(self.id, self._low())

    def _close(self, rows: Rows) -> Outcome:
        """End the batch: fix the frontier, and count the rows of a stage without state.

        Raises StateLost, an earlier error of one of the batch's methods, and ValueError when a
        method is still running. All later calls are refused.
        """
        self._shared.ended = True
        running = list(self._shared.under_way)
        self._shared.refuse_failed()
        if running:
            msg = (
                f"the function has returned while {', '.join(running)} of batch {self.id} still runs: the batch would be committed without what "
                "that does. Join the threads that use the batch before the function returns."
            )
            raise ValueError(msg)
        if self._outcome.version is None and StateStore.existing(self._section) is not None:
            msg = (
                f"batch {self.id} ended without a new version of the stage's state: call batch.stateful() in every batch, also an empty "
                "one, and let its errors pass. What the state holds would count as written otherwise."
            )
            raise StateLost(msg)
        if self._shared.actions is not None and self._emitted is not None:
            self._shared.actions.tell_unread(*self._emitted, self._destination.computation, self.id)
        self._fix_frontier()
        if self._outcome.version is None:
            # A stage without state. ``rows`` are those of the query's frame, made with the key and
            # the promise of the query's first stage: only that one counts late rows and lateness by
            # them, or each late row would count several times. The others count only finished rows;
            # a stage that reads earlier ones counts as many as those have finished.
            if self._earlier:
                counted = Counted(sum(batch._outcome.counted.finished for batch in self._earlier))
            elif self is not next(iter(self._shared.batches.values())):
                counted = Counted(rows.counted().finished)
            else:
                counted = rows.counted()
            self._outcome = Outcome(counted=counted)
        return self._outcome
