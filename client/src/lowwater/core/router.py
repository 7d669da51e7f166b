"""Where each computation is served, as far as this process knows, and what it keeps of a computation: one record a name and side.

A client keeps three records of a name, because three guards protect them: on threads no two parts of a client hold one lock for long.

* :class:`Route`, of the :class:`Router`: the address that serves the computation, and the highest ownership number seen (*epoch*). One for
  the whole client: calls, reports and watches go by it alike, so what one of them learns helps the others at once. The router's guard.
* ``Followed``, of ``WatchState``: who follows it, whose stream tells of it, when its value was confirmed last, whether the caller may
  read it. The watcher's guard.
* ``Reported``, of ``Reporting``: the claims on it, and whose stream carries each. The reporter's guard.

The last two are a ``Sought``: each side counts for itself how often it was sent on (*hops*), and looks for the computation where it did
not find it, for a shard that serves reports again may not tell of watermarks yet. Its states are *placed* (at the stream of an
address, or of home), *lost* (the side's ``Search`` asks where it is), and for what is followed *denied* (``Denials`` asks whether it
may be read by now). A record is found by its name in one table, and what has to be gone through by state has an index of the same records.

The newest value by name is the ratchet's: it outlives all of these, and what it refuses no record may show.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

__all__ = ["HOME", "MOST_HOPS", "MOST_NAMES", "Route", "Router"]

HOME: Final = ""
"""Stands for whichever address is home now."""

MOST_LEARNT: Final = 16
"""Shards heard of that are kept as candidates for home: the newest, since shards come and go."""

MOST_HOPS: Final = 2
"""Redirects of a computation, one after the other, that its streams follow at once."""

MOST_NAMES: Final = 10_000
"""Most names in one read, as the authority takes them."""


class Route:
    """Where one computation is served."""

    __slots__ = ("address", "epoch", "name")

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.address: str = ""
        """The shard's; empty while none is known, so that home is asked."""
        self.epoch: int = 0
        """The highest ownership number seen, 0 for none."""


class Router:
    """The shard of each computation, and the one that is asked about all others: *home*.

    Home is an address that :func:`lowwater.connect` was given, the next one when it fails, and
    after the last a shard heard of: each time another, those that failed last at the end. A
    deployment of one shard never redirects, so all its computations are at home and nothing is kept
    of them but a number. Every operation is O(1) but :meth:`failed` and :meth:`lead_to`, which are
    O(names). ``guard`` is held for moments, and nothing is called under it.
    """

    def __init__(self, addresses: Sequence[str], guard: AbstractContextManager[object]) -> None:
        self.refused: int = 0
        """Redirects to a lower ownership number than one seen; they were not followed."""
        self._guard = guard
        self._given = tuple(dict.fromkeys(addresses))
        self.learnt: dict[str, None] = {}
        """Addresses of shards that were heard of, those that failed last at the end; at most
        ``MOST_LEARNT``."""
        self._home = self._given[0]
        self._routes: dict[str, Route] = {}
        self._doubted = ""

    def oracle(self) -> str:
        """Return whom to ask where computations are: home, or once a shard to which a redirect was not followed.

        Shown the higher number, it looks at its store: it has been asleep, or the store has lost a number that it has to exceed.
        """
        doubted, self._doubted = self._doubted, ""
        return doubted or self._home

    @property
    def home(self) -> str:
        """The address to ask about what has no route."""
        return self._home

    @property
    def several(self) -> bool:
        """Whether more than one address is known."""
        return len(self._given) + len(self.learnt) > 1

    def given(self, address: str) -> bool:
        """Whether an address is one that :func:`lowwater.connect` was given, and not only heard of."""
        return address in self._given

    def lead_to(self, address: str) -> bool:
        """Whether anything is asked for at an address. O(names)."""
        with self._guard:
            return (
                address in self._given
                or address == self._home
                or any(route.address == address for route in self._routes.values())
            )

    def address_of(self, name: str) -> str:
        """Return where to ask about a computation."""
        route = self._routes.get(name)
        return self._home if route is None else route.address or self._home

    def place(self, name: str) -> str:
        """Return whose stream carries a computation: that of an address, or ``HOME``."""
        route = self._routes.get(name)
        address = "" if route is None else route.address
        return HOME if not address or address == self._home else address

    def epoch_of(self, name: str) -> int:
        """Return the highest ownership number seen of a computation, 0 for none."""
        route = self._routes.get(name)
        return 0 if route is None else route.epoch

    def seen(self, name: str, epoch: int) -> None:
        """Note the ownership number that an answer carried.

        Most carry one that is known, for which nobody waits.
        """
        if epoch <= self.epoch_of(name):
            return
        with self._guard:
            route = self._route(name)
            route.epoch = max(route.epoch, epoch)

    def redirected(self, name: str, address: str, epoch: int) -> bool:
        """Take a redirect; returns whether to follow it.

        One to a lower ownership number than one seen comes from a shard that has been asleep; one
        without an address says that nobody serves the computation just now.
        """
        with self._guard:
            route = self._route(name)
            if epoch < route.epoch:
                self.refused += 1
                self._doubted = address
                return False
            route.epoch, route.address = epoch, address
            if not address:
                return False
            if address not in self._given and address not in self.learnt:
                self.learnt[address] = None
                unused = [each for each in self.learnt if each != self._home]
                if len(unused) > MOST_LEARNT:
                    del self.learnt[unused[0]]
            return True

    def forget(self, name: str) -> None:
        """Ask about a computation at home again."""
        with self._guard:
            if name in self._routes:
                self._routes[name].address = ""

    def failed(self, address: str) -> None:
        """Forget the routes to an address, which then go home; if that is home, turn to the next candidate."""
        with self._guard:
            for route in self._routes.values():
                if route.address == address:
                    route.address = ""
            if address in self.learnt:
                self.learnt[address] = self.learnt.pop(address)
            if address == self._home:
                candidates = [*self._given, *list(self.learnt)[:1]]
                following = self._given.index(address) + 1 if address in self._given else 0
                self._home = candidates[following % len(candidates)]

    def _route(self, name: str) -> Route:
        """Return the record of a computation. ``guard`` is held."""
        route = self._routes.get(name)
        if route is None:
            route = self._routes[name] = Route(name)
        return route
