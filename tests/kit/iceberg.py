"""Iceberg tables for tests: what a Spark session needs to have them, and where a reader of one stands."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.jars import jars

CATALOG: Final = "ice"


def settings(warehouse: Path) -> dict[str, str]:
    """Return the settings of a session with a catalog of tables below a directory. Iceberg needs another Spark than the other connectors, so it stands alone on the path."""
    return {
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars("iceberg")),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{CATALOG}.warehouse": str(warehouse),
    }


class Offset(NamedTuple):
    """Where Iceberg's source stands: it has all snapshots before this one, and of this one so many files."""

    snapshot: int
    position: int

    @classmethod
    def parse(cls, line: str) -> Offset:
        fields: dict[str, Any] = json.loads(line)
        return cls(fields["snapshot_id"], fields["position"])


def offsets(checkpoint: Path) -> list[Offset]:
    entries = sorted((entry for entry in (checkpoint / "offsets").glob("[0-9]*")), key=lambda entry: int(entry.name))
    return [Offset.parse(entry.read_text(encoding="utf-8").splitlines()[2]) for entry in entries]
