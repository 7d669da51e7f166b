"""Copy ``version`` of ``[tool.lowwater]`` in pyproject.toml, that of the next release, elsewhere.

``make gen`` writes it into each distribution, the chart, the image and the commands that pages
show; ``make lint`` fails when one of them names another version. Afterwards ``uv lock`` takes it
into the lock.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Final

from scripts.dist import DISTRIBUTIONS, ROOT, version

_NUMBER: Final = r"\d+\.\d+\.\d+"
_PLACES: Final = re.compile(
    rf'(^version = "|^version: |^appVersion: "|^ARG VERSION=|\blowwater[a-z-]*(?:\[[a-z]+\])?==|\blowwater[:-]){_NUMBER}',
    re.MULTILINE,
)
_FILES: Final = (
    *(f"{folder}/pyproject.toml" for folder in DISTRIBUTIONS.values()),
    *(f"integrations/{name}/pyproject.toml" for name in ("airflow", "dagster", "openlineage")),
    *("helm/lowwater/Chart.yaml", "container/Dockerfile"),
    *(f"docs/operate/{page}.md" for page in ("helm", "operations", "spark-cluster")),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the version, or check it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a file differs")
    check = parser.parse_args(arguments).check
    outdated = []
    for name in _FILES:
        text = (ROOT / name).read_text(encoding="utf-8")
        expected, places = _PLACES.subn(rf"\g<1>{version()}", text)
        if not places:
            print(f"{name} names no version; take it out of scripts/version.py", file=sys.stderr)
            return 1
        if expected != text:
            outdated.append(name)
            if not check:
                (ROOT / name).write_text(expected, encoding="utf-8")
    if check and outdated:
        print(f"not the version of [tool.lowwater]: {', '.join(outdated)}; run make gen", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
