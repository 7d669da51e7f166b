"""Why a watermark stands where it stands: from a computation upstream to whoever holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter
from typing import Final

from lowwater import errors
from lowwater.core.causes import Cause, cause_of, cause_of_range, is_silent, seconds_since
from lowwater.core.slices import slices_of
from lowwater.core.text import clock_time, counted, describe_owner, describe_range, duration, lag, on_one_line
from lowwater.views import Promise, Ranges, RangeState, RangeView, WatermarkView
from lowwater.watermark import Watermark

__all__ = [
    "ASK_SECONDS",
    "HIDDEN",
    "UNTOLD",
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
"""How long the question for the key ranges of the guilty one may take. Without an answer the rest
is still worth saying."""

UNTOLD = (
    errors.JournalFailed,
    errors.Overloaded,
    errors.ShuttingDown,
    errors.StaleEpoch,
    errors.Timeout,
    errors.Unavailable,
)
"""What the authority answers to that question when it cannot tell just now, or does not answer at
all."""

HIDDEN = "may not be read by this client, so nothing is told of it, not even whether it is registered: ask somebody who may read it."
"""What is said of such a computation, behind its name."""

_ABSENT = {
    Cause.HIDDEN: HIDDEN.rstrip("."),
    Cause.NOT_REGISTERED: "is not registered: start what writes it, or remove the input",
}

_STEP_MICROS = 3_600_000_000
"""Event time that a stage which rounds down may be behind its input: the usual step, for a stage
whose worker does not tell its own."""

_OUTWEIGHS = 10
"""How many times as far behind something upstream has to be to be named before a worker that is at
one long operation."""

_REPLAY_MICROS = 7 * 24 * 3_600_000_000
"""A pipeline whose newest data is older than this replays old data: its sources are compared with
that, not with the clock."""

_TOLD_MICROS = 60_000_000
"""How far behind its inputs a computation on the way is, at least, to be told of beside the root
cause."""

_NAMED = 3
"""Key ranges, and other computations, named in a sentence."""

_LAG = itemgetter(0)

_UNHEARD = ", of which the authority has not heard yet"
"""Of a worker that may be as alive as any: its claim is older than the authority's memory."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One computation on the way upstream."""

    computation: str
    watermark: Watermark
    behind: float | None
    """Seconds that it is behind the least of its inputs; None for an injector, or when either has
    no time."""
    upstream: str | None
    """The input by which the way goes on; None where it ends."""
    holders: tuple[RangeView, ...]
    """The first few of the key ranges that hold it, those in trouble first; none where only an
    input holds it."""
    sentence: str
    cause: Cause | None = None
    """What keeps it where it is; None when that is its input alone."""
    holding: int = 0
    """How many key ranges hold it: those at its low watermark or below. Asked at the root cause
    alone; 0 on the way to it."""
    slice_of: str = ""
    """The computation that it is a slice of; empty: it is none."""
    epoch: int = 0
    """The ownership number of the shard that serves it; 0 when that is not known."""
    since_micros: int = 0
    """Processing time since which it has stood there; 0 when that is not known."""
    in_flight: bool = False
    """Whether it is cut into slices, and all of them are further: what they have told is on its way
    up to it."""

    @property
    def since(self) -> datetime | None:
        """Since when it has stood there."""
        return WatermarkView(self.computation, since_micros=self.since_micros).since

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Why:
    """Who holds a computation, and the way to there.

    ``str()`` is the cause in one sentence, then one sentence per hop, a line each, and then who
    answers for the root cause, as far as somebody wrote it down.
    """

    hops: tuple[Hop, ...]
    sentence: str = ""
    """The root cause, in one sentence."""
    others: tuple[str, ...] = ()
    """Other computations that hold it just as much: it does not move before they do, too."""
    promise: Promise | None = None
    """What was promised of the root cause; None: nothing."""

    @property
    def answers(self) -> str:
        """Who answers for the root cause, where it is written what to do, and where the logs of its worker are; empty when nobody said."""
        return "" if self.promise is None else _answers(self.guilty, self.promise)

    @property
    def guilty(self) -> Hop:
        """Where the way ends: the root cause."""
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
    """By name: the computations from the one that was asked for to the root cause, and further root causes that hold as much."""

    names: tuple[str, ...]
    others: tuple[str, ...]
    lags: Mapping[str, int | None]
    """How far each computation upstream is behind by its own doing, in microseconds, as far as it
    was walked; None without a measure."""
    furthest: str
    """Of those that hold the inputs of the root cause the one that is furthest behind by its own
    doing; empty when there are none."""


