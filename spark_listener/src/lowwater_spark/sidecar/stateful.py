"""The stateful operators of a checkpoint, as the files below ``state/`` show them.

Since Spark 4.0 ``state/<n>/_metadata/metadata``, or the newest file of ``_metadata/v2``, names the
operator (read off PySpark 4.2). Spark 3.5 names none. There an operator is recognized by what
Spark itself writes for every state store, whichever provider keeps the rows (probed on 3.5.7):

* The names of the stores. A join of two streams has the four of :data:`_JOIN_STORES`, every other
  operator one, which has no folder of its own.
* ``_metadata/schema`` of partition 0: key and value of the store. A column under a watermark has
  its delay in its metadata there.

Spark writes a schema once, when an operator is new. Batch N leaves version N + 1 of each store of
each operator of its plan, even if no row has changed. An operator without that version was not in
the plan of batch N.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.location import Location, numbers_in

__all__ = [
    "AGGREGATIONS",
    "FUNCTIONS",
    "JOIN",
    "ON_ARRIVAL",
    "PROVIDERS",
    "WINDOWS",
    "WORDS",
    "StatefulOperator",
    "operators",
    "word_of",
]

ON_ARRIVAL: Final = frozenset({"dedupe", "dedupeWithinWatermark", "globalLimit"})
"""Spark's names of operators that emit a row when it arrives, or never."""

WINDOWS: Final = "stateStoreSave"

SESSIONS: Final = "sessionWindowStateStoreSaveExec"

AGGREGATIONS: Final = frozenset({SESSIONS, WINDOWS})

FUNCTIONS: Final = frozenset(
    {
        "applyInPandasWithState",
        "flatMapGroupsWithState",
        "transformWithStateExec",
        "transformWithStateInPandasExec",
        "transformWithStateInPySparkExec",
    }
)

JOIN: Final = "symmetricHashJoin"

WORDS: Final[Mapping[str, frozenset[str]]] = {
    "aggregation": frozenset({WINDOWS}),
    "sessions": frozenset({SESSIONS}),
    "deduplication": frozenset({"dedupe"}),
    "deduplication-within-watermark": frozenset({"dedupeWithinWatermark"}),
    "join": frozenset({JOIN}),
    "function": FUNCTIONS,
    "limit": frozenset({"globalLimit"}),
}
"""The words by which a declaration names operators, and Spark's names of each."""

PROVIDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider": (".delta", ".snapshot"),
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider": (".changelog", ".zip"),
}
"""Spark's own providers of state stores, and how the files end that are named by their version."""

_DELAY: Final = "spark.watermarkDelayMs"

_DEFAULT: Final = "default"
"""Spark's name of the only store of an operator. It has no folder."""

_JOIN_STORES: Final = frozenset(
    f"{side}-{part}" for side in ("left", "right") for part in ("keyToNumValues", "keyWithIndexToValue")
)


@dataclass(frozen=True, slots=True)
class StoreSchema:
    """The columns of one state store, as Spark writes types in JSON."""

    key: Sequence[Mapping[str, Any]]
    value: Sequence[Mapping[str, Any]]

    @classmethod
    def parse(cls, content: bytes) -> StoreSchema | None:
        """Return the schema in a file of Spark's format v1 or v2; None for another content.

        The file has texts, each after its length in two bytes: the format, then key and value. In
        format v2 a number of four bytes before each says in how many texts it is.
        """
        try:
            version, at = _text(content, 0)
            columns = []
            for _ in range(2):
                count, at = (1, at) if version == "v1" else (int.from_bytes(content[at : at + 4], "big"), at + 4)
                parts = []
                for _ in range(count):
                    part, at = _text(content, at)
                    parts.append(part)
                columns.append(json.loads("".join(parts))["fields"])
        except (ValueError, KeyError, TypeError):
            return None
        return cls(*columns) if version in {"v1", "v2"} and at == len(content) else None

    def __str__(self) -> str:
        key, value = (", ".join(str(column["name"]) for column in columns) for columns in (self.key, self.value))
        return f"key ({key}) and value ({value})"


def _text(content: bytes, at: int) -> tuple[str, int]:
    """Return the text at a place of a file, and where it ends. Raises ValueError if it is cut."""
    end = at + 2 + int.from_bytes(content[at : at + 2], "big")
    if at + 2 > len(content) or end > len(content):
        msg = "the file ends in the middle of a text"
        raise ValueError(msg)
    # Java writes some characters otherwise than UTF-8 does. Only Spark's own names matter here.
    return content[at + 2 : end].decode(errors="replace"), end


