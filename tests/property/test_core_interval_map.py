"""The interval map against a dict over six hundred keys, with many claims, many blocks, and compaction."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from lowwater_authority.core import columns, recovery
from lowwater_authority.core.bounds import Bounds
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.groups import Group, GroupState
from lowwater_authority.core.interval_map import IntervalMap
from lowwater_authority.core.requests import NO_FOLD, ClaimRequest, GroupReport
from lowwater_authority.core.topology import Spec
from tests.property.core_driver import MAX, MIN, column

KEYS = 600


def key(index: int) -> bytes:
    return index.to_bytes(2, "big") if 0 < index < KEYS else b""


class Walk:
    """A map and, for each key, its value, and the edges between ranges."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.map = IntervalMap()
        self.values = [MIN] * KEYS
        self.retired = [False] * KEYS
        self.edges = {0, KEYS}
        self.sequencer = 0
        self.claimed: dict[int, list[int]] = {}
        self.compactions = 0

    def interval(self) -> tuple[int, int]:
        width = self.rng.choice([1, 5, 60, KEYS])
        start = self.rng.randrange(KEYS)
        return max(0, start - width // 2), min(KEYS, start + width // 2 + 1)

    def claim(self) -> None:
        start, end = self.interval()
        inner = sorted(self.rng.sample(range(start + 1, end), min(self.rng.choice([0, 3, 200]), end - start - 1)))
        bounds = [start, *inner, end]
        kind = self.rng.randrange(3)
        micros = [self.rng.randrange(100) for _ in range((0, 1, len(bounds) - 1)[kind])]
        for position, (low, high) in enumerate(pairwise(bounds)):
            revived = MAX if micros else MIN
            least = min(revived if self.retired[i] else self.values[i] for i in range(low, high))
            value = min(least, micros[position % len(micros)]) if micros else least
            self.values[low:high] = [value] * (high - low)
        self.retired[start:end] = [False] * (end - start)
        self.edges = {e for e in self.edges if not start < e < end} | set(bounds)
        self.sequencer += 1
        self.claimed[self.sequencer] = bounds
        group = Group(self.sequencer, Bounds([key(b) for b in bounds]), 0, GroupState.OWNED)
        self.change(lambda: self.map.claim(group, column(micros), now=self.sequencer))

    def retire(self) -> None:
        start, end = self.interval()
        self.values[start:end] = [MAX] * (end - start)
        self.retired[start:end] = [True] * (end - start)
        self.edges = {e for e in self.edges if not start < e < end} | {start, end}
        self.change(lambda: self.map.retire(key(start), key(end), now=0))

    def change(self, call: object) -> None:
        old = self.map.columns
        assert callable(call)
        call()
        self.compactions += self.map.columns is not old

    def report(self) -> None:
        if not self.map.groups:
            return
        group = self.rng.choice(list(self.map.groups.values()))
        places = group.live_places()
        handles = group.handles_of(places[np.array([self.rng.random() < 0.5 for _ in places], dtype=np.bool_)])
        news = column(self.rng.randrange(100) for _ in handles)
        self.map.columns.set(group.base + group.places_of(handles), news)
        for handle, value in zip(handles.tolist(), news.tolist(), strict=True):
            low, high = self.claimed[group.sequencer][handle : handle + 2]
            self.values[low:high] = [value] * (high - low)

    def restore(self) -> None:
        groups = self.map.run_groups()
        source = self.map.columns
        columns = [(g, source.values[g.slots()].copy(), source.since[g.slots()]) for g in groups]

        def steps() -> Iterator[int]:
            self.map = yield from IntervalMap.restore(columns)

        for size in steps():
            assert size > 0

    def check(self) -> None:
        map_ = self.map
        map_.check()
        edges = sorted(self.edges)
        assert len(map_) == len(edges) - 1
        assert map_.minimum() == min(self.values)
        expected = {key(low): (key(high), self.values[low]) for low, high in pairwise(edges)}
        ranges, total = map_.all_ranges(KEYS)
        assert {r.start: (r.end, r.value) for r in ranges} == expected
        assert total == len(expected)
        assert [r.value for r in ranges] == sorted(r.value for r in ranges)
        holder = map_.holder()
        if holder is None:
            assert min(self.values) == MAX
        else:
            assert expected[holder.start] == (holder.end, min(self.values))
        below, limit = self.rng.randrange(100), self.rng.choice([0, 1, 7, KEYS])
        holders, total = map_.held_below(below, limit)
        right = sorted(value for _, value in expected.values() if value < below)
        assert total == len(right)
        assert [r.value for r in holders] == right[:limit]
        assert all(expected[r.start] == (r.end, r.value) for r in holders)
        start, end = self.interval()
        touched = [edges[bisect_right(edges, start) - 1], *(e for e in edges if start < e < end)]
        overlapping = [
            group.bounds[handle]
            for group, low, high in map_.overlapping(key(start), key(end))
            for handle in range(low, high)
        ]
        assert overlapping == [key(e) for e in touched]


def walk(seed: int, steps: int) -> Walk:
    walk = Walk(seed)
    walk.check()
    for _ in range(steps):
        walk.rng.choice([walk.claim, walk.claim, walk.report, walk.report, walk.retire, walk.restore])()
        walk.check()
    return walk


def test_rule1_the_map_is_a_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK", 8)
    walks = [walk(seed, 60) for seed in range(20)]
    assert sum(w.compactions for w in walks) > 20
    assert max(len(w.map.columns.values) // 8 for w in walks) > 20, "many blocks"


def test_rule7_claims_that_keep_a_range_each_cost_a_slot_each() -> None:
    """Twenty claims of 5,000 ranges, each shifted by a key, so that every one keeps one range: its owner reports it by the handle it knows."""
    claims, size = 20, 5_000
    c = Computation(Spec("x"))
    grants = []
    for shift in range(claims):
        keys = [(shift + i).to_bytes(8, "big") for i in range(size)]
        grants.append(c.claim(ClaimRequest(keys, request_id=b"%d" % shift), 0).sequencer)
        c.take_record(0)
        c.publish()
        c.map.check()
    assert len(c.map) == size - 1 + claims - 1 + 2
    assert c.map.columns.size <= 2 * (len(c.map) + 3 * claims) + columns.BLOCK
    assert sum(len(group.bounds) for group in c.map.run_groups()) < 3 * size
    stored = recovery.snapshot(c)
    assert len(stored) < 60 * len(c.map)
    for core in (c, recovery.recover(Spec("x"), stored, (), epoch_base=0)):
        for sequencer in grants[:-1]:
            report = GroupReport(sequencer, column([7]), np.array([0, 1, size - 2], dtype=np.uint32))
            [stale] = core.report(report, sender=b"s", number=(1, 1), required=NO_FOLD, now=9)
            assert stale.handles is not None
            assert (stale.reason, stale.handles.tolist()) == ("STALE_SEQUENCER", [1, size - 2])
        core.take_record(0)
        core.map.check()
        moved, total = core.map.all_ranges(len(core.map))
        assert {r.start for r in moved if r.value == 7} == {key.to_bytes(8, "big") for key in range(claims - 1)}
        assert total == len(core.map)
