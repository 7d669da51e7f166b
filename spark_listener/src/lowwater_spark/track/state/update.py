"""Runs a user's update function over every key range of a batch, and builds the next state version.

The executor tasks receive the rows by key range, with one added column, the hash of the key: every
column costs a tenth of a second for a million rows. Each task sorts its rows by range
(:mod:`~lowwater_spark.track.state.spread`). Each range gets one seed row, so that its update runs
without input as well: a window closes because time has passed.
"""

from __future__ import annotations

import inspect
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

import lowwater
from lowwater import Arrived
from lowwater.core.lateness import EDGES
from lowwater.layout import Layout
from lowwater.watermark import MAX, MIN, all_to_micros
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.columns import columns_of, event_micros, map_in_arrow, own_name
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.track.facts import BatchFacts
from lowwater_spark.track.rows.counts import Counted
from lowwater_spark.track.rows.cut import Cut, least_of
from lowwater_spark.track.rows.keyed import floor_stamp
from lowwater_spark.track.rows.load import measured
from lowwater_spark.track.rows.ranges import SIGN
from lowwater_spark.track.segments import (
    MICROS,
    PLACE,
    NextSegments,
    Parent,
    RelaidUpdate,
    Segments,
    SegmentUpdate,
    write_segments,
)
from lowwater_spark.track.state.handover import publish_directory
from lowwater_spark.track.state.receipt import RECEIPT, Destination, Receipt, receipt_of, send_part
from lowwater_spark.track.state.spread import by_handle
from lowwater_spark.track.state.store import RangeEntry, StateStore, StateVersion
from lowwater_spark.track.state.tables import TABLE, read_table, split_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from lowwater_spark.track.rows.keyed import Keyed

__all__ = [
    "Update",
    "UpdateResult",
    "arrow_schema",
    "build_version",
    "can_pin",
    "fixed",
    "held_micros",
    "least_record",
    "lowest_stamp",
    "partitions_of",
    "send_again",
    "rows_of",
    "times_in",
]

UpdateResult = tuple["pa.Table | None", "pa.Table | None", "lowwater.EventTime | None", Iterable[Any]]
"""(new state, rows to emit, oldest stamp still held, event times of the records still held)."""

Update = Callable[[int, "pa.Table | None", "pa.Table", lowwater.Watermark], UpdateResult]
"""The function ``update(handle, state, rows, low)``: see :meth:`lowwater_spark.Batch.stateful`."""

_TIME: Final = "__lowwater_time"
"""Column of the event times; added only if no column of the rows has exactly these."""
_PLACE: Final = "__lowwater_place"
"""Column of places. A row's value is the signed hash of its key, a seed's the range's handle."""
_SEED: Final = "__lowwater_seed"
_ROW_GROUP: Final = 64 << 20
"""Bytes of emitted rows that are buffered before they are written."""


@dataclass(frozen=True, slots=True)
class Before:
    """The base of a range: its predecessor, or parts of several ranges if the cut has changed."""

    oldest: int | None = None
    """Oldest stamp that any parent holds."""
    records: int = 0
    parents: Sequence[tuple[RangeEntry, tuple[int, int] | None]] = ((RangeEntry(), None),)
    """The parents, each with the first and last place that the range receives; None: all places."""

    @property
    def unchanged(self) -> RangeEntry | None:
        """The same range of the version before; None if the cut has changed."""
        return self.parents[0][0] if len(self.parents) == 1 and self.parents[0][1] is None else None


@dataclass(frozen=True, slots=True)
class _Job:
    """The arguments of a task, pickled into its closure."""

    update: Update | SegmentUpdate
    destination: Destination
    folder: str
    base: str
    """Folder of the version before, on which the task builds."""
    before: Sequence[Before]
    places: Sequence[int]
    """Place where each range starts, and the end of the key space."""
    schema: Any
    facts: BatchFacts
    budgeted: bool
    injector: bool
    window: timedelta | None
    event_time: str
    """Name of the event time column, as declared; empty if the event time is an expression."""
    emitted_time: str
    """Name of the emitted timestamp column that is the event time; empty if there is none."""
    times: str
    """Name of the column with the rows' event times."""