@dataclass(frozen=True, slots=True)
class StatefulOperator:
    """One operator that keeps rows in state."""

    folder: Location
    """``state/<n>``."""
    name: str
    """Spark's name of the operator; empty if neither a name nor the schemas tell it."""
    named: bool
    """True: Spark has written the name. False: it is recognized by its schemas."""
    schemas: Mapping[str, StoreSchema]
    """Schema of each of its stores."""

    def is_bounded(self) -> bool:
        """Return True if all rows that the operator holds are under a watermark."""
        if self.name == JOIN:
            stores = [self.schemas.get(f"{side}-keyWithIndexToValue") for side in ("left", "right")]
            return all(store is not None and _has(store.value, _DELAY) for store in stores)
        store = self.schemas.get(_DEFAULT)
        return store is not None and _has(store.value if self.name == SESSIONS else store.key, _DELAY)

    def has_version(self, version: int, provider: str) -> bool:
        """Return True if each of its stores has a version, in partition 0.

        The files are looked up by their names: an NFS client may list a folder as it was before.
        """
        partition = self.folder / "0"
        stores = [partition if store == _DEFAULT else partition / store for store in self.schemas]
        return all(any((store / f"{version}{suffix}").exists() for suffix in PROVIDERS[provider]) for store in stores)


def operators(checkpoint: Location) -> list[StatefulOperator]:
    """Return the stateful operators of a checkpoint, by number. Raises OSError."""
    state = checkpoint / "state"
    return [_operator(state / str(number)) for number in sorted(numbers_in(state))]


def word_of(name: str) -> str:
    """Return the word by which a declaration names an operator; the name if there is none.

    >>> word_of("stateStoreSave")
    'aggregation'
    """
    return next((word for word, names in WORDS.items() if name in names), name)


def _operator(folder: Location) -> StatefulOperator:
    name = _name(folder)
    schemas = {} if name in ON_ARRIVAL | FUNCTIONS else _schemas(folder)
    return StatefulOperator(folder, name or _recognized(schemas), bool(name), schemas)


def _name(folder: Location) -> str:
    try:
        newest = max(numbers_in(folder / "_metadata" / "v2"), default=None)
        file = folder / "_metadata" / ("metadata" if newest is None else f"v2/{newest}")
        _, content = lines_of(file.read_bytes().decode())
        return str(json.loads(content)["operatorInfo"]["operatorName"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ""


def _schemas(folder: Location) -> dict[str, StoreSchema]:
    """Return an operator's schemas by store. Spark writes them in partition 0 alone."""
    partition = folder / "0"
    # Files of versions have a dot in their names, and there may be hundreds.
    stores = {_DEFAULT: partition, **{name: partition / name for name in _names(partition) if "." not in name}}
    schemas = {}
    for store, place in stores.items():
        schema = place / "_metadata" / "schema"
        if schema.exists() and (parsed := StoreSchema.parse(schema.read_bytes())) is not None:
            schemas[store] = parsed
    return schemas


def _names(folder: Location) -> list[str]:
    try:
        return [str(entry.name) for entry in folder.iterdir()]
    except FileNotFoundError:
        return []


def _recognized(schemas: Mapping[str, StoreSchema]) -> str:
    """Return Spark's name of the operator whose stores have these schemas; empty: unknown.

    The layouts are those of Spark 3.5.7. ``distinct()`` is a deduplication there. A function's
    value does not tell whether Scala or pandas runs it, and this name stands for both.
    """
    if schemas.keys() == _JOIN_STORES:
        return JOIN
    store = schemas.get(_DEFAULT)
    if store is None or len(schemas) > 1:
        return ""
    key, value = ([(column["name"], column["type"]) for column in columns] for columns in (store.key, store.value))
    if value == [("__dummy__", "void")]:
        return "dedupe"
    if value == [("expiresAtMicros", "long")]:
        return "dedupeWithinWatermark"
    if (key, value) == ([("key", "void")], [("value", "long")]):
        return "globalLimit"
    if value[:1] and value[0][0] == "groupState" and value[1:] in ([], [("timeoutTimestamp", "long")]):
        return "flatMapGroupsWithState"
    if key[-1:] == [("sessionStartTime", "timestamp")] and _has(store.value, "spark.sessionWindow"):
        return SESSIONS
    return WINDOWS if _has(store.key, _DELAY) else ""


def _has(columns: Sequence[Mapping[str, Any]], mark: str) -> bool:
    """Return whether the metadata of one of the columns has a mark.

    Fields in a struct do not count: Spark does not go by a watermark in theirs.
    """
    return any(mark in column.get("metadata", {}) for column in columns)
