"""The shards that serve computations, as far as this process has learnt, and its records of them.

A client has three records of a name, because three guards protect them: on threads no two parts of
a client hold one lock for long.

* :class:`Route`, of the :class:`Router`: the address that serves the computation, and the highest
  ownership number seen (*epoch*). The whole client has one: calls, reports and watches all use it,
  so what one of them learns helps the others at once. The router's guard protects it.
* ``Followed``, of ``Placement``: its readers, the stream that carries it, the time of its last
  confirmation, whether the caller may read it. The watcher's guard protects it.
* ``Reported``, of ``Reporting``: the claims on it, and the streams that carry them. The reporter's
  guard protects it.

The last two are a ``Sought``. Each side counts its own redirects (*hops*) and searches by itself,
because a shard that serves reports again may not publish watermarks yet. It is *placed* at the
stream of an address or of home, or *lost*: the side's ``Search`` asks where it is. A followed one
may be *denied*: ``Denials`` asks whether the caller may read it by now. One table has the records
by name; an index has those of each state that is iterated over.

The newest value of a name is in the ratchet: it outlives all these records, and they never show a
value that it refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

__all__ = ["HOME", "MOST_HOPS", "MOST_NAMES", "Route", "Router"]

HOME: Final = ""
"""Key of the stream to whichever address is home."""

MOST_LEARNT: Final = 16
"""Most addresses learnt from redirects that are candidates for home: the newest, since shards come
and go."""

MOST_HOPS: Final = 2
"""Most redirects in a row that the streams follow for one computation without a pause."""

MOST_NAMES: Final = 10_000
"""Most names in one read that the authority accepts."""


class Route:
    """Route to the shard of one computation."""

    __slots__ = ("address", "epoch", "name")

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.address: str = ""
        """Address of the shard; empty while none is known, so that home is asked."""
        self.epoch: int = 0
        """Highest ownership number seen; 0 for none."""


class Router:
    """The shard of each computation, and *home*, the shard that is asked about all others.

    Home is an address that :func:`lowwater.connect` was given. When it fails, the next one becomes
    home, and after the last one a learnt address: each time another, those that failed last at the
    end. A deployment of one shard never redirects, so all its computations are at home, and the
    only record of them is a number. Every operation is O(1) but :meth:`failed` and :meth:`lead_to`,
    which are O(names). ``guard`` is held briefly, and no callback is called under it.
    """

    def __init__(self, addresses: Sequence[str], guard: AbstractContextManager[object]) -> None:
        self.refused: int = 0
        """Number of redirects to a lower ownership number than one seen; they were not followed."""
        self._guard = guard
        self._configured = tuple(dict.fromkeys(addresses))
        self.learnt: dict[str, None] = {}
        """Addresses learnt from redirects, those that failed last at the end; at most
        ``MOST_LEARNT``."""
        self._home = self._configured[0]
        self._routes: dict[str, Route] = {}
        self._doubted = ""

    def oracle(self) -> str:
        """Return the address to ask for locations: home, or once a shard with a stale redirect.

        Shown the higher number, that shard looks at its store: the shard has been asleep, or the
        store has lost a number.
        """
        doubted, self._doubted = self._doubted, ""
        return doubted or self._home

    @property
    def home(self) -> str:
        """Address to ask about computations without a route."""
        return self._home

    @property
    def several(self) -> bool:
        """True when more than one address is known."""
        return len(self._configured) + len(self.learnt) > 1

    def configured(self, address: str) -> bool:
        """Return True for an address from :func:`lowwater.connect`, False for a learnt one."""
        return address in self._configured

    def lead_to(self, address: str) -> bool:
        """Return True when any route leads to an address, or it may become home. O(names)."""
        with self._guard:
            return (
                address in self._configured
                or address == self._home
                or any(route.address == address for route in self._routes.values())
            )

    def address_of(self, name: str) -> str:
        """Return the address to ask about a computation."""
        route = self._routes.get(name)
        return self._home if route is None else route.address or self._home

    def place(self, name: str) -> str:
        """Return the key of a computation's stream: an address, or ``HOME``."""
        route = self._routes.get(name)
        address = "" if route is None else route.address
        return HOME if not address or address == self._home else address

    def epoch_of(self, name: str) -> int:
        """Return the highest ownership number seen of a computation; 0 for none."""
        route = self._routes.get(name)
        return 0 if route is None else route.epoch

    def note_epoch(self, name: str, epoch: int) -> None:
        """Note the ownership number in an answer; a known one needs no lock."""
        if epoch <= self.epoch_of(name):
            return
        with self._guard:
            route = self._route(name)
            route.epoch = max(route.epoch, epoch)

    def redirected(self, name: str, address: str, epoch: int) -> bool:
        """Take a redirect; returns True when it is to be followed.

        A lower ownership number than one seen comes from a shard that has been asleep. An empty
        address means that no shard serves the computation now.
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
            if address not in self._configured and address not in self.learnt:
                self.learnt[address] = None
                unused = [learnt for learnt in self.learnt if learnt != self._home]
                if len(unused) > MOST_LEARNT:
                    del self.learnt[unused[0]]
            return True

    def forget(self, name: str) -> None:
        """Forget the address of a computation, so that home is asked."""
        with self._guard:
            if name in self._routes:
                self._routes[name].address = ""

    def failed(self, address: str) -> None:
        """Forget the routes to a failed address; if it is home, the next candidate becomes home."""
        with self._guard:
            for route in self._routes.values():
                if route.address == address:
                    route.address = ""
            if address in self.learnt:
                self.learnt[address] = self.learnt.pop(address)
            if address == self._home:
                candidates = [*self._configured, *list(self.learnt)[:1]]
                next_index = self._configured.index(address) + 1 if address in self._configured else 0
                self._home = candidates[next_index % len(candidates)]

    def _route(self, name: str) -> Route:
        """Return the route of a computation; a new one when there is none. ``guard`` is held."""
        route = self._routes.get(name)
        if route is None:
            route = self._routes[name] = Route(name)
        return route
