"""The process of ``lowwater serve``: one authority, from its arguments to its exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health_pb2_grpc

from lowwater.aio import Client
from lowwater.core.events import event
from lowwater.core.settings import is_loopback
from lowwater.core.text import counted
from lowwater_authority.access.door import Door, open_door
from lowwater_authority.access.policy import DEFAULT_LIMITS
from lowwater_authority.authority import Authority
from lowwater_authority.cluster.cluster import Cluster, Replaced
from lowwater_authority.cluster.lifelines import Lifelines
from lowwater_authority.cluster.membership import Member
from lowwater_authority.cluster.pace import Pace
from lowwater_authority.cluster.peers import Peers, PeerSettings
from lowwater_authority.commands.serve_arguments import limits_given, parser, refuse_password
from lowwater_authority.engine.writes import StoreState
from lowwater_authority.files.secret import secret
from lowwater_authority.files.table import BadFile
from lowwater_authority.journal import JournalError, JournalFailed, JournalUnknown
from lowwater_authority.ops.metrics import Metrics
from lowwater_authority.ops.otlp import begin as begin_pushes
from lowwater_authority.ops.resources import FILES, MEMORY, Watch
from lowwater_authority.ops.traces import begin as begin_traces
from lowwater_authority.page_child import PageChild, arguments_of, environment_of
from lowwater_authority.promises import PromiseFile
from lowwater_authority.rpc.guard import Guard, paced_by_host
from lowwater_authority.rpc.health import HealthServicer
from lowwater_authority.rpc.interceptors import Decoding, Timing
from lowwater_authority.stores.folder import Folder
from lowwater_authority.stores.store import store_at
from lowwater_server.logging import set_up
from lowwater_server.sockets import listen
from lowwater_server.tls import BadCertificate, Certificates, Files

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine, Sequence

    from lowwater_authority.access.policy import Limits
    from lowwater_authority.core.topology import Topology
    from lowwater_authority.journal import Journal
    from lowwater_authority.ops.endpoint import Endpoint
    from lowwater_authority.stores.store import SharedStore, Store

MESSAGE_BYTES: Final = 64 << 20
"""Bytes of the largest message: a claim or a full report of more than a million ranges."""

CONNECTION_CALLS: Final = 1000
"""Most calls and streams of one connection at once. In gRPC all clients of a process that call one
address share a connection."""

PENDING_CALLS: Final = 16_384
"""Most calls that wait for the event loop, of all connections: twice the report streams that one
process takes. Each takes up to 16 KB, so all take some 260 MB."""

OPTIONS: Final[Sequence[tuple[str, Any]]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # Compressed messages are refused with UNIMPLEMENTED. gRPC would unpack a kilobyte of gzip into
    # a megabyte, for all calls at once, before any code here sees it. The client does not compress.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # Pings detect a frozen client. The ping timeout overrides the keepalive timeout, so both are
    # set.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Clients ping every few seconds to detect a frozen server. With the default they would be
    # disconnected for it.
    ("grpc.http2.min_ping_interval_without_data_ms", 2_000),
    # Without this bound one connection that begins and resets calls could fill the memory, without
    # any token. A client has one report stream, one watch for each set of names, and one call for
    # each thread. A further call waits in the client until another has ended.
    ("grpc.max_concurrent_streams", CONNECTION_CALLS),
    # gRPC ends calls beyond this bound without a reason. engine/admission.py ends them with a delay
    # after which to try again, so this bound is above the calls of a whole herd of clients.
    ("grpc.server.max_pending_requests", PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS),
    # Bytes that a call may send before they are read. gRPC's own estimate grows with the delay, to
    # tens of megabytes on a busy machine, for refused calls too. A message that is being read may
    # be larger.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    # Two servers on one port would be two authorities.
    ("grpc.so_reuseport", 0),
)

GRACE_SECONDS: Final = 5.0
"""Seconds that running calls may take after the process was told to stop."""

_LAST_PORT: Final = 65_535

FAILED: Final = 2
"""Exit code of a process that could not serve, or had to end by itself: that of every command for
errors."""

SERVICES: Final = (
    "lowwater.v1.ClusterService",
    "lowwater.v1.TaskService",
    "lowwater.v1.TopologyService",
    "lowwater.v1.WatermarkService",
    "lowwater.v1.WorkerService",
)

log = logging.getLogger("lowwater_authority")


class CannotServe(Exception):
    """The process cannot start with these arguments; the message says what to change."""


def address(text: str, flag: str) -> tuple[str, int]:
    """Return host and port of an argument. Raises CannotServe."""
    host, _, port = text.rpartition(":")
    # gRPC would take the port modulo 65536.
    if not host or not port.isdecimal() or int(port) > _LAST_PORT:
        raise CannotServe(f"{flag} takes HOST:PORT, for example 127.0.0.1:7420, not {text!r}")
    return host, int(port)


def choose_places(args: argparse.Namespace) -> None:
    """Set the defaults of ``--listen`` and ``--http``, which is at the next port.

    Without access rules every caller may do everything. So without ``--access`` the default is an
    address that only this machine reaches. Raises CannotServe when other shards could not reach it,
    and when there is no next port.
    """
    if args.listen is None and args.access is None:
        advertised = getattr(args, "advertise", "")
        if advertised and not is_loopback(address(advertised, "--advertise")[0]):
            msg = (
                f"--advertise {advertised} is for other machines, and without --access only this machine may call: give "
                f"--access FILE to say who may do what, or --listen 0.0.0.0:{args.port} to let whoever reaches it do "
                "everything"
            )
            raise CannotServe(msg)
        args.listen = f"127.0.0.1:{args.port}"
        log.info(
            "only this machine may call: give --access FILE to say who else may do what, or --listen 0.0.0.0:%d to let "
            "whoever reaches it do everything",
            args.port,
            extra=event("local_only", address=args.listen),
        )
    elif args.listen is None:
        args.listen = f"0.0.0.0:{args.port}"
    if args.http is None:
        host, port = address(args.listen, "--listen")
        if port == _LAST_PORT:
            msg = f"--listen {args.listen} leaves no port for the metrics: pass --http"
            raise CannotServe(msg)
        args.http = f"{host}:{port and port + 1}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the authority until it is told to stop. Returns the exit code."""
    return run(parser(), argv, serve)


