"""Refuses a session whose Python workers cannot import what a query needs of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from lowwater_spark.errors import Unsupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_workers", "lacking"]

_LACKS: Final = 77
"""Exit code of the probe for a package that is not there."""
_PROBE: Final = f"import importlib.util, sys; sys.exit(0 if importlib.util.find_spec(sys.argv[1]) else {_LACKS})"
_SECONDS: Final = 30.0
_LOCAL: Final = re.compile(r"local(\[.*\])?")
_ENVIRONMENT: Final = "spark.executorEnv."

_FIT: Final[set[tuple[str, str]]] = set()
"""Interpreters and packages that were found to fit, so that a process asks once for each."""


def check_workers(spark: SparkSession, what: str, package: str = "lowwater_spark") -> None:
    """Raise Unsupported when Spark's Python workers are known to lack a package.

    Only workers that run on this machine and are sent no files can be checked. On a cluster the
    interpreter is another machine's, and archives may bring the package.
    """
    context = spark.sparkContext
    python = context.pythonExec
    if (python, package) in _FIT or _LOCAL.fullmatch(context.master or "") is None:
        return
    if context.listFiles or context.listArchives:
        return
    pairs = context.getConf().getAll()
    own = {name.removeprefix(_ENVIRONMENT): value for name, value in pairs if name.startswith(_ENVIRONMENT)}
    path = lacking(python, package, {**os.environ, **own})
    if path:
        raise Unsupported(
            what,
            f"Spark's Python workers run {path}, which has no {package}",
            f"Activate the environment of the driver before Spark starts, or set PYSPARK_PYTHON={sys.executable}.",
        )
    _FIT.add((python, package))


def lacking(python: str, package: str, environ: Mapping[str, str]) -> str:
    """Return the path of an interpreter that lacks a package; empty unless that is sure."""
    path = shutil.which(python, path=environ.get("PATH"))
    if path is None or path == sys.executable:
        return ""
    try:
        done = subprocess.run(
            [path, "-c", _PROBE, package], env=environ, timeout=_SECONDS, capture_output=True, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return path if done.returncode == _LACKS else ""
