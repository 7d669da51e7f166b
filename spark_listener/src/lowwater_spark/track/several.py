"""Several stages in one query: which may stand together, and where each keeps its files.

The first stage's files are where a query of one stage has them, so that a checkpoint of such a query goes on as it is. The others' are in
directories of their own, under ``CHECKPOINT/lowwater/stages``. Which stages a checkpoint has is written once: a stage that came later
would have read only what came after it, and one that is gone would hold its readers without a word.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

from lowwater_spark.checkpoint.durable import make_directory, write_over
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import CheckpointMismatch, Unsupported

__all__ = ["Declared", "check_names", "check_together", "home_of"]

_NAMES: Final = "stages.json"


@dataclass(frozen=True, slots=True)
class Declared:
    """What decides whether a stage can stand beside others. ``client`` is compared by equality: an address, or a client's identity."""

    name: str
    inputs: Sequence[str]
    heuristics: Sequence[float]
    client: object
    retention: timedelta | None = None


def check_together(stages: Sequence[Declared]) -> list[Sequence[str]]:
    """Return for each stage the names of the earlier stages of the query that it reads; of a reader and of an injector: none.

    Raises ValueError for stages that do not go together, and Unsupported for inputs that cannot be folded exactly.
    """
    names = [stage.name for stage in stages]
    outside: Declared | None = None
    found: list[Sequence[str]] = []
    for i, stage in enumerate(stages):
        if stage.name in names[:i]:
            msg = f"two stages of the query are named {stage.name!r}; a computation's name is its own"
            raise ValueError(msg)
        if stage.client != stages[0].client:
            msg = f"{stage.name} and {stages[0].name} reach the authority by different clients; pass both stages the same one"
            raise ValueError(msg)
        if stage.inputs and stage.retention != stages[0].retention:
            msg = (
                f"{stage.name} has the retention {stage.retention} and {stages[0].name}, the first stage, {stages[0].retention}: what Spark's "
                "operators hold back, they hold back of all stages of the query; declare the largest one in all of them"
            )
            raise ValueError(msg)
        later = [name for name in stage.inputs if name in names[i:]]
        if later:
            msg = f"{stage.name} reads {later[0]}, which does not come before it in the query; name {later[0]} first"
            raise ValueError(msg)
        inner = [name for name in stage.inputs if name in names[:i]]
        if inner and len(inner) < len(stage.inputs):
            other = next(name for name in stage.inputs if name not in inner)
            raise Unsupported(
                f"The stage {stage.name}, which reads {inner[0]} of the same query and {other} from outside,",
                "the two are known by different evidence, which this release does not bring together",
                f"Let {inner[0]} pass on what {stage.name} needs of {other}, and name {inner[0]} alone; or make {stage.name} a query of its own.",
            )
        if stage.inputs and not inner:
            if outside is None:
                outside = stage
            _check_same(stage, outside)
        found.append(inner)
    return found


def _check_same(stage: Declared, other: Declared) -> None:
    if sorted(stage.inputs) != sorted(other.inputs):
        msg = f"{stage.name} reads {', '.join(stage.inputs)} and {other.name} reads {', '.join(other.inputs)}: stages of one query read the same"
        raise ValueError(msg)
    if sorted(stage.heuristics) != sorted(other.heuristics):
        msg = f"{stage.name} and {other.name} have different heuristics; stages of one query have the same"
        raise ValueError(msg)


def home_of(checkpoint: Path, name: str, *, first: bool) -> Path:
    """Return the directory in which a stage has its directory ``lowwater``."""
    return checkpoint if first else checkpoint / "lowwater" / "stages" / quote(name, safe="").replace(".", "%2E")


def check_names(checkpoint: Path, names: Sequence[str]) -> None:
    """Compare a query's stages with those that its checkpoint was begun with, and keep them if it is new.

    A checkpoint without the list has one stage, of any name. Raises CheckpointMismatch.
    """
    path = checkpoint / "lowwater" / _NAMES
    if CheckpointLog(checkpoint).last_planned() is None:
        if len(names) > 1 or path.exists():
            make_directory(path.parent)
            write_over(path, json.dumps({"stages": list(names)}).encode())
        return
    try:
        kept: list[str] | None = json.loads(path.read_bytes())["stages"]
    except FileNotFoundError:
        kept = None
    if list(names) != kept and (kept is not None or len(names) > 1):
        msg = (
            f"{checkpoint} was begun by {'one stage' if kept is None else 'the stages ' + ', '.join(kept)}, and the query has "
            f"{', '.join(names)}. A stage that is added has not seen what was read before, one that is left out would hold its readers: start "
            "from a new checkpoint."
        )
        raise CheckpointMismatch(msg)