@dataclass(frozen=True, slots=True)
class _End:
    """Where a way ends, and what it weighs against others."""

    computation: str
    trouble: bool
    lag: float
    """Microseconds behind by its own doing."""

    weight: tuple[bool, float]
    """Who has to be acted for comes first, then who is furthest behind."""


@dataclass(frozen=True, slots=True)
class _Reach:
    """Where the ways from a computation end."""

    ends: int
    """A bit for each end, in the order in which the walk met them: many share most of theirs, so
    that sets of names would cost too much."""
    best: _End
    onward: str
    """The input by which the way to the best of them goes on; empty where it ends."""
    furthest: tuple[float, str]


class _Graph:
    """What is published, and what each computation waits for: its inputs or, where it is cut, its slices, which wait for these inputs."""

    def __init__(self, views: Mapping[str, WatermarkView]) -> None:
        self.views = views
        self.cut: Final = slices_of(views)
        """The slices of each that is cut."""

    def slices(self, view: WatermarkView) -> tuple[str, ...]:
        """Return the slices of a computation; none when it is not cut."""
        return self.cut.get(view.computation, ())

    def lowest(self, view: WatermarkView) -> list[str]:
        """Return what it waits for: the least of its slices or inputs."""
        names = self.slices(view) or view.inputs
        lows = [self.low(name) for name in names]
        least = min(lows, default=None)
        return [name for name, low in zip(names, lows, strict=True) if low == least]

    def low(self, name: str) -> Watermark:
        """Return what somebody who waits for a computation has of it."""
        view = self.views.get(name)
        if view is None:
            return Watermark.UNKNOWN
        root = self.views.get(view.slice_of)
        if root is None:
            return view.low
        if view.incarnation != root.incarnation:  # one of them has not begun anew yet
            return Watermark.UNKNOWN
        # A slice tells where it is, even if it has been further.
        return view.low if view.holder is None else min(view.low, view.holder.watermark)

    def is_ahead(self, view: WatermarkView, lowest: list[str]) -> bool:
        """Whether it does not wait for its inputs."""
        estimated = view.estimated and not self.slices(view)
        return estimated and bool(lowest) and view.low > self.low(lowest[0])

    def holds_by_itself(self, view: WatermarkView, lowest: list[str]) -> bool:
        """Whether it is not only its inputs that hold it."""
        return not lowest or view.low < self.low(lowest[0]) or self.is_ahead(view, lowest)

    def own_lag(self, view: WatermarkView, lowest: list[str], start: int) -> int | None:
        """Return how far a computation is behind by its own doing, in microseconds; a source is behind ``start``. None when that has no measure.

        0 for one that is behind by less than its worker holds back by design: it has done all that its input allows.
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
    """Return by how much a computation's watermark stays below its inputs by design, in microseconds; 0: not at all, or not known."""
    return 0 if view.holder is None else view.holder.remarks.holdback_micros


