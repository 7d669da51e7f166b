"""The documentation as a site: the files that are read in a checkout, by Sphinx, with search. ``make site`` builds it, and a link that leads nowhere ends the build."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT: Final = Path(__file__).parents[2]

PAGES: Final = {
    "Start": [
        "docs/README",
        *(f"docs/start/{name}" for name in ("tutorial", "fit", "doctor", "examples")),
        "examples/README",
    ],
    "Concepts": [
        *(f"docs/concepts/{name}" for name in ("glossary", "guarantees", "design", "spark", "carrier", "stages")),
        *(
            f"docs/concepts/{name}"
            for name in ("computations", "exactly-once", "lateness-budget", "simulation", "reading-the-code")
        ),
    ],
    "Reference": [
        *(f"docs/reference/{name}" for name in ("client", "cli", "sources", "outputs", "spark")),
        *(f"docs/reference/{name}" for name in ("protocol", "logs")),
        *(f"docs/reference/generated/{name}" for name in ("commands", "matrix", "metrics", "panels", "values")),
        *(f"integrations/{name}/README" for name in ("airflow", "dagster", "openlineage")),
        "conformance/README",
        "benchmarks/performance",
        "benchmarks/README",
        "benchmarks/spark",
    ],
    "Operate": [
        *(f"docs/operate/{name}" for name in ("helm", "operations", "durability", "security", "monitoring")),
        *(f"docs/operate/{name}" for name in ("status-page", "schedule", "scale", "regions", "spark-cluster")),
        *(f"monitoring/runbooks/{name}" for name in ("authority", "pipeline", "workloads", "dedup", "regions")),
    ],
    "The project": ["CONTRIBUTING", "SECURITY", "CHANGELOG"],
}
"""The pages beside README, by the heading that they stand under at the side. One that is left out ends the build."""

project = "lowwater"
release = tomllib.loads((ROOT / "client/pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "docs/README.md",
    "docs/*/*.md",
    "docs/reference/generated/*.md",
    "benchmarks/*.md",
    "conformance/README.md",
    "examples/README.md",
    "monitoring/runbooks/*.md",
    "integrations/*/README.md",
]
suppress_warnings = ["misc.highlighting_failure"]  # textproto has no lexer
myst_heading_anchors = 6  # headings have the anchors that viewers of a checkout give them
nitpicky = True
html_theme = "furo"
html_title = f"lowwater {release}"
html_extra_path = ["extra"]  # an index.html, which leads to README.html


def with_pages(_: Sphinx, name: str, source: list[str]) -> None:
    """Give README the list of pages, which a checkout does not need."""
    if name == root_doc:
        for caption, pages in PAGES.items():
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", with_pages)
