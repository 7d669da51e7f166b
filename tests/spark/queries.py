"""The queries of a test, which end with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

import lowwater_spark as lws
from tests.kit.eventually import PATIENCE, eventually

T = TypeVar("T")


class Queries:
    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        self.spark = spark
        self.address = address
        self.folder = folder
        self.queries: list[lws.TrackedQuery] = []

    def eventually(self, look: Callable[[], T], what: str, *, seconds: float = PATIENCE) -> T:
        """Wait for something that the queries bring about; what has ended one of them is raised."""
        return eventually(look, what, seconds=seconds, check=self.check)

    def check(self) -> None:
        for query in {query.query.id: query for query in self.queries}.values():
            if query.query.exception() is not None:
                query.await_termination()

    def stop(self) -> None:
        for query in self.queries:
            query.stop()
        self.queries.clear()