def find_way(name: str, views: Mapping[str, WatermarkView], now_micros: int) -> Way:
    """Walk from a computation upstream to who holds it.

    A computation that has come as far as the least of its inputs is held by that input. One that
    has not is behind by its own doing, as far as it is behind them; a source, as far as it is
    behind the clock, or in a replay behind the newest data of its pipeline. Of those that add to
    the lag in this way, the one that adds most is the root cause: not the last one, which may be a
    second behind an input that is two hours late.

    Two things come before that. One in trouble (see :class:`Cause`) is the root cause, however
    little it adds so far: it will not move before somebody acts. One that is after it is named all
    the same when it is behind by more, and by more than its rounding explains: what its worker
    holds back by design, or an hour where its worker does not tell. And one that is at one long
    operation is named before an input that is less than ten times as far behind.

    One that is behind by less than it holds back by design, as a stage of windows is, adds nothing:
    the way goes on, unless it is in trouble itself.

    One that is cut into slices waits for the slowest of them, and these wait for its inputs: so the
    way goes on into that slice. It is behind its slices by its own doing as long as what they have
    told is on its way up.

    All inputs that are equally low are followed. An estimate that is further than its inputs does
    not wait for them, so it holds by itself. ``views`` has every registered computation.
    O(computations + inputs), each with one operation on as many bits as there are ends; registered
    graphs have no cycles, and one that was read while it changed ends the walk.
    """
    return _Walk(_Graph(views), now_micros).way(name)


def find_culprits(
    names: Iterable[str], views: Mapping[str, WatermarkView], now_micros: int
) -> dict[str, WatermarkView]:
    """Return for each of some computations the one that holds it, as :func:`find_way` has it.

    All together cost what one does.
    """
    walk = _Walk(_Graph(views), now_micros)
    return {name: views.get(guilty) or WatermarkView(guilty) for name in names for guilty in [walk.guilty(name)]}


class _Walk:
    """The ways from computations upstream; what several share is walked once."""

    def __init__(self, graph: _Graph, now_micros: int) -> None:
        self._graph = graph
        self._views = graph.views
        self._now_micros = now_micros
        self._starts = _starts(graph.views, now_micros)
        self._met: list[_End] = []
        """The ends, by their bits."""
        self._lags: dict[str, int | None] = {}
        self._lowest: dict[str, list[str]] = {}
        """The least inputs of each that was begun; whoever meets one without a reach has met a
        cycle."""
        self._reached: dict[str, _Reach] = {}

    def guilty(self, name: str) -> str:
        """Return where the way from a computation ends."""
        return self._reach(name).best.computation

    def way(self, name: str) -> Way:
        """Return the way from a computation."""
        reach = self._reach(name)
        names = [name]
        while self._reached[names[-1]].onward:
            names.append(self._reached[names[-1]].onward)
        others = [end for bit, end in enumerate(self._met) if reach.ends >> bit & 1 and end.computation != names[-1]]
        others.sort(key=lambda end: end.weight, reverse=True)
        end = names[-1]
        ahead = end in self._views and self._graph.is_ahead(self._views[end], self._lowest[end])
        waited = [] if ahead else self._lowest[end]
        beyond = [self._reached[each].furthest for each in waited if each in self._reached]
        _, furthest = max(beyond, key=_LAG, default=(0, ""))
        return Way(tuple(names), tuple(end.computation for end in others), self._lags, furthest)

    def _reach(self, name: str) -> _Reach:
        pending = [name]
        while pending:
            here = pending[-1]
            if here in self._reached:
                pending.pop()
                continue
            if here not in self._lowest:
                view = self._views.get(here)
                unheld = view is None or not view.registered or view.low.finished
                self._lowest[here] = [] if view is None or unheld else self._graph.lowest(view)
                missing = [each for each in self._lowest[here] if each not in self._lowest]
                if missing:
                    pending += reversed(missing)
                    continue
            self._reached[here] = self._end_or_go_on(here)
        return self._reached[name]

    def _end_or_go_on(self, here: str) -> _Reach:
        view, lowest = self._views.get(here) or WatermarkView(here), self._lowest[here]
        ways = [(self._reached[each], each) for each in lowest if each in self._reached]
        lag = self._graph.own_lag(view, lowest, self._starts.get(here, self._now_micros))
        cause = cause_of(self._views.get(here), self._now_micros)
        if self._graph.slices(view) and cause is Cause.BUSY:  # that is said by a slice, of whom it is one
            cause = Cause.MOVING
        weight = cause.trouble, float("inf") if lag is None else lag
        own = _End(here, *weight, weight)
        self._lags[here] = lag
        furthest = max((own.lag, here), *(reach.furthest for reach, _ in ways), key=_LAG) if ways else (own.lag, here)
        if self._graph.is_ahead(view, lowest):
            ways = []
        elif own.lag or (cause.trouble and self._graph.holds_by_itself(view, lowest)):
            rounding = 0 if holdback_of(view) else _STEP_MICROS
            ways = [(reach, each) for reach, each in ways if _goes_on(own, cause, reach.best, rounding)]
        if not ways:
            self._met.append(own)
            return _Reach(1 << len(self._met) - 1, own, "", furthest)
        first, onward = max(ways, key=lambda way: way[0].best.weight)
        ends = 0
        for reach, _ in ways:
            ends |= reach.ends
        return _Reach(ends, first.best, onward, furthest)


