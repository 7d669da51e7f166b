"""The arguments of ``lowwater-pipeline graph``, ``run`` and ``remove``.

Their work is in :mod:`lowwater_pipeline.graph`, which needs lowwater-spark. So it is imported only
when a command runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lowwater
from lowwater import errors

if TYPE_CHECKING:
    from lowwater_pipeline.graph import Pipeline

__all__ = ["add"]

REFUSED: Final = 2
"""Exit code when the arguments or the pipeline are refused before work begins."""

AWAY: Final = 3
"""Exit code when the authority does not answer."""

_FORMATS: Final = ("text", "mermaid", "dot", "svg")

_GRAPH: Final = """\
Show a pipeline that a Python module declares: its computations, what each reads and by which key and event time, where its outputs stand, and who reads them.

Nothing is started, and neither Spark nor an authority is asked. A pipeline that cannot run as it is declared is refused, with all that is wrong in it.
"""

_GRAPH_EPILOG: Final = """\
examples:
  lowwater-pipeline graph zeitgeist
  lowwater-pipeline graph zeitgeist.py:pipeline --format svg > zeitgeist.svg

Exit codes: 0 shown, 2 refused.
"""

_RUN: Final = """\
Run the computations of a pipeline in one Spark session of this process, each as a query of its own.

All that the pipeline declares is compared with what its sources have before the first query starts. It tells how far each computation has come. One that fails tells the reason and
ends, and the others go on: start again, and it goes on where it was. Ctrl-C and SIGTERM stop all of them; a batch that was cut off runs again at the next start.
"""

_RUN_EPILOG: Final = """\
The root has checkpoints/COMPUTATION and outputs/COMPUTATION/OUTPUT; relative paths in the module are below it. All executors must see it.

examples:
  lowwater-pipeline run zeitgeist --root /data/zeitgeist --address localhost:7420
  lowwater-pipeline run zeitgeist --root /data/zeitgeist --only counts
  lowwater-pipeline run zeitgeist --root /data/zeitgeist --until-finished --conf spark.sql.shuffle.partitions=8

On a cluster call pipeline.run(spark, ROOT) in a file for spark-submit: docs/concepts/computations.md shows it.

Exit codes: 0 told to stop, or all is finished; 1 a computation has failed; 2 refused before it began.
"""


_REMOVE: Final = """\
Take a computation out of a pipeline while the others run, or after it was taken out of the module.

It is refused while another computation reads it, in the module or at the authority, and while it runs. Its name is dropped at the authority: its watermark, metrics and alerts end, and
nobody waits for it. Its checkpoint is moved to ROOT/removed. Its outputs stay, and so do those of the others.
"""

_REMOVE_EPILOG: Final = """\
Stop its process first; it stops as at any Ctrl-C, and what it has committed is out. Rows that it has not read then, records that wait and timers that have not fired are lost. A
computation that is finished has none. For any other one say --discard; or --drain, while it runs: that tells what is left of what it has read, until nothing is, and you stop its process. What has
come in between is looked at then. Where a claim of it is left, some seconds are listened for whoever reports under it.

examples:
  lowwater-pipeline remove zeitgeist spikes --root /data/zeitgeist --drain
  lowwater-pipeline remove zeitgeist spikes --root /data/zeitgeist --discard