def build_version(
    store: StateStore,
    frame: DataFrame,
    update: Update | SegmentUpdate,
    schema: StructType,
    *,
    keyed: Keyed,
    facts: BatchFacts,
    destination: Destination,
    logged: Callable[[int], Layout | None],
) -> tuple[StateVersion, list[Receipt]]:
    """Return version N of the state, and the receipts of the job that made it.

    The list of receipts is empty if an earlier run made the version. ``logged`` returns the layout
    that the log has for a batch, None if it does not know the batch. Raises CheckpointMismatch if
    the state is cut by another layout than the logged one.
    """
    batch, cut, event_time = facts.batch, keyed.cut, keyed.event_time
    before = store.before(batch)
    if (
        before is not None
        and not isinstance(update, SegmentUpdate)
        and any(entry.segmented and entry.facts[:1] != (TABLE,) for entry in before.ranges)
    ):
        msg = (
            f"the state in {store.root} is in segments, as lowwater_pipeline's computations and deduplication write it. A plain function cannot read them, and would lose "
            "that state. Run in this stage what wrote them, or begin a new checkpoint, with adopt=True."
        )
        raise CheckpointMismatch(msg)
    if before is not None and before.layout != cut.layout:
        store.check_layout(before, logged(batch - 1))
    start = _before(store, before, cut, update)
    declared_time = event_time if isinstance(event_time, str) else ""
    moments = [column.name for column in schema.fields if column.dataType.typeName() == "timestamp"]
    emitted_time = own_name(moments, declared_time) or ""
    if keyed.budgeted and keyed.injector and not emitted_time:
        msg = (
            f"an injector with a lateness budget counts the rows that it emits by their event time, and the rows of batch.stateful() have none: name the timestamp {event_time} "
            f"in its schema, which has {', '.join(schema.names)}, declare the event time by a column's name, or leave lateness_budget out"
        )
        raise ValueError(msg)
    receipts: list[Receipt] = []

    def fill(folder: Path) -> None:
        job = _Job(
            update=update,
            destination=destination,
            folder=os.fspath(folder),
            base=store.file(batch - 1, ""),
            before=start,
            places=cut.places,
            schema=arrow_schema(schema),
            facts=facts,
            budgeted=keyed.budgeted and facts.reference != MIN,
            injector=keyed.injector,
            window=keyed.window,
            event_time=declared_time,
            emitted_time=emitted_time,
            times=times_in(frame, event_time),
        )
        receipts.extend(_run(job, frame, keyed))
        _check_stamps(receipts, batch)
        _version_of(receipts, job, cut).write(folder)

    publish_directory(store.root, str(batch), facts.digest, fill, ordinal=store.ordinal)
    version = store.version(batch)
    assert version is not None
    store.check_layout(version, cut.layout)
    return version, receipts


def _before(store: StateStore, before: StateVersion | None, cut: Cut, update: Update | SegmentUpdate) -> list[Before]:
    """Return what each range builds on.

    Raises CheckpointMismatch if the cut has changed and the update's state cannot be cut again.
    """
    if before is None:
        return [Before()] * len(cut)
    if before.layout == cut.layout:
        return [Before(entry.oldest, entry.records, [(entry, None)]) for entry in before.ranges]
    shares = cut.shares(Cut(store.ranges, before.layout))
    entries = before.ranges
    reason = fixed(update, [range_shares for range_shares in entries if range_shares.state or range_shares.segmented])
    if reason:
        msg = f"the key ranges of batch {before.batch + 1} are cut otherwise than those of the state in {store.root}, and {reason}"
        raise CheckpointMismatch(msg)
    counted: set[int] = set()
    starts = []
    for range_shares, oldest in zip(shares, least_of(shares, before.held), strict=True):
        new = {share.parent for share in range_shares} - counted
        counted |= new
        parents = [(entries[share.parent], share.places) for share in range_shares]
        starts.append(Before(oldest, sum(entries[parent].records for parent in new), parents))
    return starts


