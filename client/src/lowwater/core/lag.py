"""How far watermarks are behind each other along the graph.

Times are microseconds since the Unix epoch, UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from lowwater.views import WatermarkView
from lowwater.watermark import MAX, MIN

__all__ = ["lag_seconds", "late_by", "root_lows", "upstream_first"]


def late_by(view: WatermarkView, now_micros: int) -> float | None:
    """Return by how many seconds a low watermark is later than was promised, 0 when it is not; None without a promise, or a time."""
    promised = None if view.promise is None else view.promise.late
    if promised is None or view.low.unknown or view.low.finished:
        return None
    return max(0.0, (now_micros - view.low.micros) / 1e6 - promised.total_seconds())


def lag_seconds(ahead: int, behind: int) -> float | None:
    """Return by how many seconds a watermark is behind another one, never below 0; None while either has no time."""
    if not (MIN < ahead < MAX and MIN < behind < MAX):
        return None
    return max(0, ahead - behind) / 1e6


def upstream_first(inputs: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return computations, whose inputs are given, so that each comes behind its own, but for circles, which are cut somewhere."""
    order: list[str] = []
    seen: set[str] = set()
    for start in inputs:
        stack = [(start, False)]
        while stack:
            name, inputs_done = stack.pop()
            if inputs_done:
                order.append(name)
            elif name not in seen and name in inputs:
                seen.add(name)
                stack.append((name, True))
                stack += [(each, False) for each in inputs[name]]
    return tuple(order)


def root_lows(
    order: Iterable[str], inputs: Callable[[str], Sequence[str]], low: Callable[[str], int]
) -> dict[str, int]:
    """Return the least low watermark of the injectors upstream of each computation, its own for an injector.

    ``order`` has each behind its inputs, as from :func:`upstream_first`. An input that is not in it is unknown, and so is one further down:
    views of two versions of the graph may make a circle for a moment.
    """
    lows: dict[str, int] = {}
    for name in order:
        before = inputs(name)
        lows[name] = min(lows.get(each, MIN) for each in before) if before else low(name)
    return lows
