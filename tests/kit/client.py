"""A client without a network, on a clock that the test moves."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from lowwater import Settings
from lowwater.core.calls import Calls
from lowwater.core.exchange import Exchange, exchange_of
from lowwater.core.reports import MESSAGE_WORDS, Reporting
from lowwater.core.router import Router
from lowwater.core.surroundings import Surroundings
from lowwater.core.watches import WatchState
from tests.kit.clock import Clock


class OfflineClient:
    """A client that sends nothing. Its delays are not random: they are the longest that they can be.

    ``words`` are the most values of one message of a report, ``settings`` those of a client.
    """

    def __init__(
        self, *addresses: str, clock: Clock | None = None, words: int = MESSAGE_WORDS, **settings: Any
    ) -> None:
        self.clock = clock or Clock()
        self.settings = Settings(",".join(addresses or ("home:1",)), **settings)
        self.surroundings = Surroundings(self.clock, lambda: 1.0, bytes)
        self.router = Router(self.settings.addresses, nullcontext())
        self.known = WatchState(self.settings, self.surroundings, self.router)
        self.calls = Calls(self.known, "")
        self.reporting = Reporting(self.settings, self.surroundings, self.router, words=words)

    def ask(self, call: Any, timeout: float = 10.0) -> Exchange[Any]:
        return exchange_of(call, self.calls, self.router, self.surroundings, timeout)
