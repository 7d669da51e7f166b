"""Clock, randomness and names that a client takes from its process."""

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
    """Sources of a client's process, passed in so that a simulator can replace them."""

    monotonic: Callable[[], float] = time.monotonic
    """Clock in seconds that never goes back. The core uses no wall clock."""
    random: Callable[[], float] = random.SystemRandom().random
    """Source of floats in [0, 1) for jitter; a forked child gets others."""
    randbytes: Callable[[int], bytes] = os.urandom
    """Source of random bytes, for the names of streams and claims."""
    host: Callable[[], str] = socket.gethostname
    """Name of the machine, which claims carry for people."""
    pid: Callable[[], int] = os.getpid
    """Number of the process, for the default name of a worker."""


REAL: Final = Surroundings()
"""Sources of a real process."""
