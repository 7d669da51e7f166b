"""Why a watermark stands where it stands: from a computation upstream to whoever holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lowwater import errors
from lowwater._core.causes import Cause, cause_of, cause_of_range, is_silent, seconds_since
from lowwater._core.text import clock_time, describe_owner, describe_range, duration, lag, on_one_line
from lowwater.views import Ranges, RangeState, RangeView, WatermarkView
from lowwater.watermark import Watermark

__all__ = ["ASK_SECONDS", "UNTOLD", "Cause", "Hop", "Way", "Why", "explain", "find_guilty", "find_way"]

ASK_SECONDS = 1.0
"""How long the question for the key ranges of the guilty one may take. Without an answer the rest is still worth saying."""

UNTOLD = (
    errors.JournalFailed,
    errors.Overloaded,
    errors.ShuttingDown,
    errors.StaleEpoch,
    errors.Timeout,
    errors.Unavailable,
)
"""What the authority answers to that question when it cannot tell just now, or does not answer at all."""

_STEP_MICROS = 3_600_000_000
"""Event time that a stage which rounds down may be behind its input: the usual step. A view does not say the registered one."""

_NAMED = 3
"""Key ranges, and other computations, named in a sentence."""

_UNHEARD = ", of which the authority has not heard yet"
"""Of a worker that may be as alive as any: its claim is older than the authority's memory."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One computation on the way upstream."""

    computation: str
    watermark: Watermark
    behind: float | None
    """Seconds that it is behind the least of its inputs; None for an injector, or when either has no time."""
    upstream: str | None
    """The input by which the way goes on; None where it ends."""
    holders: tuple[RangeView, ...]
    """The first few of the key ranges that hold it, those in trouble first; none where only an input holds it."""
    sentence: str
    cause: Cause | None = None
    """What keeps it where it is; None when that is its input alone."""
    holding: int = 0
    """How many key ranges hold it: those at its low watermark or below. Asked at the root cause alone; 0 on the way to it."""

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Why:
    """Who holds a computation, and the way to there. ``str()`` is the cause in one sentence, then one sentence per hop, a line each."""

    hops: tuple[Hop, ...]
    sentence: str = ""
    """The root cause, in one sentence."""
    others: tuple[str, ...] = ()
    """Other computations that hold it just as much: it does not move before they do, too."""

    @property
    def guilty(self) -> Hop:
        """Where the way ends: the root cause."""
        return self.hops[-1]

    def __iter__(self) -> Iterator[Hop]:
        return iter(self.hops)

    def __str__(self) -> str:
        lines = [hop.sentence for hop in self.hops]
        return "\n".join([self.sentence, *lines] if self.sentence not in {"", lines[0]} else lines)


@dataclass(frozen=True, slots=True)
class Way:
    """By name: the computations from the one that was asked for to the root cause, and further root causes that hold as much."""

    names: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Reach:
    """Where the ways from a computation end."""

    ends: int
    """A bit for each end, in the order in which the walk met them: many share most of theirs, so that sets of names would cost too much."""
    onward: str
    """The input by which the way to the first of them goes on, to one in trouble if there is any; empty where it ends."""


def find_way(name: str, views: Mapping[str, WatermarkView], now_micros: int) -> Way:
    """Walk from a computation upstream to who holds it.

    A computation that has come as far as the least of its inputs is held by that input; one that has not holds by itself. The way ends at
    the first that holds by itself, unless something upstream of it is in trouble (see :class:`Cause`) and nothing else explains why it is
    behind: its worker is alive and not at one long operation, and it is behind by an hour at most. A stage that rounds down to the hour,
    say, is always a little behind its input, and would be named for what a dead worker before it does. All inputs that are equally low
    are followed; of several ends one in trouble comes first.

    An estimate that is further than its inputs does not wait for them, so it holds by itself. ``views`` has every registered
    computation. O(computations + inputs), each with one operation on as many bits as there are ends; registered graphs have no cycles,
    and one that was read while it changed ends the walk.
    """
    met: list[str] = []  # the ends, by their bits
    troubled = 0
    lowest: dict[str, list[str]] = {}  # of each that was begun; whoever meets one without a reach has met a cycle
    reached: dict[str, _Reach] = {}
    pending = [name]
    while pending:
        here = pending[-1]
        if here in reached:
            pending.pop()
            continue
        view = views.get(here) or WatermarkView(here)
        if here not in lowest:
            lowest[here] = _lowest_inputs(view, views) if view.registered and not view.low.finished else []
            missing = [each for each in lowest[here] if each not in lowest]
            if missing:
                pending += reversed(missing)
                continue
        ways = [(reached[each].ends, each) for each in lowest[here] if each in reached]
        ends = 0
        for some, _ in ways:
            ends |= some
        if _holds_by_itself(view, lowest[here], views):
            ends = ends & troubled if _may_be_passed(view, lowest[here], views, now_micros) else 0
        if ends:
            wanted = ends & troubled or ends
            reached[here] = _Reach(ends, next(each for some, each in ways if some & wanted))
            continue
        reached[here] = _Reach(1 << len(met), "")
        if cause_of(views.get(here), now_micros).trouble:
            troubled |= 1 << len(met)
        met.append(here)
    names = [name]
    while reached[names[-1]].onward:
        names.append(reached[names[-1]].onward)
    ends = reached[name].ends
    others = [bit for bit, end in enumerate(met) if ends >> bit & 1 and end != names[-1]]
    others.sort(key=lambda bit: not troubled >> bit & 1)
    return Way(tuple(names), tuple(met[bit] for bit in others))


