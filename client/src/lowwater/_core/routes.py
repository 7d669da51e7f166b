"""Where each computation is served, as far as this process knows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

__all__ = ["HOME", "MOST_HOPS", "MOST_NAMES", "Routes"]

HOME: Final = ""
"""Stands for whichever address is home now."""

MOST_LEARNT: Final = 16
"""Shards heard of that are kept as candidates for home: the newest, since shards come and go."""

MOST_HOPS: Final = 2
"""Redirects of a computation, one after the other, that its streams follow at once."""

MOST_NAMES: Final = 10_000
"""Most names in one read, as the authority takes them."""


class Routes:
    """The shard of each computation, and the one that is asked about all others: *home*.

    Home is an address that :func:`lowwater.connect` was given, the next one when it fails, and after the last a shard heard of: each
    time another, those that failed last at the end. A
    deployment of one shard never redirects, so all its computations are at home and nothing is kept of them but a number.
    Every operation is O(1) but :meth:`failed` and :meth:`lead_to`, which are O(routes). ``guard`` is held for moments, and nothing is called under it.
    """

    def __init__(self, addresses: Sequence[str], guard: AbstractContextManager[object]) -> None:
        self.refused: int = 0
        """Redirects to a lower ownership number than one seen; they were not followed."""
        self._guard = guard
        self._given = tuple(dict.fromkeys(addresses))
        self._learnt: dict[str, None] = {}
        self._home = self._given[0]
        self._routes: dict[str, str] = {}
        self._epochs: dict[str, int] = {}
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
        return len(self._given) + len(self._learnt) > 1

    def given(self, address: str) -> bool:
        """Whether an address is one that :func:`lowwater.connect` was given, and not only heard of."""
        return address in self._given

    def lead_to(self, address: str) -> bool:
        """Whether anything is asked for at an address. O(routes)."""
        with self._guard:
            return address in self._given or address == self._home or address in self._routes.values()

    def address_of(self, name: str) -> str:
        """Return where to ask about a computation."""
        return self._routes.get(name, self._home)

    def place(self, name: str) -> str:
        """Return whose stream carries a computation: that of an address, or ``HOME``."""
        route = self._routes.get(name)
        return HOME if route is None or route == self._home else route

    def epoch_of(self, name: str) -> int:
        """Return the highest ownership number seen of a computation, 0 for none."""
        return self._epochs.get(name, 0)

    def seen(self, name: str, epoch: int) -> None:
        """Note the ownership number that an answer carried."""
        with self._guard:
            if epoch > self._epochs.get(name, 0):
                self._epochs[name] = epoch

    def redirected(self, name: str, address: str, epoch: int) -> bool:
        """Take a redirect; returns whether to follow it.

        One to a lower ownership number than one seen comes from a shard that has been asleep; one without an address says that
        nobody serves the computation just now.
        """
        with self._guard:
            if epoch < self._epochs.get(name, 0):
                self.refused += 1
                self._doubted = address
                return False
            self._epochs[name] = epoch
            if not address:
                self._routes.pop(name, None)
                return False
            self._routes[name] = address
            if address not in self._given and address not in self._learnt:
                self._learnt[address] = None
                unused = [each for each in self._learnt if each != self._home]
                if len(unused) > MOST_LEARNT:
                    del self._learnt[unused[0]]
            return True

    def forget(self, name: str) -> None:
        """Ask about a computation at home again."""
        with self._guard:
            self._routes.pop(name, None)

    def failed(self, address: str) -> None:
        """Forget the routes to an address, which then go home; if that is home, turn to the next candidate."""
        with self._guard:
            for name in [name for name, route in self._routes.items() if route == address]:
                del self._routes[name]
            if address in self._learnt:
                self._learnt[address] = self._learnt.pop(address)
            if address == self._home:
                candidates = [*self._given, *list(self._learnt)[:1]]
                following = self._given.index(address) + 1 if address in self._given else 0
                self._home = candidates[following % len(candidates)]
