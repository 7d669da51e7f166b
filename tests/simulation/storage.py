"""The durable storage of the workers: shared, slow, fenced by sequencers (MillWheel 6.2), and never wrong.

Each call takes a while before and after the one instant at which it happens. A worker that dies in between never learns whether it
happened; what happened, happened whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from lowwater import Inputs
from tests.simulation.truth import MIN, Pipeline, Record

if TYPE_CHECKING:
    from tests.simulation.oracle import Oracle


class Fenced(Exception):
    """A newer claim has opened the cell."""


@dataclass(frozen=True)
class Plan:
    """The records of a micro-batch, written down before it runs, so that a replay takes in the same."""

    inputs: Inputs
    records: Mapping[int, Sequence[Record]]

    @property
    def digest(self) -> bytes:
        numbers = [record.number for index in sorted(self.records) for record in self.records[index]]
        return hash((self.inputs.low.micros, *numbers)).to_bytes(8, "little", signed=True)


@dataclass
class Checkpoint:
    ordinal: int = 0
    committed: int = 0
    """The number of the last batch that was committed; they count from 1."""
    plans: dict[int, Plan] = field(default_factory=dict)


class Storage:
    def __init__(self, pipeline: Pipeline, random: Random) -> None:
        self._pipeline = pipeline
        self._random = random
        self._checkpoints = {name: Checkpoint() for name in pipeline.nodes}

    async def _trip(self) -> None:
        await asyncio.sleep(self._random.uniform(0.001, 0.02))

    def _check(self, name: str, index: int, sequencer: int) -> None:
        if sequencer < self._pipeline.nodes[name].cells[index].fence:
            raise Fenced

    async def open(self, name: str, cells: Sequence[int], sequencer: int) -> None:
        await self._trip()
        for index in cells:
            self._check(name, index, sequencer)
        for index in cells:
            self._pipeline.nodes[name].cells[index].fence = sequencer
        await self._trip()

    async def read(self, name: str, cells: Sequence[int], sequencer: int) -> dict[int, list[Record]]:
        await self._trip()
        records = {}
        for index in cells:
            self._check(name, index, sequencer)
            records[index] = list(self._pipeline.nodes[name].cells[index].pending.values())
        await self._trip()
        return records

    async def finish(
        self,
        name: str,
        index: int,
        sequencer: int,
        records: Sequence[Record],
        outputs: Sequence[int],
        closed: int = MIN,
    ) -> None:
        await self._trip()
        self._check(name, index, sequencer)
        self._pipeline.finish(name, index, records, outputs, closed)
        await self._trip()

    async def take_on(self, name: str, cells: Sequence[int], sequencer: int, time: int, oracle: Oracle) -> None:
        await self._trip()
        for index in cells:
            self._check(name, index, sequencer)
        oracle.restore(name, cells, time)
        await self._trip()

    async def inject(self, name: str, index: int, sequencer: int, count: int) -> int:
        await self._trip()
        self._check(name, index, sequencer)
        self._pipeline.inject(name, index, count)
        source = self._pipeline.nodes[name].cells[index].source
        assert source is not None
        frontier = source.frontier
        await self._trip()
        return frontier

    async def begin_run(self, name: str) -> tuple[int, int, Plan | None]:
        """Begin a run: its ordinal, its generation (the first batch not committed), and that batch's plan, if there is one."""
        await self._trip()
        checkpoint = self._checkpoints[name]
        checkpoint.ordinal += 1
        generation = checkpoint.committed + 1
        began = checkpoint.ordinal, generation, checkpoint.plans.get(generation)
        await self._trip()
        return began

    async def plan(self, name: str, batch: int, sequencer: int, plan: Plan | None) -> Plan | None:
        await self._trip()
        self._check(name, 0, sequencer)
        checkpoint = self._checkpoints[name]
        if batch <= checkpoint.committed:
            raise Fenced
        if plan is not None:
            checkpoint.plans.setdefault(batch, plan)
        logged = checkpoint.plans.get(batch)
        await self._trip()
        return logged

    async def commit(
        self,
        name: str,
        batch: int,
        sequencer: int,
        finished: Mapping[int, tuple[Sequence[Record], Sequence[int]]],
        closed: int,
    ) -> None:
        await self._trip()
        checkpoint = self._checkpoints[name]
        for index in finished:
            self._check(name, index, sequencer)
        if checkpoint.committed != batch - 1:
            raise Fenced
        checkpoint.committed = batch
        checkpoint.plans.pop(batch - 1, None)
        for index, (records, outputs) in finished.items():
            self._pipeline.finish(name, index, records, outputs, closed)
        await self._trip()
