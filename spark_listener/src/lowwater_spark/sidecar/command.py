"""``lowwater-spark``: tracks unchanged queries by their checkpoints, many in one process."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import logging
import queue
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater import errors
from lowwater.cli.arguments import CommandParser
from lowwater.cli.streams import open_streams
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sidecar.declaration import PROMISES, Declaration
from lowwater_spark.sidecar.description import describe
from lowwater_spark.sidecar.pipeline import Folders, Looked, Pipeline, describe_pipeline
from lowwater_spark.sidecar.recount import stored_tally
from lowwater_spark.sidecar.watch import Sidecar, track

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "FAILED",
    "REFUSED",
    "Heartbeat",
    "add_conf",
    "declared",
    "main",
    "parser",
    "run",
    "session_of",
    "settings_of",
]

logger = logging.getLogger("lowwater.spark")

AGAIN_SECONDS: Final = 5.0
"""Seconds until a query is tried again whose checkpoint, token or authority is missing."""

LONG_SECONDS: Final = 60.0
"""Seconds after which a look for the flows of a pipeline is logged as a long one."""

FAILED: Final = 2
"""Exit code when the arguments or declarations are refused."""

REFUSED: Final = 1
"""Exit code when a query had to be given up."""

_EXAMPLES: Final = """\
examples:
  lowwater-spark describe /data/checkpoints/hourly > queries.toml     # then fill it in
  lowwater-spark track queries.toml --state /var/lib/lowwater-spark
  lowwater-spark dropped --state /var/lib/lowwater-spark
  lowwater-spark describe --pipeline spark-pipeline.yml > queries.toml
  lowwater-spark track --state /var/lib/lowwater-spark --name hourly --checkpoint /data/checkpoints/hourly --input enriched \\
      --source files:/data/enriched --promise sink-visible-before-commit --promise nothing-skipped
"""

_STOPS: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def parser(*more: Callable[[Any], None]) -> CommandParser:
    """Return the parser of the command. Each of ``more`` adds another command to it."""
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
        "checkpoint", metavar="CHECKPOINT", nargs="?", help="the query's checkpointLocation: an absolute path or a URI"
    )
    look.add_argument(
        "--pipeline",
        metavar="FILE",
        type=Path,
        help="instead: the specification of a declarative pipeline, such as spark-pipeline.yml",
    )
    look.add_argument(
        "--warehouse",
        metavar="DIR",
        type=Path,
        help="directory of the pipeline's tables, spark.sql.warehouse.dir; without it, a guess to confirm is printed",
    )
    add_conf(look)
    follow = commands.add_parser(
        "track",
        help="track queries until told to stop",
        description="Track the queries of a file of declarations, or one that is declared by options. A query that is refused, or has to be given up, changes "
        "nothing for the others; the exit code is 1 then. The token for the authority comes from LOWWATER_TOKEN, absolute paths of a file with it, which wins and may change, and of certificates from LOWWATER_TOKEN_FILE, LOWWATER_CA, LOWWATER_CERT and LOWWATER_KEY.",
        epilog="promises:\n" + "\n".join(f"  {name}\n      {text}" for name, text in PROMISES.items()),
    )
    follow.add_argument(
        "file", metavar="FILE", nargs="?", help="declarations: TOML with a table [[query]] or [[pipeline]] for each"
    )
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
    add_conf(follow, "a setting of the Spark session by which Kafka and URIs are reached, like spark.jars.packages=...")
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
    lost = commands.add_parser(
        "dropped",
        help="say which rows Spark has dropped as late, by the hour",
        description="Print the rows that Spark has dropped as late, by the hour of their event time, of each query that declares dropped: what track has counted and saved.",
    )
    lost.add_argument("--state", metavar="DIR", type=Path, required=True, help="the directory of track --state")
    lost.add_argument("--json", action="store_true", help="one JSON object a query and line")
    for add in more:
        add(commands)
    return parse


def add_conf(command: argparse.ArgumentParser, text: str = "a setting of the Spark session that reads a URI") -> None:
    """Add the option for settings of a session that the command makes."""
    command.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help=text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    open_streams()
    return run(parser().parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Run ``describe`` or ``track``, and return the exit code."""
    try:
        if args.command == "dropped":
            print("\n".join(dropped_lines(args.state, as_json=args.json)))  # noqa: T201 - the answer to a command
            return 0
        session = functools.cache(functools.partial(session_of, settings_of(args.conf)))
        if args.command == "describe":
            print(_described(args, session), end="")  # noqa: T201 - the answer to a command
            return 0
        queries, pipelines = declared(args)
        heartbeat = Heartbeat(args.heartbeat)
    except (errors.LowwaterError, CheckpointMismatch, OSError, ValueError) as failure:
        print(f"lowwater-spark: {failure}", file=sys.stderr)  # noqa: T201 - the answer to a command
        return FAILED
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    watches = Watches(functools.partial(QueryWatch, state=args.state, address=args.address, session=session), pipelines)
    for stop in _STOPS:
        signal.signal(stop, lambda _number, _frame: watches.stop())
    for query in queries:
        watches.declare(query)
    while watches.going:
        watches.look()
        watches.wait(1.0)  # not longer: signals and the heartbeat need the main thread
        heartbeat.look({watch.name: watch.turn for watch in watches.running})
    return REFUSED if watches.refused else 0


