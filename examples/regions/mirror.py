"""The mirror of a region: copies the other region's clicks to the broker of its own region.

Its computation ``mirror`` reports which are copied. Its low watermark is R.

python -m examples.regions.mirror SETUP REGION

It is one of the region that it copies *to*: it outlives the other one. What is written off is not
copied any more, and not waited for either.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

import lowwater
from examples.regions.setup import CLICKS, MIRROR, MIRRORED, READY, REFERENCE, SOURCE, Setup
from lowwater import errors
from lowwater.regions import Token
from lowwater.watermark import MAX, MIN
from tests.kit.kafka import ANSWERS_WITHIN

EVERY: Final = 0.05
"""Seconds between two reads of the source."""
ASKED_FOR: Final = 2.0
"""Seconds for an answer of the other region: it may be gone."""


class Replicated:
    """Watermark of a copy: W, once every row that was in the source when W was read is copied.

    >>> replicated = Replicated()
    >>> replicated.look(low=100, end=5)
    >>> replicated.frontier(copied=4)  # one that is below 100 may be missing
    -9223372036854775808
    >>> replicated.look(low=200, end=7)
    >>> replicated.frontier(copied=6), replicated.frontier(copied=7)
    (100, 200)
    """

    def __init__(self) -> None:
        self._heads: deque[tuple[int, int]] = deque()
        self._frontier = MIN

    def look(self, low: int, end: int) -> None:
        """Note the source's low watermark, and the end of its log, which must be read after it.

        If the end were read first, clicks that came between would be missed.
        """
        self._heads.append((low, end))

    def frontier(self, copied: int) -> int:
        """Return the event time up to which all is copied; ``copied`` is the next offset."""
        while self._heads and self._heads[0][1] <= copied:
            self._frontier = max(self._frontier, self._heads.popleft()[0])
        return self._frontier


class Mirror:
    """Copies one partition, in order.

    What it has copied stands at the other end: it goes on from there, whenever it was killed.
    """

    def __init__(self, setup: Setup, region: str) -> None:
        own, self._other = setup.regions[region], setup.regions[setup.other(region)]
        self._region = region
        quiet = {"log_level": 0, "group.id": "mirror", "enable.auto.commit": False, "auto.offset.reset": "error"}
        # On one connection an answer about the end of the log waits behind a fetch that waits for
        # clicks.
        quick = {"fetch.wait.max.ms": int(EVERY * 1000)}
        self._source = Consumer({"bootstrap.servers": self._other.broker, **quiet, **quick})
        self._producer = Producer(
            {"bootstrap.servers": own.broker, "log_level": 0, "acks": "all", "enable.idempotence": True}
        )
        self._partition = TopicPartition(CLICKS, 0)
        self._copied = next_offset(own.broker)
        self._behind = setup.behind.get(region, 0)
        self._ends: deque[tuple[float, int]] = deque()
        self._replicated = Replicated()
        self._token = Token(REFERENCE, own.agent)
        self._theirs = lowwater.connect(self._other.authority, timeout=ASKED_FOR)
        self._ours = lowwater.connect(own.authority, timeout=60)
        self._ours.register(MIRROR)
        self._lease = self._ours.worker(MIRROR, name=f"mirror {region}").claim()
        self._reported = MIN

    def run(self) -> None:
        """Copy until nothing can come any more."""
        print(READY, flush=True)
        self._source.assign([TopicPartition(CLICKS, 0, self._copied)])
        while self._reported < MAX:
            with contextlib.suppress(
                errors.LowwaterError, KafkaException
            ):  # the other region is away: what is said stays
                self._look()
            time.sleep(EVERY)

    def _look(self) -> None:
        if self._written_off():
            self._say(MAX)
            return
        low = self._theirs.get(CLICKS)[CLICKS].low.micros
        _, end = self._source.get_watermark_offsets(self._partition, timeout=ASKED_FOR, cached=False)
        self._replicated.look(low, end)
        now, until = time.monotonic(), self._copied
        self._ends.append((now, end))
        # Late by some seconds, as a mirror over a long way is: what is lost with the other region
        # is what it was late by.
        while self._ends and (self._ends[0][0] <= now - self._behind or low == MAX):
            _, until = self._ends.popleft()
        if until > self._copied:
            self._copy(until)
        self._tell()
        self._say(self._replicated.frontier(self._copied))

    def _copy(self, end: int) -> None:
        """Copy up to an end; return when the copies are acknowledged.

        If the other region goes away meanwhile, only the clicks already read are copied.
        """
        failed: list[object] = []

        def delivered(error: object, _: Message) -> None:
            if error is not None:
                failed.append(error)

        copied, deadline = self._copied, time.monotonic() + ASKED_FOR
        try:
            while copied < end and time.monotonic() < deadline:
                for message in self._source.consume(end - copied, timeout=0.1):
                    if message.error() is not None:
                        raise KafkaException(message.error())
                    assert message.offset() == copied, f"{message.offset()} is not what comes behind {copied}"
                    source = json.dumps([self._other.cluster, copied])
                    self._producer.produce(
                        MIRRORED,
                        message.value(),
                        message.key(),
                        0,
                        on_delivery=delivered,
                        timestamp=message.timestamp()[1],
                        headers=[(SOURCE, source.encode())],
                    )
                    copied += 1
        finally:  # what was read before the other region went away is copied, and not read again
            unsent = self._producer.flush(ANSWERS_WITHIN)
            assert not unsent, f"{unsent} clicks were not acknowledged"
            assert not failed, failed
            self._copied = copied

    def _tell(self) -> None:
        with contextlib.suppress(errors.LowwaterError):  # the next look repeats it
            self._token.mirrored([(self._other.cluster, CLICKS, 0, self._copied)])

    def _say(self, frontier: int) -> None:
        if frontier <= self._reported:
            return
        if frontier == MAX:
            self._lease.finish()
        else:
            self._lease.advance(None, oldest=None, frontier=frontier)
        self._reported = frontier

    def _written_off(self) -> bool:
        """Return whether an operator has decided to go on without the rows of the other region."""
        try:
            reference = self._token.status()["references"].get(REFERENCE, {})
        except errors.LowwaterError:
            return False
        return bool(reference.get("written_off")) and reference.get("owner") == self._region


def next_offset(broker: str) -> int:
    """Return the source's offset to copy next, after the last copy that the broker has."""
    settings = {"bootstrap.servers": broker, "log_level": 0, "group.id": "mirror", "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(MIRRORED, 0), timeout=ANSWERS_WITHIN, cached=False)
        if not end:
            return 0
        consumer.assign([TopicPartition(MIRRORED, 0, end - 1)])
        message = consumer.poll(ANSWERS_WITHIN)
        assert message is not None, "the broker has not answered"
        if message.error() is not None:
            raise KafkaException(message.error())
        source = dict(message.headers() or ())[SOURCE]
        assert source is not None, "a row of somebody else"
        return int(json.loads(source)[1]) + 1
    finally:
        consumer.close()


if __name__ == "__main__":
    Mirror(Setup.read(Path(sys.argv[1])), sys.argv[2]).run()
