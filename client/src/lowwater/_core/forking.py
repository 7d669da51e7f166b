"""What a forked child does with what it inherits."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

__all__ = ["Forked", "keep", "register"]


class Forked(Protocol):
    """Something that has to know of forks."""

    def after_fork_in_child(self) -> None:
        """Forget what belongs to the parent, which may have held any lock when this process began."""


_instances: weakref.WeakSet[Any] = weakref.WeakSet()

_inherited: list[Any] = []

_hooked = False


def keep(instance: object) -> None:
    """Never free something of the parent process: a channel's sockets are shared with it, and closing them here disturbs it."""
    _inherited.append(instance)


def register(instance: Forked) -> None:
    """Tell an instance in forked children, as long as it lives. The hook is set with the first client, not by the import."""
    global _hooked
    _instances.add(instance)
    if not _hooked:
        _hooked = True
        os.register_at_fork(after_in_child=_after_fork_in_child)


def _after_fork_in_child() -> None:
    for instance in list(_instances):
        instance.after_fork_in_child()