def find_guilty(name: str, views: Mapping[str, WatermarkView], now_micros: int) -> str | None:
    """Return the computation that is the root cause of another's watermark; None when it has no key ranges to blame."""
    guilty = views.get(find_way(name, views, now_micros).names[-1])
    return None if guilty is None or not guilty.registered or guilty.low.finished else guilty.computation


def find_slices(views: Mapping[str, WatermarkView]) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return of each computation that is cut its slices, and the slowest of them; of those that are equally slow the first."""
    graph = _Graph(views)
    return {root: (names, graph.lowest(views[root])[0]) for root, names in graph.cut.items() if root in views}


def find_absent(name: str, views: Mapping[str, WatermarkView], now_micros: int) -> str | None:
    """Return the root cause of another's watermark if it is not among the views: not registered, or nothing that the caller may read. Else None."""
    root = find_way(name, views, now_micros).names[-1]
    return None if root in views else root


def explain(
    name: str,
    views: Mapping[str, WatermarkView],
    now_micros: int,
    found: Ranges,
    unknown: errors.LowwaterError | None = None,
) -> Why:
    """Tell of the walk from a computation to the one that holds it.

    ``found`` are the key ranges of that one, as :func:`find_guilty` names it, that are at its low
    watermark or below; none when it names none. When nobody answered that, ``unknown`` says why,
    and no worker is blamed: what is known is who held it before. PermissionDenied for one that is
    not among ``views`` says that the caller may not read it; else it is not registered.
    """
    graph = _Graph(views)
    way = _Walk(graph, now_micros).way(name)
    hops = [_passed(*pair, graph, now_micros) for pair in zip(way.names, way.names[1:], strict=False)]
    hops.append(_end(views.get(way.names[-1]) or WatermarkView(way.names[-1]), graph, now_micros, found, unknown))
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
        " of ".join(each for each in (promise.owner, promise.team and f"the team {promise.team}") if each)
    )
    found = [f"{who} answers for {guilty.computation}"] if who else []
    if promise.runbook:
        found.append(f"what to do: {on_one_line(promise.runbook)}")
    holder = guilty.holders[0] if guilty.holders else None
    logs = promise.logs_of(holder.worker, holder.host) if holder is not None and holder.worker else promise.logs
    if logs and "{" not in logs:
        found.append(f"logs: {on_one_line(logs)}")
    return "; ".join(found)


def _goes_on(own: _End, cause: Cause, end: _End, rounding: int) -> bool:
    """Whether the search for the root cause goes on upstream of a computation.

    True when its inputs add more to the delay than the computation itself. ``rounding``: part of
    its lag, in microseconds, that rounding down may explain; 0 when the worker reports that part.
    """
    if cause.trouble:
        return False
    if end.lag > own.lag * (_OUTWEIGHS if cause is Cause.BUSY else 1):
        return True
    return end.trouble and cause is not Cause.BUSY and own.lag <= rounding


