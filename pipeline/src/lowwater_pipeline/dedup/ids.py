"""The id of a message, and the partition into which a producer puts it.

Copies meet only in one partition, because a lane remembers the ids of its own. So a lane checks
that each id belongs to its partition. Java's clients and librdkafka put most ids into different
partitions: if both wrote to one topic, copies would never meet.
"""

from __future__ import annotations

import enum
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from confluent_kafka import Message

__all__ = ["Field", "Partitioner", "Unreadable", "crc32", "murmur2"]


class Unreadable(Exception):
    """A message has no id or no event time; the text says why in a few words."""


class Kind(enum.Enum):
    """The part of a message that a field is in."""

    KEY = "key"
    HEADER = "header"
    JSON = "json"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: its key, a header, a member of its JSON value, or its timestamp."""

    kind: Kind
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Field:
        """Return the field with this name. Raises ValueError.

        >>> Field.parse("header:message-id")
        Field(kind=<Kind.HEADER: 'header'>, name='message-id')
        """
        kind, _, name = text.partition(":")
        kinds = {kind_.value: kind_ for kind_ in Kind}
        if kind not in kinds or (kind in {"header", "json"}) != bool(name):
            msg = f"{text!r} names no field of a message; write key, header:NAME, json:FIELD or timestamp"
            raise ValueError(msg)
        return cls(kinds[kind], name)

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}" if self.name else self.kind.value

    def reader(self) -> Callable[[Message], Any]:
        """Return a function that reads the field of a message; None when the message lacks it.

        It returns bytes of a key or header, a JSON value of a member, milliseconds of a timestamp.
        It raises Unreadable.
        """
        name = self.name
        if self.kind is Kind.KEY:
            return lambda message: message.key()
        if self.kind is Kind.TIMESTAMP:
            return lambda message: message.timestamp()[1]
        if self.kind is Kind.HEADER:
            return lambda message: _header(message.headers(), name)
        return lambda message: _member(message.value(), name)

    def ids(self) -> Callable[[Message], bytes]:
        """Return a function that reads an id: a text as UTF-8, a whole number in decimal.

        It raises Unreadable for a missing, empty or other value.
        """
        read, field = self.reader(), str(self)

        def id_of(message: Message) -> bytes:
            value = read(message)
            if type(value) is str:
                value = value.encode("utf-8", "surrogatepass")
            elif type(value) is int:
                value = b"%d" % value
            if not value:
                raise Unreadable(f"it has no id: its {field} is missing or empty")
            if type(value) is not bytes:
                raise Unreadable(f"its {field} is neither a text nor a whole number")
            return value

        return id_of


def _header(headers: Any, name: str) -> Any:
    """Return the value of the first header with this name."""
    return next((value for key, value in headers or () if key == name), None)


def _member(value: bytes | None, name: str) -> Any:
    try:
        content = json.loads(value or b"")
    except (ValueError, RecursionError) as error:
        raise Unreadable("its value is no JSON") from error
    if not isinstance(content, dict):
        raise Unreadable("its value is no JSON object")
    return content.get(name)


_SEED: Final = 0x9747B28C
_M: Final = np.uint32(0x5BD1E995)
_MOST: Final = 0x7FFFFFFF


def murmur2(ids: Sequence[bytes]) -> Sequence[int]:
    """Return the hashes that Java's clients give ids, not negative.

    >>> murmur2([b"21", b"foobar"]) == [-973932308 & 0x7FFFFFFF, -790332482 & 0x7FFFFFFF]
    True
    """
    by_length: dict[int, list[int]] = defaultdict(list)
    for place, id_ in enumerate(ids):
        by_length[len(id_)].append(place)
    hashes = [0] * len(ids)
    for length, places in by_length.items():
        joined = b"".join([ids[place] for place in places])
        rows = np.frombuffer(joined, np.uint8).reshape(len(places), length)
        for place, value in zip(places, _murmur2(rows, length).tolist(), strict=True):
            hashes[place] = value
    return hashes


def _murmur2(rows: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    """Return Austin Appleby's MurmurHash2, 32 bits, of rows of one length, with Kafka's seed."""
    h = np.full(len(rows), (_SEED ^ length) & 0xFFFFFFFF, np.uint32)
    whole = length // 4
    words = np.ascontiguousarray(rows[:, : whole * 4]).view("<u4")
    for column in range(whole):
        k = words[:, column] * _M
        k ^= k >> np.uint32(24)
        h = (h * _M) ^ (k * _M)
    rest = rows[:, whole * 4 :].astype(np.uint32)
    if rest.shape[1]:
        for column in range(rest.shape[1]):
            h ^= rest[:, column] << np.uint32(8 * column)
        h = h * _M
    h ^= h >> np.uint32(13)
    h = h * _M
    h ^= h >> np.uint32(15)
    return h & np.uint32(_MOST)


def crc32(ids: Sequence[bytes]) -> Sequence[int]:
    """Return the hashes that librdkafka gives ids by default.

    >>> crc32([b"foobar"])
    [2666930069]
    """
    return [zlib.crc32(id_) for id_ in ids]


class Partitioner(enum.Enum):
    """The function by which a topic's producers turn an id into a partition."""

    MURMUR2 = "murmur2"
    """Java's clients, and what is built on them; of librdkafka, the partitioners murmur2 and
    murmur2_random."""
    CRC32 = "crc32"
    """librdkafka by default (consistent_random), and what is built on it, Python's client too."""

    def partitions(self, ids: Sequence[bytes], count: int) -> list[int]:
        """Return each id's partition out of ``count``."""
        hashes = murmur2(ids) if self is Partitioner.MURMUR2 else crc32(ids)
        return [number % count for number in hashes]
