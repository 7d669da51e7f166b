"""Hooks for the moment when the process of a client forks."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import grpc

__all__ = ["Forked", "keep", "register"]


class Forked:
    """An object that prepares for a fork of its process."""

    def before_fork(self) -> None:
        """Begin no call of gRPC from now on. Must not wait."""

    def await_quiet(self) -> None:
        """Wait until no call is open. Called after :meth:`before_fork` of all instances."""

    def after_fork_in_parent(self) -> None:
        """Go on. Called once for each :meth:`before_fork`."""

    def after_fork_in_child(self) -> None:
        """Forget the parent's objects, any of whose locks may have been held at the fork."""


_instances: weakref.WeakSet[Any] = weakref.WeakSet()

_forking: dict[int, list[Any]] = {}
"""Instances that are paused, by the thread that is forking now."""

_lock = threading.RLock()

_inherited: list[Any] = []

_anchors: list[Any] = []

_hooked = False


def keep(instance: object) -> None:
    """Keep an object of the parent alive: closing its channels here would disturb the parent."""
    _inherited.append(instance)


def anchor() -> None:
    """Keep gRPC initialised for as long as the process lives.

    Without any channel gRPC shuts itself down, on a thread of its own. In a child that is forked at
    that moment, opening a channel waits for that thread for ever. A channel that is never used has
    no threads, timers or sockets.
    """
    if not _anchors:
        _anchors.append(grpc.insecure_channel("localhost:0"))


def register(instance: Forked) -> None:
    """Call an instance at forks while it lives. The first call sets the hook, no import does."""
    global _hooked
    with _lock:
        _instances.add(instance)
        for paused in _forking.values():  # another thread is forking now
            instance.before_fork()
            paused.append(instance)
    if not _hooked:
        _hooked = True
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
        )


def _before_fork() -> None:
    with _lock:
        paused = _forking[threading.get_ident()] = list(_instances)
        for instance in paused:
            instance.before_fork()
    for instance in tuple(paused):
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
