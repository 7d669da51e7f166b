"""The live view of ``lowwater watch``, without a terminal: a state, what keys do to it, and what it looks like.

The drawing is a pure function of the state and the size, so that it is tested as such; terminal.py puts it on a screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum, auto
from textwrap import wrap
from types import MappingProxyType
from typing import Final

from lowwater.core.causes import Cause, cause_of, seconds_since
from lowwater.core.slices import slices_of
from lowwater.core.text import clock_time, counted, describe_range, duration, lag, on_one_line
from lowwater.views import RangeState, WatermarkView
from lowwater.watermark import MIN

__all__ = ["ORDERS", "Line", "State", "Style", "draw", "press", "seen", "shown", "style_of"]

ORDERS: Final = ("lag", "stood", "name")
"""By what it can be sorted, in the order in which ``s`` goes through them."""

FRESH_SECONDS: Final = 2.0
"""How long what has changed is marked."""

STILL_SECONDS: Final = 60.0
"""A watermark that has not moved for so long is coloured."""

_HEADINGS: Final = ("COMPUTATION", "LOW WATERMARK", "LAG", "STOOD", "HELD BY")
_NARROW: Final = 70
"""Fewer characters than that have no room for all columns."""

_KEYS: Final = "q quit  arrows select  Enter why  / filter  s sort"
_KEYS_OF_SLICES: Final = "  x slices"
"""Where there are some."""


_STEPS: Final = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10}
"""By how many lines a key moves the selection."""


class Style(Enum):
    """How a line looks."""

    PLAIN = auto()
    HEADING = auto()
    FRESH = auto()
    """It changed just now."""
    STILL = auto()
    """It has not moved for a while."""
    TROUBLE = auto()
    """Nobody that is alive works on it."""
    AWAY = auto()
    """The authority does not answer."""
    FAINT = auto()


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the screen, not longer than it is wide."""

    text: str
    style: Style = Style.PLAIN
    selected: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """What is known and what was asked for.

    Times are processing times in microseconds, by this machine's clock.
    """

    views: Mapping[str, WatermarkView] = field(default_factory=dict[str, WatermarkView])
    guilty: Mapping[str, WatermarkView] = field(default_factory=dict[str, WatermarkView])
    """By computation the one that holds it, as `lowwater why` has it."""
    changed: Mapping[str, int] = field(default_factory=dict[str, int])
    """When a computation was last seen to move."""
    now: int = 0
    heard: int = 0
    """When the authority answered last; 0: not yet."""
    away: str = ""
    """Why the last question was not answered; empty when it was."""
    order: str = ORDERS[0]
    search: str = ""
    typing: bool = False
    """Whether keys go to the filter."""
    selected: str = ""
    why: tuple[str, str] | None = None
    """A computation, and the answer of why, or that it is awaited."""
    slices: bool = False
    """Whether the slices of computations that are cut have lines of their own."""
    done: bool = False


def seen(
    state: State, views: Iterable[WatermarkView], now: int, guilty: Mapping[str, WatermarkView] = MappingProxyType({})
) -> State:
    """Return the state after an answer. What moved is marked, but not at the first sight of it."""
    newest = {view.computation: view for view in views}
    moved = {name: now for name, view in newest.items() if name in state.views and state.views[name].low != view.low}
    kept = {name: at for name, at in state.changed.items() if name in newest}
    return replace(state, views=newest, guilty=guilty, changed={**kept, **moved}, now=now, heard=now, away="")


def shown(state: State) -> list[WatermarkView]:
    """Return the computations that pass the filter, in order.

    The furthest behind comes first: what is unknown, then by time.

    Slices are left out behind what they are slices of, unless they are asked for.
    """
    found = [view for view in _listed(state) if state.search.lower() in view.computation.lower()]
    if state.order == "name":
        return sorted(found, key=lambda view: view.computation)
    if state.order == "stood":
        return sorted(found, key=lambda view: (view.low.finished, view.since_micros or state.now, view.computation))
    return sorted(found, key=lambda view: (view.low.micros if view.registered else MIN, view.computation))


