"""Ports that a server finds free again after it was killed."""

from __future__ import annotations

import functools
import itertools
import os
import random
import socket
from collections.abc import Iterator

PORTS = range(12_000, 22_000)
"""Tests side by side share them out: each process leaves the others the ports of servers that they will start again."""


def own_ports() -> range:
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = len(PORTS) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return PORTS[number * share : (number + 1) * share]


@functools.cache
def _turns() -> Iterator[int]:
    """All of them in some order, again and again: what was handed out a moment ago, and is not listened on yet, is not handed out twice."""
    return itertools.cycle(random.sample(own_ports(), len(own_ports())))


def free_port() -> int:
    """A port that nobody listens on.

    Below the range from which the system takes ports for outgoing connections: a server that is killed must find its port
    free again. A node of a Redis cluster listens 10,000 higher too.
    """
    for port in _turns():
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("there is always another one")
