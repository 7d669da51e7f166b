"""Write the Python blocks of the pages into build/blocks/pages, a module for each page, for mypy.

A page leaves names to its reader, such as a session. The usual ones get their types here, unless
the page binds them itself; for mypy any other name is of any type (``pages.*`` in pyproject.toml).
"""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Final

from scripts.dist import ROOT

FOLDER: Final = ROOT / "build/blocks/pages"
BLOCK: Final = re.compile(r"^ *```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
HEAD: Final = """\
from datetime import datetime, timedelta
import lowwater
import lowwater_spark as lws
from pyspark.sql import DataFrame, SparkSession, functions as F
"""
NAMES: Final = {
    "batch": "lws.Batch",
    "lease": "lowwater.Lease",
    "lw": "lowwater.Client",
    "rows": "DataFrame",
    "spark": "SparkSession",
    "stage": "lws.Stage",
    "tasks": "lowwater.Tasks",
    "worker": "lowwater.Worker",
}
"""Names that pages use without binding them, with their types."""
WRITE: Final = re.compile(r"^( *def \w+)\(rows, batch\)", re.MULTILINE)
"""The function of a batch, whose arguments have types here that readers need not write."""


def module_of(text: str) -> str:
    """Return the module of a page's blocks; empty without any."""
    code = "\n".join(textwrap.dedent(block) for block in BLOCK.findall(text))
    bound = {
        node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    names = "".join(f"{name}: {kind}\n" for name, kind in NAMES.items() if name not in bound)
    return HEAD + names + WRITE.sub(r"\1(rows: DataFrame, batch: lws.Batch)", code) if code else ""


def main() -> None:
    """Write all modules anew."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.py"):
        old.unlink()
    (FOLDER / "__init__.py").touch()
    for page in (*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/README.md"), *ROOT.glob("docs/*/**/*.md")):
        name = re.sub(r"\W", "_", page.relative_to(ROOT).with_suffix("").as_posix())
        if module := module_of(page.read_text(encoding="utf-8")):
            (FOLDER / f"{name}.py").write_text(module, encoding="utf-8")


if __name__ == "__main__":
    main()
