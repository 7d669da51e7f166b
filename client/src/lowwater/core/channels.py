"""Open channels to shards, and the number of their users: one table for threads and tasks alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import grpc
import grpc.aio

from lowwater.core.call import Stubs
from lowwater.core.router import Router
from lowwater.core.settings import Settings, options_of

__all__ = ["Channels", "Used", "open_aio_channel", "open_channel"]

Channel = TypeVar("Channel")


def open_channel(settings: Settings, address: str) -> grpc.Channel:
    """Return a channel over the network, for threads."""
    credentials = settings.credentials_for(address)
    if credentials is None:
        return grpc.insecure_channel(address, options=options_of(address))
    return grpc.secure_channel(address, credentials, options=options_of(address))


def open_aio_channel(settings: Settings, address: str) -> grpc.aio.Channel:
    """Return a channel over the network, for asyncio."""
    credentials = settings.credentials_for(address)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options_of(address))
    return grpc.aio.secure_channel(address, credentials, options=options_of(address))


@dataclass(slots=True, eq=False)
class Used(Generic[Channel]):
    """A channel and the number of its users."""

    channel: Channel
    stubs: Stubs
    edition: object
    """Edition of the credentials that it was opened with."""
    users: int = 0


class Channels(Generic[Channel]):
    """Channels of one process, or of one event loop.

    A channel is opened at the first use of its address, and closed when no computation is routed to
    the address any more. Renewed credentials open another one; users of the old one go on with it.
    No method waits or locks: the caller closes the channels that it gets.
    """

    def __init__(self, router: Router) -> None:
        self.by_address: dict[str, Used[Channel]] = {}
        """Channels for new users, by address."""
        self._router = router
        self._outdated: list[Used[Channel]] = []

    def use(self, address: str, edition: object, make: Callable[[str], Channel]) -> Used[Channel]:
        """Return a channel and count its user, who decrements ``users`` at its end."""
        used = self.by_address.get(address)
        if used is not None and used.edition != edition:
            self._outdated.append(self.by_address.pop(address))
            used = None
        if used is None:
            channel = make(address)
            used = self.by_address[address] = Used(channel, Stubs(channel), edition)
        used.users += 1
        return used

    @property
    def outdated(self) -> bool:
        """True when a channel with outdated credentials is open."""
        return bool(self._outdated)

    def unused(self) -> list[Used[Channel]]:
        """Remove the channels without users to addresses that are needed no longer."""
        unused = [
            address for address, used in self.by_address.items() if not used.users and not self._router.lead_to(address)
        ]
        removed = [self.by_address.pop(address) for address in unused]
        removed += [used for used in self._outdated if not used.users]
        self._outdated = [used for used in self._outdated if used.users]
        return removed

    def every(self) -> list[Used[Channel]]:
        """Return all channels."""
        return [*self.by_address.values(), *self._outdated]

    def clear(self) -> list[Used[Channel]]:
        """Remove all channels, and return them."""
        removed = self.every()
        self.by_address.clear()
        self._outdated.clear()
        return removed
