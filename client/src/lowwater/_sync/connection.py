"""One process's channel to the authority, and calls on it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from typing import Any, Final

import grpc

from lowwater._core import forking
from lowwater._core.attempts import Attempts, closed_client
from lowwater._core.calls import Call, Stubs
from lowwater._core.settings import OPTIONS, Settings
from lowwater._core.surroundings import REAL, Surroundings

__all__ = ["Connection"]


_QUIET_TIMEOUT: Final = 5.0
"""Seconds that a fork waits at most for threads to leave the closed channel."""


class Connection:
    """A channel of this process, made at the first use, closed for every fork and then made anew. Safe for threads."""

    def __init__(self, settings: Settings, surroundings: Surroundings = REAL) -> None:
        self.settings = settings
        self.surroundings = surroundings
        self.closed: threading.Event = threading.Event()
        self.pauses: int = 0
        """How often the channel was closed for a fork: whoever finds it changed was interrupted by one."""
        self._changed = threading.Condition()
        self._forks = 0
        self._users = 0
        self._once = 0
        self._channel: grpc.Channel | None = None
        self._stubs: Stubs | None = None

    @contextlib.contextmanager
    def use(self, *, repeatable: bool = True) -> Generator[Stubs]:
        """Surround a call or stream; gives the stubs over the channel. Waits while the process forks.

        Raises Closed after :meth:`close`.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._forks or self.closed.is_set())
            if self.closed.is_set():
                raise closed_client()
            if self._stubs is None:
                forking.anchor()
                self._channel = self._make()
                self._stubs = Stubs(self._channel)
            stubs = self._stubs
            self._users += 1
            self._once += not repeatable
        try:
            yield stubs
        finally:
            with self._changed:
                self._users -= 1
                self._once -= not repeatable
                self._changed.notify_all()

    def pause(self) -> None:
        """Let nobody begin to use the channel, until as many :meth:`resume` have followed."""
        with self._changed:
            self._forks += 1
            self.pauses += 1

    def await_quiet(self) -> None:
        """Wait for the calls that may not be repeated, at most for their timeouts, then end all others and close the channel."""
        with self._changed:
            self._changed.wait_for(lambda: not self._once)
            channel, self._channel, self._stubs = self._channel, None, None
        if channel is not None:
            channel.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._users, _QUIET_TIMEOUT)

    def resume(self) -> None:
        """Let it be used again."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

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
            pauses, delay = self.pauses, 0.0
            try:
                with self.use(repeatable=call.repeatable) as stubs:
                    return call.method(stubs)(call.request, metadata=settings.metadata, **attempts.options)
            except grpc.RpcError as failure:
                if not self.closed.is_set() and (self.pauses == pauses or not call.repeatable):
                    delay = attempts.delay_after(failure)
            except ValueError:
                # gRPC's word for a channel that was closed in the meantime: for a fork, or for good.
                pass
            if self.closed.wait(delay):
                raise closed_client()

    def close(self) -> None:
        """Close the channel; calls on it end."""
        with self._changed:
            self.closed.set()
            self._changed.notify_all()
            if self._channel is not None:
                self._channel.close()
