"""Channels of one process to the shards, and calls on them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import grpc

from lowwater._drive import fork
from lowwater._drive.threads.signal import Signal
from lowwater.core.attempts import closed_client
from lowwater.core.call import Stubs
from lowwater.core.channels import Channels, Used, open_channel
from lowwater.core.exchange import Exchange
from lowwater.core.router import Router
from lowwater.core.settings import Settings
from lowwater.core.surroundings import REAL, Surroundings

__all__ = ["Connection", "MakeChannel"]

Result = TypeVar("Result")

MakeChannel = Callable[[str], grpc.Channel]
"""Function that opens a channel to an address."""

_QUIET_TIMEOUT: Final = 5.0
"""Most seconds that a fork waits for threads to leave the closed channels, or to close them."""


class Connection:
    """Channels of this process, one for each shard that is used. Safe for threads.

    They are closed for every fork and then opened again. A channel is opened at the first use of
    its address, and closed when no computation is routed there any more.
    """

    def __init__(
        self, settings: Settings, surroundings: Surroundings = REAL, make_channel: MakeChannel | None = None
    ) -> None:
        self.settings = settings
        self.surroundings = surroundings
        self.router: Router = Router(settings.addresses, threading.Lock())
        self.ended: threading.Event = threading.Event()
        """Set at the end of the client."""
        self.pauses: int = 0
        """Number of forks for which the channels were closed; a call that finds it changed was
        interrupted by one."""
        self._make_channel: MakeChannel = make_channel or partial(open_channel, settings)
        self._changed = Signal()
        self._forks = 0
        self._users = 0
        self._unrepeatable = 0
        self._channels: Channels[grpc.Channel] = Channels(self.router)

    @property
    def closed(self) -> bool:
        """True at the end of the client."""
        return self.ended.is_set()

    def check_open(self) -> None:
        """Raise Closed after :meth:`shut`."""
        if self.closed:
            raise closed_client()

    def check_place(self) -> None:
        """Return: any thread may use it, and other processes have their own."""

    @contextlib.contextmanager
    def use(self, address: str, *, repeatable: bool = True) -> Generator[Stubs]:
        """Surround a call or stream; yields the stubs over the channel to an address.

        Waits while the process forks. Raises Closed after :meth:`shut`.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._forks or self.closed)
            self.check_open()
            fork.anchor()
            used = self._channels.use(address, self.settings.edition, self._make_channel)
            self._users += 1
            self._unrepeatable += not repeatable
        try:
            yield used.stubs
        finally:
            with self._changed:
                used.users -= 1
                self._users -= 1
                self._unrepeatable -= not repeatable
                self._changed.notify_all()

    def sweep(self) -> None:
        """Close the channels without users to addresses that are needed no longer."""
        with self._changed:
            closing = self._channels.unused()
            self._users += len(closing)
        self._close(closing)

    def pause(self) -> None:
        """Block new uses of channels, until as many calls of :meth:`resume` have followed."""
        with self._changed:
            self._forks += 1
            self.pauses += 1

    def await_quiet(self) -> None:
        """Wait for the unrepeatable calls until their timeouts, then end all by closing."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unrepeatable)
            closing = self._channels.clear()
            self._users += len(closing)
        try:
            self._close(closing)
        finally:  # the fork goes on in any case
            with self._changed:
                self._changed.wait_for(lambda: not self._users, _QUIET_TIMEOUT)

    def resume(self) -> None:
        """Allow uses of channels again, after the last pause."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def call(self, exchange: Exchange[Result], take: Callable[[Any], float | None]) -> Result:
        """Make the attempts of a unary call; ``take`` passes an answer to it, under its guard."""
        while True:
            attempt = exchange.next()
            pauses, delay = self.pauses, 0.0
            try:
                with self.use(attempt.address, repeatable=attempt.repeatable) as stubs:
                    answer = attempt.method(stubs)(attempt.request, metadata=self.settings.metadata, **attempt.options)
            except grpc.RpcError as failure:
                if not self.closed and (self.pauses == pauses or not attempt.repeatable):
                    delay = exchange.failed(failure)
                    self.sweep()
            except ValueError:
                # gRPC raises this for a channel that was closed meanwhile: for a fork, or for good.
                # Otherwise it is a mistake in the program, which a repeat would not mend.
                if not self.closed and self.pauses == pauses:
                    raise
            else:
                if self._channels.outdated:
                    self.sweep()
                pause = take(answer)
                if pause is None:
                    return exchange.result
                delay = pause
            with self._changed:
                self._changed.wait_for(lambda: self.closed, delay)
            self.check_open()

    def shut(self) -> None:
        """Refuse new calls and streams from now on."""
        with self._changed:
            self.ended.set()
            self._changed.notify_all()

    def close(self) -> None:
        """Close the channels; calls on them end."""
        with self._changed:
            self.shut()
            closing = self._channels.every()
            self._users += len(closing)
        self._close(closing)

    def _close(self, closing: Sequence[Used[grpc.Channel]]) -> None:
        """Close channels; each counts as used until then, as a forked child must not inherit it.

        After a failure or an interrupt the others are closed as well; then it is raised.
        """
        with contextlib.ExitStack() as all_of_them:
            for used in reversed(closing):
                all_of_them.callback(self._close_one, used)

    def _close_one(self, used: Used[grpc.Channel]) -> None:
        try:
            used.channel.close()
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()
