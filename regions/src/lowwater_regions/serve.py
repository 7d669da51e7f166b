"""``lowwater global``: the global authority as a process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2_grpc

from lowwater.cli.arguments import CommandParser, parse_duration
from lowwater.core.events import event
from lowwater.v1 import regions_pb2_grpc
from lowwater_authority import serve as local
from lowwater_authority.commands.serve_arguments import add_journal, add_limit, add_listen, add_tls, limits_given
from lowwater_authority.engine.writes import StoreState
from lowwater_authority.ops.metrics import Metrics
from lowwater_authority.ops.resources import FILES, MEMORY, Watch
from lowwater_authority.ops.shard_figures import ProcessCollector
from lowwater_authority.rpc.guard import Guard
from lowwater_authority.rpc.health import HealthServicer
from lowwater_authority.rpc.interceptors import Decoding, Timing
from lowwater_authority.stores.folder import Folder
from lowwater_regions.config import positive_duration
from lowwater_regions.figures import BUILD, ReferenceFigures
from lowwater_regions.registry import Registry
from lowwater_regions.servicer import RegionServicer
from lowwater_server.logging import add_logging

SERVICE: Final = "lowwater.v1.RegionService"

LIMITS: Final = ("streams", "calls_per_second", "message_bytes")
"""Names of the limits that count here. A global authority has neither computations nor key
ranges."""

EXAMPLES: Final = """\
It says which region makes what, and how far that is published for all. It is asked
about once a second by each `lowwater region`, and no record passes through it: while
it is away regions go on, and only what is published for all stands still.

examples:
  lowwater global --data /var/lib/lowwater-global
  lowwater global --store redis://redis:6379 --suspect-after 30s

A second one over the same store takes its place, and ends the first. Two over two
stores are two deployments: regions refuse the one that they do not belong to.
"""

log = logging.getLogger("lowwater_regions")


def parser() -> CommandParser:
    """Return the arguments of ``lowwater global``."""
    parse = CommandParser(
        prog="lowwater global",
        description="Serve as the global authority of several regions: who owns what, and what is complete for all.",
        epilog=EXAMPLES,
    )
    add_journal(
        parse,
        "lowwater-global",
        "global",
        "journal in Redis instead of --data, by the same URLs as for `lowwater serve`; one with a password only in the environment's "
        "LOWWATER_STORE, or in the file LOWWATER_STORE_FILE. A Redis that replicates without waiting may lose what was decided: consensus over three sites is better",
    )
    add_listen(parse, 7430)
    parse.add_argument(
        "--suspect-after",
        metavar="T",
        type=positive_duration,
        default=30.0,
        help="a region that is silent for so long is suspect; nothing moves by that (default: 30s)",
    )
    parse.add_argument(
        "--adopt-again-after",
        metavar="T",
        type=parse_duration,
        default=600.0,
        help="for so long after an adoption, and after the start, nothing is adopted without an operator (default: 10m)",
    )
    add_tls(parse)
    parse.add_argument(
        "--access",
        metavar="FILE",
        type=Path,
        help="who may do what (docs/operate/security.md): regions need their name in `regions`, operators `operate` on all",
    )
    add_limit(parse, LIMITS)
    add_logging(parse)
    parse.set_defaults(peer_ca=None)
    return parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the global authority until it is told to stop. Returns the exit code."""
    return local.run(parser(), argv, serve)


async def serve(args: argparse.Namespace, leaving: ExitStack) -> int:
    """Start everything, run until SIGTERM or SIGINT, or until another one has the store."""
    stopping = local.told_to_stop()
    host, _ = local.address(args.listen, "--listen")
    metrics = Metrics(version("lowwater-regions"), BUILD)
    leaving.enter_context(metrics.counting_log())
    certificates = local.certificates_of(args)
    door = local.door_of(args, host, shared=False, limits=limits_given(args.limit))
    store = local.shared_store(args) if args.store else Folder(args.data)
    registry = Registry(
        local.journal_in(store, args),
        clock=local.clock,
        monotonic=lambda: time.monotonic_ns() // 1000,
        token=lambda: secrets.token_hex(16),
        suspect_after=int(args.suspect_after * 1e6),
        lately=int(args.adopt_again_after * 1e6),
    )
    guards = () if door is None else (Guard.of(door, metrics, lambda _: True, lambda _: False),)
    server = grpc.aio.server(options=local.options_of(door), interceptors=(Decoding(metrics), *guards, Timing(metrics)))
    bound = local.listen_on(server, args, certificates)
    try:
        await registry.open()
        regions_pb2_grpc.add_RegionServiceServicer_to_server(RegionServicer(registry), server)
        health = HealthServicer((SERVICE,))
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        registry.writes.on_change.append(lambda state: health.set_journal(serving=state is StoreState.TAKES))
        metrics.registry.register(ReferenceFigures(registry))
        metrics.registry.register(ProcessCollector(certificates, None if door is None else door.file))
        endpoint = local.endpoint_of(args, certificates, metrics, door, lambda: registry.writes.state)
        await server.start()
        if endpoint is not None:
            endpoint.start()
        print(  # noqa: T201 - what callers wait for
            f"lowwater global: serving on {host}:{bound} (metrics {'off' if endpoint is None else endpoint.metrics})",
            flush=True,
        )
        log.info(
            "the global authority serves on %s:%d",
            host,
            bound,
            extra=event("started", address=f"{host}:{bound}", pid=os.getpid()),
        )
        assert registry.ended is not None
        stop, watching = asyncio.create_task(stopping.wait()), asyncio.create_task(registry.watch())
        following = [] if door is None else [asyncio.create_task(door.watch())]
        resources = [asyncio.create_task(Watch(resource).run()) for resource in (FILES, MEMORY)]
        waiting: list[asyncio.Future[Any]] = [registry.ended, stop, watching, *following]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        code = 0 if stopping.is_set() else local.FAILED
        if registry.ended.done():
            log.error("%s", registry.ended.result(), extra=event("stopped", reason=str(registry.ended.result())))
        for beside in (watching, *following):
            if beside.done() and (failure := beside.exception()) is not None:
                log.error("%s", failure, extra=event("stopped", reason=repr(failure)))
        for task in (stop, watching, *resources, *following):
            task.cancel()
        health.stop()
        await server.stop(local.GRACE_SECONDS)
        if endpoint is not None:
            await asyncio.to_thread(endpoint.close)
    finally:
        await registry.close()
    log.info("stopped", extra=event("stopped"))
    return code
