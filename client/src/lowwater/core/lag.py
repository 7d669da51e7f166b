"""Lags of watermarks along the graph. Times are microseconds since the Unix epoch, UTC."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from lowwater.views import WatermarkView
from lowwater.watermark import MAX, MIN

__all__ = ["lag_seconds", "late_by", "root_lows", "upstream_first"]


def late_by(view: WatermarkView, now_micros: int) -> float | None:
    """Return the seconds by which a low watermark is late; None without a promise or a time."""
    promised = None if view.promise is None else view.promise.late
    if promised is None or view.low.unknown or view.low.finished:
        return None
    return max(0.0, (now_micros - view.low.micros) / 1e6 - promised.total_seconds())


def lag_seconds(ahead: int, behind: int) -> float | None:
    """Return the seconds by which a watermark lags another, at least 0; None without times."""
    if not (MIN < ahead < MAX and MIN < behind < MAX):
        return None
    return max(0, ahead - behind) / 1e6


def upstream_first(inputs: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return computations in an order in which inputs come first; cycles are cut somewhere."""
    order: list[str] = []
    visited: set[str] = set()
    for start in inputs:
        stack = [(start, False)]
        while stack:
            name, inputs_done = stack.pop()
            if inputs_done:
                order.append(name)
            elif name not in visited and name in inputs:
                visited.add(name)
                stack.append((name, True))
                stack += [(upstream, False) for upstream in inputs[name]]
    return tuple(order)


def root_lows(
    order: Iterable[str], inputs: Callable[[str], Sequence[str]], low: Callable[[str], int]
) -> dict[str, int]:
    """Return the least low of the injectors upstream of each computation; an injector's own.

    ``order`` has inputs first, as from :func:`upstream_first`. An input that is missing in it, or
    later in it, counts as unknown: views of two versions of the graph may form a cycle for a
    moment.
    """
    lows: dict[str, int] = {}
    for name in order:
        before = inputs(name)
        lows[name] = min(lows.get(upstream, MIN) for upstream in before) if before else low(name)
    return lows
