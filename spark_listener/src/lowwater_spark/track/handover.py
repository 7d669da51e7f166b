"""Hands the rows of a batch over to readers as one directory that appears at once, whole.

A batch writes to a hidden directory beside the target and renames it to ``batch=N``. If that name
exists, the batch is a replay and was handed over before: the write is skipped. If it appended
instead, a replay's rows would get new file names, and a reader would read both; if it overwrote
files, no reader would see it, since Spark never re-reads a path. Readers use
``recursiveFileLookup``.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, cast

from lowwater_spark.checkpoint.durable import (
    make_directory,
    remove_tree,
    rename_once,
    sync_directory,
    sync_tree,
    write_over,
)
from lowwater_spark.checkpoint.location import Location, spark_path
from lowwater_spark.complete.folder import WATERMARK
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.writers import HANDED_OVER, digest_of
from lowwater_spark.track.times import check_times, exact_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["hand_over", "publish_directory", "sweep"]

L = TypeVar("L", bound=Location)

_SMALL: Final = 1 << 20
"""Greatest size, in bytes, of a remote file that is fetched to test whether it has rows."""

_HIDDEN: Final = ".lowwater-"


def hand_over(
    frame: DataFrame,
    path: Location,
    batch: int,
    digest: str,
    *,
    ordinal: int,
    mark: bytes,
    file_format: str = "parquet",
) -> bool:
    """Write the rows to ``path/batch=N``, durably; False if an earlier run has done it.

    ``mark`` is the batch's mark of how far the directory is complete, ``digest`` the plan's,
    ``ordinal`` the run's number. Raises CheckpointMismatch if another plan has made the directory,
    because a skip would lose rows. A batch without rows leaves a directory without data files.
    """

    def write(folder: Location) -> None:
        check_times(frame, file_format)
        frame.write.format(file_format).options(**exact_times(file_format)).save(spark_path(folder / "rows").text)
        for file in (folder / "rows").iterdir():
            if not file.name.startswith((".", "_")) and not _is_empty(file, file_format):
                rename_once(file, folder / file.name)
        remove_tree(folder / "rows")
        write_over(folder / WATERMARK, mark, durable=False)

    return publish_directory(path, f"batch={batch}", digest, write, ordinal=ordinal)


def publish_directory(parent: L, name: str, digest: str, fill: Callable[[L], None], *, ordinal: int) -> bool:
    """Fill a hidden directory and rename it to ``parent/name``; False if that exists. Durable.

    The hidden name has the run's number, by which :func:`sweep` knows the owner. Raises
    CheckpointMismatch if the existing directory was made for another digest.
    """
    target = parent / name
    if target.exists():
        return _check_existing(target, digest)
    make_directory(parent)
    beside = cast("L", parent / f"{_HIDDEN}{ordinal}-{name}-{uuid.uuid4().hex}")
    beside.mkdir()
    try:
        fill(beside)
        mark = json.dumps({"digest": digest}).encode()
        write_over(beside / HANDED_OVER, mark, durable=False)
        sync_tree(beside)
        # The mark is always in it, so the directory is never empty.
        if not rename_once(beside, target):
            return _check_existing(target, digest)
    finally:
        remove_tree(beside)
    sync_directory(parent)
    return True


def sweep(parent: Location, ordinal: int) -> None:
    """Delete directories that earlier runs have left half filled.

    A run that was replaced must not delete what its successor is filling.
    """
    if parent.is_dir():
        for entry in parent.iterdir():
            run, dash, _ = entry.name.removeprefix(_HIDDEN).partition("-")
            if entry.name.startswith(_HIDDEN) and dash and run.isdecimal() and int(run) < ordinal:
                remove_tree(entry)


def _check_existing(target: Location, digest: str) -> bool:
    """Check an existing directory, and sync its name: its writer may have died before it did."""
    _must_match(target, digest)
    sync_directory(target.parent)
    return False


def _must_match(target: Location, digest: str) -> None:
    if digest_of(target) != digest:
        msg = (
            f"{target} exists and was not made from this batch: it belongs to another checkpoint, or the batch was planned anew. "
            "Use a directory of its own for each checkpoint; after restoring a checkpoint, restore its output as well."
        )
        raise CheckpointMismatch(msg)


def _is_empty(file: Location, file_format: str) -> bool:
    size = file.stat().st_size if isinstance(file, Path) else file.size()
    if file_format != "parquet":
        return size == 0
    import pyarrow.parquet

    if isinstance(file, Path):
        return bool(pyarrow.parquet.read_metadata(file).num_rows == 0)
    # A file without rows is little more than its schema, so a larger one is not fetched.
    return size < _SMALL and bool(pyarrow.parquet.read_metadata(io.BytesIO(file.read_bytes())).num_rows == 0)
