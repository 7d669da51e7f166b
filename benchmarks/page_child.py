"""The workers and viewers of the benchmark ``page``, which obeys "begin" and "end" on its input."""

from __future__ import annotations

import selectors
import socket
import sys
import threading
import time
import urllib.parse
from typing import Final

import lowwater

EVENT: Final = b"event: "

SETTLED: Final = 5
"""Messages that a viewer has got before a turn counts."""


class Viewers:
    """Open pages, which count what they are told and forget it."""

    def __init__(self, page: str, count: int) -> None:
        self._sockets = [_open(page) for _ in range(count)]
        self._counts = dict.fromkeys(self._sockets, 0)
        if count:
            threading.Thread(target=self._read, daemon=True).start()

    @property
    def messages(self) -> int:
        """Messages of all together."""
        return sum(self._counts.values())

    @property
    def least(self) -> int:
        """Messages of the one that got the fewest; many where there is none."""
        return min(self._counts.values(), default=SETTLED)

    def forget(self) -> None:
        """Count from here."""
        for viewer in self._sockets:
            self._counts[viewer] = 0

    def _read(self) -> None:
        buffer, ends = bytearray(1 << 20), dict.fromkeys(self._sockets, b"")
        with selectors.DefaultSelector() as selector:
            for viewer in self._sockets:
                selector.register(viewer, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    count = connection.recv_into(buffer)
                    if not count:
                        return
                    text = ends[connection] + buffer[:count]
                    self._counts[connection] += text.count(EVENT)
                    ends[connection] = bytes(text[-len(EVENT) + 1 :])


def _open(page: str) -> socket.socket:
    place = urllib.parse.urlsplit(page)
    connection = socket.create_connection((place.hostname or "", place.port or 0))
    connection.sendall(f"GET /api/events HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
    return connection


def main() -> None:
    """Obey until standard input ends."""
    address, page = sys.argv[1:3]
    computations, viewers, changes = map(int, sys.argv[3:])
    changing = threading.Event()
    with lowwater.connect(address, report_interval=1 / changes) as lw:
        leases = []
        for i in range(computations):
            name = f"busy/{i:04}"
            lw.register(name)
            leases.append(lw.worker(name).claim())

        def change() -> None:
            due = time.monotonic()
            while changing.wait():
                micros = time.time_ns() // 1000
                for lease in leases:
                    lease.advance(None, oldest=micros, frontier=micros)
                due = max(due + 1 / changes, time.monotonic())
                time.sleep(max(0.0, due - time.monotonic()))

        threading.Thread(target=change, daemon=True).start()
        watching, began = Viewers(page, viewers), time.monotonic()
        print("ready", flush=True)
        for line in sys.stdin:
            if line.strip() == "begin":
                changing.set()
                watching.forget()
                while watching.least < SETTLED:
                    time.sleep(0.1)
                time.sleep(1)
                watching.forget()
                began = time.monotonic()
                print("begun", flush=True)
            else:
                changing.clear()
                print(watching.messages / max(1, viewers) / (time.monotonic() - began), flush=True)


if __name__ == "__main__":
    main()
