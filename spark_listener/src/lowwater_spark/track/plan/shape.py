"""The shape of a query: the facts that decide which state its checkpoint has.

A plain query reports by its plan: rows that the plan does not mention are not held. If the
checkpoint had state of another plan, in Spark's files or in the stage's, the first claim would lead
that state, before Spark looks at its own part. So the query's shape is stored once, before the
first claim, and compared before every later one.
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
from lowwater_spark.sources.files.source import FILES
from lowwater_spark.track.plan.bounds import Stamp, in_python
from lowwater_spark.track.plan.checked import Checked, added

__all__ = ["check_shape"]

logger = logging.getLogger("lowwater.spark")


@dataclass(frozen=True, slots=True)
class _Shape:
    """The facts of a query that decide which state its checkpoint has."""

    kind: Literal["plain", "function"]
    """Kind of the output: a sink of Spark's own, or foreachBatch."""
    sources: int
    operators: list[str]
    """Kinds of the operators that hold rows in Spark's state, sorted."""
    retention: int | None
    """Greatest distance of held rows below Spark's watermark, microseconds; None: none are held."""
    kinds: list[str] | None = None
    """Kind of each source; None: stored by a release that knew only files and controls."""
    declared: bool | None = None
    """True: the stage declares the retention, to which Spark may add; None: from an old release."""
    stamps: list[list[Any]] | None = None
    """Stamps of the plan: kind; length, slide and start of the windows, microseconds, or None; unit
    and zone of each date_trunc(). None: stored by a release without this field."""

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
        """Return the shape without the fields that an older release did not store in ``other``."""
        old_kinds_only = set(self.kinds or ()) <= {FILES, FORMAT}
        return replace(
            self,
            kinds=None if other.kinds is None and old_kinds_only else self.kinds,
            declared=None if other.declared is None else self.declared,
            stamps=None if other.stamps is None else self.stamps,
        )

    @property
    def reach(self) -> timedelta:
        """Distance below Spark's watermark at which rows can come out, with Spark's own addition.

        The shape must hold rows.
        """
        assert self.retention is not None
        own = timedelta(microseconds=self.retention)
        return own if self.declared is False else own + added(self.operators)

    def is_cut_as(self, other: _Shape) -> bool:
        """Return whether both have equal windows, as far as both plans name them."""
        cuts = [{str(window) for _, window, _ in shape.stamps or ()} for shape in (self, other)]
        return not all(cuts) or cuts[0] == cuts[1]

    def __str__(self) -> str:
        """Return the shape in words."""
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
    """Return the stored form of a stamp, as JSON returns it."""
    window = stamp.window
    return [
        stamp.kind,
        None if window is None else [_micros(length) for length in (window.length, window.slide, window.start)],
        [[truncated.unit, truncated.zone] for truncated in stamp.truncated],
    ]


def _in_words(parts: list[Any]) -> str:
    kind, window, truncated = parts
    units = "".join(f"the {unit} in {zone} of " for unit, zone in reversed(truncated))
    if window is None:
        return f"{units}an event time"
    length, slide, start = (timedelta(microseconds=micros) for micros in window)
    return f"{units}the {kind} of windows of {length} every {slide} from {start}"


def check_shape(checkpoint: Location, kind: Literal["plain", "function"], checked: Checked) -> None:
    """Compare a query with the one that began its checkpoint; a new checkpoint stores its shape.

    A checkpoint without a stored shape has the kind that its files show, and otherwise the present
    query's; rows that Spark holds in it count as held. Durable on return. Raises
    CheckpointMismatch.

    A larger declared retention is accepted: Spark's held rows come out within the old one, and so
    within the new one. A smaller one is refused, because Spark may hold rows that come out only
    within the old one. So is a retention that the plan itself implies for other windows, because
    Spark may hold rows of the old windows.
    """
    shape = _Shape.of(kind, checked)
    manifest = Manifest(checkpoint)
    if CheckpointLog(checkpoint).last_planned() is not None:
        stored = manifest["query"]
        if stored is None:
            if kind == "plain" and _any(checkpoint / "lowwater" / "batches"):
                raise CheckpointMismatch(_OTHER.format(checkpoint=checkpoint, begun="foreach_batch()", shape=shape))
            if not checked.operators and _any(checkpoint / "state"):
                raise CheckpointMismatch(
                    _OTHER.format(checkpoint=checkpoint, begun="rows in Spark's state", shape=shape)
                )
        else:
            begun = _Shape(**stored)
            now = shape.as_kept_by(begun)
            if begun == shape:
                return
            if begun != now:
                _check_change(checkpoint, begun, shape, now)
    manifest.take_over()
    manifest.keep("query", asdict(shape))


def _check_change(checkpoint: Location, begun: _Shape, shape: _Shape, comparable: _Shape) -> None:
    """Log a change that a checkpoint allows; raise CheckpointMismatch for any other.

    ``comparable`` is the shape with the fields that the stored one has.
    """
    changed = replace(comparable, retention=begun.retention, declared=begun.declared, stamps=begun.stamps)
    if begun != changed or begun.retention is None or shape.retention is None:
        raise CheckpointMismatch(_OTHER.format(checkpoint=checkpoint, begun=begun, shape=shape))
    covered = shape.reach == begun.reach and shape.is_cut_as(begun)
    if shape.reach < begun.reach or not (shape.declared or covered):
        least = in_python(max(shape.reach, begun.reach) - added(shape.operators))
        raise CheckpointMismatch(_SMALLER.format(checkpoint=checkpoint, begun=begun, shape=shape, least=least))
    if shape.reach > begun.reach:
        before, after = (timedelta(microseconds=micros) for micros in (begun.retention, shape.retention))
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

_STAMPED: Final = (
    "%s was begun with rows stamped by %s, and goes on with %s: rows below the published watermark are counted as late"
)

_SMALLER: Final = (
    "{checkpoint} was begun with {begun}, and the query has {shape}. Spark may hold rows in it that come out only within the larger retention, or rows of the "
    "earlier windows: declare retention={least} or more, or start from a new checkpoint, with adopt=True."
)

_OTHER: Final = (
    "{checkpoint} was begun with {begun}, and the query has {shape}. State of the one would not be counted by the other, and would come "
    "out below the watermark: start the query as it was begun, or another one from a new checkpoint, with adopt=True."
)
