"""Progress of a long wait, for somebody who sits before it: in a notebook, or on a terminal.

Nothing is shown in the first seconds, into a file or pipe, and off the main thread. One wait of a
process is shown at a time.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any, Final, Self, TextIO

from lowwater.core.text import duration, on_one_line
from lowwater.notebook import markup
from lowwater.watermark import Watermark

__all__ = ["AFTER", "EVERY", "Progress", "in_notebook", "on_terminal"]

AFTER: Final = 2.0
"""Seconds after which a wait is shown."""

EVERY: Final = 2.0
"""Seconds between two questions about who holds it."""

_shown: Final = threading.Lock()
"""Held by the wait that is shown."""


def in_notebook() -> bool:
    """Return True in a kernel of Jupyter, which shows HTML."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def on_terminal(stream: TextIO | None) -> bool:
    """Return True if a stream is a terminal that can write a line anew.

    A program may have closed its stream, or replaced it by an object that can only be written to.
    """
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except (AttributeError, ValueError):
        return False


class Progress:
    """One wait for a computation to reach a time. Use it as a context manager.

    ``wanted``: False shows nothing. ``monotonic``: clock in seconds.
    """

    def __init__(self, name: str, until: Watermark, monotonic: Callable[[], float], *, wanted: bool = True) -> None:
        self._name = name
        self._until = until
        self._monotonic = monotonic
        self._began = monotonic()
        self._next: float | None = self._began + AFTER if wanted and _somebody_looks() else None
        """Time of the next look; None: nothing is shown."""
        self._first: Watermark | None = None
        self._place: _Notebook | _Terminal | None = None
        self._sentence = ""

    def before(self, deadline: float | None) -> float | None:
        """Return the end of the wait: the time of the next look, or the deadline if earlier."""
        return deadline if self._next is None else min(self._next, float("inf") if deadline is None else deadline)

    def is_due(self, deadline: float | None) -> bool:
        """Return True if it is time to show the wait, and not over."""
        now = self._monotonic()
        return self._next is not None and now >= self._next and (deadline is None or now < deadline)

    def show(self, low: Watermark, sentence: str) -> None:
        """Show where the computation is, and a sentence that says who holds it."""
        if self._place is None:
            if not _shown.acquire(blocking=False):
                self._next = None
                return
            self._place = _Notebook() if in_notebook() else _Terminal(sys.stderr)
        self._sentence = sentence
        try:
            self._place.write(self._name, str(self._until), self._share(low), sentence)
        except Exception:  # noqa: BLE001 - the terminal or the notebook has gone, and the wait goes on
            self._next = None
            return
        self._next = self._monotonic() + EVERY

    def _share(self, low: Watermark) -> float | None:
        """Return the part of the way since the first look; None if it cannot be measured."""
        if low.unknown or low.finished or self._until.finished:
            return None
        if self._first is None:
            self._first = low
        whole = self._until.micros - self._first.micros
        return min(1.0, max(0.0, (low.micros - self._first.micros) / whole)) if whole > 0 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end(reached=kind is None)

    def end(self, *, reached: bool) -> None:
        """Remove the line from the terminal; in a notebook show how the wait ended. Repeatable."""
        place, self._place = self._place, None
        if place is None:
            return
        try:
            took = duration(self._monotonic() - self._began)
            with suppress(Exception):  # as above
                if reached:
                    place.end(self._name, str(self._until), 1.0, f"reached after {took}")
                else:
                    place.end(self._name, str(self._until), None, f"ended after {took}; {self._sentence}")
        finally:
            _shown.release()


def _somebody_looks() -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    return in_notebook() or on_terminal(sys.stderr)


class _Wait:
    """A wait as an object that a notebook shows."""

    def __init__(self, name: str, until: str, share: float | None, sentence: str) -> None:
        self._parts = name, until, share, sentence

    def __repr__(self) -> str:
        return line_of(*self._parts)

    def _repr_html_(self) -> str:
        return markup.progress(*self._parts)


def line_of(name: str, until: str, share: float | None, sentence: str) -> str:
    """Return a wait as a line."""
    done = "" if share is None else f" ({share:.0%})"
    return on_one_line(f"waiting for {name} until {until}{done}: {sentence}")


class _Notebook:
    """Place in the output of a cell, which is written anew."""

    def __init__(self) -> None:
        self._handle: Any = None

    def write(self, name: str, until: str, share: float | None, sentence: str) -> None:
        display: Any = import_module("IPython.display")
        wait = _Wait(name, until, share, sentence)
        if self._handle is None:
            self._handle = display.display(wait, display_id=True)
        else:
            self._handle.update(wait)

    def end(self, name: str, until: str, share: float | None, sentence: str) -> None:
        self.write(name, until, share, sentence)


class _Terminal:
    """A line of a terminal, which is written anew, and removed at the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, name: str, until: str, share: float | None, sentence: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        line = line_of(name, until, share, sentence)
        shown = line if len(line) <= width else f"{line[: width - 2]}.."
        self._stream.write(f"\r\x1b[K{shown}")
        self._stream.flush()

    def end(self, *_: object) -> None:
        self._stream.write("\r\x1b[K")
        self._stream.flush()
