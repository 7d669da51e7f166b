"""The thread that follows the whole deployment, as an ordinary client of it, and fills the board."""

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
"""Seconds within which changes of one computation are conflated: nobody is told more often than
every quarter of a second."""

MOST_PERIOD: Final = 1.0
"""The same of many computations."""

TOLD: Final = 1000
"""Computations in a second, at most and on average, that each shard tells a follower of: it encodes
them on the loop that commits."""

POLLED: Final = 200
"""Computations asked for in a second, on average, while nobody looks."""

AWAY_SECONDS: Final = 3.0
"""How old what is shown may be before it is asked why."""

LOOKED_SECONDS: Final = 30.0
"""How long after somebody looked every change is followed."""

AGAIN_SECONDS: Final = (0.5, 30.0)
"""First and longest wait before a follower that failed begins anew."""

JOIN_SECONDS: Final = 5.0
"""How long the threads may take to end."""

log = logging.getLogger(__name__)


class Follower:
    """Fills the board through clients of its own, asks for the shards, and takes samples.

    While somebody looks it watches everything; else it asks every ``STEP_SECONDS``, less often of
    very many, since to be told of every change costs those who report. When one shard does not
    answer, no such question is, so it watches for a while: that goes on for the others. The clients
    go to this process's own address, find the other shards by themselves, and go on when they come
    back. Whatever else ends one is logged, and another begins after ``AGAIN_SECONDS``, twice as
    long after each that fails; the board keeps what it has. ``connect`` makes one, which is told of
    changes in so many seconds at the earliest. ``sharded``: whether there may be other shards; an
    authority that is alone says so when it is asked, and stays so.
    """

    def __init__(
        self, connect: Callable[[float], Client], board: Board, *, clock: Callable[[], int], sharded: bool = True
    ) -> None:
        self._connect = connect
        self._board = board
        self._clock = clock
        self._alone = not sharded
        self.looked_seconds = LOOKED_SECONDS
        """How long after somebody looked every change is followed."""
        self.away: tuple[int, str] | None = None
        """Since when, by the clock, no authority answers, and what was said of that last; None: one
        does."""
        self._asking: Client | None = None
        self._watching: Client | None = None
        self._unheard = False
        """True while a watch has begun and has brought nothing."""
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
        """Begin to follow."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads and the clients; calls that others make through them raise Closed."""
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
        """Somebody looks at the board: follow every change for a while."""
        self._looked = time.monotonic()
        self._wake.set()

    def client(self) -> Client:
        """Return the client to ask more through. Raises Closed."""
        with self._lock:
            if self._stopping.is_set():
                msg = "this process is stopping; ask again, at the next one"
                raise errors.Closed(msg)
            if self._asking is None:
                self._asking = self._connect(0.0)
            return self._asking

    @property
    def stale_for(self) -> float | None:
        """Seconds since all that the board shows was confirmed as the newest; None when it never was. O(computations)."""
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
        # What is not among them was dropped, as a rule, which is told of what is asked for by name.
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
        seen: set[str] = set()
        due = time.monotonic() + PERIOD
        self._unheard = True
        for view in client.watch():
            if self._unheard:
                # A client that is new is not told of what was dropped before it came.
                with suppress(errors.Unavailable, errors.Timeout):
                    self._ask(client)
                self._unheard = False
            if view.computation in seen or time.monotonic() > due:
                # Those that changed take turns, so all have had theirs: what changes again until
                # the next round is conflated.
                self._stopping.wait(max(0.0, due - time.monotonic()))
                seen.clear()
                due = time.monotonic() + PERIOD
                if not self._is_looked_at():
                    return
            seen.add(view.computation)
            self._board.admit(view)

    def _look(self) -> None:
        while not self._stopping.is_set():
            self._ask_shards()
            if self._unheard and self._board.names():  # where all was dropped before a watch began, it brings nothing
                with suppress(errors.Unavailable, errors.Timeout):
                    self._ask(self.client())
            self._board.sample(self._clock())
            self._stopping.wait(STEP_SECONDS - time.time() % STEP_SECONDS)

    def _ask_shards(self) -> None:
        """Ask for the shards, which also tells whether anybody answers."""
        stale_for = self.stale_for
        if self._alone and stale_for is not None and stale_for < AWAY_SECONDS:
            self.away = None
            return
        try:
            if self._alone:
                self.client().identify()
            else:
                self._board.post(self.client().shards())
        except errors.InvalidArgument:  # it is the only one
            self._alone = True
        except errors.Closed:
            return
        except errors.LowwaterError as error:
            self.away = (self._clock() if self.away is None else self.away[0]), error.message
            return
        self.away = None


def period(computations: int) -> float:
    """Return how many seconds shards leave between two messages to a follower of so many computations.

    >>> period(12), period(500), period(20_000)
    (0.2, 0.5, 1.0)
    """
    return min(max(PERIOD, computations / TOLD), MOST_PERIOD)
