"""The live view of ``lowwater watch`` without a terminal: its state, its keys and its lines.

The drawing is a pure function of the state and the size, so tests need no terminal. terminal.py
puts it on a screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum, auto
from textwrap import wrap
from types import MappingProxyType
from typing import Final

from lowwater.core.causes import Cause, cause_of, quiet_words, seconds_since
from lowwater.core.slices import slices_of
from lowwater.core.text import clock_time, counted, describe_range, duration, lag, on_one_line
from lowwater.views import RangeState, WatermarkView
from lowwater.watermark import MIN

__all__ = ["ORDERS", "Line", "State", "Style", "draw", "press", "seen", "shown", "style_of"]

ORDERS: Final = ("lag", "stood", "name")
"""Sort orders; the key ``s`` goes through them in this order."""

FRESH_SECONDS: Final = 2.0
"""Time for which a changed computation is marked."""

STILL_SECONDS: Final = 60.0
"""Age from which a watermark that does not move is coloured."""

_HEADINGS: Final = ("COMPUTATION", "LOW WATERMARK", "LAG", "STOOD", "HELD BY")
_NARROW: Final = 70
"""Width below which only three columns are shown, in characters."""

_KEYS: Final = "q quit  arrows select  Enter why  / filter  s sort"
_KEYS_OF_SLICES: Final = "  x slices"
"""Key that is listed only if a computation has slices."""


_STEPS: Final = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10}
"""Number of lines by which each key moves the selection."""


class Style(Enum):
    """Look of a line."""

    PLAIN = auto()
    HEADING = auto()
    FRESH = auto()
    """The watermark changed just now."""
    STILL = auto()
    """The watermark has not moved for a while."""
    TROUBLE = auto()
    """No living worker works on the computation."""
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
    """Last answer of the authority, and the user's choices.

    Times are processing times in microseconds, by this machine's clock.
    """

    views: Mapping[str, WatermarkView] = field(default_factory=dict[str, WatermarkView])
    guilty: Mapping[str, WatermarkView] = field(default_factory=dict[str, WatermarkView])
    """The computation that holds each computation, as `lowwater why` has it."""
    changed: Mapping[str, int] = field(default_factory=dict[str, int])
    """Time of the last move of each computation that was seen to move."""
    now: int = 0
    answered: int = 0
    """Time of the last answer; 0 before the first one."""
    away: str = ""
    """Reason why the last question was not answered; empty if it was."""
    order: str = ORDERS[0]
    search: str = ""
    typing: bool = False
    """True while keys are added to the filter."""
    selected: str = ""
    why: tuple[str, str] | None = None
    """Computation in the pane, and the answer of why, or that the answer is pending."""
    slices: bool = False
    """True if slices have lines of their own."""
    done: bool = False


def seen(
    state: State, views: Iterable[WatermarkView], now: int, guilty: Mapping[str, WatermarkView] = MappingProxyType({})
) -> State:
    """Return the state after an answer; computations that moved since the last one are marked."""
    newest = {view.computation: view for view in views}
    moved = {name: now for name, view in newest.items() if name in state.views and state.views[name].low != view.low}
    remembered = {name: at for name, at in state.changed.items() if name in newest}
    return replace(state, views=newest, guilty=guilty, changed={**remembered, **moved}, now=now, answered=now, away="")


def shown(state: State) -> list[WatermarkView]:
    """Return the computations that pass the filter, in the chosen order.

    By lag, unknown watermarks come first, then the furthest behind. Slices are left out unless they
    are switched on, or their computation is not listed.
    """
    matching = [view for view in _listed(state) if state.search.lower() in view.computation.lower()]
    if state.order == "name":
        return sorted(matching, key=lambda view: view.computation)
    if state.order == "stood":
        return sorted(matching, key=lambda view: (view.low.finished, view.since_micros or state.now, view.computation))
    return sorted(matching, key=lambda view: (view.low.micros if view.registered else MIN, view.computation))


def _listed(state: State) -> list[WatermarkView]:
    return [view for view in state.views.values() if state.slices or view.slice_of not in state.views]


def press(state: State, key: str) -> State:
    """Return the state after a key: a character, or a name such as "up", "pagedown" or "escape"."""
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
    headings, *rows = [_fitting(row, width) for row in (_HEADINGS, *(_row(view, state, cut) for view in visible))]
    widths = _widths([headings, *rows], width)
    body = [Line(_laid(headings, widths), Style.HEADING)]
    for view, row in zip(visible, rows, strict=True):
        body.append(Line(_laid(row, widths), _style(view, state), view.computation == state.selected))
    if not views:
        nothing = "no computation matches the filter" if state.views else "no computation is registered yet"
        body.append(Line(nothing if state.answered else "no answer yet", Style.FAINT))
    body = body[: room + 1]
    body += [Line("")] * (height - len(head) - len(body) - len(pane) - len(foot))
    lines = [*head, *body, *pane, *foot][:height]
    return [replace(line, text=on_one_line(line.text)[: max(0, width)]) for line in lines]


def _title(state: State, count: int) -> Line:
    time = f"{datetime.fromtimestamp(state.now / 1e6, UTC):%H:%M:%S} UTC"
    some = f"{count} of {len(_listed(state))}" if state.search else f"{count}"
    filtered = f', with "{state.search}" in the name' if state.search else ""
    what = "computation" if some == "1" else "computations"
    return Line(f"lowwater at {time}: {some} {what}{filtered}, by {state.order}", Style.HEADING)


def _away(state: State) -> list[Line]:
    if not state.away:
        return []
    since = f" for {duration(seconds_since(state.answered, state.now))}" if state.answered else ""
    return [Line(f"NO ANSWER{since}, what follows is as of then: {state.away}", Style.AWAY)]


def _pane(state: State, width: int, height: int) -> list[Line]:
    if state.why is None:
        return []
    name, answer = state.why
    lines = [line for text in answer.splitlines() for line in wrap(text, max(20, width), subsequent_indent="  ")]
    most = max(1, height // 2)
    return [Line(f"why {name} (Esc closes)", Style.HEADING), *map(Line, lines)][:most]


def _scrolled(state: State, names: list[str], room: int) -> int:
    """Return the first row to show, so that the selected one is visible."""
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
    return (name, low, lag(view.low, state.now), stood, _culprit(view, state))


def _culprit(view: WatermarkView, state: State) -> str:
    guilty = state.guilty.get(view.computation, view)
    if guilty.computation == view.computation:
        return _holder(view, state.now)
    if not guilty.registered:
        return f"{guilty.computation}, not registered or not readable"
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
        case Cause.SILENT | Cause.STOPPED | Cause.FAILED | Cause.NOT_BEGUN:
            return f"{where} {worker}, {quiet_words(holder, now)}"
        case _:
            return f"{where} {worker}" if holder.state is RangeState.OWNED else where


def _style(view: WatermarkView, state: State) -> Style:
    if state.now - state.changed.get(view.computation, MIN) < FRESH_SECONDS * 1e6:
        return Style.FRESH
    return style_of(view, state.now)


def style_of(view: WatermarkView, now: int) -> Style:
    """Return the look of a computation, by its state at a processing time."""
    cause = cause_of(view, now)
    if cause in {Cause.FINISHED, Cause.STOPPED}:
        return Style.FAINT
    if cause is Cause.NOT_BEGUN:
        return Style.STILL
    if cause.trouble:
        return Style.TROUBLE
    still = seconds_since(view.since_micros, now) > STILL_SECONDS
    return Style.STILL if still or view.low.unknown else Style.PLAIN


def _fitting(row: Sequence[str], width: int) -> Sequence[str]:
    """Return the cells that fit: on a narrow screen only the name, the lag and the holder."""
    return row if width >= _NARROW else (row[0], row[2], row[4])


def _widths(rows: Iterable[Sequence[str]], width: int) -> list[int]:
    """Return column widths: those of the longest cells, and for the last column the rest."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], max(11, width // 3))
    widths[-1] = max(0, width - sum(widths[:-1]) - 2 * (len(widths) - 1))
    return widths


def _laid(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(_cut(cell, width).ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cut(text: str, width: int) -> str:
    """Return a text shortened to ``width`` characters.

    >>> _cut("enriched", 5), _cut("enriched", 8)
    ('enr..', 'enriched')
    """
    return text if len(text) <= width else f"{text[: max(0, width - 2)]}.."[:width]
