"""``lowwater-spark``: tracks unchanged queries by their checkpoints, many in one process."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import signal
import sys
import threading
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater import errors
from lowwater.cli.arguments import CommandParser
from lowwater.cli.streams import open_streams
from lowwater_spark.checkpoint.location import checkpoint_of
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sidecar.declaration import BLANK, HISTORY, PROMISES, SAME_OPERATORS, Declaration, needed
from lowwater_spark.sidecar.evidence import query_id
from lowwater_spark.sidecar.stateful import ON_ARRIVAL, operators, word_of
from lowwater_spark.sidecar.watch import Sidecar, track
from lowwater_spark.sources.kinds import guess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lowwater_spark.checkpoint.location import Location

__all__ = ["Heartbeat", "declared", "main", "parser"]

logger = logging.getLogger("lowwater.spark")

AGAIN_SECONDS: Final = 5.0
"""Seconds until a query is tried again whose checkpoint, token or authority is missing."""

FAILED: Final = 2
"""Exit code when the arguments or declarations are refused."""

REFUSED: Final = 1
"""Exit code when a query had to be given up."""

_EXAMPLES: Final = """\
examples:
  lowwater-spark describe /data/checkpoints/hourly > queries.toml     # then fill it in
  lowwater-spark track queries.toml --state /var/lib/lowwater-spark
  lowwater-spark track --state /var/lib/lowwater-spark --name hourly --checkpoint /data/checkpoints/hourly --input enriched \\
      --source files:/data/enriched --promise sink-visible-before-commit --promise nothing-skipped
