"""Why a watermark does not move: the walk upstream from a computation to its root cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import Final

from lowwater import errors
from lowwater.core.causes import Cause, cause_of, cause_of_range, quiet_words, seconds_since
from lowwater.core.slices import slices_of
from lowwater.core.text import (
    clock_time,
    counted,
    describe_owner,
    describe_range,
    did_you_mean,
    duration,
    lag,
    on_one_line,
)
from lowwater.views import NO_REMARKS, Promise, Ranges, RangeState, RangeView, WatermarkView
from lowwater.watermark import Watermark

__all__ = [
    "ASK_SECONDS",
    "HIDDEN",
    "UNANSWERED",
    "Cause",
    "Hop",
    "Way",
    "Why",
    "explain",
    "find_absent",
    "find_culprits",
    "find_guilty",
    "find_slices",
    "find_way",
    "held_words",
]

ASK_SECONDS = 1.0
"""Seconds to wait for the key ranges of the root cause. Without them the rest of the answer is
still worth showing."""

UNANSWERED = (
    errors.JournalFailed,
    errors.Overloaded,
    errors.ShuttingDown,
    errors.StaleEpoch,
    errors.Timeout,
    errors.Unavailable,
)
"""Errors of that question which mean that the authority cannot answer now."""

HIDDEN = "may not be read by this client, not even whether it is registered: ask somebody who may read it."
"""Predicate of a sentence about a computation that the caller may not read."""

_ABSENT = {
    Cause.HIDDEN: HIDDEN.rstrip("."),
    Cause.NOT_REGISTERED: "is not registered: start what writes it, or remove the input",
}

_STEP_MICROS = 3_600_000_000
"""Event time that a stage which rounds down may lag its input: the usual step, in microseconds.
Used when its worker does not report its own."""

_OUTWEIGHS = 10
"""Factor by which an upstream computation has to lag more than a worker at one long operation, to
be named as the root cause instead of it."""

_REPLAY_MICROS = 7 * 24 * 3_600_000_000
"""Age of a pipeline's newest data, in microseconds, beyond which it replays old data. Its sources
are then compared with that data instead of the clock."""

_MENTIONED_MICROS = 60_000_000
"""Least lag, in microseconds, at which a computation is mentioned beside the root cause."""

_NAMED = 3
"""Most key ranges, and most other computations, that one sentence names."""

_LAG = itemgetter(0)

_UNHEARD = ", of which the authority has not heard yet"
"""Words about a worker that may be alive: it claimed before the authority restarted."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One computation on the way upstream."""

    computation: str
    watermark: Watermark
    behind: float | None
    """Seconds by which it lags its lowest input; None for an injector, or when either has no
    time."""
    upstream: str | None
    """Input at which the way continues; None at the root cause."""
    holders: tuple[RangeView, ...]
    """First few key ranges that hold it, those in trouble first, and neighbours that are alike as
    one; empty when only an input holds it."""
    sentence: str
    cause: Cause | None = None
    """Reason why it does not move; None when its input alone holds it."""
    holding: int = 0
    """Number of key ranges at its low watermark or below. Only asked for the root cause; 0
    elsewhere."""
    unnamed: int = 0
    """Number of those that the first of ``holders`` does not stand for."""
    slice_of: str = ""
    """Computation that it is a slice of; empty for no slice."""
    epoch: int = 0
    """Ownership number of the shard that serves it; 0 when unknown."""
    since_micros: int = 0
    """Processing time, in microseconds, at which its watermark moved last; 0 when unknown."""
    in_flight: bool = False
    """True when it is cut and all its slices lead it: their reports are on the way up to it."""

    @property
    def since(self) -> datetime | None:
        """Time at which its watermark moved last; None when unknown."""
        return WatermarkView(self.computation, since_micros=self.since_micros).since

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Why:
    """The root cause that holds a computation, and the way to it.

    ``str()`` is the cause in one sentence, then one line per hop, then who is responsible for the
    root cause, if an operator wrote that down.
    """

    hops: tuple[Hop, ...]
    sentence: str = ""
    """Root cause in one sentence."""
    others: tuple[str, ...] = ()
    """Other root causes that hold the computation just as low: it moves only after they move,
    too."""
    promise: Promise | None = None
    """Promise about the root cause; None when nothing was promised."""

    @property
    def answers(self) -> str:
        """Owner, runbook and worker logs of the root cause; empty when nothing was promised."""
        return "" if self.promise is None else _answers(self.guilty, self.promise)

    @property
    def guilty(self) -> Hop:
        """Hop of the root cause, which ends the way."""
        return self.hops[-1]

    def __iter__(self) -> Iterator[Hop]:
        return iter(self.hops)

    def __str__(self) -> str:
        lines = [hop.sentence for hop in self.hops]
        if self.sentence not in {"", lines[0]}:
            lines.insert(0, self.sentence)
        return "\n".join([*lines, self.answers] if self.answers else lines)


