"""The place where a client's runtime may be used: one event loop of one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from lowwater._drive.tasks.connection import Connection
from lowwater.core.attempts import closed_client

__all__ = ["Runtimes"]


class RuntimeParts(Protocol):
    """Parts of a runtime that this module uses."""

    pid: int
    connection: Connection


Runtime = TypeVar("Runtime", bound=RuntimeParts)


class Runtimes(Generic[Runtime]):
    """The runtime of a client; it belongs to the process and event loop of its first use."""

    def __init__(self, make: Callable[[], Runtime]) -> None:
        self.closed: bool = False
        self._make = make
        self._runtime: Runtime | None = None

    def check_open(self) -> None:
        """Raise Closed after :meth:`close`."""
        if self.closed:
            raise closed_client()

    def get(self) -> Runtime:
        """Return the runtime; raises Closed in another process or event loop, and after the end."""
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
        """Refuse the runtime from now on; returns this process's, for the caller to close."""
        self.closed = True
        return self.existing()