def run(
    parse: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    serving: Callable[[argparse.Namespace, ExitStack], Coroutine[Any, Any, int]],
) -> int:
    """Run a server with a journal until it is told to stop. Returns the exit code."""
    args = parse.parse_args(argv)
    set_up(args.log_format, verbose=args.verbose)
    try:
        args.store = store_of(args.store)
        choose_places(args)
        with ExitStack() as leaving:
            return asyncio.run(serving(args, leaving))
    except (JournalError, CannotServe) as error:
        print(f"{parse.prog}: {error}", file=sys.stderr)  # noqa: T201 - the answer to a command
        return FAILED


def told_to_stop() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


def store_of(url: str) -> str:
    """Return the URL of the store, from ``--store`` or else from the environment.

    Raises CannotServe for a password in the argument, which every user of the machine can read.
    """
    try:
        refuse_password(
            url, "--store", "set LOWWATER_STORE in the environment instead, or name a file by LOWWATER_STORE_FILE"
        )
        return url or secret("LOWWATER_STORE", os.environ)
    except ValueError as error:
        raise CannotServe(str(error)) from None


def door_of(args: argparse.Namespace, host: str, *, shared: bool, limits: Limits = DEFAULT_LIMITS) -> Door | None:
    """Return the access control of ``--access``; None: every caller may do everything.

    ``shared``: shards call each other, with tokens of their own. ``limits`` count where the file
    sets none. Raises CannotServe.
    """
    encrypted = args.tls_cert is not None
    try:
        return open_door(
            args.access,
            args.listen,
            host,
            encrypted=encrypted,
            shared=shared,
            environment=os.environ,
            limits=limits,
        )
    except BadFile as error:
        raise CannotServe(f"--access {error}") from None


def _promises(args: argparse.Namespace) -> PromiseFile | None:
    """Return the file of ``--promises``; None: there is none. Raises CannotServe."""
    try:
        return None if args.promises is None else PromiseFile(args.promises)
    except BadFile as error:
        raise CannotServe(f"--promises {error}") from None


def _known(graph: Callable[[], Topology]) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
    """Return two functions of a name: is the computation registered, and is it cut into slices?

    They know the graph as far as this process has read it.
    """

    def cut(name: str) -> bool:
        spec = graph().computations.get(name)
        return spec is not None and bool(spec.cut.starts)

    return lambda name: name in graph().computations, cut


def options_of(door: Door | None) -> Sequence[tuple[str, Any]]:
    """Return the options of the server.

    gRPC itself applies the limit ``message_bytes``: it does not even read a larger message.
    """
    most = None if door is None else door.access().limits.message_bytes
    if most is None:
        return OPTIONS
    return [(key, most if key == "grpc.max_receive_message_length" else value) for key, value in OPTIONS]