@dataclass(frozen=True, slots=True)
class Way:
    """Names on the way to the root cause, and further root causes that hold as much."""

    names: tuple[str, ...]
    others: tuple[str, ...]
    lags: Mapping[str, int | None]
    """Microseconds that each upstream computation the walk met adds to the lag; None when that
    cannot be measured."""
    furthest: str
    """Computation upstream of the root cause that adds most to the lag; empty when there is
    none."""


@dataclass(frozen=True, slots=True)
class _End:
    """Root cause at the end of one way, and its weight against others."""

    computation: str
    trouble: bool
    lag: float
    """Microseconds that it adds to the lag itself."""

    weight: tuple[bool, float]
    """Sort key: those that need somebody to act first, then those that lag most."""


@dataclass(frozen=True, slots=True)
class _Reach:
    """Ends of all ways from one computation."""

    ends: int
    """Bit set of the ends, in the order the walk met them. Computations share most of their ends,
    so sets of names would cost too much."""
    best: _End
    onward: str
    """Input at which the way to the best end continues; empty at an end."""
    furthest: tuple[float, str]


class _Graph:
    """Published views, and the slices or inputs that each computation waits for."""

    def __init__(self, views: Mapping[str, WatermarkView]) -> None:
        self.views = views
        self.cut: Final = slices_of(views)
        """Slices by cut computation."""

    def slices(self, view: WatermarkView) -> tuple[str, ...]:
        """Return the slices of a computation; none when it is not cut."""
        return self.cut.get(view.computation, ())

    def lowest(self, view: WatermarkView) -> list[str]:
        """Return the lowest of its slices or, for an uncut computation, of its inputs."""
        names = self.slices(view) or view.inputs
        lows = [self.low(name) for name in names]
        least = min(lows, default=None)
        return [name for name, low in zip(names, lows, strict=True) if low == least]

    def low(self, name: str) -> Watermark:
        """Return the low watermark of a computation as its readers use it."""
        view = self.views.get(name)
        if view is None:
            return Watermark.UNKNOWN
        root = self.views.get(view.slice_of)
        if root is None:
            return view.low
        # One of the two has not begun the new incarnation yet.
        if view.incarnation != root.incarnation:
            return Watermark.UNKNOWN
        # The holder of a slice is where the slice is now; the slice's low may have been higher
        # before.
        return view.low if view.holder is None else min(view.low, view.holder.watermark)

    def is_ahead(self, view: WatermarkView, lowest: list[str]) -> bool:
        """Return True for an estimate that leads its inputs, so does not wait for them."""
        estimated = view.estimated and not self.slices(view)
        return estimated and bool(lowest) and view.low > self.low(lowest[0])

    def holds_by_itself(self, view: WatermarkView, lowest: list[str]) -> bool:
        """Return True when something else than its inputs holds the computation."""
        return not lowest or view.low < self.low(lowest[0]) or self.is_ahead(view, lowest)

    def own_lag(self, view: WatermarkView, lowest: list[str], start: int) -> int | None:
        """Return the microseconds that a computation adds to the lag itself.

        A source is compared with ``start``. None when there is no measure; 0 for less than its
        worker holds back by design: then it has done all that its input allows.
        """
        if view.registered and view.low.finished:
            return 0
        alone = not lowest or self.is_ahead(view, lowest)
        least = Watermark(start) if alone else self.low(lowest[0])
        if view.low >= least:
            return 0
        if _timeless(view.low) or _timeless(least):
            return None
        lag = least.micros - view.low.micros
        return 0 if lag < holdback_of(view) else lag


def holdback_of(view: WatermarkView) -> int:
    """Return the microseconds by which a watermark lags its inputs by design.

    0 when unknown, and when its worker has ended, which leaves what came since undone.
    """
    remarks = NO_REMARKS if view.holder is None else view.holder.remarks
    return 0 if remarks.ended else remarks.holdback_micros