Exit codes: 0 removed, 2 refused, and nothing has changed; 3 the authority is away: again it does what is left.
"""


def add(commands: Any) -> None:
    """Add the commands to the subparsers."""
    graph = commands.add_parser(
        "graph", help="show a pipeline of computations", description=_GRAPH, epilog=_GRAPH_EPILOG
    )
    graph.set_defaults(run=_graph)
    _module(graph)
    graph.add_argument("--format", choices=_FORMATS, default=_FORMATS[0], help="how (default: %(default)s)")

    run = commands.add_parser(
        "run", help="run a pipeline of computations in one Spark session", description=_RUN, epilog=_RUN_EPILOG
    )
    run.set_defaults(run=_run)
    _module(run)
    _place(run, "spark.lowwater.address, LOWWATER_ADDRESS or localhost:7420")
    run.add_argument(
        "--only", metavar="NAME", action="append", default=[], help="this computation alone; several may be named"
    )
    run.add_argument(
        "--until-finished", action="store_true", help="end when the inputs are finished and all is written"
    )
    run.add_argument("--master", metavar="URL", help="Spark's master (default: that of --conf, or local[*])")
    run.add_argument(
        "--conf", metavar="NAME=VALUE", action="append", default=[], help="a setting of Spark; several may be told"
    )

    remove = commands.add_parser(
        "remove", help="take a computation out of a pipeline", description=_REMOVE, epilog=_REMOVE_EPILOG
    )
    remove.set_defaults(run=_remove)
    _module(remove)
    remove.add_argument("name", metavar="COMPUTATION", help="which; the module may declare it or not any more")
    _place(remove, "LOWWATER_ADDRESS or localhost:7420")
    loses = remove.add_mutually_exclusive_group()
    loses.add_argument(
        "--discard", action="store_true", help="though it is not finished, and what it has not written is lost"
    )
    loses.add_argument(
        "--drain",
        action="store_true",
        help="wait until nothing is left of what it has read, and its process is stopped",
    )
    remove.add_argument(
        "--within",
        metavar="SECONDS",
        type=float,
        default=3600.0,
        help="with --drain: give up then, with what is left (default: %(default)g)",
    )


def _place(parse: argparse.ArgumentParser, default: str) -> None:
    parse.add_argument("--root", metavar="DIR", type=Path, required=True, help="where checkpoints and outputs stand")
    parse.add_argument("--address", metavar="HOST:PORT,...", help=f"the authority (default: {default})")


def _module(parse: argparse.ArgumentParser) -> None:
    parse.add_argument(
        "module",
        metavar="MODULE[:NAME]",
        help="a Python module, or its file, that declares pipeline = Pipeline(...); NAME if it is called otherwise",
    )


class _Refused(Exception):
    """A command cannot be done; the message tells the user why."""


def _load(named: str) -> Pipeline:
    """Return the pipeline that a module declares. Raises _Refused."""
    module, _, name = named.partition(":")
    folder = Path.cwd()
    if module.endswith(".py"):
        path = Path(module).resolve()
        if not path.is_file():
            msg = f"there is no file {module}"
            raise _Refused(msg)
        folder, module = path.parent, path.stem
    sys.path.insert(0, str(folder))
    # The workers of a local session import the module, too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    try:
        from lowwater_pipeline.graph import Pipeline

        pipeline = getattr(importlib.import_module(module), name or "pipeline", None)
    except ModuleNotFoundError as failure:
        if failure.name in ("lowwater_spark", "pyspark"):
            msg = "it needs Spark: install lowwater-pipeline[spark] and pyspark"
            raise _Refused(msg) from failure
        if failure.name is not None and module.startswith(failure.name):
            msg = f"there is no module {module} in {folder} nor where Python looks for modules; a file is named with its ending, {module}.py"
            raise _Refused(msg) from failure
        raise
    except (TypeError, ValueError) as failure:
        raise _Refused(str(failure)) from failure
    if not isinstance(pipeline, Pipeline):
        msg = f"{module} has no {name or 'pipeline'} that is a Pipeline: write {name or 'pipeline'} = Pipeline(...), or name another one, {module}:NAME"
        raise _Refused(msg)
    return pipeline


def _graph(args: argparse.Namespace) -> int:
    try:
        pipeline = _load(args.module)
    except _Refused as failure:
        return _refuse(failure)
    from lowwater_pipeline.graph.drawing import draw

    sys.stdout.write(draw(pipeline, args.format))
    return 0


def _run(args: argparse.Namespace) -> int:
    try:
        pipeline = _load(args.module)
        pipeline.named(args.only)
        conf = dict(_setting(setting) for setting in args.conf)
    except (_Refused, ValueError) as failure:
        return _refuse(failure)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(pipeline.name).config(map={"spark.ui.showConsoleProgress": "false", **conf})
    master = args.master or conf.get("spark.master") or os.environ.get("MASTER") or "local[*]"
    spark = builder.master(master).getOrCreate()
    try:
        try:
            running = pipeline.start(spark, args.root.resolve(), address=args.address, only=args.only)
        except (OSError, TypeError, ValueError) as failure:
            return _refuse(failure)
        return running.wait(until_finished=args.until_finished)
    finally:
        spark.stop()


def _remove(args: argparse.Namespace) -> int:
    try:
        pipeline = _load(args.module)
    except _Refused as failure:
        return _refuse(failure)
    from lowwater_pipeline.graph.removal import Refused, check_unread, drain, remove
    from lowwater_pipeline.graph.running import print_line

    root = args.root.resolve()
    try:
        check_unread(pipeline, args.name)
        if args.drain:
            drain(root, args.name, within=args.within, tell=print_line)
        with lowwater.connect(args.address) as client:
            done = remove(root, args.name, client, discard=args.discard, drained=args.drain)
    except (Refused, errors.InvalidArgument) as failure:
        return _refuse(failure)
    except errors.LowwaterError as failure:
        _refuse(failure)
        return AWAY
    sys.stdout.write(f"{done}.\n")
    return 0


def _setting(setting: str) -> tuple[str, str]:
    name, equals, value = setting.partition("=")
    if not equals or not name:
        msg = f"--conf {setting} is no setting: write NAME=VALUE"
        raise _Refused(msg)
    return name, value


def _refuse(failure: Exception) -> int:
    sys.stderr.write(f"lowwater-pipeline: {failure}\n")
    return REFUSED
