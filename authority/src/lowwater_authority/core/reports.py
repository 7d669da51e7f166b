"""Reports of a computation's owners: what is taken over of them, range by range, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from lowwater import errors
from lowwater_authority.core.groups import Group, GroupState
from lowwater_authority.core.mass import MOST_RECORDS, Mass
from lowwater_authority.core.requests import Refused
from lowwater_authority.core.staged import Staged
from lowwater_authority.core.times import MAX, MIN

if TYPE_CHECKING:
    import numpy.typing as npt

    from lowwater_authority.core.columns import Int64s
    from lowwater_authority.core.requests import Fold, GroupReport

SENDERS_KEPT: Final = 64
"""Senders of one claim whose newest report is remembered. One process owns a claim, so there is rarely a second; one more is refused,
for an older report of a sender that was forgotten would count."""

OWN_TURNS: Final = b""
"""Stands for the sender where the reports of a claim count turns of their own, whatever streams they come by."""


class Reports(Staged):
    """The part of a computation that takes over what owners say."""

    def report(
        self,
        report: GroupReport,
        *,
        sender: bytes,
        number: tuple[int, int],
        required: Fold,
        now: int,
        wall: int | None = None,
    ) -> list[Refused]:
        """Take over one claim's state, range by range, and return what was refused.

        ``number`` is (stream, number) of the sender; a report that names a turn orders by (turn, number). One that is not above the
        newest taken over changes nothing and is refused: whoever counts from the start again must hear of it.
        ``required`` names the inputs as registered now: a fold over other lives of them counts as MIN. ``wall`` is the wall clock, which
        says what is too far ahead; None: as ``now``.
        """
        group = self.map.groups.get(report.sequencer)
        if group is None or group.state is not GroupState.OWNED:
            return [self._stale(report.sequencer, None)]
        if report.turn:
            sender, number = OWN_TURNS, (report.turn, number[1])
        newest = group.senders.get(sender)
        if newest is not None and number <= newest:
            return [_older(report, newest[0])]
        if newest is None and sender != OWN_TURNS and len(group.senders) >= SENDERS_KEPT:
            msg = f"{SENDERS_KEPT} senders have reported for this claim, and none of them may be forgotten; claim again"
            return [Refused(group.sequencer, errors.StaleSequencer.reason, msg)]
        if refusal := self._check_report(group, report, required):
            return [refusal]
        group.senders[sender] = number
        if newest is None or newest[0] < number[0]:
            # Durable though nothing else may change: reports of an earlier stream may still come, also after a restart. Before the
            # first stream there was none, so that losing it is safe.
            self._note_number(group, strong=number[0] > 1)
        group.last_report = now
        wall = now if wall is None else wall
        values, mass = report.watermarks, report.mass
        group.oldest_operation = min(report.oldest_operation, now)
        group.waiting_for = report.waiting_for
        refused: list[Refused] = []
        if report.fold.input_incarnations != required.input_incarnations:
            values = np.full(len(values), MIN, dtype=np.int64)
            mass = mass and replace(mass, frontiers=dict.fromkeys(mass.frontiers, MIN))
            msg = "the report folds another life of an input than the one in force, so it counts as unknown; fold anew"
            refused.append(Refused(group.sequencer, errors.IncarnationChanged.reason, msg, report.handles))
        elif 0 in report.fold.input_incarnations and (beyond := _beyond_unknown(values, mass)):
            values = np.full(len(values), MIN, dtype=np.int64)
            mass = mass and replace(mass, frontiers=dict.fromkeys(mass.frontiers, MIN))
            msg = f"{self._unregistered(report.fold)}, so {beyond} must be {MIN}, and the report counts as that; fold all inputs"
            refused.append(Refused(group.sequencer, errors.InvalidArgument.reason, msg, report.handles))
        if mass is not None:
            refused.extend(self._take_mass(group, mass, wall))
        refused.extend(self._take_values(group, report.handles, values, finish=report.finish, now=now, wall=wall))
        return refused

    def _unregistered(self, fold: Fold) -> str:
        names = [name for name, life in zip(self.spec.inputs, fold.input_incarnations, strict=False) if not life]
        return f"{' and '.join(names) or 'an input'} is folded as not registered, which is unknown"

    def _check_report(self, group: Group, report: GroupReport, required: Fold) -> Refused | None:
        ranges = group.granted if report.handles is None else len(report.handles)
        problem = ""
        if len(report.watermarks) not in (1, ranges):
            problem = f"watermarks_micros has {len(report.watermarks)} values for {ranges} ranges; send one a range, or one for all"
        elif report.handles is not None and ranges and int(report.handles.max()) >= group.granted:
            problem = (
                f"handles names {int(report.handles.max())}, but the claim has the handles 0 to {group.granted - 1}"
            )
        elif report.handles is not None and not _distinct(report.handles):
            problem = "handles names a range twice; send one value a range"
        else:
            problem = wrong_operation(report.oldest_operation)
        if problem:
            return Refused(group.sequencer, errors.InvalidArgument.reason, problem, report.handles)
        if report.fold.input_version != required.input_version:
            msg = (
                f"the report folds version {report.fold.input_version} of the inputs, but {required.input_version} is in force; "
                "claim again to learn the new inputs"
            )
            return Refused(group.sequencer, errors.InputVersion.reason, msg, report.handles)
        return None

    def _take_values(
        self,
        group: Group,
        handles: npt.NDArray[np.uint32] | None,
        values: Int64s,
        *,
        finish: bool,
        now: int,
        wall: int,
    ) -> list[Refused]:
        """Store what may be stored of new values and return the rest."""
        limit = wall + self.spec.max_skew
        named = None if handles is None else handles.astype(np.intp)
        wrong = np.zeros(0, dtype=np.bool_)
        refused: list[Refused] = []
        if group.live is not None:
            wrong = group.lost(named)
            if wrong.any():
                refused.append(self._stale(group.sequencer, _named(named, wrong)))
        if len(values) and int(values.max()) > limit:
            finished = values == MAX
            # What goes no further than it stands poisons nothing, and a lowering must never be lost: the clock may be wrong.
            ahead = (values > limit) & ~finished & (values > self._standing(group, named))
            for mask, reason, text in (
                (ahead, errors.TooFarAhead.reason, f"more than {self.spec.max_skew // 1_000_000} s ahead of the clock"),
                (
                    finished & (not finish),
                    errors.FinishRequired.reason,
                    "MAX means finished and needs finish to be set",
                ),
            ):
                if mask.any():
                    ranges = group.granted if named is None else len(named)
                    spread = np.broadcast_to(mask, ranges) if len(mask) == 1 else mask
                    spread = spread & ~wrong if len(wrong) else spread  # each range is refused once
                    if spread.any():
                        refused.append(Refused(group.sequencer, reason, text, _named(named, spread)))
                    wrong = spread | wrong if len(wrong) else spread
        if len(wrong) and wrong.any():
            named = np.arange(group.granted) if named is None else named
            values = np.broadcast_to(values, len(named))[~wrong]
            named = named[~wrong]
        self._store(group, None if named is None else group.places_of(named), values, now)
        return refused

    def _standing(self, group: Group, named: npt.NDArray[np.intp] | None) -> Int64s:
        """Return where the ranges of some handles stand, None: of all; MIN where they are lost. O(handles)."""
        lost = group.lost(named)
        handles = np.arange(group.granted) if named is None else named
        standing = np.full(len(handles), MIN, dtype=np.int64)
        standing[~lost] = self.map.columns.values[group.base + group.places_of(handles[~lost])]
        return standing

    def _take_mass(self, group: Group, mass: Mass, wall: int) -> list[Refused]:
        limit = wall + self.spec.max_skew
        problem = ""
        if len(mass.starts) != len(mass.counts):
            problem = f"mass.pending has {len(mass.starts)} starts and {len(mass.counts)} counts; send as many of each"
        elif (mass.counts < 0).any() or (mass.starts[1:] <= mass.starts[:-1]).any():
            problem = "mass.pending must have ascending starts and counts below 2^63"
        elif float(mass.counts.sum(dtype=np.float64)) + mass.recent > MOST_RECORDS:
            problem = f"mass counts more than {MOST_RECORDS} records; no claim has that many"
        if problem:
            return [Refused(group.sequencer, errors.InvalidArgument.reason, problem)]
        # A record from the far future is as far as any may be: one bad timestamp must not carry the computation off.
        mass = replace(mass, starts=np.minimum(mass.starts, limit))
        for share, micros in mass.frontiers.items():
            if limit < micros != MAX:
                msg = (
                    f"the frontier of the share {share} ppm is more than {self.spec.max_skew // 1_000_000} s ahead of the clock; "
                    "the mass is left as it was"
                )
                return [Refused(group.sequencer, errors.TooFarAhead.reason, msg)]
        self._set_mass(group, mass)
        return []


def wrong_operation(micros: int) -> str:
    """Return what is wrong with the time of an oldest operation, and the fix; empty: nothing.

    One that is only ahead of this clock is nothing wrong: it counts as now.
    """
    if 0 <= micros < MAX:
        return ""
    return f"oldest_operation_micros is {micros}; send the time by the wall clock, in microseconds since 1970, or 0 for none"


def _older(report: GroupReport, newest: int) -> Refused:
    if report.turn:
        msg = f"a newer report of this claim was taken over, of its turn {newest}; send the full state under a greater turn"
    else:
        msg = f"a newer report of this sender was taken over, of its stream {newest}; open a greater stream and send the full state"
    return Refused(report.sequencer, errors.OldStream.reason, msg, newest=newest)


def _beyond_unknown(values: Int64s, mass: Mass | None) -> str:
    """Return the field that says more than an input that is unknown lets it, if one does."""
    if bool((values > MIN).any()):
        return "watermarks_micros"
    return "mass.frontiers" if mass is not None and any(each > MIN for each in mass.frontiers.values()) else ""


def _distinct(handles: npt.NDArray[np.uint32]) -> bool:
    return bool((handles[1:] > handles[:-1]).all()) or len(np.unique(handles)) == len(handles)


def _named(handles: npt.NDArray[np.intp] | None, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    chosen = np.flatnonzero(mask) if handles is None else handles[mask]
    return chosen.astype(np.uint32)
