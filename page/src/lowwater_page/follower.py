"""The threads that follow the whole deployment, as an ordinary client, and fill the board."""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater.core.events import event
from lowwater_page.samples import STEP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowwater import Client
    from lowwater_page.board import Board

PERIOD: Final = 0.2
"""Time in seconds within which changes of one computation are conflated, on a small deployment."""

MOST_PERIOD: Final = 1.0
"""Longest such time, for very many computations."""

RATE: Final = 1000
"""Most changes that each shard sends to a follower in a second, on average.

A shard encodes them on the loop that runs its rounds."""

POLLED: Final = 200
"""Computations asked for in a second, on average, while the page has no viewer."""

AWAY_SECONDS: Final = 3.0
"""Age of the board in seconds from which the follower asks whether an authority answers."""

LOOKED_SECONDS: Final = 30.0
"""Time in seconds after a look at the board for which the follower watches every change."""

AGAIN_SECONDS: Final = (0.5, 30.0)
"""First and longest pause in seconds before a failed thread begins anew."""

JOIN_SECONDS: Final = 5.0
"""Longest time in seconds that ``close`` waits for each thread."""

log = logging.getLogger(__name__)


class Follower:
    """Fills the board through clients of its own, asks for the shards, and takes samples.

    While the page has viewers, the follower watches everything. Otherwise it polls, every
    ``STEP_SECONDS`` or less often, because a watch costs the shards that commit reports. If one
    shard does not answer, a poll fails as a whole. Then the follower watches for a while, because a
    watch goes on for the other shards. A client finds shards that come back by itself. If anything
    else ends a thread, the failure is logged, and the thread begins anew after ``AGAIN_SECONDS``,
    twice as long after each failure; the board keeps its views.

    ``connect`` returns a client; its argument is the least time in seconds between two messages of
    a watch. ``sharded``: whether there may be other shards; an authority without others says so
    when it is asked.
    """

    def __init__(
        self, connect: Callable[[float], Client], board: Board, *, clock: Callable[[], int], sharded: bool = True
    ) -> None:
        self._connect = connect
        self._board = board
        self._clock = clock
        self._alone = not sharded
        self.looked_seconds = LOOKED_SECONDS
        """See ``LOOKED_SECONDS``."""
        self.away: tuple[int, str] | None = None
        """Time in microseconds since when no authority answers, and the last error, or None."""
        self._asking: Client | None = None
        self._watching: Client | None = None
        self._unheard = False
        """True from the beginning of a watch until its first view."""
        self._confirmed = -math.inf
        self._looked = -math.inf
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._forever, args=(self._follow,), name="lowwater-follow", daemon=True),
            threading.Thread(target=self._forever, args=(self._look,), name="lowwater-look", daemon=True),
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads and close the clients, whose calls raise Closed from then on."""
        self._stopping.set()
        self._wake.set()
        with self._lock:
            clients = [self._asking, self._watching]
        for client in clients:
            if client is not None:
                client.close()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def look(self) -> None:
        """Watch every change for a while, because a viewer looks at the board."""
        self._looked = time.monotonic()
        self._wake.set()

    def client(self) -> Client:
        """Return the client for further questions. Raises Closed."""
        with self._lock:
            if self._stopping.is_set():
                raise errors.Closed("this process is stopping; ask again, at the next one")
            if self._asking is None:
                self._asking = self._connect(0.0)
            return self._asking

    @property
    def stale_for(self) -> float | None:
        """Seconds since the whole board was confirmed as the newest. O(computations).

        None: it was never confirmed.
        """
        now, watching = time.monotonic(), self._watching
        if watching is not None:
            with suppress(errors.Closed):  # this process is stopping
                self._confirmed = max(self._confirmed, now - watching.statistics().watcher.stale_for)
        return max(0.0, now - self._confirmed) if self._confirmed > -math.inf else None

    def _forever(self, run: Callable[[], None]) -> None:
        wait = AGAIN_SECONDS[0]
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                run()
            except Exception as error:
                if not self._stopping.is_set() or not isinstance(error, errors.Closed):
                    log.exception(
                        "the status page's follower failed; it begins anew in %.1f s",
                        wait,
                        extra=event("page_follower_failed", again_seconds=wait),
                    )
            if time.monotonic() - began > AGAIN_SECONDS[1]:
                wait = AGAIN_SECONDS[0]
            self._stopping.wait(wait)
            wait = min(2 * wait, AGAIN_SECONDS[1])

    def _follow(self) -> None:
        while not self._stopping.is_set():
            if self._is_looked_at():
                self._watch()
            else:
                self._poll()
                self._wake.wait(max(STEP_SECONDS, len(self._board.names()) / POLLED))
                self._wake.clear()

    def _is_looked_at(self) -> bool:
        return time.monotonic() - self._looked < self.looked_seconds

    def _poll(self) -> None:
        began = time.monotonic()
        try:
            self._ask(self.client())
        except (errors.Unavailable, errors.Timeout):
            self.look()  # the board says how stale it is
            return
        self._confirmed = max(self._confirmed, began)

    def _ask(self, client: Client) -> None:
        views = client.get()
        for view in views.values():
            self._board.admit(view)
        # A missing computation was dropped, as a rule. The answer to a question by name says so.
        missing = [name for name in self._board.names() if name not in views]
        for view in client.get(*missing).values() if missing else ():
            self._board.admit(view)

    def _watch(self) -> None:
        client = self._connect(period(len(self._board.names())))
        with self._lock:
            self._watching = client
        try:
            if not self._stopping.is_set():  # else close() may have come before
                self._fill(client)
        finally:
            self._unheard = False
            with self._lock:
                self._watching = None
            client.close()

    def _fill(self, client: Client) -> None:
        changed: set[str] = set()
        due = time.monotonic() + PERIOD
        self._unheard = True
        for view in client.watch():
            if self._unheard:
                # A new watch does not mention computations that were dropped before it.
                with suppress(errors.Unavailable, errors.Timeout):
                    self._ask(client)
                self._unheard = False
            if view.computation in changed or time.monotonic() > due:
                # The changed computations come in turns, so each has come by now. Changes until the
                # next turn are conflated.
                self._stopping.wait(max(0.0, due - time.monotonic()))
                changed.clear()
                due = time.monotonic() + PERIOD
                if not self._is_looked_at():
                    return
            changed.add(view.computation)
            self._board.admit(view)

    def _look(self) -> None:
        while not self._stopping.is_set():
            self._ask_shards()
            if self._unheard and self._board.names():  # a watch brings nothing if all was dropped before it
                with suppress(errors.Unavailable, errors.Timeout):
                    self._ask(self.client())
            self._board.sample(self._clock())
            self._stopping.wait(STEP_SECONDS - time.time() % STEP_SECONDS)

    def _ask_shards(self) -> None:
        """Ask for the shards; also note whether an authority answers."""
        stale_for = self.stale_for
        if self._alone and stale_for is not None and stale_for < AWAY_SECONDS:
            self.away = None
            return
        try:
            if self._alone:
                self.client().identify()
            else:
                self._board.post(self.client().shards())
        except errors.InvalidArgument:  # the authority has no other shards
            self._alone = True
        except errors.Closed:
            return
        except errors.LowwaterError as error:
            self.away = (self._clock() if self.away is None else self.away[0]), error.message
            return
        self.away = None


def period(computations: int) -> float:
    """Return the least time in seconds between two messages of a watch of so many computations.

    >>> period(12), period(500), period(20_000)
    (0.2, 0.5, 1.0)
    """
    return min(max(PERIOD, computations / RATE), MOST_PERIOD)
