"""Write the tables of the page of metrics from what the distributions declare.

Run ``python -m scripts.document_metrics`` when a metric changes; ``--check`` exits with 1 when the
page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import lowwater.prometheus
import lowwater_spark.prometheus
from lowwater.prometheus import Figure
from lowwater_authority.ops import computation_figures, metrics, shard_figures
from lowwater_pipeline.dedup import figures as dedup_figures
from lowwater_pipeline.dedup import stage_figures
from lowwater_regions import figures as region_figures
from scripts import tables

PAGE: Final = Path(__file__).resolve().parent.parent / "docs/reference/generated/metrics.md"

TABLES: Final[dict[str, Sequence[Figure]]] = {
    "computations": tuple(computation_figures.READ),
    "process": (
        *metrics.EVENTS,
        *shard_figures.PROCESS,
        shard_figures.HELD,
        shard_figures.CONFIRMED,
        shard_figures.NOT_AFTER,
        shard_figures.CERTIFICATE_REFUSED,
        shard_figures.ACCESS_REFUSED,
        shard_figures.TOKEN_EXPIRES,
        shard_figures.CLOCK,
        shard_figures.MEMORY_LIMIT,
        shard_figures.ERRORS,
        shard_figures.FREE,
        *shard_figures.GATES,
    ),
    "regions": (region_figures.BUILD, *region_figures.FIGURES),
    "client": lowwater.prometheus.FIGURES,
    "spark": lowwater_spark.prometheus.FIGURES,
    "dedup": dedup_figures.FIGURES,
    "dedup_stages": stage_figures.FIGURES,
}
"""Metrics of figure table, by the name in the page's markers."""


def table(figures: Iterable[Figure]) -> str:
    """Return figures as a table in Markdown."""
    rows = ["| name | type | labels | what it says |", "|---|---|---|---|"]
    for figure in figures:
        labels = ", ".join(f"`{label}`" for label in figure.labels)
        rows.append(f"| `{figure.name}` | {figure.kind} | {labels} | {figure.says} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(tables.main(PAGE, {name: table(figures) for name, figures in TABLES.items()}, __doc__))
