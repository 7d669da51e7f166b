"""Closer of days with a batch of Spark each.

Any program can do a task, if its output has the name from the lease, and the commit comes last.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import lowwater
from examples.daily_close.closer import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id string, departure long, origin string, cancelled int, delay int"


def close_day(spark: SparkSession, landing: Path, lease: lowwater.TaskLease, path: Path) -> bytes:
    """Add up the day of a lease into a directory of its own.

    The batch of a lease that has ended is in nobody's way: each lease has another directory.
    Closers may share a session.
    """
    from pyspark.sql import functions as sf

    task = lease.task
    flights = spark.read.schema(SCHEMA).csv([str(file) for file in files(landing, task)])
    if not task.until.finished:
        flights = flights.where(sf.col("departure") < task.until.micros)
    sums = flights.groupBy("origin").agg(sf.count("*"), sf.sum("cancelled"), sf.sum("delay"))
    sums.coalesce(1).sortWithinPartitions("origin").write.csv(str(path))
    digest = sha256()
    for part in sorted(path.glob("part-*")):
        digest.update(part.read_bytes())
    return digest.digest()
