"""The channels to the shards that are used, and who uses them: a table for threads and tasks alike."""

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
    """A channel and who uses it."""

    channel: Channel
    stubs: Stubs
    edition: object
    """Of the credentials it was made with."""
    users: int = 0


class Channels(Generic[Channel]):
    """The channels of one process, or of one event loop.

    A channel is made at the first use of its address, and is to be closed when none of its
    computations are there any more. Credentials that were renewed make another; what uses the one
    before goes on. Nothing here waits or locks: whoever is handed channels closes them.
    """

    def __init__(self, router: Router) -> None:
        self.by_address: dict[str, Used[Channel]] = {}
        """Those that are used from now on."""
        self._router = router
        self._outdated: list[Used[Channel]] = []

    def use(self, address: str, edition: object, make: Callable[[str], Channel]) -> Used[Channel]:
        """Return the channel to an address, with credentials of that edition, and count one user more, who counts itself off."""
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
        """Whether there is a channel with credentials that were renewed since."""
        return bool(self._outdated)

    def unused(self) -> list[Used[Channel]]:
        """Take out the channels that nobody uses, to where nothing is asked for any more: shards come and go."""
        over = [each for each, used in self.by_address.items() if not used.users and not self._router.lead_to(each)]
        taken = [self.by_address.pop(address) for address in over]
        taken += [each for each in self._outdated if not each.users]
        self._outdated = [each for each in self._outdated if each.users]
        return taken

    def every(self) -> list[Used[Channel]]:
        """Return all of them."""
        return [*self.by_address.values(), *self._outdated]

    def clear(self) -> list[Used[Channel]]:
        """Take out all of them."""
        taken = self.every()
        self.by_address.clear()
        self._outdated.clear()
        return taken
