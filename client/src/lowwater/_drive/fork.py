"""What a client does when its process forks."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import grpc

__all__ = ["Forked", "keep", "register"]


class Forked:
    """Something that has to know of forks."""

    def before_fork(self) -> None:
        """Begin nothing new with gRPC. Must not wait."""

    def await_quiet(self) -> None:
        """Wait until nothing is open.

        Called when all instances have had their :meth:`before_fork`.
        """

    def after_fork_in_parent(self) -> None:
        """Go on; once for each :meth:`before_fork`."""

    def after_fork_in_child(self) -> None:
        """Forget what belongs to the parent, which may have held any lock when this process began."""


_instances: weakref.WeakSet[Any] = weakref.WeakSet()

_forking: dict[int, list[Any]] = {}
"""By thread that forks at this moment: the instances that begin nothing until it has."""

_lock = threading.RLock()

_inherited: list[Any] = []

_anchors: list[Any] = []

_hooked = False


def keep(instance: object) -> None:
    """Never free something of the parent process: a channel's sockets are shared with it, and closing them here disturbs it."""
    _inherited.append(instance)


def anchor() -> None:
    """Keep gRPC initialised for as long as the process lives.

    Without any channel gRPC shuts itself down, on a thread of its own; in a child that is forked
    meanwhile, making a channel waits for that thread for ever. A channel that is never used has no
    threads, timers or sockets.
    """
    if not _anchors:
        _anchors.append(grpc.insecure_channel("localhost:0"))


def register(instance: Forked) -> None:
    """Tell an instance of forks, as long as it lives.

    The hook is set with the first client, not by the import.
    """
    global _hooked
    with _lock:
        _instances.add(instance)
        for told in _forking.values():  # by another thread, just now
            instance.before_fork()
            told.append(instance)
    if not _hooked:
        _hooked = True
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
        )


def _before_fork() -> None:
    with _lock:
        told = _forking[threading.get_ident()] = list(_instances)
        for instance in told:
            instance.before_fork()
    for instance in tuple(told):
        instance.await_quiet()


def _after_fork_in_parent() -> None:
    with _lock:
        for instance in _forking.pop(threading.get_ident(), ()):
            instance.after_fork_in_parent()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    _forking.clear()
    for instance in list(_instances):
        instance.after_fork_in_child()
