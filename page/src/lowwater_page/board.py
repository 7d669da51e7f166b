"""What is known of the whole deployment: the newest watermarks, how far they lag along the graph, and a week of samples."""

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
    """The newest view of each computation, as one follower hears it. Safe for threads.

    ``admit`` is for the one thread that follows, ``post`` and ``sample`` for the one that looks now
    and then, ``changes`` for the one that tells others; all may read. A read costs O(inputs); the
    first look at a global lag after a change O(edges of the graph), once for all computations.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._views: dict[str, WatermarkView] = {}
        self._changed: dict[str, None] = {}
        self._shards: tuple[ShardView, ...] = ()
        self._order: tuple[str, ...] | None = ()
        self._roots: Mapping[str, int] | None = {}
        self._told: Mapping[str, int] = {}
        self._samples = Samples()

    # -- writing -----------------------------------------------------------------------------------

    def admit(self, view: WatermarkView) -> None:
        """Take over what is newer than what is known; a value never goes back within an incarnation (rule 3). What was dropped is forgotten."""
        name = view.computation
        with self._lock:
            known = self._views.get(name)
            if not view.registered:
                if known is not None and view.incarnation >= known.incarnation:
                    self._forget(name)
                return
            if known is not None and (view.incarnation, view.low) < (known.incarnation, known.low):
                return
            if known is None or known.inputs != view.inputs:
                self._order = None
            if known is not None and known.incarnation != view.incarnation:
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
        """Take over when a computation had passed which event times, before anybody looked; nothing when it is in another incarnation.

        Returns False when it is too early: there is no sample of it yet.
        """
        with self._lock:
            view = self._views.get(name)
            return view is None or view.incarnation != incarnation or self._samples.recall(name, completions)

    def post(self, shards: Iterable[ShardView]) -> None:
        """Replace the shards of the deployment."""
        self._shards = tuple(shards)

    def sample(self, time_micros: int) -> None:
        """Keep where everything stands at a processing time. O(computations)."""
        with self._lock:  # to the end: a new incarnation that began in between would get a value of the old one
            values = [(view.low.micros, view.at_share(SHARE_PPM).micros) for view in self._views.values()]
            self._samples.add(time_micros, list(self._views), values)

    # -- reading -----------------------------------------------------------------------------------

    @property
    def shards(self) -> tuple[ShardView, ...]:
        """The shards of the deployment when they were asked last, by address."""
        return self._shards

    def names(self) -> list[str]:
        """Return the computations that were heard of, sorted."""
        with self._lock:
            return sorted(self._views)

    def view(self, name: str) -> WatermarkView | None:
        """Return the newest view of a computation; None when it was never heard of."""
        return self._views.get(name)

    def local_lag(self, name: str) -> float | None:
        """Return how many seconds a computation is behind the least of its inputs: what it could do and has not done.

        Never below 0. None for one without inputs, and while it or that input is unknown or finished.
        """
        view = self._views.get(name)
        if view is None or not view.inputs:
            return None
        return lag_seconds(min(map(self._low, view.inputs)), view.low.micros)

    def global_lag(self, name: str) -> float | None:
        """Return how many seconds a computation is behind the least of the injectors upstream of it.

        Never below 0. None for an injector, and while it or that injector is unknown or finished.
        """
        view = self._views.get(name)
        if view is None or not view.inputs:
            return None
        return lag_seconds(self._root_lows().get(name, MIN), view.low.micros)

    def recent(self, name: str, span: Span) -> list[Sample]:
        """Return the samples of the computation's present incarnation, oldest first."""
        return self._samples.of(name, span)

    def heat(self, span: Span, most: int) -> Heat:
        """Return how far everything was behind over a time: of so many computations at most, those that were the most times as far behind as is late.

        O(samples).
        """
        with self._lock:
            promises = [(name, view.promise) for name, view in self._views.items() if view.promise is not None]
        late = {name: each.late.total_seconds() for name, each in promises if each.late}
        return self._samples.heat(span, most, late)

    def changes(self) -> list[str]:
        """Return what stands or lags otherwise than when this was asked last, each once, and what was forgotten since.

        O(edges of the graph) if there is anything.
        """
        with self._lock:
            if not self._changed:
                return []
            changed, self._changed = self._changed, {}
            views = list(self._views.values())
        roots, before = self._root_lows(), self._told
        self._told = roots
        for view in views:
            name = view.computation
            if name not in changed and (
                roots.get(name) != before.get(name) or any(each in changed for each in view.inputs)
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