def _starts(views: Mapping[str, WatermarkView], now_micros: int) -> dict[str, int]:
    """Return what the sources of a pipeline that replays old data are compared with: its newest data. Others are compared with the clock.

    A pipeline is what is connected. By computation; O(computations + inputs).
    """
    lows = (view.low for view in views.values())
    if all(_timeless(low) or now_micros - low.micros <= _REPLAY_MICROS for low in lows):
        return {}
    pipeline: dict[str, str] = {}

    def of(name: str) -> str:
        top = name
        while pipeline.setdefault(top, top) != top:
            top = pipeline[top]
        while pipeline[name] != top:
            pipeline[name], name = top, pipeline[name]
        return top

    newest: dict[str, int] = {}
    for view in views.values():
        for each in (*view.inputs, *filter(None, [view.slice_of])):
            pipeline[of(each)] = of(view.computation)
    for view in views.values():
        for watermark in (view.low, *(each for _, each in view.shares)):
            if not _timeless(watermark):
                top = of(view.computation)
                newest[top] = max(newest.get(top, watermark.micros), watermark.micros)
    old = {top: micros for top, micros in newest.items() if now_micros - micros > _REPLAY_MICROS}
    return {name: old[of(name)] for name in views if of(name) in old}


def _placed(hop: Hop, graph: _Graph) -> Hop:
    """Return a hop with where it is, and since when."""
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
    """Return a hop from which the way goes on to an input, or into a slice."""
    view = graph.views[here]
    lowest = graph.lowest(view)
    low = graph.low(onward)
    where = _where(view, graph, now_micros)
    if graph.holds_by_itself(view, lowest):
        behind = _behind(view, low)
        held = f"; {held_words(view.holder, now_micros)}" if view.holder is not None else ""
        sentence = f"{where}, {_distance(behind, view, onward, graph)}{held}."
        return Hop(
            here,
            view.low,
            behind,
            onward,
            _holders(view.holder),
            sentence,
            cause_of(view, now_micros),
        )
    waited = [onward, *(each for each in lowest if each != onward)]
    slices = graph.slices(view)
    if slices:
        sentence = f"{where}; the slowest of its {counted(len(slices), 'slice')} {'are' if waited[1:] else 'is'} {_listed(waited)}"
    else:
        allow = f"inputs {_listed(waited)} allow" if waited[1:] else f"input {onward} allows"
        sentence = f"{where}; that is as far as its {allow}"
    cause = cause_of(view, now_micros)
    if cause.trouble and view.holder is not None:
        # An input's holding hides this one's: it has to be known before the input moves.
        return Hop(
            here,
            view.low,
            0.0,
            onward,
            (view.holder,),
            f"{sentence}; it would stay there all the same, held by {held_words(view.holder, now_micros)}.",
            cause,
        )
    return Hop(here, view.low, 0.0, onward, (), f"{sentence}.")


def _distance(behind: float | None, view: WatermarkView, onward: str, graph: _Graph) -> str:
    """Return in words how far it is behind what it waits for."""
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
    view: WatermarkView,
    graph: _Graph,
    now_micros: int,
    found: Ranges,
    unknown: errors.LowwaterError | None,
) -> Hop:
    """Return the hop where the way ends."""
    if not view.registered and isinstance(unknown, errors.PermissionDenied):
        sentence = f"{view.computation} {HIDDEN}"
        return Hop(view.computation, view.low, None, None, (), sentence, Cause.HIDDEN)
    if not view.registered:
        sentence = f"{view.computation} is not registered, so nobody has promised anything: start what writes it, or remove the input."
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
    # Read a moment later than the watermark: what is above it by now does not hold it any more.
    holding = [each for each in found if each.watermark <= view.low]
    causes = {id(each): cause_of_range(each, view.oldest_operation_micros, now_micros) for each in holding}
    # All of them hold. Whoever is alive may move by itself, so those come last.
    holding.sort(key=lambda each: not causes[id(each)].trouble)
    total = found.total if holding else 0
    holders = tuple(holding[:_NAMED])
    sentence = f"{where}: {_held(view, holders, total, now_micros)}"
    cause = causes[id(holders[0])] if holders else Cause.MOVED_ON
    return Hop(view.computation, view.low, behind, None, holders, sentence, cause, total)


