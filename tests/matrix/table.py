"""Write the tables of the matrix into the documentation: ``python -m tests.matrix.table``; ``--check`` exits with 1 when one of them is out of date."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

from scripts import tables
from tests.compatibility.environments import ROOT
from tests.matrix.cells import CELLS, KINDS, SOURCES, STORES, Cell

RESULTS: Final = ROOT / "tests/matrix/results.json"
FIT: Final = ROOT / "docs/start/fit.md"
MATRIX: Final = ROOT / "docs/reference/generated/matrix.md"

Results = Mapping[str, Mapping[str, Any]]


def verdict(cell: Cell, results: Results) -> str:
    """Return what is known of a cell, in a few words."""
    if cell.absent:
        return "–"
    result = results.get(str(cell))
    if result is None:
        return "not run"
    return "exact" if result["exact"] else "not exact"


def short(results: Results) -> str:
    """Return the verdicts, a row for each kind and source."""
    lines = [f"| job | source | {' | '.join(STORES.values())} |", f"|---|---|{'---|' * len(STORES)}"]
    for kind, job in KINDS.items():
        for source, name in SOURCES.items():
            verdicts = [verdict(Cell(kind, source, store), results) for store in STORES]
            if {*verdicts} != {"–"}:
                lines.append(f"| {job} | {name} | {' | '.join(verdicts)} |")
    return "\n".join(lines)


def long(results: Results) -> str:
    """Return the results of each cell that was run."""
    lines = [
        "| cell | PySpark | kills: job, sidecar | wrong windows | leads | seconds to catch up |",
        "|---|---|---|---|---|---|",
    ]
    for cell in CELLS:
        result = results.get(str(cell))
        if result is None:
            continue
        begun = f"| `{cell}` | {result['spark']} |"
        if "error" in result:
            lines.append(f"{begun} {result['error'].replace('|', '/')} | | | |")
            continue
        kills = f"{result['job_kills']}, {result['sidecar_kills']}"
        lines.append(f"{begun} {kills} | {result['wrong']} | {result['leads']} | {result['seconds']:g} |")
    return "\n".join(lines)


def main() -> int:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    pages = ((FIT, {"matrix": short(results)}), (MATRIX, {"matrix": long(results)}))
    return max(tables.main(page, content, __doc__) for page, content in pages)


if __name__ == "__main__":
    sys.exit(main())
