"""A reading of the inputs: W, its heuristic watermarks, and which incarnations of which inputs it was folded from."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

import lowwater
from lowwater import errors
from lowwater.watermark import MAX, MIN

__all__ = ["UNREAD", "Change", "Origin", "Reading", "floor_stamp", "fold", "still_counts"]


class Change(enum.Enum):
    """What has become of the inputs between two moments."""

    NONE = enum.auto()
    RESET = enum.auto()
    """The same inputs; one has begun another incarnation."""
    INPUTS = enum.auto()
    """Other inputs."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Which inputs, and which incarnations of them: what a reading was folded from, or what a computation is registered with."""

    version: int = 0
    """Of the list of inputs. It grows with each change of the list."""
    incarnations: tuple[int, ...] = ()
    """Of each input, in the order of the list; 0 for one that nobody had registered."""

    @classmethod
    def of(cls, registered: lowwater.Computation) -> Self:
        """Return what a computation is registered with."""
        return cls(registered.input_version, tuple(registered.input_incarnations))

    def since(self, earlier: Origin) -> Change:
        """Return what has become of the inputs since an earlier moment.

        This is the one rule for it.

        An input that was not registered then may have been since: it begins an incarnation, and not
        another one.

        >>> now = Origin(2, (1, 3))
        >>> now.since(Origin(2, (1, 0))), now.since(Origin(2, (1, 2))), now.since(Origin(1, (1, 3)))
        (<Change.NONE: 1>, <Change.RESET: 2>, <Change.INPUTS: 3>)
        >>> Origin(2, (1, 0)).since(now)
        <Change.RESET: 2>
        """
        if self.version != earlier.version:
            return Change.INPUTS
        same = len(self.incarnations) == len(earlier.incarnations) and all(
            then in (0, now) for then, now in zip(earlier.incarnations, self.incarnations, strict=True)
        )
        return Change.NONE if same else Change.RESET


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of the inputs at one moment, before anything was looked for in the source.

    Micros throughout.

    An injector reads no inputs: its reading holds the frontier.
    """

    low: int
    heuristics: Mapping[int, int] = field(default_factory=dict)
    """Share in parts per million -> heuristic watermark."""
    input_version: int = 0
    input_incarnations: tuple[int, ...] = ()
    budgets: Mapping[int, int] = field(default_factory=dict)
    """Share in parts per million -> watermark of a lateness budget."""

    @property
    def origin(self) -> Origin:
        """What it was folded from."""
        return Origin(self.input_version, self.input_incarnations)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "low": self.low,
            "heuristics": {str(share): micros for share, micros in self.heuristics.items()},
            "input_version": self.input_version,
            "input_incarnations": list(self.input_incarnations),
            **({"budgets": {str(share): micros for share, micros in self.budgets.items()}} if self.budgets else {}),
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_json` described."""
        return cls(
            low=int(entry["low"]),
            heuristics={int(share): int(micros) for share, micros in entry["heuristics"].items()},
            input_version=int(entry["input_version"]),
            input_incarnations=tuple(map(int, entry["input_incarnations"])),
            budgets={int(share): int(micros) for share, micros in entry.get("budgets", {}).items()},
        )


UNREAD = Reading(MIN)
"""Nothing is known of the inputs."""


def still_counts(reading: Reading, batch: int, registered: lowwater.Computation) -> Reading:
    """Return what a reading that a checkpoint kept says of the inputs that are registered now.

    UNREAD when the stage has other inputs than then: nothing was read of all of them together.
    Raises IncarnationChanged when one of them was reset since: what the checkpoint has read, up to
    ``batch``, belongs to an earlier incarnation of it.
    """
    if reading.low == MIN:
        return reading
    change = Origin.of(registered).since(reading.origin)
    if change is Change.INPUTS:
        return UNREAD
    if change is Change.RESET:
        msg = (
            f"an input of {registered.name} was reset since batch {batch}: what this checkpoint has "
            "read belongs to an earlier incarnation of it. Start from a new checkpoint, with adopt=True."
        )
        raise errors.IncarnationChanged(msg, metadata={"computation": registered.name})
    return reading


def fold(readings: Sequence[Reading]) -> Reading:
    """Return the least of some readings, with the shares that all of them have.

    Of no inputs: it names no versions of any.

    >>> fold([Reading(5, {990_000: 7, 950_000: 9}), Reading(6, {990_000: 6})])
    Reading(low=5, heuristics={990000: 6}, input_version=0, input_incarnations=(), budgets={})
    """
    shares = set[int].intersection(*(set(reading.heuristics) for reading in readings))
    least = {share: min(reading.heuristics[share] for reading in readings) for share in sorted(shares)}
    return Reading(min(reading.low for reading in readings), least)


def floor_stamp(micros: int, window: timedelta | None, start: timedelta = timedelta()) -> int:
    """Return the lowest stamp that a record at or after ``micros`` can get.

    Records stamped by their own event time (``window`` None) keep it. Windows are stamped by their
    start, so a record at 14:25 opens the hour and is written with 14:00. Windows start at whole
    multiples of their length since the epoch, as Spark's do. ``start`` is Spark's startTime: the
    time by which all windows are shifted.

    >>> floor_stamp(14_250_000, timedelta(seconds=1))
    14000000
    >>> floor_stamp(14_250_000, timedelta(seconds=1), timedelta(milliseconds=400))
    13400000
    """
    if window is None or micros in (MIN, MAX):
        return micros
    shifted = micros - start // timedelta(microseconds=1)
    return max(MIN, micros - shifted % (window // timedelta(microseconds=1)))
