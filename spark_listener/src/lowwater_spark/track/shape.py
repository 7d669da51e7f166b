"""The shape of a query: what of it decides which state its checkpoint holds.

A plain query reports by its plan: what that says nothing of is not held. State that another plan
has left in the checkpoint, in Spark's own files or in the stage's, would be led by the first claim,
before Spark looks at its own part of it. So the kind of the query is written once, before the first
claim, and compared before every later one.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal, Self

from lowwater_spark.checkpoint.location import Location
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.control import FORMAT
from lowwater_spark.sources.files import FILES
from lowwater_spark.track.bounds import Stamp, in_python
from lowwater_spark.track.plan import Checked, added

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
    """How far below Spark's watermark they can come out, microseconds; None: nothing is held there.
    """
    kinds: list[str] | None = None
    """Of each source; None: kept by a release that knew none but files and controls, and tells them
    apart by their offsets."""
    declared: bool | None = None
    """Whether the retention is the stage's own word, to which Spark may add; None: kept by a
    release that did not say so."""
    stamps: list[list[Any]] | None = None
    """Each stamp that the plan says: its kind; length, slide and start of its windows,
    microseconds, or None; unit and zone of each date_trunc(). None: kept by a release that did not
    say so."""

    @classmethod
    def of(cls, kind: Literal["plain", "function"], checked: Checked) -> Self:
        """Return the shape of a checked plan."""
        micros = None if checked.retention is None else _micros(checked.retention)
        holding = sorted(operator.kind for operator in checked.operators if operator.holds)
        kinds = [source.kind for source in checked.sources]
        stamps = {str(stamp): stamp for stamp in map(_parts, checked.stamps)}
        return cls(
            kind,
            len(checked.sources),
            holding,
            micros,
            kinds,
            checked.declared,
            [stamps[text] for text in sorted(stamps)],
        )

    def as_kept_by(self, other: _Shape) -> _Shape:
        """Return it with what another one has kept of it."""
        known = set(self.kinds or ()) <= {FILES, FORMAT}
        return replace(
            self,
            kinds=None if other.kinds is None and known else self.kinds,
            declared=None if other.declared is None else self.declared,
            stamps=None if other.stamps is None else self.stamps,
        )

    @property
    def reach(self) -> timedelta:
        """How far below Spark's watermark rows can come out, with what Spark adds to a declaration.

        Of a shape that holds something.
        """
        assert self.retention is not None
        own = timedelta(microseconds=self.retention)
        return own if self.declared is False else own + added(self.operators)

    def is_cut_as(self, other: _Shape) -> bool:
        """Return whether the windows of both are cut alike, as far as both plans say it."""
        cuts = [{str(window) for _, window, _ in shape.stamps or ()} for shape in (self, other)]
        return not all(cuts) or cuts[0] == cuts[1]

    def __str__(self) -> str:
        """Return it in words."""
        started = "start()" if self.kind == "plain" else "foreach_batch()"
        holding = ", ".join(self.operators) or "nothing"
        retention = (
            "no retention" if self.retention is None else f"a retention of {timedelta(microseconds=self.retention)}"
        )
        kinds = "" if self.kinds is None else f" ({', '.join(self.kinds)})"
        stamps = f", stamped by {self.stamped}" if self.stamps else ""
        return f"{started}, {self.sources} source(s){kinds}, {holding} in Spark's state and {retention}{stamps}"

    @property
    def stamped(self) -> str:
        """The stamps in words."""
        return " and ".join(map(_in_words, self.stamps or ())) or "what the plan does not say"


def _micros(length: timedelta) -> int:
    return length // timedelta(microseconds=1)


def _parts(stamp: Stamp) -> list[Any]:
    """Return what is kept of a stamp, as JSON gives it back."""
    window = stamp.window
    return [
        stamp.kind,
        None if window is None else [_micros(each) for each in (window.length, window.slide, window.start)],
        [[truncated.unit, truncated.zone] for truncated in stamp.truncated],
    ]


def _in_words(parts: list[Any]) -> str:
    kind, window, truncated = parts
    units = "".join(f"the {unit} in {zone} of " for unit, zone in reversed(truncated))
    if window is None:
        return f"{units}an event time"
    length, slide, start = (timedelta(microseconds=each) for each in window)
    return f"{units}the {kind} of windows of {length} every {slide} from {start}"


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
            if begun == shape:
                return
            if begun != now:
                _check_change(checkpoint, begun, shape, now)
    manifest.take_over()
    manifest.keep("query", asdict(shape))


def _check_change(checkpoint: Location, begun: _Shape, shape: _Shape, comparable: _Shape) -> None:
    """Log a change that a checkpoint can bear.

    Raises CheckpointMismatch for any other. ``comparable`` has of the shape what the begun one has
    kept.
    """
    changed = replace(comparable, retention=begun.retention, declared=begun.declared, stamps=begun.stamps)
    if begun != changed or begun.retention is None or shape.retention is None:
        raise CheckpointMismatch(_OTHER.format(checkpoint=checkpoint, begun=begun, shape=shape))
    covered = shape.reach == begun.reach and shape.is_cut_as(begun)
    if shape.reach < begun.reach or not (shape.declared or covered):
        least = in_python(max(shape.reach, begun.reach) - added(shape.operators))
        raise CheckpointMismatch(_SMALLER.format(checkpoint=checkpoint, begun=begun, shape=shape, least=least))
    if shape.reach > begun.reach:
        before, after = (timedelta(microseconds=each) for each in (begun.retention, shape.retention))
        logger.warning(_LARGER, checkpoint, before, after)
    elif comparable.stamps != begun.stamps:
        logger.warning(_STAMPED, checkpoint, begun.stamped, shape.stamped)


def _any(folder: Location) -> bool:
    return folder.is_dir() and any(folder.iterdir())


_LARGER: Final = (
    "%s began with a retention of %s and goes on with %s. The stage now reports lower values, so "
    "its watermark stands still until they reach what is published. Rows below the published "
    "value were counted as late under the old retention"
)

_STAMPED: Final = "%s was begun with rows stamped by %s, and goes on with %s: what comes out below the watermark that was published is counted as late"

_SMALLER: Final = (
    "{checkpoint} was begun with {begun}, and the query has {shape}. Spark may hold rows in it that come out only within the larger retention, or windows that are "
    "cut as they were: declare retention={least} or more, or start from a new checkpoint, with adopt=True."
)

_OTHER: Final = (
    "{checkpoint} was begun with {begun}, and the query has {shape}. What is held in the one would not be counted by the other, and would come "
    "out below the watermark: start the query as it was begun, or another one from a new checkpoint, with adopt=True."
)
