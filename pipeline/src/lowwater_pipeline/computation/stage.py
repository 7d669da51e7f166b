"""A computation in a tracked stage of Spark: state, timers and productions of a batch are one version of the stage's state, durable before the output.

The rows of a version are its outbox: what was produced is in it before anybody gets it (MillWheel 6.1.2, strong productions). A batch that runs again finds the version, and takes the rows from it; or
it finds none, and computes the same with the low watermark, the clock and the rows of its first run. It needs ``lowwater-spark`` and, in the executors, pyarrow and numpy.
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
from lowwater_spark.track.update import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lowwater_pipeline.computation.incoming import Frames

    WriteOutputs = Callable[[Mapping[str, DataFrame], lws.Batch], object]
    """write(outputs, batch): outputs by name."""

__all__ = ["ComputationUpdate", "check_whole", "pieces_of", "start", "unsent_rows", "written"]

_FORMAT: Final = 0x636F6D70_03
"""The first fact of a range: what has made it, and how."""

_KEYS, _OUTBOX, _IDS = 0, 1, 2
"""The first fact of a segment: what is in it."""

_ADAPTIVE: Final = "spark.sql.adaptive.enabled"

_COLLECT: Final = 200_000
"""So many more objects there are before the next look for cycles."""


@contextlib.contextmanager
def _rare_collector() -> Iterator[None]:
    """Look for cycles seldom in the batch of a range: a turn makes none, and to look for some among all its records takes as long as all turns. What the hooks leave is still found."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(max(_COLLECT, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def _planned_whole(session: SparkSession) -> Iterator[None]:
    """Have Spark plan a job as a whole: adaptively it runs the shuffle as a job of its own, and plans the rest anew, though the ranges' tasks are fixed. No code of the user's runs meanwhile."""
    before = session.conf.get(_ADAPTIVE)
    session.conf.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        session.conf.set(_ADAPTIVE, str(before))