def _behind(view: WatermarkView, low: Watermark) -> float | None:
    return None if _timeless(view.low) or _timeless(low) else (low.micros - view.low.micros) / 1e6


def _timeless(watermark: Watermark) -> bool:
    return watermark.unknown or watermark.finished


def _stands(watermark: Watermark) -> str:
    return f"is {watermark}" if _timeless(watermark) else f"stands at {watermark}"


def _where(view: WatermarkView, graph: _Graph, now_micros: int) -> str:
    where = f"{view.computation}{', which is only estimated,' if view.estimated else ''} {_stands(view.low)}"
    if view.slice_of or graph.slices(view):
        # Two levels, which shards tell of that are not the same: how old each answer is says where
        # it lags.
        stood = f", for {duration(seconds_since(view.since_micros, now_micros))}" if view.since_micros else ""
        where += f" (epoch {view.epoch}{stood})"
    return where if _timeless(view.low) else f"{where}, {lag(view.low, now_micros)} behind the clock"


def _held(view: WatermarkView, holders: tuple[RangeView, ...], holding: int, now_micros: int) -> str:
    if not holders:
        return "no key range says why; its workers have just moved on."
    named = "; ".join(held_words(each, now_micros) for each in holders)
    more = f" ({len(holders)} of the {holding} key ranges that hold it)" if holding > len(holders) else ""
    sentence = f"held by {named}{more}."
    if view.oldest_operation_micros and all(each.state is RangeState.OWNED for each in holders):
        running = duration(seconds_since(view.oldest_operation_micros, now_micros))
        sentence += f" The oldest operation has been running for {running}."
    return sentence


def held_words(holder: RangeView, now_micros: int) -> str:
    """Return a key range, where it stands, who answers for it, and what is known of that one."""
    return f"{describe_range(holder.start, holder.end)} {_about(holder, now_micros)}"


def _about(holder: RangeView, now_micros: int) -> str:
    words = f"at {holder.watermark}, {describe_owner(holder)}"
    if holder.state in {RangeState.NEVER_CLAIMED, RangeState.RETIRED}:
        return words
    if holder.remarks.ended:
        return f"{words}, which {_ended(holder, now_micros)}"
    if not holder.last_report_micros:
        return f"{words}{_UNHEARD}" if holder.state is RangeState.OWNED else words
    silent = seconds_since(holder.last_report_micros, now_micros)
    if holder.state is RangeState.UNOWNED or is_silent(silent):
        return f"{words}, silent for {duration(silent)}"
    waits = f", waiting for {on_one_line(holder.waiting_for)}" if holder.waiting_for else ""
    if not holder.since_micros:
        return f"{words}, which is alive{waits}"
    stood = duration(seconds_since(holder.since_micros, now_micros))
    return f"{words}, which is alive and has stood there for {stood}{waits}"


def _ended(holder: RangeView, now_micros: int) -> str:
    """Return when a worker ended, and by what, as its last report has it."""
    at = clock_time(Watermark(holder.last_report_micros), now_micros)
    failure = holder.remarks.failure.rstrip(".")
    return f"failed at {at}: {on_one_line(failure)}" if failure else f"stopped at {at}"


def _listed(names: list[str]) -> str:
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return " and ".join([*([", ".join(names[:-1])] if names[:-1] else []), *names[-1:]])


# -- the cause in one sentence ---------------------------------------------------------------------


