"""Clients of gRPC that take none of their answers, or reset what they have begun, by frames of HTTP/2: no library would do that."""

from __future__ import annotations

import socket

DATA = 0
HEADERS = 1
RST_STREAM = 3
SETTINGS = 4
PING = 6

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes that a client sends."""

ACK = 1

END_STREAM = 1
END_HEADERS = 4

INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def _header(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def opening(path: str, stream: int) -> bytes:
    """The beginning of a call of a method, whose request is still to come; ``stream`` is 1 for the first of a connection, 3, 5."""
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path.encode(),
        b":authority": b"x",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }
    return frame(HEADERS, END_HEADERS, stream, b"".join(_header(*header) for header in headers.items()))


def without_room(path: str, calls: int) -> bytes:
    """Return what to send at once over a new connection: some calls of a method, and that there is no room for a byte of their answers."""
    no_window = INITIAL_WINDOW_SIZE.to_bytes(2, "big") + (0).to_bytes(4, "big")
    opened = [opening(path, 1 + 2 * number) for number in range(calls)]
    return b"".join([PREFACE, frame(SETTINGS, 0, 0, no_window), *opened])


def flood_of_resets(port: int, path: str, calls: int, timeout: float) -> None:
    """Begin calls of a method over one connection, reset each at once, and return when the server has read them all, or ended the connection."""
    cancel = (8).to_bytes(4, "big")
    streams = range(1, 2 * calls, 2)
    mark = b"all read"
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        try:
            for first in range(0, calls, 1000):
                connection.sendall(
                    b"".join(
                        opening(path, stream) + frame(RST_STREAM, 0, stream, cancel)
                        for stream in streams[first : first + 1000]
                    )
                )
            connection.sendall(frame(PING, 0, 0, mark))
            answered = b""
            while frame(PING, ACK, 0, mark) not in answered:
                read = connection.recv(65536)
                if not read:
                    return
                answered = answered[-100:] + read
        except ConnectionError:
            return
