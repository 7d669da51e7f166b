"""Keeps the rows that the watermark has passed: a step right above the data that writes down what Spark is about to drop.

The step lets every row through and copies those that a stateful operator will drop, or drop from some of their windows, to
``late/batch=N/part-<partition>.parquet``. It finds out by itself which those are: Spark's late filter in batch N is the watermark of
batch N - 1, from Spark's own offset log, and the rule is that of the query's operators.

Each attempt of a task writes a file of its own and renames it at its end, so that a retried or a speculative one leaves the same file. Below a ``coalesce`` a
task runs the step for several partitions, one after the other, and each of those has a file with a number (``part-00000-1.parquet``). What a batch
leaves behind that is never committed is removed when the query starts again, before Spark runs that batch once more.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.durable import make_directory, sync_directory, sync_file, write_once
from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.columns import map_in_arrow
from lowwater_spark.sources.control import NOTHING_GIVEN, Drive
from lowwater_spark.track.bounds import Window

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

__all__ = ["MET", "LateRule", "keep_late", "open_late", "reserve_late"]

MET: Final = "lowwater_watermark"
"""The column of late rows that says which watermark each met."""

_OWN: Final = ".lowwater"

_LAST: Final = 253_402_214_400_000_000
"""Microseconds, 9999-12-31: a later time in :data:`MET` could not be collected into Python, in some
time zone."""


@dataclass(frozen=True, slots=True)
class LateRule:
    """Which rows of a batch Spark drops."""

    checkpoint: str
    windows: Sequence[tuple[int, int, int]] = ()
    """Length, slide and start of the query's windows, microseconds."""
    at: bool = False
    """Whether something else than windows drops rows: those at the watermark or below it."""

    def late(self, times: NDArray[np.int64], watermark: int) -> NDArray[np.bool_]:
        """Return which event times are late for a watermark; microseconds all."""
        import numpy as np

        found = times <= watermark if self.at else np.zeros(len(times), dtype=np.bool_)
        for length, slide, start in self.windows:
            # The first of a row's windows to end: the least time above the row's at which any
            # window does.
            first_end = times - (times - start - length) % slide + slide
            found |= first_end <= watermark
        return found

    def watermark(self, batch: int) -> int:
        """Return the watermark that a batch drops rows by, microseconds: the one that the batch before it ran with.

        Raises FileNotFoundError when this machine does not see the checkpoint.
        """
        if batch == 0:
            return NOTHING_GIVEN
        lines = lines_of(Path(self.checkpoint, "offsets", str(batch - 1)).read_text(encoding="utf-8"))
        return int(json.loads(lines[1]).get("batchWatermarkMs", NOTHING_GIVEN)) * 1_000


def reserve_late(drive: Drive, identity: str) -> None:
    """Make a directory for late rows a checkpoint's. Raises ValueError when it is another's."""
    assert drive.late is not None
    folder = Path(drive.late)
    own = folder / _OWN
    make_directory(own)
    write_once(own / "owner", identity.encode())
    if (own / "owner").read_text(encoding="ascii") != identity:
        msg = f"the late rows of another query stand in {folder}; every drive() with late= needs a directory of its own"
        raise ValueError(msg)


def open_late(drive: Drive, rule: LateRule, committed: int) -> None:
    """Make a reserved directory ready: remove what batches after ``committed`` left there, and say how rows become late."""
    assert drive.late is not None
    folder = Path(drive.late)
    for path in (folder / _OWN).glob("*.json"):
        path.unlink()
    for path in folder.glob("batch=*"):
        number = path.name.removeprefix("batch=")
        if number.isdecimal() and int(number) > committed:
            shutil.rmtree(path)
    sync_directory(folder)
    entry = {"checkpoint": rule.checkpoint, "windows": [list(each) for each in rule.windows], "at": rule.at}
    write_once(_rule_path(drive.late, drive.directory), json.dumps(entry).encode())


def windows_of(windows: Sequence[Window]) -> list[tuple[int, int, int]]:
    """Return windows as a rule wants them."""
    micro = timedelta(microseconds=1)
    return [(each.length // micro, each.slide // micro, each.start // micro) for each in windows]


def _rule_path(late: str, directory: str) -> Path:
    return Path(late, _OWN, f"{Path(directory).name}.json")


def keep_late(df: DataFrame, drive: Drive) -> DataFrame:
    """Return the same rows; late ones are written down while they pass.

    Costs one round through Arrow for every row.
    """
    assert drive.late is not None
    step = _step(drive.late, str(_rule_path(drive.late, drive.directory)), drive.event_time)
    return map_in_arrow(df, step, df.schema)


def _step(late: str, rule_path: str, event_time: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def keep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Executors need nothing but the package: what this closes over is plain.
        from lowwater_spark.drive.late import LateFile, LateRule

        entry = json.loads(Path(rule_path).read_text(encoding="utf-8"))
        rule = LateRule(entry["checkpoint"], [tuple(each) for each in entry["windows"]], entry["at"])
        with LateFile(late, rule, event_time) as file:
            for batch in batches:
                file.keep(batch)
                yield batch

    return keep


class LateFile:
    """The late rows of one task attempt. Nothing is written while there are none."""

    def __init__(self, late: str, rule: LateRule, event_time: str) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        self._rule = rule
        self._event_time = event_time
        self._watermark = rule.watermark(batch)
        self._folder = Path(late, f"batch={batch}")
        self._part = f"part-{context.partitionId():05}"
        self._attempt = int(context.taskAttemptId())
        self._path = self._beside = self._folder
        """Where the file is in the end, and until then. Known from the first late row on."""
        self._writer: Any = None

    def keep(self, batch: pa.RecordBatch) -> None:
        """Write down the late rows of a batch. O(rows)."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        times = batch.column(self._event_time).cast(pa.int64())
        known = times.is_valid().to_numpy(zero_copy_only=False)
        late = known & self._rule.late(times.fill_null(0).to_numpy(zero_copy_only=False), self._watermark)
        if not np.any(late):
            return
        rows = batch.filter(pa.array(late))
        watermarks = np.full(rows.num_rows, min(self._watermark, _LAST))
        met = pa.array(watermarks, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        table = pa.Table.from_batches([rows]).append_column(MET, met)
        if self._writer is None:
            make_directory(self._folder)
            self._path = self._folder / self._own_name()
            self._beside = self._folder / f".{self._path.name}.{uuid.uuid4().hex}.tmp"
            self._writer = pq.ParquetWriter(os.fspath(self._beside), table.schema)
        self._writer.write_table(table)

    def _own_name(self) -> str:
        """Return a name that this attempt has not had yet: it may have written the file of another partition, in another process.

        An attempt notes its names by empty hidden files. Another attempt of the task begins with the same names.
        """
        for number in itertools.count():
            name = f"{self._part}-{number}" if number else self._part
            try:
                (self._folder / f".{name}.{self._attempt}.taken").open("x").close()
            except FileExistsError:
                continue
            return f"{name}.parquet"
        raise AssertionError

    def __enter__(self) -> LateFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is None:
            return
        self._writer.close()
        if kind is not None:
            self._beside.unlink(missing_ok=True)
            return
        sync_file(self._beside)
        self._beside.replace(self._path)
        sync_directory(self._folder)
