"""A computation and its oracle: what is compared after each step, and what a round, a crash and a reset do to both."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from lowwater import errors
from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.layout import Layout
from lowwater_authority.core.requests import GroupReport
from lowwater_authority.core.topology import Spec
from tests.property.core_driver import MAX, MIN, NOW, SECOND, durable
from tests.property.oracle import Oracle
from tests.property.oracle_words import Refusal, edge
from tests.property.search import Counting
from tests.property.second_opinion import beam_low

SKEW = 50
SHARES = (990_000, 500_000)
STEP = 7


def as_told(layout: Layout) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return layout.version, layout.starts, layout.tasks


class Pair(Counting):
    """The core and its oracle; the rules here are those of rounds, crashes and incarnations."""

    computation_class: type[Computation] = Computation

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.epoch = 0
        self.spec = Spec("c", ("a",), SHARES, max_skew=SKEW, history_step=STEP)
        self.fold = (1, (1,))
        self.core = self.computation_class(self.spec)
        self.oracle = Oracle(SHARES, SKEW, STEP, 0)
        self.records: list[bytes] = []
        self.images = [recovery.snapshot(self.core)]
        self.snapshots: list[tuple[int, bytes]] = []
        self.durable = self.oracle.image()
        self.published = (self.oracle.low, dict(self.oracle.heuristics))
        self.flying: bytes | None = None
        self.coming = self.published
        self.wanted_layout = self.oracle.layout
        self.coming_wanted = self.wanted_layout
        self.sequencers = [1]
        self.requests: list[dict[str, Any]] = []
        self.reports: list[tuple[GroupReport, dict[str, Any], bytes, tuple[int, int]]] = []
        self.numbers = 0
        self.seen_low = MIN
        self.turn = 0
        self.tide = 0

    def same(self, step: str, ours: Any, theirs: Any) -> Any:
        self.steps[step] += 1
        self.turn += 1
        expected: Any
        actual: Any
        try:
            expected = theirs()
        except Refusal as refusal:
            expected = refusal.reason
            self.steps[refusal.reason] += 1
        try:
            actual = ours()
        except errors.LowwaterError as error:
            actual = error.reason
        assert actual == expected, f"{step}: the core says {actual}, the oracle {expected}"
        if isinstance(actual, set):
            self.steps.update(str(reason) for reason, _ in (entry for entry in actual if isinstance(entry, tuple)))
        return actual

    def teardown(self) -> None:
        self.settle()

    def check(self) -> None:
        self.turn += 1
        self.core.check()
        ranges = [(run.group, place) for run in self.core.map.runs() for place in range(run.low, run.high)]
        starts = {group.bounds[place]: (group, place) for group, place in ranges}
        group, place = starts[b""]
        for index, cell in enumerate(self.oracle.cells):
            group, place = starts.get(edge(index), (group, place))
            value = int(self.core.map.columns.values[group.base + place])
            [handle] = group.handles_of(np.array([place])).tolist()
            assert value == cell.value, f"cell {index} stands at {value}, not {cell.value}"
            assert group.state.name == cell.state, f"cell {index} is {group.state.name}, not {cell.state}"
            if cell.claim is not None:
                assert (group.sequencer, handle) == (cell.claim.sequencer, cell.handle)
                assert group.finished == self.oracle.finished(cell.claim)
                self.steps["stand-ins"] += bool(cell.claim.masses and cell.claim.mass is None)
        self.steps["shrunk"] += any(group.handles is not None for group in self.core.map.run_groups())
        assert self.core.map.minimum() == self.oracle.minimum()
        assert self.core.masses.oldest_operation() == self.oracle.oldest_operation()
        assert list(self.core.history) == self.oracle.history
        assert self.core.vouched == self.oracle.vouched
        assert as_told(self.core.layout) == self.oracle.layout
        assert as_told(self.core.published_layout) == self.wanted_layout
        view = self.core.published
        assert (view.low, dict(view.heuristics)) == self.published
        assert view.low >= self.seen_low, "rule 3: what was published never goes down"
        self.seen_low = view.low

    def sequencer(self, pick: int) -> int:
        live = [c.sequencer for c in self.oracle.claims.values() if c.owned and c.live]
        sequencers = live if live and pick < 4 else self.sequencers
        return sequencers[-1 - pick % len(sequencers)]

    @precondition(lambda self: self.flying is None)
    @rule(later=st.sampled_from([0, 1, SECOND, 70 * SECOND]))
    def take(self, later: int) -> None:
        low, high, minimum = self.oracle.low, self.oracle.heuristics, self.oracle.minimum()
        if all(cell.state == "RETIRED" for cell in self.oracle.cells):
            minimum = MIN  # nobody is left to say that nothing will come
        high, length = dict(high), len(self.oracle.history)
        record = self.core.take_record(self.now)
        strong = self.oracle.record(self.now)
        self.steps["take"] += 1
        assert (None if record is None else record[1]) == strong
        assert self.core.low == self.oracle.low
        assert self.core.heuristics == self.oracle.heuristics
        assert self.core.low == (low if strong is None else beam_low(low, [minimum]))
        if record is not None:
            assert self.core.reference == self.oracle.reference
            self.records.append(record[0])
            self.images.append(recovery.snapshot(self.core))
            self.flying = self.oracle.image()
            self.coming, self.coming_wanted = (self.oracle.low, dict(self.oracle.heuristics)), self.oracle.layout
        self.steps["low moved"] += self.oracle.low != low
        self.steps["steps completed"] += len(self.oracle.history) - length
        self.steps["steps completed in a later incarnation"] += (
            self.oracle.incarnation > 1 and len(self.oracle.history) > length
        )
        self.steps["oldest operation"] += self.oracle.oldest_operation() > 0
        self.steps["high moved"] += (
            self.oracle.heuristics != high and max(self.oracle.heuristics.values()) > self.oracle.low
        )
        self.now += later
        self.check()

    @precondition(lambda self: self.flying is not None)
    @rule()
    def arrive(self) -> None:
        assert self.flying is not None
        self.durable, self.flying, self.published, self.wanted_layout = (
            self.flying,
            None,
            self.coming,
            self.coming_wanted,
        )
        # With an append in flight the shard stages nothing that publishing shows: only the watermarks are compared.
        operation = self.core.publish().oldest_operation
        assert operation == (0 if self.published[0] == MAX else self.oracle.oldest_operation())
        self.steps["arrive"] += 1
        self.check()

    def settle(self) -> None:
        if self.flying is not None:
            self.arrive()
        self.take(0)
        if self.flying is not None:
            self.arrive()

    @precondition(lambda self: self.turn % 5 == 2)
    @rule()
    def snapshot(self) -> None:
        self.settle()
        self.steps["snapshot"] += 1
        self.snapshots.append((len(self.records), recovery.snapshot(self.core)))

    @precondition(lambda self: self.turn % 5 == 1)
    @rule(arrived=st.booleans(), pick=st.integers(0, 5))
    def crash(self, arrived: bool, pick: int) -> None:
        self.steps["crash"] += 1
        if self.flying is not None:
            if arrived:
                self.durable = self.flying
            else:
                self.records.pop()
                self.images.pop()
        self.flying = None
        images = [(0, None), *self.snapshots]
        position, snapshot = images[-1 - pick % len(images)]
        self.epoch += 1
        base = 1000 * self.epoch
        core = recovery.recover(self.spec, snapshot, self.records[position:], epoch_base=base)
        core.__class__ = self.computation_class
        assert durable(recovery.snapshot(core)) == durable(self.images[-1])
        oracle: Oracle = pickle.loads(self.durable)
        for group in core.map.groups.values():
            claim = oracle.claims[group.sequencer]
            for sender, number in claim.numbers.items():
                assert claim.durable_numbers.get(sender, (0, 0)) <= group.senders.get(sender, (0, 0)) <= number
            claim.numbers = dict(group.senders)
            claim.operation = group.oldest_operation  # that of the last report that changed anything else
        assert core.batches.committed_by == oracle.committed_by
        oracle.crash(base)
        self.core, self.oracle = core, oracle
        self.durable, self.published = oracle.image(), (oracle.low, dict(oracle.heuristics))
        self.wanted_layout = oracle.layout
        self.sequencers.append(oracle.last_sequencer)
        self.check()

    @precondition(lambda self: self.oracle.last_sequencer % 4 == 2)
    @rule()
    def reset(self) -> None:
        self.begin_anew(dropped=False)

    def begin_anew(self, *, dropped: bool) -> None:
        self.settle()
        self.steps["reset"] += 1
        self.steps["reset of a layout"] += self.oracle.layout[1] != ()
        self.oracle.restart(dropped=dropped)
        incarnation = self.oracle.incarnation
        first = incarnation if dropped else self.spec.first
        self.spec = replace(self.spec, incarnation=incarnation, first=first)
        self.core = recovery.restarted(self.core, self.spec)
        self.core.__class__ = self.computation_class
        self.core.publish()
        self.images.append(recovery.snapshot(self.core))
        self.durable, self.published = self.oracle.image(), (MIN, dict.fromkeys(SHARES, MIN))
        self.seen_low, self.wanted_layout = MIN, self.oracle.layout
        self.check()