def fixed(update: object, occupied: Sequence[RangeEntry] = ()) -> str:
    """Return why an update's ranges cannot be cut again, and what to do; empty if they can.

    ``occupied`` are the ranges that have state or records.
    """
    if isinstance(update, RelaidUpdate):
        if any(entry.records for entry in occupied):
            return "it holds pending records whose keys are unknown"
        return ""
    if not occupied:
        return ""
    what = (
        f"the state of {type(update).__name__} does not say"
        if isinstance(update, SegmentUpdate)
        else "a table of a function of yours does not say"
    )
    return f"{what} which key each row belongs to. Write the stage as a computation (lowwater_pipeline.computation), whose state can be cut, or leave its ranges as they are"


def times_in(frame: DataFrame, event_time: str | Column) -> str:
    """Return the name of the column with the event times: a column of the rows if possible."""
    from pyspark.sql.types import TimestampType

    if not isinstance(event_time, str) or not event_time.isidentifier() or event_time not in frame.columns:
        return _TIME
    if [column.lower() for column in frame.columns].count(event_time.lower()) > 1:
        return _TIME
    # For _TIME, _run() calls event_micros(), which refuses a column of another type. If the tasks
    # read such a column itself, they would take a local time (timestamp_ntz) for one in UTC.
    return event_time if isinstance(frame.schema[event_time].dataType, TimestampType) else _TIME


def _run(job: _Job, frame: DataFrame, keyed: Keyed) -> list[Receipt]:
    """Update all ranges in tasks, and return the receipts of the attempts that count."""
    from pyspark.sql import functions as sf

    session, cut = frame.sparkSession, keyed.cut
    if reserved := [name for name in frame.columns if name.lower() in (_TIME, _PLACE, _SEED)]:
        msg = f"the frame has a column {reserved[0]}, which lowwater adds by itself: rename it"
        raise ValueError(msg)
    timed = {_TIME: event_micros(frame, keyed.event_time)} if job.times == _TIME else {}
    placed = frame.withColumns({**timed, _PLACE: sf.xxhash64(*columns_of(frame, keyed.key))})
    own = _own_columns(session._jvm, cut, placed.schema.json())
    seeds = session.range(0, len(cut), 1, 1).select(*own.seed)
    rows = placed.select("*", own.row).union(seeds)
    tasks = cut.spread(partitions_of(session), pins=can_pin())
    # Before PySpark 4.1, which has repartitionById(), a row's task is a hash of its range's handle:
    # some tasks get several ranges, which run one after the other, and others none.
    spread = rows.repartitionById(tasks, own.task) if can_pin() else rows.repartition(tasks, own.handle)
    return [receipt_of(row) for row in map_in_arrow(spread, partial(_update_ranges, job), RECEIPT).collect()]


def _version_of(receipts: Sequence[Receipt], job: _Job, cut: Cut) -> StateVersion:
    details = [receipt.detail for receipt in receipts]
    entries = {handle: RangeEntry.of(columns) for detail in details for handle, *columns in detail["ranges"]}
    assert len(entries) == len(cut), "every range has a seed row, so every range was run"
    pending, late = _summed(details, "pending"), _summed(details, "arrived")
    late_example, late_handle = min(
        (detail["late_example"] for detail in details if detail["late_example"] is not None), default=(None, None)
    )
    return StateVersion(
        batch=job.facts.batch,
        digest=job.facts.digest,
        low=job.facts.reading.low,
        ranges=[entries[handle] for handle in range(len(cut))],
        pending=(sorted(pending), [pending[start] for start in sorted(pending)]),
        counted=Counted(
            sum(detail["finished"] for detail in details),
            sum(detail["late"] for detail in details),
            late_example,
            late_handle,
            Arrived(job.facts.reference, late) if job.budgeted else None,
            sum(detail["untimed"] for detail in details),
        ),
        layout=cut.layout,
    )


