"""A change of references, as a journal record and back.

A change is planned, appended to the journal, and only then applied, so that nothing is shown
before it is durable. A snapshot is a change that holds everything.

The messages have the names and fields of the classes in ``reference``. Each reference is written
as bytes of its own, so that one damaged record spoils no other reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from lowwater import errors
from lowwater_regions.records import references_pb2 as pb
from lowwater_regions.reference import (
    MOST_NUMBER,
    Broken,
    Hold,
    Move,
    Position,
    Reference,
    Replica,
    Sink,
    Store,
    Tombstone,
    WriteOff,
)

FORMAT: Final = 2
"""Format of the journal's records. Format 1 was JSON: see ``json_records``."""

_CLASSES: Final[dict[str, Any]] = {
    kind.__name__: kind for kind in (Broken, Hold, Move, Position, Reference, Replica, Sink, Store, WriteOff)
}
"""Classes by the name of their message."""


class NewerFormat(ValueError):
    """A record of a newer release, which this one must not guess at."""

    def __init__(self, number: int) -> None:
        super().__init__(f"format {number}")
        self.number = number


class Unread(NamedTuple):
    """A stored record that cannot be read."""

    reason: str
    record: bytes
    """The bytes as they were found, for inspection."""


@dataclass(frozen=True, slots=True)
class Change:
    """Records to be written, all or nothing, and the refusals beside them.

    A change without anything to write is only an answer.
    """

    put: tuple[Reference, ...] = ()
    forget: Mapping[str, Tombstone] = field(default_factory=dict)
    store: Store | None = None
    unread: Mapping[str, Unread] = field(default_factory=dict)
    """Unreadable records by reference. They are written down too: a name that is missing could be
    registered anew, by a number that is in use."""
    refused: Mapping[str, errors.LowwaterError] = field(default_factory=dict)
    """Refusals by reference. They leave the rest of the request alone."""
    raises: errors.LowwaterError | None = None
    """Error to be raised after the change is written: the store has turned out to be old."""

    @property
    def empty(self) -> bool:
        """True when there is nothing to write."""
        return not self.put and not self.forget and self.store is None and not self.unread

    def encode(self) -> bytes:
        """Return the change as a journal record."""
        references = [
            pb.StoredReference(name=name, record=unread.record, damage=unread.reason)
            for name, unread in self.unread.items()
        ]
        references += [
            pb.StoredReference(name=reference.name, record=to_message(reference).SerializeToString())
            for reference in self.put
        ]
        forgotten = [
            pb.Tombstone(name=name, number=tombstone.number, incarnation=tombstone.incarnation)
            for name, tombstone in self.forget.items()
        ]
        store = None if self.store is None else to_message(self.store)
        change = pb.Change(format=FORMAT, references=references, forgotten=forgotten, store=store)
        return change.SerializeToString()


def decode(record: bytes) -> Change:
    """Return the change that a journal record holds.

    A reference that cannot be read is among ``unread``. Raises NewerFormat, and ValueError when the
    whole record cannot be read.
    """
    try:
        message = pb.Change.FromString(record)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    if message.format > FORMAT:
        raise NewerFormat(message.format)
    if message.format != FORMAT:
        raise ValueError(f"it has format {message.format}, and the oldest of these messages is {FORMAT}")
    references: list[Reference] = []
    unread: dict[str, Unread] = {}
    for stored in message.references:
        if stored.damage:
            unread[stored.name] = Unread(stored.damage, stored.record)
            continue
        try:
            references.append(checked(stored.name, from_message(pb.Reference.FromString(stored.record))))
        except (ValueError, DecodeError) as error:
            unread[stored.name] = Unread(f"{type(error).__name__}: {error}", stored.record)
    return Change(
        put=tuple(references),
        forget={old.name: Tombstone(old.number, old.incarnation) for old in message.forgotten},
        store=from_message(message.store) if message.HasField("store") else None,
        unread=unread,
    )


def checked(name: str, reference: Reference) -> Reference:
    """Return a reference that was read under a name. Raises ValueError when it is another one."""
    if reference.name != name:
        raise ValueError(f"the record is of {reference.name}")
    if not (0 < reference.number < MOST_NUMBER and 0 < reference.incarnation < MOST_NUMBER):
        raise ValueError("a number is out of range")
    return reference


def to_message(value: Any) -> Any:
    """Return the message of a value. Raises TypeError or ValueError for a field of a wrong type."""
    kind = getattr(pb, type(value).__name__)
    return kind(**{name: _to_field(getattr(value, name)) for name in kind.DESCRIPTOR.fields_by_name})


def _to_field(value: Any) -> Any:
    if type(value).__name__ in _CLASSES:
        return to_message(value)
    return [_to_field(item) for item in value] if isinstance(value, tuple) else value


def from_message(message: Message) -> Any:
    """Return the value of a message."""
    names = message.DESCRIPTOR.fields_by_name
    return _CLASSES[message.DESCRIPTOR.name](**{name: _from_field(message, name) for name in names})


def _from_field(message: Message, name: str) -> Any:
    value = getattr(message, name)
    if isinstance(value, Message):
        return from_message(value) if message.HasField(name) else None
    if isinstance(value, (str, int)):
        return value
    return tuple(from_message(item) if isinstance(item, Message) else item for item in value)
