"""A network that delivers a message after its sender has seen the connection break."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self


class LateProxy:
    """Passes bytes on to a port of this machine. It holds those from a marked message on, breaks the connection, and delivers them when it is told to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._marker = b""
        self.is_held = threading.Event()
        """Set when the marked message has come and its sender has lost the connection."""
        self._deliver = threading.Event()
        self.is_answered = threading.Event()
        """Set when the receiver has answered what was delivered late."""
        self._may_connect = threading.Event()
        self._may_connect.set()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def address(self) -> str:
        """HOST:PORT of its own."""
        return f"127.0.0.1:{self.port}"

    def hold(self, marker: bytes) -> None:
        """Hold the next message that has ``marker`` in it, and all connections from then on until ``connect``."""
        self._marker = marker

    def connect(self) -> None:
        """Let senders connect again."""
        self._may_connect.set()

    def deliver(self) -> None:
        """Deliver what is held."""
        self._deliver.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._may_connect.set()
        self._deliver.set()
        self._end(self._listener)
        self._threads[0].join()
        for each in self._sockets:
            self._end(each)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    @staticmethod
    def _end(each: socket.socket) -> None:
        # Whoever waits at a socket that is closed goes on waiting; at one that was shut down nobody does.
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)

    def _start(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                self._sockets.append(here)
                self._may_connect.wait()
                there = socket.create_connection(("127.0.0.1", self._port))
                self._sockets.append(there)
                self._start(self._forward, here, there)
                self._start(self._back, there, here)

    def _forward(self, here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(65536):
                if self._marker and self._marker in data:
                    self._marker = b""
                    self._may_connect.clear()
                    self._end(here)
                    self.is_held.set()
                    self._deliver.wait()
                    there.sendall(data)
                    return  # and the receiver keeps its connection
                there.sendall(data)
        self._end(there)

    def _back(self, there: socket.socket, here: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := there.recv(65536):
                if self._deliver.is_set():
                    self.is_answered.set()
                with contextlib.suppress(OSError):
                    here.sendall(data)
        self._end(here)
