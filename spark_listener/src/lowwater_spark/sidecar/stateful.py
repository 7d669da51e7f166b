"""The stateful operators of a checkpoint, as the files below ``state/`` show them.

Since Spark 4.0 ``state/<n>/_metadata/metadata``, or the newest file of ``_metadata/v2``, names the
operator (read off PySpark 4.2). Spark 3.5 names none. There an operator is recognized by what
Spark itself writes for every state store, whichever provider keeps the rows (probed on 3.5.7):

* The names of the stores. A join of two streams has the four of :data:`_JOIN_STORES`, every other
  operator one, which has no folder of its own.
* ``_metadata/schema`` of partition 0: key and value of the store. A column under a watermark has
  its delay in its metadata there.

Spark writes a schema once, when an operator is new, before it loads the store. Batch N leaves
version N + 1 of each store of each operator of its plan, even if no row has changed. A store
without that version was not in the plan of batch N. It can be in no later plan either, because
Spark would have to load that version.

So a store that has a schema and no version at all is passed over: a new version of the query, which
failed before its first commit, has left it. A store that has versions, and not that of batch N, is
*abandoned*, and the query is refused.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.location import Location, numbers_in
from lowwater_spark.checkpoint.log import Plan

__all__ = [
    "AGGREGATIONS",
    "FUNCTIONS",
    "JOIN",
    "ON_ARRIVAL",
    "PROVIDERS",
    "SESSIONS",
    "WINDOWS",
    "WORDS",
    "StatefulOperator",
    "StoreSchema",
    "has_version",
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
"""Class of each provider that Spark ships, and the suffixes of its files that are named
``<version><suffix>``."""

_DELAY: Final = "spark.watermarkDelayMs"

_FUNCTION_FORMAT: Final = "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion"
"""Spark's setting of how a function's state is written. Format 2, of Spark 2.4 and newer, puts it
into the column ``groupState``. In format 1 it looks like the state of an aggregation."""

_ROCKSDB_FILES: Final = "SSTs"
"""Folder of a store's rows in RocksDB."""

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
            version, at = _read_text(content, 0)
            columns = []
            for _ in range(2):
                count, at = (1, at) if version == "v1" else (int.from_bytes(content[at : at + 4], "big"), at + 4)
                parts = []
                for _ in range(count):
                    part, at = _read_text(content, at)
                    parts.append(part)
                columns.append([_checked(column) for column in json.loads("".join(parts))["fields"]])
        except (AttributeError, KeyError, TypeError, ValueError):
            return None
        return cls(*columns) if version in {"v1", "v2"} and at == len(content) else None

    def __str__(self) -> str:
        key, value = (", ".join(str(column["name"]) for column in columns) for columns in (self.key, self.value))
        return f"key ({key}) and value ({value})"


