"""What the authority knows of the time before this process: when steps of event time became complete."""

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
"""Of each computation: ten days of hours, of which a week is shown."""

ASKED: Final = 50.0
"""Computations asked for in a second at most: they are nobody's hurry, and the authority has other
work."""

AGAIN_SECONDS: Final = 5.0
"""Until those are asked for again of which nobody answered."""

log = logging.getLogger(__name__)


class Recall:
    """Fills the samples of a board once somebody wants them: with how late each step of event time was complete, once for each computation.

    For one event loop; its thread asks through ``client``, and ends when there is nobody left to ask for.
    """

    def __init__(self, client: Callable[[], Client], board: Board, again_seconds: float = AGAIN_SECONDS) -> None:
        self._client = client
        self._again_seconds = again_seconds
        self._board = board
        self._asked: set[str] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def want(self) -> None:
        """Somebody looks at the time before: begin to ask, unless that was done or goes on."""
        if self._stopping.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        if self._left():
            self._thread = threading.Thread(target=self._run, name="lowwater-recall", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._stopping.set()

    def _left(self) -> list[str]:
        # A thousand slices would be a thousand questions. They are looked at for what is now; the
        # whole is, for what was.
        return [name for name in self._board.names() if name not in self._asked and not slice_of(name)]

    def _run(self) -> None:
        try:
            left = self._left()
            while left:
                unanswered = []  # by a shard that is away, say: the others have not to wait for it
                for name in left:
                    if not self._ask(name):
                        unanswered.append(name)
                    if self._stopping.wait(1 / ASKED):
                        return
                left = unanswered
                if left and self._stopping.wait(self._again_seconds):
                    return
        except errors.Closed:
            return
        except Exception:
            log.exception("the page cannot recall what was before it", extra=event("page_recall_failed"))

    def _ask(self, name: str) -> bool:
        """Ask for one computation; returns whether that is done."""
        try:
            found = self._client().history(name, limit=COMPLETIONS)
        except (errors.Unavailable, errors.Timeout, errors.Overloaded, errors.ShuttingDown):
            return False
        except errors.Closed:
            raise
        except errors.LowwaterError:  # it was dropped meanwhile, or nothing is kept of it
            self._asked.add(name)
            return True
        passed: dict[int, list[tuple[int, int]]] = {}
        for each in found:
            if not each.through.unknown and not each.through.finished:
                passed.setdefault(each.incarnation, []).append((each.through.micros, each.time_micros))
        if not all(self._board.recall(name, *each) for each in passed.items()):
            return False
        self._asked.add(name)
        return True
