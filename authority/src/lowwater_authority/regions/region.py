"""``lowwater region``: the agent of a region as a process, and what pipelines ask it over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from lowwater import errors
from lowwater._core.events import event
from lowwater._core.file_settings import FileSettings
from lowwater._core.settings import Settings
from lowwater._drive.tasks.connection import real_channel
from lowwater._pb.lowwater.v1 import regions_pb2 as pb
from lowwater._pb.lowwater.v1 import regions_pb2_grpc
from lowwater._server.logging import FORMATS, set_up
from lowwater.aio import Client
from lowwater.cli.arguments import CommandParser
from lowwater_authority.regions.agent import FATAL, RegionAgent, Told
from lowwater_authority.regions.config import BadConfig, StateFolder, positive_duration, read_config
from lowwater_authority.regions.references import MOST_POSITIONS, MOST_TEXT

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

LOWWATER_TOKEN is for the local authority, LOWWATER_GLOBAL_TOKEN for the global one.
"""

MOST_BODY: Final = 1 << 20

log = logging.getLogger("lowwater_authority")


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
        help="folder of what it was told last; keep it, and share it with no other agent (default: %(default)s)",
    )
    parse.add_argument("--listen", default="127.0.0.1:7440", help="HOST:PORT for pipelines (default: %(default)s)")
    parse.add_argument(
        "--every", metavar="T", type=positive_duration, default=1.0, help="between two reports (default: 1s)"
    )
    parse.add_argument(
        "--ca", default="", metavar="PEM", help="certificates to trust, of both authorities; turns TLS on"
    )
    parse.add_argument("--cert", default="", metavar="PEM", help="this agent's certificates")
    parse.add_argument("--key", default="", metavar="PEM", help="this agent's key")
    parse.add_argument(
        "--log-format", choices=FORMATS, help="how to log to standard error (default: text on a terminal, else json)"
    )
    parse.add_argument("--verbose", action="store_true", help="log more")
    return parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent until it is told to stop, or is refused. Returns the exit code."""
    args = parser().parse_args(argv)
    set_up(args.log_format, verbose=args.verbose)
    try:
        kept = read_config(args.config, args.name)
        folder = StateFolder(args.state, int(time.time()))
        try:
            return asyncio.run(_run(args, kept, folder))
        finally:
            folder.close()
    except (BadConfig, errors.LowwaterError, OSError) as error:
        print(f"lowwater region: {error}", file=sys.stderr)  # noqa: T201 - the answer to a command
        return 2


async def _run(args: argparse.Namespace, kept: list[Any], folder: StateFolder) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    tls = {"ca": args.ca, "certificate": args.cert, "key": args.key}
    own = FileSettings(args.authority, token=os.environ.get("LOWWATER_TOKEN"), timeout=5.0, **tls)
    other_token = os.environ.get("LOWWATER_GLOBAL_TOKEN") or os.environ.get("LOWWATER_TOKEN")
    other: Settings = FileSettings(args.global_address, token=other_token, **tls)
    host, _, port = args.listen.rpartition(":")
    async with Client(own) as local, real_channel(other, other.addresses[0]) as channel:
        agent = RegionAgent(
            args.name,
            kept,
            folder,
            local,
            regions_pb2_grpc.RegionServiceStub(channel),
            where=args.global_address,
            metadata=other.metadata,
            monotonic=time.monotonic,
        )
        runner = web.AppRunner(application(agent), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, host.strip("[]"), int(port))
        await site.start()
        bound = runner.addresses[0][1]
        print(f"lowwater region: serving on {host}:{bound}", flush=True)  # noqa: T201 - what callers wait for
        log.info(
            "region %s: pipelines ask at %s:%d",
            args.name,
            host,
            bound,
            extra=event("started", address=f"{host}:{bound}"),
        )
        asked = asyncio.create_task(stopping.wait())
        try:
            while not stopping.is_set():
                try:
                    await agent.once()
                except FATAL as error:
                    log.error("%s", error, extra=event("stopped", reason=str(error)))
                    raise
                await asyncio.wait([asked], timeout=args.every)
        finally:
            asked.cancel()
            await agent.close()
            await runner.cleanup()
    log.info("stopped", extra=event("stopped"))
    return 0


def application(agent: RegionAgent) -> web.Application:
    """Return what pipelines ask: see lowwater.regions, which asks it."""
    made = web.Application(client_max_size=MOST_BODY)

    async def status(_: web.Request) -> web.Response:
        return web.json_response(agent.status())

    async def token(request: web.Request) -> web.Response:
        reference = request.query.get("reference", "")
        view = await agent.asked(reference) if request.query.get("fresh") else agent.owned(reference)
        told = {
            "number": view.number,
            "reference": view.name,
            "incarnation": view.incarnation,
            "stop": bool(view.moving_to),
        }
        told |= {"published_micros": view.published_micros, "batch": view.batch, "digest": view.digest}
        told |= {"positions": [[each.cluster, each.topic, each.partition, each.offset] for each in view.positions]}
        told |= {"stale_seconds": agent.stale, "linked": agent.linked}
        return web.json_response(told)

    async def committed(request: web.Request) -> web.Response:
        reference, told, _ = await _told(request)
        agent.committed(reference, told)
        return web.json_response({})

    async def arrived(request: web.Request) -> web.Response:
        reference, told, _ = await _told(request)
        agent.arrived(reference, told)
        return web.json_response({})

    async def mirrored(request: web.Request) -> web.Response:
        reference, told, _ = await _told(request)
        agent.mirrors(reference, told.positions)
        return web.json_response({})

    async def raised(request: web.Request) -> web.Response:
        reference, told, body = await _told(request)
        sink, cut = body.get("sink"), body.get("cut", "")
        if not isinstance(sink, str) or not isinstance(cut, str) or len(cut) > MOST_TEXT:
            msg = "the request makes no sense: give sink, and cut, as short texts"
            raise errors.InvalidArgument(msg)
        await agent.raised(reference, told.number, sink, cut)
        return web.json_response({})

    made.add_routes([web.get("/", status), web.get("/token", token), web.post("/committed", committed)])
    made.add_routes([web.post("/arrived", arrived), web.post("/mirrored", mirrored), web.post("/raised", raised)])
    made.middlewares.append(_refusing)
    return made


async def _told(request: web.Request) -> tuple[str, Told, dict[str, Any]]:
    try:
        body = await request.json()
        positions = [
            pb.SourcePosition(cluster=cluster, topic=topic, partition=partition, offset=offset)
            for cluster, topic, partition, offset in body.get("positions", ())
        ]
        told = Told(
            int(body.get("number", 0)),
            int(body.get("batch", -1)),
            str(body.get("digest", "")),
            positions,
            bool(body.get("stopped")),
        )
        # What does not fit would end the reports of all references.
        pb.ReferenceProgress(number=told.number, batch=told.batch, digest=told.digest)
        texts = [told.digest, *(text for place in positions for text in (place.cluster, place.topic))]
        if len(positions) > MOST_POSITIONS or max(map(len, texts)) > MOST_TEXT:
            raise ValueError(f"more than {MOST_POSITIONS} positions, or a text of more than {MOST_TEXT} characters")
        if not isinstance(body["reference"], str):
            raise TypeError("reference is no text")
        return body["reference"], told, body
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        msg = f"the request makes no sense ({error!r})"
        raise errors.InvalidArgument(msg) from None


@web.middleware
async def _refusing(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except errors.LowwaterError as error:
        told = {"reason": error.reason, "message": error.message, "metadata": dict(error.metadata)}
        return web.json_response(told, status=409)
