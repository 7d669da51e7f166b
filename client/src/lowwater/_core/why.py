"""Why a watermark stands where it stands: from a computation upstream to whoever holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lowwater._core.text import describe_owner, describe_range, duration, lag
from lowwater.views import Ranges, RangeState, RangeView, WatermarkView
from lowwater.watermark import Watermark

__all__ = ["Hop", "Why", "explain", "find_guilty"]

_NAMED = 3
"""Key ranges named in a sentence."""

_SILENT = 15.0
"""Seconds without a report after which a worker is called silent; living ones repeat themselves every few seconds."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One computation on the way upstream."""

    computation: str
    watermark: Watermark
    behind: float | None
    """Seconds that it is behind the least of its inputs; None for an injector, or when either has no time."""
    upstream: str | None
    """The input that holds it back; None at the computation that is to blame."""
    holders: tuple[RangeView, ...]
    """The key ranges furthest behind, at the computation that is to blame."""
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Why:
    """The way from a computation to who holds it; ``str()`` is one sentence per hop, one hop a line."""

    hops: tuple[Hop, ...]

    @property
    def guilty(self) -> Hop:
        """Where the walk ended: the computation that holds all the ones before it."""
        return self.hops[-1]

    def __iter__(self) -> Iterator[Hop]:
        return iter(self.hops)

    def __str__(self) -> str:
        return "\n".join(hop.sentence for hop in self.hops)


def find_guilty(name: str, views: Mapping[str, WatermarkView]) -> str | None:
    """Walk from a computation to the one that holds it; None when it has no key ranges to blame.

    A computation that has come as far as the least of its inputs is held by that input; one that has not is to blame
    itself. ``views`` has every registered computation. Registered graphs have no cycles, so the walk ends.
    """
    while True:
        view = views.get(name) or WatermarkView(name)
        if not view.registered or view.low.finished:
            return None
        lowest = _lowest_input(view, views)
        if lowest is None or view.low < lowest.low:
            return name
        name = lowest.computation


def explain(name: str, views: Mapping[str, WatermarkView], now_micros: int, found: Ranges) -> Why:
    """Tell of the walk from a computation to the one that holds it.

    ``found`` are the key ranges of that one, as :func:`find_guilty` names it, furthest behind first; none when it names none.
    """
    hops: list[Hop] = []
    while True:
        hop = _hop(views.get(name) or WatermarkView(name), views, now_micros, found)
        hops.append(hop)
        if hop.upstream is None:
            return Why(tuple(hops))
        name = hop.upstream


def _lowest_input(view: WatermarkView, views: Mapping[str, WatermarkView]) -> WatermarkView | None:
    inputs = [views.get(name) or WatermarkView(name) for name in view.inputs]
    return min(inputs, key=lambda each: each.low, default=None)


def _hop(view: WatermarkView, views: Mapping[str, WatermarkView], now_micros: int, found: Ranges) -> Hop:
    if not view.registered:
        sentence = f"{view.computation} is not registered, so nobody has promised anything: start what writes it, or remove the input."
        return Hop(view.computation, view.low, None, None, (), sentence)
    where = _where(view, now_micros)
    if view.low.finished:
        return Hop(
            view.computation, view.low, None, None, (), f"{view.computation} is finished: nothing will ever come."
        )
    lowest = _lowest_input(view, views)
    if lowest is not None and view.low >= lowest.low:
        sentence = f"{where}; that is as far as its input {lowest.computation} allows."
        return Hop(view.computation, view.low, 0.0, lowest.computation, (), sentence)
    behind = None
    if lowest is not None:
        behind = None if _timeless(view.low) or _timeless(lowest.low) else (lowest.low.micros - view.low.micros) / 1e6
        distance = f"{duration(behind)} behind its input" if behind is not None else "behind its input"
        where += f", {distance} {lowest.computation}, which {_stands(lowest.low)}"
    holders = tuple(each for each in found if each.watermark == found.ranges[0].watermark)[:_NAMED]
    sentence = f"{where}: {_held(view, holders, found.total, now_micros)}"
    return Hop(view.computation, view.low, behind, None, holders, sentence)


def _timeless(watermark: Watermark) -> bool:
    return watermark.unknown or watermark.finished


def _stands(watermark: Watermark) -> str:
    return f"is {watermark}" if _timeless(watermark) else f"stands at {watermark}"


def _where(view: WatermarkView, now_micros: int) -> str:
    where = f"{view.computation} {_stands(view.low)}"
    return where if view.low.unknown else f"{where}, {lag(view.low, now_micros)} behind the clock"


def _held(view: WatermarkView, holders: tuple[RangeView, ...], ranges: int, now_micros: int) -> str:
    if not holders:
        return "no key range says why; its workers have just moved on."
    named = "; ".join(f"{describe_range(each.start, each.end)} {_about(each, now_micros)}" for each in holders)
    more = f" ({len(holders)} of {ranges} key ranges shown)" if ranges > len(holders) else ""
    sentence = f"held by {named}{more}."
    if view.oldest_operation_micros and all(each.state is RangeState.OWNED for each in holders):
        running = duration((now_micros - view.oldest_operation_micros) / 1e6)
        sentence += f" The oldest operation has been running for {running}."
    return sentence


def _about(holder: RangeView, now_micros: int) -> str:
    words = f"at {holder.watermark}, {describe_owner(holder)}"
    if holder.state in {RangeState.NEVER_CLAIMED, RangeState.RETIRED}:
        return words
    if not holder.last_report_micros:
        return f"{words}, which has never reported"
    silent = (now_micros - holder.last_report_micros) / 1e6
    if holder.state is RangeState.UNOWNED or silent > _SILENT:
        return f"{words}, silent for {duration(silent)}"
    if not holder.since_micros:
        return f"{words}, which is alive"
    return f"{words}, which is alive and has stood there for {duration((now_micros - holder.since_micros) / 1e6)}"