def _cause_sentence(
    hops: list[Hop],
    way: Way,
    graph: _Graph,
    now_micros: int,
    unknown: errors.LowwaterError | None,
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
    sentence += "".join(f"; {_adds(each, way.lags[each], graph, now_micros)}" for each in _also(way, root))
    if way.others:
        sentence += f"; and just as much by {_listed([_briefly(views.get(each), each) for each in way.others])}"
    return f"{sentence}."


def _also(way: Way, root: Hop) -> list[str]:
    """Return who is worth a word beside the root cause: who adds most on the way to it, and who upstream adds half as much or more."""
    lags = {name: lag for name, lag in way.lags.items() if lag is not None}
    passed = max(way.names[:-1], key=lambda name: lags.get(name, 0), default="")
    found = [passed] if lags.get(passed, 0) >= _TOLD_MICROS else []
    most = lags.get(way.furthest, 0)
    if most >= _TOLD_MICROS and 2 * most >= lags.get(root.computation, 2 * most + 1):
        found.append(way.furthest)
    return found


def _adds(name: str, own_lag: int | None, graph: _Graph, now_micros: int) -> str:
    """Return in words how far a computation is behind by its own doing."""
    view = graph.views[name]
    cause = cause_of(view, now_micros)
    doing = "in trouble as well" if cause.trouble else "alive"
    if cause is Cause.BUSY:
        doing = f"at one operation for {duration(seconds_since(view.oldest_operation_micros, now_micros))}"
    against = "the clock" if own_lag == now_micros - view.low.micros else "the newest data"
    behind = "its slices" if graph.slices(view) else "its input" if view.inputs else against
    return f"{name} itself is {duration((own_lag or 0) / 1e6)} behind {behind}, and {doing}"


def _briefly(view: WatermarkView | None, name: str) -> str:
    if view is None or not view.registered:
        return f"{name} (not registered)"
    holder = view.holder
    if holder is None:
        return name
    return f"{name} {describe_range(holder.start, holder.end)}{_on(holder)}"


def _on(holder: RangeView) -> str:
    if holder.state is not RangeState.OWNED:
        return ""
    return on_one_line(f" on {holder.worker or 'an unnamed worker'}" + (f" ({holder.host})" if holder.host else ""))


def _untold(unknown: errors.LowwaterError) -> str:
    hangs = ", so its store may hang" if isinstance(unknown, errors.Timeout) else ""
    return f"nobody can tell just now which key ranges hold it: {unknown.message.rstrip('.')}{hangs}"


def _still_behind(root: Hop, views: Mapping[str, WatermarkView]) -> str:
    """Say of a computation that moves why it is the root cause all the same: one whose data comes late moves all the time."""
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
    held = f"held by {root.computation} {describe_range(holder.start, holder.end)}{_on(holder)}"
    more = f", and by {root.holding - 1} more of its key ranges" if root.holding > 1 else ""
    stood = duration(seconds_since(holder.since_micros, now_micros))
    match root.cause:
        case Cause.NEVER_CLAIMED | Cause.UNOWNED:
            words = f", {describe_owner(holder)}"
            if root.cause is Cause.UNOWNED and holder.last_report_micros:
                words += f" {duration(seconds_since(holder.last_report_micros, now_micros))} ago"
        case Cause.STOPPED | Cause.FAILED:
            words = f", which {_ended(holder, now_micros)}"
        case Cause.UNHEARD:
            words = _UNHEARD
        case Cause.SILENT:
            words = f", silent for {duration(seconds_since(holder.last_report_micros, now_micros))}"
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
            waits = "nothing newer came in" if not views[root.computation].inputs else "it has work left from then"
            words = f", alive, but standing there for {stood}: {waits}"
    return held + _in_its_own(words, root.cause, holder.waiting_for) + more


def _without_range(root: Hop, graph: _Graph, unknown: errors.LowwaterError | None) -> str:
    """Say of the root cause what keeps it there, where none of its key ranges is to be named."""
    if root.cause in _ABSENT:
        return f"which {_ABSENT[root.cause]}"
    if unknown is not None:
        return f"but {_untold(unknown)}"
    if root.in_flight:
        slowest = graph.lowest(graph.views[root.computation])[0]
        return f"all of whose slices are further: what the slowest of them, {slowest}, has told is on its way up"
    return f"whose workers have just moved on{_still_behind(root, graph.views)}"


def _in_its_own(words: str, cause: Cause | None, waiting_for: str) -> str:
    """Say what a living worker tells of itself: that is worth more than a guess at what it waits for."""
    if not waiting_for or cause not in {Cause.BUSY, Cause.WAITING, Cause.MOVING}:
        return words
    return f"{words.partition(':')[0]}: it waits for {on_one_line(waiting_for)}"
