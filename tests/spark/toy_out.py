"""A toy output: a directory with one JSON file a batch, in which times have milliseconds."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame

from lowwater_spark.complete.mark import Standing
from lowwater_spark.track.output.outputs import BatchOutput, FoundBatch, OutputTurn


class ToyOut(BatchOutput):
    resolution: ClassVar[timedelta] = timedelta(milliseconds=1)

    def __init__(self, folder: Path, keep: int | None) -> None:
        self.folder, self.keep = folder, keep

    @classmethod
    def at(cls, frame: DataFrame, turn: OutputTurn, place: str, *, keep: int | None = None) -> ToyOut:
        return cls(Path(place), keep)

    @property
    def key(self) -> Path:
        return self.folder

    def begin(self, frame: DataFrame, turn: OutputTurn) -> None:
        self.folder.mkdir(exist_ok=True)
        for half in self.folder.glob(".run-*"):
            if int(half.name.removeprefix(".run-")) < turn.run:
                half.unlink()

    def find(self, turn: OutputTurn) -> FoundBatch | None:
        path = self.folder / f"{turn.facts.batch}.json"
        return (
            FoundBatch(turn.facts.batch, json.loads(path.read_text())["digest"], str(path)) if path.exists() else None
        )

    def append(self, frame: DataFrame, turn: OutputTurn, standing: Standing | None) -> bool:
        rows = [[row.key, int(row.t.timestamp() * 1000)] for row in frame.select("key", "t").collect()]
        half = self.folder / f".run-{turn.run}"
        half.write_text(json.dumps({"digest": turn.facts.digest, "rows": rows}))
        turn.probe("rows written")
        try:
            os.link(half, self.folder / f"{turn.facts.batch}.json")
        except FileExistsError:
            return False
        finally:
            half.unlink()
        turn.probe("rows published")
        return True

    def remove(self, turn: OutputTurn) -> None:
        if self.keep is not None:
            (self.folder / f"{turn.facts.batch - self.keep}.json").unlink(missing_ok=True)
