"""Marks: records that tell what a writer has published into a topic, in the same transaction.

Beside each topic into which ``batch.write_kafka`` writes there is a compacted topic of marks,
``lowwater-marks-TOPIC``. A writer publishes by a fixed number of *slots*; each slot is one
transactional producer at a time. A transaction has the rows of a batch and the slot's mark, from
which a later run sees that the batch is done. A new producer of a slot first writes a record of its
own (:class:`Begun`): it tells the transactional ids of writers that no longer run.
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
    """Return the name of the topic of marks that belongs to a topic."""
    return f"lowwater-marks-{topic}"


def same_id(topic_id: str) -> str:
    """Return the id of a topic as Kafka's own client writes it.

    librdkafka uses other letters for two of the 64, so half of all ids look different there.

    >>> same_id("8D8PQYpcQdiR/blXzNt+6Q")
    '8D8PQYpcQdiR_blXzNt-6Q'
    """
    return topic_id.replace("/", "_").replace("+", "-")


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the transactional producers of a writer."""

    checkpoint: str
    """Identity of the writer's checkpoint."""
    stage: str
    """Name of the stage's directory in the checkpoint; it stays when the stage is renamed."""
    topic: str
    number: int
    """Number among the writer's slots, from 0."""

    @property
    def transactional_id(self) -> str:
        """Kafka's ``transactional.id`` of the slot, the same in each run.

        >>> Slot("7f", "a%20b", "t", 3).transactional_id
        'lw-7f/a%20b/t/3'
        """
        return f"{self._prefix}{self.number}"

    @property
    def key(self) -> bytes:
        """Key of the slot's marks."""
        return self.transactional_id.encode()

    def partition(self, partitions: int) -> int:
        """Return the partition of the topic of marks that has this slot's marks.

        Two slots of a writer share a partition only when there are more slots than partitions: an
        open transaction of one slot would hide the other's mark.
        """
        return (zlib.crc32(self._prefix.encode()) + self.number) % partitions

    @property
    def _prefix(self) -> str:
        return f"lw-{self.checkpoint}/{self.stage}/{self.topic}/"


_SLOT: Final = tuple(slot_field.name for slot_field in fields(Slot))


@dataclass(frozen=True, slots=True)
class SlotMark:
    """The mark of a slot: the last batch that it has published."""

    slot: Slot
    writer: str
    """The full name of the computation."""
    next: int
    """Number of the last published batch, plus 1."""
    digest: str
    """Digest of the batch's plan."""
    staged: str
    """Id of the batch's run that made the rows; another run may make other rows."""
    topic_id: str
    partitions: int
    """Number of partitions that the topic had."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """Offset after the last row that the slot has ever written, by partition."""

    def record(self) -> tuple[bytes, bytes]:
        """Return the key and the value of the mark's record."""
        return self.slot.key, _value(self, ends={str(partition): end for partition, end in sorted(self.ends.items())})


@dataclass(frozen=True, slots=True)
class Begun:
    """The record of a slot that has a new producer, or whose producer was ended.

    The record counts in an aborted transaction as well: it was true when it was written.
    """

    slot: Slot
    writer: str
    """The full name of the computation."""
    ended: bool = False
    """True when another checkpoint of the computation has ended the slot's open transaction, since
    no run continues the slot's own checkpoint."""
    life: int = 0
    """Incarnation of the computation that ended it; 0: unknown."""

    def record(self) -> tuple[bytes, bytes]:
        """Return the key and the value. A slot's end and its next beginning have two keys."""
        return self.slot.key + (_ENDED if self.ended else _BEGUN).encode(), _value(self)


def _value(mark: SlotMark | Begun, **converted: object) -> bytes:
    """Return a mark's fields as JSON, in their order, with those of its slot in front."""
    values = {own.name: getattr(mark, own.name) for own in fields(mark) if own.name != "slot"}
    return json.dumps({"format": _FORMAT, **asdict(mark.slot), **values, **converted}).encode()


def parse(key: bytes | None, value: bytes | None) -> SlotMark | Begun | None:
    """Return the content of a record of a topic of marks; None for a foreign record.

    Raises ValueError for a mark of a newer release, and for one that cannot be read.

    >>> mark = SlotMark(Slot("7f", ".", "t", 0), "default/a", 8, "d", "s", "id", 3, {2: 5})
    >>> begun = Begun(mark.slot, "default/a")
    >>> parse(*mark.record()) == mark, parse(*begun.record()) == begun, parse(b"k", b"1")
    (True, True, None)
    """
    try:
        content = json.loads(value or b"")
        slot, writer = Slot(*(content[name] for name in _SLOT)), content["writer"]
        written = content["format"]
    except (KeyError, TypeError, ValueError):
        return None
    if key not in (slot.key, *(slot.key + slot_field.encode() for slot_field in (_BEGUN, _ENDED))):
        return None
    if written != _FORMAT:
        msg = f"the mark of {slot.transactional_id} has format {written}, and this release reads {_FORMAT}. Use the release that wrote it, or a newer one."
        raise ValueError(msg)
    try:
        if key != slot.key:
            return Begun(slot, writer, content["ended"], int(content.get("life", 0)))
        ends = {int(partition): int(end) for partition, end in content["ends"].items()}
        place = same_id(content["topic_id"]), content["partitions"], ends
        return SlotMark(slot, writer, content["next"], content["digest"], content["staged"], *place)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = f"the mark of {slot.transactional_id} cannot be read: {error!r}. It is none of lowwater's; remove it by a null for its key"
        raise ValueError(msg) from error
