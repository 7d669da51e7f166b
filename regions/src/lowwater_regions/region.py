"""``lowwater region``: the agent of a region as a process, and what pipelines ask it over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lowwater import errors
from lowwater.aio import Client
from lowwater.cli.arguments import CommandParser
from lowwater.core.channels import open_aio_channel
from lowwater.core.events import event
from lowwater.core.file_settings import FileSettings
from lowwater.core.settings import is_loopback
from lowwater.v1 import regions_pb2_grpc
from lowwater_authority.files.secret import GLOBAL_TOKEN, OWN_TOKEN, secret, token_settings
from lowwater_authority.files.table import BadFile
from lowwater_regions.agent import FATAL, RegionAgent
from lowwater_regions.config import BadConfig, ReferenceConfig, StateFolder, positive_duration, read_config
from lowwater_regions.questions import Pipelines, Questions
from lowwater_server.http import HttpServer
from lowwater_server.logging import add_logging, set_up
from lowwater_server.sockets import listen, listen_at
from lowwater_server.tls import BadCertificate, Certificates, Files
from lowwater_server.tokens import LEAST_TOKEN, warn_in_clear

EXAMPLES: Final = """\
examples:
  lowwater region --name eu --authority localhost:7420 --global global:7430 --config region.toml

FILE has a table for each computation that several regions share:

  [[reference]]
  computation = "hourly"        # its global name; L is read from it here
  inputs = ["clicks"]           # the home inputs that it needs
  regions = ["eu", "us"]        # who may own it
  home = "eu"                   # who does at first
  replicated = "mirror-clicks"  # the mirror here, whose low watermark is R
  policy = "replicated"         # or "local": publish L, and break visibly
  [[reference.sinks]]
  name = "lake"
  fences = true                 # it compares the number in the write itself

The global watermark of hourly is published here as global/hourly. Pipelines ask
--listen before each commit by which number they may (lowwater.regions.Token).

LOWWATER_REGION_TOKEN is what pipelines have to present, 32 characters at least: see
`lowwater access token`. Several, with commas between, are all taken.
LOWWATER_TOKEN is for the local authority, LOWWATER_GLOBAL_TOKEN for the global one.
NAME_FILE of each names a file with the value, and wins. The agent reads its own two for every call,
and the one for pipelines at its start.
"""

TOKENS: Final = "LOWWATER_REGION_TOKEN"

UNIX: Final = "unix:"

log = logging.getLogger("lowwater_regions")


def parser() -> CommandParser:
    """Return the arguments of ``lowwater region``."""
    parse = CommandParser(
        prog="lowwater region",
        description="Speak for a region: report its progress, hand out adoption numbers, and relay global watermarks.",
        epilog=EXAMPLES,
    )
    parse.add_argument("--name", required=True, help="of the region, the same as in every region's file")
    parse.add_argument("--authority", metavar="HOST:PORT", required=True, help="the local authority")
    parse.add_argument(
        "--global", dest="global_address", metavar="HOST:PORT", required=True, help="the global authority"
    )
    parse.add_argument("--config", metavar="FILE", type=Path, required=True, help="the references of the region (TOML)")
    parse.add_argument(
        "--state",
        type=Path,
        default=Path("lowwater-region"),
        help="folder with the agent's state; keep it, and share it with no other agent (default: %(default)s)",
    )
    parse.add_argument(
        "--listen",
        default="127.0.0.1:7440",
        metavar="PLACE",
        help=f"HOST:PORT for pipelines, or unix:PATH for those of this user (default: %(default)s). What other machines reach needs {TOKENS}",
    )
    parse.add_argument("--tls-cert", metavar="PEM", type=Path, help="certificate to show pipelines; turns HTTPS on")
    parse.add_argument("--tls-key", metavar="PEM", type=Path, help="its key, without a passphrase")
    parse.add_argument(
        "--every", metavar="T", type=positive_duration, default=1.0, help="between two reports (default: 1s)"
    )
    parse.add_argument(
        "--ca", default="", metavar="PEM", help="certificates to trust, of both authorities; turns TLS on"
    )
    parse.add_argument("--cert", default="", metavar="PEM", help="this agent's certificates")
    parse.add_argument("--key", default="", metavar="PEM", help="this agent's key")
    add_logging(parse)
    return parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent until it is told to stop, or is refused. Returns the exit code."""
    args = parser().parse_args(argv)
    set_up(args.log_format, verbose=args.verbose)
    try:
        references = read_config(args.config, args.name)
        folder = StateFolder(args.state, int(time.time()))
        try:
            return asyncio.run(_run(args, references, folder, open_door(args)))
        finally:
            folder.close()
    except (BadConfig, BadFile, BadCertificate, HttpFailed, errors.LowwaterError, OSError) as error:
        print(f"lowwater region: {error}", file=sys.stderr)  # noqa: T201 - the answer to a command
        return 2


