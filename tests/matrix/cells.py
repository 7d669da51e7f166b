"""The cells of the matrix: what kind of job reads what, and where its files and its checkpoint are."""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

KINDS: Final = {
    "classic": "a classic driver",
    "connect": "Spark Connect",
    "pipeline": "a declarative pipeline",
    "spark35": "Spark 3.5, with state",
    "realtime": "real-time mode",
}
SOURCES: Final = {"files": "files", "kafka": "Kafka", "delta": "Delta", "iceberg": "Iceberg"}
STORES: Final = {"local": "local disk", "hdfs": "HDFS", "s3": "S3", "gcs": "GCS"}

NEWEST: Final = "4.2.0"
ICEBERG: Final = "4.1.1"
"""The newest Spark for which Iceberg has a runtime."""
OLD: Final = "3.5.7"


class Cell(NamedTuple):
    """Windows of an hour over a source (in real-time mode its rows as they are), whose files and checkpoint are in a store."""

    kind: str
    source: str
    store: str

    def __str__(self) -> str:
        return "-".join(self)

    @property
    def spark(self) -> str:
        """The version of PySpark that runs the job."""
        if self.kind == "spark35":
            return OLD
        return self.reader

    @property
    def reader(self) -> str:
        """The version of PySpark in the sidecar, and in what reads the results."""
        return ICEBERG if self.source == "iceberg" else NEWEST

    @property
    def absent(self) -> str:
        """Why Spark itself does not have the cell; empty if it has."""
        if self.kind == "realtime" and self.source != "kafka":
            return "real-time mode reads Kafka only"
        return ""


CELLS: Final = [Cell(*names) for names in itertools.product(KINDS, SOURCES, STORES)]


def chosen(patterns: list[str]) -> list[Cell]:
    """Return the cells that can be run and have each word of one of the patterns, such as ``connect-s3``; all without a pattern.

    >>> [str(cell) for cell in chosen(["pipeline-kafka-s3"])]
    ['pipeline-kafka-s3']
    """
    words = [set(pattern.split("-")) for pattern in patterns]
    return [cell for cell in CELLS if not cell.absent and (not words or any(some <= set(cell) for some in words))]
