"""Writes the tables of docs/metrics.md from what the authority, the client and the Spark package declare.

``python scripts/document_metrics.py`` is run when a figure changes; ``--check`` exits with 1 unless the page has them as they are.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import lowwater.prometheus
import lowwater_spark.prometheus
from lowwater.prometheus import Figure
from lowwater_authority.web import collecting, computation_figures, metrics

PAGE: Final = Path(__file__).resolve().parent.parent / "docs/metrics.md"
ADVICE: Final = "run: python scripts/document_metrics.py"

TABLES: Final[dict[str, Sequence[Figure]]] = {
    "computations": tuple(computation_figures.READ),
    "process": (
        *metrics.EVENTS,
        *collecting.PROCESS,
        collecting.CONFIRMED,
        collecting.NOT_AFTER,
        collecting.ERRORS,
        *collecting.GATES,
    ),
    "client": lowwater.prometheus.FIGURES,
    "spark": lowwater_spark.prometheus.FIGURES,
}
"""By the name in the page's markers."""


def table(figures: Iterable[Figure]) -> str:
    """Return figures as a table in Markdown."""
    rows = ["| name | type | labels | what it says |", "|---|---|---|---|"]
    for each in figures:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        rows.append(f"| `{each.name}` | {each.kind} | {labels} | {each.says} |")
    return "\n".join(rows)


def filled(page: str) -> str:
    """Return the page with its tables as they should be. Raises SystemExit when a marker is missing."""
    for name, figures in TABLES.items():
        found = re.findall(rf"<!-- table: {name} -->\n.*?<!-- end -->", page, re.DOTALL)
        if len(found) != 1:
            msg = f"{PAGE} has the table {name!r} {len(found)} times, not once"
            raise SystemExit(msg)
        page = page.replace(found[0], f"<!-- table: {name} -->\n{table(figures)}\n<!-- end -->")
    return page


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 when the page is not up to date"
    )
    args = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before)
    if args.check:
        if before != after:
            print(f"docs/metrics.md is not up to date; {ADVICE}", file=sys.stderr)
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
