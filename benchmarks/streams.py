"""Lag that each stage adds over Spark's floor with Kafka or Delta between, and cost of tracking.

The pipelines are those of ``pipeline``; only what stands between the queries differs. ``kafka`` and
``delta`` are stages that write with Spark's own sinks, so they differ from the baseline by the
tracking alone. ``kafka_once`` and ``delta_once`` write with ``batch.write_kafka`` and
``batch.write_table``, which do what those sinks do not: each row once, whatever is killed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.attach import session
from benchmarks.pipeline import Comparison, Found, Kind, Size, lags
from benchmarks.pipeline_between import Made, Tables, Topics
from benchmarks.pipeline_stages import RANGES, STAGES
from benchmarks.result import Result, Spread
from scripts.jars import jars
from tests.kit import delta
from tests.kit.kafka import Kafka

FULL: Final = Size(rounds=3, steps=12, windows=0, warm_up=3, rows=1000)
QUICK: Final = Size(rounds=1, steps=2, windows=0, warm_up=1, rows=50)

WIDE: Final = Size(rounds=3, steps=4, windows=0, warm_up=2, rows=50_000)
"""Sizes with more rows in a batch, which show what tracking adds to a batch."""

BASELINE: Final = "the same queries by themselves, Spark's own sink"


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    settings = {
        "spark.driver.extraClassPath": os.pathsep.join(
            str(jar) for connector in ("kafka", "delta") for jar in jars(connector)
        ),
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        **delta.SETTINGS,
    }
    with ExitStack() as stack:
        kafka = stack.enter_context(Kafka(folder / "broker"))
        spark = stack.enter_context(session(settings))
        kinds = _kinds(kafka)
        alone = {name: kinds[name].factory for name in ("kafka", "delta")}
        lines: list[Result] = []
        for size in (QUICK,) if quick else (FULL, WIDE):
            place = folder / str(size.rows)
            place.mkdir()
            comparison = Comparison(spark, place, size).run(alone, kinds)
            for name, kind in kinds.items():
                if size is not WIDE:
                    lines += lags("streams", name, kind, size, comparison, {})
                lines.append(_batch(name, kind, size, comparison))
    return lines


def _kinds(kafka: Kafka) -> Mapping[str, Kind]:
    def topics(*, once: bool) -> Made:
        return lambda _spark, folder, rows: Topics(folder, kafka, STAGES, rows, once=once)

    def tables(*, once: bool) -> Made:
        return lambda spark, folder, rows: Tables(folder, spark, STAGES, rows, once=once)

    return {
        "kafka": Kind(topics(once=False), "kafka", BASELINE),
        "kafka_once": Kind(topics(once=True), "kafka", BASELINE),
        "delta": Kind(tables(once=False), "delta", BASELINE),
        "delta_once": Kind(tables(once=True), "delta", BASELINE),
    }


def _batch(name: str, kind: Kind, size: Size, comparison: Mapping[tuple[str, bool], Found]) -> Result:
    ours, alone = (
        Spread.percentile(measured.batches, 50) for measured in (comparison[name, True], comparison[kind.floor, False])
    )
    facts = {
        "n": sum(map(len, comparison[name, True].batches)),
        "ranges": RANGES,
        "rows": size.rows,
        "more_ms": round(ours.median - alone.median, 1),
    }
    return Result("streams", f"{name}_batch_of_{size.rows}_rows", ours, "ms", kind.baseline, alone, facts)
