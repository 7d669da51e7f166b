"""Figures of stages that deduplicate: sums of what batches counted, each batch once, in the families that are declared. A real stage: tests/spark/test_deduplication.py."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry

from lowwater_pipeline.dedup.sieve import Counts
from lowwater_pipeline.dedup.stage_figures import register

if TYPE_CHECKING:
    from lowwater_spark import Batch

FIRST = Counts(10, 1, 2, 3, 4, 100, 5000, 30, 12, 7)
SECOND = Counts(20, 2, 4, 6, 8, 50, 2000, 60, 24, 14)


def batch(number: int, digest: str = "a") -> Batch:
    return cast("Batch", SimpleNamespace(id=number, digest=digest))


def exported(registry: CollectorRegistry, computation: str = "unique") -> list[int]:
    samples = [sample for family in registry.collect() for sample in family.samples]
    return [int(sample.value) for sample in samples if sample.labels["computation"] == computation]


def test_each_batch_counts_once_in_sums_and_the_last_one_in_gauges() -> None:
    registry = CollectorRegistry()
    figures = register(registry)
    for _ in range(2):
        figures.count("unique", batch(0), FIRST)
    assert exported(registry) == [10, 1, 2, 3, 4, 18, 7, 5, 100, 5000]
    figures.count("unique", batch(1), SECOND)
    assert exported(registry) == [30, 3, 6, 9, 12, 54, 21, 15, 50, 2000]
    figures.count("unique", batch(1, "b"), SECOND)
    assert exported(registry)[0] == 50, "one of another plan is another"


def test_neither_spark_nor_kafka_is_imported_for_figures_and_prometheus_client_not_for_stages() -> None:
    for module, unasked in (
        ("stage_figures", {"pyspark", "confluent_kafka", "rocksdict"}),
        ("stage", {"prometheus_client"}),
    ):
        check = f"import sys, lowwater_pipeline.dedup.{module}; print({unasked!r} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True, timeout=60)
        assert done.stdout == "set()\n", module
