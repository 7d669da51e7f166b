"""Snapshots of a computation, and its recovery from a snapshot and the records after it.

System prevalence: the state lives in memory, every change is logged, and a snapshot bounds the
replay. Recovery runs the very functions that a live round runs, so that what holds on one path
holds on the other.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from google.protobuf.message import DecodeError

from lowwater_authority.core import codec
from lowwater_authority.core.bounds import head
from lowwater_authority.core.cut import WHOLE
from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.heuristics import Masses
from lowwater_authority.core.history import History
from lowwater_authority.core.interval_map import IntervalMap
from lowwater_authority.core.layout import Layout
from lowwater_authority.core.requests import finished
from lowwater_authority.core.slicing import SliceComputation, computation_of
from lowwater_authority.core.tasks import Tasks, restored, restored_task
from lowwater_authority.records import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from lowwater_authority.core.columns import Int64s
    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.groups import Group
    from lowwater_authority.core.topology import Spec

STRETCH: Final = 4096
"""Ranges of a snapshot in one step of a recovery."""

TASKS_AT_ONCE: Final = 256
"""Tasks of a snapshot in one step of a recovery."""

RANGE_BYTES: Final = 24
"""Approximate bytes of a range in a snapshot."""


class ReplayError(Exception):
    """A record does not follow from the state before it: a damaged log, or one of two owners."""


def recover(spec: Spec, snapshot: bytes | None, records: Iterable[bytes], *, epoch_base: int) -> Computation:
    """Rebuild a computation from its log.

    Of older incarnations only request ids, sequencers and the history count.

    Raises ReplayError when a record cannot be read, or names a claim that is not in the records
    before it, or an incarnation that is not in the graph.
    """
    return finished(steps(spec, snapshot, records, epoch_base=epoch_base))


def steps(
    spec: Spec, snapshot: bytes | None, records: Iterable[bytes], *, epoch_base: int
) -> Generator[int, None, Computation]:
    """Rebuild a computation as :func:`recover` does, step by step, and return it.

    Yields the approximate bytes of each step: a claim of the snapshot, a part of a large claim, or
    an op of a record. The parsing of one claim or record, and the bounds of a claim, take one step
    each: some 10 ms for a hundred thousand ranges.
    """
    computation = computation_of(spec, epoch_base=epoch_base)
    computation.incarnation = 0
    with _decoding(f"a record of {spec.name}"):
        if snapshot is not None:
            yield from _restore(computation, snapshot)
        return (yield from _replay_steps(computation, spec, records))


def incarnation(snapshot: bytes) -> int:
    """Return the incarnation in a snapshot. Raises ReplayError."""
    with _decoding("a snapshot"):
        return pb.Snapshot.FromString(codec.parted(snapshot, pb.Snapshot.GROUPS_FIELD_NUMBER)[1]).incarnation


def resume(computation: Computation, records: Iterable[bytes], *, epoch_base: int) -> Computation:
    """Apply newer records to a recovered computation whose registration has not changed.

    O(records). Use only the returned computation from then on. Raises ReplayError as recover does,
    and also for a log that is intact but goes on in an incarnation that the graph has ended.
    """
    computation.epoch_base = epoch_base
    with _decoding(f"a record of {computation.spec.name}"):
        return finished(_replay_steps(computation, computation.spec, records))


@contextmanager
def _decoding(what: str) -> Iterator[None]:
    """Raise ReplayError for bytes that are no message; ``what`` says where they were read."""
    try:
        yield
    except DecodeError as error:
        msg = f"{what} is not one: {error}"
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
    """Return the registration by which the records of an incarnation are replayed.

    A slice may have had other keys in an ended incarnation, because it was cut in two or registered
    anew since. The graph does not know these keys any more, so that all keys are allowed. Only the
    state that does not depend on keys stays after the replay.
    """
    over = bool(spec.slice_of) and incarnation < spec.incarnation
    return replace(spec, slicing=replace(spec.keys, span=WHOLE, began_end=None)) if over else spec


def _span(groups: list[tuple[Group, Int64s, Int64s]]) -> tuple[bytes, bytes]:
    """Return the key space of all groups in a snapshot, which for a slice may not be the graph's.

    Only live places count: a claim that a cut has made smaller still has its granted bounds.
    """
    starts, ends = [], set()
    for group, _, _ in groups:
        live = (0, group.count - 1) if group.live is None else np.flatnonzero(group.live)[[0, -1]]
        starts.append(group.bounds[int(live[0])])
        ends.add(group.bounds[int(live[1]) + 1])
    return min(starts), b"" if b"" in ends else max(ends)


def restarted(old: Computation, spec: Spec) -> Computation:
    """Return a new incarnation, with all values unknown and all sequencers stale.

    Sequencers and request ids go on, so that none is granted twice, and the history stays. Groups
    of tasks stay without their tasks, unless the computation was dropped in between.
    """
    new = computation_of(spec, epoch_base=old.epoch_base)
    new.last_sequencer = old.last_sequencer
    new.granted = old.granted.copy()
    new.history = History(old.history)
    if spec.first <= old.incarnation:
        new.tasks = old.tasks.restarted()
        new.layout = old.layout
    else:
        new.layout = Layout(old.layout.version)  # so that no version is used for two layouts
    return new


def snapshot(computation: Computation) -> bytes:
    """Serialise the staged state: it must be durable, or the snapshot must make it so. O(n)."""
    return b"".join(pieces(computation))


def pieces(computation: Computation) -> Iterator[bytes]:
    """Serialise a computation as :func:`snapshot` does, with a piece for each claim.

    The computation must not change before the last piece.
    """
    columns = computation.map.columns
    message = computation.past_claims()
    message.computation = computation.spec.name
    message.low_micros, message.since_micros = computation.low, computation.since
    message.heuristics.extend(codec.shares(computation.heuristics))
    message.history.extend(codec.completions(computation.history))
    message.budgets.extend(map(codec.budget, computation.budgets.values()))
    for ppm, (records, behind) in computation.late.passed.items():
        message.passed.add(ppm=ppm, records=records, behind=behind)
    if isinstance(computation, SliceComputation):
        message.cut_version = computation.cut_version
        message.handed_over.extend(pb.HandedOver(to=to, state=state) for to, state in computation.handed_over.items())
    if computation.layout.version:
        message.layout.CopyFrom(codec.layout(computation.layout))
    yield message.SerializeToString()
    for group in computation.map.run_groups():
        encoded = codec.group(group, columns.values[group.slots()], columns.since[group.slots()])
        yield head(pb.Snapshot.GROUPS_FIELD_NUMBER, sum(map(len, encoded)))
        yield from encoded
    for tasks in computation.tasks.snapshot():
        yield head(pb.Snapshot.TASKS_FIELD_NUMBER, len(tasks))
        yield tasks


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
            together = group.bounds[start : start + STRETCH]
            bounds += together
            yield RANGE_BYTES * len(together)
        groups.append(codec.group_from(group, bounds))
        yield len(bounds) * RANGE_BYTES
    # The process that ends the log of a dropped slice does not know the keys of its next
    # registration. No worker has claimed in such a snapshot, so the keys of the graph count.
    if message.cut_version or any(group.state is not GroupState.NEVER for group, _, _ in groups):
        computation.map = yield from IntervalMap.restore(groups, _span(groups))
        computation.masses = yield from Masses.restore(computation.spec.heuristics, computation.map.run_groups())
    if isinstance(computation, SliceComputation):
        computation.cut_version = message.cut_version
        computation.handed_over = {part.to: part.state for part in message.handed_over}
    computation.low = message.low_micros
    stored = codec.shares_from(message.heuristics)
    computation.heuristics = {share: stored.get(share, message.low_micros) for share in computation.spec.heuristics}
    budgets = {stored.ppm: codec.budget_from(stored) for stored in message.budgets}
    for ppm, budget in computation.budgets.items():
        computation.budgets[ppm] = budgets.get(ppm, budget)
        computation.budgets[ppm].value = max(computation.budgets[ppm].value, message.low_micros)
    computation.late.passed = {passed.ppm: (passed.records, passed.behind) for passed in message.passed}
    computation.since = message.since_micros
    computation.history = History(codec.completions_from(message.history))
    computation.take_past_claims(message)
    computation.layout = codec.layout_from(message.layout)
    task_groups = []
    for tasks in message.tasks:
        task_groups.append(restored(tasks))
        for start in range(0, len(tasks.tasks), TASKS_AT_ONCE):
            stretch = tasks.tasks[start : start + TASKS_AT_ONCE]
            for task in stretch:
                task_groups[-1].put(restored_task(task))
            yield sum(task.ByteSize() for task in stretch)
    computation.tasks = Tasks(task_groups)


def _replay(computation: Computation, record: pb.Record, size: int) -> Iterator[int]:
    part = size // (len(record.ops) + 1)
    for op in record.ops:
        yield part
        with _following(computation):
            computation.replay(op, record.time_micros)
    if record.low_micros < computation.low:
        msg = f"the low watermark goes back from {computation.low} to {record.low_micros}"
        raise ReplayError(msg)
    computation.raise_low(record.low_micros, record.time_micros)
    stored = codec.shares_from(record.heuristics)
    for share, value in computation.heuristics.items():
        computation.heuristics[share] = max(value, stored.get(share, record.low_micros))
    with _following(computation):
        computation.replay_budgets(record)
    yield part


@contextmanager
def _following(computation: Computation) -> Iterator[None]:
    """Raise ReplayError for a change that cannot be one of the state before it."""
    try:
        yield
    except (KeyError, ValueError, IndexError) as error:
        msg = f"a record of {computation.spec.name} does not follow from those before it: {error!r}"
        raise ReplayError(msg) from error
