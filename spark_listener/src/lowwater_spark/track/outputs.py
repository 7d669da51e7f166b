"""What a checkpoint remembers of the outputs of its stages, so that one that has less is noticed."""

from __future__ import annotations

import threading
from typing import Final

from lowwater_spark.checkpoint.manifest import Manifest

__all__ = ["remember", "remembered"]

_SECTION: Final = "outputs"
"""Of the checkpoint's manifest."""

_keeping: Final = threading.Lock()
"""Of that section: a function may write into several outputs at a time."""


def remembered(manifest: Manifest, writer: str, output: str) -> int | None:
    """Return the batch that is noted of an output of a stage, None when there is none."""
    found: int | None = (manifest[_SECTION] or {}).get(writer, {}).get(output)
    return found


def remember(manifest: Manifest, writer: str, output: str, batch: int) -> None:
    """Note a batch of an output, durable when it returns.

    Costs and raises as a change of the manifest, and nothing when it is noted already.
    """
    with _keeping:
        everything = manifest[_SECTION] or {}
        mine = everything.get(writer, {})
        if mine.get(output) != batch:
            manifest.keep(_SECTION, {**everything, writer: {**mine, output: batch}})
