"""A shard in memory that is metered, and short words for what tests read of its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from prometheus_client.parser import text_string_to_metric_families

from lowwater_authority.engine.placement import Lows, Placement
from lowwater_authority.engine.shard import Shard
from lowwater_authority.ops.metrics import Metrics
from lowwater_authority.ops.range_survey import RangeSurvey
from lowwater_authority.ops.upstream import Upstream
from lowwater_authority.rpc.streams import Streams
from tests.kit.faults import FaultPlan
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.times import HOUR
from tests.unit.test_shard import Running

Labels = dict[str, str]


class Elsewhere(Placement):
    def __init__(self) -> None:
        self.published: dict[str, int] = {}
        self.away: set[str] = set()
        """Computations of which their shard does not answer, nor of any that are asked for with them."""
        self.asked: list[tuple[str, ...]] = []

    def home(self, name: str) -> str:
        """Each is served by a shard of its own."""
        return name

    async def lows(self, names: Sequence[str]) -> Lows:
        self.asked.append(tuple(names))
        if not self.away.isdisjoint(names):
            await asyncio.get_running_loop().create_future()
        return {name: (1, self.published[name] * HOUR) for name in names if name in self.published}


class Metered(Running):
    def __init__(self, faults: FaultPlan | None = None) -> None:
        super().__init__(MemoryDisk())
        self.metrics = Metrics("9.9")
        journal = MemoryJournal(MemoryDisk(), faults=faults)
        self.elsewhere = Elsewhere()
        self.shard = Shard(journal, clock=lambda: self.now, observer=self.metrics, placement=self.elsewhere)
        self.seconds = 0.0
        """The seconds of the clock that says how old an answer of another shard is."""
        self.upstream = Upstream(self.shard, monotonic=lambda: self.seconds, period=3600)
        self.streams = Streams()

    def watch(self) -> None:
        self.metrics.watch(self.shard, self.streams, self.upstream)

    @property
    def survey(self) -> RangeSurvey:
        assert self.metrics.survey is not None
        return self.metrics.survey

    def samples(self, name: str) -> list[tuple[Labels, float]]:
        text = self.metrics.render()[0].decode()
        families = text_string_to_metric_families(text)
        return [(item.labels, item.value) for family in families for item in family.samples if item.name == name]

    def of(self, name: str, **labels: str) -> dict[str, float]:
        pairs = labels.items()
        return {names["computation"]: value for names, value in self.samples(name) if names.items() >= set(pairs)}

    def value(self, name: str, **labels: str) -> float:
        values = [value for pairs, value in self.samples(name) if pairs == labels]
        assert len(values) <= 1
        return values[0] if values else 0


@asynccontextmanager
async def metered(faults: FaultPlan | None = None) -> AsyncIterator[Metered]:
    one = Metered(faults)
    await one.start()
    one.watch()
    yield one
    await one.stop()