def find_way(name: str, views: Mapping[str, WatermarkView], now_micros: int) -> Way:
    """Walk from a computation upstream to its root cause.

    A computation that is at the lowest of its inputs is held by that input. One that lags them adds
    to the lag itself, and a source adds what it lags the clock or, in a replay, the newest data of
    its pipeline. The root cause is the one that adds most. It is not simply the last one, which may
    lag by a second behind an input that is two hours late.

    Two rules come first. A computation in trouble (see :class:`Cause`) is the root cause however
    little it adds so far, since it does not move before somebody acts. A stopped one is not in
    trouble: it may be a program that runs by cron. A computation downstream of
    it is named all the same when it adds more, and more than its rounding explains: what its worker
    holds back by design, or an hour when the worker does not report that. And a computation at one
    long operation is named before an input that lags less than ten times as much.

    A computation that lags by less than it holds back by design, such as a stage of windows, adds
    nothing: the way continues upstream, unless it is in trouble or stopped itself.

    A computation that is cut waits for its slowest slice, and the slices wait for its inputs, so
    the way continues into that slice. It lags its slices by itself only while their reports are on
    the way up.

    All inputs that are equally low are followed. An estimate that leads its inputs does not wait
    for them, so it holds by itself. ``views`` has every registered computation. Cost:
    O(computations + inputs), each with one operation on a bit set of all ends. Registered graphs
    have no cycles; a cycle, read while the graph changed, ends the walk.
    """
    return _Walk(_Graph(views), now_micros).way(name)


def find_culprits(
    names: Iterable[str], views: Mapping[str, WatermarkView], now_micros: int
) -> dict[str, WatermarkView]:
    """Return the root cause of each computation, by :func:`find_way`, in one walk."""
    walk = _Walk(_Graph(views), now_micros)
    return {name: views.get(guilty) or WatermarkView(guilty) for name in names for guilty in [walk.guilty(name)]}


class _Walk:
    """Ways upstream from computations; parts that they share are walked once."""

    def __init__(self, graph: _Graph, now_micros: int) -> None:
        self._graph = graph
        self._views = graph.views
        self._now_micros = now_micros
        self._starts = _starts(graph.views, now_micros)
        self._ends: list[_End] = []
        """Ends in the order of their bits."""
        self._lags: dict[str, int | None] = {}
        self._lowest: dict[str, list[str]] = {}
        """Lowest inputs of each computation whose walk has begun. One that is here without a reach
        is part of a cycle."""
        self._reaches: dict[str, _Reach] = {}

    def guilty(self, name: str) -> str:
        """Return the root cause of a computation."""
        return self._reach(name).best.computation

    def way(self, name: str) -> Way:
        """Return the way from a computation."""
        reach = self._reach(name)
        names = [name]
        while self._reaches[names[-1]].onward:
            names.append(self._reaches[names[-1]].onward)
        others = [end for bit, end in enumerate(self._ends) if reach.ends >> bit & 1 and end.computation != names[-1]]
        others.sort(key=lambda end: end.weight, reverse=True)
        end = names[-1]
        ahead = end in self._views and self._graph.is_ahead(self._views[end], self._lowest[end])
        waits_for = [] if ahead else self._lowest[end]
        beyond = [self._reaches[name].furthest for name in waits_for if name in self._reaches]
        _, furthest = max(beyond, key=_LAG, default=(0, ""))
        return Way(tuple(names), tuple(end.computation for end in others), self._lags, furthest)

    def _reach(self, name: str) -> _Reach:
        pending = [name]
        while pending:
            here = pending[-1]
            if here in self._reaches:
                pending.pop()
                continue
            if here not in self._lowest:
                view = self._views.get(here)
                resolved = view is None or not view.registered or view.low.finished
                self._lowest[here] = [] if view is None or resolved else self._graph.lowest(view)
                missing = [name for name in self._lowest[here] if name not in self._lowest]
                if missing:
                    pending += reversed(missing)
                    continue
            self._reaches[here] = self._end_or_go_on(here)
        return self._reaches[name]

    def _end_or_go_on(self, here: str) -> _Reach:
        view, lowest = self._views.get(here) or WatermarkView(here), self._lowest[here]
        ways = [(self._reaches[name], name) for name in lowest if name in self._reaches]
        lag = self._graph.own_lag(view, lowest, self._starts.get(here, self._now_micros))
        cause = cause_of(self._views.get(here), self._now_micros)
        # One of its slices is busy, and reports that itself.
        if self._graph.slices(view) and cause is Cause.BUSY:
            cause = Cause.MOVING
        weight = cause.trouble, float("inf") if lag is None else lag
        own = _End(here, *weight, weight)
        self._lags[here] = lag
        furthest = max((own.lag, here), *(reach.furthest for reach, _ in ways), key=_LAG) if ways else (own.lag, here)
        if self._graph.is_ahead(view, lowest):
            ways = []
        elif own.lag or (cause.trouble and self._graph.holds_by_itself(view, lowest)):
            rounding = 0 if holdback_of(view) else _STEP_MICROS
            ways = [(reach, name) for reach, name in ways if _goes_on(own, cause, reach.best, rounding)]
        if not ways:
            self._ends.append(own)
            return _Reach(1 << len(self._ends) - 1, own, "", furthest)
        first, onward = max(ways, key=lambda way: way[0].best.weight)
        ends = 0
        for reach, _ in ways:
            ends |= reach.ends
        return _Reach(ends, first.best, onward, furthest)


