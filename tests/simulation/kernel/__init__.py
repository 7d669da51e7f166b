"""A deterministic simulator: asyncio programs of many processes on one event loop, in virtual time."""

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
