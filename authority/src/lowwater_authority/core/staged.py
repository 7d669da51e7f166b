"""The staged state of a computation, and what the round has changed in it so far."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from lowwater import errors
from lowwater_authority._pb.lowwater.journal.v1 import journal_pb2 as pb
from lowwater_authority.core import codec
from lowwater_authority.core.batches import BatchStage
from lowwater_authority.core.groups import Group, GroupState
from lowwater_authority.core.history import History
from lowwater_authority.core.interval_map import IntervalMap
from lowwater_authority.core.requests import Granted, Refused
from lowwater_authority.core.times import MAX, MIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from lowwater_authority.core.columns import Int64s
    from lowwater_authority.core.mass import Mass
    from lowwater_authority.core.topology import Spec

_STALE: Final = (
    "the sequencer is stale: a newer claim, a reset or a retirement took the ranges over. Stop writing for them."
)


@dataclass(slots=True)
class _Changes:
    """What a round changed in one claim, not yet in an op."""

    whole: bool = False
    places: list[npt.NDArray[np.intp]] = field(default_factory=list)
    lowers: bool = False
    mass: bool = False
    newer: bool = False
    """Whether it is the first of a stream: losing that lets what an earlier stream said count again, which may be more."""


class Staged:
    """Everything that a computation knows, and the ops that its next record will have.

    Live requests and replayed ops store values and masses by the same functions.
    """

    def __init__(self, spec: Spec, *, epoch_base: int = 0) -> None:
        self.spec = spec
        self.epoch_base = epoch_base
        self.incarnation = spec.incarnation
        self.map = IntervalMap()
        self.batches = BatchStage()
        self.low = MIN
        self.heuristics = dict.fromkeys(spec.heuristics, MIN)
        self.since = 0
        self.history = History()
        self.reference = MIN
        """The event time that ages of histograms count from, as of the last record; MIN before any frontier."""
        self.last_sequencer = 0
        self.identity: str | None = None
        self.order = (0, 0)
        self.last_batch: tuple[int, bytes] | None = None
        self.committed_by = 0
        """The claim that committed it."""
        self.granted: OrderedDict[bytes, Granted] = OrderedDict()
        self._ops: list[pb.Op] = []
        self._changes: dict[int, _Changes] = {}
        self._refused_of_batch: list[Refused] = []
        """What was refused of the last committed batch, in this process's life: its driver may ask again."""
        self._mass_changed = False
        self._strong = False

    def _owned(self, sequencer: int) -> Group:
        group = self.map.groups.get(sequencer)
        if group is None or group.state is not GroupState.OWNED:
            raise errors.StaleSequencer(_STALE, metadata=self._about(sequencer=sequencer))
        return group

    def _stale(self, sequencer: int, handles: npt.NDArray[np.uint32] | None) -> Refused:
        return Refused(sequencer, errors.StaleSequencer.reason, _STALE, handles)

    def _about(self, **facts: object) -> dict[str, str]:
        return {"computation": self.spec.name} | {key: str(value) for key, value in facts.items()}

    def _store(self, group: Group, places: npt.NDArray[np.intp] | None, values: Int64s, now: int) -> None:
        """Set values that passed all checks, remembering which changed. ``places`` None: all, and all are live."""
        columns = self.map.columns
        slots = group.slots() if places is None else group.base + places
        old = columns.values[slots]
        changed = old != values
        if not changed.any():
            return
        changes = self._changes.setdefault(group.sequencer, _Changes())
        changes.lowers = changes.lowers or bool((values < old).any())
        if places is None and changed.all():
            changes.whole = True
            columns.set(slots, values)
            columns.since[slots] = now
        else:
            moved = np.flatnonzero(changed) if places is None else places[changed]
            changes.places.append(moved)
            columns.set(group.base + moved, values if len(values) == 1 else values[changed])
            columns.since[group.base + moved] = now
        self._settle_finished(group)

    def _settle_finished(self, group: Group) -> None:
        values = self.map.columns.values[group.slots()]
        finished = bool(values[0] == MAX and (values == MAX).all())
        self._mass_changed = self._mass_changed or finished != group.finished
        group.finished = finished

    def _set_mass(self, group: Group, mass: Mass) -> None:
        if group.mass_known and mass.same(group.mass):
            return
        group.mass, group.mass_known, group.stand_ins = mass, True, []
        self._changes.setdefault(group.sequencer, _Changes()).mass = True
        self._mass_changed = True

    def _note_number(self, group: Group, *, strong: bool) -> None:
        """Journal how far the senders of a claim are, whatever else changes. ``strong``: it is not safe to lose that."""
        changes = self._changes.setdefault(group.sequencer, _Changes())
        changes.newer = changes.newer or strong

    def _flush(self) -> None:
        """Turn the changed values into ops, so that ops stand in the order of the checks."""
        for sequencer, changes in self._changes.items():
            group = self.map.groups[sequencer]
            places = None if changes.whole else _united(changes.places, group.count)
            slots = group.slots() if places is None else group.base + places
            self._ops.append(
                pb.Op(
                    values=pb.Values(
                        sequencer=sequencer,
                        handles=b"" if places is None else codec.handle_bytes(group.handles_of(places)),
                        micros=codec.int64_bytes(_shortened(self.map.columns.values[slots])),
                        lowers=changes.lowers,
                        senders=codec.senders(group.senders),
                        oldest_operation_micros=group.oldest_operation,
                        mass=codec.mass(group.mass) if changes.mass and group.mass is not None else None,
                    )
                )
            )
            self._strong = self._strong or changes.lowers or changes.newer
        self._changes.clear()

    def _apply_values(self, op: pb.Values, now: int) -> None:
        group = self.map.groups[op.sequencer]
        values = codec.int64s(op.micros)
        handles = codec.handles(op.handles)
        if group.state is not GroupState.OWNED or (
            len(values) and group.live is not None and (not len(handles) or group.lost(handles).any())
        ):
            msg = f"values for ranges that the claim {op.sequencer} does not own"
            raise ValueError(msg)
        if len(values):
            places = group.places_of(handles) if len(handles) else None
            self._store(group, places, values, now)
            # Also a range that moved and came back within the round.
            self.map.columns.since[group.slots() if places is None else group.base + places] = now
        if op.HasField("mass"):
            self._set_mass(group, codec.mass_from(op.mass))
        group.senders = codec.senders_from(op.senders)
        group.oldest_operation = op.oldest_operation_micros
        group.last_report = now


def _shortened(values: Int64s) -> Int64s:
    """Return one value for all when they are equal: most reports say the same of all ranges."""
    return values[:1] if len(values) and bool((values == values[0]).all()) else values


def _united(places: Sequence[npt.NDArray[np.intp]], count: int) -> npt.NDArray[np.intp]:
    """Return the places that any of the arrays names, ascending, without a sort."""
    if len(places) == 1 and bool((places[0][1:] > places[0][:-1]).all()):
        return places[0]
    named = np.zeros(count, dtype=np.bool_)
    for some in places:
        named[some] = True
    return np.flatnonzero(named)
