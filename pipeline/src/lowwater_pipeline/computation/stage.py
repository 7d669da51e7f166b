"""Run a computation as a tracked stage of Spark.

A batch's state, timers and productions are one version of the stage's state, and the version is
durable before the output. Its rows are the outbox: a production is stored before any reader gets it
(MillWheel 6.1.2, strong productions). A batch that runs again takes its rows from the version. If
there is no version yet, the batch computes the same rows, because the low watermark, the clock and
the input rows of its first run are durable. Needs ``lowwater-spark``, and pyarrow and numpy in the
executors.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import lowwater
import lowwater_spark as lws
from lowwater.watermark import MAX, MIN
from lowwater_pipeline.computation.computation import (
    SECOND,
    Computation,
    Input,
    Output,
    Strong,
    Weak,
    length_of,
)
from lowwater_pipeline.computation.delivery import (
    Delivery,
    Producer,
    Waiting,
    check_topics,
    dated,
    least_stamp,
    of_places,
    settings_of,
    waiting_of,
)
from lowwater_pipeline.computation.incoming import KEY, PLACE, TIME, Read, checked, records, united, waiting
from lowwater_pipeline.computation.keys import Changed, Form, Keys, Piece, PieceFacts, Refs, sorted_keys
from lowwater_pipeline.computation.once import UNDECIDABLE, UNDECIDABLE_OUTPUT, Ids, drop_copies
from lowwater_pipeline.computation.productions import OUTPUT, Outputs, column_of
from lowwater_pipeline.computation.turn import Kept, Production, Turns
from lowwater_spark.track.segments import Due, FreshSegment, NextSegments, Parent, Segment, Segments, Unsent
from lowwater_spark.track.state.update import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lowwater_pipeline.computation.incoming import Frames

    WriteOutputs = Callable[[Mapping[str, DataFrame], lws.Batch], object]
    """write(outputs, batch): outputs by name."""

__all__ = ["ComputationUpdate", "check_list", "check_whole", "pieces_of", "start", "unsent_rows", "written"]

_FORMAT: Final = 0x636F6D70_03
"""First fact of a range: names the code and the format that wrote its state."""

_KEYS, _OUTBOX, _IDS = 0, 1, 2
"""First fact of a segment: the kind of its rows."""

_ADAPTIVE: Final = "spark.sql.adaptive.enabled"

_COLLECT: Final = 200_000
"""Threshold of Python's cycle collector while turns run, in new objects."""


