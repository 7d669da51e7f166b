"""Environments with another PySpark beside this source tree; made once per machine, below .tools, and found again by what they depend on."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys

from tests.compatibility.environments import ROOT, UV, clean_environ
from tests.kit.program import run_program

KEPT = ROOT / ".tools/floors"
OLDEST = "3.5.7"
"""A patch of the oldest line whose checkpoints are read. Nothing else of lowwater runs on it."""
CLIENTS = ("./client", "./spark_listener[pyspark]")
"""The packages on a cluster: the driver's side without an authority, which needs a newer numpy than old versions of pandas can use."""
NOTEBOOK = ("./client", "./server", "./authority", "./spark_listener[embedded,pyspark]")
"""All of it, with the authority that attach starts beside the driver."""
# What uv says when a package is neither in its cache nor to be had: the network is away, or it was told not to use it.
AWAY = (
    "Failed to fetch",
    "Failed to download",
    "error sending request",
    "network connectivity is disabled",
    "network was disabled",
)


class NotFetchedError(Exception):
    """The packages of an environment are not on this machine and cannot be fetched."""


def environment(pyspark: str, members: tuple[str, ...], *others: str, name: str = "") -> str:
    """Return the interpreter of an environment with this PySpark, what it needs, and our distributions as they stand here.

    ``others`` are further requirements, and ``name`` tells two of one PySpark apart. Everything else is the newest that goes with it. Costs 0.1 s when found; when made 10 to 30 s from
    uv's cache, and the first time some 450 MB to fetch and minutes. Raises NotFetchedError.
    """
    needs = [f"pyspark=={pyspark}", *others]
    projects = [(ROOT / member.partition("[")[0] / "pyproject.toml").read_text() for member in members]
    digest = hashlib.sha256("\n".join([sys.version, sys.platform, *needs, *members, *projects]).encode()).hexdigest()
    folder = KEPT / (name or pyspark)
    python = str(folder / "bin/python")
    KEPT.mkdir(parents=True, exist_ok=True)
    # Two runs of the tests at a time must not make the same one.
    with (KEPT / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = folder / "complete"
        if not complete.exists() or complete.read_text() != digest:
            shutil.rmtree(folder, ignore_errors=True)
            _uv("venv", "--quiet", "--python", sys.executable, str(folder))
            ours = [argument for member in members for argument in ("--editable", member)]
            _uv("pip", "install", "--quiet", "--python", python, *needs, *ours)
            complete.write_text(digest)
    return python


def _uv(*arguments: str) -> None:
    done = run_program([UV, *arguments], cwd=ROOT, env=clean_environ())
    if done.returncode != 0 and any(sign in done.stderr for sign in AWAY):
        raise NotFetchedError(done.stderr)
    assert done.returncode == 0, f"uv {' '.join(arguments)}:\n{done.stderr}"
