"""The arguments of ``lowwater serve``."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import asdict
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from lowwater.cli.arguments import CommandParser
from lowwater_authority.access.policy import DEFAULT_LIMITS, LIMITS, Limits, limits_of
from lowwater_authority.cluster.pace import DEAD_AFTER
from lowwater_authority.files.table import BadFile, Table
from lowwater_server.logging import add_logging

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_DEAD_AFTER: Final = 0.2
MOST_DEAD_AFTER: Final = 600.0

_PASSWORD: Final = re.compile(r"://[^@]*:.*@", re.DOTALL)
"""Password in a URL, however badly it is escaped."""

_PASSWORD_OPTION: Final = re.compile(r"[?&][^?&=]*password[^?&=]*=", re.IGNORECASE)
"""Password in an option of a URL: password, ssl_password."""


def parser() -> CommandParser:
    """Return the arguments of ``lowwater serve``."""
    parse = CommandParser(
        prog="lowwater serve",
        description="Serve low watermarks: take reports over gRPC, journal them, broadcast what is complete.",
        epilog="examples:\n"
        "  lowwater serve --data /var/lib/lowwater\n"
        "  lowwater serve --data /var/lib/lowwater --access access.toml\n"
        "  lowwater serve --store redis://redis:6379 --advertise lowwater-0.lowwater:7420 --access access.toml   (as often as you like)",
    )
    add_journal(
        parse,
        "lowwater-data",
        "default",
        "shared journal for any number of shards instead of --data: redis://, rediss://, redis+sentinel://HOST:PORT,.../NAME or "
        "redis+cluster://HOST:PORT,...; one with a password only in the environment's LOWWATER_STORE, or in the file LOWWATER_STORE_FILE",
    )
    parse.add_argument(
        "--advertise",
        metavar="HOST:PORT",
        default="",
        help="where clients and shards reach this one; needed with --store",
    )
    parse.add_argument(
        "--dead-after",
        metavar="SECONDS",
        type=_seconds,
        default=DEAD_AFTER,
        help="a shard that is silent for so long loses what it serves to the others; one whose process has died, after less than a third of it; "
        "the same for all (default: %(default)s)",
    )
    add_listen(parse, 7420)
    parse.add_argument(
        "--page",
        metavar="HOST:PORT",
        help="where a process of its own beside this one serves the status page, or 'off' (default: the port after that of --http, and off with "
        "--http off or where lowwater-page is not installed)",
    )
    parse.add_argument(
        "--page-host",
        metavar="NAME,...",
        default="",
        help="names by which browsers reach the page, as behind a proxy; *.example.org stands for all that end so, * for all (default: its addresses, "
        "localhost, and the names of --page and of this machine)",
    )
    # For an authority beside another program, which mostly ends before anybody looks at the page.
    parse.add_argument("--page-on-visit", action="store_true", help=argparse.SUPPRESS)
    add_tls(parse)
    parse.add_argument(
        "--peer-ca",
        metavar="PEM",
        type=Path,
        help="what the certificates of other shards are signed by (default: the system's authorities); these files are read again when they change",
    )
    parse.add_argument(
        "--access",
        metavar="FILE",
        type=Path,
        help="who may do what, and how much of it: everything else is refused; read again when it changes (docs/operate/security.md)",
    )
    add_limit(parse, LIMITS)
    parse.add_argument(
        "--promises",
        metavar="FILE",
        type=Path,
        help="what was promised of which computations, and who answers for them; the same for all shards; read again when it changes "
        "(docs/operate/monitoring.md)",
    )
    parse.add_argument("--reflection", action="store_true", help="let tools such as grpcurl list the services")
    add_logging(parse)
    return parse


def add_journal(parse: argparse.ArgumentParser, data: str, deployment: str, store: str) -> None:
    """Add the place of a journal, with its defaults; ``store`` describes ``--store``."""
    parse.add_argument("--data", type=Path, default=Path(data), help="folder of the journal (default: %(default)s)")
    parse.add_argument("--store", metavar="URL", default="", help=store)
    parse.add_argument(
        "--deployment", metavar="NAME", default=deployment, help="which deployment of the store (default: %(default)s)"
    )
    parse.add_argument(
        "--expect-deployment",
        metavar="TOKEN",
        default="",
        help="serve only the journal of this server token, and begin no other: a volume that is not mounted is refused "
        "(lowwater status --json and the line journal_created have the token)",
    )


def add_tls(parse: argparse.ArgumentParser) -> None:
    """Add the certificates of a server."""
    for flag, what in (
        ("--tls-cert", "certificate, and those between it and the root, for all that is served; turns TLS on"),
        ("--tls-key", "its key, without a passphrase"),
        ("--tls-client-ca", "gRPC takes only clients with a certificate signed by one of these (mutual TLS)"),
    ):
        parse.add_argument(flag, metavar="PEM", type=Path, help=what)


def add_listen(parse: argparse.ArgumentParser, port: int) -> None:
    """Add ``--listen`` and ``--http``, of the ports ``port`` and the next one.

    ``choose_places`` of ``serve`` sets their defaults.
    """
    parse.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"for gRPC; port 0 picks one (default: 0.0.0.0:{port} with --access; without it 127.0.0.1:{port}, which only this machine reaches)",
    )
    parse.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="for /metrics and /healthz, or 'off' (default: the port after that of --listen)",
    )
    parse.set_defaults(port=port)


def add_limit(parse: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Add ``--limit``, for the limits of these names."""
    values = asdict(DEFAULT_LIMITS)
    defaults = ", ".join(f"{name} {values[name]:g}" for name in names if values[name] is not None)
    parse.add_argument(
        "--limit",
        metavar="NAME=NUMBER",
        type=partial(_limit, names),
        action="append",
        default=[],
        help="a limit that counts where --access sets none, as often as you like: "
        f"{', '.join(names)} (docs/operate/security.md; default: {defaults}, and no others)",
    )


def refuse_password(given: str, where: str, fix: str) -> None:
    """Raise ValueError when an argument is a URL with a password in it.

    The message quotes nothing of it. ``fix`` says where else to put the password.

    >>> refuse_password("redis://lowwater@redis:6379", "--store", "")
    >>> refuse_password("rediss://redis:6379?ssl_keyfile=key.pem", "--store", "")
    >>> refuse_password("redis://:a'b c@redis", "--store", "set LOWWATER_STORE")
    Traceback (most recent call last):
        ...
    ValueError: --store has a password in it, ...: set LOWWATER_STORE
    """
    if _PASSWORD.search(given) or _PASSWORD_OPTION.search(unquote(given)):
        raise ValueError(f"{where} has a password in it, which the list of processes shows to everybody: {fix}")


def limits_given(limits: Sequence[Limits]) -> Limits:
    """Return the limits for principals without limits in the access file.

    They are those of ``--limit``, of which the last of a name counts, and the defaults.
    """
    return reduce(lambda before, limit: limit.over(before), limits, DEFAULT_LIMITS)


def _limit(names: Sequence[str], text: str) -> Limits:
    name, _, value = text.partition("=")
    try:
        number: float | str = int(value)
    except ValueError:
        try:
            number = float(value)
        except ValueError:
            number = value
    try:
        return limits_of(Table("", {name: number}, names))
    except BadFile as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not LEAST_DEAD_AFTER <= value <= MOST_DEAD_AFTER:
        raise argparse.ArgumentTypeError(f"{text!r} is not from {LEAST_DEAD_AFTER:g} to {MOST_DEAD_AFTER:g} seconds")
    return value
