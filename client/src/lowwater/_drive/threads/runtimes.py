"""Where a client's runtime may be used: in every process there is one.

Children of a fork make their own.
"""

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


class Held(Protocol):
    """What a client has in one process."""

    pid: int
    connection: Connection


Runtime = TypeVar("Runtime", bound=Held)


class Runtimes(fork.Forked, Generic[Runtime]):
    """The runtime of a client in whichever process asks for it.

    gRPC's threads do not live on in a forked child. What they were doing at that moment does, and
    makes its calls crash or hang: one child in a hundred of an idle parent, most of one that waits
    for an answer. So the parent closes its channels for the moment of the fork and then opens them
    anew; calls are repeated, and the streams go on from their state. The child makes its own.
    """

    def __init__(self, make: Callable[[], Runtime]) -> None:
        self.closed: bool = False
        self._make = make
        self._runtime: Runtime | None = None
        self._lock = threading.RLock()
        self._forks = 0
        """How many forks are under way."""
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
                for _ in range(self._forks):  # it begins when they are over, as all others go on then
                    runtime.connection.pause()
                self._runtime = runtime
        self.check_open()  # what is made behind the end, nobody would close
        return runtime

    def existing(self) -> Runtime | None:
        """Return this process's runtime if it was made, and the program is not at its end: the threads that hold its locks are gone then."""
        if sys.is_finalizing():
            return None
        runtime = self._runtime
        return runtime if runtime is not None and runtime.pid == os.getpid() else None

    def close(self) -> Runtime | None:
        """Give it to nobody any more; returns the one of this process, which is to be closed, if it was made."""
        self.closed = True
        return self.existing()

    def before_fork(self) -> None:
        """Let nobody begin a call or a stream."""
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
        """Forget what belongs to the parent.

        Its threads may have held the lock when they ceased to exist.
        """
        self._lock = threading.RLock()
        self._forks = 0
        fork.keep(self._runtime)
        self._runtime = None
