"""What a client has in one process: a connection and two threads. Children of a fork make their own."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from lowwater._sync.connection import Connection, Settings
from lowwater._sync.reporter import Reporter
from lowwater._sync.watcher import Watcher

__all__ = ["PerProcess", "Runtime"]


class Runtime:
    """One process's connection, watcher and reporter. Nothing in it is started before it is used."""

    def __init__(self, settings: Settings) -> None:
        self.pid = os.getpid()
        self.connection = Connection(settings)
        self.watcher = Watcher(self.connection)
        self.reporter = Reporter(self.connection, self.watcher)

    def close(self) -> None:
        """End the threads and close the channel."""
        self.connection.closed.set()
        self.watcher.stop()
        self.reporter.stop()
        self.connection.close()


class PerProcess:
    """The runtime of a client in whichever process asks for it.

    gRPC's channels and threads do not live on in a forked child, and closing them there would disturb the parent: the child
    forgets them, without closing or even freeing, and makes new ones at its first use.
    """

    def __init__(self, make: Callable[[], Runtime]) -> None:
        self._make = make
        self._runtime: Runtime | None = None
        self._lock = threading.Lock()
        _register(self)

    def get(self) -> Runtime:
        """Return this process's runtime."""
        runtime = self._runtime
        if runtime is not None and runtime.pid == os.getpid():
            return runtime
        with self._lock:
            if self._runtime is None or self._runtime.pid != os.getpid():
                _inherited.append(self._runtime)
                self._runtime = self._make()
            return self._runtime

    def existing(self) -> Runtime | None:
        """Return this process's runtime if it was made."""
        runtime = self._runtime
        return runtime if runtime is not None and runtime.pid == os.getpid() else None

    def after_fork_in_child(self) -> None:
        """Forget what belongs to the parent. Its threads may have held the lock when they ceased to exist."""
        self._lock = threading.Lock()
        _inherited.append(self._runtime)
        self._runtime = None


_inherited: list[Any] = []
"""Runtimes of the parent process, kept so that nothing of them is ever freed, and so closed, here."""

_instances: weakref.WeakSet[PerProcess] = weakref.WeakSet()
_hooked = False


def _register(instance: PerProcess) -> None:
    """Have forked children forget the instance. The hook is set with the first client, not by the import."""
    global _hooked
    _instances.add(instance)
    if not _hooked:
        _hooked = True
        os.register_at_fork(after_in_child=_after_fork_in_child)


def _after_fork_in_child() -> None:
    for instance in list(_instances):
        instance.after_fork_in_child()
