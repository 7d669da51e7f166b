"""Each of these breaks one sentence of the rules, in tests only, to show that a test would notice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from lowwater_authority.core import heuristics, history, interval_map, recovery
from lowwater_authority.core.computation import SENDERS_KEPT, Computation, View
from lowwater_authority.core.groups import Group
from lowwater_authority.core.interval_map import Loss
from lowwater_authority.core.requests import ClaimRequest, GroupReport, Prepare, Refused, TaskAttempt
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Spec
from lowwater_authority.records import journal_pb2 as pb
from tests.kit.planting import Part, bug


def off(rule: int | str) -> pytest.MarkDecorator:
    """Marks a test that runs with a rule switched off: it must fail, in an assertion."""
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"breaks when rule {rule} is switched off")


def planted(rule: int | str, *broken: type[Computation]) -> pytest.MarkDecorator:
    """Runs a test with computations as they are made, and with ones in which its rule is switched off: there it must fail."""
    without = [pytest.param(bug, id=bug.__name__, marks=off(rule)) for bug in broken]
    return pytest.mark.parametrize("computation_class", [pytest.param(Computation, id="as it is"), *without])


@bug("_merge", interval_map)
def merge_takes_the_greatest(least: Part) -> Part:
    def greatest(bounds: Any, starts: Any, values: Any, *more: Any) -> Any:
        merged, since = least(bounds, starts, ~values, *more)  # ~ turns the order around, without overflow
        return ~merged, since

    return greatest


class SilenceCountsAsIdle(Computation):
    """Ranges without a living owner hold nothing back."""

    def _apply_release(self, op: pb.Release, now: int) -> None:
        super()._apply_release(op, now)
        self._idle(self.map.groups[op.sequencer])

    def _apply_revoke(self, op: pb.Revoke, now: int) -> None:
        super()._apply_revoke(op, now)
        for group in self.map.groups.values():
            self._idle(group)

    def _idle(self, group: Group) -> None:
        self.map.columns.set(group.slots(), MAX)
        self._settle_finished(group)


@bug("_apply_values", Computation)
def recovery_skips_lowering(apply: Part) -> Part:
    """Another function than the live one, on the path of recovery."""
    return lambda self, op, now: None if op.lowers else apply(self, op, now)


class NoRatchet(Computation):
    """Publishes the minimum as it is."""

    def take_record(self, now: int) -> tuple[bytes, bool] | None:
        if self.staged.ops or self.staged.changes:
            self.low, self._mass_changed = MIN, True
            self.heuristics = dict.fromkeys(self.heuristics, MIN)
        return super().take_record(now)


@bug("places_of", Group)
def handles_count_what_is_left(_: Part) -> Part:
    """A handle counts as the place of its range in the group, though earlier ranges of the group are gone."""
    return lambda self, handles: np.minimum(handles, self.count - 1)


class Unfenced(Computation):
    """A report moves the keys it names, whoever owns them now."""

    def __init__(self, spec: Spec, *, epoch_base: int = 0) -> None:
        super().__init__(spec, epoch_base=epoch_base)
        self.bounds: dict[int, Sequence[bytes]] = {}

    def _apply_claim(self, op: pb.Claim, now: int, bounds: Sequence[bytes] | None = None) -> tuple[Group, list[Loss]]:
        self.bounds[op.sequencer] = list(op.bounds)
        return super()._apply_claim(op, now, bounds)

    def accepts(self, sequencer: int) -> bool:
        return sequencer in self.bounds

    def report(self, report: GroupReport, **more: Any) -> list[Refused]:
        refused = super().report(report, **more)
        if not refused or not self.accepts(report.sequencer):
            return refused
        bounds = self.bounds[report.sequencer]
        for position, handle in enumerate(range(len(bounds) - 1) if report.handles is None else report.handles):
            value = report.watermarks[position % len(report.watermarks) :][:1]
            for group, low, high in list(self.map.overlapping(bounds[handle], bounds[handle + 1])):
                if group.sequencer:
                    self._store(group, np.arange(low, high), value, more["now"])
        return []


class ChecksPublishedOwners(Unfenced):
    """Reports are checked against what is durable, not against what is staged (H3)."""

    visible: frozenset[int] = frozenset()

    def publish(self) -> View:
        self.visible = frozenset(self.map.groups)
        return super().publish()

    def accepts(self, sequencer: int) -> bool:
        # Of what a snapshot says of a claim, its bounds are not known here.
        return sequencer in self.visible and super().accepts(sequencer)


class NoClaimOrder(Computation):
    """Claims win in order of arrival, whoever makes them."""

    def _check_order(self, request: ClaimRequest) -> None:
        pass


class PlacesNotChecked(Computation):
    """A claim in place of another one is granted, whatever became of that."""

    def _check_place(self, request: ClaimRequest) -> None:
        pass


class AnyLayoutVersion(Computation):
    """A change of the layout takes the place of whatever is wanted."""

    def change_layout(self, incarnation: int, expected: int, starts: Sequence[int], tasks: Sequence[int]) -> int:
        del expected
        return super().change_layout(incarnation, self.layout.version, starts, tasks)


@bug("snapshot", recovery)
def snapshots_have_no_layout(snapshot: Part) -> Part:
    def forgetful(computation: Computation) -> bytes:
        message = pb.Snapshot.FromString(snapshot(computation))
        message.ClearField("layout")
        return message.SerializeToString()

    return forgetful


@bug("replay", Computation)
def replay_has_no_layout(replay: Part) -> Part:
    """Another function than the live one, on the path of recovery."""
    return lambda self, op, now: None if op.WhichOneof("kind") == "layout" else replay(self, op, now)


class NumbersIgnored(Computation):
    """Every report counts, whenever it arrives."""

    later = count(2)

    def report(self, report: GroupReport, **more: Any) -> list[Refused]:
        more["number"] = (2**40, next(self.later))
        return super().report(report, **more)


class NumbersOfChangesOnly(Computation):
    """Only a report that changes something leaves its number in the journal."""

    def _note_number(self, group: Group, *, strong: bool) -> None:
        pass


class LoweringsTooFarAhead(Computation):
    """The clock decides also of values that go no further than their ranges stand."""

    def _standing(self, group: Group, named: Any) -> Any:
        return np.full(len(super()._standing(group, named)), MIN)


class SendersForgotten(Computation):
    """A new sender takes the place of the one that was known first."""

    def report(self, report: GroupReport, **more: Any) -> list[Refused]:
        senders = self.map.groups[report.sequencer].senders
        if len(senders) >= SENDERS_KEPT and more["sender"] not in senders:
            del senders[next(iter(senders))]
        return super().report(report, **more)


class TurnsIgnored(Computation):
    """Reports of a claim are ordered for each stream alone."""

    def report(self, report: GroupReport, **more: Any) -> list[Refused]:
        return super().report(replace(report, turn=0), **more)


class AnyClaimRepeats(Computation):
    """A request id gets its answer, whatever it is used for."""

    def claim(self, request: ClaimRequest, now: int, wall: int | None = None) -> Any:
        return super().claim(replace(request, digest=b"the same"), now, wall)


class ClaimsNotRepeatable(Computation):
    """A repeat of a claim is a new claim."""

    def claim(self, request: ClaimRequest, now: int, wall: int | None = None) -> Any:
        return super().claim(replace(request, request_id=b""), now, wall)


class AnyIncarnation(Computation):
    """A fold over any incarnation of the inputs counts."""

    def report(self, report: GroupReport, **more: Any) -> list[Refused]:
        return super().report(replace(report, fold=more["required"]), **more)


@bug("restarted", recovery)
def reset_keeps_owners(restarted: Part) -> Part:
    def keep(old: Computation, spec: Spec) -> Computation:
        new: Computation = restarted(old, spec)
        for sequencer, group in old.map.groups.items():
            new._apply_claim(pb.Claim(sequencer=sequencer, bounds=group.bounds), 0)
        return new

    return keep


@bug("_replay", recovery)
def replay_notes_nothing(replay: Part) -> Part:
    """Another function than the live one, on the path of recovery."""

    def silent(computation: Computation, record: pb.Record, size: int) -> Iterator[int]:
        copied = history.History(computation.history)
        yield from replay(computation, record, size)
        computation.history = copied

    return silent


class UnregisteredInputsCount(Computation):
    """A fold over an input that is not registered counts, whatever it says."""

    def report(self, report: GroupReport, **more: Any) -> list[Refused]:
        incarnations = tuple(incarnation or -1 for incarnation in report.fold.input_incarnations)
        fold = report.fold._replace(input_incarnations=incarnations)
        more["required"] = fold
        return super().report(replace(report, fold=fold), **more)


class AllWeak(Computation):
    """No answer waits for a strong write."""

    def take_record(self, now: int) -> tuple[bytes, bool] | None:
        record = super().take_record(now)
        return None if record is None else (record[0], False)


class BatchesRepeat(Computation):
    """A delayed prepare counts."""

    def prepare(self, request: Prepare) -> Sequence[TaskAttempt]:
        self.batches.prepared = None
        return self.batches.prepare(request, self._owned(request.sequencer).count)


class NoHandOver(Computation):
    """A newer run's claim forgets what the run before had prepared (H5b)."""

    def claim(self, request: ClaimRequest, now: int, wall: int | None = None) -> Any:
        self.batches.prepared = None
        return super().claim(request, now, wall)


class AnySkew(Computation):
    """However far ahead of the clock (H9)."""

    def __init__(self, spec: Spec, *, epoch_base: int = 0) -> None:
        super().__init__(replace(spec, max_skew=2**61), epoch_base=epoch_base)


@bug("_entry", heuristics)
def unknown_masses_count_as_none(entry: Part) -> Part:
    def careless(group: Any) -> Any:
        built = entry(group)
        return built and built._replace(mass_known=True, masses=built.masses if built.mass_known else ())

    return careless