def find_guilty(name: str, views: Mapping[str, WatermarkView], now_micros: int) -> str | None:
    """Return the computation that is the root cause of another's watermark; None when it has no key ranges to blame."""
    guilty = views.get(find_way(name, views, now_micros).names[-1])
    return None if guilty is None or not guilty.registered or guilty.low.finished else guilty.computation


def explain(
    name: str,
    views: Mapping[str, WatermarkView],
    now_micros: int,
    found: Ranges,
    unknown: errors.LowwaterError | None = None,
) -> Why:
    """Tell of the walk from a computation to the one that holds it.

    ``found`` are the key ranges of that one, as :func:`find_guilty` names it, that are at its low watermark or below; none when it
    names none. When nobody answered that, ``unknown`` says why, and no worker is blamed: what is known is who held it before.
    """
    way = find_way(name, views, now_micros)
    hops = [_passed(*pair, views, now_micros) for pair in zip(way.names, way.names[1:], strict=False)]
    hops.append(_end(views.get(way.names[-1]) or WatermarkView(way.names[-1]), views, now_micros, found, unknown))
    return Why(tuple(hops), _cause_sentence(hops, way, views, now_micros, unknown), way.others)


def _lowest_inputs(view: WatermarkView, views: Mapping[str, WatermarkView]) -> list[str]:
    lows = [_low(name, views).micros for name in view.inputs]
    least = min(lows, default=None)
    return [name for name, low in zip(view.inputs, lows, strict=True) if low == least]


def _low(name: str, views: Mapping[str, WatermarkView]) -> Watermark:
    view = views.get(name)
    return Watermark.UNKNOWN if view is None else view.low


def _holds_by_itself(view: WatermarkView, lowest: list[str], views: Mapping[str, WatermarkView]) -> bool:
    if not lowest:
        return True
    least = _low(lowest[0], views)
    return view.low < least or (view.estimated and view.low > least)


def _may_be_passed(view: WatermarkView, lowest: list[str], views: Mapping[str, WatermarkView], now_micros: int) -> bool:
    """Whether one that holds by itself may yet be where it is for what its inputs wait for, as far as anybody can tell."""
    if not lowest or not 0 < _low(lowest[0], views).micros - view.low.micros <= _STEP_MICROS:
        return False
    cause = cause_of(view, now_micros)
    return not cause.trouble and cause is not Cause.BUSY


def _passed(here: str, onward: str, views: Mapping[str, WatermarkView], now_micros: int) -> Hop:
    """Return a hop from which the way goes on to an input."""
    view = views[here]
    lowest = _lowest_inputs(view, views)
    low = _low(onward, views)
    where = _where(view, now_micros)
    if _holds_by_itself(view, lowest, views):
        behind = _behind(view, low)
        distance = f"{duration(behind)} behind" if behind is not None else "behind"
        held = f"; {_held_words(view.holder, now_micros)}" if view.holder is not None else ""
        sentence = f"{where}, {distance} its input {onward}, which {_stands(low)}{held}."
        return Hop(
            here,
            view.low,
            behind,
            onward,
            _holders(view.holder),
            sentence,
            cause_of(view, now_micros),
        )
    inputs = [onward, *(each for each in lowest if each != onward)]
    allow = f"inputs {_listed(inputs)} allow" if inputs[1:] else f"input {onward} allows"
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
            f"{sentence}; it would stay there all the same, held by {_held_words(view.holder, now_micros)}.",
            cause,
        )
    return Hop(here, view.low, 0.0, onward, (), f"{sentence}.")


def _holders(holder: RangeView | None) -> tuple[RangeView, ...]:
    return () if holder is None else (holder,)


def _end(
    view: WatermarkView,
    views: Mapping[str, WatermarkView],
    now_micros: int,
    found: Ranges,
    unknown: errors.LowwaterError | None,
) -> Hop:
    """Return the hop where the way ends."""
    if not view.registered:
        sentence = f"{view.computation} is not registered, so nobody has promised anything: start what writes it, or remove the input."
        return Hop(view.computation, view.low, None, None, (), sentence, Cause.NOT_REGISTERED)
    if view.low.finished:
        sentence = f"{view.computation} is finished: nothing will ever come."
        return Hop(view.computation, view.low, None, None, (), sentence, Cause.FINISHED)
    where, behind = _where(view, now_micros), None
    lowest = _lowest_inputs(view, views)
    if lowest:
        low = _low(lowest[0], views)
        behind = _behind(view, low)
        if view.low < low:
            distance = f"{duration(behind)} behind its input" if behind is not None else "behind its input"
            where += f", {distance} {lowest[0]}, which {_stands(low)}"
    if unknown is not None:
        last = f" Before, it was held by {_held_words(view.holder, now_micros)}." if view.holder else ""
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


