"""A Python Data Source, as users write them: the lines of one file, to which a test appends. Its offset is a word of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType


class TapeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tape"

    def schema(self) -> str:
        return "key string, t timestamp"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TapeReader(Path(self.options["path"]))


@dataclass
class _Lines(InputPartition):
    begin: int
    end: int


class TapeReader(DataSourceStreamReader):
    def __init__(self, path: Path) -> None:
        self._path = path

    def initialOffset(self) -> dict[str, Any]:
        return {"tape": {"line": 0}}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return {"tape": {"line": len(self._path.read_text().splitlines())}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [_Lines(start["tape"]["line"], end["tape"]["line"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, datetime]]:
        assert isinstance(partition, _Lines)
        for line in self._path.read_text().splitlines()[partition.begin : partition.end]:
            entry = json.loads(line)
            yield entry["key"], datetime.fromisoformat(entry["t"])


class Tape:
    """The file, and who appends to it. A line that is there is whole: they are told of by their number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def put(self, *rows: Mapping[str, str]) -> None:
        with self.path.open("a") as file:
            file.write("".join(f"{json.dumps(row)}\n" for row in rows))
