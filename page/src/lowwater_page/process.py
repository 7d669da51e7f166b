"""The status page as a process of its own: a client like any other of the authority that it shows.

``lowwater-page --address lowwater:7420`` serves the page and its API, and nothing of an authority.
The token of this process must be allowed to read everything. A viewer needs ``page = true`` in the
access file, which the page asks the authority about.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lowwater
from lowwater import errors
from lowwater.cli.arguments import CommandParser
from lowwater.cli.streams import open_streams
from lowwater.core.file_settings import FileSettings
from lowwater.core.settings import address_of
from lowwater_page.board import Board
from lowwater_page.follower import Follower
from lowwater_page.hosts import Hosts
from lowwater_page.page import Page
from lowwater_page.rights import AskedRights
from lowwater_page.sessions import SignedIn
from lowwater_server.http import HttpServer
from lowwater_server.logging import FORMATS, set_up
from lowwater_server.sockets import listen, url_of
from lowwater_server.tls import BadCertificate, Certificates, Files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import grpc

NICE: Final = 5
"""Niceness of a page beside an authority, which goes first where processors are scarce."""

ASK_SECONDS: Final = 5.0
"""Longest time in seconds for a question of a viewer."""

STOPS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
"""Signals that stop this process."""

FAILED: Final = 2
"""Exit code of a process that could not serve."""


@dataclass(frozen=True, slots=True)
class PageSettings(FileSettings):
    """Settings of the page's clients, including the socket of an authority beside the page."""

    own: str = ""
    """Address of the Unix socket of the authority beside this process; empty: there is none.

    The socket stays on this machine and needs no TLS; see PeerSettings."""

    def credentials_for(self, address: str) -> grpc.ChannelCredentials | None:
        """See Settings."""
        return None if self.own and address == self.own else FileSettings.credentials_for(self, address)


class PageProcess:
    """The page of the authority at the address of ``settings``, until :meth:`close`.

    The page starts whether or not the authority answers.
    """

    def __init__(
        self,
        listening: socket.socket,
        settings: lowwater.Settings,
        certificates: Certificates | None,
        *,
        alone: bool = False,
        hosts: Hosts | None = None,
    ) -> None:
        self.url: str = url_of(listening, encrypted=certificates is not None)
        self.failed = False
        """True when the HTTP server ended by a failure, and not by ``close``."""
        board = Board()
        self._follower = Follower(
            lambda interval: lowwater.Client(replace(settings, watch_interval=interval)),
            board,
            clock=_clock,
            sharded=not alone,
        )
        self._rights = AskedRights(self._follower.client, monotonic=time.monotonic)
        self._http = HttpServer(
            listening,
            [Page(board, self._follower, version=version("lowwater-page"), clock=_clock)],
            certificates=certificates,
            visitors=SignedIn(
                self._rights,
                secure=certificates is not None,
                port=listening.getsockname()[1],
                clock=time.time,
                monotonic=time.monotonic,
                hosts=hosts,
            ),
            on_failed=self._fail,
        )

    def start(self) -> None:
        """Start to follow the deployment and to serve."""
        self._follower.start()
        self._http.start()

    def close(self) -> None:
        """Close everything. Waits for the threads, at most some seconds."""
        self._rights.close()
        self._follower.close()
        self._http.close()

    def _fail(self) -> None:
        """End the process, which serves nothing any more, so that its supervisor starts another."""
        self.failed = True
        os.kill(os.getpid(), signal.SIGTERM)


