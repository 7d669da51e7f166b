"""The names by which browsers may reach the page.

Any site can let its own name lead to the address of this page, once its script runs in a browser
that reaches the page ("DNS rebinding"). To that browser both are one site. So the script reads the
page with the rights of its viewer. Only the Host header tells: it has the name of that site.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["EVERY_NAME", "Hosts"]

EVERY_NAME: Final = "*"
"""Pattern for any name: something before the page checks it."""


class Hosts:
    """The names of a page: ``localhost``, this machine's own, and ``names``.

    Among these ``*.example.org`` stands for all names that end so. Ports do not count. Any address
    is taken: no site can have an address that is not its own.
    """

    def __init__(self, names: Iterable[str] = (), machine: str | None = None) -> None:
        own = socket.gethostname() if machine is None else machine
        self._names = frozenset(map(_plain, ("localhost", "*.localhost", own, own.partition(".")[0], *names)))

    def look_up_machine(self) -> None:
        """Also take the machine's full name, as soon as the name service tells it.

        That may take many seconds. Only the thread that this method starts waits for it, so the
        page starts at once.
        """

        def add() -> None:
            with contextlib.suppress(UnicodeError):  # the name is none that the name service can look up
                self._names |= {_plain(socket.getfqdn())}

        threading.Thread(target=add, name="lowwater-machine-name", daemon=True).start()

    def take(self, headers: Sequence[str]) -> bool:
        """Return whether a request with these Host headers may be answered.

        A request without the header comes from no browser.
        """
        return all(map(self._takes, headers)) and len(headers) <= 1

    def _takes(self, header: str) -> bool:
        name = _plain(header)
        labels = name.split(".")
        patterns = {f"*.{'.'.join(labels[first:])}" for first in range(1, len(labels))}
        return not self._names.isdisjoint({name, EVERY_NAME} | patterns) or _is_address(name)


def _plain(host: str) -> str:
    """Return a host without its port, its brackets and the dot of the root.

    >>> _plain("Lowwater.Example.org.:7422"), _plain("[::1]:7422"), _plain("::1")
    ('lowwater.example.org', '::1', '::1')
    """
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, _, port = host.rpartition(":")
    return (name if name and ":" not in name and (port.isdecimal() or not port) else host).rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