def certificates_of(args: argparse.Namespace) -> Certificates | None:
    """Return the certificates of TLS; None: TLS is off. Raises CannotServe."""
    try:
        files = Files.of(args.tls_cert, args.tls_key, args.tls_client_ca, args.peer_ca)
        return None if files is None else Certificates(files)
    except BadCertificate as error:
        raise CannotServe(str(error)) from error


def listen_on(server: grpc.aio.Server, args: argparse.Namespace, certificates: Certificates | None) -> int:
    """Listen on the address of ``--listen``. Returns the port. Raises CannotServe."""
    try:
        if certificates is None:
            return server.add_insecure_port(args.listen)
        return server.add_secure_port(args.listen, certificates.server_credentials())
    except RuntimeError as error:
        msg = f"cannot listen on {args.listen}: is another process using it? Choose another with --listen."
        raise CannotServe(msg) from error


def _own_socket(server: grpc.aio.Server, leaving: ExitStack) -> str:
    """Listen on a Unix socket that only the user of this process reaches; see PeerSettings.

    ``leaving`` removes it. Returns its address. Raises CannotServe.
    """
    # tempfile itself would choose the working folder where neither can be written.
    below = os.environ.get("TMPDIR") or "/tmp"
    try:
        temporary = tempfile.TemporaryDirectory(prefix="lowwater-", dir=below, ignore_cleanup_errors=True)
        folder = leaving.enter_context(temporary)
        own = f"unix:{folder}/own"
        server.add_insecure_port(own)
    except (OSError, RuntimeError) as error:
        msg = (
            f"this process cannot make its own socket below {below}: set TMPDIR to a short path that can be written "
            f"({error})"
        )
        raise CannotServe(msg) from error
    return own


def endpoint_of(
    args: argparse.Namespace,
    certificates: Certificates | None,
    metrics: Metrics,
    door: Door | None,
    journal: Callable[[], StoreState],
) -> Endpoint | None:
    """Return the HTTP server of ``--http``; None: it is off. Raises CannotServe.

    ``journal`` returns how the store treats writes, on any thread.
    """
    if args.http == "off":
        return None
    host, port = address(args.http, "--http")
    try:
        listening = listen(host, port)
    except OSError as error:
        msg = f"cannot serve metrics on {args.http}: {error.strerror}. Choose another with --http, or 'off'."
        raise CannotServe(msg) from error
    from lowwater_authority.ops.endpoint import Endpoint  # aiohttp is a fifth of all imports of this process

    access = None if door is None else door.access
    return Endpoint(
        listening, metrics.render, journal, certificates=certificates, access=access, on_not_http=metrics.not_http
    )


def _page_place(args: argparse.Namespace) -> tuple[str, int] | None:
    """Return the address of the status page; None: it is off. Raises CannotServe."""
    if args.page == "off" or (args.page is None and args.http == "off"):
        return None
    if args.page is not None:
        return address(args.page, "--page")
    host, port = address(args.http, "--http")
    return host, port and port + 1


def _page(
    args: argparse.Namespace, place: tuple[str, int] | None, reach: PeerSettings, server_token: str, door: Door | None
) -> PageChild | None:
    """Return the page at ``place``, as a process of its own; None: there is no page.

    ``reach`` is how this process reaches itself. If the default page cannot be served, the log says
    why and the process goes on. Raises CannotServe if ``--page`` names it.
    """
    if place is None:
        return None
    host, port = place
    if find_spec("lowwater_page") is None:
        _refuse_page(args, "lowwater-page is not installed", "Install it, or choose --page off.")
        return None
    try:
        listening = listen(host, port)
    except OSError as error:
        _refuse_page(args, f"{host}:{port}: {error.strerror or error}", "Choose another with --page, or 'off'.")
        return None
    environment = environment_of(os.environ, door)
    return PageChild(
        listening,
        arguments_of(args, reach, server_token),
        environment,
        encrypted=reach.encrypted,
        on_visit=args.page_on_visit,
    )


def _refuse_page(args: argparse.Namespace, why: str, fix: str) -> None:
    """Log why there is no page, or raise CannotServe if ``--page`` names one."""
    if args.page is not None:
        raise CannotServe(f"cannot serve the page: {why}. {fix}")
    log.warning("there is no status page: %s. %s", why, fix, extra=event("page_absent", reason=why))


def _own(host: str, bound: int) -> str:
    """Return the address by which a process that listens on ``host`` reaches itself."""
    everywhere = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
    return f"{everywhere.get(host, host)}:{bound}"


def clock() -> int:
    """Return the wall clock, in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Clock that makes no steps. On Linux it goes on while the machine is suspended; elsewhere there is
no such clock."""


