"""Changes of a round to one computation that are in no record yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lowwater_authority.core import codec
from lowwater_authority.records import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from lowwater_authority.core.columns import Int64s
    from lowwater_authority.core.interval_map import IntervalMap


@dataclass(slots=True)
class Changes:
    """Changes of one claim that are in no op yet."""

    whole: bool = False
    """All values have changed, so ``places`` does not count."""
    places: list[npt.NDArray[np.intp]] = field(default_factory=list)
    """Places whose values have changed; a place may be in several arrays."""
    lowers: bool = False
    """A value has gone down."""
    mass: bool = False
    """The claim's mass has changed."""
    newer: bool = False
    """A report began a new stream or turn. If its number were lost, a late report of an earlier
    stream would count again, with greater values."""
    arrived: list[pb.Arrived] = field(default_factory=list)
    slice_budgets: bool = False
    """The budgets of a slice have changed."""


class Staged:
    """Ops of one computation in the order in which they were checked, and changes still to be ops.

    An op that is appended after values have changed must stand behind these values: call
    :meth:`flush` before the op is applied.
    """

    def __init__(self) -> None:
        self.ops: list[pb.Op] = []
        self.changes: dict[int, Changes] = {}
        """Changes by sequencer."""
        self._strong = False

    def claim(self, sequencer: int) -> Changes:
        """Return the changes of a claim, to be added to."""
        return self.changes.setdefault(sequencer, Changes())

    def append(self, op: pb.Op) -> None:
        """Append an op that must not be lost (rule 10)."""
        self.ops.append(op)
        self._strong = True

    def flush(self, ranges: IntervalMap) -> None:
        """Turn all changes into ops."""
        for sequencer, changes in self.changes.items():
            group = ranges.groups[sequencer]
            places = None if changes.whole else _united(changes.places, group.count)
            slots = group.slots() if places is None else group.base + places
            self.ops.append(
                pb.Op(
                    values=pb.Values(
                        sequencer=sequencer,
                        handles=b"" if places is None else codec.handle_bytes(group.handles_of(places)),
                        micros=codec.int64_bytes(_shortened(ranges.columns.values[slots])),
                        lowers=changes.lowers,
                        senders=codec.senders(group.senders),
                        oldest_operation_micros=group.oldest_operation,
                        mass=codec.mass(group.mass) if changes.mass and group.mass is not None else None,
                        arrived=changes.arrived,
                        kept=codec.slice_budgets(group.slice_budgets) if changes.slice_budgets else None,
                    )
                )
            )
            self._strong = self._strong or changes.lowers or changes.newer
        self.changes.clear()

    def take(self) -> tuple[list[pb.Op], bool]:
        """Return the ops of the round, and whether any of them must not be lost."""
        ops, strong = self.ops, self._strong
        self.ops, self._strong = [], False
        return ops, strong


def _shortened(values: Int64s) -> Int64s:
    """Return one value for all when they are equal, as in most reports."""
    return values[:1] if len(values) and bool((values == values[0]).all()) else values


def _united(places: Sequence[npt.NDArray[np.intp]], count: int) -> npt.NDArray[np.intp]:
    """Return the places that any of the arrays names, ascending, without a sort."""
    if len(places) == 1 and bool((places[0][1:] > places[0][:-1]).all()):
        return places[0]
    named = np.zeros(count, dtype=np.bool_)
    for some in places:
        named[some] = True
    return np.flatnonzero(named)