def find_guilty(name: str, views: Mapping[str, WatermarkView], now_micros: int) -> str | None:
    """Return the root cause of a computation; None when it has no key ranges to blame."""
    guilty = views.get(find_way(name, views, now_micros).names[-1])
    return None if guilty is None or not guilty.registered or guilty.low.finished else guilty.computation


def find_slices(views: Mapping[str, WatermarkView]) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return the slices of each cut computation, and the first of the slowest."""
    graph = _Graph(views)
    return {root: (names, graph.lowest(views[root])[0]) for root, names in graph.cut.items() if root in views}


def find_absent(name: str, views: Mapping[str, WatermarkView], now_micros: int) -> str | None:
    """Return the root cause if it is unregistered or unreadable, so not among the views."""
    root = find_way(name, views, now_micros).names[-1]
    return None if root in views else root


def explain(
    name: str,
    views: Mapping[str, WatermarkView],
    now_micros: int,
    ranges: Ranges,
    unknown: errors.LowwaterError | None = None,
) -> Why:
    """Explain what holds a computation.

    ``ranges``: key ranges of the root cause, which :func:`find_guilty` names, at its low watermark
    or below; empty when it names none. ``unknown``: the error of that question. Then no worker is
    blamed, and the answer only says which range held before. PermissionDenied for a computation
    that is not among ``views`` says that the caller may not read it; otherwise that one is not
    registered.
    """
    graph = _Graph(views)
    way = _Walk(graph, now_micros).way(name)
    hops = [_passed(*pair, graph, now_micros) for pair in zip(way.names, way.names[1:], strict=False)]
    hops.append(_end(views.get(way.names[-1]) or WatermarkView(way.names[-1]), graph, now_micros, ranges, unknown))
    hops = [_placed(hop, graph) for hop in hops]
    guilty = views.get(way.names[-1])
    return Why(
        tuple(hops),
        _cause_sentence(hops, way, graph, now_micros, unknown),
        way.others,
        None if guilty is None else guilty.promise,
    )


def _answers(guilty: Hop, promise: Promise) -> str:
    who = on_one_line(
        " of ".join(name for name in (promise.owner, promise.team and f"the team {promise.team}") if name)
    )
    parts = [f"{who} answers for {guilty.computation}"] if who else []
    if promise.runbook:
        parts.append(f"what to do: {on_one_line(promise.runbook)}")
    holder = guilty.holders[0] if guilty.holders else None
    logs = promise.logs_of(holder.worker, holder.host) if holder is not None and holder.worker else promise.logs
    if logs and "{" not in logs:
        parts.append(f"logs: {on_one_line(logs)}")
    return "; ".join(parts)


def _goes_on(own: _End, cause: Cause, end: _End, rounding: int) -> bool:
    """Return True when the search for the root cause continues upstream of a computation.

    That is so when its inputs add more to the lag than the computation itself. ``rounding``:
    microseconds of its lag that rounding down may explain; 0 when the worker reports that part.
    """
    if cause.trouble:
        return False
    if end.lag > own.lag * (_OUTWEIGHS if cause is Cause.BUSY else 1):
        return True
    return end.trouble and cause is not Cause.BUSY and own.lag <= rounding


def _starts(views: Mapping[str, WatermarkView], now_micros: int) -> dict[str, int]:
    """Return the newest data of the pipeline of each source, for pipelines that replay old data.

    Sources that are missing in the answer are compared with the clock. A pipeline is a connected
    part of the graph. O(computations + inputs).
    """
    lows = (view.low for view in views.values())
    if all(_timeless(low) or now_micros - low.micros <= _REPLAY_MICROS for low in lows):
        return {}
    pipeline: dict[str, str] = {}

    def pipeline_of(name: str) -> str:
        top = name
        while pipeline.setdefault(top, top) != top:
            top = pipeline[top]
        while pipeline[name] != top:
            pipeline[name], name = top, pipeline[name]
        return top

    newest: dict[str, int] = {}
    for view in views.values():
        for upstream in (*view.inputs, *filter(None, [view.slice_of])):
            pipeline[pipeline_of(upstream)] = pipeline_of(view.computation)
    for view in views.values():
        for watermark in (view.low, *(watermark for _, watermark in view.shares)):
            if not _timeless(watermark):
                top = pipeline_of(view.computation)
                newest[top] = max(newest.get(top, watermark.micros), watermark.micros)
    old = {top: micros for top, micros in newest.items() if now_micros - micros > _REPLAY_MICROS}
    return {name: old[pipeline_of(name)] for name in views if pipeline_of(name) in old}


def _placed(hop: Hop, graph: _Graph) -> Hop:
    """Return a hop with its slice, epoch, age and untimed rows filled in."""
    view = graph.views.get(hop.computation)
    if view is None:
        return hop
    untimed = 0 if view.holder is None else view.holder.remarks.untimed_rows
    if untimed:
        rows = f"{counted(untimed, 'row')} without an event time, which {'are' if untimed > 1 else 'is'} in no window"
        hop = replace(hop, sentence=f"{hop.sentence} Its worker has read {rows}.")
    lowest = graph.lowest(view) if graph.slices(view) else []
    in_flight = bool(lowest) and not view.low.finished and view.low < graph.low(lowest[0])
    return replace(hop, slice_of=view.slice_of, epoch=view.epoch, since_micros=view.since_micros, in_flight=in_flight)


def _passed(here: str, onward: str, graph: _Graph, now_micros: int) -> Hop:
    """Return a hop at which the way continues to an input or into a slice."""
    view = graph.views[here]
    lowest = graph.lowest(view)
    low = graph.low(onward)
    where = _where(view, graph, now_micros)
    if graph.holds_by_itself(view, lowest):
        behind = _behind(view, low)
        holder_words = f"; {held_words(view.holder, now_micros)}" if view.holder is not None else ""
        sentence = f"{where}, {_distance(behind, view, onward, graph)}{holder_words}."
        return Hop(here, view.low, behind, onward, _holders(view.holder), sentence, cause_of(view, now_micros))
    waits_for = [onward, *(other for other in lowest if other != onward)]
    slices = graph.slices(view)
    if slices:
        sentence = f"{where}; the slowest of its {counted(len(slices), 'slice')} {'are' if waits_for[1:] else 'is'} {_listed(waits_for)}"
    else:
        allow = f"inputs {_listed(waits_for)} allow" if waits_for[1:] else f"input {onward} allows"
        sentence = f"{where}; that is as far as its {allow}"
    cause = cause_of(view, now_micros)
    if cause.trouble and view.holder is not None:
        # Named here because this holder is hidden behind the input: somebody has to act before the
        # input moves.
        sentence += f"; it would stay there all the same, held by {held_words(view.holder, now_micros)}"
        return Hop(here, view.low, 0.0, onward, (view.holder,), f"{sentence}.", cause)
    return Hop(here, view.low, 0.0, onward, (), f"{sentence}.")


def _distance(behind: float | None, view: WatermarkView, onward: str, graph: _Graph) -> str:
    """Return in words how far it lags what it waits for."""
    distance = f"{duration(behind)} behind" if behind is not None else "behind"
    slices, stands = graph.slices(view), _stands(graph.low(onward))
    if not slices:
        holdback = holdback_of(view) / 1e6
        design = f", within the {duration(holdback)} that it holds back by design"
        return f"{distance} its input {onward}, which {stands}{design if (behind or 0) < holdback else ''}"
    return (
        f"{distance} the slowest of its {counted(len(slices), 'slice')}, {onward}, which {stands} and is on its way up"
    )


def _holders(holder: RangeView | None) -> tuple[RangeView, ...]:
    return () if holder is None else (holder,)


def _end(
    view: WatermarkView, graph: _Graph, now_micros: int, ranges: Ranges, unknown: errors.LowwaterError | None
) -> Hop:
    """Return the hop of the root cause."""
    if not view.registered and isinstance(unknown, errors.PermissionDenied):
        sentence = f"{view.computation} {HIDDEN}"
        return Hop(view.computation, view.low, None, None, (), sentence, Cause.HIDDEN)
    if not view.registered:
        sentence = f"{view.computation} is not registered, so no worker has promised anything: start what writes it, or remove the input{_offer(view.computation, graph)}"
        return Hop(view.computation, view.low, None, None, (), sentence, Cause.NOT_REGISTERED)
    if view.low.finished:
        sentence = f"{view.computation} is finished: nothing will ever come."
        return Hop(view.computation, view.low, None, None, (), sentence, Cause.FINISHED)
    where, behind = _where(view, graph, now_micros), None
    lowest = graph.lowest(view)
    if lowest:
        low = graph.low(lowest[0])
        behind = _behind(view, low)
        if view.low < low:
            where += f", {_distance(behind, view, lowest[0], graph)}"
    if unknown is not None:
        last = f" Before, it was held by {held_words(view.holder, now_micros)}." if view.holder else ""
        sentence = f"{where}: {_untold(unknown)}.{last}"
        return Hop(view.computation, view.low, behind, None, _holders(view.holder), sentence, Cause.CANNOT_TELL)
    # The ranges were read a moment after the watermark; a range above it does not hold it any more.
    holding = _merged([holder for holder in ranges if holder.watermark <= view.low])
    causes = {holder: cause_of_range(holder, view.oldest_operation_micros, now_micros) for holder in holding}
    # A living owner may move by itself, so it comes after those in trouble.
    holders = tuple(sorted(holding, key=lambda holder: (not causes[holder].trouble, holder.watermark))[:_NAMED])
    total = ranges.total if holders else 0
    rest = total - sum(holding[holder] for holder in holders)
    sentence = f"{where}: {_holders_in_words(view, holders, total, rest, now_micros)}"
    if not holders:
        return Hop(view.computation, view.low, behind, None, holders, sentence, Cause.MOVED_ON)
    cause, unnamed = causes[holders[0]], total - holding[holders[0]]
    return Hop(view.computation, view.low, behind, None, holders, sentence, cause, total, unnamed)


def _merged(ranges: Iterable[RangeView]) -> dict[RangeView, int]:
    """Return key ranges, neighbours that are alike as one, with the number that each stands for."""
    merged: list[tuple[RangeView, int]] = []
    for key_range in sorted(ranges, key=attrgetter("start")):
        if merged:
            before, count = merged[-1]
            both = replace(before, end=key_range.end)
            if before.end == key_range.start and both == replace(key_range, start=before.start):
                merged[-1] = both, count + 1
                continue
        merged.append((key_range, 1))
    return dict(merged)


def _behind(view: WatermarkView, low: Watermark) -> float | None:
    return None if _timeless(view.low) or _timeless(low) else (low.micros - view.low.micros) / 1e6


def _timeless(watermark: Watermark) -> bool:
    return watermark.unknown or watermark.finished


def _stands(watermark: Watermark) -> str:
    return f"is {watermark}" if _timeless(watermark) else f"stands at {watermark}"


def _where(view: WatermarkView, graph: _Graph, now_micros: int) -> str:
    where = f"{view.computation}{', which is only estimated,' if view.estimated else ''} {_stands(view.low)}"
    if view.slice_of or graph.slices(view):
        # A cut computation and its slices come from different shards: the age of each answer shows
        # where it lags.
        age = f", for {duration(seconds_since(view.since_micros, now_micros))}" if view.since_micros else ""
        where += f" (epoch {view.epoch}{age})"
    return where if _timeless(view.low) else f"{where}, {lag(view.low, now_micros)} behind the clock"


def _holders_in_words(
    view: WatermarkView, holders: tuple[RangeView, ...], holding: int, rest: int, now_micros: int
) -> str:
    if not holders:
        return "no key range says why; its workers have just moved on."
    named = "; ".join(held_words(holder, now_micros) for holder in holders)
    more = f" ({holding - rest} of the {holding} key ranges that hold it)" if rest else ""
    sentence = f"held by {named}{more}."
    if view.oldest_operation_micros and all(holder.state is RangeState.OWNED for holder in holders):
        running = duration(seconds_since(view.oldest_operation_micros, now_micros))
        sentence += f" The oldest operation has been running for {running}."
    return sentence


def held_words(holder: RangeView, now_micros: int) -> str:
    """Return a key range in words: its place, its owner, and what is known of the owner."""
    return f"{describe_range(holder.start, holder.end)} {_about(holder, now_micros)}"


def _about(holder: RangeView, now_micros: int) -> str:
    words = f"at {holder.watermark}, {describe_owner(holder)}"
    if holder.state in {RangeState.NEVER_CLAIMED, RangeState.RETIRED}:
        return words
    if quiet := quiet_words(holder, now_micros):
        return f"{words}, {quiet}"
    if not holder.last_report_micros:
        return f"{words}{_UNHEARD}" if holder.state is RangeState.OWNED else words
    waits = f", waiting for {on_one_line(holder.waiting_for)}" if holder.waiting_for else ""
    if not holder.since_micros:
        return f"{words}, which is alive{waits}"
    stood = duration(seconds_since(holder.since_micros, now_micros))
    return f"{words}, which is alive and has stood there for {stood}{waits}"


def _listed(names: list[str]) -> str:
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return " and ".join([*([", ".join(names[:-1])] if names[:-1] else []), *names[-1:]])


# -- the cause in one sentence ---------------------------------------------------------------------


def _cause_sentence(
    hops: list[Hop], way: Way, graph: _Graph, now_micros: int, unknown: errors.LowwaterError | None
) -> str:
    first, root, views = hops[0], hops[-1], graph.views
    if first is root and root.cause in {Cause.FINISHED, Cause.NOT_REGISTERED}:
        return root.sentence
    estimated = (
        ", which is only estimated," if first.computation in views and views[first.computation].estimated else ""
    )
    at = f"is at {clock_time(first.watermark, now_micros)}, {lag(first.watermark, now_micros)} behind"
    about = f"{first.computation}{estimated} {'is unknown' if first.watermark.unknown else at}"
    sentence = f"{about}: {_root_words(root, graph, now_micros, unknown)}"
    also, view = _also(way, root), views.get(first.computation)
    sentence += "".join(f"; {_adds(name, way.lags[name], graph, now_micros)}" for name in also)
    if first is not root and first.computation not in also and cause_of(view, now_micros) is Cause.STOPPED:
        sentence += f"; {first.computation} itself {_stopped(view, now_micros)}"
    if way.others:
        sentence += f"; and just as much by {_listed([_briefly(views.get(name), name) for name in way.others])}"
    return sentence if sentence.endswith("?") else f"{sentence}."


def _also(way: Way, root: Hop) -> list[str]:
    """Return computations to mention beside the root cause.

    These are the one that adds most on the way to it, and one upstream that adds half as much or
    more.
    """
    lags = {name: lag for name, lag in way.lags.items() if lag is not None}
    on_the_way = max(way.names[:-1], key=lambda name: lags.get(name, 0), default="")
    mentioned = [on_the_way] if lags.get(on_the_way, 0) >= _MENTIONED_MICROS else []
    most = lags.get(way.furthest, 0)
    if most >= _MENTIONED_MICROS and 2 * most >= lags.get(root.computation, 2 * most + 1):
        mentioned.append(way.furthest)
    return mentioned


def _adds(name: str, own_lag: int | None, graph: _Graph, now_micros: int) -> str:
    """Return in words how far a computation lags by itself."""
    view = graph.views[name]
    cause = cause_of(view, now_micros)
    doing = "in trouble as well" if cause.trouble else "alive"
    if cause is Cause.STOPPED:
        doing = _stopped(view, now_micros)
    if cause is Cause.BUSY:
        doing = f"at one operation for {duration(seconds_since(view.oldest_operation_micros, now_micros))}"
    against = "the clock" if own_lag == now_micros - view.low.micros else "the newest data"
    behind = "its slices" if graph.slices(view) else "its input" if view.inputs else against
    return f"{name} itself is {duration((own_lag or 0) / 1e6)} behind {behind}, and {doing}"


def _stopped(view: WatermarkView | None, now_micros: int) -> str:
    """Say when the worker of a computation stopped, which its holder tells."""
    holder = None if view is None else view.holder
    return "" if holder is None else quiet_words(holder, now_micros).removeprefix("which ")


def _briefly(view: WatermarkView | None, name: str) -> str:
    if view is None or not view.registered:
        return f"{name} (not registered, or not readable)"
    holder = view.holder
    if holder is None:
        return name
    return f"{name} {describe_range(holder.start, holder.end)}{_on(holder)}"


def _on(holder: RangeView) -> str:
    if holder.state is not RangeState.OWNED and not holder.remarks.ended:
        return ""
    return on_one_line(f" on {holder.worker or 'an unnamed worker'}" + (f" ({holder.host})" if holder.host else ""))


def _offer(name: str, graph: _Graph) -> str:
    """Return the end of a sentence about an unregistered input; it offers similar computations.

    Its readers are left out, since no computation may read itself.
    """
    others = [other for other, view in graph.views.items() if view.registered and name not in view.inputs]
    return did_you_mean(name, others) or "."


def _untold(unknown: errors.LowwaterError) -> str:
    hangs = ", so its store may hang" if isinstance(unknown, errors.Timeout) else ""
    return f"nobody can tell just now which key ranges hold it: {unknown.message.rstrip('.')}{hangs}"


def _still_behind(root: Hop, views: Mapping[str, WatermarkView]) -> str:
    """Say why a moving computation is the root cause all the same: it lags, or its data is old."""
    holder = views[root.computation].holder
    if holder is None or holder.state is not RangeState.OWNED or _timeless(root.watermark):
        return ""
    if root.behind is not None and root.behind > 0:
        return f", but it is {duration(root.behind)} behind its input"
    return "" if views[root.computation].inputs else ": the data is old"


def _root_words(root: Hop, graph: _Graph, now_micros: int, unknown: errors.LowwaterError | None) -> str:
    views = graph.views
    if (
        not root.holders
        or unknown is not None
        or (root.in_flight and root.cause is not None and not root.cause.trouble)
    ):
        return f"held by {root.computation}, {_without_range(root, graph, unknown)}"
    holder = root.holders[0]
    holder_words = f"held by {root.computation} {describe_range(holder.start, holder.end)}{_on(holder)}"
    more = f", and by {root.unnamed} more of its key ranges" if root.unnamed else ""
    stood = duration(seconds_since(holder.since_micros, now_micros))
    match root.cause:
        case Cause.NEVER_CLAIMED | Cause.UNOWNED:
            words = f", {describe_owner(holder)}"
            if root.cause is Cause.UNOWNED and holder.last_report_micros:
                words += f" {duration(seconds_since(holder.last_report_micros, now_micros))} ago"
        case Cause.STOPPED | Cause.FAILED | Cause.NOT_BEGUN | Cause.SILENT:
            words = f", {quiet_words(holder, now_micros)}"
        case Cause.UNHEARD:
            words = _UNHEARD
        case Cause.BUSY:
            running = duration(seconds_since(views[root.computation].oldest_operation_micros, now_micros))
            words = f", alive, but at one operation for {running}"
        case Cause.MOVING if root.behind is not None and root.behind > 0:
            words = f", alive and moving, but {duration(root.behind)} behind its input"
        case Cause.MOVING:
            words = ", alive and moving: the data is old"
        case _ if not holder.since_micros:
            words = ", alive, but it has not moved yet"
        case _:
            waits = (
                "its worker has promised nothing newer"
                if not views[root.computation].inputs
                else "it has work left from then"
            )
            words = f", alive, but standing there for {stood}: {waits}"
    return holder_words + _in_its_own(words, root.cause, holder.waiting_for) + more


def _without_range(root: Hop, graph: _Graph, unknown: errors.LowwaterError | None) -> str:
    """Say what holds the root cause when none of its key ranges is to be named."""
    if root.cause in _ABSENT:
        offer = _offer(root.computation, graph).rstrip(".") if root.cause is Cause.NOT_REGISTERED else ""
        return f"which {_ABSENT[root.cause]}{offer}"
    if unknown is not None:
        return f"but {_untold(unknown)}"
    if root.in_flight:
        slowest = graph.lowest(graph.views[root.computation])[0]
        return f"all of whose slices lead it: the report of the slowest of them, {slowest}, is on its way up"
    return f"whose workers have just moved on{_still_behind(root, graph.views)}"


def _in_its_own(words: str, cause: Cause | None, waiting_for: str) -> str:
    """Replace the guess at what a living worker waits for by the worker's own words."""
    if not waiting_for or cause not in {Cause.BUSY, Cause.WAITING, Cause.MOVING}:
        return words
    return f"{words.partition(':')[0]}: it waits for {on_one_line(waiting_for)}"