@contextlib.contextmanager
def _rare_collector() -> Iterator[None]:
    """Run the cycle collector seldom: turns make no cycles, and a run is as slow as all turns."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(max(_COLLECT, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def _planned_whole(session: SparkSession) -> Iterator[None]:
    """Switch adaptive planning off: it would run the shuffle of fixed tasks as a job of its own."""
    before = session.conf.get(_ADAPTIVE)
    session.conf.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        session.conf.set(_ADAPTIVE, str(before))


@dataclass(frozen=True, slots=True)
class ComputationUpdate:
    """The work of every key range with its rows of a batch; see ``Batch.stateful``.

    Spark sends it to the executors in the closure.
    """

    computation: Computation
    outputs: Outputs
    now: int = MIN
    """The clock of the batch, microseconds."""
    promised: int = MIN
    """The low watermark of the inputs before the batch, microseconds."""
    delivery: Delivery | None = None
    """Settings by which weak productions are sent; None when the computation has none."""
    named: Sequence[tuple[str, str]] = ()
    """See :class:`~lowwater_pipeline.computation.incoming.Read`."""

    def update_segments(
        self, before: Segments, rows: pa.Table, low: lowwater.Watermark
    ) -> tuple[NextSegments, pa.Table | None, lowwater.Watermark | None, list[Any]]:
        """Return the next segments, the rows to emit, and the least hold.

        The list of held records stays empty: a computation has no heuristic watermarks of its own.
        O((rows + keys that have a turn) x log keys), and the hooks.
        """
        return self.update_relaid([Parent(before)], rows, low)

    def update_relaid(
        self, parents: Sequence[Parent], rows: pa.Table, low: lowwater.Watermark
    ) -> tuple[NextSegments, pa.Table | None, lowwater.Watermark | None, list[Any]]:
        """Do what :meth:`update_segments` does for a range whose keys come from other ranges.

        The rows of a range that is taken in part are copied once.
        """
        rows = checked(self.computation, rows, self.named)
        keys = Keys.union([self._keys(parent, rows) for parent in parents])
        rows, aside, ids = drop_copies(self.computation, rows, ids_of(parents), self.promised)
        due = keys.due(low.micros, self.now)
        outbox = outbox_of(parents)
        outputs = {name: frozenset(self.outputs.columns[name]) for name in self.computation.outputs}
        turns = Turns(self.computation, outputs, low.micros, self.now)
        producers: Sequence[Producer] = ()
        if rows.num_rows or len(due.rows):
            with _rare_collector():
                changed, producers = self._turns(keys, rows, due, turns)
                keys = keys.changed(changed, low.micros, self.now)
        emitted, outbox = self._produced(turns, producers, aside, outbox)
        outbox = self._sent(outbox)
        after = written(keys, () if outbox is None else waiting_of(outbox, [*self.computation.outputs]), ids, self.now)
        holds = [
            hold for hold in (keys.least("hold"), None if outbox is None else least_stamp(outbox)) if hold is not None
        ]
        return after, emitted, lowwater.Watermark(min(holds)) if holds else None, []

    def _produced(
        self, turns: Turns, producers: Sequence[Producer], aside: Sequence[Production], outbox: pa.Table | None
    ) -> tuple[pa.Table | None, pa.Table | None]:
        """Return the rows that the batch emits, and the outbox with the new rows to send."""
        import pyarrow as pa

        sent = {} if self.delivery is None else self.delivery.topics
        emitted = self.outputs.table(
            [*aside, *(production for production in turns.productions if production[0] not in sent)]
        )
        fresh = None if self.delivery is None else self.delivery.messages(self.outputs, turns.productions, producers)
        both = [dated(table, self.now) for table in (outbox, fresh) if table is not None]
        return emitted, pa.concat_tables(both) if both else None

    def _sent(self, outbox: pa.Table | None) -> pa.Table | None:
        """Send an outbox; return the rows that no broker has acknowledged.

        Raises ValueError for rows of an output that is no longer sent.
        """
        if outbox is None:
            return None
        topics = {} if self.delivery is None else self.delivery.topics
        if lost := sorted(set(outbox["output"].unique().to_pylist()) - topics.keys()):
            msg = (
                f"rows of {self.computation.name}'s output {lost[0]} wait to be sent, and productions = Weak(...) does not say any more where to: let it name a topic for {lost[0]} until they are "
                "sent, that is until the low watermark moves on"
            )
            raise ValueError(msg)
        assert self.delivery is not None
        return self.delivery.send(outbox)

    def unsent(self, segments: Iterable[Segment]) -> list[Unsent]:
        """Return the rows that wait to be sent, in all ranges of a version. Nothing is read."""
        by_output: dict[str, list[tuple[int, Waiting]]] = {}
        outputs = [*self.computation.outputs]
        for segment in segments:
            # Segments of older releases have no facts about their outbox.
            if segment.facts[0] == _OUTBOX and len(segment.facts) > 1:
                facts = Waiting(*segment.facts[1:])
                by_output.setdefault(outputs[facts.output], []).append((segment.rows, facts))
        topics = {} if self.delivery is None else self.delivery.topics
        return [
            Unsent(
                sum(rows for rows, _ in own),
                min(waiting.oldest for _, waiting in own),
                min(waiting.since for _, waiting in own),
                f"the topic {topics[output]}" if output in topics else "a topic that Weak(...) does not name any more",
            )
            for output, own in by_output.items()
        ]

    def _turns(self, keys: Keys, rows: pa.Table, due: Refs, turns: Turns) -> tuple[Changed, list[Producer]]:
        """Give a turn to each key that has records, or a timer or waiting record that is due.

        Returns the changed keys, and the keys that have produced rows.
        """
        import pyarrow as pa

        places, names = np.asarray(rows[PLACE]), _whole(rows, KEY)
        times = np.asarray(rows[TIME])
        order, first = sorted_keys(places, names, times)
        starts = np.flatnonzero(first)
        groups = records(self.computation.inputs, rows, order, starts)
        at = order[starts]
        places, names = places[at], names.take(pa.array(at))
        with_records = keys.find(places, names)
        due = _without(due, with_records)
        idle = keys.rows(due)
        if idle is not None:
            places = np.concatenate([places, np.asarray(idle["place"])])
            names = pa.concat_arrays([names, idle["key"].chunk(0)])
        refs = Refs(np.concatenate([with_records.pieces, due.pieces]), np.concatenate([with_records.rows, due.rows]))
        entries: list[Kept] = [Kept()] * len(places)
        stored = np.flatnonzero(refs.pieces >= 0)
        table = keys.rows(Refs(refs.pieces[stored], refs.rows[stored]))
        if table is not None:
            for i, entry in zip(stored.tolist(), keys.form.entries(table), strict=True):
                entries[i] = entry
        changed: list[int] = []
        then: list[Kept] = []
        producers: list[Producer] = []
        produced, productions = 0, turns.productions
        for i, (key, before) in enumerate(zip(names.to_pylist(), entries, strict=True)):
            new = turns.take(key, before, groups[i] if i < len(groups) else ())
            if new != before:
                changed.append(i)
                then.append(new)
            if produced < len(productions):
                produced = len(productions)
                producers.append(Producer(key, int(places[i]), produced))
        index = pa.array(changed, pa.int64())
        table = keys.form.table(places[changed], names.take(index), then)
        return Changed(table, Refs(refs.pieces[changed], refs.rows[changed])), producers

    def _keys(self, parent: Parent, rows: pa.Table) -> Keys:
        """Return the keys that the batch before stored.

        Raises ValueError when other code stored this state, or when keys have another type now.
        """
        inputs = self.computation.inputs
        form = Form(
            _whole(rows, KEY).type,
            length_of(self.computation.stamp),
            waiting(inputs, rows) if self.computation.in_order else None,
            inputs[0].label if len(inputs) == 1 else None,
        )
        before = parent.segments
        if before.whole or (before.facts and before.facts[0] != _FORMAT):
            msg = (
                f"the state of this stage is not that of a computation: something else has run in it. Give {self.computation.name} a checkpoint of its own, or begin a new one, "
                "with adopt=True"
            )
            raise ValueError(msg)
        keys = Keys(form, pieces_of(before))
        for kind in keys.kinds():
            if kind != form.key:
                msg = f"the keys of {self.computation.name} are of {form.key} now, and those that are kept are of {kind}. Cast the key as it was, or begin a new checkpoint"
                raise ValueError(msg)
        keys, stored_type = keys.as_declared()
        if stored_type is not None:
            msg = (
                f"records of {self.computation.name} wait for the low watermark, and the frame has other columns now, or in_order= has changed: {stored_type} is kept, and {form.waiting} "
                "comes. Give the frame the columns that it had, in their order, and in_order= as it was, until none waits any more, or begin a new checkpoint"
            )
            raise ValueError(msg)
        return keys if parent.places is None else keys.within(*parent.places)


def pieces_of(before: Segments) -> list[Piece]:
    """Return the pieces of the keys of a range. Nothing is read."""
    return [
        Piece(segment.rows, PieceFacts(*segment.facts[1:]), partial(before.read, segment), segment)
        for segment in before.segments
        if segment.facts[0] == _KEYS
    ]


def outbox_of(parents: Sequence[Parent]) -> pa.Table | None:
    """Return the rows of a range that wait to be sent; None when there are none."""
    import pyarrow as pa

    tables = []
    for parent in parents:
        segments, places = parent.segments, parent.places
        waiting = [segments.read(segment) for segment in segments.segments if segment.facts[0] == _OUTBOX]
        tables += waiting if places is None else [of_places(table, *places) for table in waiting]
    rows = pa.concat_tables([dated(table, MIN) for table in tables]) if tables else None
    return rows if rows is not None and rows.num_rows else None


def unsent_rows(segments: Iterable[Segment]) -> int:
    """Return how many rows of a version wait to be sent. Nothing is read."""
    return sum(segment.rows for segment in segments if segment.facts[0] == _OUTBOX)


def ids_of(parents: Sequence[Parent]) -> Ids:
    """Return the ids of a range; after a cut each part has all. Nothing is read."""
    return Ids.of(
        [
            (
                parent.segments,
                [segment for segment in parent.segments.segments if segment.facts[0] == _IDS],
                parent.segments.facts[1:],
            )
            for parent in parents
        ]
    )


def written(
    keys: Keys, outbox: Sequence[tuple[pa.Table, Waiting]] = (), ids: Ids | None = None, now: int = MIN
) -> NextSegments:
    """Return keys, unsent rows and ids as the segments of a version.

    Pieces that are stored already stay as they are, with their present facts. ``now`` is the clock
    of the batch: unsent rows are sent again a second later.
    """
    ids = ids or Ids()
    segments = [
        FreshSegment(piece.read(), (_KEYS, *piece.facts))
        if piece.source is None
        else replace(piece.source, facts=(_KEYS, *piece.facts))
        for piece in keys.pieces
    ] + ids.segments(_IDS)
    wall = keys.least("wall")
    if outbox:
        segments += [FreshSegment(rows, (_OUTBOX, *waiting)) for rows, waiting in outbox]
        wall = min(now + SECOND, MAX if wall is None else wall)
    return NextSegments(segments, (_FORMAT, *ids.facts), Due(keys.least("due"), wall))


def _without(due: Refs, with_records: Refs) -> Refs:
    """Return the keys that are due and have no records."""
    if not len(due.rows):
        return due
    occupied = set(zip(with_records.pieces.tolist(), with_records.rows.tolist(), strict=True))
    idle = [i for i, ref in enumerate(zip(due.pieces.tolist(), due.rows.tolist(), strict=True)) if ref not in occupied]
    return Refs(due.pieces[idle], due.rows[idle])


def _whole(rows: pa.Table, name: str) -> pa.Array:
    """Return a column of keys as one array, cast to the type in which keys are stored."""
    import pyarrow as pa

    column = rows[name]
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        kind = pa.large_string()
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        kind = pa.large_binary()
    else:
        kind = pa.int64()
    if not column.num_chunks:
        return pa.array([], kind)
    array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    return array.cast(kind)


@dataclass(frozen=True, slots=True)
class _Part:
    """A computation in a query: what follows from its declaration, and its work in a batch."""

    computation: Computation
    columns: Mapping[str, Sequence[str]]
    """Column names of each output."""
    schema: StructType
    """Schema of all outputs together."""
    read: Read
    delivery: Delivery | None
    selections: Mapping[str, tuple[Column, Sequence[Column]]]
    """Filter and columns of each output that the driver writes: the filter picks its rows of what
    the tasks emit. Built once, because each needs calls of the JVM."""
    state: str | os.PathLike[str] | None = None

    @classmethod
    def of(cls, computation: Computation, frames: Frames, state: str | os.PathLike[str] | None) -> _Part:
        """Check a computation and its frames, and return its part.

        Raises ValueError and TypeError when the computation is incomplete or does not fit the
        frames; what :func:`check_topics` raises.
        """
        from pyspark.sql import functions as sf

        check_whole(computation)
        delivery = _delivery(computation)
        columns, schema = _outputs(computation)
        if delivery is not None:
            _check_sent(computation, delivery, arrow_schema(schema))
        read = united(computation, frames)
        selections = {
            output: (sf.col(OUTPUT) == output, [sf.col(f"`{column_of(output, name)}`").alias(name) for name in names])
            for output, names in columns.items()
            if delivery is None or output not in delivery.topics
        }
        return cls(computation, columns, schema, read, delivery, selections, state)

    @property
    def written(self) -> set[str]:
        """Names of the outputs that the driver writes: all that the tasks do not send."""
        return {*self.selections}

    def empty(self, output: str, spark: SparkSession) -> DataFrame:
        """Return a frame with the columns of an output and no rows."""
        from pyspark.sql.types import StructField, StructType

        fields = [StructField(name, self.schema[column_of(output, name)].dataType) for name in self.columns[output]]
        return spark.createDataFrame([], StructType(fields))

    def stage(self, **options: Any) -> lws.Stage:
        """Return the computation's stage at the authority."""
        computation, read = self.computation, self.read
        return lws.stage(
            read.frame.sparkSession,
            computation.name,
            inputs=tuple(dict.fromkeys(name for source in computation.inputs for name in source.names)),
            key=read.key,
            event_time=read.event_time,
            heuristics=(),
            stamp="event" if computation.stamp is None else computation.stamp,
            **options,
        )

    def run(self, rows: DataFrame, batch: lws.Batch) -> dict[str, DataFrame]:
        """Make the version of a batch, and return the frames that the driver writes, by output."""
        name, sent, more = self.computation.name, None, self.read.more
        if self.delivery is not None:
            sent = replace(self.delivery, batch=f"{batch.checkpoint}/{batch.id}/{batch.digest}")
        outputs = Outputs(name, self.columns, arrow_schema(self.schema))
        update = ComputationUpdate(self.computation, outputs, batch.now, batch.promised.micros, sent, self.read.named)
        with _planned_whole(rows.sparkSession):
            emitted = batch.stateful(rows.select("*", *more) if more else rows, update, self.schema, self.state)
        return {output: emitted.where(own).select(*names) for output, (own, names) in self.selections.items()}


