"""The authority of a driver without an address: a child process that all its sessions share."""

from __future__ import annotations

import importlib.util
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowwater_authority.embedded import EmbeddedAuthority

__all__ = ["acquire", "release"]

_lock = threading.Lock()
_running: dict[str, EmbeddedAuthority] = {}
"""Authorities by folder; all sessions of a process share the one over a temporary folder."""
_users: Counter[EmbeddedAuthority] = Counter()
"""Number of users of each."""


def _key(data: Path | None) -> str:
    return "" if data is None else str(data.resolve())


def acquire(data: Path | None) -> EmbeddedAuthority:
    """Return the authority over a folder, None for a temporary one; start it if needed.

    Call :func:`release` when done. Raises ModuleNotFoundError when the authority is not installed,
    RuntimeError when it does not start.
    """
    if importlib.util.find_spec("lowwater_authority") is None:
        msg = (
            "attach() without an address starts an authority of its own, and lowwater-authority is not installed: "
            "'pip install dist/packages/*.whl', with the folder that 'make dist' leaves in a checkout of "
            "lowwater. Or pass the address of an authority."
        )
        raise ModuleNotFoundError(msg, name="lowwater_authority")
    from lowwater_authority.embedded import EmbeddedAuthority

    with _lock:
        authority = _running.get(_key(data))
        if authority is None or authority.ended:
            try:
                page = importlib.util.find_spec("lowwater_page") is not None
                authority = _running[_key(data)] = EmbeddedAuthority(data, page=page)
            except RuntimeError as error:
                msg = f"{error}\nName another folder, or the address of an authority."
                raise RuntimeError(msg) from None
        _users[authority] += 1
        return authority


def release(authority: EmbeddedAuthority) -> None:
    """Stop an authority after its last user. Waits some seconds at most."""
    with _lock:
        _users[authority] -= 1
        if _users[authority]:
            return
        del _users[authority]
        # If the process of this authority had died, acquire() may have started another one over the
        # same folder, which must stay in _running: otherwise the next acquire() would start a third
        # one, over a folder that is in use.
        for key in [key for key, running in _running.items() if running is authority]:
            del _running[key]
    authority.stop()
