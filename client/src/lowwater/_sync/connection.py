"""One process's channel to the authority, and calls on it."""

from __future__ import annotations

import threading
from typing import Any

import grpc

from lowwater._core.attempts import Attempts, closed_client
from lowwater._core.calls import Call, Stubs
from lowwater._core.settings import OPTIONS, Settings
from lowwater._core.surroundings import REAL, Surroundings

__all__ = ["Connection", "Settings"]


class Connection:
    """A channel of this process, made at the first use. Safe for threads; never used across a fork."""

    def __init__(self, settings: Settings, surroundings: Surroundings = REAL) -> None:
        self.settings = settings
        self.surroundings = surroundings
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._stubs: Stubs | None = None

    @property
    def stubs(self) -> Stubs:
        """The stubs over the channel. Raises Closed after :meth:`close`."""
        with self._lock:
            if self.closed.is_set():
                raise closed_client()
            if self._stubs is None:
                self._channel = self._make()
                self._stubs = Stubs(self._channel)
            return self._stubs

    def _make(self) -> grpc.Channel:
        address, credentials = self.settings.address, self.settings.credentials
        if credentials is None:
            return grpc.insecure_channel(address, options=OPTIONS)
        return grpc.secure_channel(address, credentials, options=OPTIONS)

    def call(self, call: Call[Any]) -> Any:
        """Make the attempts of a unary call, within the client's timeout; returns the answer."""
        settings = self.settings
        attempts = Attempts(self.surroundings, settings.address, settings.timeout, repeatable=call.repeatable)
        while True:
            method = call.method(self.stubs)
            try:
                return method(call.request, metadata=settings.metadata, **attempts.options)
            except grpc.RpcError as failure:
                delay = attempts.delay_after(failure)
            except ValueError:
                # gRPC's word for a channel that was closed in the meantime.
                raise closed_client() from None
            if self.closed.wait(delay):
                raise closed_client()

    def close(self) -> None:
        """Close the channel; calls on it end."""
        with self._lock:
            self.closed.set()
            if self._channel is not None:
                self._channel.close()