def _listed(state: State) -> list[WatermarkView]:
    return [view for view in state.views.values() if state.slices or view.slice_of not in state.views]


def press(state: State, key: str) -> State:
    """Return the state after a key: one character, or "up", "down", "pageup", "pagedown", "enter", "escape", "backspace"."""
    if state.typing:
        return _typed(state, key)
    if key in _STEPS:
        return _moved(state, _STEPS[key])
    match key:
        case "q":
            return replace(state, done=True)
        case "/":
            return replace(state, typing=True)
        case "s":
            return replace(state, order=ORDERS[(ORDERS.index(state.order) + 1) % len(ORDERS)])
        case "x":
            return replace(state, slices=not state.slices)
        case "escape":
            return replace(state, why=None) if state.why is not None else replace(state, search="")
        case "enter" if names := [view.computation for view in shown(state)]:
            name = names[_place(state, names)]
            return replace(state, selected=name, why=(name, "asking ..."))
        case _:
            return state


def _typed(state: State, key: str) -> State:
    match key:
        case "enter":
            return replace(state, typing=False)
        case "escape":
            return replace(state, typing=False, search="")
        case "backspace":
            return replace(state, search=state.search[:-1])
        case _:
            return replace(state, search=state.search + key) if len(key) == 1 and key.isprintable() else state


def _moved(state: State, by: int) -> State:
    names = [view.computation for view in shown(state)]
    if not names:
        return state
    place = _place(state, names) + by if state.selected in names else 0
    return replace(state, selected=names[min(max(place, 0), len(names) - 1)])


def _place(state: State, names: Sequence[str]) -> int:
    return names.index(state.selected) if state.selected in names else 0


def draw(state: State, width: int, height: int) -> list[Line]:
    """Return the screen: at most ``height`` lines of at most ``width`` characters.

    O(computations).
    """
    views = shown(state)
    pane = _pane(state, width, height)
    head = [_title(state, len(views)), *_away(state)]
    cut = slices_of(state.views)
    foot = [Line(f"/{state.search}_" if state.typing else _KEYS + (_KEYS_OF_SLICES if cut else ""), Style.FAINT)]
    room = max(0, height - len(head) - len(pane) - len(foot) - 1)
    first = _scrolled(state, [view.computation for view in views], room)
    visible = views[first : first + room]
    headings, *rows = [_wanted(row, width) for row in (_HEADINGS, *(_row(view, state, cut) for view in visible))]
    widths = _widths([headings, *rows], width)
    body = [Line(_laid(headings, widths), Style.HEADING)]
    for view, row in zip(visible, rows, strict=True):
        body.append(Line(_laid(row, widths), _style(view, state), view.computation == state.selected))
    if not views:
        nothing = "no computation matches the filter" if state.views else "no computation is registered yet"
        body.append(Line(nothing if state.heard else "no answer yet", Style.FAINT))
    body = body[: room + 1]
    body += [Line("")] * (height - len(head) - len(body) - len(pane) - len(foot))
    lines = [*head, *body, *pane, *foot][:height]
    return [replace(line, text=on_one_line(line.text)[: max(0, width)]) for line in lines]


def _title(state: State, count: int) -> Line:
    time = f"{datetime.fromtimestamp(state.now / 1e6, UTC):%H:%M:%S} UTC"
    some = f"{count} of {len(_listed(state))}" if state.search else f"{count}"
    found = f', with "{state.search}" in the name' if state.search else ""
    what = "computation" if some == "1" else "computations"
    return Line(f"lowwater at {time}: {some} {what}{found}, by {state.order}", Style.HEADING)


def _away(state: State) -> list[Line]:
    if not state.away:
        return []
    since = f" for {duration(seconds_since(state.heard, state.now))}" if state.heard else ""
    return [Line(f"NO ANSWER{since}, what follows is as of then: {state.away}", Style.AWAY)]


