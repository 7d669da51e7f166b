"""The live view of ``lowwater watch`` on a real terminal, by curses.

See live.py for what it shows.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from lowwater import errors
from lowwater.cli.live import State, Style, draw, press, seen

if TYPE_CHECKING:
    import curses

    from lowwater._sync.client import Client
    from lowwater.views import WatermarkView

__all__ = ["show"]

ASK_SECONDS: Final = 1.0
"""Pause between two questions to the authority."""

TICK_MILLIS: Final = 200
"""Time to wait for a key before the screen is drawn again, because ages grow."""

News = Callable[[State], State]
"""Change of the state by an answer."""

_KEYS: Final = {
    "KEY_UP": "up",
    "KEY_DOWN": "down",
    "KEY_PPAGE": "pageup",
    "KEY_NPAGE": "pagedown",
    "KEY_ENTER": "enter",
    "KEY_BACKSPACE": "backspace",
    "\n": "enter",
    "\r": "enter",
    "\x1b": "escape",
    "\x7f": "backspace",
    "\x08": "backspace",
}


Views = Callable[[], "tuple[Sequence[WatermarkView], Mapping[str, WatermarkView]]"]
"""Question to the authority: the views to show, and the computation that holds each of them."""


def show(lw: Client, ask: Views, *, slices: bool = False) -> None:
    """Show computations until q is pressed.

    Raises ImportError without curses, and curses.error on a terminal that is too simple.
    """
    import curses

    os.environ.setdefault("ESCDELAY", "25")
    news: queue.SimpleQueue[News] = queue.SimpleQueue()
    ended = threading.Event()
    asking = threading.Thread(target=_ask, args=(ask, news, ended), name="lowwater-ask", daemon=True)
    asking.start()
    try:
        # Ctrl-C ends the view as q does.
        with suppress(KeyboardInterrupt):
            _on_screen(curses, lambda screen: _loop(screen, lw, news, State(slices=slices)))
    finally:
        ended.set()


def _on_screen(library: Any, run: Callable[[curses.window], None]) -> None:
    """Run a function on a screen, like curses.wrapper, which always switches colours on."""
    screen = library.initscr()
    try:
        library.noecho()
        library.cbreak()
        screen.keypad(True)  # noqa: FBT003 - curses takes nothing else
        run(screen)
    finally:
        screen.keypad(False)  # noqa: FBT003 - as above
        library.nocbreak()
        library.echo()
        library.endwin()


def _ask(ask: Views, news: queue.SimpleQueue[News], ended: threading.Event) -> None:
    """Ask for watermarks again and again, on a thread of its own, so that keys need not wait."""
    while not ended.is_set():
        try:
            views, guilty = ask()
            news.put(lambda state, views=views, guilty=guilty: seen(state, views, _now(), guilty))  # type: ignore[misc]
        except errors.LowwaterError as error:
            news.put(lambda state, why=str(error): replace(state, away=why))  # type: ignore[misc]
        ended.wait(ASK_SECONDS)


def _explain(lw: Client, name: str, news: queue.SimpleQueue[News]) -> None:
    """Ask why a computation is held; the answer is shown if the same computation is still open."""
    try:
        answer = str(lw.why(name))
    except errors.LowwaterError as error:
        answer = str(error)

    def answered(state: State) -> State:
        return replace(state, why=(name, answer)) if state.why is not None and state.why[0] == name else state

    news.put(answered)


def _loop(screen: curses.window, lw: Client, news: queue.SimpleQueue[News], state: State) -> None:
    import curses

    looks = _looks(curses)
    with suppress(curses.error):
        curses.curs_set(0)
    screen.timeout(TICK_MILLIS)
    while not state.done:
        with suppress(queue.Empty):
            while True:
                state = news.get_nowait()(state)
        state = replace(state, now=_now())
        _put(screen, state, looks)
        try:
            key = screen.getkey()
        except curses.error:
            continue  # no key was pressed
        why_before = state.why
        state = press(state, _KEYS.get(key, key))
        if state.why is not None and state.why is not why_before:
            threading.Thread(target=_explain, args=(lw, state.why[0], news), daemon=True).start()


def _put(screen: curses.window, state: State, looks: dict[Style, int]) -> None:
    import curses

    height, width = screen.getmaxyx()
    screen.erase()
    # One column is left free: to write into the last corner scrolls the screen.
    for row, line in enumerate(draw(state, width - 1, height)):
        look = looks[line.style] | (curses.A_REVERSE if line.selected else 0)
        with suppress(curses.error):  # the terminal has become smaller meanwhile
            screen.addstr(row, 0, line.text.ljust(width - 1) if line.selected else line.text, look)
    screen.refresh()


def _looks(curses: Any) -> dict[Style, int]:
    """Return the attributes of each style, without colours if NO_COLOR is set."""
    looks: dict[Style, int] = {
        Style.PLAIN: curses.A_NORMAL,
        Style.HEADING: curses.A_BOLD,
        Style.FRESH: curses.A_BOLD,
        Style.STILL: curses.A_NORMAL,
        Style.TROUBLE: curses.A_BOLD,
        Style.AWAY: curses.A_BOLD | curses.A_REVERSE,
        Style.FAINT: curses.A_DIM,
    }
    if os.environ.get("NO_COLOR"):
        return looks
    with suppress(curses.error):
        curses.start_color()
    if not curses.has_colors():
        return looks
    curses.use_default_colors()
    colours = {
        Style.FRESH: curses.COLOR_GREEN,
        Style.STILL: curses.COLOR_YELLOW,
        Style.TROUBLE: curses.COLOR_RED,
        Style.AWAY: curses.COLOR_RED,
    }
    for number, (style, colour) in enumerate(colours.items(), 1):
        curses.init_pair(number, colour, -1)
        looks[style] |= curses.color_pair(number)
    return looks


def _now() -> int:
    return time.time_ns() // 1_000
