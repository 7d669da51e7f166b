"""The shape of a query: what of it decides which state its checkpoint holds.

A plain query reports by its plan: what that says nothing of is not held. State that another plan has left in the checkpoint, in Spark's
own files or in the stage's, would be led by the first claim, before Spark looks at its own part of it. So the kind of the query is written once,
before the first claim, and compared before every later one.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Final, Literal, Self

from lowwater_spark.checkpoint.location import Location
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.control import FORMAT
from lowwater_spark.sources.files import FILES
from lowwater_spark.track.plan import Checked

__all__ = ["check_shape"]

logger = logging.getLogger("lowwater.spark")


@dataclass(frozen=True, slots=True)
class _Shape:
    """What of a query decides which state its checkpoint holds."""

    kind: Literal["plain", "function"]
    """A sink of Spark's own, or foreachBatch."""
    sources: int
    """How many it reads."""
    operators: list[str]
    """The kinds of the operators that hold rows in Spark's state, sorted."""
    retention: int | None
    """How far below Spark's watermark they can come out, microseconds; None: nothing is held there."""
    kinds: list[str] | None = None
    """Of each source; None: kept by a release that knew none but files and controls, and tells them apart by their offsets."""

    @classmethod
    def of(cls, kind: Literal["plain", "function"], checked: Checked) -> Self:
        """Return the shape of a checked plan."""
        micros = None if checked.retention is None else checked.retention // timedelta(microseconds=1)
        holding = sorted(operator.kind for operator in checked.operators if operator.holds)
        return cls(kind, len(checked.sources), holding, micros, [source.kind for source in checked.sources])

    def as_kept_by(self, other: _Shape) -> _Shape:
        """Return it with what another one has kept of it."""
        known = set(self.kinds or ()) <= {FILES, FORMAT}
        return replace(self, kinds=None) if other.kinds is None and known else self

    def __str__(self) -> str:
        """Return it in words."""
        started = "start()" if self.kind == "plain" else "foreach_batch()"
        holding = ", ".join(self.operators) or "nothing"
        retention = (
            "no retention" if self.retention is None else f"a retention of {timedelta(microseconds=self.retention)}"
        )
        kinds = "" if self.kinds is None else f" ({', '.join(self.kinds)})"
        return f"{started}, {self.sources} source(s){kinds}, {holding} in Spark's state and {retention}"


def check_shape(checkpoint: Location, kind: Literal["plain", "function"], checked: Checked) -> None:
    """Compare a query with the one that its checkpoint was begun with, and keep its shape if the checkpoint is new.

    A checkpoint of a release that kept none is of the kind that its files show, and else as the query is now; what Spark has held in it counts
    as held. Durable when it returns. Raises CheckpointMismatch.

    A retention that is declared larger than before is taken: what Spark holds comes out within the old one, and so within the new one. A smaller
    one is not: Spark may hold what comes out only within the old one. Neither is one that the plan says, since it speaks of windows that are cut as
    they are now, and others may be held.
    """
    shape = _Shape.of(kind, checked)
    manifest = Manifest(checkpoint)
    if CheckpointLog(checkpoint).last_planned() is not None:
        kept = manifest["query"]
        if kept is None:
            if kind == "plain" and _any(checkpoint / "lowwater" / "batches"):
                raise CheckpointMismatch(_OTHER.format(checkpoint=checkpoint, begun="foreach_batch()", shape=shape))
            if not checked.operators and _any(checkpoint / "state"):
                raise CheckpointMismatch(
                    _OTHER.format(checkpoint=checkpoint, begun="rows in Spark's state", shape=shape)
                )
        else:
            begun = _Shape(**kept)
            now = shape.as_kept_by(begun)
            if begun == now:
                return
            if begun != replace(now, retention=begun.retention) or begun.retention is None or shape.retention is None:
                raise CheckpointMismatch(_OTHER.format(checkpoint=checkpoint, begun=begun, shape=shape))
            if shape.retention < begun.retention or not checked.declared:
                least = timedelta(microseconds=begun.retention)
                raise CheckpointMismatch(_SMALLER.format(checkpoint=checkpoint, begun=begun, shape=shape, least=least))
            logger.warning(
                _LARGER, checkpoint, *(timedelta(microseconds=each.retention or 0) for each in (begun, shape))
            )
    manifest.take_over()
    manifest.keep("query", asdict(shape))


def _any(folder: Location) -> bool:
    return folder.is_dir() and any(folder.iterdir())


_LARGER: Final = (
    "%s began with a retention of %s and goes on with %s. The stage now reports lower values, so "
    "its watermark stands still until they reach what is published. Rows below the published "
    "value were counted as late under the old retention"
)

_SMALLER: Final = (
    "{checkpoint} was begun with {begun}, and the query has {shape}. Spark may hold rows in it that come out only within the larger retention: declare "
    "retention=timedelta(seconds={least.seconds}, days={least.days}) or more, or start from a new checkpoint, with adopt=True."
)

_OTHER: Final = (
    "{checkpoint} was begun with {begun}, and the query has {shape}. What is held in the one would not be counted by the other, and would come "
    "out below the watermark: start the query as it was begun, or another one from a new checkpoint, with adopt=True."
)
