"""A reading of the inputs: W, its heuristic watermarks, and which incarnations of which inputs it was folded from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

import lowwater
from lowwater import errors
from lowwater.watermark import MAX, MIN

__all__ = ["UNREAD", "Reading", "floor_stamp", "fold", "same_lives", "still_counts"]


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of the inputs at one moment, before anything was looked for in the source. Micros throughout.

    An injector reads no inputs: its reading holds the frontier.
    """

    low: int
    heuristics: Mapping[int, int] = field(default_factory=dict)
    """Share in parts per million -> heuristic watermark."""
    input_version: int = 0
    input_incarnations: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "low": self.low,
            "heuristics": {str(share): micros for share, micros in self.heuristics.items()},
            "input_version": self.input_version,
            "input_incarnations": list(self.input_incarnations),
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_json` described."""
        return cls(
            low=int(entry["low"]),
            heuristics={int(share): int(micros) for share, micros in entry["heuristics"].items()},
            input_version=int(entry["input_version"]),
            input_incarnations=tuple(map(int, entry["input_incarnations"])),
        )


UNREAD = Reading(MIN)
"""Nothing is known of the inputs."""


def same_lives(reading: Reading, registered: Sequence[int]) -> bool:
    """Return whether a reading is of the inputs' incarnations as they were when their reader was registered.

    One that was not registered then, of incarnation 0, may have been since: it begins an incarnation, and not another one.

    >>> same_lives(Reading(9, {}, 1, (1, 3)), (1, 0)), same_lives(Reading(9, {}, 1, (1, 3)), (1, 2)), same_lives(Reading(9, {}, 1, (1, 0)), (1, 2))
    (True, False, False)
    """
    lives = reading.input_incarnations
    return len(lives) == len(registered) and all(then in (0, now) for then, now in zip(registered, lives, strict=True))


def still_counts(reading: Reading, batch: int, registered: lowwater.Computation) -> Reading:
    """Return what a reading that a checkpoint kept says of the inputs that are registered now.

    UNREAD when the stage has other inputs than then: nothing was read of all of them together. Raises IncarnationChanged when one of them
    was reset since: what the checkpoint has read, up to ``batch``, belongs to an earlier incarnation of it.
    """
    if reading.low == MIN:
        return reading
    if reading.input_version != registered.input_version:
        return UNREAD
    lives = zip(reading.input_incarnations, registered.input_incarnations, strict=False)
    if any(old != new for old, new in lives):
        msg = (
            f"an input of {registered.name} was reset since batch {batch}: what this checkpoint has "
            "read belongs to an earlier incarnation of it. Start from a new checkpoint, with adopt=True."
        )
        raise errors.IncarnationChanged(msg, metadata={"computation": registered.name})
    return reading


def fold(readings: Sequence[Reading]) -> Reading:
    """Return the least of some readings, with the shares that all of them have. Of no inputs: it names no versions of any.

    >>> fold([Reading(5, {990_000: 7, 950_000: 9}), Reading(6, {990_000: 6})])
    Reading(low=5, heuristics={990000: 6}, input_version=0, input_incarnations=())
    """
    shares = set[int].intersection(*(set(reading.heuristics) for reading in readings))
    least = {share: min(reading.heuristics[share] for reading in readings) for share in sorted(shares)}
    return Reading(min(reading.low for reading in readings), least)


def floor_stamp(micros: int, window: timedelta | None) -> int:
    """Return the lowest stamp that a record at or after ``micros`` can get.

    Records stamped by their own event time (``window`` None) keep it. Windows are stamped by their start, so a record at 14:25
    opens the hour and is written with 14:00. Windows start at whole multiples of their length since the epoch, as Spark's do.

    >>> floor_stamp(14_250_000, timedelta(seconds=1))
    14000000
    """
    if window is None or micros in (MIN, MAX):
        return micros
    return max(MIN, micros - micros % (window // timedelta(microseconds=1)))
