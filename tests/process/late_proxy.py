"""A network that delivers a message after its sender has seen the connection break."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.process.store_proxy import StoreProxy


class LateProxy(StoreProxy):
    """Holds the bytes from a marked message on, breaks the connection, and delivers them when it is told to."""

    def __init__(self, port: int) -> None:
        self._marker = b""
        self.is_held = threading.Event()
        """Set when the marked message has come and its sender has lost the connection."""
        self._deliver = threading.Event()
        self.is_answered = threading.Event()
        """Set when the receiver has answered what was delivered late."""
        self._may_connect = threading.Event()
        self._may_connect.set()
        super().__init__(port)

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

    def heal(self) -> None:
        """Let everything go on."""
        self.connect()
        self.deliver()

    def _connect(self) -> socket.socket:
        self._may_connect.wait()
        return super()._connect()

    def _pass(self, data: bytes, source: socket.socket, target: socket.socket) -> bool:
        if source.getsockname()[1] != self.port:  # an answer
            if self._deliver.is_set():
                self.is_answered.set()
            with contextlib.suppress(OSError):
                target.sendall(data)
        elif self._marker and self._marker in data:
            self._marker = b""
            self._may_connect.clear()
            self._end(source)
            self.is_held.set()
            self._deliver.wait()
            target.sendall(data)
            return False
        else:
            target.sendall(data)
        return True
