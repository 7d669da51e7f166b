"""Random interleavings of claims, raises, writes, crashes and lost answers against an oracle that was written apart, on each store."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lowwater_pipeline.guard import Claim, GuardError, slot_bounds
from tests.guard.oracle import Oracle
from tests.guard.stores import Store, claim

SLOTS = 4
PARTS = [(0, 4), (0, 2), (2, 4), (1, 2), (0, 1)]
BASE = 2**63
"""Tokens next to each other are the same double."""

COUNTS = {"postgres": 40, "redis": 60, "files": 25}
"""How many stories: as many as take some seconds."""


class World:
    """Workers, the store, and the truth about it. What a worker sends may arrive late, twice, or after the worker has crashed."""

    def __init__(self, store: Store, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.store, self.draw = store, draw
        self.oracle = Oracle(SLOTS)
        self.granted = BASE
        self.workers: list[tuple[Claim, range, list[bytes]]] = []
        self.wire: list[Callable[[], None]] = []
        self._numbers = itertools.count()

    def claim(self) -> None:
        """The authority grants a claim; sometimes one token twice, since it has lost its epoch."""
        if not self.workers or self.draw(st.integers(0, 9)):
            self.granted += self.draw(st.integers(1, 2))
        known = [each for each, _, _ in self.workers]
        configuration = max([each.configuration for each in known], default=0) + (self.draw(st.integers(0, 5)) == 0)
        if known and self.draw(st.integers(0, 9)) == 0:
            configuration = known[0].configuration  # started by an old one
        incarnation = max([each.incarnation for each in known], default=1) + (self.draw(st.integers(0, 9)) == 0)
        identity = self.draw(st.sampled_from(["checkpoint", "checkpoint", "checkpoint", "another"]))
        made = claim(
            self.granted,
            f"nonce {next(self._numbers)}",
            configuration=configuration,
            incarnation=incarnation,
            identity=identity,
        )
        first, end = self.draw(st.sampled_from(PARTS))
        bounds = slot_bounds(SLOTS)
        self.workers.append((made, range(first, end), bounds[first : end + 1]))

    def raise_(self) -> None:
        made, slots, bounds = self._worker()
        begin = self.draw(st.sampled_from([0, 7]))

        def arrive() -> None:
            expected = self.oracle.raise_(made, slots, begin)
            outcome = self._outcome(
                lambda: self.store.raise_(made, slots=SLOTS, bounds=[bounds[0], bounds[-1]], begin=begin)
            )
            assert (outcome if isinstance(outcome, str) else "raised") == expected

        self._send(arrive)

    def write(self) -> None:
        made, slots, bounds = self._worker()
        touched = slots if self.draw(st.booleans()) else [self.draw(st.sampled_from(list(slots)))]
        steps = {}
        for slot in touched:
            story = self.oracle.slots[slot]
            steps[slot] = max(0, story.next + self.draw(st.sampled_from([0, 0, 0, 0, -1, 1])))
        digest = self.draw(st.sampled_from(["a", "b"]))
        values = [next(self._numbers)]
        writer = self.store.unraised(made, slots=SLOTS, bounds=[bounds[0], bounds[-1]])

        def arrive() -> None:
            expected = self.oracle.write(made, steps, digest, values)
            outcome = self._outcome(
                lambda: "written" if self.store.write(writer, steps, digest, values) else "there already"
            )
            assert outcome == expected

        self._send(arrive)

    def _worker(self) -> tuple[Claim, range, list[bytes]]:
        """One of the last few, mostly the newest; those before it are zombies, or have crashed."""
        recent = self.workers[-4:]
        back: int = self.draw(st.sampled_from([0, 0, 0, 1, 2, 3]))
        return recent[-1 - min(back, len(recent) - 1)]

    def _send(self, arrive: Callable[[], None]) -> None:
        """Now, or later, or now and once more: the answer was lost."""
        how = self.draw(st.sampled_from(["now", "now", "now", "late", "twice"]))
        if how != "late":
            arrive()
        if how == "twice":
            arrive()
        if how != "now":
            self.wire.append(arrive)

    def deliver(self) -> None:
        if self.wire:
            self.wire.pop(self.draw(st.integers(0, len(self.wire) - 1)))()

    @staticmethod
    def _outcome(call: Callable[[], object]) -> object:
        try:
            return call()
        except GuardError as refused:
            return type(refused).__name__

    def check(self) -> None:
        """What stands there is what was written, and the rows are what the stories end with."""
        assert self.store.values() == self.oracle.values
        for slot, row in self.store.rows(slots=SLOTS).items():
            story = self.oracle.slots[slot]
            if story.owner is None:
                assert row is None
                continue
            assert row is not None
            assert (row.token, row.nonce, row.configuration) == (
                story.owner.token,
                story.owner.nonce,
                story.owner.configuration,
            )
            assert row.batch == story.next - 1


@pytest.mark.parametrize("kind", COUNTS)
def test_no_interleaving_makes_a_store_differ_from_the_truth(kind: str, new_store: Callable[[str], Store]) -> None:
    @settings(
        max_examples=COUNTS[kind],
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    @given(st.data())
    def story(data: st.DataObject) -> None:
        world = World(new_store(kind), data.draw)
        world.claim()
        for step in data.draw(st.lists(st.sampled_from("crrwwwwd"), min_size=10, max_size=40)):
            {"c": world.claim, "r": world.raise_, "w": world.write, "d": world.deliver}[step]()
        while world.wire:
            world.deliver()
        world.check()

    story()