@dataclass(frozen=True, slots=True)
class ComputationUpdate:
    """What every key range does with its rows of a batch; see ``Batch.stateful``.

    Travels in the closure.
    """

    computation: Computation
    outputs: Outputs
    now: int = MIN
    """The clock of the batch, microseconds."""
    promised: int = MIN
    """The low watermark of the inputs before the batch, microseconds."""
    delivery: Delivery | None = None
    """How weak productions are sent; None: there are none."""
    named: Sequence[tuple[str, str]] = ()
    """See :class:`~lowwater_pipeline.computation.incoming.Read`."""

    def update_segments(
        self, before: Segments, rows: pa.Table, low: lowwater.Watermark
    ) -> tuple[NextSegments, pa.Table | None, lowwater.Watermark | None, list[Any]]:
        """Return the keys after the batch, what was produced and not sent, and the least hold.

        The records held are not told: a computation has no heuristic watermarks of its own. O((rows
        + keys that have a turn) x log keys), and the hooks.
        """
        return self.update_relaid([Parent(before)], rows, low)

    def update_relaid(
        self, parents: Sequence[Parent], rows: pa.Table, low: lowwater.Watermark
    ) -> tuple[NextSegments, pa.Table | None, lowwater.Watermark | None, list[Any]]:
        """Return what :meth:`update_segments` does, of a range that has its keys from several ranges, or some of one; these are copied, once."""
        rows = checked(self.computation, rows, self.named)
        keys = Keys.union([self._keys(each, rows) for each in parents])
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
        """Return the rows that the batch emits, and the outbox with those that are to be sent."""
        import pyarrow as pa

        sent = {} if self.delivery is None else self.delivery.topics
        emitted = self.outputs.table([*aside, *(each for each in turns.productions if each[0] not in sent)])
        fresh = None if self.delivery is None else self.delivery.messages(self.outputs, turns.productions, producers)
        both = [dated(each, self.now) for each in (outbox, fresh) if each is not None]
        return emitted, pa.concat_tables(both) if both else None

    def _sent(self, outbox: pa.Table | None) -> pa.Table | None:
        """Send an outbox; return what is left of it.

        Raises ValueError for rows of an output that is not sent any more.
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
        """Return what waits to be sent, of all ranges of a version. Nothing is read."""
        found: dict[str, list[tuple[int, Waiting]]] = {}
        outputs = [*self.computation.outputs]
        for each in segments:
            if each.facts[0] == _OUTBOX and len(each.facts) > 1:  # older releases have noted nothing of it
                facts = Waiting(*each.facts[1:])
                found.setdefault(outputs[facts.output], []).append((each.rows, facts))
        topics = {} if self.delivery is None else self.delivery.topics
        return [
            Unsent(
                sum(rows for rows, _ in own),
                min(each.oldest for _, each in own),
                min(each.since for _, each in own),
                f"the topic {topics[output]}" if output in topics else "a topic that Weak(...) does not name any more",
            )
            for output, own in found.items()
        ]

    def _turns(self, keys: Keys, rows: pa.Table, due: Refs, turns: Turns) -> tuple[Changed, list[Producer]]:
        """Give each key with records, or with something due, its turn.

        Return what is to be kept, and who has produced.
        """
        import pyarrow as pa

        places, names = np.asarray(rows[PLACE]), _whole(rows, KEY)
        times = np.asarray(rows[TIME])
        order, first = sorted_keys(places, names, times)
        starts = np.flatnonzero(first)
        groups = records(self.computation.inputs, rows, order, starts)
        at = order[starts]
        places, names = places[at], names.take(pa.array(at))
        found = keys.find(places, names)
        due = _without(due, found)
        idle = keys.rows(due)
        if idle is not None:
            places = np.concatenate([places, np.asarray(idle["place"])])
            names = pa.concat_arrays([names, idle["key"].chunk(0)])
        refs = Refs(np.concatenate([found.pieces, due.pieces]), np.concatenate([found.rows, due.rows]))
        kept: list[Kept] = [Kept()] * len(places)
        known = np.flatnonzero(refs.pieces >= 0)
        table = keys.rows(Refs(refs.pieces[known], refs.rows[known]))
        if table is not None:
            for i, each in zip(known.tolist(), keys.form.kept(table), strict=True):
                kept[i] = each
        changed: list[int] = []
        then: list[Kept] = []
        producers: list[Producer] = []
        made, productions = 0, turns.productions
        for i, (key, each) in enumerate(zip(names.to_pylist(), kept, strict=True)):
            new = turns.take(key, each, groups[i] if i < len(groups) else ())
            if new != each:
                changed.append(i)
                then.append(new)
            if made < len(productions):
                made = len(productions)
                producers.append(Producer(key, int(places[i]), made))
        index = pa.array(changed, pa.int64())
        table = keys.form.table(places[changed], names.take(index), then)
        return Changed(table, Refs(refs.pieces[changed], refs.rows[changed])), producers

    def _keys(self, parent: Parent, rows: pa.Table) -> Keys:
        """Return the keys that the batch before has left there.

        Raises ValueError when something else has left them, or they are of another form.
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
        keys, kept = keys.as_declared()
        if kept is not None:
            msg = (
                f"records of {self.computation.name} wait for the low watermark, and the frame has other columns now, or in_order= has changed: {kept} is kept, and {form.waiting} "
                "comes. Give the frame the columns that it had, in their order, and in_order= as it was, until none waits any more, or begin a new checkpoint"
            )
            raise ValueError(msg)
        return keys if parent.places is None else keys.within(*parent.places)


def pieces_of(before: Segments) -> list[Piece]:
    """Return the pieces of the keys of a range. Nothing is read."""
    return [
        Piece(each.rows, PieceFacts(*each.facts[1:]), partial(before.read, each), each)
        for each in before.segments
        if each.facts[0] == _KEYS
    ]


def outbox_of(parents: Sequence[Parent]) -> pa.Table | None:
    """Return the rows of a range that wait to be sent; None when none does."""
    import pyarrow as pa

    found = []
    for parent in parents:
        segments, places = parent.segments, parent.places
        waiting = [segments.read(each) for each in segments.segments if each.facts[0] == _OUTBOX]
        found += waiting if places is None else [of_places(each, *places) for each in waiting]
    rows = pa.concat_tables([dated(each, MIN) for each in found]) if found else None
    return rows if rows is not None and rows.num_rows else None


def unsent_rows(segments: Iterable[Segment]) -> int:
    """Return how many rows of a version wait to be sent. Nothing is read."""
    return sum(each.rows for each in segments if each.facts[0] == _OUTBOX)


def ids_of(parents: Sequence[Parent]) -> Ids:
    """Return the ids that a range remembers; of a range that was cut each part has all.

    Nothing is read.
    """
    return Ids.of(
        [
            (each.segments, [one for one in each.segments.segments if one.facts[0] == _IDS], each.segments.facts[1:])
            for each in parents
        ]
    )


