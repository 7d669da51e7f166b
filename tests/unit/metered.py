"""A shard in memory that is metered, and short words for what tests read of its metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client.parser import text_string_to_metric_families

from lowwater_authority.engine.shard import Shard
from lowwater_authority.ops.metrics import Metrics
from lowwater_authority.ops.range_survey import RangeSurvey
from lowwater_authority.rpc.streams import Streams
from lowwater_authority.web.board import Board
from tests.kit.faults import FaultPlan
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.unit.test_shard import Running

Labels = dict[str, str]


class Metered(Running):
    """A running shard whose observer is the real one."""

    def __init__(self, faults: FaultPlan | None = None) -> None:
        super().__init__(MemoryDisk())
        self.metrics = Metrics("9.9")
        journal = MemoryJournal(MemoryDisk(), faults=faults)
        self.shard = Shard(journal, clock=lambda: self.now, observer=self.metrics)
        self.board = Board()
        self.stale_for: float | None = 0.0
        """Seconds since what the board has was confirmed."""
        self.streams = Streams()

    def watch(self) -> None:
        self.metrics.watch(self.shard, self.streams, self.board, lambda: self.stale_for)

    @property
    def survey(self) -> RangeSurvey:
        assert self.metrics.survey is not None
        return self.metrics.survey

    def samples(self, name: str) -> list[tuple[Labels, float]]:
        """What a scrape has under a name, as its reader sees it."""
        text = self.metrics.render()[0].decode()
        families = text_string_to_metric_families(text)
        return [(each.labels, each.value) for family in families for each in family.samples if each.name == name]

    def of(self, name: str, **labels: str) -> dict[str, float]:
        """The values by computation of the series that have some labels."""
        wanted = labels.items()
        return {found["computation"]: value for found, value in self.samples(name) if found.items() >= set(wanted)}

    def value(self, name: str, **labels: str) -> float:
        """The value of the one series that has exactly these labels; 0 when there is none."""
        found = [value for each, value in self.samples(name) if each == labels]
        assert len(found) <= 1
        return found[0] if found else 0


@asynccontextmanager
async def metered(faults: FaultPlan | None = None) -> AsyncIterator[Metered]:
    """One that runs, and is watched."""
    one = Metered(faults)
    await one.start()
    one.watch()
    yield one
    await one.stop()
