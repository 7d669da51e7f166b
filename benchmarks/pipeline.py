"""Lag that each of three stages adds to the low watermark, beside Spark's own time for a stage.

A step is a file of records and the injector's claim that everything up to here is complete. It is
over when the low watermark of the last stage has come to the same time; then the next one begins.
The queries by themselves, which write the same files and say nothing, take turns with the stages:
their time from a file's appearance until the next stage's file is there is the floor, for no stage
can be complete before its output is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import child
from benchmarks.attach import session
from benchmarks.pipeline_between import Files, Made
from benchmarks.pipeline_stages import RANGES, STAGES, Pipeline, Step, Tracked, Untracked
from benchmarks.result import Result, Spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    rounds: int
    steps: int
    """Counted steps of each pipeline and round with records; as many follow without records."""
    windows: int
    """Counted steps of the pipeline with windows, each of which takes several batches."""
    warm_up: int
    """Steps at the start of each pipeline that do not count."""
    rows: int
    """Number of rows in a step."""


FULL: Final = Size(rounds=3, steps=22, windows=8, warm_up=3, rows=1000)
QUICK: Final = Size(rounds=1, steps=2, windows=1, warm_up=1, rows=50)

MILLWHEEL: Final[Mapping[str, object]] = {
    "millwheel_first_stage_ms": 1800,
    "millwheel_further_stage_ms": "< 200",
    "millwheel_is": "published (VLDB 2013, 8.2): 200 CPUs, lag behind real time, polled once a second; not measured here",
}

IDLE: Final = "without records nothing is to be seen of a query by itself"

BETWEEN: Final[Mapping[str, Made]] = {
    "foreach_batch": lambda _spark, folder, _rows: Files(folder, plain=False),
    "plain": lambda _spark, folder, _rows: Files(folder, plain=True),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A pipeline of stages, and what it is compared with."""

    factory: Made
    floor: str
    """The key of the queries by themselves."""
    baseline: str
    """Baseline in words."""
    driven: bool = False


KINDS: Final[Mapping[str, Kind]] = {
    "foreach_batch": Kind(BETWEEN["foreach_batch"], "foreach_batch", "the same queries by themselves, foreachBatch"),
    "plain": Kind(BETWEEN["plain"], "plain", "the same queries by themselves, file sink"),
    "driven": Kind(BETWEEN["plain"], "plain", "the same queries by themselves, file sink", driven=True),
}
"""Pipelines by name. ``driven``: plain stages, the last of which closes windows."""


@dataclass(slots=True)
class Found:
    """The steps of one kind of pipeline, by rounds."""

    rounds: list[list[Step]] = field(default_factory=list)
    silent: list[list[Step]] = field(default_factory=list)
    """Steps without records."""
    batches: list[list[float]] = field(default_factory=list)
    """Durations of each batch with records, milliseconds."""

    def claim(self) -> float:
        """Return the median time until a claim was acknowledged, milliseconds."""
        return Spread.percentile([[step.claim * 1000 for step in steps] for steps in self.rounds], 50).median


def stage(rounds: list[list[Step]], number: int, percent: float) -> Spread:
    """Return a percentile of what a stage added, of each round, milliseconds."""
    return Spread.percentile([[step.added[number - 1] for step in steps] for steps in rounds], percent)


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    with session() as spark:
        comparison = Comparison(spark, folder, size).run(BETWEEN, KINDS)
    return [line for kind in KINDS for line in lags("pipeline", kind, KINDS[kind], size, comparison, MILLWHEEL)]


class Comparison:
    """Pipelines of stages and the same queries by themselves, which take turns."""

    def __init__(self, spark: SparkSession, folder: Path, size: Size) -> None:
        self._spark = spark
        self._folder = folder
        self._size = size

    def run(self, alone: Mapping[str, Made], kinds: Mapping[str, Kind]) -> Mapping[tuple[str, bool], Found]:
        """Return the measured steps, by name and whether the queries are stages."""
        steps_of = {(name, False): Found() for name in alone} | {(name, True): Found() for name in kinds}
        size = self._size
        with child.authority(self._folder / "authority") as server:
            # The first pipeline of a JVM is slower than all that follow.
            for name, kind in kinds.items():
                self._measure(self._stages(f"{name}-first", kind, server.address), Found(), 0, silent=0)
            for turn in range(size.rounds):
                for name, factory in alone.items():
                    queries = Untracked(self._spark, self._folder / f"{name}-alone-{turn}", size.rows, factory)
                    self._measure(queries, steps_of[name, False], size.steps, silent=0)
                for name, kind in kinds.items():
                    count = size.windows if kind.driven else size.steps
                    stages = self._stages(f"{name}-{turn}", kind, server.address)
                    self._measure(stages, steps_of[name, True], count, silent=count)
        return steps_of

    def _stages(self, name: str, kind: Kind, address: str) -> Tracked:
        return Tracked(self._spark, self._folder / name, self._size.rows, kind.factory, address, driven=kind.driven)

    def _measure(self, pipeline: Pipeline, measured: Found, steps: int, *, silent: int) -> None:
        """Add the steps of a new pipeline, with records and without."""
        with pipeline:
            for _ in range(self._size.warm_up):
                pipeline.step()
            before = len(pipeline.batches())
            measured.rounds.append([pipeline.step() for _ in range(steps)])
            measured.batches.append(pipeline.batches()[before:])
            measured.silent.append([pipeline.step(records=False) for _ in range(silent)])
            pipeline.check()


def lags(
    benchmark: str,
    name: str,
    kind: Kind,
    size: Size,
    measured: Mapping[tuple[str, bool], Found],
    more: Mapping[str, object],
) -> list[Result]:
    """Return the lines about the lag that each stage of one kind adds."""
    ours, alone = measured[name, True], measured[kind.floor, False]
    lines = []
    # Of the pipeline with windows only the last stage is another one.
    for number in range(STAGES if kind.driven else 1, STAGES + 1):
        for suffix, rounds in (("", ours.rounds), ("_without_records", ours.silent)):
            for percent in (50, 95):
                value = stage(rounds, number, percent)
                least = stage(alone.rounds, number, percent) if rounds is ours.rounds else None
                facts: dict[str, object] = {
                    "n": sum(map(len, rounds)),
                    "ranges": RANGES,
                    "rows": 0 if least is None else size.rows,
                    "claim_ms": round(ours.claim(), 1),
                }
                if least is None:
                    facts["reason"] = IDLE
                else:
                    facts["more_ms"] = round(value.median - least.median, 1)
                metric = f"{name}_stage_{number}{suffix}_p{percent}"
                lines.append(Result(benchmark, metric, value, "ms", kind.baseline, least, facts | dict(more)))
    return lines
