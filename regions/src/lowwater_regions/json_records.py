"""References as JSON: the text that agents keep, and the journal records of older builds.

An agent stores the text of each reference in its folder, and enrols with it after the global store
was lost. The journal had such texts, too, before it had messages (format 1); they are still read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from lowwater_regions.change import Change, NewerFormat, Unread, checked, from_message, to_message
from lowwater_regions.reference import (
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

FORMAT: Final = 1

UNREADABLE: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Errors of reading a damaged text."""

_ROWS: Final[dict[str, Any]] = {
    "positions": Position,
    "sinks": Sink,
    "replicas": Replica,
    "holds": Hold,
    "write_offs": WriteOff,
    "broken": Broken,
}
"""Classes of the rows of each field; a row is a list without names."""


def encode(reference: Reference) -> str:
    """Return a reference as the text that an agent keeps."""
    return json.dumps(asdict(reference), separators=(",", ":"))


def decode(fields: Mapping[str, Any]) -> Reference:
    """Return the reference of a parsed text. Raises one of UNREADABLE."""
    values = _with_rows(dict(fields))
    values["inputs"], values["regions"] = tuple(values["inputs"]), tuple(values["regions"])
    if values["move"] is not None:
        values["move"] = Move(*values["move"])
    reference = Reference(**values)
    stored: Reference = from_message(to_message(reference))
    if encode(stored) != encode(reference):
        raise TypeError("a field has a value of another type")
    return checked(reference.name, stored)


def _with_rows(values: dict[str, Any]) -> dict[str, Any]:
    for name in _ROWS.keys() & values.keys():
        rows = [_ROWS[name](*row) for row in values[name]]
        values[name] = tuple(type(row)(**_with_rows(row._asdict())) for row in rows)
    return values


def reason_of(error: Exception) -> str:
    """Return why a text is unreadable, without half characters, which no message takes."""
    return f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()


def is_json(record: bytes) -> bool:
    """True when a journal record is of format 1. No message begins with a brace."""
    return record.startswith(b"{")


def decode_change(record: bytes) -> Change:
    """Return the change of a journal record of format 1. Raises as ``change.decode``."""
    fields = json.loads(record)
    if fields["format"] != FORMAT:
        raise NewerFormat(fields["format"])
    references: list[Reference] = []
    unread: dict[str, Unread] = {}
    for name, values in fields.get("put", {}).items():
        try:
            if isinstance(values, dict) and "unread" in values:
                raise ValueError(values["unread"])
            references.append(checked(name, decode(values)))
        except UNREADABLE as error:
            unread[name] = Unread(reason_of(error), json.dumps(values).encode())
    store: dict[str, Any] = fields.get("store", {})
    store = {key: tuple(value) if isinstance(value, list) else value for key, value in store.items()}
    return Change(
        put=tuple(references),
        forget={name: Tombstone(*values) for name, values in fields.get("forget", {}).items()},
        store=Store(**store) if store else None,
        unread=unread,
    )