def start(
    computation: Computation,
    frames: Frames,
    write: WriteOutputs | Mapping[str, WriteOutputs | None] | None,
    *,
    checkpoint: str | os.PathLike[str],
    then: Sequence[Computation] = (),
    ranges: int = 64,
    state: str | os.PathLike[str] | None = None,
    address: str | None = None,
    client: lowwater.Client | None = None,
    balance: bool = False,
    **options: Any,
) -> lws.TrackedQuery:
    """Run a computation as a tracked stage: one query over the streaming frames of its inputs.

    Args:
        computation: An instance of a class derived from :class:`Computation`.
        frames: The streaming frame that the computation reads. For several inputs one frame each,
            by the input's label: ``{"searches": FRAME, "clicks": FRAME}``. The computations that
            the inputs name must be the only writers of these frames.
        write: ``write(outputs, batch)``, called in each batch with a frame for each output, by
            name, even if it has no rows. Rows written by the batch's methods (``batch.write``,
            ``write_kafka``, ``write_table``) are written once. Rows that are not written in this
            call are lost. Outputs sent by ``productions = Weak(...)`` are not among them; None if
            all outputs are sent. With ``then`` a mapping: one function for each computation, by
            name.
        checkpoint: Spark's checkpoint, a directory of the computation's own.
        then: Computations *fused* into the same query. Each has one input, an output of an earlier
            one. In each batch it reads what that one has just produced, with the low watermark
            which that one reports after the batch; no files and no second batch are between them.
            A checkpoint keeps its computations. ``lowwater_pipeline.graph`` runs each as a query
            of its own.
        ranges: Number of key ranges. A checkpoint keeps its number.
        state: Directory for the state of the first computation: an absolute path on a local or NFS
            file system that all executors see. Default: in the checkpoint.
        address: See :func:`lowwater_spark.stage`.
        client: See :func:`lowwater_spark.stage`.
        balance: See :func:`lowwater_spark.stage`.
        options: Options of ``Stage.foreach_batch``: trigger, adopt, name.

    Raises ValueError and TypeError, naming what to change, when a computation is incomplete or does
    not fit its frame; what ``Stage.foreach_batch`` raises.
    """
    first = _Part.of(computation, frames, state)
    parts = {computation.name: first}
    feeds: dict[str, tuple[str, str]] = {}
    check_list("then", then)
    for fused in then:
        feeds[fused.name] = _feed(fused, parts)
        source, output = feeds[fused.name]
        empty = parts[source].empty(output, first.read.frame.sparkSession)
        parts[fused.name] = _Part.of(fused, empty, None)
    writes = _writes(write, parts, feeds)

    def run(rows: DataFrame, batch: lws.Batch) -> None:
        produced: dict[str, dict[str, DataFrame]] = {}
        for name, part in parts.items():
            read = rows if name not in feeds else produced[feeds[name][0]][feeds[name][1]]
            own = batch if name not in feeds else batch.of(name)
            produced[name] = part.run(read, own)
        # All parts are computed before the first output is written. A write leaves a mark of how
        # far its output is complete, which follows from what the parts hold after the batch.
        for name, call in writes.items():
            if call is not None:
                call(produced[name], batch if name not in feeds else batch.of(name))

    stages = [part.stage(ranges=ranges, address=address, client=client, balance=balance) for part in parts.values()]
    return stages[0].foreach_batch(first.read.frame, run, checkpoint=checkpoint, also=stages[1:], **options)


