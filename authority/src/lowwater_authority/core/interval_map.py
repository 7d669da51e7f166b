"""The interval map of one computation: the owner and the value of each key range.

MillWheel 7.2: "tracks the completeness of its information for each computation by building an
interval map of low watermark values"; a missing interval corresponds to its last known value.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict

from lowwater.views import NO_REMARKS, Remarks
from lowwater_authority.core.bounds import Bounds
from lowwater_authority.core.columns import BLOCK, Columns, Int64s
from lowwater_authority.core.groups import Group, GroupState, before, earlier_end
from lowwater_authority.core.times import MAX, MIN

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

STRETCH: Final = 16 * BLOCK
"""Most ranges in one step of a restore."""


class Run(NamedTuple):
    """Adjoining live places ``[low, high)`` of one group."""

    group: Group
    low: int
    high: int

    @property
    def start(self) -> bytes:
        """First key."""
        return self.group.bounds[self.low]

    @property
    def end(self) -> bytes:
        """First key after; empty: no upper bound."""
        return self.group.bounds[self.high]


@dataclass(slots=True)
class Loss:
    """The ranges that a group lost to a claim or a retirement."""

    group: Group
    handles: list[tuple[int, int]]
    """Stretches ``[low, high)`` of lost handles."""
    remainders: list[Group]
    """New groups without an owner: parts of cut ranges that are outside of the lost interval."""


class Owner(NamedTuple):
    """The owner of a range, as of when the range was read."""

    sequencer: int
    state: GroupState
    worker: str
    host: str
    last_report: int
    waiting_for: str = ""
    """Cause for which the worker waits, for people; empty once it does not own the range."""
    remarks: Remarks = NO_REMARKS
    """Remarks of the worker about itself, for people; once it does not own the range, only that it
    has ended."""
    claimed: int = 0
    """Processing time at which the worker claimed the range; 0: not known, or not its owner now."""


class Range(NamedTuple):
    """One range of the map, as of when it was read."""

    start: bytes
    end: bytes
    value: int
    since: int
    owner: Owner


class IntervalMap:
    """A key space, ``span``, covered with ranges, each of which is in one group and has a value.

    No method may be called for keys outside of it.

    The map is sorted by runs (a run is a stretch of ranges of one claim), so it costs by claims,
    not by ranges; values are numpy columns. A report is a vector assignment; a claim costs O(log
    runs + ranges touched + ranges claimed); the minimum costs O(changed blocks + blocks).

    Every operation keeps rule 1 (unknown holds): a split copies the value, a merge takes the least
    one, and ranges that are not claimed keep theirs.
    """

    def __init__(self, span: tuple[bytes, bytes] = (b"", b"")) -> None:
        self.span = span
        self.columns = Columns()
        self.groups: dict[int, Group] = {}
        """Groups of claims that still have ranges, by sequencer."""
        self._runs: SortedDict[bytes, Run] = SortedDict()
        self._bases: list[int] = []
        self._placed: list[Group] = []
        self._runs[span[0]] = Run(self._stretch(*span, MIN, 0, GroupState.NEVER), 0, 1)

    # -- reading -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of ranges. O(1)."""
        return self.columns.used

    def minimum(self) -> int:
        """Return the least value of all ranges; MAX when all are finished or retired."""
        return self.columns.minimum()

    def owned_by(self, sequencer: int) -> Group | None:
        """Return the group that a sequencer owns; None: the sequencer is stale. O(1).

        A sequencer is checked here and nowhere else, for all requests that name one: reports, task
        parts, batches, releases, retirements, vouches, and claims in place of another. A request
        is refused with StaleSequencer (``Computation._owned``), a report range by range, together
        with its ranges that a newer claim has taken (``Group.lost``). A group that lost all ranges
        is not in ``groups`` any more; a released or revoked one is not OWNED.

        Whether this *process* still owns the log is another question, which the journal answers.
        """
        group = self.groups.get(sequencer)
        return group if group is not None and group.state is GroupState.OWNED else None

    def open_groups(self) -> list[Group]:
        """Return the groups that hold L or a heuristic: neither retired nor finished. O(runs)."""
        groups = self.run_groups()
        return [group for group in groups if group.state is not GroupState.RETIRED and not group.finished]

    def runs(self) -> Iterator[Run]:
        """Iterate over the runs in key order."""
        yield from self._runs.values()

    def run_groups(self) -> list[Group]:
        """Return every group once, in the order of its first key. O(runs)."""
        return list(dict.fromkeys(run.group for run in self._runs.values()))

    @property
    def all_retired(self) -> bool:
        """True when all ranges are retired. O(runs)."""
        return all(run.group.state is GroupState.RETIRED for run in self._runs.values())

    def held_below(self, below: int, limit: int) -> tuple[list[Range], int]:
        """Return the least ``limit`` ranges below a value, and the number of all below it.

        The answer is sorted by value, then key; of equal values at the limit, any are in it. For
        the cost see Columns.least and Columns.count_below.
        """
        slots = self.columns.least(limit)
        return self._ranges_at(slots[self.columns.values[slots] < below]), self.columns.count_below(below)

    def all_ranges(self, limit: int) -> tuple[list[Range], int]:
        """Return the least ``limit`` ranges, sorted as by ``held_below``, and the number of all.

        For the cost see Columns.least.
        """
        slots = self.columns.least(limit)
        finished = self._finished(limit - len(slots))
        return self._ranges_at(np.concatenate((slots, *finished))), len(self)

    def _finished(self, limit: int) -> Iterator[npt.NDArray[np.intp]]:
        """Yield the slots of at most ``limit`` ranges at MAX.

        The search goes by runs, because free slots are at MAX too.
        """
        for run in self._runs.values():
            if limit <= 0:
                return
            low, high = run.group.base + run.low, run.group.base + run.high
            slots = np.flatnonzero(self.columns.values[low:high] == MAX)[:limit] + low
            limit -= len(slots)
            yield slots

    def _ranges_at(self, slots: npt.NDArray[np.intp]) -> list[Range]:
        return sorted(map(self.range_at, slots.tolist()), key=lambda held: (held.value, held.start))

    def holder(self) -> Range | None:
        """Return a range that holds the minimum; None when all are finished or retired."""
        slot = self.columns.argmin()
        return None if self.columns.values[slot] == MAX else self.range_at(slot)

    def holding(self, low: int) -> tuple[int, list[Group]]:
        """Return the number of ranges with a value up to ``low``, and the groups that they are in.

        ``low`` is below MAX. For the cost see Columns.at_most.
        """
        counts = self.columns.at_most(low, self._bases)
        return int(counts.sum()), [self._placed[index] for index in np.flatnonzero(counts).tolist()]

    def range_at(self, slot: int) -> Range:
        """Return the live range in a slot. O(log groups)."""
        group = self._placed[bisect_right(self._bases, slot) - 1]
        return self._range(group, slot - group.base)

    def _range(self, group: Group, place: int) -> Range:
        slot, owned = group.base + place, group.state is GroupState.OWNED
        return Range(
            group.bounds[place],
            group.bounds[place + 1],
            int(self.columns.values[slot]),
            int(self.columns.since[slot]),
            Owner(
                group.sequencer,
                group.state,
                group.worker,
                group.host,
                group.last_report,
                (owned and group.ahead_at(place)) or (group.waiting_for if owned or group.remarks.ended else ""),
                group.remarks if owned or group.remarks.ended else NO_REMARKS,
                group.claimed if owned else 0,
            ),
        )

    # -- changing ----------------------------------------------------------------------------------

    def claim(self, group: Group, bounds_micros: Int64s, now: int) -> list[Loss]:
        """Give the group all ranges between its bounds; each becomes min(last values, bound).

        ``bounds_micros``: none, one, or one value a range. A retired range begins at its bound, and
        at MIN without one: it has to prove everything anew. MAX counts as no bound. Returns the
        ranges that other groups lost.
        """
        start, end = group.bounds[0], group.bounds[-1]
        old_starts, old_values, old_since, retired = self._covering(start, end)
        old_values[retired] = MAX if len(bounds_micros) else MIN
        values, since = _merge(group.bounds, old_starts, old_values, old_since, now)
        if len(bounds_micros):
            if retired.any() and (bounds_micros == MAX).any():
                revived, _ = _merge(group.bounds, old_starts, np.where(retired, MIN, MAX), old_since, now)
                values[(revived == MIN) & (bounds_micros == MAX)] = MIN
            np.minimum(values, bounds_micros, out=values)
        losses = self._carve(start, end)
        self._place(group, values, since)
        group.live_count = group.count
        self.groups[group.sequencer] = group
        self._runs[start] = Run(group, 0, group.count)
        self._compact()
        return losses

    def retire(self, start: bytes, end: bytes, now: int) -> list[Loss]:
        """Retire an interval, at MAX until it is claimed; return what groups lost."""
        losses = self._carve(start, end)
        stretch = self._stretch(start, end, MAX, now, GroupState.RETIRED)
        stretch.order = max(loss.group.order for loss in losses)
        self._runs[start] = Run(stretch, 0, 1)
        self._compact()
        return losses

    def hand_over(self, start: bytes) -> tuple[list[Loss], list[tuple[Group, Int64s, Int64s]]]:
        """Remove all keys from ``start`` on, which is then the end of the key space.

        Returns the ranges that groups lost, and their state: new groups without an owner, with
        values and since-times. O(ranges that move).
        """
        if not (self.span[0] < start and before(start, self.span[1])):
            msg = "keys are handed over that are not the last ones of many"
            raise ValueError(msg)
        state = [self._copied(group, low, high, start) for group, low, high in self.overlapping(start, self.span[1])]
        losses = self._carve(start, self.span[1])
        self.span = (self.span[0], start)
        self._compact()
        return losses, state

    def _copied(self, group: Group, low: int, high: int, start: bytes) -> tuple[Group, Int64s, Int64s]:
        state = GroupState.UNOWNED if group.state is GroupState.OWNED else group.state
        copied = Group(0, group.bounds.part(low, high + 1, max(start, group.bounds[low])), 0, state)
        copied.come_from(group)
        if group.state is GroupState.UNOWNED:
            # Whether its worker has ended is known wherever the keys go.
            copied.remarks, copied.waiting_for = group.remarks, group.waiting_for
        slots = slice(group.base + low, group.base + high)
        return copied, self.columns.values[slots].copy(), self.columns.since[slots].copy()

    def overlapping(self, start: bytes, end: bytes) -> Iterator[tuple[Group, int, int]]:
        """Iterate over the live places, (group, low, high), that share keys with an interval."""
        first = self._runs.bisect_right(start) - 1
        for index in range(first, len(self._runs)):
            run: Run = self._runs.values()[index]
            if not before(run.start, end):
                return
            low = run.low if run.start >= start else run.group.place_at(start)
            yield run.group, low, min(run.high, run.group.place_to(end))

    def _covering(self, start: bytes, end: bytes) -> tuple[list[bytes], Int64s, Int64s, npt.NDArray[np.bool_]]:
        """Return start, value, since-time and a retired flag of all ranges in an interval."""
        starts: list[bytes] = []
        values: list[Int64s] = []
        since: list[Int64s] = []
        retired: list[npt.NDArray[np.bool_]] = []
        for group, low, high in self.overlapping(start, end):
            slots = slice(group.base + low, group.base + high)
            starts.extend(group.bounds[low:high])
            values.append(self.columns.values[slots])
            since.append(self.columns.since[slots])
            retired.append(np.full(high - low, group.state is GroupState.RETIRED))
        return starts, np.concatenate(values), np.concatenate(since), np.concatenate(retired)

    def _carve(self, start: bytes, end: bytes) -> list[Loss]:
        """Remove an interval from the map; parts of ranges that stick out become new groups."""
        pieces = list(self.overlapping(start, end))
        losses: dict[int, Loss] = {}
        for group, low, high in pieces:
            run_start = self._runs.keys()[self._runs.bisect_right(group.bounds[low]) - 1]
            run: Run = self._runs.pop(run_start)
            loss = losses.setdefault(id(group), Loss(group, [], []))
            loss.handles.append((low, high))
            if run.low < low:
                self._runs[run.start] = Run(group, run.low, low)
            if high < run.high:
                self._runs[group.bounds[high]] = Run(group, high, run.high)
            if group.bounds[low] < start:
                loss.remainders.append(self._cut_off(group, low, group.bounds[low], start))
            piece_end = group.bounds[high]
            if end and earlier_end(end, piece_end) != piece_end:
                loss.remainders.append(self._cut_off(group, high - 1, end, piece_end))
        for loss in losses.values():
            group, spare = loss.group, loss.group.spare
            for index, (low, high) in enumerate(loss.handles):
                group.drop(low, high)
                self.columns.free(group.base + low, high - low)
                first = low if group.handles is None else int(group.handles[low])
                loss.handles[index] = (first, first + high - low)
            if not group.live_count:
                self.groups.pop(group.sequencer, None)
            self.columns.reclaimable += (group.spare if group.live_count else group.count) - spare
        return list(losses.values())

    def _cut_off(self, group: Group, place: int, start: bytes, end: bytes) -> Group:
        slot = group.base + place
        state = group.state if group.state in (GroupState.NEVER, GroupState.RETIRED) else GroupState.UNOWNED
        stretch = self._stretch(start, end, int(self.columns.values[slot]), int(self.columns.since[slot]), state)
        stretch.come_from(group)
        stretch.finished = group.state is not GroupState.RETIRED and int(self.columns.values[slot]) == MAX
        self._runs[start] = Run(stretch, 0, 1)
        return stretch

    def _stretch(self, start: bytes, end: bytes, value: int, since: int, state: GroupState) -> Group:
        group = Group(0, Bounds([start, end]), 0, state, live_count=1)
        self._place(group, np.array([value], dtype=np.int64), since)
        return group

    def _place(self, group: Group, values: Int64s, since: Int64s | int) -> None:
        group.base = self.columns.allocate(values, since)
        self._bases.append(group.base)
        self._placed.append(group)

    def _compact(self) -> None:
        """Move all groups into fresh columns once most slots are dead. Amortised O(1) a slot."""
        if self.columns.wasteful:
            self._move()

    def _move(self) -> None:
        """Move live slots into fresh columns; each lost stretch of a group keeps one slot. O(n)."""
        groups, old = self.run_groups(), self.columns
        places_of = {group: group.shrink() for group in groups}
        for start, (group, low, high) in list(self._runs.items()):
            if (places := places_of[group]) is not None:
                place = int(np.searchsorted(places, low))
                self._runs[start] = Run(group, place, place + high - low)
        self._clear_columns(sum(group.count for group in groups))
        for group, places in places_of.items():
            slots = group.slots() if places is None else group.base + places
            self._place(group, old.values[slots], old.since[slots])
            self.columns.used -= group.count - group.live_count
            self.columns.reclaimable += group.spare

    def _clear_columns(self, capacity: int) -> None:
        self.columns = Columns(capacity)
        self._bases, self._placed = [], []

    @classmethod
    def restore(
        cls, groups: Sequence[tuple[Group, Int64s, Int64s]], span: tuple[bytes, bytes] = (b"", b"")
    ) -> Generator[int, None, IntervalMap]:
        """Rebuild a map from groups with values and since-times, step by step. O(n).

        Yields the bytes of each step.
        """
        self = cls(span)
        self._runs.clear()
        self._clear_columns(sum(group.count for group, _, _ in groups))
        for group, values, since in groups:
            self._place(group, values[:0], 0)
            for low in range(0, group.count, STRETCH):
                high = low + STRETCH
                self.columns.allocate(values[low:high], since[low:high])
                yield values[low:high].nbytes
            if group.sequencer:
                self.groups[group.sequencer] = group
            if group.live is None:
                group.live_count = group.count
                self._runs[group.bounds[0]] = Run(group, 0, group.count)
                continue
            group.live_count = int(group.live.sum())
            self.columns.used -= group.count - group.live_count
            edges = np.flatnonzero(np.diff(np.concatenate(([False], group.live, [False])).astype(np.int8)))
            group.gaps = _gaps(group.live)
            self.columns.reclaimable += group.spare
            for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
                self._runs[group.bounds[low]] = Run(group, low, high)
            self.columns.set(group.base + np.flatnonzero(~group.live), MAX)
        self._compact()
        return self

    def check(self) -> None:
        """Assert every invariant. O(n)."""
        self.columns.check()
        end = self.span[0]
        live: dict[int, int] = {}
        groups: dict[int, Group] = {}
        for index, (start, run) in enumerate(self._runs.items()):
            assert start == run.start
            assert start == end, "runs adjoin and cover the key space from its start"
            assert index == 0 or start, "only the first run starts at the empty key"
            assert run.low < run.high
            assert run.group.live is None or run.group.live[run.low : run.high].all()
            end = run.end
            live[id(run.group)] = live.get(id(run.group), 0) + run.high - run.low
            groups[id(run.group)] = run.group
        assert end == self.span[1], "the last run ends where the key space does"
        for key, group in groups.items():
            assert group.live_count == live[key] == (group.count if group.live is None else int(group.live.sum()))
            assert (group.sequencer == 0) == (group.sequencer not in self.groups)
            assert all(before(a, b) for a, b in zip(group.bounds, group.bounds[1:], strict=False))
            if group.live is not None:
                assert (self.columns.values[group.slots()][~group.live] == MAX).all()
            assert group.gaps == (0 if group.live is None else _gaps(group.live))
            assert group.granted >= group.count
            if group.handles is None:
                assert group.granted == group.count
            else:
                assert group.live is not None, "only what has lost ranges has fewer places than handles"
                assert group.handles[0] == 0
                widths = np.diff(np.append(group.handles, group.granted))
                assert (widths >= 1).all()
                assert (widths[group.live] == 1).all(), "a live place is one range"
                assert (group.places_of(np.arange(group.granted)) == np.repeat(np.arange(group.count), widths)).all()
            if group.state in (GroupState.NEVER, GroupState.RETIRED):
                expected = MIN if group.state is GroupState.NEVER else MAX
                assert (self.columns.values[group.slots()] == expected).all()
        assert {id(g) for g in self.groups.values()} == {key for key, g in groups.items() if g.sequencer}
        assert self.columns.used == sum(live.values())
        needed = sum(group.count - group.spare for group in groups.values())
        assert self.columns.size - self.columns.reclaimable == needed
        assert not self.columns.wasteful, "at most half of the slots, and some, are dead"
        assert needed <= 2 * self.columns.used + len(groups), "what was lost side by side is one slot"
        extents = sorted((g.base, g.base + g.count) for g in groups.values())
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(extents))


