"""The batches that a checkpoint has written to outputs, so that an output with fewer is noticed."""

from __future__ import annotations

import threading
from typing import Final

from lowwater_spark.checkpoint.manifest import Manifest

__all__ = ["remember", "remembered"]

_SECTION: Final = "outputs"
"""Name of the section in the checkpoint's manifest."""

_keeping: Final = threading.Lock()
"""Lock for that section: a function may write to several outputs at a time."""


def remembered(manifest: Manifest, writer: str, output: str) -> int | None:
    """Return the batch that is noted for a stage's output, or None."""
    batch: int | None = (manifest[_SECTION] or {}).get(writer, {}).get(output)
    return batch


def remember(manifest: Manifest, writer: str, output: str, batch: int) -> None:
    """Note a batch for an output, durably.

    Costs and raises as a change of the manifest; no cost if it is noted already.
    """
    with _keeping:
        everything = manifest[_SECTION] or {}
        mine = everything.get(writer, {})
        if mine.get(output) != batch:
            manifest.keep(_SECTION, {**everything, writer: {**mine, output: batch}})
