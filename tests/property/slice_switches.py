"""Each of these breaks one rule of slices, in tests only, to show that a test would notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.interval_map import IntervalMap
from lowwater_authority.core.requests import ClaimRequest
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Part, Spec, Topology
from lowwater_authority.engine import slices
from lowwater_authority.engine.shard import Shard
from lowwater_authority.engine.slices import Slice, Told

Planted = pytest.MonkeyPatch


def _told(planted: Planted, change: Any) -> None:
    told_of = slices.told_of

    def changed(computation: Computation, topology: Topology) -> Told:
        told: Told = change(told_of(computation, topology), computation, topology)
        return told

    planted.setattr(slices, "told_of", changed)


def ratchet_is_told(planted: Planted) -> None:
    """A slice tells what it has published, which does not go down (T1)."""
    _told(planted, lambda told, computation, _: told._replace(low=max(told.low, computation.published.low)))


def lowerings_are_acknowledged_at_once(planted: Planted) -> None:
    """No answer waits for the root, once the slice is claimed there (T2)."""
    planted.setattr(Slice, "is_settled", lambda self: self._range is not None or self._said is not None)


def only_answers_count(planted: Planted) -> None:
    """What the root has not acknowledged does not count there (T2)."""
    settle = Slice._settle
    answered: WeakKeyDictionary[Slice, int] = WeakKeyDictionary()

    def noted(self: Slice, *, ended: bool = False) -> None:
        if self._said is not None:
            answered[self] = self._said.low
        elif self._range is None:
            answered.pop(self, None)
        settle(self, ended=ended)

    planted.setattr(Slice, "_settle", noted)

    def is_settled(self: Slice) -> bool:
        return bool(self._told.low >= min(self._counts, answered.get(self, MAX)))

    planted.setattr(Slice, "is_settled", is_settled)


def new_owners_answer_at_once(planted: Planted) -> None:
    """An ownership that has sent nothing has nothing to wait for (T3)."""
    made = Slice.__init__

    def eager(self: Slice, *arguments: Any) -> None:
        made(self, *arguments)
        self._counts = MIN

    planted.setattr(Slice, "__init__", eager)


def any_life_fits(planted: Planted) -> None:
    """A slice tells its values whatever incarnation its root is in (T4)."""
    planted.setattr(Slice, "_fits", staticmethod(lambda told, known: True))


def versions_are_echoed(planted: Planted) -> None:
    """A slice names the version of the inputs that it was granted, whatever its values were folded from (T4)."""

    def echo(told: Told, computation: Computation, topology: Topology) -> Told:
        return told._replace(fold=topology.required(computation.spec.name), current=True)

    async def as_they_are(self: Shard, name: str, bound: int) -> None:
        del self, name, bound

    _told(planted, echo)
    planted.setattr(Shard, "follow_inputs", as_they_are)


def snapshots_forget_the_version(planted: Planted) -> None:
    """What is read back of a snapshot goes by the newest inputs (T4)."""
    restore = recovery._restore

    def forgetful(computation: Computation, snapshot: bytes) -> Iterator[int]:
        yield from restore(computation, snapshot)
        computation.input_version = 0

    planted.setattr(recovery, "_restore", forgetful)


def outputs_wait_for_the_slice_alone(planted: Planted) -> None:
    """What an output says is known to the log of its slice, and to nobody who adds inputs (T4)."""

    async def at_once(self: Slice, through: int, input_version: int) -> None:
        del through, input_version

    planted.setattr(Slice, "vouched", at_once)


def one_order(planted: Planted) -> None:
    """Claims are ordered for the computation, and not for each slice."""
    planted.setattr(Computation, "_newest_order", lambda self, request: self.order)


def no_order(planted: Planted) -> None:
    """Claims win in order of arrival."""

    def none(self: Computation, request: ClaimRequest) -> tuple[int, int]:
        del self, request
        return (0, 0)

    planted.setattr(Computation, "_newest_order", none)


def sequencers_go_down_in_a_move(planted: Planted) -> None:
    """Whoever takes a slice over counts its claims below those of the shard before (T7)."""
    recover = recovery.recover

    def lower(*arguments: Any, **more: Any) -> Computation:
        found = recover(*arguments, **more)
        if found.spec.slice_of:
            found.epoch_base, found.last_sequencer = (1 << 62) - found.epoch_base, 0
        return found

    planted.setattr(recovery, "recover", lower)


def retired_is_told_as_finished(planted: Planted) -> None:
    """A slice that is retired tells that nothing will ever come (T6)."""
    _told(planted, lambda told, *_: told._replace(retired=False))


def retirements_name_no_claim(planted: Planted) -> None:
    """Whoever has the range loses it by a retirement, whenever that was asked for (T6)."""
    retire = Computation.retire

    def anybodys(self: Computation, start: bytes, end: bytes, *, sequencer: int = 0, **more: Any) -> Any:
        if sequencer:
            sequencer = next(self.map.overlapping(start, end))[0].sequencer
        return retire(self, start, end, sequencer=sequencer, **more)

    planted.setattr(Computation, "retire", anybodys)


def logs_name_the_keys(planted: Planted) -> None:
    """A slice has the key space that its log begins with."""
    restore = recovery._restore

    def as_written(computation: Computation, snapshot: bytes) -> Iterator[int]:
        yield from restore(computation, snapshot)
        if not computation.map.groups:
            computation.map = IntervalMap()

    planted.setattr(recovery, "_restore", as_written)


def moved_answers_leave(planted: Planted) -> None:
    """What waits for the root while keys are handed over is acknowledged by what is left of the slice."""
    planted.setattr(Slice, "turn", property(lambda self: 0, lambda self, value: None), raising=False)


def keys_are_exported_early(planted: Planted) -> None:
    """A slice goes on with keys that another one has read of it."""
    _told(planted, lambda told, computation, _: told._replace(has_keys=not computation.spec.source))

    async def copied(self: Shard, source: str, name: str) -> Any:
        loaded = await self.journal.load(source)
        found = await self.held.recovered_in_pieces(self.topology.get(source), loaded)
        if name not in found.computation.handed_over:
            found.computation.move_out(name)
        return found.computation.handed_over[name]

    planted.setattr(Shard, "_handed_over", copied)
    planted.setattr(Computation, "_check_slice", lambda self, bounds: None)


def resets_keep_a_cut_under_way(planted: Planted) -> None:
    """A reset leaves the new slice there, which knows nothing of the sequencers that its keys have had (T7)."""

    def renewed(self: Spec) -> Spec:
        cut = tuple(Part(part.number, part.start) for part in self.cut)
        return replace(self, incarnation=self.incarnation + 1, cut=cut)

    planted.setattr(Spec, "renewed", renewed)