def _gaps(live: npt.NDArray[np.bool_]) -> int:
    """Return the number of stretches of places that are not live."""
    return int((~live[1:] & live[:-1]).sum()) + int(not live[0])


def _merge(
    bounds: Sequence[bytes], old_starts: list[bytes], old_values: Int64s, old_since: Int64s, now: int
) -> tuple[Int64s, Int64s]:
    """Return value and since-time of each new range: the least of the old ranges that it covers."""
    count = len(bounds) - 1
    if len(old_starts) == 1:
        return np.full(count, old_values[0]), np.full(count, old_since[0])
    if len(old_starts) == count and old_starts[1:] == list(bounds[1:-1]):
        return old_values.copy(), old_since.copy()
    # A new range [b, c) overlaps the old ranges from the one with b to the one before c.
    keys = np.empty(len(old_starts), dtype=object)
    keys[:] = old_starts
    new_starts = np.empty(count, dtype=object)
    new_starts[:] = list(bounds[:-1])
    first = np.maximum(np.searchsorted(keys, new_starts, side="right") - 1, 0)
    last = np.append(np.searchsorted(keys, new_starts[1:], side="left"), len(old_starts))
    padded = np.append(old_values, MAX)
    pairs = np.column_stack((first, last)).ravel()
    values = np.minimum.reduceat(padded, pairs)[::2]
    return values, np.full(count, now)