def parser() -> CommandParser:
    """Return the arguments."""
    parse = CommandParser(
        prog="lowwater-page",
        description="Serve the status page of an authority, as a client of it.",
        epilog='The token that it presents is the environment\'s LOWWATER_TOKEN, or stands in the file LOWWATER_TOKEN_FILE, which may change and wins if both are set. Its principal needs read = ["*"] on the namespace "*".',
    )
    parse.add_argument(
        "--address",
        metavar="HOST:PORT,...",
        help="the authority, or shards of it (default: LOWWATER_ADDRESS or localhost:7420)",
    )
    parse.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="0.0.0.0:7422",
        help="for the page; port 0 picks one (default: %(default)s)",
    )
    parse.add_argument(
        "--page-host",
        metavar="NAME,...",
        default="",
        help="names by which browsers reach the page, as behind a proxy; *.example.org stands for all that end so, * for all (default: its addresses, "
        "localhost, and the names of --listen and of this machine)",
    )
    parse.add_argument("--server-token", default="", metavar="TOKEN", help="the deployment that must answer")
    parse.add_argument("--tls-cert", metavar="PEM", type=Path, help="certificate of the page; turns HTTPS on")
    parse.add_argument("--tls-key", metavar="PEM", type=Path, help="its key, without a passphrase")
    for flag, what in (
        ("ca", "certificates to trust an authority by; turns TLS to it on"),
        ("cert", "certificates to show it, where it wants them"),
        ("key", "their key"),
    ):
        name = f"LOWWATER_{flag.upper()}"
        parse.add_argument(f"--{flag}", metavar="PEM", default="", help=f"{what} (default: {name})")
    # For a page that an authority starts: the socket to serve on, the address of that authority,
    # and whether there can be no other shards. Such a page ends with its standard input.
    parse.add_argument("--beside", type=int, help=argparse.SUPPRESS)
    parse.add_argument("--own", default="", help=argparse.SUPPRESS)
    parse.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parse.add_argument("--log-format", choices=FORMATS, help="as of lowwater serve")
    return parse


def main(argv: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Serve the page until told to stop; returns the exit code."""
    # Every thread inherits the mask, so only this thread receives the signals, by sigwait. A
    # handler would run only when this thread next runs Python code, which may be never.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    open_streams()
    args = parser().parse_args(argv)
    set_up(args.log_format, verbose=False)
    try:
        settings = PageSettings(
            address_of(args.address),
            token=environment.get("LOWWATER_TOKEN") or None,
            token_file=environment.get("LOWWATER_TOKEN_FILE", ""),
            server_token=args.server_token,
            timeout=ASK_SECONDS,
            ca=args.ca or environment.get("LOWWATER_CA", ""),
            certificate=args.cert or environment.get("LOWWATER_CERT", ""),
            key=args.key or environment.get("LOWWATER_KEY", ""),
            own=args.own,
        ).read()
        files = Files.of(args.tls_cert, args.tls_key, None, None)
        certificates = None if files is None else Certificates(files)
        listening = _listen(args.listen) if args.beside is None else socket.socket(fileno=args.beside)
    except (errors.LowwaterError, BadCertificate, ValueError, OSError) as error:
        print(f"the status page: {error}", file=sys.stderr)  # noqa: T201 - the answer to a command
        return FAILED
    if args.beside is not None:
        os.nice(NICE)
        threading.Thread(target=_end_with_input, daemon=True).start()
    names = [name for name in (*args.page_host.split(","), args.listen) if name.strip()]
    hosts = Hosts(names)
    hosts.look_up_machine()
    page = PageProcess(listening, settings, certificates, alone=args.alone, hosts=hosts)
    page.start()
    print(f"lowwater: page {page.url}", flush=True)  # noqa: T201 - what callers wait for
    signal.sigwait(STOPS)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)  # a second signal ends the process at once
    page.close()
    return FAILED if page.failed else 0


def _listen(place: str) -> socket.socket:
    """Return a listening socket. Raises ValueError, OSError."""
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"--listen takes HOST:PORT, for example 127.0.0.1:7422, not {place!r}")
    return listen(host, int(port))


def _end_with_input() -> None:
    """End this process when the authority at the other end of standard input has ended.

    The process ends at once: it has nothing to save, and the next authority may want the same port
    within the second.
    """
    while os.read(0, 1024):
        pass
    os._exit(0)


def _clock() -> int:
    return time.time_ns() // 1000
