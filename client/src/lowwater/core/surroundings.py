"""What the client takes from its process: a clock, chance and a name."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["REAL", "Surroundings"]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a client takes from its process, passed in so that it runs in a simulator."""

    monotonic: Callable[[], float] = time.monotonic
    """A clock in seconds that never goes back. Nothing here asks for the wall clock."""
    random: Callable[[], float] = random.SystemRandom().random
    """Floats in [0, 1), for the jitter of delays. Not the same ones in a forked child."""
    randbytes: Callable[[int], bytes] = os.urandom
    """So many random bytes: the names of streams and of claims."""
    host: Callable[[], str] = socket.gethostname
    """The name of the machine, which claims carry for people."""
    pid: Callable[[], int] = os.getpid
    """The number of the process, for the names of workers that were given none."""


REAL: Final = Surroundings()
"""Those of a real process."""
