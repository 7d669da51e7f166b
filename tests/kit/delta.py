"""Delta tables for tests: what a Spark session needs to have them, and where a reader of one stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A table of a test has a few rows: by default each version of it costs a job of fifty tasks.
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""The settings of a session, beside the jars, which `tests.spark.session` puts on the path of every Spark."""


class Offset(NamedTuple):
    """Where Delta's source stands: it has all versions below this one, and of this one the files up to this one."""

    version: int
    file: int
    initial: bool
    """True if the version is the snapshot that the query began with, all files of which count."""

    @classmethod
    def parse(cls, line: str) -> Offset:
        fields: dict[str, Any] = json.loads(line)
        return cls(fields["reservoirVersion"], fields["index"], fields["isStartingVersion"])


def offsets(checkpoint: Path) -> list[Offset]:
    entries = sorted((entry for entry in (checkpoint / "offsets").glob("[0-9]*")), key=lambda entry: int(entry.name))
    return [Offset.parse(entry.read_text(encoding="utf-8").splitlines()[2]) for entry in entries]


def head(table: Path) -> int:
    return max(int(commit.stem) for commit in (table / "_delta_log").glob("*.json"))