class Watches:
    """The queries of the command, each tracked by a thread of its own.

    The flows of pipelines come and go. A thread for each pipeline looks for them, because a file
    system may hang; :meth:`look` takes what they have found. All methods are of one thread.
    """

    def __init__(self, make: Callable[..., QueryWatch], pipelines: Sequence[Pipeline]) -> None:
        self._make = make
        self._stopping = threading.Event()
        self._pipelines = [PipelineWatch(pipeline, self._stopping) for pipeline in pipelines]
        self._threads: dict[str, tuple[QueryWatch, threading.Thread]] = {}
        self._ending: dict[str, tuple[QueryWatch, threading.Thread]] = {}
        """Queries that were told to end. Another one of the name starts after its thread."""
        self._next: dict[str, Mapping[str, Any]] = {}
        """Flows to start when the query of the name has ended."""
        self._declared: set[str] = set()
        """Names of the queries with a declaration of their own. A flow of such a name is that."""
        self._problems: dict[str, Exception] = {}
        """Reason of each flow that is not tracked, and of each unread storage, as logged."""

    @property
    def going(self) -> bool:
        """True while a query is tracked, or flows may come."""
        return bool(self.running or (self._pipelines and not self._stopping.is_set()))

    def stop(self) -> None:
        """Have all queries end. Called by the handler of a signal."""
        self._stopping.set()
        for watch, _ in tuple(self._threads.values()):
            watch.stopping.set()

    @property
    def running(self) -> list[QueryWatch]:
        """The queries that are tracked, tried, or still end."""
        threads = (*self._threads.values(), *self._ending.values())
        return [watch for watch, thread in threads if thread.is_alive()]

    @property
    def refused(self) -> bool:
        """True if a query had to be given up, or a flow is refused."""
        refused = any(not isinstance(problem, OSError) for problem in self._problems.values())
        return refused or any(watch.refused for watch, _ in self._threads.values())

    def declare(self, query: Mapping[str, Any]) -> None:
        """Track a query that has a declaration of its own, as :meth:`start`."""
        self._declared.add(query["name"])
        # Beside a pipeline its inputs may be flows, which are registered later.
        self.start(query, patient=bool(self._pipelines))

    def start(self, query: Mapping[str, Any], *, patient: bool = False) -> None:
        """Track a query until the command is told to stop, or the query is refused."""
        watch = self._make(query, patient=patient)
        thread = threading.Thread(target=watch.run, name=f"lowwater-{watch.name}")
        self._threads[watch.name] = watch, thread
        if self._stopping.is_set():
            watch.stopping.set()
        thread.start()

    def look(self) -> None:
        """Begin to track the flows that have come, and end those that are refused or other ones.

        Does not wait.
        """
        if self._stopping.is_set() or not self._pipelines:
            return
        news = [watch.take() for watch in self._pipelines]
        if any(news):
            # The last look of each counts: an earlier pipeline owns a name that two of them have.
            # So a later one waits for its first look, unless that takes long.
            known = itertools.takewhile(lambda watch: watch.found is not None or watch.is_late, self._pipelines)
            self._apply([(watch.pipeline, watch.found) for watch in known if watch.found is not None])
        for name in [name for name, (_, thread) in self._ending.items() if not thread.is_alive()]:
            del self._ending[name]
        for name in [name for name in self._next if name not in self._ending]:
            self.start(self._next.pop(name), patient=True)

    def _apply(self, looked: Sequence[tuple[Pipeline, Looked | OSError]]) -> None:
        places: dict[str, Pipeline] = {}
        """The pipeline of each name that this look has met."""
        for pipeline, flows in looked:
            if isinstance(flows, OSError):
                self._note(f"the pipeline in {pipeline.storage}", flows)
                continue
            self._problems.pop(f"the pipeline in {pipeline.storage}", None)
            for flow, problem in flows.refused.items():
                name = pipeline.prefix + flow
                if places.setdefault(name, pipeline) is pipeline:
                    self._refuse(name, problem, flows.checkpoints.get(flow))
            for query in flows.queries.values():
                name = query["name"]
                first = places.setdefault(name, pipeline)
                if first is pipeline:
                    self._problems.pop(name, None)
                    self._follow(query)
                else:
                    msg = f"{first.storage} has a flow of the name {name} as well: give the pipelines other prefixes"
                    self._note(f"{name} in {pipeline.storage}", ValueError(msg))

    def _refuse(self, name: str, problem: Exception, checkpoint: Path | None) -> None:
        if name in self._declared:
            return
        if name in self._threads:
            watch, _ = self._threads[name]
            # If a file of its checkpoint cannot be read, the query holds by itself. A query of
            # another checkpoint would go on while a full refresh empties the table, and lead.
            if isinstance(problem, OSError) and checkpoint in (None, Path(watch.query["checkpoint"])):
                return
            self._end(name)
        self._next.pop(name, None)
        self._note(name, problem)

    def _note(self, what: str, problem: Exception) -> None:
        if str(self._problems.get(what)) != str(problem):
            reason = problem if isinstance(problem, OSError | ValueError | CheckpointMismatch) else repr(problem)
            logger.warning("%s is not tracked, and is tried again every %g s: %s", what, AGAIN_SECONDS, reason)
            self._problems[what] = problem

    def _follow(self, query: Mapping[str, Any]) -> None:
        name = query["name"]
        if name in self._declared:
            return
        if name in self._threads:
            watch, _ = self._threads[name]
            if watch.query == query:
                return
            logger.warning(
                "%s has another checkpoint or other sources by now; its sidecar ends, and another one starts", name
            )
            self._end(name)
        self._next[name] = query

    def _end(self, name: str) -> None:
        self._ending[name] = watch, _ = self._threads.pop(name)
        watch.stopping.set()

    def wait(self, seconds: float) -> None:
        """Wait until a query ends or the command is told to stop, at most so long."""
        threads = [thread for _, thread in self._threads.values() if thread.is_alive()]
        if threads:
            threads[0].join(seconds)
        else:
            self._stopping.wait(seconds)


