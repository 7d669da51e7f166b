"""Keeps the rows that Spark drops as late: a step right above the data writes them down.

The step lets every row through, and copies the rows that a stateful operator will drop, from all or
some of their windows, to ``late/batch=N/part-<partition>.parquet``. Spark's late filter in batch N
is the watermark of batch N - 1. The step reads it from Spark's offset log, and has the rule of the
query's operators.

Each attempt of a task writes a file of its own and renames it at its end, so that a retried or
speculative attempt leaves the same file. Below a ``coalesce`` a task runs the step for several
partitions in turn; their files have numbers (``part-00000-1.parquet``). The files of a batch that
was never committed are removed when the query starts again, before Spark runs that batch again.
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
from lowwater_spark.track.plan.bounds import Window

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

__all__ = ["MET", "LateRule", "keep_late", "open_late", "reserve_late"]

MET: Final = "lowwater_watermark"
"""Name of the column that holds the watermark which a late row met."""

_OWN: Final = ".lowwater"

_LAST: Final = 253_402_214_400_000_000
"""Greatest time in :data:`MET`, microseconds, 9999-12-31: Python could not hold a later time in
some time zones."""


@dataclass(frozen=True, slots=True)
class LateRule:
    """The rule by which Spark drops rows."""

    checkpoint: str
    windows: Sequence[tuple[int, int, int]] = ()
    """Length, slide and start of the query's windows, microseconds."""
    at: bool = False
    """True if another operator than windows drops rows: those at or below the watermark."""

    def late(self, times: NDArray[np.int64], watermark: int) -> NDArray[np.bool_]:
        """Return which event times are late for a watermark. All are microseconds."""
        import numpy as np

        late = times <= watermark if self.at else np.zeros(len(times), dtype=np.bool_)
        for length, slide, start in self.windows:
            # first_end is the end of the first window that has the row: the least time after the
            # row's at which a window ends. Once the watermark is there, Spark drops the row from
            # that window, though maybe not from later ones: the file must show this loss as well.
            first_end = times - (times - start - length) % slide + slide
            late |= first_end <= watermark
        return late

    def watermark(self, batch: int) -> int:
        """Return the watermark by which a batch drops rows, microseconds: the batch before's.

        Raises FileNotFoundError when this machine does not see the checkpoint.
        """
        if batch == 0:
            return NOTHING_GIVEN
        lines = lines_of(Path(self.checkpoint, "offsets", str(batch - 1)).read_text(encoding="utf-8"))
        return int(json.loads(lines[1]).get("batchWatermarkMs", NOTHING_GIVEN)) * 1_000


def reserve_late(drive: Drive, identity: str) -> None:
    """Reserve a directory for a checkpoint's late rows. Raises ValueError if another owns it."""
    assert drive.late is not None
    folder = Path(drive.late)
    own = folder / _OWN
    make_directory(own)
    write_once(own / "owner", identity.encode())
    if (own / "owner").read_text(encoding="ascii") != identity:
        msg = f"the late rows of another query stand in {folder}; every drive() with late= needs a directory of its own"
        raise ValueError(msg)


def open_late(drive: Drive, rule: LateRule, committed: int) -> None:
    """Prepare a reserved directory: remove files of batches after ``committed``, write the rule."""
    assert drive.late is not None
    folder = Path(drive.late)
    for path in (folder / _OWN).glob("*.json"):
        path.unlink()
    for path in folder.glob("batch=*"):
        number = path.name.removeprefix("batch=")
        if number.isdecimal() and int(number) > committed:
            shutil.rmtree(path)
    sync_directory(folder)
    entry = {"checkpoint": rule.checkpoint, "windows": [list(window) for window in rule.windows], "at": rule.at}
    write_once(_rule_path(drive.late, drive.directory), json.dumps(entry).encode())


def windows_of(windows: Sequence[Window]) -> list[tuple[int, int, int]]:
    """Return windows in the form of a rule."""
    micro = timedelta(microseconds=1)
    return [(window.length // micro, window.slide // micro, window.start // micro) for window in windows]


def _rule_path(late: str, directory: str) -> Path:
    return Path(late, _OWN, f"{Path(directory).name}.json")


def keep_late(df: DataFrame, drive: Drive) -> DataFrame:
    """Return the same rows, and write late ones down. Costs one round through Arrow a row."""
    assert drive.late is not None
    step = _step(drive.late, str(_rule_path(drive.late, drive.directory)), drive.event_time)
    return map_in_arrow(df, step, df.schema)


def _step(late: str, rule_path: str, event_time: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def keep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # The classes are imported in the task, so that the closure holds three texts and no code of
        # the driver: an executor needs nothing but the installed package.
        from lowwater_spark.drive.late import LateFile, LateRule

        entry = json.loads(Path(rule_path).read_text(encoding="utf-8"))
        rule = LateRule(entry["checkpoint"], [tuple(window) for window in entry["windows"]], entry["at"])
        with LateFile(late, rule, event_time) as file:
            for batch in batches:
                file.keep(batch)
                yield batch

    return keep


class LateFile:
    """The late rows of one task attempt; no file while there are none."""

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
        """Final path of the file, and path until then; set at the first late row."""
        self._writer: Any = None

    def keep(self, batch: pa.RecordBatch) -> None:
        """Write down the late rows of a batch. O(rows)."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        times = batch.column(self._event_time).cast(pa.int64())
        valid = times.is_valid().to_numpy(zero_copy_only=False)
        late = valid & self._rule.late(times.fill_null(0).to_numpy(zero_copy_only=False), self._watermark)
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
        """Return a name that this attempt has not used, in whatever process.

        An attempt may write files of several partitions, and notes its names by empty hidden files.
        Another attempt of the task begins with the same names.
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
