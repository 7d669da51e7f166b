"""Computations on Spark, whose variants take turns in one run.

They measure windows by timers beside Spark's own windowed count; rows into Kafka, strong or weak,
with copies dropped or not (MillWheel 8.1); and chains of computations, split and fused.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from confluent_kafka import Consumer, TopicPartition

import lowwater
from benchmarks import child
from benchmarks.result import Result, Spread
from benchmarks.spark_overhead import PATIENCE, START, session
from lowwater_pipeline.computation import (
    MINUTE,
    Codec,
    Computation,
    Context,
    Input,
    Output,
    Record,
    Strong,
    Timer,
    Weak,
    floor,
    start,
)
from tests.kit.kafka import Kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    import lowwater_spark as lws


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurement."""

    keys: int
    """Each has a window in each round."""
    records: int
    """Number of records of each key in a round."""
    sent: int
    """Records in a batch whose rows go to Kafka."""
    rounds: int
    warm_up: int
    """Rounds before that do not count: the JVM compiles what it runs."""


FULL: Final = Size(20_000, 10, 1_000, rounds=10, warm_up=4)
QUICK: Final = Size(500, 2, 20, rounds=2, warm_up=1)

RANGES: Final = 8
FIRST: Final = START - START % MINUTE + MINUTE
"""Where the first window begins."""

TIMERS, JVM = "timers", "jvm"


class Counts(Computation):
    """Counts per key and minute."""

    name = TIMERS
    inputs: ClassVar[Sequence[Input]] = [Input("source", key="key", event_time="t")]
    outputs: ClassVar[Mapping[str, str | Output]] = {
        "windows": Output("key string, start timestamp, n long", event_time="start")
    }
    state = Codec(dict[int, int])
    stamp = timedelta(minutes=1)

    def process_record(self, ctx: Context, record: Record) -> None:
        """Count it."""
        begin = floor(record.timestamp, MINUTE)
        ctx.state[begin] = ctx.state.get(begin, 0) + 1
        ctx.set_timer("end", begin + MINUTE, hold=begin)

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        """Say how many there were."""
        begin = timer.at - MINUTE
        ctx.produce("windows", {"key": ctx.key, "start": begin, "n": ctx.state.pop(begin)})


class Echo(Computation):
    """Passes records on."""

    outputs: ClassVar[Mapping[str, str | Output]] = {"rows": Output("id string, t timestamp", event_time="t")}

    def __init__(self, name: str, productions: Strong | Weak, *, once: bool) -> None:
        self.name = name  # type: ignore[misc]
        self.inputs = [Input("source", key="id", event_time="t", id="id", once=once)]  # type: ignore[misc]
        self.productions = productions  # type: ignore[misc]

    def process_record(self, ctx: Context, record: Record) -> None:
        """Pass it on."""
        ctx.produce("rows", {"id": record["id"], "t": record.timestamp})


def run(folder: Path, *, quick: bool) -> list[Result]:
    """Measure."""
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        server = stack.enter_context(child.authority(folder / "authority"))
        spark = stack.enter_context(session())
        lw = stack.enter_context(lowwater.connect(server.address))
        return [
            *_windows(spark, lw, server.address, folder, size),
            *_depths(spark, lw, server.address, folder, size),
            *_productions(spark, server.address, folder, size),
        ]


# -- windows ---------------------------------------------------------------------------------------


