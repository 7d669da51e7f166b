"""The table of the kinds of sources, and the two ways into it: a query's plan, and a declaration.

A kind is one class (:class:`~lowwater_spark.sources.base.Source`) and one line of :data:`KINDS`.
Its sources are then those of tracked stages, injectors, driven queries and sidecars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.control import DIRECTORY, ControlSource, is_control
from lowwater_spark.sources.files.source import FILES, SINK, FileSource
from lowwater_spark.sources.kafka.source import KAFKA, KafkaSource
from lowwater_spark.sources.opaque import OpaqueSource
from lowwater_spark.sources.tables.delta import DELTA, DeltaSource
from lowwater_spark.sources.tables.iceberg import ICEBERG, IcebergSource

if TYPE_CHECKING:
    from lowwater_spark.sources.base import Leaf, Line, Source

__all__ = ["KINDS", "guess", "kind_of", "source_of_leaf"]

KINDS: Final[dict[str, type[Source]]] = {
    FILES: FileSource,
    SINK: FileSource,
    DELTA: DeltaSource,
    ICEBERG: IcebergSource,  # before Kafka, because an Iceberg table may be named kafka
    KAFKA: KafkaSource,
}
"""Kinds by the word of a declaration. The first one that recognises a leaf of a plan gets it."""


def source_of_leaf(leaf: Leaf) -> Source:
    """Return the source of a leaf of a query's plan. Raises Unsupported."""
    if is_control(leaf.relation):
        return ControlSource(str(leaf.relation.extraOptions().get(DIRECTORY)))
    planned = (kind.planned(leaf) for kind in KINDS.values())
    return next((source for source in planned if source is not None), None) or OpaqueSource(leaf.format)


def kind_of(word: Any) -> type[Source]:
    """Return the kind of a declared source. Raises Unsupported for an unknown word."""
    if word in KINDS:
        return KINDS[word]
    raise Unsupported(
        f"a source of the kind {word!r}",
        "this release cannot tell where it ends",
        f"There are {', '.join(KINDS)}; begin a pipeline over others with lws.injector().",
    )


def guess(line: Line) -> str:
    """Return an example of a declaration for a line of Spark's offset log."""
    return next(filter(None, (kind.guess(line) for kind in KINDS.values())), "?")