def _feed(computation: Computation, earlier: Mapping[str, _Part]) -> tuple[str, str]:
    """Return the computation and output that a fused one reads. Raises ValueError, TypeError."""
    check_whole(computation)
    name, inputs = computation.name, computation.inputs
    if name in earlier:
        msg = f"two computations of the query are called {name}: give one of them another name="
        raise ValueError(msg)
    if len(inputs) != 1 or len(inputs[0].names) != 1 or inputs[0].names[0] not in earlier:
        msg = f"{name} of then= reads {', '.join(read.label for read in inputs)}: in one query it has one Input, that names a computation before it, of {', '.join(earlier)}; else start it as a query of its own"
        raise ValueError(msg)
    source = inputs[0].names[0]
    part, declared = earlier[source], inputs[0]
    output, own = declared.output, [candidate for candidate in part.computation.outputs if candidate in part.written]
    if output is None and len(own) == 1:
        [output] = own
    if output is None or output not in part.written:
        msg = f"{name} of then= reads {source}, and does not say which of its outputs: add output= to the Input, one of {', '.join(sorted(part.written))}"
        raise ValueError(msg)
    declaration = part.computation.outputs.get(output)
    stamp = declaration.event_time if isinstance(declaration, Output) else None
    if stamp is None or stamp.lower() != declared.event_time.lower():
        msg = f"the input {declared.label} of {name} has event_time={declared.event_time!r}, and the output {output} of {source} is stamped by {stamp or 'nothing'}: rows would come below the low watermark; declare both the same"
        raise ValueError(msg)
    return source, output


