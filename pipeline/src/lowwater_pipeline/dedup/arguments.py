"""The arguments of ``lowwater-pipeline dedup``, and its process."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from prometheus_client import CollectorRegistry, start_http_server

import lowwater
from lowwater import errors
from lowwater_pipeline.dedup.errors import Held, Refused
from lowwater_pipeline.dedup.figures import Collector
from lowwater_pipeline.dedup.ids import Field, Partitioner
from lowwater_pipeline.dedup.job import Job
from lowwater_pipeline.dedup.senders import Senders
from lowwater_pipeline.dedup.settings import Settings, client_settings
from lowwater_pipeline.dedup.window import Window, WindowKind

__all__ = ["add", "run", "settings_of"]

FAILED: Final = 2
"""Exit code when the arguments are refused before work begins."""

REFUSED: Final = 1
"""Exit code when a partition has stopped by itself."""

_DESCRIPTION: Final = """\
Pass each message of a topic on to another topic once.

Senders that repeat what was not acknowledged put copies into a topic. This job reads it, remembers the ids of what it has passed on, and drops the copies. A row and the offset
that it was read at are committed in one Kafka transaction, and the output tells which ids were passed on: so wherever the job is killed, nothing is lost and nothing comes
twice within the window. Run it in as many processes as you like, with the same arguments: they share the partitions as a consumer group.
"""

_EPILOG: Final = """\
windows, for how long an id is remembered:
  1000000           the last million rows of each output partition
  1h                an hour by the brokers' clocks; the input needs message.timestamp.type=LogAppendTime
  watermark:orders  as long as the senders may still repeat it: until the low watermark of the computation that they report as
                    has passed its event time. What comes later is undecidable, and goes to a topic of its own

refused, and why (the log says it with the fix; the other partitions go on):
  a message without an id, unless --unreadable says where to; an id in a partition where its copies would not come; an output
  with rows of somebody else's; a topic that was made anew or has another number of partitions; offsets that somebody has set;
  a window that the output's log does not hold any more

The topics must be there, with equally many partitions. Nobody else may write to the output: give the right to this job's user alone.
Consumers of the output need isolation.level=read_committed.

examples:
  lowwater-pipeline dedup --brokers broker:9092 --input orders --output orders-once --id key --window 1000000 --state /var/lib/dedup
  lowwater-pipeline dedup --brokers broker:9092 --input orders --output orders-once --id header:message-id --window watermark:orders \\
      --event-time json:ordered_at --undecidable orders-undecidable --address lowwater:7420 --state /var/lib/dedup --http 0.0.0.0:9400