"""

_STOPS: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def parser() -> CommandParser:
    """Return the parser of the command."""
    parse = CommandParser(
        prog="lowwater-spark",
        description="Track Spark queries by their checkpoints alone: exact low watermarks of jobs that nobody changes.",
        epilog=_EXAMPLES,
    )
    commands = parse.add_subparsers(dest="command", required=True, metavar="COMMAND")
    look = commands.add_parser(
        "describe",
        help="say what a checkpoint tells, as a file of declarations to fill in",
        description="Print a file of declarations for a checkpoint: what it tells is filled in, the rest is asked for.",
    )
    look.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="the query's checkpointLocation: an absolute path or a URI"
    )
    conf: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME=VALUE"}
    look.add_argument("--conf", **conf, help="a setting of the Spark session that reads a URI")
    follow = commands.add_parser(
        "track",
        help="track queries until told to stop",
        description="Track the queries of a file of declarations, or one that is declared by options. A query that is refused, or has to be given up, changes "
        "nothing for the others; the exit code is 1 then. The token for the authority comes from LOWWATER_TOKEN, absolute paths of a file with it, which wins and may change, and of certificates from LOWWATER_TOKEN_FILE, LOWWATER_CA, LOWWATER_CERT and LOWWATER_KEY.",
        epilog="promises:\n" + "\n".join(f"  {name}\n      {text}" for name, text in PROMISES.items()),
    )
    follow.add_argument("file", metavar="FILE", nargs="?", help="declarations: TOML with a table [[query]] for each")
    follow.add_argument(
        "--state",
        metavar="DIR",
        required=True,
        help="a local directory that stays, for what is remembered of each checkpoint",
    )
    follow.add_argument(
        "--address", metavar="HOST:PORT,...", help="the authority (default: LOWWATER_ADDRESS or localhost:7420)"
    )
    follow.add_argument(
        "--heartbeat",
        metavar="FILE",
        type=Path,
        help="touch this file each time that all tracked queries have ended a look, or a step of their beginning; its age tells a process that hangs",
    )
    follow.add_argument(
        "--conf",
        **conf,
        help="a setting of the Spark session by which Kafka and URIs are reached, like spark.jars.packages=...",
    )
    follow.add_argument("--name", metavar="NAME", help="the computation, of a query that is declared here")
    follow.add_argument("--checkpoint", metavar="PATH", help="its checkpointLocation")
    for name, metavar, text in (
        ("input", "NAME", "a computation whose output it reads"),
        ("source", "KIND:WHAT[,OPTION=VALUE...]", "what it reads, in the order of the query"),
        ("promise", "PROMISE", "what its checkpoint does not tell; see below"),
    ):
        follow.add_argument(f"--{name}", dest=f"{name}s", action="append", metavar=metavar, help=text)
    follow.add_argument(
        "--retention", metavar="DURATION", help="how far below Spark's watermark can come out what its state holds"
    )
    follow.add_argument(
        "--stamp", metavar="DURATION", help="length of the windows by whose start its output is stamped"
    )
    follow.add_argument("--output-mode", choices=("append", "update"), help="where it has an aggregation")
    follow.add_argument("--output", metavar="DIR", help="the directory of Spark's file sink")
    return parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    open_streams()
    args = parser().parse_args(argv)
    try:
        session = functools.cache(functools.partial(_session, _settings(args.conf)))
        if args.command == "describe":
            print(describe(args.checkpoint, session), end="")  # noqa: T201 - the answer to a command
            return 0
        queries = declared(args)
        heartbeat = Heartbeat(args.heartbeat)
    except (errors.LowwaterError, CheckpointMismatch, OSError, ValueError) as failure:
        print(f"lowwater-spark: {failure}", file=sys.stderr)  # noqa: T201 - the answer to a command
        return FAILED
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stopping = threading.Event()
    for stop in _STOPS:
        signal.signal(stop, lambda _number, _frame: stopping.set())
    watches = [QueryWatch(query, args.state, args.address, session) for query in queries]
    threads = [threading.Thread(target=watch.run, args=(stopping,), name=f"lowwater-{watch.name}") for watch in watches]
    for thread in threads:
        thread.start()
    while running := [thread for thread in threads if thread.is_alive()]:
        running[0].join(1.0)  # not longer: signals and the heartbeat need the main thread
        heartbeat.look(
            {watch.name: watch.turn for watch, thread in zip(watches, threads, strict=True) if thread in running}
        )
    return REFUSED if any(watch.refused for watch in watches) else 0


def describe(checkpoint: str, session: Any) -> str:
    """Return a file of declarations for a checkpoint, filled in as far as the checkpoint shows.

    Raises OSError, CheckpointMismatch, Unsupported.
    """
    where: Location = (
        Path(checkpoint)
        if checkpoint.startswith("/")
        # single_driver=True stands for the promise, for which describe() does not ask: it only
        # reads, and reports no watermark that a second driver could make wrong.
        else checkpoint_of(session(), checkpoint, single_driver=True, looked_at=True)
    )
    query = query_id(where)
    log = CheckpointLog(where)
    last = log.last_committed()
    plan = None if last is None else log.plan(last)
    stateful = operators(where, plan)
    names = [operator.name for operator in stateful]
    unknown = [operator.folder.name for operator in stateful if not operator.name]
    lines = () if plan is None else plan.lines
    read = f"The query {query} has committed no batch yet."
    if plan is not None:
        read = f"The query {query} has committed batch {plan.batch}; of each source it is at:"
    sources = "\n".join(f'    "<{guess(line)}>",  # {line[:200]}' for line in lines) or '    "<files:/data/in>",'
    state = "It keeps nothing in Spark's state."
    if names:
        state = f"In Spark's state: {', '.join(word_of(name) or 'an operator that is not known' for name in names)}. Declare its retention, unless it is deduplication."
    unless = "" if set(names) - ON_ARRIVAL else "# "
    promised = [*needed(checkpoint), *([] if last is None else [HISTORY])]
    if not all(operator.named for operator in stateful):
        promised.append(SAME_OPERATORS)
    declared_operators = f"operators = {json.dumps([word_of(name) for name in names])}"
    if unknown:
        declared_operators = f"They cannot be declared: what is in state/{unknown[0]} is not known, and is refused."
    promises = "\n".join(f'    # {PROMISES[name]}\n    # "{name}",' for name in promised)
    return BLANK.format(
        checkpoint=json.dumps(checkpoint, ensure_ascii=False),
        read=read,
        sources=sources,
        state=state,
        retention=unless,
        mode=unless,
        operators=declared_operators,
        promises=promises,
    )


def _settings(pairs: Sequence[str]) -> dict[str, str]:
    settings = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(settings) < len(pairs):
        msg = (
            "--conf takes NAME=VALUE, for example spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
        )
        raise ValueError(msg)
    return settings


def _session(settings: Mapping[str, str]) -> SparkSession:
    """Return a session that runs no jobs: its JVM has the clients of Kafka and file systems."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").appName("lowwater-spark").config("spark.ui.enabled", "false")
    return builder.config(map=dict(settings)).getOrCreate()


