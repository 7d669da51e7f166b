"""A directory that appears at once, whole: filled under a hidden name, then renamed.

If the name exists, the batch is a replay, and its directory, published before, is not filled again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Final, TypeVar, cast

from lowwater_spark.checkpoint.durable import (
    make_directory,
    remove_tree,
    rename_once,
    sync_directory,
    sync_tree,
    write_over,
)
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.files.writers import HANDED_OVER, digest_of

__all__ = ["publish_directory", "sweep"]

L = TypeVar("L", bound=Location)

_HIDDEN: Final = ".lowwater-"


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
        # A rename replaces an existing directory only if that is empty. A published directory has
        # the mark, so if ``target`` exists by now, rename_once() returns False and leaves it.
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
    """Check an existing directory, and sync its name: its writer may have died before the sync."""
    if digest_of(target) != digest:
        msg = (
            f"{target} exists and was not made from this batch: it belongs to another checkpoint, or the batch was planned anew. "
            "Use a directory of its own for each checkpoint; after restoring a checkpoint, restore its output as well."
        )
        raise CheckpointMismatch(msg)
    sync_directory(target.parent)
    return False
