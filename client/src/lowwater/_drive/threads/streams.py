"""Threads that open one stream after the other, one for each shard that is needed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Set
from typing import Any, Final

import grpc

from lowwater import errors
from lowwater._drive.threads.connection import Connection
from lowwater._drive.threads.signal import Signal
from lowwater.core.call import Stubs
from lowwater.core.search import TIMEOUT, Search, is_search
from lowwater.core.streams import Many, Streamed

__all__ = ["Streams"]

logger = logging.getLogger("lowwater")

_STOP_TIMEOUT: Final = 5.0
"""Most seconds that the end of a client waits for its threads."""


class Streams:
    """Drives state machines with common state: a thread for each, as long as it is needed.

    Opens their streams, passes on the messages, and wakes the threads that wait for these.
    """

    def __init__(self, connection: Connection, machines: Many[Any], name: str) -> None:
        self.changed: Signal = Signal()
        """Signal after every message with news, and at the end of every stream. Guards the state
        machines."""
        self._connection = connection
        self._machines = machines
        self._name = name
        self._running: dict[Streamed, _Running] = {}
        # Machines without a thread, because the system gave none.
        self._refused: dict[Streamed, None] = {}

    def _open(self, machine: Any, address: str, stubs: Stubs) -> Any:
        """Open a stream; returns the call. ``changed`` is held."""
        raise NotImplementedError

    @property
    def _server_token(self) -> str:
        """Token of the deployment this client belongs to."""
        raise NotImplementedError

    def _take(self, machine: Streamed, response: Any) -> bool:
        """Take a message; returns True when the stream has to end."""
        with self.changed:
            leaving = machine.take(response)
            self.tend()
            self._notify(machine.concerned)
        return leaving

    def _notify(self, names: Set[str] | None) -> None:
        if names is None:
            self.changed.notify_all()
        elif names:
            self.changed.notify_about(names)

    def tend(self) -> None:
        """Start threads that are needed by now, and end streams that have to be renewed.

        Hold ``changed``. A thread that cannot be started is tried again next time. Raises
        RuntimeError when none runs, because then there may be no next time.
        """
        refused, self._refused, error = self._refused, {}, None
        for machine in dict.fromkeys((*refused, *self._machines.tend())):
            running = self._running.get(machine)
            if running is None:
                error = self._start(machine) or error
            elif machine.interrupted and running.call is not None:
                running.call.cancel()
        if error is not None and not self._running:
            raise error

    def _start(self, machine: Streamed) -> RuntimeError | None:
        """Start the thread of a machine, if it is needed; returns the error if that failed."""
        if machine.needed and not self._connection.closed:
            running = _Running()
            running.thread = threading.Thread(target=self._run, args=(machine, running), name=self._name, daemon=True)
            try:
                running.thread.start()
            except RuntimeError as error:
                self._refused[machine] = None
                logger.warning("a thread %s could not be started, which is tried again: %s", self._name, error)
                return error
            self._running[machine] = running
        return None

    def stop(self) -> None:
        """End the streams and the threads; the connection must have been closed."""
        with self.changed:
            running = list(self._running.values())
            for one in running:
                if one.call is not None:
                    one.call.cancel()
            self.changed.notify_all()
        for one in running:
            if one.thread is not None and one.thread is not threading.current_thread():
                one.thread.join(timeout=_STOP_TIMEOUT)

    def _run(self, machine: Streamed, running: _Running) -> None:
        ended = self._connection.ended
        with self.changed:
            delay = machine.first_pause
        while True:
            with self.changed:
                self.changed.wait_for(lambda: ended.is_set() or machine.hurried, delay)
                if ended.is_set():
                    break
                if machine.failure is not None or not machine.needed:
                    machine.retire()
                    del self._running[machine]
                    break
                if machine.hurried:
                    delay = machine.first_pause
                    continue
            failure: Exception | None = None
            pauses = self._connection.pauses
            try:
                self._stream(machine, running)
            except errors.Closed:
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, the state machine decides
                failure = error
                if isinstance(error, grpc.RpcError):
                    # gRPC raises the call itself. Its traceback would keep it alive until a garbage
                    # collection, perhaps the one at the end of the program. The call then waits for
                    # a lock whose thread may be gone.
                    error.__traceback__ = None
            if ended.is_set():
                break
            with self.changed:
                # A stream that a fork ended has not failed.
                forked = self._connection.pauses != pauses
                delay = machine.ended(None if forked else failure)
                delay = 0.0 if forked else delay
                self.tend()
                self.changed.notify_all()
            self._connection.sweep()
        self._connection.sweep()
        with self.changed:
            self.changed.notify_all()

    def _stream(self, machine: Streamed, running: _Running) -> None:
        """Follow one stream to its end."""
        address = machine.address
        with self._connection.use(address) as stubs:
            with self.changed:
                self._connection.check_open()
                if not machine.needed:
                    return
                if is_search(machine):
                    call = self._locate(machine, address, stubs)
                else:
                    call = self._open(machine, address, stubs)
                running.call = call
            try:
                for response in call:
                    if self._take(machine, response):
                        break
            finally:
                call.cancel()
                with self.changed:
                    running.call = None

    def _locate(self, machine: Search[Any], address: str, stubs: Stubs) -> Any:
        request = machine.open(address, self._server_token)
        timeout = min(TIMEOUT, self._connection.settings.timeout)
        return _OneAnswer(
            stubs.cluster.Locate.future(request, timeout=timeout, metadata=self._connection.settings.metadata)
        )


class _Running:
    """A thread, and its open stream."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.call: Any = None


class _OneAnswer:
    """A unary call, as a stream of its answer."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def __iter__(self) -> Iterator[Any]:
        yield self._future.result()

    def cancel(self) -> None:
        """End the call."""
        self._future.cancel()
