"""Marks: what a writer has published into a topic, told by Kafka itself, in the very transaction that has published it.

Beside each topic that is written by ``batch.write_kafka`` there is one of marks, compacted: ``lowwater-marks-TOPIC``. A writer publishes by a fixed number of
*slots*, each of which is one transactional producer after the other. With the rows of a batch goes the slot's mark, by which whoever comes after knows that the
batch is done. A slot that begins anew says so before it, in a record of its own: that is how the ids of writers are found which are gone.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Final

__all__ = ["Begun", "SlotMark", "Slot", "marks_topic", "parse", "same_id"]

_FORMAT: Final = 1

_BEGUN: Final = "/begun"
_ENDED: Final = "/ended"


def marks_topic(topic: str) -> str:
    """Return the name of the topic that has the marks of a topic's writers."""
    return f"lowwater-marks-{topic}"


def same_id(said: str) -> str:
    """Return the id of a topic as Kafka's own client writes it. librdkafka has other letters for two of the 64, so half of all ids look different there.

    >>> same_id("8D8PQYpcQdiR/blXzNt+6Q")
    '8D8PQYpcQdiR_blXzNt-6Q'
    """
    return said.replace("/", "_").replace("+", "-")


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the transactional producers of a writer."""

    checkpoint: str
    """The identity of the writer's checkpoint."""
    stage: str
    """Which stage of it: the name of the stage's directory, which stays when the stage is called
    otherwise."""
    topic: str
    number: int
    """From 0 on."""

    @property
    def transactional_id(self) -> str:
        """By which Kafka knows it, whoever runs it.

        >>> Slot("7f", "a%20b", "t", 3).transactional_id
        'lw-7f/a%20b/t/3'
        """
        return f"{self._prefix}{self.number}"

    @property
    def key(self) -> bytes:
        """Of its marks."""
        return self.transactional_id.encode()

    def partition(self, partitions: int) -> int:
        """Return where its marks are.

        No two slots of a writer share a partition, unless there are more slots: what one has open
        would hide the other's mark.
        """
        return (zlib.crc32(self._prefix.encode()) + self.number) % partitions

    @property
    def _prefix(self) -> str:
        return f"lw-{self.checkpoint}/{self.stage}/{self.topic}/"


_SLOT: Final = tuple(each.name for each in fields(Slot))


@dataclass(frozen=True, slots=True)
class SlotMark:
    """How far a slot has come."""

    slot: Slot
    writer: str
    """The full name of the computation."""
    next: int
    """The number after that of the last batch that it has published."""
    digest: str
    """Of the batch's plan."""
    staged: str
    """Which run of the batch has made the rows: another one may have made others."""
    topic_id: str
    partitions: int
    """How many the topic had."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """By partition: the offset after the last row that the slot has ever written there."""

    def record(self) -> tuple[bytes, bytes]:
        """Return its key and its value."""
        content = {
            "format": _FORMAT,
            **asdict(self.slot),
            "writer": self.writer,
            "next": self.next,
            "digest": self.digest,
            "staged": self.staged,
            "topic_id": self.topic_id,
            "partitions": self.partitions,
            "ends": {str(partition): end for partition, end in sorted(self.ends.items())},
        }
        return self.slot.key, json.dumps(content).encode()


@dataclass(frozen=True, slots=True)
class Begun:
    """That a slot has a producer.

    It may stand in a transaction that was aborted: what it says was true when it was written.
    """

    slot: Slot
    writer: str
    """The full name of the computation."""
    ended: bool = False
    """Whether another checkpoint of the same computation has ended what it had open, since nobody
    goes on with it."""
    life: int = 0
    """The computation's incarnation in which that was; 0: it is not known."""

    def record(self) -> tuple[bytes, bytes]:
        """Return its key and its value. That it was ended stays beside that it begins again."""
        content = {
            "format": _FORMAT,
            **asdict(self.slot),
            "writer": self.writer,
            "ended": self.ended,
            "life": self.life,
        }
        return self.slot.key + (_ENDED if self.ended else _BEGUN).encode(), json.dumps(content).encode()


def parse(key: bytes | None, value: bytes | None) -> SlotMark | Begun | None:
    """Return what a record of a topic of marks says; None for one that is none of ours.

    Raises ValueError for one of a newer release, or one that is none.

    >>> mark = SlotMark(Slot("7f", ".", "t", 0), "default/a", 8, "d", "s", "id", 3, {2: 5})
    >>> parse(*mark.record()) == mark, parse(*Begun(mark.slot, "default/a").record()).ended, parse(b"k", b"1")
    (True, False, None)
    """
    try:
        content = json.loads(value or b"")
        slot, writer = Slot(*(content[name] for name in _SLOT)), content["writer"]
        written = content["format"]
    except (KeyError, TypeError, ValueError):
        return None
    if key not in (slot.key, *(slot.key + each.encode() for each in (_BEGUN, _ENDED))):
        return None
    if written != _FORMAT:
        msg = f"the mark of {slot.transactional_id} is of format {written}, and this release reads {_FORMAT}. Use the release that wrote it, or a newer one."
        raise ValueError(msg)
    try:
        if key != slot.key:
            return Begun(slot, writer, content["ended"], int(content.get("life", 0)))
        ends = {int(partition): int(end) for partition, end in content["ends"].items()}
        place = same_id(content["topic_id"]), content["partitions"], ends
        return SlotMark(slot, writer, content["next"], content["digest"], content["staged"], *place)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = f"the mark of {slot.transactional_id} cannot be read: {error!r}. Somebody else has written it; remove it by a null for its key"
        raise ValueError(msg) from error
