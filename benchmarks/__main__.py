"""The command: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import (
    attach,
    batches,
    computation,
    dedup,
    dedup_spark,
    depth,
    failover,
    fanout,
    forgetting,
    growth,
    guarded,
    herd,
    hot_ranges,
    idle,
    incident,
    ingest,
    latency,
    lateness_budget,
    listings,
    messages,
    objects,
    page,
    pipeline,
    recovery,
    register,
    result,
    scale,
    skew,
    spark_overhead,
    streams,
    takeover,
    tree,
)

BENCHMARKS: Final[dict[str, Callable[..., list[result.Result]]]] = {
    "ingest": ingest.run,
    "batches": batches.run,
    "messages": messages.run,
    "latency": latency.run,
    "depth": depth.run,
    "fanout": fanout.run,
    "scale": scale.run,
    "growth": growth.run,
    "recovery": recovery.run,
    "register": register.run,
    "takeover": takeover.run,
    "herd": herd.run,
    "failover": failover.run,
    "attach": attach.run,
    "spark_overhead": spark_overhead.run,
    "idle": idle.run,
    "pipeline": pipeline.run,
    "streams": streams.run,
    "page": page.run,
    "incident": incident.run,
    "listing": listings.run,
    "objects": objects.run,
    "forgetting": forgetting.run,
    "skew": skew.run,
    "guarded": guarded.run,
    "dedup": dedup.run,
    "dedup_spark": dedup_spark.run,
    "computation": computation.run,
    "hot_ranges": hot_ranges.run,
    "lateness_budget": lateness_budget.run,
    "tree": tree.run,
}

ABOUT: Final = """\
Measure lowwater against what else could do the same work. A benchmark and its baselines run side by side on this
machine, take turns by rounds, and the median round counts: read the ratio, not the figure.

  ingest    durable interval updates a second on one shard of 1 M ranges, against a Redis sorted set
            (ZADD + ZRANGE) and against bare gRPC + numpy that journals nothing          about 2 minutes
  batches   the same by how many updates a message has, 1 to 100,000, against bare gRPC + numpy about two minutes
  messages  messages of one update a second that a shard takes, by how many streams they come on, and the processor
            time of each, also at 500 a second; against one stream                       about two minutes
  latency   report sent -> subscriber holds the new watermark, journaled, 1 M ranges,
            against a bare two-hop gRPC relay                                            about half a minute
  depth     ten computations in one process, and in ten, each folding the one before it: from a frontier at the
            source until the end shows it, against ten round trips of a bare echo        about four minutes
  fanout    report sent -> each of 1,000 subscribers holds the new watermark, ten times a second, and the processor
            share of 0, 1,000 and 8,000 idle streams, against a bare grpc.aio server of
            the same bytes                                                               about 5 minutes
  scale     the same latency at 1 k to 50 M ranges, and bytes a range                    about two minutes, 4 GB
  growth    a round in which one of 100 to 10,000 claims reports, with heuristic watermarks and without, and
            rounds of 100 to 10,000 computations, against the smallest                   about a minute
  recovery  kill -9 of an authority with 500 k and with 10 M ranges -> it serves them again, over the same journal;
            against one that holds nothing                                               about three minutes, 3 GB
  register  500 computations registered at once, with 3,500 there already, against none there, and the
            longest wait of another client's report meanwhile; over SQLite and over Redis      about 2 minutes
  takeover  one of two shards dies with about a thousand computations -> the other one serves them, each against a
            synced write to the same Redis; and the longest wait of a report to that one   about 3 minutes
  herd      2,000 workers come back at once after kill -9, and their beats after that, against the
            same without admission and without spread beats; then after kill -9 of one of
            three shards, at the one that takes over                                     about 7 minutes
  failover  kill -9 of a shard -> subscribers hold a new value of what it served, 50 times;
            against the silence after which a shard counts as dead                       about 3 minutes
  attach    a micro-batch of an attached Spark query, the authority answering, refusing, frozen and slow;
            against the same query by itself                                             about 4 minutes
  spark_overhead
            a micro-batch of 1 M rows (group, count, write) tracked over 64 key ranges,
            against the same query untracked                                             about 2 minutes
  idle      the share of a core that a tracked query takes while nothing comes, in the driver's Python and in the
            JVM, against the same query untracked                                        about 25 minutes
  pipeline  the lag that each of three stages adds to the low watermark, as foreachBatch, as plain queries
            and with driven windows, against the same queries by themselves              about 4 minutes
  streams   the same where rows go through topics of Kafka and tables of Delta, and what tracking adds to a
            batch, against the same queries with Spark's own sinks; needs scripts/setup.sh --tests   about 10 minutes
  page      the round trip of a report while 1,000 computations change ten times a second and 20 viewers
            watch the status page, against the same with --http off                      about 3 minutes
  incident  one executor of a pipeline is paused: seconds until `lowwater why`, the page and an alert
            each name its key range and worker; needs scripts/setup.sh --tests           about 10 minutes
  listing   a driver lists a source with 50,000 files, or handed-over batches, of which it has read all but ten;
            against the same without what it knows of them, and against their names alone  about a minute
  objects   a driver lists a source with 1,000, 10,000 and 100,000 objects in a store, against one listing by
            Hadoop's client alone; needs scripts/setup.sh --tests                        about two minutes
  forgetting what a batch costs a driver whose query has read a million files or has asked for 500,000 empty
            batches: each tenth batch against the others, the last ticks against the first  about ten minutes
  skew      one partition of Kafka falls 24 hours behind: the state of hourly windows and the heap of their JVM,
            with skew_limit, against the same without; needs scripts/setup.sh --tests    some minutes
  guarded   10,000 rows written into PostgreSQL and into Redis under a claim that the store checks,
            against the same rows without                                              about half a minute
  dedup     messages that a core passes on with deduplication over Kafka, against a plain loop with one look-up a
            message, and a copy without ids; needs scripts/setup.sh --tests              about two minutes
  dedup_spark
            a micro-batch of 20,000 rows that a tracked stage deduplicates with a million ids, with and without
            filters, against the same without deduplication and a rewrite of all ids      about four minutes
  hot_ranges
            a micro-batch of 10,000 rows of which all but one in a thousand come to one of four key ranges, and the
            lag of its low watermark, after that range is split, against before           about two minutes
  lateness_budget
            the share of the flights of 2013, and of records made up, that comes behind a lateness budget,
            against a constant delay                                                      about two minutes
  tree      a computation cut into slices on two and three shards: the lag of its low watermark, what 10, 100 and 1,000
            slices that report all the time take of the root, and kill -9 of the shard of a slice and of the root;
            against one that is not cut                                                   about six minutes
