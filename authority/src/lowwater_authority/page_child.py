"""The status page as a child of the authority: a process of its own that begins with it, ends with it, and is begun anew when it ends by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from lowwater.core.events import event
from lowwater_server.http import url_of

if TYPE_CHECKING:
    import argparse
    import socket
    from collections.abc import Mapping, Sequence

    from lowwater_authority.access.door import Door
    from lowwater_authority.cluster.peers import PeerSettings

AGAIN_SECONDS: Final = (1.0, 30.0)
"""First and longest wait before a page that has ended by itself begins anew; one that lived for the
second begins with the first again."""

END_SECONDS: Final = 5.0
"""How long it may take to end."""

PRIVATE: Final = "LOWWATER_"
"""What the names of variables begin with that are this process's own: its store's password, its
peers' token."""

log = logging.getLogger(__name__)


class PageChild:
    """Runs a page on a socket that listens already, so that it is found at the same place when it is begun anew.

    It gets the socket, and a pipe whose other end only this process holds: it ends when that closes, as it does even with a kill -9. What
    fails in it is a line in the log, and nobody waits for it. ``arguments`` are those of ``python -m lowwater_page``;
    ``encrypted``: whether they have it speak TLS. ``again_seconds``: see ``AGAIN_SECONDS``.
    """

    def __init__(
        self,
        listening: socket.socket,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        encrypted: bool,
        again_seconds: tuple[float, float] = AGAIN_SECONDS,
    ) -> None:
        self.url: str = url_of(listening, encrypted=encrypted)
        self._listening = listening
        self._arguments = tuple(arguments)
        self._environment = dict(environment)
        self._again_seconds = again_seconds

    async def run(self) -> None:
        """Keep a page running, until cancelled; then it ends, within ``END_SECONDS``."""
        try:
            first, longest = self._again_seconds
            wait = first
            while True:
                began = asyncio.get_running_loop().time()
                reason = await self._once()
                if asyncio.get_running_loop().time() - began > longest:
                    wait = first
                log.warning(
                    "the status page's process has ended (%s); another begins in %g s",
                    reason,
                    wait,
                    extra=event("page_ended", reason=reason, again_seconds=wait),
                )
                await asyncio.sleep(wait)
                wait = min(2 * wait, longest)
        finally:
            self._listening.close()

    async def _once(self) -> str:
        """Run one page to its end; returns how that was."""
        handle = self._listening.fileno()
        # -P: else a file in the working folder that is called as a module of the page's would be
        # run instead of that.
        command = [sys.executable, "-P", "-m", "lowwater_page", "--beside", str(handle), *self._arguments]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(handle,),
                env=self._environment,
                # A Ctrl-C at a terminal is this process's to take: the page shows on while it
                # stops.
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
    """Have a process end, if it has not."""
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
    """Return the arguments of the page beside an authority with ``args``, which ``reach`` leads to."""
    given: list[tuple[str, Any]] = [
        ("--address", reach.address),
        ("--own", reach.own),
        ("--server-token", server_token),
        ("--tls-cert", args.tls_cert),
        ("--tls-key", args.tls_key),
        ("--log-format", args.log_format),
        ("--page-host", ",".join(filter(None, (args.page_host, args.page or args.http)))),
    ]
    if args.tls_cert is not None:
        given += [("--ca", args.peer_ca), ("--cert", args.tls_cert), ("--key", args.tls_key)]
    return [f"{flag}={value}" for flag, value in given if value] + ([] if args.store else ["--alone"])


def environment_of(environment: Mapping[str, str], door: Door | None) -> dict[str, str]:
    """Return the variables of the page beside an authority: nothing of what is the authority's, but for what it presents to itself.

    >>> environment_of({"HOME": "/", "LOWWATER_STORE": "redis://:secret@redis"}, None)
    {'HOME': '/'}
    """
    kept = {name: value for name, value in environment.items() if not name.startswith(PRIVATE)}
    return kept if door is None else {**kept, "LOWWATER_TOKEN": door.token}
