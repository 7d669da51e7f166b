"""A deduplicator under test: its topics, what was sent, lanes that can be killed, and what came out."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from lowwater_pipeline.dedup.ids import Field, Partitioner
from lowwater_pipeline.dedup.lane import Lane
from lowwater_pipeline.dedup.senders import Low
from lowwater_pipeline.dedup.settings import Settings, client_settings
from lowwater_pipeline.dedup.topics import Pins, consumer, pin
from lowwater_pipeline.dedup.window import Window
from tests.kit.eventually import PATIENCE
from tests.kit.kafka import Kafka, Row


class Killed(BaseException):
    """The process ends here."""


class Outcome(NamedTuple):
    lost: int
    doubled: int


EXACT: Final = Outcome(0, 0)

QUICK: Final = {"heartbeat.interval.ms": "200"}
"""A member of a group hears of a new one by its next heartbeat."""


class Case:
    """Topics of one deduplicator. ``low`` is what its lanes are told of the senders' watermark."""

    def __init__(
        self,
        kafka: Kafka,
        name: str,
        state: Path,
        window: str,
        *,
        partitions: int = 1,
        id: str = "key",  # noqa: A002 - as the option is called
        event_time: str | None = None,
        topics: Sequence[str] = (),
        stamped: bool | None = None,
        **options: Any,
    ) -> None:
        self.kafka = kafka
        self.low: Low | None = None
        self.sent: list[Row] = []
        by_broker = window[0].isdigit() and not window.isdigit() if stamped is None else stamped
        kafka.create(f"{name}-in", partitions, message_timestamp_type="LogAppendTime" if by_broker else "CreateTime")
        kafka.create(f"{name}-out", partitions)
        for side in topics:
            kafka.create(f"{name}-{side}", partitions)
            options[side] = f"{name}-{side}"
        self.settings = Settings(
            f"{name}-in",
            f"{name}-out",
            f"{name}-group",
            state,
            client_settings(kafka.address, QUICK),
            Field.parse(id),
            Window.parse(window, None if event_time is None else Field.parse(event_time)),
            **options,
        )
        self._member = consumer(self.settings, committed=True)
        self._zombies: list[Lane] = []
        self._open: list[Lane] = []

    def close(self) -> None:
        for lane in (*self._open, *self._zombies):
            with contextlib.suppress(Exception):
                lane.close()
        self._member.close()

    def pins(self) -> Pins:
        return pin(self.settings)

    def send(self, *ids: str | bytes, partition: int = 0, times: Iterable[int | None] = itertools.repeat(None)) -> None:
        rows = [
            Row(b"value of " + key, key, partition, at)
            for key, at in zip((key.encode() if isinstance(key, str) else key for key in ids), times, strict=False)
        ]
        self.put(*rows)

    def put(self, *rows: Row) -> None:
        self.kafka.put(self.settings.input, rows)
        self.sent += rows

    def lane(self, partition: int = 0, *, probe: Callable[[str], None] = lambda _: None, **changes: Any) -> Lane:
        settings = replace(self.settings, **changes)
        lane = Lane(
            settings,
            self.pins(),
            partition,
            group=self._member.consumer_group_metadata,
            low=lambda: self.low,
            probe=probe,
        )
        self._open.append(lane)
        try:
            lane.open()
        except BaseException:
            self._open.remove(lane)
            self.bury(lane)
            raise
        return lane

    def drain(self, lane: Lane) -> Lane:
        """Work until everything that was sent is committed."""
        end = sum(row.partition == lane.partition for row in self.sent)
        deadline = time.monotonic() + PATIENCE
        while lane.position < end:
            lane.step()
            assert time.monotonic() < deadline, f"stands at {lane.position} of {end}"
        return lane

    @contextlib.contextmanager
    def asking(self) -> Iterator[Consumer]:
        reader = consumer(self.settings, committed=True)
        try:
            yield reader
        finally:
            reader.close()

    def bury(self, lane: Lane) -> None:
        """Keep what a killed process leaves: its files, and the writes that its producer has sent, which go on as a zombie's."""
        if lane in self._open:
            self._open.remove(lane)
        if lane.memory is not None:
            lane.memory.close()
        self._zombies.append(lane)
        for old in self._zombies[:-3]:
            self._zombies.remove(old)
            with contextlib.suppress(Exception):
                old.close()

    def open_lanes(self) -> list[Lane]:
        return [*self._open]

    def bury_all(self) -> None:
        for lane in [*self._open]:
            self.bury(lane)

    def shut(self, lane: Lane) -> None:
        self._open.remove(lane)
        lane.close()

    def rows(self, topic: str = "") -> list[Row]:
        return self.kafka.rows(topic or self.settings.output)

    def ids(self) -> list[str]:
        return [(row.key or b"").decode() for row in self.rows()]

    def kafka_offset(self, name: str) -> int:
        reader = consumer(self.settings, committed=True)
        try:
            reader.assign([TopicPartition(self.settings.output, 0, 0)])
            while True:
                message = reader.poll(PATIENCE)
                assert message is not None
                if message.error() is None and message.key() == name.encode():
                    return message.offset() or 0
        finally:
            reader.close()

    def outcome(self) -> Outcome:
        came = Counter(row.key for row in self.rows())
        keys = {row.key for row in self.sent}
        return Outcome(len(keys - came.keys()), sum(count - 1 for count in came.values()))


def by_partition(ids: Iterable[bytes], partitions: int) -> list[Row]:
    keys = [*ids]
    places = Partitioner.MURMUR2.partitions(keys, partitions)
    return [Row(b"value of " + key, key, place) for key, place in zip(keys, places, strict=True)]


def at(step: str, number: int = 1) -> Callable[[str], None]:
    """A probe that kills the lane when a step is done for the n-th time."""
    countdown = itertools.count(number, -1)

    def probe(done: str) -> None:
        if done == step and next(countdown) == 1:
            raise Killed(step)

    return probe