class _OwnColumns(NamedTuple):
    """Columns that a stage adds, the same in every batch."""

    row: Column
    """Mark of a row that is no seed."""
    seed: Sequence[Column]
    """All columns of a seed row."""
    handle: Column
    task: Column


@lru_cache(maxsize=64)
def _own_columns(_jvm: Any, cut: Cut, schema: str) -> _OwnColumns:
    """Return the columns for rows of a schema, given as JSON, whose last field is the place.

    Making them takes some 400 calls into the JVM, as long as a whole small batch. So they are
    cached while the JVM is the same.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StructType

    fields = StructType.fromJson(json.loads(schema)).fields[:-1]
    nulls = [sf.lit(None).cast(field.dataType).alias(field.name) for field in fields]
    place = sf.col(_PLACE)
    handle = sf.when(sf.col(_SEED), place.cast("int")).otherwise(cut.handle(place))
    return _OwnColumns(
        sf.lit(col=False).alias(_SEED),
        [*nulls, sf.col("id").alias(_PLACE), sf.lit(col=True).alias(_SEED)],
        handle,
        cut.task(handle),
    )


def partitions_of(session: Any) -> int:
    """Return the greatest number of tasks over which a batch is spread."""
    return int(session.conf.get("spark.sql.shuffle.partitions", "200") or 200)


def can_pin() -> bool:
    """Return whether a range can be assigned to a chosen task: from PySpark 4.1 on."""
    from pyspark.sql import DataFrame

    # hasattr() of a frame is also True for a column of that name, so the class is asked.
    return hasattr(DataFrame, "repartitionById")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Spark's Arrow schema of a schema, with timestamps in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # PySpark 4.0's function has no argument ``timezone``, and always uses UTC.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def _check_stamps(receipts: Sequence[Receipt], batch: int) -> None:
    """Raise ValueError if a range holds a stamp below its rows', or returned too late an oldest."""
    for handle, oldest, lowest in (early for receipt in receipts for early in receipt.detail["early"]):
        msg = (
            f"after batch {batch} range {handle} holds a stamp of {lowwater.Watermark(oldest)}, but by its earlier state and its rows' "
            f"event times the lowest possible is {lowwater.Watermark(lowest)}. Declare stamp= as the length of the tumbling windows, "
            "which start at whole multiples of it since 1970 in UTC, and return as oldest the oldest stamp that the range holds."
        )
        raise ValueError(msg)
    for handle, oldest, record, stamp in (untold for receipt in receipts for untold in receipt.detail["untold"]):
        returned = "None" if oldest is None else str(lowwater.Watermark(oldest))
        msg = (
            f"after batch {batch} range {handle} still holds a record of {lowwater.Watermark(record)}, which will be written with the stamp "
            f"{lowwater.Watermark(stamp)} or later, but its oldest stamp is said to be {returned}: the watermark would pass the record before it is "
            "written. Return as oldest the least of what is held: event times, or with stamp= the starts of their windows. A record is held as "
            "long as its time is in pending, or in the state in the column of the stage's event_time: give that column another name if "
            "its rows are never written."
        )
        raise ValueError(msg)


def _summed(details: Sequence[Mapping[str, Any]], name: str) -> dict[int, int]:
    """Return the sums of the tasks' counts, by the places that come with them."""
    sums: Counter[int] = Counter()
    for detail in details:
        sums.update(dict(zip(*detail[name], strict=True)))
    return dict(sums)


