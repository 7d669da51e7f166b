"""What a client has in one process: channels and threads. Children of a fork make their own."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from lowwater._core import forking
from lowwater._core.asking import Asking, ask
from lowwater._core.call import Call, Gather
from lowwater._core.calls import Calls
from lowwater._core.settings import Settings
from lowwater._core.surroundings import REAL, Surroundings
from lowwater._sync.connection import Connection
from lowwater._sync.reporter import Reporter
from lowwater._sync.watcher import Watcher

__all__ = ["PerProcess", "Runtime"]

Result = TypeVar("Result")


class Runtime:
    """One process's connection, watcher and reporter. Nothing in it is started before it is used."""

    def __init__(self, settings: Settings, surroundings: Surroundings = REAL) -> None:
        self.pid: int = os.getpid()
        self.connection: Connection = Connection(settings, surroundings)
        self.watcher: Watcher = Watcher(self.connection)
        self.reporter: Reporter = Reporter(self.connection, self.watcher)
        self.calls: Calls = Calls(self.watcher.state, settings.namespace)

    def call(self, call: Call[Result] | Gather[Result], within: float = math.inf) -> Result:
        """Make a unary call within the client's timeout, or within so many seconds if they are fewer.

        Raises LowwaterError; Unavailable when no server answered at all, or none that serves the computation.
        """
        connection = self.connection
        timeout = min(within, connection.settings.timeout)
        asking = ask(call, self.calls, connection.routes, connection.surroundings, timeout)
        return connection.call(asking, lambda answer: self._take(asking, answer))

    def _take(self, asking: Asking[Any], answer: object) -> float | None:
        with self.watcher.changed:
            pause = asking.take(answer)
            self.watcher.changed.notify_all()
        if self.reporter.reporting.locating.wanted:
            with self.reporter.changed:
                self.reporter.changed.notify_all()  # it may have been found on the way
        return pause

    def deadline(self, seconds: float | None) -> float | None:
        """Return the time in so many seconds, on the monotonic clock."""
        return None if seconds is None else self.connection.surroundings.monotonic() + seconds

    def close(self) -> None:
        """End the threads and close the channels."""
        self.connection.closed.set()
        self.watcher.stop()
        self.reporter.stop()
        self.connection.close()


class PerProcess(forking.Forked):
    """The runtime of a client in whichever process asks for it.

    gRPC's threads do not live on in a forked child. What they were doing at that moment does, and makes its calls crash or hang: one
    child in a hundred of an idle parent, most of one that waits for an answer. So the parent closes its channels for the moment of
    the fork and then opens them anew; calls are repeated, and the streams go on from their state. The child makes its own.
    """

    def __init__(self, make: Callable[[], Runtime]) -> None:
        self._make = make
        self._runtime: Runtime | None = None
        self._lock = threading.Lock()
        forking.register(self)

    def get(self) -> Runtime:
        """Return this process's runtime."""
        runtime = self._runtime
        if runtime is not None and runtime.pid == os.getpid():
            return runtime
        with self._lock:
            if self._runtime is None or self._runtime.pid != os.getpid():
                forking.keep(self._runtime)
                self._runtime = self._make()
            return self._runtime

    def existing(self) -> Runtime | None:
        """Return this process's runtime if it was made."""
        runtime = self._runtime
        return runtime if runtime is not None and runtime.pid == os.getpid() else None

    def before_fork(self) -> None:
        """Let nobody begin a call or a stream."""
        runtime = self.existing()
        if runtime is not None:
            runtime.connection.pause()

    def await_quiet(self) -> None:
        """Close the channels."""
        runtime = self.existing()
        if runtime is not None:
            runtime.connection.await_quiet()

    def after_fork_in_parent(self) -> None:
        """Connect again."""
        runtime = self.existing()
        if runtime is not None:
            runtime.connection.resume()

    def after_fork_in_child(self) -> None:
        """Forget what belongs to the parent. Its threads may have held the lock when they ceased to exist."""
        self._lock = threading.Lock()
        forking.keep(self._runtime)
        self._runtime = None
