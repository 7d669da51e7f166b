"""Spark's own event log of an application, read while it is being written: the evidence that a fault took effect."""

from __future__ import annotations

import json
from pathlib import Path


def newest_application(folder: Path) -> str:
    return max(file.name.removesuffix(".inprogress") for file in folder.glob("app-*"))


def is_removed(folder: Path, application: str, executor: str) -> bool:
    lines = [line for file in folder.glob(f"{application}*") for line in file.read_bytes().splitlines(keepends=True)]
    # The last line may be half written.
    removals = [json.loads(line) for line in lines if b"SparkListenerExecutorRemoved" in line and line.endswith(b"\n")]
    return any(removal["Executor ID"] == executor for removal in removals)
