"""A client of gRPC that takes none of its answers, by frames of HTTP/2: no library would do that."""

from __future__ import annotations

DATA = 0
HEADERS = 1
SETTINGS = 4

END_STREAM = 1
END_HEADERS = 4

INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """One frame."""
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def _header(name: bytes, value: bytes) -> bytes:
    """One header of HPACK, as it is."""
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
    return frame(HEADERS, END_HEADERS, stream, b"".join(_header(*each) for each in headers.items()))


def without_room(path: str, calls: int) -> bytes:
    """What to send at once over a new connection: some calls of a method, and that there is no room for a byte of their answers."""
    no_window = INITIAL_WINDOW_SIZE.to_bytes(2, "big") + (0).to_bytes(4, "big")
    opened = [opening(path, 1 + 2 * number) for number in range(calls)]
    return b"".join([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", frame(SETTINGS, 0, 0, no_window), *opened])
