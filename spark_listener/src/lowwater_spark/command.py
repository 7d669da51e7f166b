"""``lowwater-spark``: the commands of the sidecar, and ``doctor``."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import lowwater
from lowwater import errors
from lowwater.cli.arguments import CommandParser
from lowwater.cli.streams import open_streams
from lowwater_spark.doctor.examination import doctor, examine_machine
from lowwater_spark.doctor.probe import check_listens
from lowwater_spark.sidecar import command as sidecar
from lowwater_spark.sidecar.watch import settings_here

if TYPE_CHECKING:
    from lowwater_spark.doctor.report import Report

__all__ = ["main", "parser"]

_REMOTE: Final = "sc://"

_PORT: Final = 15002
"""Port of a Spark Connect server whose URL names none."""


def parser() -> CommandParser:
    """Return the parser of the command."""
    return sidecar.parser(_add_doctor)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    open_streams()
    args = parser().parse_args(argv)
    return _doctor(args) if args.command == "doctor" else sidecar.run(args)


def _add_doctor(commands: Any) -> None:
    look = commands.add_parser(
        "doctor",
        help="say what fits here, and what to paste, without changing anything",
        description="Look at this machine, the authority, checkpoints, and a session of Spark Connect. Nothing is registered, written or set. "
        "The exit code is 1 if something is to be fixed. Token and certificates come from the environment, as for track. "
        "In a notebook: print(lws.doctor(spark)).",
    )
    look.add_argument(
        "--authority",
        "--address",
        dest="address",
        metavar="HOST:PORT,...",
        help="the authority (default: LOWWATER_ADDRESS or localhost:7420)",
    )
    look.add_argument(
        "--remote",
        metavar="sc://HOST",
        help="look at a session of Spark Connect as well, and run one small job in it; with ;session_id=... at a notebook's own, with its queries",
    )
    look.add_argument(
        "--checkpoint",
        dest="checkpoints",
        action="append",
        default=[],
        metavar="PATH",
        help="a query's checkpointLocation to look at: an absolute path or a URI; may be given again",
    )
    look.add_argument("--json", action="store_true", help="print one object of JSON")
    sidecar.add_conf(look)


def _doctor(args: argparse.Namespace) -> int:
    try:
        settings = settings_here(args.address)
        if args.remote is None:
            session = functools.cache(functools.partial(sidecar.session_of, sidecar.settings_of(args.conf)))
            found = examine_machine(settings, args.checkpoints, session)
        elif args.conf:
            raise ValueError("--conf is for a session that the command makes: leave it out with --remote")
        else:
            found = _examine(args.remote, settings, args.checkpoints)
    except (errors.LowwaterError, OSError, ValueError) as failure:
        print(f"lowwater-spark: {failure}", file=sys.stderr)  # noqa: T201 - the answer to a command
        return sidecar.FAILED
    print(json.dumps(found.to_dict(), indent=2) if args.json else found)  # noqa: T201 - as above
    return 0 if found.good else sidecar.REFUSED


def _examine(remote: str, settings: lowwater.Settings, checkpoints: Sequence[str]) -> Report:
    """Return the report about a session of Spark Connect.

    Raises ValueError for a URL that is none, and OSError for a server that does not answer.
    """
    if not remote.startswith(_REMOTE):
        msg = f"--remote is the URL of a Spark Connect server, like sc://spark:15002, not {remote!r}"
        raise ValueError(msg)
    server = remote.removeprefix(_REMOTE).partition("/")[0]
    # Spark's client would try for minutes.
    check_listens(server if server.rpartition(":")[2].isdecimal() else f"{server}:{_PORT}", "the server")
    from pyspark.errors import PySparkException

    spark: Any = None
    try:
        # The builder of pyspark.sql would leave this process in the mode of Connect for good.
        from pyspark.sql.connect.session import SparkSession

        spark = SparkSession.builder.remote(remote).create()
        spark.version  # noqa: B018 - the first question to the server
        with lowwater.Client(settings) as client:
            return doctor(spark, client=client, checkpoints=checkpoints)
    except (PySparkException, ImportError) as failure:
        msg = f"the Spark Connect server at {remote} cannot be looked at: {failure}"
        raise OSError(msg) from failure
    finally:
        if spark is not None:
            _leave(spark, own="session_id=" not in remote)


def _leave(spark: Any, *, own: bool) -> None:
    """Release a session of our own. That of a notebook goes on, with its queries."""
    if own:
        spark.stop()
    else:
        spark.client.close()
