"""The lag that each stage of a three-stage pipeline adds to the low watermark, against what Spark itself needs for a stage.

A step is a file of records and the injector's claim that everything up to here is complete. It is over when the low watermark of the
last stage has come to the same time; then the next one begins. The queries by themselves, which write the same files and say nothing,
take turns with the stages: their time from a file's appearance until the next stage's file is there is the floor, for no stage can be
complete before its output is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import child
from benchmarks.attach import session
from benchmarks.pipeline_stages import RANGES, STAGES, TRACKED, UNTRACKED, Make, Step
from benchmarks.result import Result, Spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done."""

    rounds: int
    steps: int
    """That count, of each pipeline and round, with records, and as many without."""
    windows: int
    """That count, of the pipeline with windows: its steps take several batches each."""
    warm_up: int
    """Steps at the start of each pipeline that do not count."""
    rows: int
    """In a step."""


FULL: Final = Size(rounds=3, steps=22, windows=8, warm_up=3, rows=1000)
QUICK: Final = Size(rounds=1, steps=2, windows=1, warm_up=1, rows=50)

MILLWHEEL: Final[Mapping[str, object]] = {
    "millwheel_first_stage_ms": 1800,
    "millwheel_further_stage_ms": "< 200",
    "millwheel_is": "published (VLDB 2013, 8.2): 200 CPUs, lag behind real time, polled once a second; not measured here",
}

IDLE: Final = "without records nothing is to be seen of a query by itself"


@dataclass(slots=True)
class Found:
    """The steps of one kind of pipeline, by rounds."""

    rounds: list[list[Step]] = field(default_factory=list)

    def stage(self, number: int, percent: float) -> Spread:
        """Return a percentile of what a stage added, of each round, milliseconds."""
        return Spread.percentile([[step.added[number - 1] for step in steps] for steps in self.rounds], percent)

    def claim(self) -> float:
        """Return the median time until a claim was acknowledged, milliseconds."""
        return Spread.percentile([[step.claim * 1000 for step in steps] for steps in self.rounds], 50).median


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    floor = {kind: Found() for kind in UNTRACKED}
    ours = {kind: Found() for kind in TRACKED}
    silent = {kind: Found() for kind in TRACKED}
    with ExitStack() as stack:
        address = stack.enter_context(child.authority(folder / "authority")).address
        spark = stack.enter_context(session())
        # The first pipeline of a JVM is slower than all that follow.
        for kind, make in TRACKED.items():
            _measure(spark, folder / f"{kind}-first", address, make, size, 0)
        for turn in range(size.rounds):
            for kind, make in UNTRACKED.items():
                steps, _ = _measure(spark, folder / f"{kind}-alone-{turn}", address, make, size, size.steps)
                floor[kind].rounds.append(steps)
            for kind, make in TRACKED.items():
                count = size.windows if kind == "driven" else size.steps
                steps, idle = _measure(spark, folder / f"{kind}-{turn}", address, make, size, count, silent=count)
                ours[kind].rounds.append(steps)
                silent[kind].rounds.append(idle)
    return [line for kind in TRACKED for line in _lines(kind, size, ours[kind], silent[kind], floor)]


def _measure(
    spark: SparkSession, folder: Path, address: str, make: Make, size: Size, steps: int, *, silent: int = 0
) -> tuple[list[Step], list[Step]]:
    """Return the steps of a new pipeline, with records and without."""
    with make(spark, folder, size.rows, address) as pipeline:
        for _ in range(size.warm_up):
            pipeline.step()
        found = [pipeline.step() for _ in range(steps)]
        idle = [pipeline.step(records=False) for _ in range(silent)]
        pipeline.check()
    return found, idle


def _lines(kind: str, size: Size, ours: Found, silent: Found, floor: Mapping[str, Found]) -> list[Result]:
    alone = floor.get(kind, floor["plain"])
    baseline = f"the same queries by themselves, {'foreachBatch' if alone is floor['foreach_batch'] else 'file sink'}"
    lines = []
    # Of the pipeline with windows only the last stage is another one.
    for number in range(STAGES if kind == "driven" else 1, STAGES + 1):
        for name, found in (("", ours), ("_without_records", silent)):
            for percent in (50, 95):
                value = found.stage(number, percent)
                least = alone.stage(number, percent) if found is ours else None
                facts: dict[str, object] = {
                    "n": sum(map(len, found.rounds)),
                    "ranges": RANGES,
                    "rows": size.rows if found is ours else 0,
                    "claim_ms": round(found.claim(), 1),
                }
                if least is None:
                    facts["reason"] = IDLE
                else:
                    facts["more_ms"] = round(value.median - least.median, 1)
                metric = f"{kind}_stage_{number}{name}_p{percent}"
                lines.append(Result("pipeline", metric, value, "ms", baseline, least, facts | dict(MILLWHEEL)))
    return lines
