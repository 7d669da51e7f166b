"""Write the tables of the page of values and of the chart's README from values.yaml.

Run ``python -m scripts.document_values`` when a value changes; ``--check`` exits with 1 when one of
them is out of date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from scripts import tables

ROOT: Final = Path(__file__).resolve().parent.parent
VALUES: Final = ROOT / "helm/lowwater/values.yaml"
PAGES: Final = (ROOT / "docs/reference/generated/values.md", ROOT / "helm/lowwater/README.md")
MARK: Final = "# -- "


class Value(NamedTuple):
    """One value that a user can set."""

    path: str
    """Keys of the value joined by dots, as for ``helm --set``."""
    default: Any
    says: str


def values(text: str) -> Iterator[Value]:
    """Return the values of a values.yaml in its order.

    Raises ValueError for one that no comment explains.
    """
    yield from _below("", yaml.compose(text, yaml.SafeLoader), text.splitlines())


def _below(prefix: str, node: Any, lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        above = key.start_mark.line - 1
        while lines[above].strip().startswith("# ") and not lines[above].strip().startswith(MARK):
            above -= 1
        if lines[above].strip().startswith(MARK):
            # A mapping with a comment of its own is one value, however much is in it.
            default = yaml.SafeLoader("").construct_document(value)
            comment = " ".join(line.strip().removeprefix("# ") for line in lines[above : key.start_mark.line])
            yield Value(path, default, comment.removeprefix("-- "))
        elif isinstance(value, yaml.MappingNode) and value.value:
            yield from _below(f"{path}.", value, lines)
        else:
            msg = f"line {key.start_mark.line + 1}: {path} has no comment that begins with {MARK!r} right above it"
            raise ValueError(msg)


def table(text: str) -> str:
    """Return the values as a table in Markdown."""
    rows = ["| value | default | what it is |", "|---|---|---|"]
    for value in values(text):
        default = json.dumps(value.default).replace("|", "\\|")
        rows.append(f"| `{value.path}` | `{default}` | {value.says.replace('|', '&#124;')} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(max(tables.main(page, {"values": table(VALUES.read_text(encoding="utf-8"))}, __doc__) for page in PAGES))
