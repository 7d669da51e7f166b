"""Reads what two tracked queries have written, and when Spark's commit log had it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from lowwater_spark.sources.sink_log import SINK_LOG
from lowwater_spark.sources.source_log import local_path
from tests.cluster.oracle import NEVER, Emitted

Row = tuple[str, int, int]
"""Key, start of the hour in microseconds, number of rows."""


class Output:
    """Hourly windows of one query. A batch that is there does not change, so each is read once."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.folder = folder
        self.checkpoint = checkpoint
        self._batches: dict[int, list[Row]] = {}
        self._commits: dict[int, float] = {}

    def emitted(self) -> list[Emitted]:
        """Return every window that readers can see."""
        for number, files in self._files().items():
            if number not in self._batches:
                self._batches[number] = [row for file in files for row in _rows(file)]
        return [Emitted(*row, self._committed(number)) for number, rows in self._batches.items() for row in rows]

    def commits(self) -> int:
        """Return how many batches are committed."""
        folder = self.checkpoint / "commits"
        return sum(name.name.isdecimal() for name in folder.iterdir()) if folder.is_dir() else 0

    def _committed(self, number: int) -> float:
        if number not in self._commits:
            try:
                # Set when the entry was renamed to its name, by the clock that the observations have.
                self._commits[number] = (self.checkpoint / "commits" / str(number)).stat().st_ctime
            except FileNotFoundError:
                return NEVER
        return self._commits[number]

    def _files(self) -> dict[int, Sequence[Path]]:
        """Return the files of each batch: directories handed over by batch.write, or entries of the log of Spark's file sink."""
        log = self.folder / SINK_LOG
        if not log.is_dir():
            return {
                int(batch.name.partition("=")[2]): sorted(batch.glob("*.parquet"))
                for batch in self.folder.glob("batch=*")
            }
        return {int(entry.name): _files_in(entry) for entry in log.iterdir() if entry.name.isdecimal()}


def _files_in(entry: Path) -> list[Path]:
    _, *lines = entry.read_text(encoding="utf-8").split("\n")
    return [Path(local_path(json.loads(line)["path"])) for line in lines if line]


def _rows(file: Path) -> list[Row]:
    rows = pq.read_table(file).to_pylist()
    return [(row["key"], round(row["hour"].timestamp() * 1_000_000), row["n"]) for row in rows]
