"""Stages whose checkpoint is on another file system than this machine's: what HDFS and S3 are asked alike."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

import lowwater_spark as lws
from lowwater_spark.checkpoint.location import Location
from tests.spark.flow import Flow

DECLARED: dict[str, Any] = {"inputs": ["source"], "key": "key", "event_time": "t", "ranges": 4}


class Query:
    """A stage: plain, or with a function that has two stages."""

    def __init__(self, kind: str, flow: Flow, checkpoint: Location, **options: Any) -> None:
        self._kind = kind
        self._flow = flow
        self._options = {"checkpoint": str(checkpoint), **options}

    def start(self, **options: Any) -> lws.TrackedQuery:
        merged = {**self._options, **options}
        stage, frame = lws.stage(self._flow.spark, "stage", **DECLARED, address=self._flow.address), self._flow.read()
        if self._kind == "plain":
            query = stage.start(frame, format="json", path=self._flow.folder / "out", **merged)
        else:
            # Its directory in the checkpoint has the name other%2Estage.
            other = lws.stage(self._flow.spark, "other.stage", **DECLARED, address=self._flow.address)
            query = stage.foreach_batch(frame, self._write, also=[other], **merged)
        self._flow.queries.append(query)
        return query

    def _write(self, rows: DataFrame, batch: lws.Batch) -> None:
        batch.write(rows, self._flow.folder / "out", file_format="json")

    def keys(self) -> list[str]:
        out = self._flow.folder / "out"
        options = {} if self._kind == "plain" else {"recursiveFileLookup": "true"}
        rows = self._flow.spark.read.schema("key string, t timestamp").options(**options).json(str(out))
        return sorted(entry.key for entry in rows.collect())
