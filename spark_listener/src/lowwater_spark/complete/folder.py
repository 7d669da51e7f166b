"""What the batches of a directory say of how far it is complete.

A batch that is handed over as ``batch=N`` has a file ``_watermark.json`` in it, which comes with
its rows, by the same rename. The directory is of one checkpoint alone, so there is one writer, and
all batches since its first one must be there: of one that is missing, because somebody has deleted
it, has put back an older copy of the directory, or the function has not written it, nobody knows
what was in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import lowwater
from lowwater.watermark import MIN
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.complete.mark import Completeness, OutputWriter, Standing
from lowwater_spark.sources.bookmarks import removed
from lowwater_spark.sources.source_log import NOTHING
from lowwater_spark.sources.writers import strangers

__all__ = ["WATERMARK", "complete_folder", "first_of", "say"]

WATERMARK: Final = "_watermark.json"
"""In the directory of a batch. Readers of rows pass over it."""

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
    """Return what a batch says of itself.

    ``since`` is the first one of the directory. Without a claim it says what the batch before it
    has said.
    """
    through, claim = standing.low, standing.claim
    life, epoch = claim or (0, 0)
    if claim is None or not standing.current:
        before = _read(folder / f"batch={batch - 1}") or {}
        life, epoch = claim or (before.get("life", 0), before.get("epoch", 0))
        through = min(through, before["through"]) if life and before.get("life") == life else MIN
    words = f"complete through {lowwater.Watermark(through)}, life {life}, epoch {epoch}"
    said = {
        "format": _FORMAT,
        "complete": words,
        "through": through,
        "life": life,
        "epoch": epoch,
        "computation": computation,
        "batch": batch,
        "since": since,
    }
    return json.dumps(said).encode()


def first_of(folder: Location, batch: int) -> int:
    """Return which batch a directory begins with, when nobody has noted it: the one that is about to be written, or the first of all if there are some."""
    return 0 if _batches(folder) - {batch} else batch


def complete_folder(folder: Location, writers: Sequence[str], *, ignore_deletes: bool = False) -> Completeness:
    """Return how far a directory is complete.

    Raises OSError. Costs a listing, and the reading of a file.
    """
    batches = _batches(folder)
    newest = max(batches, default=NOTHING)
    said = _read(folder / f"batch={newest}") if batches else None

    def told(name: str) -> OutputWriter:
        if said is None or said["computation"] != name:
            why = (
                f"its newest batch, {newest}, says nothing of how far it is"
                if batches
                else "it has handed nothing over"
            )
            return OutputWriter(lowwater.Watermark(MIN), why)
        missing = set(range(said["since"], newest)) - batches
        why = ""
        if missing:
            why = f"batch {min(missing)} is not there, and what was in it is not known"
        elif not ignore_deletes and isinstance(folder, Path) and removed(os.fspath(folder)).through >= said["since"]:
            why = "batches of it were removed, since all readers had read them (keep=)"
        elif said["life"] == 0:
            why = "its stage had not been claimed yet"
        elif said["through"] == MIN:
            why = "it did not know yet how far its inputs are"
        low = lowwater.Watermark(MIN if why else said["through"])
        return OutputWriter(low, why, newest, said["life"], said["epoch"])

    others = strangers(os.fspath(folder), frozenset(writers)) if isinstance(folder, Path) else []
    return Completeness.of({name: told(name) for name in writers}, None, [name for _, name in others])


def _batches(folder: Location) -> set[int]:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return set()
    numbers = [name.removeprefix("batch=") for name in names if name.startswith("batch=")]
    return {int(number) for number in numbers if number.isdecimal()}


def _read(batch: Location) -> dict[str, Any] | None:
    """Return what a batch says, None when it says nothing.

    Raises OSError for what is no such file.
    """
    try:
        said: Any = json.loads((batch / WATERMARK).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        msg = f"{batch / WATERMARK} is no JSON"
        raise OSError(msg) from error
    if not isinstance(said, dict) or said.get("format", _FORMAT) != _FORMAT:
        found = said.get("format") if isinstance(said, dict) else None
        msg = f"{batch / WATERMARK} is of format {found}; this release reads {_FORMAT}. Use a newer lowwater-spark."
        raise OSError(msg)
    if wrong := [name for name, kind in _FIELDS.items() if type(said.get(name)) is not kind]:
        msg = f"{batch / WATERMARK} does not say its {wrong[0]}: it was not written by lowwater, or was changed since. Restore the batch from a copy."
        raise OSError(msg)
    return said