def _windows(spark: SparkSession, lw: lowwater.Client, address: str, folder: Path, size: Size) -> list[Result]:
    lw.register("source")
    lease = lw.worker("source", identity="benchmark").claim()

    def advance(micros: int) -> None:
        lease.advance(None, oldest=None, frontier=lowwater.Watermark(micros))
        lease.flush(PATIENCE)

    advance(FIRST)
    arms = [_Windows(spark, folder / kind, kind, address) for kind in (TIMERS, JVM)]
    try:
        for turn in range(size.warm_up + size.rounds):
            begin = FIRST + turn * MINUTE
            file = _records(folder / f"windows-{turn}.parquet", size, begin)
            for arm in arms[turn % 2 :] + arms[: turn % 2]:
                arm.feed(file)
                if arm.kind == TIMERS:
                    advance(begin + MINUTE)
                # Spark's watermark closes the windows of the minute before; the low watermark those
                # of this one.
                windows = size.keys if arm.kind == TIMERS or turn else 0
                arm.closed(windows)
    finally:
        for arm in arms:
            arm.query.stop()
    took = {arm.kind: Spread(tuple(arm.milliseconds[size.warm_up :])) for arm in arms}
    facts: dict[str, object] = {"n": size.keys * size.records, "keys": size.keys, "ranges": RANGES}
    return [
        Result("computation", "windows", took[TIMERS], "ms", "Spark's windowed count, RocksDB", took[JVM], facts),
    ]


