"""Messages that a core passes on with deduplication, beside a plain loop and a plain copy.

All three read the same topic of one partition with 0.6 % copies, and write to a topic of their own,
with a million ids in their memories beforehand. Processor time counts, of all threads of this
process: the broker has its own.

- the deduplicator: a lane, whose batches are looked up at once and committed with the offset in a
  transaction;
- the plain loop: for each message one look-up in RocksDB, one produce, one put; no transaction, so
  a crash loses or doubles;
- a copy: the same batches and transactions, and no ids.
"""

from __future__ import annotations

import gc
import random
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from rocksdict import Options, Rdict

from benchmarks.result import Result, Spread
from lowwater_pipeline.dedup.ids import Field
from lowwater_pipeline.dedup.lane import Lane
from lowwater_pipeline.dedup.mark import NO_FLOOR
from lowwater_pipeline.dedup.memory import Standing
from lowwater_pipeline.dedup.settings import Settings, client_settings
from lowwater_pipeline.dedup.topics import consumer, pin
from lowwater_pipeline.dedup.window import Window
from tests.kit.kafka import Kafka, Row

COPIES: Final = 0.006
"""The share of copies that the document tells of."""
_VALUE: Final = b"x" * 200
_BATCH: Final = 5_000
LANE, PLAIN, COPY = "lane", "plain", "copy"


class Took(NamedTuple):
    """Duration of a round."""

    processor: float
    wall: float
    passed: int


def run(folder: Path, *, quick: bool = False) -> list[Result]:
    """Return messages for each second of a core, and for each second."""
    messages, ids, rounds = (5_000, 1_000, 2) if quick else (200_000, 1_000_000, 3)
    figures: dict[str, list[Took]] = {LANE: [], PLAIN: [], COPY: []}
    with Kafka(folder / "kafka") as kafka:
        kafka.create("in")
        fresh = round(messages * (1 - COPIES))
        _fill(kafka, messages, fresh)
        ways: dict[str, Callable[[str], Took]] = {
            LANE: lambda out: _lane(kafka, folder / out, out, messages, ids),
            PLAIN: lambda out: _plain(kafka, folder / out, out, messages, ids),
            COPY: lambda out: _copy(kafka, out, messages),
        }
        for number in range(rounds):
            for way, work in ways.items():
                out = f"out-{way}-{number}"
                kafka.create(out)
                gc.collect()
                took = work(out)
                if took.passed != (messages if way == COPY else fresh):
                    raise RuntimeError(f"{way} has passed on {took.passed} messages of {fresh}")
                figures[way].append(took)
    facts = {"ranges": 0, "n": messages, "ids_before": ids, "copies": COPIES}

    def rate(way: str, figure: Callable[[Took], float]) -> Spread:
        return Spread(tuple(messages / figure(round_) for round_ in figures[way]))

    def result(metric: str, unit: str, figure: Callable[[Took], float], baseline: str, way: str) -> Result:
        return Result("dedup", metric, rate(LANE, figure), unit, baseline, rate(way, figure), facts)

    core, clock = (lambda took: took.processor), (lambda took: took.wall)
    plain = "plain loop: one look-up, one produce, one put a message"
    return [
        result("messages_per_core_second", "messages/s", core, plain, PLAIN),
        result("messages_per_core_second_copied", "messages/s", core, "a copy in transactions, without ids", COPY),
        result("messages_per_second", "messages/s", clock, plain, PLAIN),
    ]


def _fill(kafka: Kafka, messages: int, fresh: int) -> None:
    chance = random.Random(1)
    ids = [str(uuid.UUID(int=chance.getrandbits(128), version=4)).encode() for _ in range(fresh)]
    rows = [*ids, *(chance.choice(ids) for _ in range(messages - fresh))]
    kafka.put("in", (Row(_VALUE, row) for row in rows), queue_buffering_max_messages=0)


def _before(ids: int) -> list[bytes]:
    return [b"%036d" % number for number in range(ids)]


def _lane(kafka: Kafka, state: Path, out: str, messages: int, ids: int) -> Took:
    settings = Settings(
        "in",
        out,
        f"group-{out}",
        state,
        client_settings(kafka.address, {}),
        Field.parse("key"),
        Window.parse("10000000"),
    )
    member = consumer(settings, committed=True)
    lane = Lane(settings, pin(settings), 0, group=member.consumer_group_metadata)
    lane.open()
    assert lane._memory is not None
    assert lane._memory.standing is not None
    earlier = _before(ids)
    for start in range(0, ids, 50_000):
        more = {identity: -ids + start + at for at, identity in enumerate(earlier[start : start + 50_000])}
        standing: Standing = lane._memory.standing
        lane._memory.write(more, {}, NO_FLOOR, standing)
    processor, wall = time.process_time(), time.perf_counter()
    while lane.position < messages:
        lane.step()
    took = Took(time.process_time() - processor, time.perf_counter() - wall, lane.counts.admitted)
    lane.close()
    member.close()
    return took


def _reader(kafka: Kafka, out: str) -> Consumer:
    settings = {"bootstrap.servers": kafka.address, "group.id": out, "enable.auto.commit": False, "log_level": 0}
    reader = Consumer({**settings, "enable.partition.eof": False})
    reader.assign([TopicPartition("in", 0, 0)])
    return reader


def _plain(kafka: Kafka, state: Path, out: str, messages: int, ids: int) -> Took:
    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    database = Rdict(str(state), options)
    for identity in _before(ids):
        database[identity] = b""
    reader = _reader(kafka, out)
    producer = Producer({"bootstrap.servers": kafka.address, "acks": "all", "linger.ms": 5, "log_level": 0})
    processor, wall = time.process_time(), time.perf_counter()
    passed = 0
    for _ in range(messages):
        message = reader.poll(60)
        assert message is not None
        identity = message.key() or b""
        if identity not in database:
            _produce(producer, out, message)
            database[identity] = b""
            passed += 1
    producer.flush(60)
    took = Took(time.process_time() - processor, time.perf_counter() - wall, passed)
    reader.close()
    database.close()
    return took


def _copy(kafka: Kafka, out: str, messages: int) -> Took:
    reader = _reader(kafka, out)
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": out, "linger.ms": 5, "log_level": 0})
    producer.init_transactions(60)
    processor, wall = time.process_time(), time.perf_counter()
    passed = 0
    while passed < messages:
        batch = reader.consume(_BATCH, 0.1)
        if not batch:
            continue
        producer.begin_transaction()
        for message in batch:
            _produce(producer, out, message)
        passed += len(batch)
        offset = TopicPartition("in", 0, (batch[-1].offset() or 0) + 1)
        producer.send_offsets_to_transaction([offset], reader.consumer_group_metadata(), 60)
        producer.commit_transaction(60)
    took = Took(time.process_time() - processor, time.perf_counter() - wall, passed)
    reader.close()
    return took


def _produce(producer: Producer, out: str, message: Any) -> None:
    while True:
        try:
            producer.produce(out, message.value(), message.key(), partition=0, timestamp=message.timestamp()[1])
        except BufferError:
            producer.poll(1.0)
        else:
            producer.poll(0)
            return