def _update_ranges(job: _Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Update the ranges of one task, then send them together. Runs in a Python worker."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    attempt = context.taskAttemptId()
    out = _Emitted(job, f"{attempt}.parquet")
    pending = lowwater.Histogram(job.facts.reference)
    entries: dict[int, RangeEntry] = {}
    rows_in = late = untimed = emitted_rows = 0
    examples: list[tuple[int, int]] = []
    loads: list[list[int]] = []
    early: list[tuple[int, int, int]] = []
    untold: list[tuple[int, int | None, int, int]] = []
    arrived = np.zeros(len(EDGES), dtype=np.int64)
    for handle, data in _rows_by_range(job, batches):
        times = data.column(job.times).cast(pa.int64())
        low_time = pc.min(times).as_py()
        if low_time is not None and low_time < job.facts.promised:
            late += pc.sum(pc.less(times, job.facts.promised)).as_py()
            examples.append((low_time, handle))
        untimed += times.null_count
        rows_in += data.num_rows
        bare = data.drop_columns([name for name in (_TIME, _PLACE, _SEED) if name in data.column_names])
        if isinstance(job.update, RelaidUpdate):
            bare = bare.append_column(PLACE, data.column(_PLACE)).append_column(MICROS, times)
        began = time.monotonic()
        entry, pending_times, emitted, state = _update_range(job, handle, bare, attempt)
        entry = replace(entry, emitted=out.add(emitted))
        micros = round((time.monotonic() - began) * 1_000_000)
        loads.append(measured(handle, data.column(_PLACE), (job.places[handle], job.places[handle + 1]), micros))
        emitted_rows += 0 if emitted is None else emitted.num_rows
        if job.budgeted:
            arrived += _by_lateness(job, times if not job.injector else _times_of(job, emitted))
        pending.add_many(pending_times)
        entries[handle] = entry
        lowest = lowest_stamp(job.before[handle].oldest, low_time, job.facts.promised, job.window)
        if entry.oldest is not None and entry.oldest < lowest:
            early.append((handle, entry.oldest, lowest))
        record = least_record(pending_times, state, job.event_time)
        stamp = floor_stamp(record, job.window)
        if (MAX if entry.oldest is None else entry.oldest) > stamp:
            untold.append((handle, entry.oldest, record, stamp))
    out.close()
    starts, counts = pending.columns()
    held_before = sum(job.before[handle].records for handle in entries)
    # ``finished`` counts the records that a stage held or read and no longer holds; none if it now
    # holds more, as a function that makes several of one row. Of an injector it counts the emitted
    # rows: the same record may come to it twice, first as a notice that it is outstanding and then
    # itself, and would count twice.
    finished = emitted_rows if job.injector else max(0, held_before + rows_in - pending.total)
    detail = {
        "ranges": [[handle, *entry.columns()] for handle, entry in entries.items()],
        "pending": [starts, counts],
        "arrived": [np.flatnonzero(arrived).tolist(), arrived[arrived > 0].tolist()],
        "finished": finished,
        "late": late,
        "untimed": untimed,
        "late_example": min(examples, default=None),
        "loads": loads,
        "early": early,
        "untold": untold,
    }
    if entries:
        oldest = [entry.oldest for entry in entries.values()]
        yield send_part(
            job.destination,
            job.facts.batch,
            detail,
            handles=list(entries),
            oldest=oldest,
            pending=pending,
            finished=finished,
        )


_EDGES: Final = np.array(EDGES[:-1], dtype=np.int64)


def _by_lateness(job: _Job, times: pa.ChunkedArray | None) -> NDArray[np.int64]:
    """Return the number of times in each lateness bucket. O(times log buckets).

    Counts as :func:`lowwater.core.lateness.buckets` does.
    """
    if times is None:
        return np.zeros(len(EDGES), dtype=np.int64)
    # Times more than 2**62 microseconds before the reference count as that late: for times near
    # MIN the subtraction below would exceed 64 bits, and a very late row would count as early.
    times_in_reach = np.maximum(times.drop_null().to_numpy(), job.facts.reference - 2**62)
    buckets = np.searchsorted(_EDGES, job.facts.reference - times_in_reach)
    return np.bincount(buckets, minlength=len(EDGES))


def _times_of(job: _Job, emitted: pa.Table | None) -> pa.ChunkedArray | None:
    """Return the event times of an injector's emitted rows; None if there are no rows."""
    import pyarrow as pa

    if emitted is None:
        return None
    return emitted.column(job.emitted_time).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())