"""

MORE: Final = """\
Each line has: benchmark, metric, value, unit, baseline, baseline_value, ratio (value / baseline_value); low and high
are the least and greatest round. A baseline that cannot run here has the value null, and the reason.
--quick proves that the benchmarks work; its figures mean nothing.

examples: python -m benchmarks latency
          python -m benchmarks --json > benchmarks/results/benchmarks.jsonl
"""


def main() -> int:
    """Run what was asked for."""
    parse = argparse.ArgumentParser(
        "python -m benchmarks", description=ABOUT, epilog=MORE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; all when left out")
    parse.add_argument("--json", action="store_true", help="print one JSON object a line")
    parse.add_argument("--quick", action="store_true", help="small sizes, a few seconds")
    parse.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        default=Path(tempfile.gettempdir()),
        help="where journals go: on a real disk, or a sync costs nothing (default: %(default)s)",
    )
    args = parse.parse_args()
    if not args.data.is_dir():
        parse.error(f"--data {args.data}: no such folder, make it first")
    for name in args.names:
        if name not in BENCHMARKS:
            parse.error(f"there is no benchmark {name!r}; choose from {', '.join(BENCHMARKS)}")
    # A terminated benchmark stops its servers like an interrupted one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = list(dict.fromkeys(args.names or BENCHMARKS))
    if len(names) > 1:
        return max(_apart(name, args) for name in names)
    [name] = names
    machine = result.machine()
    print(f"{name}: running", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="lowwater-benchmark-", dir=args.data) as folder:
        results = BENCHMARKS[name](Path(folder), quick=args.quick)
    for one in results:
        result.write(one, machine, as_json=args.json)
    return 0


def _apart(name: str, args: argparse.Namespace) -> int:
    """Run one benchmark in a process of its own, and return its exit code.

    A JVM keeps the connectors of its first session, and a process keeps memory.
    """
    flags = [f"--{flag}" for flag in ("json", "quick") if getattr(args, flag)]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks", *flags, "--data", str(args.data), name])
    try:
        return process.wait()
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
