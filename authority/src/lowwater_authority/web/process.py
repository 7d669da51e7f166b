"""The status page as a process of its own: a client like any other of the authority that it shows.

``python -m lowwater_authority.web --address lowwater:7420`` serves the page and its API, and nothing of an authority. What it presents to the
authority has to be allowed to read everything; who looks needs ``page = true`` in the access file, of which the authority tells.
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
from lowwater._core.file_settings import FileSettings
from lowwater._core.settings import address_of
from lowwater.cli.arguments import CommandParser
from lowwater_authority.access.tls import BadCertificate, Certificates, Files
from lowwater_authority.ops.logging import FORMATS, set_up
from lowwater_authority.web.board import Board
from lowwater_authority.web.follower import Follower
from lowwater_authority.web.http import HttpServer, listen, url_of
from lowwater_authority.web.rights import AskedRights
from lowwater_authority.web.visitors import KnownVisitors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import grpc

NICE: Final = 5
"""By how much a page beside an authority gives way to it, where processors are scarce."""

ASK_SECONDS: Final = 5.0
"""How long a question of a viewer may take."""

FAILED: Final = 2
"""Exit code of a process that could not serve."""


@dataclass(frozen=True, slots=True)
class PageSettings(FileSettings):
    """How the page reaches shards, and the authority beside it, if there is one."""

    own: str = ""
    """The socket of the authority beside this process, which never leaves the machine and needs no TLS; see PeerSettings."""

    def credentials_for(self, address: str) -> grpc.ChannelCredentials | None:
        """See Settings."""
        return None if self.own and address == self.own else FileSettings.credentials_for(self, address)


class PageProcess:
    """The page of the authority that some settings lead to, until :meth:`close`. It begins whether or not the authority is there."""

    def __init__(
        self, listening: socket.socket, settings: lowwater.Settings, certificates: Certificates | None
    ) -> None:
        self.url: str = url_of(listening, encrypted=certificates is not None)
        board = Board()
        self._follower = Follower(
            lambda interval: lowwater.Client(replace(settings, watch_interval=interval)), board, clock=_clock
        )
        self._rights = AskedRights(self._follower.client, monotonic=time.monotonic)
        self._http = HttpServer(
            listening,
            board,
            self._follower,
            expose=None,
            version=version("lowwater-authority"),
            clock=_clock,
            certificates=certificates,
            visitors=KnownVisitors(
                self._rights,
                secure=certificates is not None,
                port=listening.getsockname()[1],
                clock=time.time,
                monotonic=time.monotonic,
            ),
        )

    def start(self) -> None:
        """Begin to follow and to serve."""
        self._follower.start()
        self._http.start()

    def close(self) -> None:
        """End what is open. Waits for the threads, at most some seconds."""
        self._rights.close()
        self._follower.close()
        self._http.close()


def parser() -> CommandParser:
    """Return the arguments."""
    parse = CommandParser(
        prog="python -m lowwater_authority.web",
        description="Serve the status page of an authority elsewhere.",
        epilog='The token that it presents is the environment\'s LOWWATER_TOKEN. Its principal needs read = ["*"] on the namespace "*".',
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
    # Of a page that an authority has started: the socket to serve on; it ends with its standard input.
    parse.add_argument("--beside", type=int, help=argparse.SUPPRESS)
    parse.add_argument("--own", default="", help=argparse.SUPPRESS)
    parse.add_argument("--log-format", choices=FORMATS, help="as of lowwater serve")
    return parse


def main(argv: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Serve the page until told to stop; returns the exit code."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    args = parser().parse_args(argv)
    set_up(args.log_format, verbose=False)
    try:
        settings = PageSettings(
            address_of(args.address),
            token=environment.get("LOWWATER_TOKEN") or None,
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
        threading.Thread(target=_until_end_of_input, args=(stopping,), daemon=True).start()
    page = PageProcess(listening, settings, certificates)
    page.start()
    print(f"lowwater: page {page.url}", flush=True)  # noqa: T201 - what callers wait for
    stopping.wait()
    page.close()
    return 0


def _listen(place: str) -> socket.socket:
    """Return a listening socket. Raises ValueError, OSError."""
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        msg = f"--listen takes HOST:PORT, for example 127.0.0.1:7422, not {place!r}"
        raise ValueError(msg)
    return listen(host, int(port))


def _until_end_of_input(stopping: threading.Event) -> None:
    """Stop when whoever holds the other end of standard input has gone."""
    while os.read(0, 1024):
        pass
    stopping.set()


def _clock() -> int:
    return time.time_ns() // 1000
