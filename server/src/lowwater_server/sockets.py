"""Listening sockets, and how many files and sockets this process may have open.

This module needs no HTTP server: its import costs hundredths of a second.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import socket
from pathlib import Path
from typing import Final

BACKLOG: Final = 128
"""Greatest number of connections that wait to be accepted."""

_MOST_PORT: Final = 65_535


def file_limit() -> float:
    """Return how many files this process may have open; infinity: any number."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if files == resource.RLIM_INFINITY else files


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError.

    Port 0 picks a free port; ``[::]`` listens on IPv4 too if the system can.
    """
    if not 0 <= port <= _MOST_PORT:  # else the OverflowError of the bind would leave a socket open
        raise OSError(None, f"there is no port {port}")
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = addresses[0]
        both = address[0] == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except UnicodeError as error:
        raise OSError(None, f"{host!r} is no name of a host") from error


def listen_at(path: str) -> socket.socket:
    """Return a listening Unix socket, which only this user may reach. Raises OSError.

    A socket that an ended process left behind is replaced.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            listening.connect(path)
            raise OSError(errno.EADDRINUSE, f"{path} is in use by another process")
        listening.close()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        place = Path(path)
        if place.exists():
            if not place.is_socket():
                raise OSError(errno.EEXIST, f"{path} is no socket")
            place.unlink()
        before = os.umask(0o177)
        try:
            listening.bind(path)
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def url_of(listening: socket.socket, *, encrypted: bool) -> str:
    """Return the URL of a listening socket, which a browser on this machine can open.

    It ends with a slash. A socket that listens on all addresses has the URL of localhost.
    """
    host, port = listening.getsockname()[:2]
    host = "localhost" if host in {"0.0.0.0", "::"} else host
    return f"{'https' if encrypted else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/"