def steady() -> int:
    """Return the microseconds of ``STEADY``."""
    return time.clock_gettime_ns(STEADY) // 1000


def steady_seconds() -> float:
    """Return the seconds of ``STEADY``."""
    return time.clock_gettime(STEADY)


def shared_store(args: argparse.Namespace) -> SharedStore:
    """Return the store of ``--store``. Raises CannotServe."""
    try:
        return store_at(args.store, args.deployment)
    except ValueError as error:
        raise CannotServe(f"--store: {error}") from error


def journal_in(store: Store, args: argparse.Namespace, *, patience: float = 0.0) -> Journal:
    """Return the journal in a store, checked by ``--expect-deployment``. Raises CannotServe."""
    expected: str = args.expect_deployment
    try:
        return store.journal(server_token=expected, must_exist=bool(expected), patience=patience)
    except JournalFailed as error:
        raise CannotServe(f"--data: {error}") from error


def _embedded(args: argparse.Namespace, metrics: Metrics, door: Door | None) -> Authority:
    """Return the only process of a deployment, with a journal in a file."""
    journal = journal_in(Folder(args.data), args)
    access = None if door is None else door.access
    limits = limits_given(args.limit)
    return Authority(journal, clock=clock, monotonic=steady, observer=metrics, access=access, limits=limits)


def _shared(
    args: argparse.Namespace, bound: int, metrics: Metrics, certificates: Certificates | None, door: Door | None
) -> Authority:
    """Return one shard of a deployment, over a store that others share. Raises CannotServe."""
    if not args.advertise:
        msg = "--store needs --advertise HOST:PORT, an address of this process that clients and other shards can reach"
        raise CannotServe(msg)
    store = shared_store(args)
    if certificates is not None:
        certificates.check_as_client()
    host, port = address(args.advertise, "--advertise")
    me = Member(secrets.token_hex(8), f"{host}:{port or bound}")
    journal = journal_in(store, args, patience=args.dead_after)
    beat = Pace(args.dead_after).beat
    directory = store.directory(timeout=beat, dead_after=int(args.dead_after * 1e6))
    token, access = (None, None) if door is None else (door.token, door.access)
    peers = Peers(
        lambda: Client(
            PeerSettings(me.address, token=token, server_token=journal.server_token, certificates=certificates)
        )
    )
    lifelines = Lifelines(me, beat)
    cluster = Cluster(
        directory, me, peers=peers, lifelines=lifelines, monotonic=steady_seconds, dead_after=args.dead_after
    )
    return Authority(
        journal,
        clock=clock,
        monotonic=steady,
        observer=metrics,
        cluster=cluster,
        access=access,
        limits=limits_given(args.limit),
    )


def _tell_recovery(authority: Authority, seconds: float) -> None:
    computations = [holding.computation for holding in authority.shard.held.served.values()]
    ranges = sum(len(computation.map) for computation in computations)
    log.info(
        "recovered %s with %s in %.2f s",
        counted(len(computations), "computation"),
        counted(ranges, "key range"),
        seconds,
        extra=event("recovered", computations=len(computations), ranges=ranges, seconds=round(seconds, 3)),
    )