def _checked(column: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a column. Raises KeyError, TypeError or AttributeError if it is none of Spark's."""
    _ = column["name"], column["type"], column.get("metadata", {}).keys()
    return column


def _read_text(content: bytes, at: int) -> tuple[str, int]:
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
    schemas: Mapping[str, StoreSchema | None]
    """Schema of each store of the newest plan; None if there is none that can be read. Empty for
    operators of :data:`ON_ARRIVAL` and :data:`FUNCTIONS` that Spark has named: their names are
    enough."""
    abandoned: Sequence[Location] = ()
    """Folders of stores that an earlier plan has written, and the newest has not."""

    def is_bounded(self) -> bool:
        """Return True if all rows that the operator holds are under a watermark."""
        if self.name == JOIN:
            stores = [self.schemas.get(f"{side}-keyWithIndexToValue") for side in ("left", "right")]
            return all(store is not None and _has_metadata(store.value, _DELAY) for store in stores)
        store = self.schemas.get(_DEFAULT)
        return store is not None and _has_metadata(store.value if self.name == SESSIONS else store.key, _DELAY)


def has_version(store: Location, version: int, provider: str) -> bool:
    """Return True if a state store has a version. ``provider`` is a key of :data:`PROVIDERS`.

    The files are looked up by their names: an NFS client may list a folder as it was before.
    """
    return any((store / f"{version}{suffix}").exists() for suffix in PROVIDERS[provider])


def operators(checkpoint: Location, plan: Plan | None) -> list[StatefulOperator]:
    """Return the stateful operators of a checkpoint, by number.

    ``plan`` is the newest committed batch; None before the first commit, when nothing is passed
    over. Raises OSError.
    """
    state = checkpoint / "state"
    found = (_operator(state / str(number), plan) for number in sorted(numbers_in(state)))
    return [operator for operator in found if operator is not None]


def word_of(name: str) -> str:
    """Return the word by which a declaration names an operator; the name if there is none.

    >>> word_of("stateStoreSave")
    'aggregation'
    """
    return next((word for word, names in WORDS.items() if name in names), name)


def _operator(folder: Location, plan: Plan | None) -> StatefulOperator | None:
    """Return the operator in a folder; None if the folder is passed over."""
    name = _name(folder)
    if name:
        names = frozenset[str]() if name in ON_ARRIVAL | FUNCTIONS else _JOIN_STORES if name == JOIN else {_DEFAULT}
        return StatefulOperator(folder, name, named=True, schemas=_schemas(_stores(folder, names)))
    stores = _stores(folder, {_DEFAULT} | _listed(folder))
    if plan is None or plan.state_stores not in PROVIDERS:
        schemas = _schemas(stores)
        # Before the first commit there are no settings, and nothing is reported.
        name = _recognized(schemas, "2" if plan is None else plan.settings.get(_FUNCTION_FORMAT, "1"))
        return StatefulOperator(folder, name, named=False, schemas=schemas)
    version, provider = plan.batch + 1, plan.state_stores
    if not has_version(stores[_DEFAULT], version, provider):
        # An NFS client may list a folder as it was before: the stores of a join are looked up.
        stores |= _stores(folder, _JOIN_STORES)
    current = {store: place for store, place in stores.items() if has_version(place, version, provider)}
    abandoned = [place for store, place in stores.items() if store not in current and _is_written(place)]
    if not current and not abandoned:
        return None
    schemas = dict.fromkeys(current) | _schemas(current)
    name = _recognized(schemas, plan.settings.get(_FUNCTION_FORMAT, "1"))
    return StatefulOperator(folder, name, named=False, schemas=schemas, abandoned=abandoned)


def _name(folder: Location) -> str:
    try:
        newest = max(numbers_in(folder / "_metadata" / "v2"), default=None)
        file = folder / "_metadata" / ("metadata" if newest is None else f"v2/{newest}")
        _, content = lines_of(file.read_bytes().decode())
        return str(json.loads(content)["operatorInfo"]["operatorName"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ""


def _stores(folder: Location, names: Collection[str]) -> dict[str, Location]:
    """Return the folder of each store in partition 0, the only one with schemas."""
    partition = folder / "0"
    return {name: partition if name == _DEFAULT else partition / name for name in sorted(names)}


def _listed(folder: Location) -> set[str]:
    """Return the names of the folders in partition 0 that stores may have."""
    # Files of versions have a dot in their names, and there may be hundreds.
    return {name for name in _names(folder / "0") if "." not in name} - {"_metadata", _ROCKSDB_FILES}


def _schemas(stores: Mapping[str, Location]) -> dict[str, StoreSchema | None]:
    """Return the schema of each store that has one; None for a schema that cannot be read."""
    schemas: dict[str, StoreSchema | None] = {}
    for store, place in stores.items():
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            schemas[store] = StoreSchema.parse((place / "_metadata" / "schema").read_bytes())
    return schemas


def _is_written(store: Location) -> bool:
    """Return True if a store has rows of any version. Names with a dot in front are temporary."""
    return any(name == _ROCKSDB_FILES or ("." in name and not name.startswith(".")) for name in _names(store))


def _names(folder: Location) -> list[str]:
    try:
        return [str(entry.name) for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _recognized(schemas: Mapping[str, StoreSchema | None], function_format: str) -> str:
    """Return Spark's name of the operator whose stores have these schemas; empty: unknown.

    The layouts are those of Spark 3.5.7. ``DataFrame.distinct()`` is a deduplication there. A
    function's value does not tell whether Scala or pandas runs it, and this name stands for both.
    """
    if None in schemas.values():
        return ""
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
    if key[-1:] == [("sessionStartTime", "timestamp")] and _has_metadata(store.value, "spark.sessionWindow"):
        return SESSIONS
    return WINDOWS if function_format == "2" and _has_metadata(store.key, _DELAY) else ""


def _has_metadata(columns: Sequence[Mapping[str, Any]], mark: str) -> bool:
    """Return whether the metadata of one of the columns has a mark.

    The metadata of a field inside a struct does not count: Spark looks for the watermark in
    top-level columns only.
    """
    return any(mark in column.get("metadata", {}) for column in columns)
