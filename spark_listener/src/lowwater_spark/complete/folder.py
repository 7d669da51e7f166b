"""Completeness of a directory, by the watermark files in its batches.

A batch that is handed over as ``batch=N`` has a file ``_watermark.json``, which appears with its
rows by the same rename. A directory belongs to one checkpoint, so it has one writer, and all
batches since the writer's first one must be there. A missing batch makes the answer unknown:
somebody deleted it, put an older copy of the directory back, or the function did not write it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import lowwater
from lowwater.watermark import MIN
from lowwater_spark.checkpoint.location import Location, numbers_in
from lowwater_spark.complete.mark import Completeness, OutputWriter, Standing
from lowwater_spark.sources.files.bookmarks import removed
from lowwater_spark.sources.files.source_log import NOTHING
from lowwater_spark.sources.files.writers import strangers

__all__ = ["WATERMARK", "complete_folder", "first_of", "say"]

WATERMARK: Final = "_watermark.json"
"""Name of the file in the directory of a batch. Readers of rows skip it."""

_FORMAT: Final = 1

_FIELDS: Final = {
    "format": int,
    "through": int,
    "life": int,
    "epoch": int,
    "computation": str,
    "batch": int,
    "since": int,
}


def say(folder: Location, computation: str, batch: int, since: int, standing: Standing) -> bytes:
    """Return the content of a batch's watermark file.

    ``since`` is the first batch of the directory. A stage without a claim repeats the watermark of
    the batch before.
    """
    through, claim = standing.low, standing.claim
    life, epoch = claim or (0, 0)
    if claim is None or not standing.current:
        before = _read(folder / f"batch={batch - 1}") or {}
        life, epoch = claim or (before.get("life", 0), before.get("epoch", 0))
        through = min(through, before["through"]) if life and before.get("life") == life else MIN
    words = f"complete through {lowwater.Watermark(through)}, life {life}, epoch {epoch}"
    content = {
        "format": _FORMAT,
        "complete": words,
        "through": through,
        "life": life,
        "epoch": epoch,
        "computation": computation,
        "batch": batch,
        "since": since,
    }
    return json.dumps(content).encode()


def first_of(folder: Location, batch: int) -> int:
    """Return the first batch of a directory, when the checkpoint's manifest does not note it.

    If the directory has no other batch, that is ``batch``, which is about to be written; else 0.
    """
    return 0 if {*numbers_in(folder, "batch=")} - {batch} else batch


def complete_folder(folder: Location, writers: Sequence[str], *, ignore_deletes: bool = False) -> Completeness:
    """Return how far a directory is complete.

    Raises OSError. Costs a listing, and reading one file.
    """
    batches = {*numbers_in(folder, "batch=")}
    newest = max(batches, default=NOTHING)
    content = _read(folder / f"batch={newest}") if batches else None

    def state_of(name: str) -> OutputWriter:
        if content is None or content["computation"] != name:
            why = (
                f"its newest batch, {newest}, says nothing of how far it is"
                if batches
                else "it has handed nothing over"
            )
            return OutputWriter(lowwater.Watermark(MIN), why)
        missing = set(range(content["since"], newest)) - batches
        why = ""
        if missing:
            why = f"batch {min(missing)} is missing, so its rows are unknown"
        elif not ignore_deletes and isinstance(folder, Path) and removed(os.fspath(folder)).through >= content["since"]:
            why = "keep= removed batches of it that all readers had read"
        elif content["life"] == 0:
            why = "its stage had not been claimed yet"
        elif content["through"] == MIN:
            why = "it did not know yet how far its inputs are"
        low = lowwater.Watermark(MIN if why else content["through"])
        return OutputWriter(low, why, newest, content["life"], content["epoch"])

    others = strangers(os.fspath(folder), frozenset(writers)) if isinstance(folder, Path) else []
    return Completeness.of({name: state_of(name) for name in writers}, None, [name for _, name in others])


def _read(batch: Location) -> dict[str, Any] | None:
    """Return the content of a batch's watermark file; None when it has none.

    Raises OSError for a file that is no watermark file of this format.
    """
    try:
        content: Any = json.loads((batch / WATERMARK).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        msg = f"{batch / WATERMARK} is no JSON"
        raise OSError(msg) from error
    if not isinstance(content, dict) or content.get("format", _FORMAT) != _FORMAT:
        version = content.get("format") if isinstance(content, dict) else None
        msg = f"{batch / WATERMARK} is of format {version}; this release reads {_FORMAT}. Use a newer lowwater-spark."
        raise OSError(msg)
    if wrong := [name for name, kind in _FIELDS.items() if type(content.get(name)) is not kind]:
        msg = f"{batch / WATERMARK} lacks {wrong[0]}: lowwater did not write it, or somebody changed it since. Restore the batch from a copy."
        raise OSError(msg)
    return content
