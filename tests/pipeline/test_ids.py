"""Ids, and the partitions that real producers put them into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from lowwater_pipeline.dedup.ids import Field, Partitioner, Unreadable
from tests.pipeline.case import Case

IDS = [b"%d-%s" % (number, b"x" * (number % 13)) for number in range(1000)]


class Message:
    def __init__(
        self, value: bytes | None = None, key: bytes | None = None, headers: Any = None, time: int = 0
    ) -> None:
        self._fields = value, key, headers, time

    def value(self) -> bytes | None:
        return self._fields[0]

    def key(self) -> bytes | None:
        return self._fields[1]

    def headers(self) -> Any:
        return self._fields[2]

    def timestamp(self) -> tuple[int, int]:
        return 1, self._fields[3]


def id_of(field: str, message: Message) -> bytes:
    return Field.parse(field).ids()(message)  # type: ignore[arg-type]


def test_a_partition_is_the_one_that_a_producer_chooses(make: Callable[..., Case]) -> None:
    case = make(partitions=7)
    for theirs, ours in (("murmur2_random", Partitioner.MURMUR2), ("consistent_random", Partitioner.CRC32)):
        producer = Producer({"bootstrap.servers": case.kafka.address, "log_level": 0, "partitioner": theirs})
        chosen: dict[bytes | None, int | None] = {}
        for key in IDS:
            producer.produce(
                case.settings.input,
                b"",
                key,
                on_delivery=lambda _, row: chosen.update({row.key(): row.partition()}),  # noqa: B023
            )
        assert producer.flush(60) == 0
        assert ours.partitions(IDS, 7) == [chosen[key] for key in IDS]


@pytest.mark.parametrize(
    ("field", "message", "expected"),
    [
        ("key", Message(key=b"\xff\x00"), b"\xff\x00"),
        ("header:id", Message(headers=[("a", b"1"), ("id", b"2"), ("id", b"3")]), b"2"),
        ("json:id", Message(b'{"id": "\xc3\xa9"}'), "é".encode()),
        ("json:id", Message(b'{"id": 12345678901234567890}'), b"12345678901234567890"),
        ("json:id", Message(b'{"id": "\\ud800"}'), b"\xed\xa0\x80"),
    ],
)
def test_an_id_is_read(field: str, message: Message, expected: bytes) -> None:
    assert id_of(field, message) == expected


@pytest.mark.parametrize(
    ("field", "message", "why"),
    [
        ("key", Message(key=b""), "no id: its key is missing or empty"),
        ("header:id", Message(), "no id: its header:id is missing"),
        ("json:id", Message(b"{"), "no JSON"),
        ("json:id", Message(b"[" * 100_000), "no JSON"),
        ("json:id", Message(b"7"), "no JSON object"),
        ("json:id", Message(b'{"id": null}'), "no id"),
        ("json:id", Message(b'{"id": 1.5}'), "neither a text nor a whole number"),
    ],
)
def test_what_has_no_id_says_why(field: str, message: Message, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        id_of(field, message)
