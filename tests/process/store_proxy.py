"""A network to a server that a test can break."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self


class StoreProxy:
    """Passes bytes on to a port of this machine, until it is told to swallow them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.holds = 0
        """The number of times that bytes were held back."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._passes = threading.Event()
        self._passes.set()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def swallow(self) -> None:
        """Hold back all bytes from now on, like a network that is gone: who waits for an answer waits."""
        self._passes.clear()

    def heal(self) -> None:
        """Pass bytes on again, also those held back, as a network does that was only slow."""
        self._passes.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.heal()
        self._end(self._listener)
        self._threads[0].join()
        for connection in self._sockets:
            self._end(connection)
        for thread in self._threads:
            thread.join()
        for connection in (self._listener, *self._sockets):
            connection.close()

    @staticmethod
    def _end(connection: socket.socket) -> None:
        # Whoever waits at a socket that is closed goes on waiting; at one that was shut down nobody does.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _start(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                self._sockets.append(here)
                store = self._connect()
                self._sockets.append(store)
                self._start(self._pump, here, store)
                self._start(self._pump, store, here)

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port))

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self._pass(data, source, target):
                    return
        self._end(target)

    def _pass(self, data: bytes, source: socket.socket, target: socket.socket) -> bool:
        """Pass bytes on; False: nothing more comes from there, and the target keeps its connection."""
        del source
        if not self._passes.is_set():
            self.holds += 1
            self._passes.wait()
        target.sendall(data)
        return True
