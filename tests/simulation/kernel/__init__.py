"""A deterministic simulator: asyncio programs of many processes on one event loop, in virtual time.

In the manner of FoundationDB's simulation and TigerBeetle's VOPR. One seed decides everything, so one seed repeats
everything: the same ``digest()`` in any Python process, whatever its hash seed.

    sim = Simulation(7)
    async def world() -> None:
        server = sim.process("server")
        server.start(serve, server)            # uses sim.network.server(server, "a:1")
        client = sim.process("client")
        task = client.start(ask, client)       # uses stubs over sim.network.channel(client, "a:1")
        await asyncio.sleep(3600)              # an hour, in no time
        server.crash()                         # kill -9
        server = server.restarted()
        server.start(serve, server)
    sim.run(world(), limit=7200)

How it works. The *loop* has no sockets, threads or sleep: when nothing is ready it sets its clock to the next timer.
A *process* is a context variable that tasks and callbacks inherit. Before each callback the loop looks at its process:
a dead one's is dropped, a paused one's is kept, in order, for its resumption. Nothing of a killed process runs again, no
``except`` and no ``finally``: its coroutines are kept until the simulation ends. A process ends with its main coroutine.
The *network* stands in for ``grpc.aio``: messages are serialised and parsed, delivered after a drawn delay, in order
within a stream, at most 20 unread; unary requests may arrive late, twice, or after their client is gone. The *store* is
a MemoryJournal with drawn faults: a disk of one process, or across the network and shared.

What it does not model. Code takes no virtual time, and whatever runs between two awaits is one step. One connection
carries any number of calls without them delaying each other, in any order. A cut connection is noticed within the
network's delay, not after silence; only frozen processes are silent. No reconnect backoff of gRPC, no limits of message
size, no TLS, no name resolution; flow control counts messages, not bytes; no client-streaming unary methods; a call
that its client forgets goes on. Disks neither rot nor fill up.
"""

from tests.simulation.kernel.loop import SimulationStuck
from tests.simulation.kernel.network import Network, Tap, Weather
from tests.simulation.kernel.process import Crashed, Process
from tests.simulation.kernel.simulation import Simulation
from tests.simulation.kernel.store import RemoteFaults, RemoteStore, SimFaults, StoreWeather

__all__ = [
    "Crashed",
    "Network",
    "Process",
    "RemoteFaults",
    "RemoteStore",
    "SimFaults",
    "Simulation",
    "SimulationStuck",
    "StoreWeather",
    "Tap",
    "Weather",
]