class PipelineWatch:
    """The looks at the storage of one pipeline, by a thread of its own."""

    def __init__(self, pipeline: Pipeline, stopping: threading.Event) -> None:
        self.pipeline = pipeline
        self.found: Looked | OSError | None = None
        """What the last look has found that :meth:`take` has taken; None before the first."""
        self._stopping = stopping
        self._looked: queue.SimpleQueue[Looked | OSError] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._began = 0.0
        """When :meth:`take` took the last result, by the monotonic clock; the look after that
        begins within :data:`AGAIN_SECONDS`."""
        self.is_late = False
        """True if that look was logged as a long one."""

    def take(self) -> bool:
        """Take what a look has found; return True if there is something. Does not wait.

        Logs a look that takes longer than :data:`LONG_SECONDS`, once.
        """
        if self._thread is None:
            name = f"lowwater-pipeline {self.pipeline.prefix}"
            self._began = time.monotonic()
            self._thread = threading.Thread(target=self._keep_looking, name=name, daemon=True)
            self._thread.start()
        try:
            self.found = self._looked.get_nowait()
        except queue.Empty:
            if time.monotonic() - self._began > LONG_SECONDS + AGAIN_SECONDS and not self.is_late:
                self.is_late = True
                logger.warning(
                    "the look for flows of the pipeline in %s takes longer than %g s: its storage may hang, and flows that come, change or have to be refused are not seen",
                    self.pipeline.storage,
                    LONG_SECONDS,
                )
            return False
        if self.is_late:
            logger.warning("the look for flows of the pipeline in %s has ended", self.pipeline.storage)
        self._began, self.is_late = time.monotonic(), False
        return True

    def _keep_looking(self) -> None:
        folders = Folders()
        while not self._stopping.is_set():
            self._looked.put(_look_at(self.pipeline, folders))
            self._stopping.wait(AGAIN_SECONDS)


def _look_at(pipeline: Pipeline, folders: Folders) -> Looked | OSError:
    try:
        return pipeline.look(folders)
    except OSError as failure:
        return failure
    except Exception as failure:
        logger.exception("the pipeline in %s cannot be read", pipeline.storage)
        return OSError(repr(failure))


def _described(args: argparse.Namespace, session: Any) -> str:
    if (args.checkpoint is None) == (args.pipeline is None):
        msg = "describe takes a checkpoint, or --pipeline with a specification"
        raise ValueError(msg)
    if args.warehouse is not None and args.pipeline is None:
        msg = "--warehouse is of the tables of a pipeline: pass --pipeline with it"
        raise ValueError(msg)
    if args.pipeline is not None:
        return describe_pipeline(args.pipeline, args.warehouse)
    return describe(args.checkpoint, session)