def _records(path: Path, size: Size, begin: int) -> Path:
    """Write the records of a minute, the keys in no order."""
    import pyarrow as pa
    import pyarrow.parquet

    keys = [f"key-{key:08}" for key in range(size.keys) for _ in range(size.records)]
    random.Random(begin).shuffle(keys)
    times = [begin + number * MINUTE // len(keys) for number in range(len(keys))]
    pyarrow.parquet.write_table(pa.table({"key": keys, "t": pa.array(times, pa.timestamp("us", "UTC"))}), path)
    return path


class _Windows:
    """One of the two, with a directory of its own to read.

    Each round it reads a minute and closes a window of each key, in two batches.
    """

    def __init__(self, spark: SparkSession, folder: Path, kind: str, address: str) -> None:
        from pyspark.sql import functions as sf

        self.kind = kind
        self.milliseconds: list[float] = []
        self._folder = folder / "in"
        self._folder.mkdir(parents=True)
        self._output = f"file://{folder / 'out'}"
        self._counted = 0
        self._batches = -1
        rows = spark.readStream.schema("key string, t timestamp").parquet(f"file://{self._folder}")
        if kind == TIMERS:
            query = start(
                Counts(), rows, self._emitted, checkpoint=folder / "checkpoint", ranges=RANGES, address=address
            )
            self.query: StreamingQuery = query.query
            return
        spark.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        counted = rows.withWatermark("t", "0 seconds").groupBy(sf.window("t", "1 minute"), "key").count()
        writer = counted.writeStream.outputMode("append").foreachBatch(self._write)
        self.query = writer.option("checkpointLocation", f"file://{folder / 'checkpoint'}").start()

    def _emitted(self, outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
        self._write(outputs["windows"], batch.id)

    def _write(self, rows: DataFrame, _: int) -> None:
        import pyarrow.parquet

        rows.write.mode("overwrite").parquet(self._output)
        self._counted += pyarrow.parquet.read_table(self._output.removeprefix("file://"), columns=["key"]).num_rows

    def feed(self, file: Path) -> None:
        """Give it a minute."""
        self._counted = 0
        os.link(file, self._folder / file.name)
        self.query.processAllAvailable()

    def closed(self, windows: int) -> None:
        """Wait until so many windows are closed; return the batches' time since the last call."""
        deadline = time.monotonic() + PATIENCE
        while True:
            done = [p for p in self.query.recentProgress if p.batchId > self._batches]
            if (
                self._counted == windows
                and done
                and sum(p.durationMs.get("addBatch", 0) > 0 for p in done) >= 2 - (not windows)
            ):
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.kind} has closed {self._counted} windows, not {windows}")
            time.sleep(0.01)
        self._batches = max(p.batchId for p in done)
        self.milliseconds.append(float(sum(p.durationMs.get("triggerExecution", 0) for p in done)))


# -- chains ----------------------------------------------------------------------------------------

DEEPEST: Final = 5

SPLIT, FUSED = "split", "fused"


class Passes(Computation):
    """Passes records on: one of a chain."""

    outputs: ClassVar[Mapping[str, str | Output]] = {"rows": Output("id string, t timestamp", event_time="t")}

    def __init__(self, name: str, source: str) -> None:
        self.name = name  # type: ignore[misc]
        self.inputs = [Input(source, key="id", event_time="t")]  # type: ignore[misc]

    def process_record(self, ctx: Context, record: Record) -> None:
        """Pass it on."""
        ctx.produce("rows", {"id": record["id"], "t": record.timestamp})


def _depths(spark: SparkSession, lw: lowwater.Client, address: str, folder: Path, size: Size) -> list[Result]:
    results = []
    for depth in range(1, DEEPEST + 1):
        chains = [_Chain(spark, lw, address, folder, kind, depth) for kind in (SPLIT, FUSED)]
        try:
            for turn in range(size.warm_up + size.rounds):
                file = _ids(folder / f"depth-{depth}-{turn}.parquet", size, turn)
                for chain in chains[turn % 2 :] + chains[: turn % 2]:
                    chain.feed(file, FIRST + 10**9 + (turn + 1) * size.sent)
        finally:
            for chain in chains:
                chain.stop()
        took = {chain.kind: Spread(tuple(chain.milliseconds[size.warm_up :])) for chain in chains}
        facts: dict[str, object] = {"n": size.sent, "ranges": RANGES}
        results.append(
            Result("computation", f"depth_{depth}_{SPLIT}", took[SPLIT], "ms", "fused", took[FUSED], facts),
        )
    return results


class _Chain:
    """Chain of computations, as one query, or as queries with folders between them."""

    def __init__(
        self, spark: SparkSession, lw: lowwater.Client, address: str, folder: Path, kind: str, depth: int
    ) -> None:
        self.kind = kind
        self.milliseconds: list[float] = []
        self._lw = lw
        place = folder / f"depth-{depth}-{kind}"
        self._folder = place / "in"
        self._folder.mkdir(parents=True)
        source = f"{kind}-{depth}-source"
        lw.register(source)
        self._lease = lw.worker(source, identity=source).claim()
        names = [f"{kind}-{depth}-{number}" for number in range(depth)]
        self._last = names[-1]
        chain = [Passes(name, before) for name, before in zip(names, [source, *names], strict=False)]
        options: dict[str, Any] = {"ranges": RANGES, "address": address}

        def read(folder: Path) -> DataFrame:
            folder.mkdir(exist_ok=True)
            rows = spark.readStream.schema("id string, t timestamp").option("recursiveFileLookup", "true")
            return rows.parquet(f"file://{folder}")

        def write(outputs: Mapping[str, DataFrame], batch: lws.Batch, into: Path) -> None:
            batch.write(outputs["rows"], into)

        if kind == FUSED:
            writes = dict.fromkeys(names[:-1]) | {names[-1]: partial(write, into=place / "out")}
            self._queries = [
                start(chain[0], read(self._folder), writes, checkpoint=place / "checkpoint", then=chain[1:], **options)
            ]
        else:
            folders = [self._folder, *(place / name for name in names)]
            self._queries = [
                start(
                    computation,
                    read(one),
                    partial(write, into=other),
                    checkpoint=place / f"{computation.name}.checkpoint",
                    **options,
                )
                for computation, one, other in zip(chain, folders[:-1], folders[1:], strict=True)
            ]

    def feed(self, file: Path, through: int) -> None:
        """Give it one batch, and wait until the last one has passed its records."""
        began = time.monotonic()
        os.link(file, self._folder / file.name)
        self._lease.advance(None, oldest=None, frontier=lowwater.Watermark(through))
        self._lw.wait(self._last, lowwater.Watermark(through), timeout=PATIENCE)
        self.milliseconds.append((time.monotonic() - began) * 1000)

    def stop(self) -> None:
        """Stop its queries."""
        for query in self._queries:
            query.stop()


# -- productions -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sender:
    """A computation whose rows go to a topic of its own."""

    name: str
    folder: Path
    consumer: Consumer
    query: lws.TrackedQuery
    waits: list[list[float]] = field(default_factory=list[list[float]])
    """Milliseconds from each row's file to a reader, for each round."""

    def feed(self, file: Path, rows: int) -> None:
        """Give it one batch, and wait for its rows."""
        began, waits = time.monotonic(), list[float]()
        os.link(file, self.folder / file.name)
        while len(waits) < rows:
            message = self.consumer.poll(PATIENCE)
            if message is None or message.error() is not None:
                raise RuntimeError(f"{self.name} has sent {len(waits)} rows of {rows}")
            waits.append((time.monotonic() - began) * 1000)
        self.waits.append(waits)
        self.query.query.processAllAvailable()


ARMS: Final = [(weak, once) for weak in (False, True) for once in (False, True)]


def _name(*, weak: bool, once: bool) -> str:
    return f"{'weak' if weak else 'strong'}_{'with' if once else 'without'}_dedup"


def _productions(spark: SparkSession, address: str, folder: Path, size: Size) -> list[Result]:
    with ExitStack() as stack:
        kafka = stack.enter_context(Kafka(folder / "kafka"))
        senders = [_sender(spark, address, folder, kafka, stack, weak=weak, once=once) for weak, once in ARMS]
        for turn in range(size.warm_up + size.rounds):
            file = _ids(folder / f"sent-{turn}.parquet", size, turn)
            first = turn % len(senders)
            for sender in senders[first:] + senders[:first]:
                sender.feed(file, size.sent)
        waits = {sender.name: sender.waits[size.warm_up :] for sender in senders}
    base = _name(weak=False, once=True)
    return [
        Result(
            "computation",
            f"latency_p{percent}_{name}",
            Spread.percentile(waits[name], percent),
            "ms",
            "strong productions with copies dropped",
            Spread.percentile(waits[base], percent),
            {"n": size.sent, "ranges": RANGES},
        )
        for percent in (50, 95, 99)
        for name in waits
    ]


def _sender(
    spark: SparkSession, address: str, folder: Path, kafka: Kafka, stack: ExitStack, *, weak: bool, once: bool
) -> _Sender:
    from pyspark.sql import functions as sf

    name = _name(weak=weak, once=once)
    place = folder / name / "in"
    place.mkdir(parents=True)
    kafka.create(name)
    options = {"kafka.bootstrap.servers": kafka.address}

    def write(outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
        if "rows" in outputs:
            value = sf.to_json(sf.struct("*")).alias("value")
            batch.write_kafka(outputs["rows"].select(sf.col("id").alias("key"), value), name, options=options, slots=2)

    productions = Weak({"rows": name}, options) if weak else Strong()
    rows = spark.readStream.schema("id string, t timestamp").parquet(f"file://{place}")
    query = start(
        Echo(name, productions, once=once),
        rows,
        write,
        checkpoint=folder / name / "checkpoint",
        ranges=RANGES,
        address=address,
    )
    stack.callback(query.stop)
    settings = {"group.id": name, "isolation.level": "read_committed", "fetch.wait.max.ms": 5}
    consumer = stack.enter_context(closing(Consumer({"bootstrap.servers": kafka.address, "log_level": 0, **settings})))
    consumer.assign([TopicPartition(name, 0, 0)])
    return _Sender(name, place, consumer, query)


def _ids(path: Path, size: Size, turn: int) -> Path:
    """Write the records of a batch: every arm reads the same."""
    import pyarrow as pa
    import pyarrow.parquet

    ids = [f"{turn:04}-{number:08}" for number in range(size.sent)]
    times = pa.array(
        [FIRST + 10**9 + turn * size.sent + number for number in range(size.sent)], pa.timestamp("us", "UTC")
    )
    pyarrow.parquet.write_table(pa.table({"id": ids, "t": times}), path)
    return path