class _Emitted:
    """One file for the rows that the ranges of a task emit: each file costs a sync and a lookup."""

    def __init__(self, job: _Job, name: str) -> None:
        self._schema = job.schema
        self._name = name
        self._path = Path(job.folder, name)
        self._writer: Any = None
        self._waiting: list[pa.Table] = []
        self._size = 0

    def add(self, emitted: pa.Table | None) -> str:
        """Add the rows of a range.

        Returns the file's name for the first range with rows, and an empty text for the others.
        """
        if emitted is None or not emitted.num_rows:
            return ""
        first = self._writer is None and not self._waiting
        self._waiting.append(emitted.select(self._schema.names).cast(self._schema))
        self._size += emitted.nbytes
        if self._size >= _ROW_GROUP:
            self._write()
        return self._name if first else ""

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(self._path, self._schema)
        self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._size = [], 0

    def close(self) -> None:
        """Write the buffered rows, and close the file."""
        if self._waiting:
            self._write()
        if self._writer is not None:
            self._writer.close()


def lowest_stamp(held_stamp: int | None, oldest_row: int | None, promised: int, window: timedelta | None) -> int:
    """Return the lowest stamp, microseconds, that a correct stage's range can hold after a batch.

    Before the batch the range was at its held stamp or at the lowest stamp of a row on time,
    whichever is less; only a late row can lower that.

    >>> lowest_stamp(None, 14_250_000, 14_100_000, timedelta(seconds=1))
    14000000
    """
    new = floor_stamp(promised if oldest_row is None else min(promised, oldest_row), window)
    return new if held_stamp is None else min(held_stamp, new)


def least_record(pending: Sequence[int], state: pa.Table | None, event_time: str) -> int:
    """Return the least event time of the records that a range holds, microseconds; MAX without any.

    O(pending + state). The held records are the pending ones and the rows of its state that have a
    timestamp with the event time's name. The name is looked up in the state, because a function
    may emit no event time.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    least = min(pending, default=MAX)
    name = None if state is None or not event_time else own_name(state.column_names, event_time)
    if state is None or name is None:
        return least
    column = state.column(name)
    if not pa.types.is_timestamp(column.type):
        return least
    micros = pc.min(column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())).as_py()
    return least if micros is None else min(least, micros)


def _update_range(
    job: _Job, handle: int, rows: pa.Table, attempt: int
) -> tuple[RangeEntry, list[int], pa.Table | None, pa.Table | None]:
    """Return a range's new entry, its held records, its emitted rows, and its state if a table."""
    before = job.before[handle].unchanged
    name = f"{handle:05}-{attempt}"
    entry = RangeEntry()
    new_state = None
    low = lowwater.Watermark(job.facts.reading.low)
    segments = Segments(job.base) if before is None else _segments(job, before)
    after: NextSegments | None
    if isinstance(job.update, RelaidUpdate) and before is None:
        parents = [Parent(_segments(job, parent), places) for parent, places in job.before[handle].parents]
        after, emitted, oldest, records = job.update.update_relaid(parents, rows, low)
    elif isinstance(job.update, SegmentUpdate):
        # If the cut has changed, ``before`` is None, and ``segments`` is empty. No state is lost:
        # for such an update _before() refuses another cut while a range has state.
        after, emitted, oldest, records = job.update.update_segments(segments, rows, low)
    else:
        state = read_table(segments)
        new_state, emitted, oldest, records = job.update(handle, state, rows, low)
        after = None
        if state is None or new_state is not state or not segments.whole:
            after = split_table(new_state, state, segments)
        else:  # the state is unchanged, and in one file as older releases wrote it: link the file
            entry = replace(entry, state=f"{name}.state")
            os.link(segments.whole, Path(job.folder, entry.state))
    if after is not None:
        written = write_segments(after, segments, job.folder, name)
        entry = replace(entry, segments=written, facts=tuple(after.facts), due=after.due)
    pending = held_micros(records)
    entry = replace(
        entry, oldest=None if oldest is None else lowwater.Watermark.of(oldest).micros, records=len(pending)
    )
    return entry, pending, emitted, new_state