def _pane(state: State, width: int, height: int) -> list[Line]:
    if state.why is None:
        return []
    name, answer = state.why
    lines = [line for text in answer.splitlines() for line in wrap(text, max(20, width), subsequent_indent="  ")]
    most = max(1, height // 2)
    return [Line(f"why {name} (Esc closes)", Style.HEADING), *map(Line, lines)][:most]


def _scrolled(state: State, names: list[str], room: int) -> int:
    """Return the first row that is shown: the selected one is among them."""
    if state.selected not in names or not room:
        return 0
    return max(0, names.index(state.selected) - room + 1)


def _row(view: WatermarkView, state: State, cut: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    if not view.registered:
        return (view.computation, "not registered", "-", "", "")
    low = clock_time(view.low, state.now) + (" (estimated)" if view.estimated else "")
    stood = "" if view.low.finished or not view.since_micros else duration(seconds_since(view.since_micros, state.now))
    slices = cut.get(view.computation, ())
    name = f"{view.computation} ({counted(len(slices), 'slice')})" if slices and not state.slices else view.computation
    return (name, low, lag(view.low, state.now), stood, _held(view, state))


def _held(view: WatermarkView, state: State) -> str:
    guilty = state.guilty.get(view.computation, view)
    if guilty.computation == view.computation:
        return _holder(view, state.now)
    if not guilty.registered:
        return f"{guilty.computation}, not registered"
    return f"{guilty.computation} {_holder(guilty, state.now)}".rstrip()


def _holder(view: WatermarkView, now: int) -> str:
    holder = view.holder
    if holder is None:
        return ""
    where = describe_range(holder.start, holder.end)
    worker = (holder.worker or "an unnamed worker") + (f" on {holder.host}" if holder.host else "")
    match cause_of(view, now):
        case Cause.NEVER_CLAIMED:
            return f"{where} never claimed"
        case Cause.UNOWNED:
            return f"{where} left by {worker}"
        case Cause.SILENT:
            silent = duration(seconds_since(holder.last_report_micros, now))
            return f"{where} {worker}, silent for {silent}"
        case Cause.STOPPED | Cause.FAILED as ended:
            return f"{where} {worker}, {ended.value} {duration(seconds_since(holder.last_report_micros, now))} ago"
        case _:
            return f"{where} {worker}" if holder.state is RangeState.OWNED else where


def _style(view: WatermarkView, state: State) -> Style:
    if state.now - state.changed.get(view.computation, MIN) < FRESH_SECONDS * 1e6:
        return Style.FRESH
    return style_of(view, state.now)


def style_of(view: WatermarkView, now: int) -> Style:
    """Return how a computation is shown, by the state it is in at a processing time."""
    if view.low.finished:
        return Style.FAINT
    if cause_of(view, now).trouble:
        return Style.TROUBLE
    still = seconds_since(view.since_micros, now) > STILL_SECONDS
    return Style.STILL if still or view.low.unknown else Style.PLAIN


def _wanted(row: Sequence[str], width: int) -> Sequence[str]:
    """Return the cells of a row that there is room for: on a narrow screen the name, the lag and the holder."""
    return row if width >= _NARROW else (row[0], row[2], row[4])


def _widths(rows: Iterable[Sequence[str]], width: int) -> list[int]:
    """Return how wide the columns are: each as its longest cell, the name at most a third, the last one what is left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], max(11, width // 3))
    widths[-1] = max(0, width - sum(widths[:-1]) - 2 * (len(widths) - 1))
    return widths


def _laid(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(_cut(cell, width).ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cut(text: str, width: int) -> str:
    """Return a text of at most so many characters.

    >>> _cut("enriched", 5), _cut("enriched", 8)
    ('enr..', 'enriched')
    """
    return text if len(text) <= width else f"{text[: max(0, width - 2)]}.."[:width]