def written(
    keys: Keys, outbox: Sequence[tuple[pa.Table, Waiting]] = (), ids: Ids | None = None, now: int = MIN
) -> NextSegments:
    """Return keys, rows that wait to be sent, and ids, as the segments of a version: pieces that were there stay, with what is known of them now.

    ``now`` is the clock of the batch: what waits is sent again a second later.
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


def _without(due: Refs, found: Refs) -> Refs:
    """Return the keys that are due and have no records."""
    if not len(due.rows):
        return due
    taken = set(zip(found.pieces.tolist(), found.rows.tolist(), strict=True))
    left = [i for i, each in enumerate(zip(due.pieces.tolist(), due.rows.tolist(), strict=True)) if each not in taken]
    return Refs(due.pieces[left], due.rows[left])


def _whole(rows: pa.Table, name: str) -> pa.Array:
    """Return a column of keys in one array, of the type that keys of its kind are kept in."""
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
    """A computation in a query: what is derived of its declaration, and what it does in a batch."""

    computation: Computation
    columns: Mapping[str, Sequence[str]]
    """Of each output."""
    schema: StructType
    """Of all outputs."""
    read: Read
    delivery: Delivery | None
    wanted: Mapping[str, tuple[Column, Sequence[Column]]]
    """Of each output that the tasks do not send, which emitted rows are its, and its columns. Made
    once: each takes some calls of the JVM."""
    state: str | os.PathLike[str] | None = None

    @classmethod
    def of(cls, computation: Computation, frames: Frames, state: str | os.PathLike[str] | None) -> _Part:
        """Return it whole.

        Raises ValueError and TypeError for one that is not, or does not go with its frames; what
        :func:`check_topics` raises.
        """
        from pyspark.sql import functions as sf

        check_whole(computation)
        delivery = _delivery(computation)
        columns, schema = _outputs(computation)
        if delivery is not None:
            _check_sent(computation, delivery, arrow_schema(schema))
        read = united(computation, frames)
        wanted = {
            output: (sf.col(OUTPUT) == output, [sf.col(f"`{column_of(output, name)}`").alias(name) for name in names])
            for output, names in columns.items()
            if delivery is None or output not in delivery.topics
        }
        return cls(computation, columns, schema, read, delivery, wanted, state)

    @property
    def written(self) -> set[str]:
        """The outputs that its tasks do not send."""
        return {*self.wanted}

    def empty(self, output: str, spark: SparkSession) -> DataFrame:
        """Return a frame with the columns of an output, and no row."""
        from pyspark.sql.types import StructField, StructType

        fields = [StructField(name, self.schema[column_of(output, name)].dataType) for name in self.columns[output]]
        return spark.createDataFrame([], StructType(fields))

    def stage(self, **options: Any) -> lws.Stage:
        """Return the stage that it is at the authority."""
        computation, read = self.computation, self.read
        return lws.stage(
            read.frame.sparkSession,
            computation.name,
            inputs=tuple(dict.fromkeys(name for each in computation.inputs for name in each.names)),
            key=read.key,
            event_time=read.event_time,
            heuristics=(),
            stamp="event" if computation.stamp is None else computation.stamp,
            **options,
        )

    def run(self, rows: DataFrame, batch: lws.Batch) -> dict[str, DataFrame]:
        """Make the version of a batch, and return the outputs that are not sent."""
        name, sent, more = self.computation.name, None, self.read.more
        if self.delivery is not None:
            sent = replace(self.delivery, batch=f"{batch.checkpoint}/{batch.id}/{batch.digest}")
        outputs = Outputs(name, self.columns, arrow_schema(self.schema))
        update = ComputationUpdate(self.computation, outputs, batch.now, batch.promised.micros, sent, self.read.named)
        with _planned_whole(rows.sparkSession):
            emitted = batch.stateful(rows.select("*", *more) if more else rows, update, self.schema, self.state)
        return {output: emitted.where(own).select(*names) for output, (own, names) in self.wanted.items()}


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
    """Run a computation as a tracked stage of Spark, one query over the streaming frames of all its inputs.

    Args:
        computation: An instance of a class derived from :class:`Computation`.
        frames: A streaming frame of what it reads, or of several inputs one for each, by what the input is called: ``{"searches": FRAME, "clicks": FRAME}``. What the inputs name must be all that is written there.
        write: ``write(outputs, batch)`` is called in each batch with a frame for each output, by name, also without rows. What it writes with the batch's methods (``batch.write``, ``write_kafka``,
            ``write_table``) is written once. It must write in the same batch what is to be kept. Outputs that are sent by ``productions = Weak(...)`` are not among them; None if all are.
            With ``then`` one for each computation, by name.
        checkpoint: Spark's checkpoint, a directory of the computation's own.
        then: Computations of the same query, *fused*: each has one input, an output of an earlier one, and reads in each batch what that one has produced in it, with the low watermark that it reports after the
            batch. Neither files nor another batch are in between. A checkpoint keeps its computations; ``lowwater_pipeline.graph`` runs each as a query of its own.
        ranges: Key ranges; a checkpoint keeps its number.
        state: Where the state of the first is, by default in the checkpoint: an absolute directory on a local or NFS file system that all executors see.
        address: As for :func:`lowwater_spark.stage`.
        client: The same.
        balance: The same.
        options: Those of ``Stage.foreach_batch``: trigger, adopt, name.

    Raises ValueError and TypeError, naming what to change, for a computation that is not whole or does not go with the frame; what ``Stage.foreach_batch`` raises.
    """
    first = _Part.of(computation, frames, state)
    parts = {computation.name: first}
    feeds: dict[str, tuple[str, str]] = {}
    for each in then:
        feeds[each.name] = _feed(each, parts)
        source, output = feeds[each.name]
        empty = parts[source].empty(output, first.read.frame.sparkSession)
        parts[each.name] = _Part.of(each, empty, None)
    writes = _writes(write, parts, feeds)

    def run(rows: DataFrame, batch: lws.Batch) -> None:
        made: dict[str, dict[str, DataFrame]] = {}
        for name, part in parts.items():
            read = rows if name not in feeds else made[feeds[name][0]][feeds[name][1]]
            own = batch if name not in feeds else batch.of(name)
            made[name] = part.run(read, own)
        # When all are computed: what one writes says how far it is complete.
        for name, call in writes.items():
            if call is not None:
                call(made[name], batch if name not in feeds else batch.of(name))

    stages = [part.stage(ranges=ranges, address=address, client=client, balance=balance) for part in parts.values()]
    return stages[0].foreach_batch(first.read.frame, run, checkpoint=checkpoint, also=stages[1:], **options)


def _feed(computation: Computation, earlier: Mapping[str, _Part]) -> tuple[str, str]:
    """Return which output of which earlier computation of the query one reads.

    Raises ValueError and TypeError.
    """
    check_whole(computation)
    name, inputs = computation.name, computation.inputs
    if name in earlier:
        msg = f"two computations of the query are called {name}: give one of them another name="
        raise ValueError(msg)
    if len(inputs) != 1 or len(inputs[0].names) != 1 or inputs[0].names[0] not in earlier:
        msg = f"{name} of then= reads {', '.join(each.label for each in inputs)}: in one query it has one Input, that names a computation before it, of {', '.join(earlier)}; else start it as a query of its own"
        raise ValueError(msg)
    source = inputs[0].names[0]
    part, declared = earlier[source], inputs[0]
    output, own = declared.output, [each for each in part.computation.outputs if each in part.written]
    if output is None and len(own) == 1:
        [output] = own
    if output is None or output not in part.written:
        msg = f"{name} of then= reads {source}, and does not say which of its outputs: add output= to the Input, one of {', '.join(sorted(part.written))}"
        raise ValueError(msg)
    told = part.computation.outputs.get(output)
    stamp = told.event_time if isinstance(told, Output) else None
    if stamp is None or stamp.lower() != declared.event_time.lower():
        msg = f"the input {declared.label} of {name} has event_time={declared.event_time!r}, and the output {output} of {source} is stamped by {stamp or 'nothing'}: rows would come below the low watermark; declare both the same"
        raise ValueError(msg)
    return source, output


def _writes(
    write: WriteOutputs | Mapping[str, WriteOutputs | None] | None,
    parts: Mapping[str, _Part],
    feeds: Mapping[str, tuple[str, str]],
) -> Mapping[str, WriteOutputs | None]:
    """Return who writes the outputs of each computation.

    Raises TypeError when nobody does, and nobody of the query reads them.
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
        left = part.written - {output for source, output in feeds.values() if source == name}
        if left and writes.get(name) is None:
            msg = f"nobody writes {', '.join(sorted(left))}, of {name}: pass write(outputs, batch), or None if all outputs are sent by productions = Weak(...)"
            raise TypeError(msg)
    return writes


