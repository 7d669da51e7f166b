"""A connection between a channel and a server, and how both learn that it broke."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.kernel.pipe import KERNEL

if TYPE_CHECKING:
    from tests.simulation.kernel.calls import Call
    from tests.simulation.kernel.channel import SimChannel
    from tests.simulation.kernel.network import Network
    from tests.simulation.kernel.server import SimServer


class Connection:
    """A connection that carries the calls of one channel to one server process, until it breaks."""

    def __init__(self, network: Network, channel: SimChannel, server: SimServer) -> None:
        self.network = network
        self.channel = channel
        self.client = channel.process
        self.server = server
        self.calls: dict[Call, None] = {}
        self.open = True
        network.connections[self] = None
        for end in (self.client, server.process):
            if end.paused:
                network.watch(self, end)

    def close(self, why: str, *, after: float = 0.0, server: float = 0.0) -> None:
        """Break: nothing that is sent from now on arrives.

        Each side learns it a little later, no sooner than ``after``; the server no sooner than ``server`` besides.
        """
        if not self.open:
            return
        self.open = False
        network, loop = self.network, self.network.sim.loop
        network.sim.trace("broken", client=str(self.client), server=str(self.server.process), why=why)
        network.connections.pop(self)
        for call in self.calls:
            call.sever()
        for learn, soonest in ((self._client_learns, after), (self._server_learns, max(after, server))):
            loop.call_at(max(soonest, loop.now + network.latency()), learn, why, context=KERNEL)

    def _client_learns(self, why: str) -> None:
        self.channel.disconnected(self)
        for call in list(self.calls):
            call.broken(why)

    def _server_learns(self, why: str) -> None:
        del why
        for call in list(self.calls):
            call.abandon()
