"""The newest watermarks of a deployment, their lags along the graph, and a week of samples."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from lowwater import WatermarkView
from lowwater.core.lag import lag_seconds, root_lows, upstream_first
from lowwater.watermark import MIN
from lowwater_page.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lowwater import ShardView
    from lowwater_page.samples import Heat, Sample, Span

SHARE_PPM: Final = 990_000
"""The heuristic watermark that is sampled beside the low one, in parts per million."""


class Board:
    """The newest view of each computation. Safe for threads.

    One thread calls ``admit``, one calls ``post`` and ``sample``, one calls ``changes``; all may
    read. A read costs O(inputs). The first global lag after a change costs O(edges of the graph),
    once for all computations.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._views: dict[str, WatermarkView] = {}
        self._changed: dict[str, None] = {}
        self._shards: tuple[ShardView, ...] = ()
        self._order: tuple[str, ...] | None = ()
        self._roots: Mapping[str, int] | None = {}
        self._roots_before: Mapping[str, int] = {}
        """Least watermark of the injectors upstream of each computation, at the last call."""
        self._samples = Samples()

    # -- writing -----------------------------------------------------------------------------------

    def admit(self, view: WatermarkView) -> None:
        """Keep a view unless a newer one is kept; forget a dropped computation.

        Within an incarnation no value goes back (rule 3).
        """
        name = view.computation
        with self._lock:
            before = self._views.get(name)
            if not view.registered:
                if before is not None and view.incarnation >= before.incarnation:
                    self._forget(name)
                return
            if before is not None and (view.incarnation, view.low) < (before.incarnation, before.low):
                return
            if before is None or before.inputs != view.inputs:
                self._order = None
            if before is not None and before.incarnation != view.incarnation:
                self._samples.begin(name)
            self._views[name] = view
            self._roots = None
            self._changed[name] = None

    def _forget(self, name: str) -> None:
        del self._views[name]
        self._order = self._roots = None
        self._changed[name] = None
        self._samples.remove(name)

    def recall(self, name: str, incarnation: int, completions: Sequence[tuple[int, int]]) -> bool:
        """Fill in samples from before this process: ``completions`` as for Samples.recall.

        Nothing happens when the computation is in another incarnation. False: the computation has
        no sample yet, so the caller tries again later.
        """
        with self._lock:
            view = self._views.get(name)
            return view is None or view.incarnation != incarnation or self._samples.recall(name, completions)

    def post(self, shards: Iterable[ShardView]) -> None:
        """Replace the shards of the deployment."""
        self._shards = tuple(shards)

    def sample(self, time_micros: int) -> None:
        """Sample all watermarks at a processing time, in microseconds. O(computations)."""
        with self._lock:  # a new incarnation that began in between would get a value of the old one
            values = [(view.low.micros, view.at_share(SHARE_PPM).micros) for view in self._views.values()]
            self._samples.add(time_micros, list(self._views), values)

    # -- reading -----------------------------------------------------------------------------------

    @property
    def shards(self) -> tuple[ShardView, ...]:
        """The shards of the deployment, by address, as of the last answer."""
        return self._shards

    def names(self) -> list[str]:
        """Return the names of all computations on the board, sorted."""
        with self._lock:
            return sorted(self._views)

    def view(self, name: str) -> WatermarkView | None:
        """Return the newest view of a computation; None for an unknown one."""
        return self._views.get(name)

    def local_lag(self, name: str) -> float | None:
        """Return how many seconds a computation is behind the least of its inputs.

        Never below 0. None without inputs, and while the computation or that input is unknown or
        finished.
        """
        view = self._views.get(name)
        if view is None or not view.inputs:
            return None
        return lag_seconds(min(map(self._low, view.inputs)), view.low.micros)

    def global_lag(self, name: str) -> float | None:
        """Return how many seconds a computation is behind the least of the injectors upstream.

        Never below 0. None for an injector, and while the computation or that injector is unknown
        or finished.
        """
        view = self._views.get(name)
        if view is None or not view.inputs:
            return None
        return lag_seconds(self._root_lows().get(name, MIN), view.low.micros)

    def recent(self, name: str, span: Span) -> list[Sample]:
        """Return the samples of the computation's present incarnation, oldest first."""
        return self._samples.of(name, span)

    def heat(self, span: Span, most: int) -> Heat:
        """Return the lags of at most ``most`` computations over a time, as Samples.heat does.

        O(samples).
        """
        with self._lock:
            promises = [(name, view.promise) for name, view in self._views.items() if view.promise is not None]
        late = {name: promise.late.total_seconds() for name, promise in promises if promise.late}
        return self._samples.heat(span, most, late)

    def changes(self) -> list[str]:
        """Return names whose values or lags changed, or that were forgotten, since the last call.

        O(edges of the graph) when there are any.
        """
        with self._lock:
            if not self._changed:
                return []
            changed, self._changed = self._changed, {}
            views = list(self._views.values())
        roots, before = self._root_lows(), self._roots_before
        self._roots_before = roots
        for view in views:
            name = view.computation
            if name not in changed and (
                roots.get(name) != before.get(name) or any(source in changed for source in view.inputs)
            ):
                changed[name] = None
        return list(changed)

    def _low(self, name: str) -> int:
        view = self._views.get(name)
        return MIN if view is None else view.low.micros

    def _root_lows(self) -> Mapping[str, int]:
        roots = self._roots
        if roots is not None:
            return roots
        with self._lock:
            if self._order is None:
                self._order = upstream_first({name: view.inputs for name, view in self._views.items()})
            roots = self._roots = root_lows(self._order, lambda name: self._views[name].inputs, self._low)
            return roots
