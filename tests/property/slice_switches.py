"""Each of these breaks one rule of slices, in tests only, to show that a test would notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.cut import Cut
from lowwater_authority.core.cut import Part as Part_
from lowwater_authority.core.interval_map import IntervalMap
from lowwater_authority.core.slicing import RootComputation, as_slice
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Topology
from lowwater_authority.engine import slice as slice_module
from lowwater_authority.engine.cuts import Cuts
from lowwater_authority.engine.roots import SliceReport
from lowwater_authority.engine.slice import Slice
from tests.kit.planting import Part, bug


@bug("slice_report", slice_module)
def ratchet_is_told(slice_report: Part) -> Part:
    """A slice tells what it has published, which does not go down (T1)."""

    def changed(computation: Computation, topology: Topology) -> SliceReport:
        report: SliceReport = slice_report(computation, topology)
        return report._replace(low=max(report.low, computation.published.low))

    return changed


@bug("is_settled", Slice)
def lowerings_are_acknowledged_at_once(_: Part) -> Part:
    """No answer waits for the root, once the slice is claimed there (T2)."""
    return lambda self: self._range is not None or self._confirmed is not None


_ANSWERED = WeakKeyDictionary[Slice, int]()


@bug("_settle", Slice)
def only_answers_count(settle: Part) -> Part:
    """A slice's values do not count at the root before the root has acknowledged them (T2)."""

    def noted(self: Slice, *, ended: bool = False) -> None:
        if self._confirmed is not None:
            _ANSWERED[self] = self._confirmed.low
        elif self._range is None:
            _ANSWERED.pop(self, None)
        settle(self, ended=ended)

    return noted


@only_answers_count.also("is_settled", Slice)
def _answered(_: Part) -> Part:
    return lambda self: self._report.low >= min(self._counts, _ANSWERED.get(self, MAX))


@bug("__init__", Slice)
def new_owners_answer_at_once(part: Part) -> Part:
    """An ownership that has sent nothing has nothing to wait for (T3)."""

    def eager(self: Slice, *arguments: Any) -> None:
        part(self, *arguments)
        self._counts = MIN

    return eager


@bug("slice_report", slice_module)
def versions_are_echoed(slice_report: Part) -> Part:
    """A slice names the version of the inputs that it was granted, whatever its values were folded from (T4)."""

    def echo(computation: Computation, topology: Topology) -> SliceReport:
        report: SliceReport = slice_report(computation, topology)
        return report._replace(fold=topology.required(computation.spec.name), current=True)

    return echo


@versions_are_echoed.also("follow_inputs", Cuts)
def _as_they_are(_: Part) -> Part:
    async def as_they_are(self: Cuts, name: str, bound: int) -> None:
        del self, name, bound

    return as_they_are


@bug("_restore", recovery)
def snapshots_forget_the_version(restore: Part) -> Part:
    """A computation that is read back from a snapshot goes by the newest inputs (T4)."""

    def forgetful(computation: Computation, snapshot: bytes) -> Iterator[int]:
        yield from restore(computation, snapshot)
        computation.input_version = 0

    return forgetful


@bug("vouched", Slice)
def outputs_wait_for_the_slice_alone(_: Part) -> Part:
    """The log of a slice knows what an output says, and whoever adds inputs does not (T4)."""

    async def at_once(self: Slice, through: int, input_version: int) -> None:
        del through, input_version

    return at_once


@bug("_newest_order", RootComputation)
def one_order(_: Part) -> Part:
    """Claims are ordered for the computation, and not for each slice."""
    return lambda self, request: self.order


@bug("_newest_order", RootComputation)
def no_order(_: Part) -> Part:
    """Claims win in order of arrival."""
    return lambda self, request: (0, 0)


@bug("recover", recovery)
def sequencers_go_down_in_a_move(recover: Part) -> Part:
    """Whoever takes a slice over counts its claims below those of the shard before (T7)."""

    def lower(*arguments: Any, **more: Any) -> Computation:
        computation: Computation = recover(*arguments, **more)
        if computation.spec.slice_of:
            computation.epoch_base, computation.last_sequencer = (1 << 62) - computation.epoch_base, 0
        return computation

    return lower


@bug("slice_report", slice_module)
def retired_is_told_as_finished(slice_report: Part) -> Part:
    """A slice that is retired tells that nothing will ever come (T6)."""
    return lambda computation, topology: slice_report(computation, topology)._replace(retired=False)


@bug("retire", Computation)
def retirements_name_no_claim(retire: Part) -> Part:
    """Whoever has the range loses it by a retirement, whenever that was asked for (T6)."""

    def anybodys(self: Computation, start: bytes, end: bytes, *, sequencer: int = 0, **more: Any) -> Any:
        if sequencer:
            sequencer = next(self.map.overlapping(start, end))[0].sequencer
        return retire(self, start, end, sequencer=sequencer, **more)

    return anybodys


@bug("_restore", recovery)
def logs_name_the_keys(restore: Part) -> Part:
    """A slice has the key space that its log begins with."""

    def as_written(computation: Computation, snapshot: bytes) -> Iterator[int]:
        yield from restore(computation, snapshot)
        if not computation.map.groups:
            computation.map = IntervalMap()

    return as_written


@bug("turn", Slice)
def moved_answers_leave(_: Part) -> Part:
    """A report that waits for the root while keys are handed over is acknowledged by the rest of the slice."""
    return property(lambda self: 0, lambda self, value: None)


@bug("slice_report", slice_module)
def keys_are_exported_early(slice_report: Part) -> Part:
    """A slice goes on with keys that another one has read of it."""

    def has_keys(computation: Computation, topology: Topology) -> SliceReport:
        report: SliceReport = slice_report(computation, topology)
        return report._replace(has_keys=not computation.spec.keys.source)

    return has_keys


@keys_are_exported_early.also("_handed_over", Cuts)
def _copied(_: Part) -> Part:
    async def copied(self: Cuts, source: str, name: str) -> Any:
        loaded = await self._holdings.journal.load(source)
        recovered = await self._holdings.recovered_in_pieces(self._holdings.topology.get(source), loaded)
        moving = as_slice(recovered.computation)
        if name not in moving.handed_over:
            moving.hand_over(name)
        return moving.handed_over[name]

    return copied


@keys_are_exported_early.also("_check_slice", RootComputation)
def _unchecked(_: Part) -> Part:
    return lambda self, bounds: None


@bug("renewed", Cut)
def resets_keep_a_cut_under_way(_: Part) -> Part:
    """A reset leaves the new slice there, which knows nothing of the sequencers that its keys have had (T7)."""

    def renewed(self: Cut) -> Cut:
        return replace(self, recut=tuple(Part_(part.number, part.start) for part in self.recut))

    return renewed
