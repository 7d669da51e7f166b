"""A reading of the inputs: their low watermark W, heuristic watermarks, and incarnations."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import lowwater
from lowwater import errors
from lowwater.watermark import MIN

__all__ = ["UNREAD", "Change", "Origin", "Reading", "fold", "still_counts"]


class Change(enum.Enum):
    """A change of the inputs between two moments."""

    NONE = enum.auto()
    RESET = enum.auto()
    """The inputs are the same, but one has begun another incarnation."""
    INPUTS = enum.auto()
    """The list of inputs differs."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The inputs and their incarnations, of a reading or of a computation's registration."""

    version: int = 0
    """Version of the list of inputs. It grows with each change of the list."""
    incarnations: tuple[int, ...] = ()
    """Incarnation of each input, in the order of the list; 0 for one that was not registered."""

    @classmethod
    def of(cls, registered: lowwater.Computation) -> Self:
        """Return the registered inputs of a computation."""
        return cls(registered.input_version, tuple(registered.input_incarnations))

    def since(self, earlier: Origin) -> Change:
        """Return the change of the inputs since an earlier moment.

        If an input was not registered then, its registration is no change: it begins a first
        incarnation, not another one. No other code compares inputs.

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
    """The inputs' values at one moment, read before the source was listed. Microseconds.

    An injector has no inputs: its reading has the frontier.
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
        """The inputs from which the reading was folded."""
        return Origin(self.input_version, self.input_incarnations)

    def to_json(self) -> dict[str, Any]:
        """Return the reading as JSON values."""
        return {
            "low": self.low,
            "heuristics": {str(share): micros for share, micros in self.heuristics.items()},
            "input_version": self.input_version,
            "input_incarnations": list(self.input_incarnations),
            **({"budgets": {str(share): micros for share, micros in self.budgets.items()}} if self.budgets else {}),
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Return the reading that :meth:`to_json` wrote."""
        return cls(
            low=int(entry["low"]),
            heuristics={int(share): int(micros) for share, micros in entry["heuristics"].items()},
            input_version=int(entry["input_version"]),
            input_incarnations=tuple(map(int, entry["input_incarnations"])),
            budgets={int(share): int(micros) for share, micros in entry.get("budgets", {}).items()},
        )


UNREAD = Reading(MIN)
"""The reading of unknown inputs."""


def still_counts(reading: Reading, batch: int, registered: lowwater.Computation) -> Reading:
    """Return a checkpoint's stored reading as one of the inputs that are registered now.

    UNREAD if the stage had other inputs: the reading does not cover all of the present ones. Raises
    IncarnationChanged if one was reset: the checkpoint's rows belong to an earlier incarnation.
    """
    if reading.low == MIN:
        return reading
    change = Origin.of(registered).since(reading.origin)
    if change is Change.INPUTS:
        return UNREAD
    if change is Change.RESET:
        msg = (
            f"an input of {registered.name} was reset since batch {batch}: the rows that this checkpoint has "
            "read belong to an earlier incarnation of it. Start from a new checkpoint, with adopt=True."
        )
        raise errors.IncarnationChanged(msg, metadata={"computation": registered.name})
    return reading


def fold(readings: Sequence[Reading]) -> Reading:
    """Return the minimum of readings, with the shares that all of them have, and without inputs.

    >>> fold([Reading(5, {990_000: 7, 950_000: 9}), Reading(6, {990_000: 6})])
    Reading(low=5, heuristics={990000: 6}, input_version=0, input_incarnations=(), budgets={})
    """
    shares = set[int].intersection(*(set(reading.heuristics) for reading in readings))
    least = {share: min(reading.heuristics[share] for reading in readings) for share in sorted(shares)}
    return Reading(min(reading.low for reading in readings), least)
