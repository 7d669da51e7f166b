"""What identifies a message, and which partition a producer puts it into.

Copies of a message meet only in one partition, and a lane remembers the ids of its own. So a lane
asks of each id whether it belongs where it was found. Java's clients and librdkafka put most ids
into different partitions: with both of them before one topic, copies would never meet.
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
    """A message has no id, or no event time. Says why, in a few words."""


class Kind(enum.Enum):
    """Where a field of a message stands."""

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
        """Return the field that a text names. Raises ValueError.

        >>> Field.parse("header:message-id")
        Field(kind=<Kind.HEADER: 'header'>, name='message-id')
        """
        kind, _, name = text.partition(":")
        kinds = {each.value: each for each in Kind}
        if kind not in kinds or (kind in {"header", "json"}) != bool(name):
            msg = f"{text!r} names no field of a message; write key, header:NAME, json:FIELD or timestamp"
            raise ValueError(msg)
        return cls(kinds[kind], name)

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}" if self.name else self.kind.value

    def reader(self) -> Callable[[Message], Any]:
        """Return what reads it of a message: bytes of a key or header, what JSON says of a member, milliseconds of a timestamp; None when there is none.

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
        """Return what reads an id: a text as UTF-8, a whole number in decimal.

        It raises Unreadable, also for an empty one.
        """
        read, said = self.reader(), str(self)

        def id_of(message: Message) -> bytes:
            found = read(message)
            if type(found) is str:
                found = found.encode("utf-8", "surrogatepass")
            elif type(found) is int:
                found = b"%d" % found
            if not found:
                raise Unreadable(f"it has no id: its {said} is missing or empty")
            if type(found) is not bytes:
                raise Unreadable(f"its {said} is neither a text nor a whole number")
            return found

        return id_of


def _header(headers: Any, name: str) -> Any:
    """Return the first header of a name."""
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
    """Return what Java's clients hash ids to, as a number of at least 0.

    Ids of one length are hashed together.

    >>> murmur2([b"21", b"foobar"]) == [-973932308 & 0x7FFFFFFF, -790332482 & 0x7FFFFFFF]
    True
    """
    by_length: dict[int, list[int]] = defaultdict(list)
    for place, each in enumerate(ids):
        by_length[len(each)].append(place)
    hashes = [0] * len(ids)
    for length, places in by_length.items():
        joined = b"".join([ids[place] for place in places])
        rows = np.frombuffer(joined, np.uint8).reshape(len(places), length)
        for place, value in zip(places, _murmur2(rows, length).tolist(), strict=True):
            hashes[place] = value
    return hashes


def _murmur2(rows: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    """Austin Appleby's MurmurHash2, 32 bits, of rows of one length, column by column; with the seed that Kafka gives it."""
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
    """Return what librdkafka hashes ids to by default.

    >>> crc32([b"foobar"])
    [2666930069]
    """
    return [zlib.crc32(each) for each in ids]


class Partitioner(enum.Enum):
    """How the producers of a topic turn an id into a partition."""

    MURMUR2 = "murmur2"
    """Java's clients, and what is built on them; of librdkafka, the partitioners murmur2 and
    murmur2_random."""
    CRC32 = "crc32"
    """librdkafka by default (consistent_random), and what is built on it, Python's client too."""

    def partitions(self, ids: Sequence[bytes], count: int) -> list[int]:
        """Return the partition of each id, of so many."""
        hashes = murmur2(ids) if self is Partitioner.MURMUR2 else crc32(ids)
        return [each % count for each in hashes]
