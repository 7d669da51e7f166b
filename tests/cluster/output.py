"""Reads what queries have written, and when Spark's commit log had it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.sources.files.sink_log import SINK_LOG
from tests.cluster.oracle import NEVER, Emitted, Written

Row = Mapping[str, Any]


class Committed:
    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self._commits: dict[int, float] = {}

    def rows(self) -> Iterator[tuple[Row, float]]:
        """Give every row that readers can see, and when Spark's commit log had its batch."""
        raise NotImplementedError

    def emitted(self) -> list[Emitted]:
        return [Emitted(row["key"], micros(row["hour"]), row["n"], at) for row, at in self.rows()]

    def written(self) -> list[Written]:
        return [Written(row["key"], micros(row["t"]), row["number"], at) for row, at in self.rows()]

    def commits(self) -> int:
        folder = self.checkpoint / "commits"
        return sum(name.name.isdecimal() for name in folder.iterdir()) if folder.is_dir() else 0

    def committed(self, number: int) -> float:
        if number not in self._commits:
            try:
                # Set when the entry was renamed to its name, by the clock that the observations have.
                self._commits[number] = (self.checkpoint / "commits" / str(number)).stat().st_ctime
            except FileNotFoundError:
                return NEVER
        return self._commits[number]


class Output(Committed):
    def __init__(self, folder: Path, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        self.folder = folder
        self._batches: dict[int, list[Row]] = {}

    def rows(self) -> Iterator[tuple[Row, float]]:
        for number, files in self._files().items():
            if number not in self._batches:
                self._batches[number] = [row for file in files for row in rows_of(file)]
        return ((row, self.committed(number)) for number, rows in self._batches.items() for row in rows)

    def _files(self) -> dict[int, Sequence[Path]]:
        log = self.folder / SINK_LOG
        if not log.is_dir():
            return {}
        return {int(entry.name): _files_in(entry) for entry in log.iterdir() if entry.name.isdecimal()}


def _files_in(entry: Path) -> list[Path]:
    _, *lines = entry.read_text(encoding="utf-8").split("\n")
    return [Path(SparkPath.of_uri(json.loads(line)["path"]).path) for line in lines if line]


def rows_of(file: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(file).to_pylist()
    return rows


def micros(time: datetime) -> int:
    """Return microseconds since the epoch. Spark's older kind of timestamp comes without a zone, in UTC."""
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1_000_000)