def check_whole(computation: object) -> None:
    """Refuse what is no computation, or not a whole one. Raises ValueError and TypeError."""
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
    if not isinstance(inputs, Sequence) or not all(isinstance(each, Input) for each in inputs):
        msg = f"inputs of {computation.name} is {inputs!r}: declare a list, inputs = [Input(...)]"
        raise TypeError(msg)
    if not inputs:
        msg = f"{computation.name} has no inputs: declare what it reads, inputs = [Input(...)]"
        raise ValueError(msg)
    if type(computation).process_record is Computation.process_record:
        msg = f"{computation.name} does not say what it does with a record: write process_record(self, ctx, record) in the class"
        raise ValueError(msg)
    for each in inputs:
        if each.once and each.id is None:
            msg = f"the input {each.label} of {computation.name} drops copies, and they are known by their ids: declare id="
            raise ValueError(msg)
        if each.slack < timedelta(0) or (each.slack and not each.once):
            msg = f"slack of the input {each.label} of {computation.name} is {each.slack!r}: it says for how much longer ids are remembered with once=True, so it is not negative, and goes with that"
            raise ValueError(msg)
    if not computation.outputs:
        msg = f'{computation.name} has no outputs: declare outputs = {{"NAME": "SCHEMA"}}, or nobody would see what it does'
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
    """Return how weak productions are sent; None when there are none.

    Raises ValueError and TypeError for what is not whole, and what :func:`check_topics` raises.
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
    if any(each.id is None for each in computation.inputs):
        msg = f"productions = Weak(...) of {name} sends rows again when a batch runs again, and without an id of the records they may be others then: declare id= of each Input"
        raise ValueError(msg)
    if declared.patience <= timedelta(0):
        msg = f"patience of {name} is {declared.patience!r}: it is how long a batch waits for acknowledgements, so it is positive"
        raise ValueError(msg)
    settings = settings_of(declared.options)
    check_topics(settings, sorted(declared.topics.values()))
    return Delivery(name, dict(declared.topics), settings, declared.patience.total_seconds(), "")


def _check_sent(computation: Computation, delivery: Delivery, schema: pa.Schema) -> None:
    """Refuse columns that JSON has no form for which readers know. Raises ValueError."""
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
    """Refuse a state that is no codec, or one that makes no bytes. Raises TypeError."""
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
    """Return the columns of each output, and the schema of all of them."""
    from pyspark.sql.types import StringType, StructType, TimestampType

    columns: dict[str, list[str]] = {}
    schema = StructType().add(OUTPUT, StringType())
    once = [each.label for each in computation.inputs if each.once]
    if once and UNDECIDABLE in computation.outputs:
        msg = f"{computation.name} has an output {UNDECIDABLE}, and its input {once[0]} drops copies, which makes one of this name: call yours otherwise"
        raise ValueError(msg)
    everything = {**computation.outputs, **({UNDECIDABLE: UNDECIDABLE_OUTPUT} if once else {})}
    for output, given in everything.items():
        declared = given.schema if isinstance(given, Output) else given
        if output.lower() in map(str.lower, columns) or "`" in output or "/" in output:
            msg = f"{computation.name} cannot have an output {output!r}: take a name without / and `, which no other one has, in small letters or large ones"
            raise ValueError(msg)
        made: Any = StructType.fromDDL(declared)
        if made.typeName() != "struct":
            msg = f'output {output} of {computation.name} is declared as {declared!r}, which names no columns: write them as "NAME TYPE, NAME TYPE"'
            raise ValueError(msg)
        names = [name.lower() for name in made.fieldNames()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            msg = f"output {output} of {computation.name} declares {', '.join(twice)} twice: large and small letters are the same"
            raise ValueError(msg)
        times = [each.name for each in made.fields if isinstance(each.dataType, TimestampType)]
        if not isinstance(given, Output):
            if times:
                msg = (
                    f"output {output} of {computation.name} has the timestamp {times[0]}, and does not say what is the event time of its rows: declare Output({declared!r}, "
                    f"event_time={times[0]!r}), or event_time=None if nobody reads one from it"
                )
                raise ValueError(msg)
        elif given.event_time is not None and given.event_time.lower() not in map(str.lower, times):
            msg = f"output {output} of {computation.name} has no timestamp {given.event_time!r} for its event time; it has {', '.join(times) or 'none'}"
            raise ValueError(msg)
        columns[output] = made.fieldNames()
        for field in made.fields:
            schema.add(column_of(output, field.name), field.dataType)
    return columns, schema
