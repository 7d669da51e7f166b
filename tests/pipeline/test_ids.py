"""Ids, and the partitions that real producers put them into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from lowwater_pipeline.dedup.ids import Field, Partitioner, Unreadable, murmur2
from tests.pipeline.case import Case

IDS = [b"%d-%s" % (number, b"x" * (number % 13)) for number in range(1000)]


class Message:
    """A message as far as ids are read of it."""

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


@pytest.mark.parametrize(
    ("theirs", "ours"), [("murmur2_random", Partitioner.MURMUR2), ("consistent_random", Partitioner.CRC32)]
)
def test_a_partition_is_the_one_that_a_producer_chooses(
    make: Callable[..., Case], theirs: str, ours: Partitioner
) -> None:
    case = make(partitions=7)
    producer = Producer({"bootstrap.servers": case.kafka.address, "log_level": 0, "partitioner": theirs})
    for each in IDS:
        producer.produce(case.settings.input, b"", each)
    assert producer.flush(60) == 0
    rows = case.rows(case.settings.input)
    assert len(rows) == len(IDS)
    assert ours.partitions([row.key or b"" for row in rows], 7) == [row.partition for row in rows]


def test_the_two_kinds_of_producers_disagree_about_most_ids() -> None:
    """So with both before one topic most copies would never meet."""
    java, librdkafka = (each.partitions(IDS, 8) for each in Partitioner)
    assert sum(a != b for a, b in zip(java, librdkafka, strict=True)) > 800


def murmur2_of_one(data: bytes) -> int:
    """Kafka's hash of one id, word by word."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return (h ^ (h >> 15)) & 0x7FFFFFFF


@given(st.lists(st.binary(max_size=40), max_size=50))
def test_ids_hashed_together_are_hashed_as_one_by_one(ids: list[bytes]) -> None:
    assert list(murmur2(ids)) == [murmur2_of_one(each) for each in ids]


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
        ("key", Message(), "no id: its key is missing"),
        ("key", Message(key=b""), "no id: its key is missing or empty"),
        ("header:id", Message(), "no id: its header:id is missing"),
        ("header:id", Message(headers=[("id", None)]), "no id"),
        ("json:id", Message(), "no JSON"),
        ("json:id", Message(b"{"), "no JSON"),
        ("json:id", Message(b"\xff"), "no JSON"),
        ("json:id", Message(b"[" * 100_000), "no JSON"),
        ("json:id", Message(b"7"), "no JSON object"),
        ("json:id", Message(b'{"id": null}'), "no id"),
        ("json:id", Message(b'{"id": 1.5}'), "neither a text nor a whole number"),
        ("json:id", Message(b'{"id": true}'), "neither a text nor a whole number"),
        ("json:id", Message(b'{"id": {"a": 1}}'), "neither a text nor a whole number"),
    ],
)
def test_what_has_no_id_says_why(field: str, message: Message, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        id_of(field, message)


@pytest.mark.parametrize("text", ["", "header", "header:", "json:", "key:x", "value", "timestamp:x"])
def test_what_names_no_field_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write key, header:NAME, json:FIELD or timestamp"):
        Field.parse(text)