async def _recover(authority: Authority, stopping: asyncio.Event) -> bool:
    """Replay the journal; False when this process was told to stop meanwhile.

    Then the journal is closed. Nothing is lost, because this process has only read it and taken
    ownership of logs, as the next start does.
    """
    began = time.monotonic()
    recovering = asyncio.create_task(authority.recover())
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait([recovering, stop], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not stopping.is_set():
        await recovering
        _tell_recovery(authority, time.monotonic() - began)
        return True
    log.info("stopping before the journal was replayed", extra=event("stopping", reason="asked to"))
    recovering.cancel()
    # Give up after a while: the store may not answer.
    with suppress(TimeoutError, JournalError):
        async with asyncio.timeout(GRACE_SECONDS):
            await asyncio.gather(recovering, return_exceptions=True)
            await authority.shard.journal.close()
    log.info("stopped", extra=event("stopped"))
    return False


async def serve(args: argparse.Namespace, leaving: ExitStack) -> int:
    """Run the authority until SIGTERM or SIGINT. Returns the exit code.

    It stops in order: clients first, the journal last. ``leaving`` is closed by the caller.
    """
    stopping = told_to_stop()
    host, _ = address(args.listen, "--listen")
    place = _page_place(args)
    metrics = Metrics(version("lowwater-authority"))
    leaving.enter_context(metrics.counting_log())
    certificates = certificates_of(args)
    traces = begin_traces(version("lowwater-authority"))
    limits = limits_given(args.limit)
    door = door_of(args, host, shared=bool(args.store), limits=limits)
    promises = _promises(args)
    guards = () if door is None else (Guard.of(door, metrics, *_known(lambda: authority.shard.topology)),)
    pace = paced_by_host(limits, time.monotonic) if door is None else None
    interceptors = (*traces.interceptors, Decoding(metrics, pace), *guards, Timing(metrics))
    server = grpc.aio.server(options=options_of(door), interceptors=interceptors)
    bound = listen_on(server, args, certificates)
    own = "" if certificates is None or place is None else _own_socket(server, leaving)
    token = None if door is None else door.token
    authority = _shared(args, bound, metrics, certificates, door) if args.store else _embedded(args, metrics, door)
    if not await _recover(authority, stopping):
        return 0
    if promises is not None:
        authority.promise(promises.value)
        promises.served = authority.shard.served.names
        promises.on_change.append(authority.promise)
    authority.add_to(server)
    health = HealthServicer(SERVICES)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if args.reflection:
        from grpc_reflection.v1alpha import reflection

        reflection.enable_server_reflection((*SERVICES, reflection.SERVICE_NAME), server)
    reach = PeerSettings(own or _own(host, bound), token=token, certificates=certificates, own=own)
    authority.shard.held.logs.writes.on_change.append(
        lambda state: health.set_journal(serving=state is StoreState.TAKES)
    )
    endpoint = endpoint_of(args, certificates, metrics, door, lambda: authority.shard.confirmation.store_state(clock()))
    page = _page(args, place, reach, authority.shard.journal.server_token, door)
    await server.start()
    pushed = begin_pushes(metrics.registry, version("lowwater-authority"))
    if endpoint is not None or pushed.on:
        rules = None if door is None else door.file
        metrics.watch(authority.shard, authority.streams, certificates=certificates, promises=promises, access=rules)
    if endpoint is not None:
        endpoint.start()
    beside = [] if page is None else [asyncio.create_task(page.run())]
    beside += [asyncio.create_task(Watch(resource).run()) for resource in (FILES, MEMORY)]
    if promises is not None:
        beside.append(asyncio.create_task(promises.watch()))
    rounds = asyncio.create_task(authority.run())
    places = f"page {'off' if page is None else page.url}, metrics {'off' if endpoint is None else endpoint.metrics}"
    print(f"lowwater: serving on {host}:{bound} ({places})", flush=True)  # noqa: T201 - what callers wait for
    log.info(
        "serving on %s:%d, version %s",
        host,
        bound,
        version("lowwater-authority"),
        extra=event("started", address=f"{host}:{bound}", version=version("lowwater-authority"), pid=os.getpid()),
    )
    watching = [] if door is None else [asyncio.create_task(door.watch())]
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait([rounds, stop, *watching], return_when=asyncio.FIRST_COMPLETED)
    # If the access file were not followed, no principal could be removed. So the process ends. The
    # task that follows the file ends only by a fault.
    unguarded = any(task.done() for task in watching)
    failed = rounds.done() or unguarded
    if unguarded:
        reason = str(watching[0].exception())
        log.error("the access file is not followed any more: %s", reason, extra=event("access_failed", error=reason))
    if not rounds.done():
        await authority.hand_over()
    log.info("stopping: telling clients", extra=event("stopping", reason="failed" if failed else "asked to"))
    authority.leave()
    health.stop()
    for task in beside:
        task.cancel()
    closing = [] if endpoint is None else [asyncio.to_thread(endpoint.close)]
    await asyncio.gather(
        server.stop(GRACE_SECONDS), *closing, asyncio.to_thread(traces.close), asyncio.to_thread(pushed.close)
    )
    stop.cancel()
    for task in watching:
        task.cancel()
    try:
        ended = await _close(rounds, authority)
    finally:
        # Last, so that a page that does not end does not keep the journal open.
        await asyncio.gather(*beside, return_exceptions=True)
    return FAILED if failed else ended


async def _close(rounds: asyncio.Task[None], authority: Authority) -> int:
    """Wait for the last round, and close the journal. Returns the exit code."""
    try:
        await rounds
    except JournalUnknown as error:
        log.warning(
            "stopped before it was known whether the last write took effect; the next start will find out: %s",
            error,
            extra=event("stopped", reason=str(error)),
        )
        return FAILED
    except (JournalError, Replaced) as error:
        log.error("%s", error, extra=event("stopped", reason=str(error)))
        return FAILED
    await authority.close()
    log.info("stopped", extra=event("stopped"))
    return 0