def dropped_lines(state: Path, *, as_json: bool) -> list[str]:
    """Return the saved tallies of a state directory in words, or as JSON, one object a line.

    Raises FileNotFoundError when there is none, CheckpointMismatch, OSError.
    """
    tallies = [tally for home in sorted(state.iterdir()) if home.is_dir() and (tally := stored_tally(home))]
    if not tallies:
        msg = f"no query of {state} counts dropped rows: declare dropped for it, and start lowwater-spark track again"
        raise FileNotFoundError(msg)
    if as_json:
        return [json.dumps({"query": tally.name, **tally.shown()}, ensure_ascii=False) for tally in tallies]
    return [line for tally in tallies for line in tally.lines()]


def settings_of(pairs: Sequence[str]) -> dict[str, str]:
    """Return the settings that ``--conf`` names. Raises ValueError."""
    settings = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(settings) < len(pairs):
        msg = (
            "--conf takes NAME=VALUE, for example spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
        )
        raise ValueError(msg)
    return settings


def session_of(settings: Mapping[str, str]) -> SparkSession:
    """Return a session that runs no jobs: its JVM has the clients of Kafka and file systems."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").appName("lowwater-spark").config("spark.ui.enabled", "false")
    return builder.config(map=dict(settings)).getOrCreate()


def declared(args: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Pipeline]]:
    """Return all queries and pipelines, after checking them.

    Raises ValueError, Unsupported, OSError.
    """
    pipelines: list[Pipeline] = []
    keys = ("name", "checkpoint", "inputs", "sources", "promises", "retention", "stamp", "output_mode", "output")
    options = {key: value for key in keys if (value := getattr(args, key)) is not None}
    if args.file is None:
        queries: Any = [options]
    elif options:
        msg = f"a query is declared in {args.file} or by options, not both"
        raise ValueError(msg)
    else:
        with Path(args.file).open("rb") as file:
            content = tomllib.load(file)
        tables = content.get("pipeline", [])
        if not isinstance(tables, list):
            msg = f"{args.file}: a pipeline is a table [[pipeline]], in double brackets"
            raise ValueError(msg)
        pipelines = [Pipeline.parse(table) for table in tables]
        prefixes = [pipeline.prefix for pipeline in pipelines]
        if alike := sorted({prefix for prefix in prefixes if prefixes.count(prefix) > 1}):
            msg = f"{args.file} declares two pipelines with the prefix {alike[0]!r}: their flows would have the same names"
            raise ValueError(msg)
        queries = content.get("query", [] if pipelines else None)
    if not isinstance(queries, list) or not (queries or pipelines):
        msg = f"{args.file} has no table [[query]] or [[pipeline]]; lowwater-spark describe CHECKPOINT prints one"
        raise ValueError(msg)
    names = [Declaration.parse(query).name for query in queries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        msg = f"{args.file} declares {twice[0]} twice; each computation has one checkpoint"
        raise ValueError(msg)
    return queries, pipelines


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

    def __init__(
        self, query: Mapping[str, Any], *, state: str, address: str | None, session: Any, patient: bool = False
    ) -> None:
        self.name: str = query["name"]
        self.query = query
        self.stopping = threading.Event()
        """Set to end this query."""
        self.refused = False
        self.turn = (0, 0)
        """Numbers of steps of its starts, and of looks since the last start. Both stand still
        while the query hangs."""
        self._patient = patient
        """True where inputs may be flows: the query waits until these are registered."""
        self._state = state
        self._address = address
        self._session = session

    def run(self) -> None:
        """Track the query until :attr:`stopping` is set, or the query is refused."""
        last_problem = ""
        while not self.stopping.is_set():
            try:
                self._follow()
            except (errors.LowwaterError, CheckpointMismatch, Unsupported, ValueError, OSError) as failure:
                if not may_pass(failure) and not (self._patient and isinstance(failure, errors.UnknownComputation)):
                    logger.error("%s is not tracked any more: %s", self.name, failure)
                    self.refused = True
                    return
                self._step()
                if str(failure) != last_problem:
                    last_problem = str(failure)
                    logger.warning(
                        "%s is not tracked yet, and is tried again every %g s: %s", self.name, AGAIN_SECONDS, failure
                    )
                self.stopping.wait(AGAIN_SECONDS)
            except Exception:
                logger.exception("%s is not tracked any more", self.name)
                self.refused = True
                return

    def _follow(self) -> None:
        sidecar: Sidecar = track(
            **self.query, state=self._state, address=self._address, spark=self._session, step=self._step
        )
        logger.info("%s is tracked by %s", self.name, self.query["checkpoint"])
        try:
            while not self.stopping.is_set():
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