def _writes(
    write: WriteOutputs | Mapping[str, WriteOutputs | None] | None,
    parts: Mapping[str, _Part],
    feeds: Mapping[str, tuple[str, str]],
) -> Mapping[str, WriteOutputs | None]:
    """Return the write function of each computation.

    Raises TypeError for an output that has no write function and no reader in the query.
    """
    if isinstance(write, Mapping):
        writes = write
    elif len(parts) == 1:
        writes = dict.fromkeys(parts, write)
    else:
        msg = f"with then= there is a write(outputs, batch) for each computation: pass write={{{', '.join(f'{name!r}: ...' for name in parts)}}}"
        raise TypeError(msg)
    if unknown := sorted(writes.keys() - parts.keys()):
        msg = f"write= names {', '.join(unknown)}, and the query has {', '.join(parts)}"
        raise TypeError(msg)
    for name, part in parts.items():
        unwritten = part.written - {output for source, output in feeds.values() if source == name}
        if unwritten and writes.get(name) is None:
            msg = f"the outputs {', '.join(sorted(unwritten))} of {name} have no writer: pass write(outputs, batch), or None if all outputs are sent by productions = Weak(...)"
            raise TypeError(msg)
    return writes


def check_list(argument: str, computations: object) -> None:
    """Raise TypeError for one computation, or a text, where a list of computations is meant."""
    if isinstance(computations, Computation | str):
        called = computations if isinstance(computations, str) else f"{type(computations).__name__}()"
        msg = f"{argument}={called} is no list: pass a list: {argument}=[{called}]"
        raise TypeError(msg)