def _segments(job: _Job, before: RangeEntry) -> Segments:
    whole = before.state and os.fspath(Path(job.base, before.state))
    return Segments(job.base, before.segments, before.facts, whole)


def held_micros(times: Any) -> list[int]:
    """Return the event times of records, any iterable or Arrow array, in microseconds; null is MAX.

    Spark's timestamps are microseconds of a known zone. A cast costs 0.1 us each, datetimes 4 us.
    """
    import pyarrow as pa

    if not isinstance(times, pa.Array | pa.ChunkedArray):
        return all_to_micros(times)
    kind: Any = times.type
    if pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None:
        times = times.cast(pa.int64())
    return all_to_micros(times.to_pylist())


def _rows_by_range(job: _Job, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Yield each range of a task with its rows; a range with only a seed has none."""
    import pyarrow as pa

    starts = np.array(job.places[1:-1], np.uint64)
    seeds: set[int] = set()
    schemas: list[pa.Schema] = []

    def rows_by_handle() -> Iterator[tuple[NDArray[np.uint16], pa.RecordBatch]]:
        for batch in batches:
            schemas[:] = [batch.schema]
            places, seed = batch.column(_PLACE).to_numpy(), np.asarray(batch.column(_SEED))
            if seed.any():
                seeds.update(places[seed].tolist())
                batch, places = batch.filter(pa.array(~seed)), places[~seed]
            unsigned = places.view(np.uint64) ^ np.uint64(SIGN)
            yield np.searchsorted(starts, unsigned, side="right").astype(np.uint16), batch

    for handle, parts in by_handle(rows_by_handle()):
        seeds.discard(handle)
        yield handle, pa.Table.from_batches(parts)
    for handle in sorted(seeds):
        yield handle, schemas[0].empty_table()


def send_again(session: Any, version: StateVersion, reference: int, destination: Destination) -> list[Receipt]:
    """Send again a version that an interrupted run has made, in one task; return its receipt."""
    send = partial(
        send_part,
        destination,
        version.batch,
        {},
        handles=range(len(version.ranges)),
        oldest=version.held,
        pending=lowwater.Histogram.from_columns(reference, *version.pending),
        finished=version.counted.finished,
    )

    def once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if sum(batch.num_rows for batch in batches):
            yield send()

    one = session.range(0, 1, 1, 1).mapInArrow(once, RECEIPT)
    return [receipt_of(row) for row in one.collect()]


def rows_of(session: Any, store: StateStore, version: StateVersion, schema: StructType) -> DataFrame:
    """Return the rows that a version's batch emitted, as a static DataFrame.

    The rows stay readable while the version is kept.
    """
    files = [store.file(version.batch, entry.emitted) for entry in version.ranges if entry.emitted]
    if not files:
        return _no_rows(session, schema)
    frame: DataFrame = session.read.schema(schema).parquet(*(SparkPath.of_local(file).pattern for file in files))
    return frame


def _no_rows(session: Any, schema: StructType) -> DataFrame:
    """Return a frame without rows, made by the JVM: Python's would cost a job to convert."""
    from pyspark.sql import DataFrame

    jvm = session._jsparkSession
    nothing = session._jvm.java.util.ArrayList()
    return DataFrame(jvm.createDataFrame(nothing, jvm.parseDataType(schema.json())), session)
