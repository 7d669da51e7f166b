"""Write generated tables into pages, each between a mark with its name and the next end mark."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path


def filled(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with these tables between their marks.

    Raises SystemExit unless the page has the marks of each table once.
    """
    for name, table in tables.items():
        places = re.findall(rf"<!-- table: {name} -->\n.*?<!-- end -->", page, re.DOTALL)
        if len(places) != 1:
            msg = f"the page has the table {name!r} {len(places)} times, not once"
            raise SystemExit(msg)
        page = page.replace(places[0], f"<!-- table: {name} -->\n{table}\n<!-- end -->")
    return page


def main(path: Path, tables: Mapping[str, str], says: str | None) -> int:
    """Write the tables of a page, or check them with ``--check``; returns the exit code.

    ``says`` is the description in ``--help``.
    """
    parser = argparse.ArgumentParser(description=says)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 when the page is not up to date"
    )
    args = parser.parse_args()
    before = path.read_text(encoding="utf-8")
    after = filled(before, tables)
    if not args.check:
        path.write_text(after, encoding="utf-8")
    elif before != after:
        print(f"{path} is not up to date; run: make gen", file=sys.stderr)
        return 1
    return 0