def check_whole(computation: object) -> None:
    """Raise ValueError or TypeError for an object that is no computation, or an incomplete one."""
    if not isinstance(computation, Computation):
        msg = f"{computation!r} is no computation: pass an instance of a class derived from Computation, as start(Counts(), ...)"
        raise TypeError(msg)
    missing = [name for name in ("name", "inputs", "outputs") if not hasattr(computation, name)]
    if missing:
        msg = (
            f"{type(computation).__name__} does not say its {', '.join(missing)}: write {missing[0]} = ... in the class"
        )
        raise ValueError(msg)
    inputs: Any = computation.inputs
    if not isinstance(inputs, Sequence) or not all(isinstance(source, Input) for source in inputs):
        msg = f"inputs of {computation.name} is {inputs!r}: declare a list, inputs = [Input(...)]"
        raise TypeError(msg)
    if not inputs:
        msg = f"{computation.name} has no inputs: declare what it reads, inputs = [Input(...)]"
        raise ValueError(msg)
    if type(computation).process_record is Computation.process_record:
        msg = f"{computation.name} does not say what it does with a record: write process_record(self, ctx, record) in the class"
        raise ValueError(msg)
    for source in inputs:
        if source.once and source.id is None:
            msg = f"the input {source.label} of {computation.name} drops copies, and they are known by their ids: declare id="
            raise ValueError(msg)
        if source.slack < timedelta(0) or (source.slack and not source.once):
            msg = f"slack of the input {source.label} of {computation.name} is {source.slack!r}: it says for how much longer ids are remembered with once=True, so it is not negative, and goes with that"
            raise ValueError(msg)
    if not computation.outputs:
        msg = f'{computation.name} has no outputs: declare outputs = {{"NAME": "SCHEMA"}}, or no reader would see what it does'
        raise ValueError(msg)
    stamp: Any = computation.stamp
    if stamp is not None and (not isinstance(stamp, timedelta) or stamp <= timedelta(0)):
        msg = f"stamp of {computation.name} is {stamp!r}: declare the length of the windows, as stamp = timedelta(minutes=1), or None"
        raise TypeError(msg)
    _check_state(computation)
    from pyspark.serializers import CloudPickleSerializer

    try:
        CloudPickleSerializer().dumps(computation)
    except Exception as failure:
        msg = f"{computation.name} cannot travel to the executors: let its class and its fields hold plain values, and make what else it needs in process_record ({failure})"
        raise TypeError(msg) from failure


