"""The pipeline of the chaos, over Kafka and Delta: three stages, each an application of its own on a real cluster, and a job in Scala beside them.

    topic fed -> landed -> table landed -> relayed -> topic relayed -> hourly -> table hourly
                                                           topic relayed -> copied (Scala, a sidecar beside it) -> files

Three brokers, two shards of the authority over a Redis. The producer is plain Python: it writes rows into the three partitions of ``fed``, and promises what none
of them comes below. A partition of it can be stalled, and its rows then come hours late.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from lowwater.watermark import MAX
from scripts.jars import jars
from tests.cluster.application import Application, Group
from tests.cluster.beside import Beside, Copying, compiled
from tests.cluster.evidence import is_removed, newest_application
from tests.cluster.oracle import Put, Written, judge_rows, judge_source, judge_windows
from tests.cluster.output import Committed, micros
from tests.cluster.shipping import Shipped
from tests.cluster.standalone import Standalone
from tests.cluster.table import Table
from tests.cluster.tally import Tally
from tests.cluster.watching import Watching
from tests.kit import delta
from tests.kit.eventually import TooLate, eventually
from tests.kit.kafka import Broker, Kafka, Row
from tests.kit.times import HOUR, MINUTE
from tests.process.sharding import Shard, Sharded, served

START: Final = round(datetime(2013, 1, 9, tzinfo=UTC).timestamp() * 1_000_000)
PATIENCE: Final = 600.0
"""Seconds within which everything must have recovered from a fault."""
SOON: Final = 10.0
"""Seconds within which what tells of a fault that is over can be read."""
PARTITIONS: Final = 3
STAGES: Final = ("landed", "relayed", "hourly")
NAMES: Final = ("fed", *STAGES, "copied")

STEPS: Final[Mapping[str, Sequence[str]]] = {
    "landed": ("begun", "written", "staged", "prepared", "committed"),
    "relayed": ("begun", "rows staged", "rows published", "staged", "prepared", "committed"),
    "hourly": ("begun", "state", "written", "staged", "prepared", "committed"),
}
"""Where the driver of a stage can be told to kill itself."""

CLASSPATH: Final = os.pathsep.join(str(jar) for kind in ("kafka", "delta") for jar in jars(kind))
CONF: Final[Mapping[str, str]] = {
    **delta.SETTINGS,
    "spark.driver.extraClassPath": CLASSPATH,
    "spark.executor.extraClassPath": CLASSPATH,
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "2",
    # A query that has nothing to do asks its source a hundred times a second by default.
    "spark.sql.streaming.pollingDelay": "300ms",
    "spark.log.level": "WARN",
    "spark.executor.syncLogLevel.enabled": "true",
    # batch.write_kafka refuses it: two attempts of a task would end each other's transaction.
    "spark.speculation": "false",
}
BROKER: Final = {
    # A broker that does not answer has lost its partitions after this time.
    "broker.session.timeout.ms": 6_000,
    "broker.heartbeat.interval.ms": 1_000,
    # Who leads is changed by the faults alone.
    "auto.leader.rebalance.enable": "false",
}


SHARES = {"stall": 3, "copy": 2, "sidecar": 2, "driver": 3, "executor": 6, "failover": 2, "leader": 2, "broker": 2}
"""The planned number of faults of each kind, in the order in which they strike and end; a stalled partition goes on when all else is back."""
CALLED: Final = {
    "stall": "partitions_stalled",
    "sidecar": "sidecar_kills",
    "copy": "scala_job_kills",
    "executor": "executor_kills",
    "driver": "driver_kills",
    "failover": "authority_failovers",
    "leader": "leader_changes",
    "broker": "broker_restarts",
}
MOST: Final = 9
"""Faults of one round: each kind once, and executors of the two stages whose driver lives."""


def plan(rng: random.Random, tally: Tally, faults: int) -> list[str]:
    """Choose the faults of a round: what is furthest behind its share, and no more than is missing."""
    kinds: list[str] = []
    possible = set(SHARES)
    for _ in range(min(rng.randint(7, MOST), faults - tally.total)):
        kind = tally.behind(rng, possible, kinds)
        kinds.append(kind)
        if kind in ("broker", "leader"):
            possible -= {"broker", "leader"}  # two brokers must be there
        elif kind != "executor" or kinds.count(kind) == len(STAGES) - 1:
            possible.discard(kind)
        if not possible:
            break
    return sorted(kinds, key=list(SHARES).index)


Fault = Generator[None, None, bool]
"""A fault: it strikes; what it has taken away comes back; and when all has recovered it tells whether it took effect."""


class Streams:
    """The pipeline, what has been put into it, what has come out, and what was published."""

    def __init__(
        self, folder: Path, shipped: Shipped, cluster: Standalone, authority: Sharded, kafka: Kafka, seed: int
    ) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.cluster = cluster
        self.authority = authority
        self.kafka = kafka
        self.orders = folder / "orders"
        self.orders.mkdir()
        self.puts: list[Put] = []
        self.lows = [START] * PARTITIONS
        """The promise of each of the producer's partitions."""
        self.stalled: int | None = None
        self.tally = Tally(SHARES, CALLED)
        self._faults: Mapping[str, Callable[[], Fault]] = {
            "stall": self._stall,
            "sidecar": self._kill_sidecar,
            "copy": self._kill_copy,
            "executor": self._kill_executor,
            "driver": self._kill_driver,
            "failover": self._kill_shard,
            "leader": self._change_leader,
            "broker": self._restart_broker,
        }
        self._struck: set[Group] = set()
        """The groups that are killed in this round and started again."""
        self._hit: set[str] = set()
        """Stages to which something happens in this round."""
        self._number = 0
        kafka.create("fed", PARTITIONS)
        # So that each row says since when it was there at the earliest.
        kafka.create("relayed", PARTITIONS, message_timestamp_type="LogAppendTime")
        program = Path(__file__).with_name("streams_driver.py")
        self.applications = {name: Application(cluster, shipped, folder / f"{name}-app", program) for name in STAGES}
        self.copying = Copying(folder, compiled(folder), kafka.address, "relayed", CLASSPATH)
        self.beside = Beside(folder, self.copying, kafka.address, "relayed", CLASSPATH, authority.addresses)
        self.tables = {name: Table(folder / name, folder / f"{name}-ck") for name in ("landed", "hourly")}
        self.outputs: dict[str, Committed] = {
            **self.tables,
            "relayed": Committed(folder / "relayed-ck"),
            "copied": self.copying.output,
        }
        self.client = authority.connect()
        self.client.register("fed", heuristics=[0.99])
        self.lease = self.client.worker("fed", identity="chaos").claim()
        self.watching = Watching(authority.addresses, NAMES)

    # -- the pipeline -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        for name in STAGES:
            self.start_stage(name)
        self.beside.start()
        self.copying.start()

    def start_stage(self, name: str) -> None:
        arguments = {"folder": str(self.folder), "stage": name, "brokers": self.kafka.address}
        conf = {**CONF, "spark.lowwater.address": self.authority.addresses, "spark.app.name": name}
        self.applications[name].start(arguments, conf)

    @property
    def low(self) -> int:
        return min(self.lows)

    def put(self) -> None:
        """Write rows at or above what their partition has promised, some of them at its very edge or at an hour's."""
        rows = []
        for partition, now in enumerate(self.lows):
            if partition != self.stalled:
                rows += self._rows(partition, now)
        self._write(rows)

    def promise(self) -> None:
        """Move the low watermark of all partitions that are not stalled by an hour or more, durably."""
        step = self.random.choice([60, 60, 75, 100]) * MINUTE
        self.lows = [low + (0 if partition == self.stalled else step) for partition, low in enumerate(self.lows)]
        self.lease.advance(None, oldest=None, frontier=self.low)
        self.lease.flush(PATIENCE)

    def _rows(self, partition: int, now: int) -> list[tuple[int, Put]]:
        hour = now // HOUR * HOUR
        times = [now, hour + HOUR - 1, hour + HOUR, hour + 2 * HOUR]
        times += [now + self.random.randrange(150 * MINUTE) for _ in range(self.random.randrange(5, 15))]
        times = [max(now, time) for time in times]
        return [(partition, Put(0.0, f"k{self.random.randrange(8)}", time)) for time in times]

    def _write(self, rows: Sequence[tuple[int, Put]]) -> None:
        numbered = [(partition, put._replace(number=len(self.puts) + at)) for at, (partition, put) in enumerate(rows)]
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        messages = [
            Row(
                json.dumps(
                    {
                        "number": put.number,
                        "key": put.key,
                        "t": (epoch + timedelta(microseconds=put.time)).isoformat(timespec="microseconds"),
                    }
                ).encode(),
                put.key.encode(),
                partition,
            )
            for partition, put in numbered
        ]
        # A broker that is frozen is left alone after seconds.
        self.kafka.put("fed", messages, socket_timeout_ms=10_000, request_timeout_ms=5_000)
        landed = time.time()
        self.puts += [put._replace(at=landed) for _, put in numbered]

    def recovered(self) -> None:
        """Wait until all have come as far as the producer: what is not stuck has recovered."""
        hour = self.low // HOUR * HOUR
        self.await_that(
            lambda: (
                all(self.watching.low(name) >= self.low for name in ("landed", "relayed", "copied"))
                and self.watching.low("hourly") >= hour
            ),
            f"all at {self.low}",
        )

    def finish(self) -> None:
        self.lease.finish()
        self.lease.flush(PATIENCE)
        self.await_that(lambda: all(self.watching.low(name) == MAX for name in NAMES), "all is finished")

    @property
    def groups(self) -> Sequence[Group]:
        return [*self.applications.values(), self.copying, self.beside]

    def check(self) -> None:
        for group in self.groups:
            if group not in self._struck:
                group.check()

    def await_that(self, condition: Callable[[], object], what: str) -> None:
        try:
            eventually(condition, what, seconds=PATIENCE, check=self.check)
        except AssertionError as failure:
            lows = {name: self.watching.low(name) for name in NAMES}
            tails = "\n".join(f"--- {group.log}\n{group.tail()}" for group in self.groups)
            msg = f"{failure}; published: {lows}\n{tails}"
            raise AssertionError(msg) from None

    def wrong(self, *, finished: bool = False) -> list[str]:
        # What was seen is taken first: what is read afterwards can only have more in it.
        published = {name: list(values) for name, values in self.watching.published.items()}
        rows = {"landed": self.tables["landed"].written(), "copied": self.copying.output.written()}
        rows["relayed"] = [_written(row) for row in self.kafka.rows("relayed")]
        wrong = [f"fed: {problem}" for problem in judge_source(self.puts, published["fed"])]
        for name, written in rows.items():
            wrong += [f"{name}: {line}" for line in judge_rows(self.puts, written, published[name], finished=finished)]
        windows = judge_windows(self.puts, self.tables["hourly"].emitted(), published["hourly"], finished=finished)
        wrong += [f"hourly: {line}" for line in windows]
        for name, table in self.tables.items():
            if _same(table.snapshot()) != _same([row for row, _ in table.rows()]):
                wrong.append(f"{name}: a reader that begins now has other rows than the batches have written")
        return wrong

    # -- faults -----------------------------------------------------------------------------------------------------

    def plan(self, faults: int) -> list[str]:
        return plan(self.random, self.tally, faults)

    def round(self, kinds: Sequence[str]) -> None:
        """Put rows and promise, with these faults on the way, until all has recovered."""
        struck = []
        for kind in kinds:
            fault = self._faults[kind]()
            next(fault)
            struck.append((kind, fault))
            self.put()
            self.promise()
        # What takes longest to come back comes first, and what only waits until all else is there comes last.
        for _, fault in sorted(struck, key=lambda pair: pair[0] == "stall"):
            next(fault)
        self._struck.clear()
        self._hit.clear()
        self.put()
        self.promise()
        self.recovered()
        for kind, fault in struck:
            try:
                next(fault)
            except StopIteration as end:
                self.tally.count(kind, end.value)

    def _stall(self) -> Fault:
        """Stall a partition: nothing comes in it and nothing is promised, while the others go on. Its rows come late."""
        self.stalled = late = self.random.randrange(PARTITIONS)
        low = self.lows[late]
        yield
        landed = self.tables["landed"]
        self.await_that(lambda: len(landed.written()) >= len(self.puts), "all but what is stalled is handed on")
        passed = [row for row in landed.written() if row.time > low + HOUR]
        holds = all(self.watching.low(name) <= low for name in NAMES)
        self.stalled = None
        self._write(self._rows(late, low) + self._rows(late, low + HOUR))
        self.lows[late] = max(self.lows)
        yield
        return holds and bool(passed)

    def _kill_sidecar(self) -> Fault:
        self._struck.add(self.beside)
        killed = self.beside.kill() == -signal.SIGKILL
        before = self.watching.low("copied")
        yield
        self.beside.start()
        yield
        return killed and self.watching.low("copied") > before

    def _kill_copy(self) -> Fault:
        self._struck.add(self.copying)
        killed = self.copying.kill() == -signal.SIGKILL
        before = self.copying.output.commits()
        yield
        self.copying.start()
        yield
        return killed and self.copying.output.commits() > before

    def _kill_executor(self) -> Fault:
        name = self._stage()
        events = self.applications[name].events
        application = newest_application(events)
        pid = eventually(lambda: self.cluster.executors(application), f"{name} has an executor", seconds=PATIENCE)[0]
        executor = Path(f"/proc/{pid}/cwd").readlink().name
        os.kill(pid, signal.SIGKILL)
        yield
        yield
        return self._appears(lambda: is_removed(events, application, executor), SOON)

    def _kill_driver(self) -> Fault:
        """Let a driver kill itself, its JVM and its workers at a step of a batch; another one goes on from the checkpoint."""
        name = self._stage()
        application = self.applications[name]
        self._struck.add(application)
        order = self.orders / f"driver-{self._next():04}.{name}.{self.random.choice(STEPS[name])}"
        order.touch()
        yield
        accepted = order.with_suffix(".taken")
        process = application.process
        assert process is not None
        self.await_that(lambda: accepted.exists() or process.poll() is not None, f"the driver takes {order.name}")
        if not accepted.exists():
            application.check()  # it has ended by itself
        killed = application.wait() == -signal.SIGKILL
        before = self.outputs[name].commits()
        self.start_stage(name)
        yield
        return killed and self.outputs[name].commits() > before

    def _kill_shard(self) -> Fault:
        """Kill a shard of the authority; the other one serves what it had, until it is back."""
        victim = self.random.choice([shard for shard in self.authority.shards if self._served(shard) & {*NAMES}])
        [other] = [shard for shard in self.authority.shards if shard is not victim]
        had = self._served(victim)
        victim.kill()
        yield
        eventually(lambda: had <= self._served(other), "the other shard serves", seconds=PATIENCE)
        self.put()
        self.promise()
        victim.start()
        yield
        return True

    def _served(self, shard: Shard) -> set[str]:
        return {*served(self.client, shard)}

    def _change_leader(self) -> Fault:
        """Freeze a broker until others lead what it has led; it wakes, and takes itself for the leader for a moment."""
        broker, led = self._leading()
        broker.pause()
        yield
        self._others_lead(broker, led)
        broker.resume()
        yield
        self._in_sync()
        return True

    def _restart_broker(self) -> Fault:
        broker, led = self._leading()
        broker.kill()
        yield
        self._others_lead(broker, led)
        broker.start()
        yield
        self._in_sync()
        return True

    def _leading(self) -> tuple[Broker, set[tuple[str, int]]]:
        """Return a broker and the partitions of the pipeline that it leads; all are in sync."""
        self._in_sync()
        partitions = self._partitions()
        number = self.random.choice(sorted({leader for leader, _ in partitions.values()}))
        [broker] = [broker for broker in self.kafka.brokers if broker.number == number]
        return broker, {name for name, (leader, _) in partitions.items() if leader == number}

    def _others_lead(self, broker: Broker, led: set[tuple[str, int]]) -> None:
        eventually(
            lambda: {self._partitions().get(name, (broker.number, 0))[0] for name in led}.isdisjoint(
                {-1, broker.number}
            ),
            f"others lead what {broker.number} led",
            seconds=PATIENCE,
        )
        self.put()
        self.promise()

    def _in_sync(self) -> None:

        def behind() -> int:
            partitions = self._partitions(all_topics=True).values()
            return sum(copies < len(self.kafka.brokers) for _, copies in partitions) if partitions else -1

        eventually(lambda: behind() == 0, "all brokers are in sync", seconds=PATIENCE)

    def _partitions(self, *, all_topics: bool = False) -> dict[tuple[str, int], tuple[int, int]]:
        """Return who leads each partition of the pipeline, and how many are in sync; nothing while nobody answers."""
        try:
            topics = self.kafka.admin.list_topics(timeout=5).topics
        except KafkaException:
            return {}
        return {
            (name, number): (partition.leader, len(partition.isrs))
            for name, topic in topics.items()
            if all_topics or name in ("fed", "relayed")
            for number, partition in topic.partitions.items()
        }

    def _stage(self) -> str:
        name = self.random.choice(sorted(set(STAGES) - self._hit))
        self._hit.add(name)
        return name

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _appears(self, evidence: Callable[[], bool], seconds: float) -> bool:
        try:
            return eventually(evidence, "evidence", seconds=seconds, check=self.check)
        except TooLate:
            return False

    def close(self) -> None:
        for group in self.groups:
            group.kill()
        self.watching.stop()
        self.client.close()


def _written(row: Row) -> Written:
    fields = json.loads(row.value)
    assert row.time is not None
    return Written(fields["key"], micros(datetime.fromisoformat(fields["t"])), fields["number"], row.time / 1000)


def _same(rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


@contextlib.contextmanager
def streams(folder: Path, seed: int, shipped: Shipped) -> Iterator[Streams]:
    """Brokers, an authority, a cluster, and a pipeline that is not started yet."""
    with (
        Kafka(folder / "kafka", brokers=3, settings=BROKER) as kafka,
        Sharded(folder / "authority", 2) as authority,
        Standalone(folder / "cluster", cores=6, memory="2g") as cluster,
    ):
        pipeline = Streams(folder, shipped, cluster, authority, kafka, seed)
        try:
            yield pipeline
        finally:
            pipeline.close()
