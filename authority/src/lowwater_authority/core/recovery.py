"""Snapshots of a computation, and its recovery from a snapshot and the records behind it.

System prevalence: the state lives in memory, every change is logged, and a snapshot bounds the
replay. Recovery runs the very functions that a live round runs, so that what holds on one path
holds on the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

import numpy as np
from google.protobuf.message import DecodeError

from lowwater_authority.core import codec
from lowwater_authority.core.bounds import Bounds, head
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.cut import WHOLE
from lowwater_authority.core.groups import Group, GroupState
from lowwater_authority.core.heuristics import Masses
from lowwater_authority.core.history import History
from lowwater_authority.core.interval_map import IntervalMap
from lowwater_authority.core.layout import Layout
from lowwater_authority.core.requests import Granted
from lowwater_authority.core.slicing import SliceComputation, computation_of
from lowwater_authority.core.tasks import Tasks, restored, restored_task
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.records import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from lowwater_authority.core.columns import Columns, Int64s
    from lowwater_authority.core.topology import Spec

STRETCH: Final = 4096
"""Ranges of a snapshot that are taken at once."""

TASKS_AT_ONCE: Final = 256
"""Tasks of a snapshot that are taken at once."""

RANGE_BYTES: Final = 24
"""What a range takes in a snapshot, about."""


class ReplayError(Exception):
    """A record does not follow from the state before it: the journal is damaged or was written by two owners."""


def recover(spec: Spec, snapshot: bytes | None, records: Iterable[bytes], *, epoch_base: int) -> Computation:
    """Rebuild a computation.

    Records of an older incarnation only leave request ids, sequencers and their history behind.

    Raises ReplayError when a record cannot be read, or names a claim that its predecessors do not
    know, or an incarnation that the graph does not.
    """
    return _end(steps(spec, snapshot, records, epoch_base=epoch_base))


def steps(
    spec: Spec, snapshot: bytes | None, records: Iterable[bytes], *, epoch_base: int
) -> Generator[int, None, Computation]:
    """Rebuild a computation as :func:`recover` does, step by step: yields about how many bytes each took, and returns the computation.

    A step is a claim of the snapshot, or a part of a large one, or an operation of a record. At one go are still: the parsing of a claim or of a record, and
    the bounds of a claim, some 10 ms each for a hundred thousand ranges.
    """
    computation = computation_of(spec, epoch_base=epoch_base)
    computation.incarnation = 0
    try:
        if snapshot is not None:
            yield from _restore(computation, snapshot)
        return (yield from _replay_steps(computation, spec, records))
    except DecodeError as error:
        msg = f"a record of {spec.name} is not one: {error}"
        raise ReplayError(msg) from error


def _end(steps: Generator[int, None, Computation]) -> Computation:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Computation", end.value)


def incarnation(snapshot: bytes) -> int:
    """Return the incarnation that a snapshot is of. Raises ReplayError."""
    try:
        return pb.Snapshot.FromString(codec.parted(snapshot, pb.Snapshot.GROUPS_FIELD_NUMBER)[1]).incarnation
    except DecodeError as error:
        msg = f"a snapshot is not one: {error}"
        raise ReplayError(msg) from error


def resume(computation: Computation, records: Iterable[bytes], *, epoch_base: int) -> Computation:
    """Go on with what :func:`recover` has returned, by the records that came since; the graph says the same of it. Costs those.

    Raises ReplayError as recover does, and then perhaps for nothing: a log may have gone on with the incarnation that the graph has ended.
    What was given is not to be used any more.
    """
    computation.epoch_base = epoch_base
    try:
        return _end(_replay_steps(computation, computation.spec, records))
    except DecodeError as error:
        msg = f"a record of {computation.spec.name} is not one: {error}"
        raise ReplayError(msg) from error


def _replay_steps(computation: Computation, spec: Spec, records: Iterable[bytes]) -> Generator[int, None, Computation]:
    for payload in records:
        record = pb.Record.FromString(payload)
        if record.incarnation < computation.incarnation:
            msg = f"a record of {spec.name}'s incarnation {record.incarnation} follows its incarnation {computation.incarnation}"
            raise ReplayError(msg)
        if record.incarnation > computation.incarnation:
            computation = restarted(computation, _life(spec, record.incarnation))
            computation.incarnation = record.incarnation
        yield from _replay(computation, record, len(payload))
    if computation.incarnation > spec.incarnation:
        msg = f"{spec.name} has records of its incarnation {computation.incarnation}, but the graph knows only {spec.incarnation}"
        raise ReplayError(msg)
    if computation.incarnation < spec.incarnation:
        computation = restarted(computation, spec)
    computation.follow(spec)
    computation.reference = computation.masses.reference_time()
    computation.publish()
    return computation


def _life(spec: Spec, incarnation: int) -> Spec:
    """Return by what an incarnation is read of which a log still tells.

    One that is over may have had other keys, as a slice that was cut anew since, or dropped and
    registered with others: the graph does not know them any more, and only what does not go by keys
    is kept of it.
    """
    over = bool(spec.slice_of) and incarnation < spec.incarnation
    return replace(spec, slicing=replace(spec.keys, span=WHOLE, began_end=None)) if over else spec


def _span(groups: list[tuple[Group, Int64s, Int64s]]) -> tuple[bytes, bytes]:
    """Return the key space that the groups of a snapshot make up.

    Those of a slice may be other ones than the graph has.

    By what is live of each: a claim over a cut has handed its last ranges over, and its bounds are
    still those that it was granted.
    """
    starts, ends = [], set()
    for group, _, _ in groups:
        live = (0, group.count - 1) if group.live is None else np.flatnonzero(group.live)[[0, -1]]
        starts.append(group.bounds[int(live[0])])
        ends.add(group.bounds[int(live[1]) + 1])
    return min(starts), b"" if b"" in ends else max(ends)


def restarted(old: Computation, spec: Spec) -> Computation:
    """Return a new incarnation: nothing is known, every sequencer is stale, but none is ever granted twice.

    When the steps of earlier incarnations became complete stays on record. Groups of tasks stay, without their tasks, unless it was dropped in between.
    """
    new = computation_of(spec, epoch_base=old.epoch_base)
    new.last_sequencer = old.last_sequencer
    new.granted = old.granted.copy()
    new.history = History(old.history)
    if spec.first <= old.incarnation:
        new.tasks = old.tasks.restarted()
        new.layout = old.layout
    else:
        new.layout = Layout(old.layout.version)  # no version stands for two layouts
    return new


def snapshot(computation: Computation) -> bytes:
    """Serialise the staged state, which must equal the durable one, or be meant to take its place.

    O(n).
    """
    return b"".join(pieces(computation))


def pieces(computation: Computation) -> Iterator[bytes]:
    """Serialise it as :func:`snapshot` does, piece by piece: a claim each.

    Nothing of it may change before the last one.
    """
    columns = computation.map.columns
    message = pb.Snapshot(
        computation=computation.spec.name,
        incarnation=computation.incarnation,
        low_micros=computation.low,
        heuristics=codec.shares(computation.heuristics),
        last_sequencer=computation.last_sequencer,
        identity=computation.identity or "",
        bound=computation.identity is not None,
        generation=computation.order[0],
        ordinal=computation.order[1],
        since_micros=computation.since,
        granted=[
            pb.Granted(request_id=key, sequencer=sequencer, asked=asked)
            for key, (sequencer, asked) in computation.granted.items()
        ],
        history=codec.completions(computation.history),
        budgets=[codec.budget(budget) for budget in computation.budgets.values()],
        passed=[
            pb.Passed(ppm=ppm, records=records, behind=behind)
            for ppm, (records, behind) in computation.late.passed.items()
        ],
    )
    if computation.vouched != MIN:
        message.vouched_micros = computation.vouched
    message.input_version = computation.input_version
    if isinstance(computation, SliceComputation):
        message.cut_version = computation.cut_version
        message.handed_over.extend(pb.HandedOver(to=to, state=state) for to, state in computation.handed_over.items())
    if computation.layout.version:
        message.layout.CopyFrom(codec.layout(computation.layout))
    if computation.batches.last is not None:
        message.has_batch = True
        message.batch, message.batch_digest = computation.batches.last
        message.batch_sequencer = computation.batches.committed_by
    yield message.SerializeToString()
    for group in computation.map.run_groups():
        encoded = _group(group, columns)
        yield head(pb.Snapshot.GROUPS_FIELD_NUMBER, sum(map(len, encoded)))
        yield from encoded
    for tasks in computation.tasks.snapshot():
        yield head(pb.Snapshot.TASKS_FIELD_NUMBER, len(tasks))
        yield tasks


def _group(group: Group, columns: Columns) -> tuple[bytes, bytes]:
    """Encode a group, in two parts of one message: its bounds would make a million objects."""
    slots = group.slots()
    message = pb.Group(
        sequencer=group.sequencer,
        live=b"" if group.live is None else group.live.astype(np.uint8).tobytes(),
        micros=codec.int64_bytes(columns.values[slots]),
        since=codec.int64_bytes(columns.since[slots]),
        state=group.state,
        worker=group.worker,
        host=group.host,
        request_id=group.request_id,
        senders=codec.senders(group.senders),
        oldest_operation_micros=group.oldest_operation,
        mass=None if group.mass is None else codec.mass(group.mass),
        mass_known=group.mass_known,
        stand_ins=[codec.mass(mass) for mass in group.stand_ins],
        last_report_micros=group.last_report,
        recent=codec.slots(group.recent),
        handles=b"" if group.handles is None else codec.handle_bytes(group.handles),
        granted=0 if group.handles is None else group.granted,
        arrivals=None if group.arrivals is None else codec.arrivals(group.arrivals),
        arrived_before=codec.arrived_before(group.arrived_before),
        generation=group.order[0],
        ordinal=group.order[1],
        kept=codec.kept(group.kept),
    )
    return message.SerializeToString(), group.bounds.encode(pb.Group.BOUNDS_FIELD_NUMBER)


def _restore(computation: Computation, snapshot: bytes) -> Iterator[int]:
    places, rest = codec.parted(snapshot, pb.Snapshot.GROUPS_FIELD_NUMBER)
    message = pb.Snapshot.FromString(rest)
    yield len(rest)
    computation.incarnation = message.incarnation
    computation.spec = _life(computation.spec, message.incarnation)
    computation.map = IntervalMap(computation.spec.keys.began)
    computation.masses = Masses(computation.spec.heuristics, computation.map.run_groups())
    groups = []
    for group in (pb.Group.FromString(snapshot[place]) for place in places):
        bounds: list[bytes] = []
        for start in range(0, len(group.bounds), STRETCH):
            some = group.bounds[start : start + STRETCH]
            bounds += some
            yield RANGE_BYTES * len(some)
        groups.append(_group_from(group, bounds))
        yield len(bounds) * RANGE_BYTES
    # Whoever ends a log does not know the keys of the slice that begins with what is left: nobody
    # has claimed any, so there are those of the graph.
    if message.cut_version or any(group.state is not GroupState.NEVER for group, _, _ in groups):
        computation.map = yield from IntervalMap.restore(groups, _span(groups))
        computation.masses = yield from Masses.restore(computation.spec.heuristics, computation.map.run_groups())
    if isinstance(computation, SliceComputation):
        computation.cut_version = message.cut_version
        computation.handed_over = {each.to: each.state for each in message.handed_over}
    computation.low = message.low_micros
    stored = codec.shares_from(message.heuristics)
    computation.heuristics = {share: stored.get(share, message.low_micros) for share in computation.spec.heuristics}
    kept = {each.ppm: codec.budget_from(each) for each in message.budgets}
    for ppm, budget in computation.budgets.items():
        computation.budgets[ppm] = kept.get(ppm, budget)
        computation.budgets[ppm].value = max(computation.budgets[ppm].value, message.low_micros)
    computation.late.passed = {each.ppm: (each.records, each.behind) for each in message.passed}
    computation.since = message.since_micros
    computation.history = History(codec.completions_from(message.history))
    computation.last_sequencer = message.last_sequencer
    computation.identity = message.identity if message.bound else None
    computation.order = (message.generation, message.ordinal)
    computation.input_version = message.input_version
    computation.vouched = message.vouched_micros if message.HasField("vouched_micros") else MIN
    computation.layout = codec.layout_from(message.layout)
    computation.batches.last = (message.batch, message.batch_digest) if message.has_batch else None
    computation.batches.committed_by = message.batch_sequencer
    groups_of_tasks = []
    for found in message.tasks:
        groups_of_tasks.append(restored(found))
        for start in range(0, len(found.tasks), TASKS_AT_ONCE):
            together = found.tasks[start : start + TASKS_AT_ONCE]
            for task in together:
                groups_of_tasks[-1].put(restored_task(task))
            yield sum(task.ByteSize() for task in together)
    computation.tasks = Tasks(groups_of_tasks)
    computation.granted.clear()
    computation.granted.update((each.request_id, Granted(each.sequencer, each.asked)) for each in message.granted)


def _group_from(message: pb.Group, bounds: list[bytes]) -> tuple[Group, Int64s, Int64s]:
    live = np.frombuffer(message.live, dtype=np.uint8).astype(np.bool_) if message.live else None
    group = Group(
        message.sequencer,
        Bounds(bounds),
        0,
        GroupState(message.state),
        live=live,
        worker=message.worker,
        host=message.host,
        request_id=message.request_id,
        senders=codec.senders_from(message.senders),
        oldest_operation=message.oldest_operation_micros,
        last_report=message.last_report_micros,
        recent=codec.slots_from(message.recent),
        mass=codec.mass_from(message.mass) if message.HasField("mass") else None,
        mass_known=message.mass_known,
        stand_ins=[codec.mass_from(mass) for mass in message.stand_ins],
        handles=codec.handles(message.handles) if message.granted else None,
        granted=message.granted,
        arrivals=codec.arrivals_from(message.arrivals) if message.HasField("arrivals") else None,
        arrived_before=codec.arrived_before_from(message.arrived_before)
        if message.HasField("arrived_before")
        else None,
        order=(message.generation, message.ordinal),
        kept=codec.kept_from(message.kept),
    )
    values = codec.int64s(message.micros)
    group.finished = group.state is not GroupState.RETIRED and bool((values == MAX).all())
    return group, values, codec.int64s(message.since)


def _replay(computation: Computation, record: pb.Record, size: int) -> Iterator[int]:
    part = size // (len(record.ops) + 1)
    for op in record.ops:
        yield part
        try:
            computation.replay(op, record.time_micros)
        except (KeyError, ValueError, IndexError) as error:
            msg = f"a record of {computation.spec.name} does not follow from those before it: {error!r}"
            raise ReplayError(msg) from error
    if record.low_micros < computation.low:
        msg = f"the low watermark goes back from {computation.low} to {record.low_micros}"
        raise ReplayError(msg)
    computation.raise_low(record.low_micros, record.time_micros)
    stored = codec.shares_from(record.heuristics)
    for share, value in computation.heuristics.items():
        computation.heuristics[share] = max(value, stored.get(share, record.low_micros))
    try:
        computation.replay_budgets(record)
    except ValueError as error:
        msg = f"a record of {computation.spec.name} does not follow from those before it: {error}"
        raise ReplayError(msg) from error
    yield part