def _delivery(computation: Computation) -> Delivery | None:
    """Return the settings by which weak productions are sent; None for strong ones.

    Raises ValueError and TypeError for an incomplete declaration, and what :func:`check_topics`
    raises.
    """
    declared: Any = computation.productions
    if isinstance(declared, Strong):
        return None
    name = computation.name
    if not isinstance(declared, Weak):
        msg = f"productions of {name} is {declared!r}: declare Strong(), or Weak(topics={{OUTPUT: TOPIC}}, options={{...}})"
        raise TypeError(msg)
    unknown = sorted(declared.topics.keys() - computation.outputs.keys())
    if unknown or not declared.topics:
        msg = f"productions = Weak(...) of {name} sends {', '.join(unknown) or 'nothing'}, and the outputs are {', '.join(computation.outputs)}: give topics={{OUTPUT: TOPIC}} of them"
        raise ValueError(msg)
    if any(source.id is None for source in computation.inputs):
        msg = f"productions = Weak(...) of {name} sends rows again when a batch runs again, and without an id of the records they may be others then: declare id= of each Input"
        raise ValueError(msg)
    if declared.patience <= timedelta(0):
        msg = f"patience of {name} is {declared.patience!r}: it is how long a batch waits for acknowledgements, so it is positive"
        raise ValueError(msg)
    settings = settings_of(declared.options)
    check_topics(settings, sorted(declared.topics.values()))
    return Delivery(name, dict(declared.topics), settings, declared.patience.total_seconds(), "")


