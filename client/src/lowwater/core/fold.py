"""The minimum over inputs, folded by the worker: MillWheel 7.2, L(A) = min(oldest work, inputs).

The authority never folds a computation's inputs: its value would lead what the workers know.
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
    """Inputs that a computation folds, and the rules of the fold."""

    computation: str
    inputs: tuple[str, ...]
    input_version: int
    incarnations: tuple[int, ...]
    """Incarnation that each input must have; 0 accepts any, for an input that was not
    registered."""
    shares: tuple[int, ...]
    """Heuristic shares to fold, in parts per million."""

    def is_before(self, other: Reading | None) -> bool:
        """True when another reading has newer inputs; versions and incarnations only grow."""
        return other is not None and (self.input_version, self.incarnations) < (other.input_version, other.incarnations)


@dataclass(frozen=True, slots=True)
class Fold:
    """Fold that a report claims: an immutable snapshot, so that no newer one can replace it."""

    low: int
    frontiers: tuple[tuple[int, int], ...]
    """(share in parts per million, micros) pairs."""
    input_version: int = 0
    input_incarnations: tuple[int, ...] = ()


def fold_inputs(
    names: Sequence[str], views: Mapping[str, WatermarkView], reading: Reading | None, stale_for: float
) -> Inputs:
    """Return the minimum over the named inputs. O(inputs x shares).

    An input that is unknown, not registered, or in another incarnation than ``reading`` requires,
    counts as MIN. Without a reading any incarnation counts, and the shares are those that any input
    has. Lateness budgets are those that any input has.
    """
    by_name = {name: views.get(name) or WatermarkView(name) for name in names}
    required = reading.incarnations if reading is not None else (0,) * len(names)
    counted = [
        view if view.registered and incarnation in {0, view.incarnation} else WatermarkView(view.computation)
        for view, incarnation in zip(by_name.values(), required, strict=True)
    ]
    if reading is not None:
        shares: Sequence[int] = reading.shares
    else:
        shares = sorted({share for view in counted for share, _ in view.shares}, reverse=True)
    budgets = sorted({budget.share for view in by_name.values() for budget in view.budgets})
    lowest = min(counted, key=lambda view: view.low)
    return Inputs(
        low=lowest.low,
        heuristic={share / PPM: min(view.at_share(share) for view in counted) for share in shares},
        stale_for=stale_for,
        held_by=None
        if lowest.low.finished
        else describe_holder(by_name[names[counted.index(lowest)]], lowest.registered),
        each=by_name,
        computation=reading.computation if reading is not None else "",
        input_version=reading.input_version if reading is not None else 0,
        incarnations=tuple(view.incarnation if view.registered else 0 for view in by_name.values()),
        budget={share: min(view.at_budget(round(share * PPM)) for view in counted) for share in budgets},
    )


def fold_of(inputs: Inputs) -> Fold:
    """Return the fold of a report with this snapshot."""
    frontiers = tuple((round(share * PPM), watermark.micros) for share, watermark in inputs.heuristic.items())
    return Fold(inputs.low.micros, frontiers, inputs.input_version, inputs.incarnations)


def injector_fold(frontier: int, shares: Sequence[int]) -> Fold:
    """Return the fold of an injector: its own frontier. Raises FinishRequired for MAX."""
    if frontier == MAX:
        msg = f"frontier={Watermark(frontier)}: only Lease.finish() may report that no more data will come"
        raise FinishRequired(msg, metadata={"field": "frontier", "fix": "Lease.finish()"})
    return Fold(frontier, tuple((share, frontier) for share in shares))
