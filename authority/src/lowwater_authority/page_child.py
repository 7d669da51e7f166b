"""The status page as a child process of the authority, which starts it again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from lowwater.core.events import event
from lowwater_server.sockets import url_of

if TYPE_CHECKING:
    import argparse
    import socket
    from collections.abc import Mapping, Sequence

    from lowwater_authority.access.door import Door
    from lowwater_authority.cluster.peers import PeerSettings

AGAIN_SECONDS: Final = (1.0, 30.0)
"""First and longest wait, in seconds, before a page that has ended is started again. The wait
doubles each time. After a page that lived longer than the longest wait, it is the first again."""

END_SECONDS: Final = 5.0
"""Seconds that the page may take to end, before it is killed."""

PRIVATE: Final = "LOWWATER_"
"""Prefix of the variables that the page must not get: the password of the store, the peers' token.
"""

log = logging.getLogger(__name__)


class PageChild:
    """Runs a page on a socket that listens already, so that a new page has the same address.

    The page gets the socket, and a pipe whose other end only this process has. It ends when the
    pipe closes, which happens even if this process is killed. A failure of the page is a line in
    the log. ``arguments`` are those of ``python -m lowwater_page``. ``encrypted``: they make the
    page speak TLS. ``on_visit``: the page starts only when a browser connects. ``again_seconds``:
    see ``AGAIN_SECONDS``.
    """

    def __init__(
        self,
        listening: socket.socket,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        encrypted: bool,
        on_visit: bool = False,
        again_seconds: tuple[float, float] = AGAIN_SECONDS,
    ) -> None:
        self.url: str = url_of(listening, encrypted=encrypted)
        self._listening = listening
        self._arguments = tuple(arguments)
        self._environment = dict(environment)
        self._on_visit = on_visit
        self._again_seconds = again_seconds

    async def run(self) -> None:
        """Keep a page running until cancelled; the page then ends within ``END_SECONDS``."""
        try:
            first, longest = self._again_seconds
            wait = first
            while True:
                if self._on_visit:
                    await self._visited()
                began = asyncio.get_running_loop().time()
                reason = await self._once()
                if asyncio.get_running_loop().time() - began > longest:
                    wait = first
                log.warning(
                    "the status page's process has ended (%s); another begins in %g s%s",
                    reason,
                    wait,
                    ", once a browser connects" if self._on_visit else "",
                    extra=event("page_ended", reason=reason, again_seconds=wait),
                )
                await asyncio.sleep(wait)
                wait = min(2 * wait, longest)
        finally:
            self._listening.close()

    async def _visited(self) -> None:
        """Wait until a connection waits to be accepted."""
        visited = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listening, visited.set)
        try:
            await visited.wait()
        finally:
            loop.remove_reader(self._listening)

    async def _once(self) -> str:
        """Run one page to its end. Returns why it has ended."""
        handle = self._listening.fileno()
        # Without -P a file in the working folder could hide a module of the page.
        command = [sys.executable, "-P", "-m", "lowwater_page", "--beside", str(handle), *self._arguments]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(handle,),
                env=self._environment,
                # So that Ctrl-C at a terminal reaches this process alone, and the page shows how
                # it stops.
                start_new_session=True,
            )
        except OSError as error:
            return f"it cannot be started: {error.strerror}"
        log.info(
            "the status page is served by process %d",
            process.pid,
            extra=event("page_begun", pid=process.pid, url=self.url),
        )
        try:
            return _ended(await process.wait())
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process, unless it has ended."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()


def _ended(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def arguments_of(args: argparse.Namespace, reach: PeerSettings, server_token: str) -> list[str]:
    """Return the arguments of the page of an authority.

    ``args`` are those of the authority, ``reach`` is how the page reaches it.
    """
    flags: list[tuple[str, Any]] = [
        ("--address", reach.address),
        ("--own", reach.own),
        ("--server-token", server_token),
        ("--tls-cert", args.tls_cert),
        ("--tls-key", args.tls_key),
        ("--log-format", args.log_format),
        ("--page-host", ",".join(filter(None, (args.page_host, args.page or args.http)))),
    ]
    if args.tls_cert is not None:
        flags += [("--ca", args.peer_ca), ("--cert", args.tls_cert), ("--key", args.tls_key)]
    return [f"{flag}={value}" for flag, value in flags if value] + ([] if args.store else ["--alone"])


def environment_of(environment: Mapping[str, str], door: Door | None) -> dict[str, str]:
    """Return the environment of the page: no variables of the authority, but its own token.

    >>> environment_of({"HOME": "/", "LOWWATER_STORE": "redis://:secret@redis"}, None)
    {'HOME': '/'}
    """
    public = {name: value for name, value in environment.items() if not name.startswith(PRIVATE)}
    return public if door is None else {**public, "LOWWATER_TOKEN": door.token}
