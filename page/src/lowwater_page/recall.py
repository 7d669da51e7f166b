"""The history from before this process: when each step of event time became complete."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater.core.events import event
from lowwater.views import slice_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowwater import Client
    from lowwater_page.board import Board

COMPLETIONS: Final = 240
"""Completions asked for of each computation: ten days of hours; the page shows a week."""

RATE: Final = 50.0
"""Most computations asked for in a second; a low rate, because the authority has other work."""

AGAIN_SECONDS: Final = 5.0
"""Time in seconds until unanswered computations are asked for again."""

log = logging.getLogger(__name__)


class Recall:
    """Fills the samples of a board from the authority's history, once a computation.

    It begins when a viewer wants the heat map, and belongs to one event loop. Its thread asks
    through ``client``, and ends when no computation is left.
    """

    def __init__(self, client: Callable[[], Client], board: Board, again_seconds: float = AGAIN_SECONDS) -> None:
        self._client = client
        self._again_seconds = again_seconds
        self._board = board
        self._done: set[str] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def want(self) -> None:
        """Start the thread, unless it runs or all computations were asked for."""
        if self._stopping.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        if self._remaining():
            self._thread = threading.Thread(target=self._run, name="lowwater-recall", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._stopping.set()

    def _remaining(self) -> list[str]:
        # A thousand slices would be a thousand questions, and the page shows the history of whole
        # computations only.
        return [name for name in self._board.names() if name not in self._done and not slice_of(name)]

    def _run(self) -> None:
        try:
            names = self._remaining()
            while names:
                unanswered = []  # e.g. by a shard that is away; the others need not wait for it
                for name in names:
                    if not self._ask(name):
                        unanswered.append(name)
                    if self._stopping.wait(1 / RATE):
                        return
                names = unanswered
                if names and self._stopping.wait(self._again_seconds):
                    return
        except errors.Closed:
            return
        except Exception:
            log.exception("the page cannot read the history from before its start", extra=event("page_recall_failed"))

    def _ask(self, name: str) -> bool:
        """Ask for one computation; False: ask again later."""
        try:
            history = self._client().history(name, limit=COMPLETIONS)
        except (errors.Unavailable, errors.Timeout, errors.Overloaded, errors.ShuttingDown):
            return False
        except errors.Closed:
            raise
        except errors.LowwaterError:  # it was dropped, or has no history
            self._done.add(name)
            return True
        completions: dict[int, list[tuple[int, int]]] = {}
        for step in history:
            if not step.through.unknown and not step.through.finished:
                completions.setdefault(step.incarnation, []).append((step.through.micros, step.time_micros))
        if not all(self._board.recall(name, *of_incarnation) for of_incarnation in completions.items()):
            return False
        self._done.add(name)
        return True
