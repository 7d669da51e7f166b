"""One event loop's channel to the authority, and calls on it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from lowwater import errors
from lowwater._aio.signal import Signal, being_cancelled
from lowwater._core import forking
from lowwater._core.attempts import Attempts, closed_client
from lowwater._core.calls import Call, Stubs
from lowwater._core.settings import OPTIONS, Settings
from lowwater._core.surroundings import Surroundings

__all__ = ["Connection", "real_channel"]


def real_channel(settings: Settings) -> grpc.aio.Channel:
    """Return a channel over the network."""
    credentials = settings.credentials
    if credentials is None:
        return grpc.aio.insecure_channel(settings.address, options=OPTIONS)
    return grpc.aio.secure_channel(settings.address, credentials, options=OPTIONS)


class Connection(forking.Forked):
    """A channel, made at the first use. It belongs to the process and the running event loop that made it."""

    def __init__(
        self, settings: Settings, surroundings: Surroundings, make_channel: Callable[[], grpc.aio.Channel] | None
    ) -> None:
        self.settings = settings
        self.surroundings = surroundings
        self.closed: bool = False
        self._closing = Signal()
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._make_channel = make_channel or (lambda: real_channel(settings))
        self._channel: grpc.aio.Channel | None = None
        self._stubs: Stubs | None = None
        forking.register(self)

    def after_fork_in_child(self) -> None:
        """Stay as the parent left it."""
        forking.keep(self)

    def check_place(self) -> None:
        """Raise Closed in another process or event loop."""
        if self._pid != os.getpid():
            msg = (
                f"this client belongs to process {self._pid}, which forked this one. gRPC's asyncio cannot be used in a child "
                "of a process that used it: fork before the first call, or start processes by spawn"
            )
            raise errors.Closed(msg)
        if self._loop is not asyncio.get_running_loop():
            msg = "this client belongs to another event loop; connect() makes one here"
            raise errors.Closed(msg)

    def check_open(self) -> None:
        """Raise Closed after :meth:`close`."""
        if self.closed:
            raise closed_client()

    @property
    def stubs(self) -> Stubs:
        """The stubs over the channel. Raises Closed after :meth:`close`."""
        self.check_open()
        if self._stubs is None:
            self._channel = self._make_channel()
            self._stubs = Stubs(self._channel)
        return self._stubs

    async def call(self, call: Call[Any]) -> Any:
        """Make the attempts of a unary call, within the client's timeout; returns the answer."""
        settings = self.settings
        attempts = Attempts(self.surroundings, settings.address, settings.timeout, repeatable=call.repeatable)
        while True:
            method = call.method(self.stubs)
            try:
                return await method(call.request, metadata=settings.metadata, **attempts.options)
            except grpc.RpcError as failure:
                self.check_open()
                delay = attempts.delay_after(failure)
            except (asyncio.CancelledError, grpc.aio.UsageError):
                # gRPC's words for a channel that was closed in the meantime.
                if self.closed and not being_cancelled():
                    raise closed_client() from None
                raise
            await self._closing.wait(delay)
            self.check_open()

    async def close(self) -> None:
        """Close the channel; calls on it end."""
        self.closed = True
        self._closing.notify()
        if self._channel is not None:
            await self._channel.close()
