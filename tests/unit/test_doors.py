"""Tests outside of this folder use the public doors of the product; `tests/doors.toml` lists those that do not, with the reason.

Three kinds of other doors count: private attributes of other objects, imports of underscored names or modules of the product,
and patched attributes. `python -m tests.unit.test_doors` takes out of the list what is gone.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
LIST = TESTS / "doors.toml"
DOCUMENTED = {"_asdict", "_exit", "_fields", "_make", "_replace"}
"""Underscored names that Python documents for everybody: those of named tuples, and `os._exit`."""
PATCHING = {"setattr", "delattr", "patch", "object", "dict", "multiple"}


def doors(tree: ast.AST) -> Iterator[str]:
    """Yield the kind of each door of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match("_(?!_)", node.attr) and node.attr not in DOCUMENTED:
            if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}):
                yield "private"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lowwater"):
            if any(part.startswith("_") for name in node.names for part in f"{node.module}.{name.name}".split(".")):
                yield "imports"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PATCHING:
            patches = re.search(r"\bmock\.patch\b|\bpatch\.\w+$|^\w+\.(set|del)attr$", ast.unparse(node.func))
            yield from ["patches"] if patches else []


def used() -> dict[str, dict[str, int]]:
    files = sorted(file for file in TESTS.rglob("*.py") if file.relative_to(TESTS).parts[0] != "unit")
    counts = {str(file.relative_to(TESTS)): Counter(doors(ast.parse(file.read_text("utf-8")))) for file in files}
    return {file: dict(sorted(count.items())) for file, count in counts.items() if count}


def line(file: str, counts: dict[str, int]) -> str:
    return f'"{file}" = {{ {", ".join(f"{kind} = {count}" for kind, count in sorted(counts.items()))} }}'


def test_no_door_but_the_listed_ones_is_used_and_no_listed_one_is_gone() -> None:
    groups = tomllib.loads(LIST.read_text("utf-8"))
    assert [name for name, group in groups.items() if not group.get("reason")] == []
    pairs = [(file, counts) for group in groups.values() for file, counts in group["files"].items()]
    listed, now = dict(pairs), used()
    assert len(listed) == len(pairs), "a file stands under two reasons"
    wrong = [line(file, now.get(file, {})) for file in sorted(listed | now) if listed.get(file) != now.get(file)]
    assert not wrong, f"{LIST.name} has other numbers:\n" + "\n".join(wrong)


def test_each_kind_of_door_is_found() -> None:
    text = """
from lowwater._sync import views
from lowwater.layout import _starts
from lowwater import Layout
from os import _exit
self._own = other._private._replace(a=other.public)
monkeypatch.setattr(Layout, "split", None)
mock.patch.object(Layout, "split")
setattr(other, name, None)
"""
    assert Counter(doors(ast.parse(text))) == {"private": 1, "imports": 2, "patches": 2}


if __name__ == "__main__":
    NOW = used()
    lines = []
    for entry in LIST.read_text("utf-8").splitlines():
        if counts := next(iter(tomllib.loads(entry).items()), None) if entry.startswith('"') else None:
            counts_ = {kind: min(count, NOW.get(counts[0], {}).get(kind, 0)) for kind, count in counts[1].items()}
            entry = line(counts[0], {kind: count for kind, count in counts_.items() if count})
        lines += [entry] if not entry.endswith("{  }") else []
    LIST.write_text("\n".join(lines) + "\n", "utf-8")
