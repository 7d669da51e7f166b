"""Tasks of Spark's Python workers in the tests of Kafka as an output: some end before their time. This module imports little."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lowwater_spark.track.output.kafka_slot import Publishing, publish_slots

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Ends:
    folder: Path

    def plan(self, step: str, batch: int, slot: int, *, kind: str = "kill") -> None:
        """Have a worker killed; or have the task fail in every attempt (``"fail"``)."""
        self.folder.mkdir(exist_ok=True)
        self._file(step, batch, slot).write_text(kind)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def forgive(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()

    def __call__(self, step: str, batch: int, slot: int) -> None:
        file = self._file(step, batch, slot)
        if not file.exists():
            return
        kind = file.read_text()
        if kind == "fail":
            msg = f"slot {slot} fails"
            raise ConnectionResetError(msg)
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    def _file(self, step: str, batch: int, slot: int) -> Path:
        return self.folder / f"{step}-{batch}-{slot}"

    def publish(self, job: Publishing, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return publish_slots(replace(job, probe=self), batches)
