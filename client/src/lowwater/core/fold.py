"""The minimum over inputs, taken where it is used: MillWheel 7.2, low watermark of A = min(oldest work, inputs' lows).

The authority never folds a computation's inputs: a value of its own would lead what the workers know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowwater.core.text import describe_holder
from lowwater.errors import FinishRequired
from lowwater.views import PPM, Inputs, WatermarkView
from lowwater.watermark import MAX, Watermark

__all__ = ["Fold", "Reading", "fold_inputs", "fold_of", "injector_fold"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Which inputs a computation folds, under which rules."""

    computation: str
    inputs: tuple[str, ...]
    input_version: int
    incarnations: tuple[int, ...]
    """The incarnation each input must have; 0 takes any, for an input that was not registered then.
    """
    shares: tuple[int, ...]
    """The heuristic shares to fold, in parts per million."""

    def is_before(self, other: Reading | None) -> bool:
        """Whether another reading of the computation knows newer inputs: their versions and incarnations only grow."""
        return other is not None and (self.input_version, self.incarnations) < (other.input_version, other.incarnations)


@dataclass(frozen=True, slots=True)
class Fold:
    """What a report claims to have folded: an immutable snapshot, so that nothing can put a newer one in its place."""

    low: int
    frontiers: tuple[tuple[int, int], ...]
    """(share in parts per million, micros)."""
    input_version: int = 0
    input_incarnations: tuple[int, ...] = ()


def fold_inputs(
    names: Sequence[str], views: Mapping[str, WatermarkView], reading: Reading | None, stale_for: float
) -> Inputs:
    """Return the minimum over the named inputs. O(inputs x shares).

    An input that is unknown, not registered, or in another incarnation than ``reading`` requires,
    counts as MIN. Without a reading any incarnation counts, and the shares are all that any input
    has. Lateness budgets are all that any input has.
    """
    each = {name: views.get(name) or WatermarkView(name) for name in names}
    required = reading.incarnations if reading is not None else (0,) * len(names)
    counted = [
        view if view.registered and incarnation in {0, view.incarnation} else WatermarkView(view.computation)
        for view, incarnation in zip(each.values(), required, strict=True)
    ]
    if reading is not None:
        shares: Sequence[int] = reading.shares
    else:
        shares = sorted({share for view in counted for share, _ in view.shares}, reverse=True)
    budgets = sorted({budget.share for view in each.values() for budget in view.budgets})
    lowest = min(counted, key=lambda view: view.low)
    return Inputs(
        low=lowest.low,
        heuristic={share / PPM: min(view.at_share(share) for view in counted) for share in shares},
        stale_for=stale_for,
        held_by=None if lowest.low.finished else describe_holder(each[names[counted.index(lowest)]], lowest.registered),
        each=each,
        computation=reading.computation if reading is not None else "",
        input_version=reading.input_version if reading is not None else 0,
        incarnations=tuple(view.incarnation if view.registered else 0 for view in each.values()),
        budget={share: min(view.at_budget(round(share * PPM)) for view in counted) for share in budgets},
    )


def fold_of(seen: Inputs) -> Fold:
    """Return what a report with this snapshot folds."""
    frontiers = tuple((round(share * PPM), watermark.micros) for share, watermark in seen.heuristic.items())
    return Fold(seen.low.micros, frontiers, seen.input_version, seen.incarnations)


def injector_fold(frontier: int, shares: Sequence[int]) -> Fold:
    """Return what an injector's report folds: its own frontier instead of inputs.

    Raises FinishRequired for MAX, which only ``finish()`` may say.
    """
    if frontier == MAX:
        msg = f"frontier={Watermark(frontier)}: only Lease.finish() says that nothing will ever come"
        raise FinishRequired(msg, metadata={"field": "frontier", "fix": "Lease.finish()"})
    return Fold(frontier, tuple((share, frontier) for share in shares))
