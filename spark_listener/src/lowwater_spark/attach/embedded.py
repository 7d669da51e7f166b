"""The authority of a driver without an address: a child process that all its sessions share."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

__all__ = ["Embedded", "acquire"]


class Embedded:
    """A running authority over a folder of its own, and the number of its users."""

    def __init__(self, data: Path | None) -> None:
        from lowwater_authority.embedded import EmbeddedAuthority

        self._authority = EmbeddedAuthority(data, page=importlib.util.find_spec("lowwater_page") is not None)
        self._users = 0
        self.address: str = self._authority.address
        self.data: Path = self._authority.data
        self.page: str = self._authority.page_url
        """URL of its status page; empty when lowwater-page is not installed."""
        self.process: subprocess.Popen[str] = self._authority.process

    @property
    def ended(self) -> bool:
        """True when the process is gone, though it is still used."""
        return self._authority.ended

    def use(self) -> None:
        """Add a user."""
        self._users += 1

    def release(self) -> None:
        """Remove a user, and stop after the last one. Waits some seconds at most."""
        with _lock:
            self._users -= 1
            if self._users:
                return
            key = _key(None if self._authority.temporary else self.data)
            # If the process of this authority had died, acquire() may have started another one over
            # the same folder, which must stay in _running.
            if _running.get(key) is self:
                del _running[key]
        self._authority.stop()


_lock = threading.Lock()
_running: dict[str, Embedded] = {}
"""Authorities by folder; all sessions of a process share the one over a temporary folder."""


def _key(data: Path | None) -> str:
    return "" if data is None else str(data.resolve())


def acquire(data: Path | None) -> Embedded:
    """Return the authority over a folder, None for a temporary one; start it if needed.

    Call ``release`` when done. Raises ModuleNotFoundError when the authority is not installed,
    RuntimeError when it does not start.
    """
    if importlib.util.find_spec("lowwater_authority") is None:
        msg = (
            "attach() without an address starts an authority of its own, and lowwater-authority is not installed: "
            "'pip install dist/packages/*.whl', with the folder that 'make dist' leaves in a checkout of "
            "lowwater. Or pass the address of an authority."
        )
        raise ModuleNotFoundError(msg, name="lowwater_authority")
    with _lock:
        embedded = _running.get(_key(data))
        if embedded is None or embedded.ended:
            try:
                embedded = _running[_key(data)] = Embedded(data)
            except RuntimeError as error:
                msg = f"{error}\nName another folder, or the address of an authority."
                raise RuntimeError(msg) from None
        embedded.use()
        return embedded
