"""Channels of one event loop to the shards, and calls on them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio

from lowwater import errors
from lowwater._drive import fork
from lowwater._drive.tasks.signal import Signal, being_cancelled
from lowwater.core.attempts import cancelled_call, closed_client
from lowwater.core.call import Stubs
from lowwater.core.channels import Channels, open_aio_channel
from lowwater.core.exchange import Exchange
from lowwater.core.router import Router
from lowwater.core.settings import Settings
from lowwater.core.surroundings import REAL, Surroundings

__all__ = ["Connection", "MakeChannel"]

Result = TypeVar("Result")

MakeChannel = Callable[[str], grpc.aio.Channel]
"""Function that opens a channel to an address."""


class Connection(fork.Forked):
    """Channels of a client, one for each shard that is used.

    They belong to the process and event loop that opened them. A channel is opened at the first use
    of its address, and closed when no computation is routed there any more.
    """

    def __init__(
        self, settings: Settings, surroundings: Surroundings = REAL, make_channel: MakeChannel | None = None
    ) -> None:
        self.settings = settings
        self.surroundings = surroundings
        self.router: Router = Router(settings.addresses, contextlib.nullcontext())
        self.closed: bool = False
        self._closing = Signal()
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._make_channel: MakeChannel = make_channel or partial(open_aio_channel, settings)
        self._channels: Channels[grpc.aio.Channel] = Channels(self.router)
        fork.register(self)

    def after_fork_in_child(self) -> None:
        """Keep the parent's channels unused and unclosed."""
        fork.keep(self)

    def check_place(self) -> None:
        """Raise Closed in another process or event loop."""
        if self._pid != os.getpid():
            msg = (
                f"this client belongs to process {self._pid}, which forked this one. gRPC's asyncio cannot be used in a child "
                "of a process that used it: fork before the first call, or start processes by spawn"
            )
            raise errors.Closed(msg)
        if self._loop is not asyncio.get_running_loop():
            raise errors.Closed("this client belongs to another event loop; connect() makes one here")

    def check_open(self) -> None:
        """Raise Closed after :meth:`shut`."""
        if self.closed:
            raise closed_client()

    @contextlib.contextmanager
    def use(self, address: str) -> Generator[Stubs]:
        """Surround a call or stream; yields stubs for an address. Raises Closed at the end."""
        self.check_open()
        used = self._channels.use(address, self.settings.edition, self._make_channel)
        try:
            yield used.stubs
        finally:
            used.users -= 1

    async def sweep(self) -> None:
        """Close the channels without users to addresses that are needed no longer."""
        for used in self._channels.unused():
            await used.channel.close()

    async def call(self, exchange: Exchange[Result], take: Callable[[Any], float | None]) -> Result:
        """Make the attempts of a unary call; ``take`` passes an answer to it, under its guard."""
        while True:
            attempt = exchange.next()
            try:
                with self.use(attempt.address) as stubs:
                    method = attempt.method(stubs)
                    answer = await method(attempt.request, metadata=self.settings.metadata, **attempt.options)
            except grpc.RpcError as failure:
                self.check_open()
                delay = exchange.failed(failure)
                await self.sweep()
            except grpc.aio.UsageError:
                # gRPC raises this for a channel that was closed meanwhile, for good. Otherwise it
                # is a mistake in the program, which a repeat would not mend.
                self.check_open()
                raise
            except (asyncio.CancelledError, grpc.aio.BaseError):
                # gRPC raises these for a call whose channel was closed, and for one that it could
                # not make.
                if being_cancelled():
                    raise
                self.check_open()
                delay = exchange.failed(cancelled_call(attempt.address))
            else:
                if self._channels.outdated:
                    await self.sweep()
                pause = take(answer)
                if pause is None:
                    return exchange.result
                delay = pause
            if delay:
                await self._closing.wait(delay)
            self.check_open()

    def shut(self) -> None:
        """Refuse new calls and streams from now on."""
        self.closed = True
        self._closing.notify_all()

    async def close(self) -> None:
        """Close the channels; calls on them end."""
        self.shut()
        for used in self._channels.every():
            await used.channel.close()