Exit codes: 0 told to stop, 1 a partition has stopped by itself, 2 refused before it began.
"""

_SECRET: Final = ("password", "passphrase", "private.key", "secret", "ssl.key.pem")
"""Words in the names of settings whose values are secret."""

_STOPS: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def add(commands: Any) -> None:
    """Add the command to the subparsers."""
    parse = commands.add_parser(
        "dedup", help="pass each message of a Kafka topic on once", description=_DESCRIPTION, epilog=_EPILOG
    )
    parse.set_defaults(run=run)
    parse.add_argument("--brokers", metavar="HOST:PORT,...", required=True, help="where the clients begin")
    parse.add_argument("--input", metavar="TOPIC", required=True, help="what the senders write to")
    parse.add_argument("--output", metavar="TOPIC", required=True, help="where each message comes once")
    parse.add_argument(
        "--id",
        metavar="FIELD",
        required=True,
        help="what identifies a message: key, header:NAME or json:FIELD; producers must choose the partition by it",
    )
    parse.add_argument(
        "--window",
        metavar="WINDOW",
        required=True,
        help="how long an id is remembered: ROWS, DURATION or watermark:NAME,...",
    )
    parse.add_argument(
        "--state",
        metavar="DIR",
        type=Path,
        required=True,
        help="a directory of this process's own, for what it remembers; when it is lost, the output is read again",
    )
    parse.add_argument(
        "--group",
        metavar="NAME",
        help="the consumer group, and the life of this deduplicator: another one remembers nothing (default: lowwater-dedup.INPUT.OUTPUT)",
    )
    parse.add_argument(
        "--partitioner",
        choices=[partitioner.value for partitioner in Partitioner],
        default=Partitioner.MURMUR2.value,
        help="how the producers put ids into partitions: murmur2 is that of Java, Kafka Connect and Spark, crc32 that of librdkafka (default: %(default)s)",
    )
    parse.add_argument(
        "--event-time",
        metavar="FIELD",
        help="of windows by a watermark: header:NAME or json:FIELD, in microseconds or ISO 8601, or timestamp. The same in all copies of a message",
    )
    parse.add_argument(
        "--undecidable", metavar="TOPIC", help="of windows by a watermark: where messages go that are older than it"
    )
    parse.add_argument(
        "--unreadable",
        metavar="TOPIC",
        help="where messages go that have no id or no event time (default: a partition stops at one)",
    )
    parse.add_argument(
        "--address",
        metavar="HOST:PORT,...",
        help="the authority that knows the watermark (default: LOWWATER_ADDRESS or localhost:7420)",
    )
    parse.add_argument(
        "--kafka",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting of Kafka's clients (librdkafka), like security.protocol=ssl",
    )
    parse.add_argument(
        "--kafka-file",
        metavar="FILE",
        type=Path,
        help="a file of such settings, one a line; what is secret belongs there",
    )
    parse.add_argument("--http", metavar="HOST:PORT", help="where to serve figures for Prometheus (default: nowhere)")
    parse.add_argument(
        "--adopt",
        action="store_true",
        help="go on at the beginning of the input, where it was made anew or has lost what was to come next",
    )
    parse.add_argument(
        "--accept-shorter-window",
        action="store_true",
        help="begin also where the output's log does not hold the whole window any more",
    )


def settings_of(args: argparse.Namespace) -> Settings:
    """Return the settings that the arguments give. Raises ValueError."""
    options: dict[str, str] = {}
    if args.kafka_file is not None:
        for number, line in enumerate(args.kafka_file.read_text("utf-8").split("\n"), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                # The message names the line by number: a secret in it would get into a log.
                options |= [_option(line.strip(), f"{args.kafka_file}: line {number}")]
    for setting in args.kafka:
        name, value = _option(setting, f"--kafka: {setting!r}")
        if any(word in name for word in _SECRET):
            msg = f"--kafka {name}=...: the list of processes shows it to everybody. Put the line into a file that --kafka-file names."
            raise ValueError(msg)
        options[name] = value
    event_time = None if args.event_time is None else Field.parse(args.event_time)
    return Settings(
        input=args.input,
        output=args.output,
        group=args.group or f"lowwater-dedup.{args.input}.{args.output}",
        state=args.state,
        clients=client_settings(args.brokers, options),
        id=Field.parse(args.id),
        window=Window.parse(args.window, event_time),
        partitioner=Partitioner(args.partitioner),
        unreadable=args.unreadable,
        undecidable=args.undecidable,
        accept_shorter=args.accept_shorter_window,
        adopt=args.adopt,
    )


def _option(text: str, where: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        msg = f"{where} is no setting; write NAME=VALUE"
        raise ValueError(msg)
    return name.strip(), value.strip()


def run(args: argparse.Namespace) -> int:
    """Work until a signal stops the process; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stopping = threading.Event()
    for stop in _STOPS:
        signal.signal(stop, lambda _number, _frame: stopping.set())
    try:
        settings = settings_of(args)
        with contextlib.ExitStack() as stack:
            low: Any = {}
            if settings.window.kind is WindowKind.WATERMARK:
                client = stack.enter_context(lowwater.connect(args.address))
                low["low"] = stack.enter_context(Senders.of(settings.window.names, client)).low
            job = stack.enter_context(Job(settings, **low))
            if args.http is not None:
                _serve(job, args.http)
            refused = job.run(stopping)
            total = job.counts().values()
    except (Refused, Held, KafkaException, errors.LowwaterError, OSError, ValueError) as error:
        print(f"lowwater-pipeline dedup: {error}", file=sys.stderr)  # noqa: T201 - the answer to a command
        return FAILED
    totals = {
        name: sum(getattr(counts, name) for counts in total) for name in ("admitted", "duplicates", "undecidable")
    }
    logging.getLogger("lowwater.pipeline").info(
        "ended: %s", ", ".join(f"{name} {value}" for name, value in totals.items())
    )
    return REFUSED if refused else 0


def _serve(job: Job, where: str) -> None:
    host, colon, port = where.rpartition(":")
    if not colon or not port.isdigit():
        msg = f"--http {where}: write HOST:PORT"
        raise ValueError(msg)
    registry = CollectorRegistry()
    registry.register(Collector(job))
    start_http_server(int(port), host or "0.0.0.0", registry)
