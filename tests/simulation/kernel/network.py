"""The network: who listens where, which connections there are, and the weather between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from tests.simulation.kernel.channel import SimChannel
from tests.simulation.kernel.connection import Connection
from tests.simulation.kernel.pipe import KERNEL
from tests.simulation.kernel.server import SimServer

if TYPE_CHECKING:
    import grpc

    from tests.simulation.kernel.process import Process
    from tests.simulation.kernel.simulation import Simulation

FROZEN_SERVER_SECONDS: Final = 11.0

DOWN_SECONDS: Final = 4.0
"""Longest time for which a link stays down behind a message that is late."""

FROZEN_CLIENT_SECONDS: Final = 30.0


@dataclass
class Weather:
    """The network's treatment of messages; may be changed at any time. Seconds, and probabilities per message."""

    delay: tuple[float, float] = (0.0002, 0.002)
    p_slow: float = 0.0
    slow: tuple[float, float] = (0.1, 3.0)
    p_lose_request: float = 0.0
    p_lose_response: float = 0.0
    p_repeat_request: float = 0.0
    """Probability that a copy of a unary call arrives once more, ``slow`` later, at whoever listens there then."""
    p_break: float = 0.0
    p_late: float = 0.0
    """Probability that the connection of a unary call, or of a message in a stream of requests, breaks at once, and it arrives ``late``."""
    late: tuple[float, float] = (1.0, 30.0)
    p_report_lost: float = 0.0
    """Probability that a Report stream's request but the first is lost: later ones arrive, until the stream breaks some seconds later."""
    p_report_doubled: float = 0.0
    p_report_swapped: float = 0.0


@dataclass(frozen=True, slots=True)
class Tap:
    """A message, at the moment it is sent, whatever becomes of it. Copy it to keep it: its sender may change it."""

    at: float
    process: Process
    peer: Process
    method: str
    direction: str
    call: int
    message: Any


class Network:
    """Made by the simulation. ``weather`` and ``taps`` are the world's to change."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.weather = Weather()
        self.taps: list[Callable[[Tap], None]] = []
        self.late_taps: list[Callable[[Any], None]] = []
        """Callbacks that are given each late request at the moment it arrives."""
        self.late_senders: dict[str, float] = {}
        """Probabilities that what a process sends comes late, by its name, where that is more than the weather's."""
        self.connections: dict[Connection, None] = {}
        self._random = sim.rng("network")
        self._listeners: dict[str, SimServer] = {}
        self._cuts: set[str] = set()
        self._down: dict[tuple[str, str], int] = {}
        """Numbers of breaks from which a link has not recovered, by client and address."""
        self._hopeful: dict[SimChannel, None] = {}
        self._calls = 0

    def channel(self, process: Process, address: str) -> grpc.aio.Channel:
        return cast("grpc.aio.Channel", SimChannel(self, process, address))

    def server(self, process: Process, address: str) -> grpc.aio.Server:
        return cast("grpc.aio.Server", SimServer(self, process, address))

    def cut(self, process: Process) -> None:
        self.sim.trace("cut", process=process.name)
        self._cuts.add(process.name)
        for connection in list(self.connections):
            if self._is_cut(connection.client, connection.server):
                connection.close("the network is cut")

    def heal(self, process: Process) -> None:
        if process.name in self._cuts:
            self.sim.trace("heal", process=process.name)
            self._cuts.remove(process.name)
            self.changed()

    def banish(self, process: Process) -> None:
        self.sim.trace("banish", process=str(process))
        self.died(process)

    def _is_cut(self, client: Process, server: SimServer) -> bool:
        return client.name in self._cuts or server.process.name in self._cuts

    def died(self, process: Process) -> None:
        for server in [server for server in self._listeners.values() if server.process is process]:
            self.unlisten(server)
        for connection in self.connections_of(process):
            connection.close("a process died")

    def paused(self, process: Process) -> None:
        for connection in self.connections_of(process):
            self.watch(connection, process)

    def watch(self, connection: Connection, frozen: Process) -> None:
        seconds = FROZEN_SERVER_SECONDS if frozen is connection.server.process else FROZEN_CLIENT_SECONDS
        pauses = frozen.pauses

        def silent() -> None:
            if connection.open and frozen.paused and frozen.pauses == pauses:
                self.sim.reach("network: keepalive")
                connection.close("keepalive: the peer is silent")

        self.sim.loop.call_later(seconds, silent, context=KERNEL)

    def connections_of(self, process: Process) -> list[Connection]:
        return [c for c in self.connections if c.client is process or c.server.process is process]

    def listen(self, server: SimServer) -> None:
        if server.address in self._listeners:
            raise RuntimeError(f"{self._listeners[server.address].process} listens at {server.address} already")
        self._listeners[server.address] = server
        self.sim.trace("listen", process=str(server.process), address=server.address)
        self.changed()

    def unlisten(self, server: SimServer) -> None:
        if self._listeners.get(server.address) is server:
            del self._listeners[server.address]

    def listener(self, client: Process, address: str, *, sent: bool = False) -> SimServer | None:
        """Whom a client reaches at an address now.

        ``sent``: by a message that is on its way already, which a link that went down does not stop.
        """
        server = self._listeners.get(address)
        down = not sent and (client.name, address) in self._down
        return None if server is None or down or self._is_cut(client, server) else server

    def break_link(self, client: Process, address: str, late: float) -> None:
        """Let a client not reach an address for a while, half of the time, and not for longer than a message to it is late."""
        if not self.chance(0.5):
            return
        link = client.name, address
        self._down[link] = number = self.number_call()
        self.sim.reach("network: a link was down behind a late request")

        def recover() -> None:
            if self._down.get(link) == number:
                del self._down[link]
                self.changed()

        self.sim.loop.call_later(min(late, DOWN_SECONDS) * self._random.random(), recover, context=KERNEL)

    def hope(self, channel: SimChannel) -> None:
        self._hopeful[channel] = None

    def changed(self) -> None:
        hopeful, self._hopeful = self._hopeful, {}
        for channel in hopeful:
            channel.connect()

    def latency(self) -> float:
        if self.chance(self.weather.p_slow):
            return self._random.uniform(*self.weather.slow)
        return self._random.uniform(*self.weather.delay)

    def detour(self) -> float:
        return self.latency() + self._random.uniform(*self.weather.slow)

    def p_late(self, sender: Process) -> float:
        return max(self.weather.p_late, self.late_senders.get(sender.name, 0.0))

    def lateness(self) -> float:
        low, high = self.weather.late
        return float(low * (high / low) ** self._random.random())

    def arrived_late(self, message: Any) -> None:
        self.sim.reach("network: a late request arrived")
        for look in self.late_taps:
            look(message)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def fate(self, point: str, probability: float) -> bool:
        if not self.chance(probability):
            return False
        self.sim.reach(f"network: {point}")
        self.sim.trace("fate", point=point)
        return True

    def number_call(self) -> int:
        self._calls += 1
        return self._calls

    def tap(self, sender: Process, peer: Process, method: str, direction: str, call: int, message: Any) -> None:
        tap = Tap(self.sim.now, sender, peer, method, direction, call, message)
        for look in self.taps:
            try:
                look(tap)
            except Exception as error:  # noqa: BLE001 - must not end in the program that happens to send
                self.sim.abort(error)