class HttpFailed(Exception):
    """The server for pipelines has ended by itself; the log says why."""


class _Door(NamedTuple):
    """The listening server for pipelines, and its tokens and certificates."""

    listening: socket.socket
    place: str
    """Address for people and for LOWWATER_REGION."""
    tokens: tuple[str, ...]
    certificates: Certificates | None


def open_door(args: argparse.Namespace) -> _Door:
    """Listen for pipelines.

    Raises BadConfig where other machines would need no token, BadFile, BadCertificate and OSError.
    """
    tokens = tuple(filter(None, map(str.strip, secret(TOKENS, os.environ).split(","))))
    if any(len(token) < LEAST_TOKEN for token in tokens):
        msg = (
            f"{TOKENS}, or the file that {TOKENS}_FILE names, has a token of less than {LEAST_TOKEN} characters: "
            "take one that `lowwater access token` prints"
        )
        raise BadConfig(msg)
    files = Files.of(args.tls_cert, args.tls_key, None, None)
    certificates = None if files is None else Certificates(files)
    if args.listen.startswith(UNIX):
        if certificates is not None:
            raise BadConfig("--tls-cert is of no use with --listen unix:PATH: leave one of the two out")
        return _Door(listen_at(args.listen.removeprefix(UNIX)), args.listen, tokens, None)
    host, _, port = args.listen.rpartition(":")
    if not host or not port.isdecimal():
        raise BadConfig(f"--listen takes HOST:PORT or unix:PATH, for example 127.0.0.1:7440, not {args.listen!r}")
    if not tokens and not is_loopback(host):
        msg = (
            f"other machines can reach --listen {args.listen}, and the agent would believe the "
            f"commits that they report: set {TOKENS} to what `lowwater access token` prints, or {TOKENS}_FILE to a file "
            "with it, here and for pipelines, or listen on 127.0.0.1 or unix:PATH"
        )
        raise BadConfig(msg)
    if certificates is None and not is_loopback(host):
        warn_in_clear(args.listen)
    listening = listen(host, int(port))
    place = f"{host}:{listening.getsockname()[1]}"
    return _Door(listening, place if certificates is None else f"https://{place}", tokens, certificates)


async def _run(args: argparse.Namespace, references: list[ReferenceConfig], folder: StateFolder, door: _Door) -> int:
    stopping, http_failed = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)

    def stop_failed() -> None:
        http_failed.set()
        stopping.set()

    def on_http_failed() -> None:
        """Stop the agent's loop. The server calls this in its own thread."""
        loop.call_soon_threadsafe(stop_failed)

    tls = {"ca": args.ca, "certificate": args.cert, "key": args.key}
    own = FileSettings(args.authority, timeout=5.0, **tls, **token_settings(OWN_TOKEN, os.environ)).read()
    other = FileSettings(args.global_address, **tls, **token_settings(GLOBAL_TOKEN, os.environ)).read()
    async with Client(own) as local, open_aio_channel(other, other.addresses[0]) as channel:
        agent = RegionAgent(
            args.name,
            references,
            folder,
            local,
            regions_pb2_grpc.RegionServiceStub(channel),
            where=args.global_address,
            metadata=lambda: other.metadata,
            monotonic=time.monotonic,
        )
        http = HttpServer(
            door.listening,
            [Questions(agent, args.every)],
            certificates=door.certificates,
            visitors=Pipelines(door.tokens, monotonic=time.monotonic),
            on_failed=on_http_failed,
        )
        http.start()
        print(f"lowwater region: serving on {door.place}", flush=True)  # noqa: T201 - what callers wait for
        log.info("region %s: pipelines ask at %s", args.name, door.place, extra=event("started", address=door.place))
        stop = asyncio.create_task(stopping.wait())
        try:
            while not stopping.is_set():
                try:
                    await agent.once()
                except FATAL as error:
                    log.error("%s", error, extra=event("stopped", reason=str(error)))
                    raise
                await asyncio.wait([stop], timeout=args.every)
            if http_failed.is_set():
                msg = f"the server at {door.place} has failed, so no pipeline can ask: start the agent again"
                log.error("%s", msg, extra=event("stopped", reason=msg))
                raise HttpFailed(msg)
        finally:
            stop.cancel()
            await agent.close()
            await asyncio.to_thread(http.close)
    log.info("stopped", extra=event("stopped"))
    return 0