def _check_sent(computation: Computation, delivery: Delivery, schema: pa.Schema) -> None:
    """Raise ValueError for columns of sent outputs whose types have no common form in JSON."""
    import pyarrow.types as pt

    def lost(kind: pa.DataType) -> bool:
        if pt.is_map(kind) or pt.is_duration(kind) or pt.is_interval(kind):
            return True
        return any(lost(kind.field(i).type) for i in range(kind.num_fields))

    for field in schema:
        output, _, column = field.name.partition("/")
        if output in delivery.topics and lost(field.type):
            msg = f"column {column} of {computation.name}'s output {output} is of {field.type}, and rows are sent as JSON, which has no such values: declare a struct or a text, or leave {output} out of productions = Weak(...)"
            raise ValueError(msg)


def _check_state(computation: Computation) -> None:
    """Raise TypeError for a state that is no codec, or whose codec does not work."""
    codec: Any = computation.state
    if codec is None:
        return
    missing = [name for name in ("initial", "encode", "decode") if not callable(getattr(codec, name, None))]
    if missing or isinstance(codec, type):
        msg = f"state of {computation.name} is {codec!r}, which is no codec: declare state = Codec(TYPE), or an object with initial, encode and decode"
        raise TypeError(msg)
    try:
        data = codec.encode(codec.initial())
        if type(data) is bytes:
            codec.decode(data)
    except Exception as failure:
        msg = f"the codec of {computation.name} does not write and read the initial state ({failure}): mend its initial, encode and decode"
        raise TypeError(msg) from failure
    if type(data) is not bytes:
        msg = f"the codec of {computation.name} makes {type(data).__name__} of the initial state: its encode returns bytes"
        raise TypeError(msg)


def _outputs(computation: Computation) -> tuple[dict[str, list[str]], StructType]:
    """Return the column names of each output, and one schema of all outputs."""
    from pyspark.sql.types import StringType, StructType, TimestampType

    columns: dict[str, list[str]] = {}
    schema = StructType().add(OUTPUT, StringType())
    once = [source.label for source in computation.inputs if source.once]
    if once and UNDECIDABLE in computation.outputs:
        msg = f"{computation.name} has an output {UNDECIDABLE}, and its input {once[0]} drops copies, which makes one of this name: call yours otherwise"
        raise ValueError(msg)
    everything = {**computation.outputs, **({UNDECIDABLE: UNDECIDABLE_OUTPUT} if once else {})}
    for output, declaration in everything.items():
        declared = declaration.schema if isinstance(declaration, Output) else declaration
        if output.lower() in map(str.lower, columns) or "`" in output or "/" in output:
            msg = f"{computation.name} cannot have an output {output!r}: take a name without / and `, which no other one has, in small letters or large ones"
            raise ValueError(msg)
        struct: Any = StructType.fromDDL(declared)
        if struct.typeName() != "struct":
            msg = f'output {output} of {computation.name} is declared as {declared!r}, which names no columns: write them as "NAME TYPE, NAME TYPE"'
            raise ValueError(msg)
        names = [name.lower() for name in struct.fieldNames()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            msg = f"output {output} of {computation.name} declares {', '.join(twice)} twice: large and small letters are the same"
            raise ValueError(msg)
        times = [field.name for field in struct.fields if isinstance(field.dataType, TimestampType)]
        if not isinstance(declaration, Output):
            if times:
                msg = (
                    f"output {output} of {computation.name} has the timestamp {times[0]}, and does not say what is the event time of its rows: declare Output({declared!r}, "
                    f"event_time={times[0]!r}), or event_time=None if no consumer reads one from it"
                )
                raise ValueError(msg)
        elif declaration.event_time is not None and declaration.event_time.lower() not in map(str.lower, times):
            msg = f"output {output} of {computation.name} has no timestamp {declaration.event_time!r} for its event time; it has {', '.join(times) or 'none'}"
            raise ValueError(msg)
        columns[output] = struct.fieldNames()
        for field in struct.fields:
            schema.add(column_of(output, field.name), field.dataType)
    return columns, schema
