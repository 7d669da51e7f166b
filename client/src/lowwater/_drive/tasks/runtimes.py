"""Where a client's runtime may be used: on one event loop of one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from lowwater._drive.tasks.connection import Connection
from lowwater.core.attempts import closed_client

__all__ = ["Runtimes"]


class Held(Protocol):
    """What a client has on its event loop."""

    pid: int
    connection: Connection


Runtime = TypeVar("Runtime", bound=Held)


class Runtimes(Generic[Runtime]):
    """The runtime of a client.

    It belongs to the process and the event loop that asked for it first.
    """

    def __init__(self, make: Callable[[], Runtime]) -> None:
        self.closed: bool = False
        self._make = make
        self._runtime: Runtime | None = None

    def check_open(self) -> None:
        """Raise Closed after :meth:`close`."""
        if self.closed:
            raise closed_client()

    def get(self) -> Runtime:
        """Return the runtime.

        Raises Closed in another process or event loop, and after :meth:`close`.
        """
        self.check_open()
        if self._runtime is None:
            self._runtime = self._make()
        self._runtime.connection.check_place()
        return self._runtime

    def existing(self) -> Runtime | None:
        """Return this process's runtime if it was made."""
        runtime = self._runtime
        return runtime if runtime is not None and runtime.pid == os.getpid() else None

    def close(self) -> Runtime | None:
        """Give it to nobody any more; returns the one of this process, which is to be closed, if it was made."""
        self.closed = True
        return self.existing()