def _where(view: WatermarkView, now_micros: int) -> str:
    where = f"{view.computation}{', which is only estimated,' if view.estimated else ''} {_stands(view.low)}"
    return where if _timeless(view.low) else f"{where}, {lag(view.low, now_micros)} behind the clock"


def _held(view: WatermarkView, holders: tuple[RangeView, ...], holding: int, now_micros: int) -> str:
    if not holders:
        return "no key range says why; its workers have just moved on."
    named = "; ".join(_held_words(each, now_micros) for each in holders)
    more = f" ({len(holders)} of the {holding} key ranges that hold it)" if holding > len(holders) else ""
    sentence = f"held by {named}{more}."
    if view.oldest_operation_micros and all(each.state is RangeState.OWNED for each in holders):
        running = duration(seconds_since(view.oldest_operation_micros, now_micros))
        sentence += f" The oldest operation has been running for {running}."
    return sentence


def _held_words(holder: RangeView, now_micros: int) -> str:
    return f"{describe_range(holder.start, holder.end)} {_about(holder, now_micros)}"


def _about(holder: RangeView, now_micros: int) -> str:
    words = f"at {holder.watermark}, {describe_owner(holder)}"
    if holder.state in {RangeState.NEVER_CLAIMED, RangeState.RETIRED}:
        return words
    if not holder.last_report_micros:
        return f"{words}{_UNHEARD}" if holder.state is RangeState.OWNED else words
    silent = seconds_since(holder.last_report_micros, now_micros)
    if holder.state is RangeState.UNOWNED or is_silent(silent):
        return f"{words}, silent for {duration(silent)}"
    if not holder.since_micros:
        return f"{words}, which is alive"
    return f"{words}, which is alive and has stood there for {duration(seconds_since(holder.since_micros, now_micros))}"


def _listed(names: list[str]) -> str:
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return " and ".join([*([", ".join(names[:-1])] if names[:-1] else []), *names[-1:]])


# -- the cause in one sentence ----------------------------------------------------------------------------------------


def _cause_sentence(
    hops: list[Hop],
    way: Way,
    views: Mapping[str, WatermarkView],
    now_micros: int,
    unknown: errors.LowwaterError | None,
) -> str:
    first, root = hops[0], hops[-1]
    if first is root and root.cause in {Cause.FINISHED, Cause.NOT_REGISTERED}:
        return root.sentence
    estimated = (
        ", which is only estimated," if first.computation in views and views[first.computation].estimated else ""
    )
    at = f"is at {clock_time(first.watermark, now_micros)}, {lag(first.watermark, now_micros)} behind"
    about = f"{first.computation}{estimated} {'is unknown' if first.watermark.unknown else at}"
    sentence = f"{about}: {_root_words(root, views, now_micros, unknown)}"
    itself = next((hop for hop in hops[:-1] if hop.cause is not None and hop.behind), None)
    if itself is not None and itself.behind is not None:
        doing = "in trouble as well" if itself.cause is not None and itself.cause.trouble else "alive"
        sentence += f"; {itself.computation} itself is {duration(itself.behind)} behind its input, and {doing}"
    if way.others:
        sentence += f"; and just as much by {_listed([_briefly(views.get(each), each) for each in way.others])}"
    return f"{sentence}."


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


def _root_words(
    root: Hop, views: Mapping[str, WatermarkView], now_micros: int, unknown: errors.LowwaterError | None
) -> str:
    if root.cause is Cause.NOT_REGISTERED:
        return f"held by {root.computation}, which is not registered: start what writes it, or remove the input"
    if unknown is not None:
        return f"held by {root.computation}, but {_untold(unknown)}"
    if not root.holders:
        return f"held by {root.computation}, whose workers have just moved on"
    holder = root.holders[0]
    held = f"held by {root.computation} {describe_range(holder.start, holder.end)}{_on(holder)}"
    more = f", and by {root.holding - 1} more of its key ranges" if root.holding > 1 else ""
    stood = duration(seconds_since(holder.since_micros, now_micros))
    match root.cause:
        case Cause.NEVER_CLAIMED | Cause.UNOWNED:
            words = f", {describe_owner(holder)}"
            if root.cause is Cause.UNOWNED and holder.last_report_micros:
                words += f" {duration(seconds_since(holder.last_report_micros, now_micros))} ago"
        case Cause.UNHEARD:
            words = _UNHEARD
        case Cause.SILENT:
            words = f", silent for {duration(seconds_since(holder.last_report_micros, now_micros))}"
        case Cause.BUSY:
            running = duration(seconds_since(views[root.computation].oldest_operation_micros, now_micros))
            words = f", alive, but at one operation for {running}"
        case Cause.MOVING:
            words = ", alive and moving: the data is old"
        case _ if not holder.since_micros:
            words = ", alive, but it has not moved yet"
        case _:
            waits = "nothing newer came in" if not views[root.computation].inputs else "it has work left from then"
            words = f", alive, but standing there for {stood}: {waits}"
    return held + words + more