def declared(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return all queries, after checking them. Raises ValueError, Unsupported, OSError."""
    keys = ("name", "checkpoint", "inputs", "sources", "promises", "retention", "stamp", "output_mode", "output")
    options = {key: value for key in keys if (value := getattr(args, key)) is not None}
    if args.file is None:
        queries: Any = [options]
    elif options:
        msg = f"a query is declared in {args.file} or by options, not both"
        raise ValueError(msg)
    else:
        with Path(args.file).open("rb") as file:
            queries = tomllib.load(file).get("query")
    if not isinstance(queries, list) or not queries:
        msg = f"{args.file} has no table [[query]]; lowwater-spark describe CHECKPOINT prints one"
        raise ValueError(msg)
    names = [Declaration.parse(query).name for query in queries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        msg = f"{args.file} declares {twice[0]} twice; each computation has one checkpoint"
        raise ValueError(msg)
    return queries


class Heartbeat:
    """A file whose age shows that a process hangs.

    The file is touched when each query has finished a look, or a step of its start, since the last
    touch. Without a file nothing is done. Raises OSError at the start if the file cannot be
    written.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._turns: dict[str, tuple[int, int]] = {}
        if file is not None:
            file.touch()

    def look(self, turns: Mapping[str, tuple[int, int]]) -> None:
        """Touch the file if every query has moved on; ``turns`` are of the tracked queries."""
        if self._file is None or turns.items() & self._turns.items():
            return
        self._turns = dict(turns)
        with contextlib.suppress(OSError):  # the file then grows old, which is the alarm
            self._file.touch()


class QueryWatch:
    """One query of the command, tracked by a thread of its own, which may fail alone."""

    def __init__(self, query: Mapping[str, Any], state: str, address: str | None, session: Any) -> None:
        self.name: str = query["name"]
        self.refused = False
        self.turn = (0, 0)
        """Numbers of steps of its starts, and of looks since the last start. Both stand still
        while the query hangs."""
        self._query = query
        self._state = state
        self._address = address
        self._session = session

    def run(self, stopping: threading.Event) -> None:
        """Track the query until ``stopping`` is set, or the query is refused."""
        last_problem = ""
        while not stopping.is_set():
            try:
                self._follow(stopping)
            except (errors.LowwaterError, CheckpointMismatch, Unsupported, ValueError, OSError) as failure:
                if not may_pass(failure):
                    logger.error("%s is not tracked any more: %s", self.name, failure)
                    self.refused = True
                    return
                self._step()
                if str(failure) != last_problem:
                    last_problem = str(failure)
                    logger.warning(
                        "%s is not tracked yet, and is tried again every %g s: %s", self.name, AGAIN_SECONDS, failure
                    )
                stopping.wait(AGAIN_SECONDS)
            except Exception:
                logger.exception("%s is not tracked any more", self.name)
                self.refused = True
                return

    def _follow(self, stopping: threading.Event) -> None:
        sidecar: Sidecar = track(
            **self._query, state=self._state, address=self._address, spark=self._session, step=self._step
        )
        logger.info("%s is tracked by %s", self.name, self._query["checkpoint"])
        try:
            while not stopping.is_set():
                if sidecar.await_termination(0.2):
                    return
                self.turn = (self.turn[0], sidecar.looks)
        finally:
            sidecar.stop()

    def _step(self) -> None:
        self.turn = (self.turn[0] + 1, 0)


def may_pass(failure: Exception) -> bool:
    """Return True if another try may help: the cause is an outage or a file being replaced."""
    in_file = isinstance(failure, errors.InvalidArgument) and "file" in failure.metadata
    # lowwater's Timeout is a TimeoutError of Python, and so an OSError.
    return in_file or isinstance(failure, errors.Unavailable | errors.Unauthenticated | OSError)


if __name__ == "__main__":
    sys.exit(main())
