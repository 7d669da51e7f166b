"""The place where a client's runtime may be used: each process has one, forked children too."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from lowwater._drive import fork
from lowwater._drive.threads.connection import Connection
from lowwater.core.attempts import closed_client

__all__ = ["Runtimes"]


class RuntimeParts(Protocol):
    """Parts of a runtime that this module uses."""

    pid: int
    connection: Connection


Runtime = TypeVar("Runtime", bound=RuntimeParts)


class Runtimes(fork.Forked, Generic[Runtime]):
    """The runtime of a client in the process that asks for it.

    A forked child has none of gRPC's threads, but it has the state of whatever they were doing,
    which makes its calls crash or hang: in one child of a hundred of an idle parent, in most of a
    parent that waits for an answer. So the parent closes its channels for the moment of the fork
    and then opens them again; calls are repeated, and the streams go on from their state. The child
    makes its own runtime.
    """

    def __init__(self, make: Callable[[], Runtime]) -> None:
        self.closed: bool = False
        self._make = make
        self._runtime: Runtime | None = None
        self._lock = threading.RLock()
        self._forks = 0
        """Number of forks under way."""
        fork.register(self)

    def check_open(self) -> None:
        """Raise Closed after :meth:`close`."""
        if self.closed:
            raise closed_client()

    def get(self) -> Runtime:
        """Return this process's runtime. Raises Closed after :meth:`close`."""
        self.check_open()
        runtime = self._runtime
        if runtime is not None and runtime.pid == os.getpid():
            return runtime
        with self._lock:
            runtime = self._runtime
            if runtime is None or runtime.pid != os.getpid():
                fork.keep(runtime)
                runtime = self._make()
                # Each fork under way calls resume once when it is over; until then the connection
                # stays paused.
                for _ in range(self._forks):
                    runtime.connection.pause()
                self._runtime = runtime
        self.check_open()  # otherwise a runtime made after the end would never be closed
        return runtime

    def existing(self) -> Runtime | None:
        """Return this process's runtime if it was made, and the program is not at its end."""
        if sys.is_finalizing():
            return None
        runtime = self._runtime
        return runtime if runtime is not None and runtime.pid == os.getpid() else None

    def close(self) -> Runtime | None:
        """Refuse the runtime from now on; returns this process's, for the caller to close."""
        self.closed = True
        return self.existing()

    def before_fork(self) -> None:
        """Block new calls and streams."""
        with self._lock:
            self._forks += 1
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
        with self._lock:
            self._forks -= 1
            runtime = self.existing()
            if runtime is not None:
                runtime.connection.resume()

    def after_fork_in_child(self) -> None:
        """Forget the parent's runtime, and the lock that one of its threads may have held."""
        self._lock = threading.RLock()
        self._forks = 0
        fork.keep(self._runtime)
        self._runtime = None
