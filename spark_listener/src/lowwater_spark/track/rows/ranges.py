"""Key ranges of a hashed computation: equal parts of Spark's xxhash64.

A key's place is ``xxhash64(key)`` (seed 42) with the sign bit flipped, as 8 bytes, big-endian: the
order of the bytes is then the order of the signed hash. Part i of n starts at ``ceil(i * 2**64 /
n)``, so the part of a place u is ``floor(u * n / 2**64)``, in whole numbers and for any n. The
column and the bounds compute the same thing; a test compares them on hashes at the borders.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.columns import columns_of, quoted
from lowwater_spark.track.plan.operators import items, nodes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "KEY_HASH",
    "MAX_RANGES",
    "PLACES",
    "SIGN",
    "hash_range_column",
    "key_text",
    "key_zone",
    "place_bytes",
    "range_bounds",
    "range_column",
]

KEY_HASH: Final = "xxhash64"
"""Name of the hash function in the computation's registration."""

MAX_RANGES: Final = 65_536

PLACES: Final = 1 << 64
SIGN: Final = 1 << 63


def range_bounds(count: int) -> list[bytes]:
    """Return the ``count + 1`` bounds of equal ranges over the whole key space.

    The first is empty, the least key, and the last is empty, no upper bound: no key is left out.

    >>> [bound.hex() for bound in range_bounds(3)]
    ['', '5555555555555556', 'aaaaaaaaaaaaaaab', '']
    """
    if not 1 <= count <= MAX_RANGES:
        msg = f"ranges must be 1 to {MAX_RANGES}, not {count}"
        raise ValueError(msg)
    inner = [(-(-i * PLACES // count)).to_bytes(8, "big") for i in range(1, count)]
    return [b"", *inner, b""]


def place_bytes(xxhash64: int) -> bytes:
    """Return the place of a hash value, a signed 64-bit number of Spark's, as bytes."""
    return (xxhash64 + SIGN).to_bytes(8, "big")


def range_column(key: Sequence[str | Column], count: int) -> Column:
    """Return the handle, 0 to count - 1, of rows' keys: an integer column that the JVM computes."""
    from pyspark.sql import functions as sf

    return hash_range_column(sf.xxhash64(*key), count)


def key_text(frame: DataFrame, key: Sequence[str | Column]) -> str:
    """Return the definition of a key as SQL with types, independent of the columns' names.

    It is also independent of the frame's alias, except for a column whose name occurs twice in the
    frame. A user's function is represented by its name without its code, and a column by its name
    without its origin.
    """
    names = [name.lower() for name in frame.columns]
    parts = []
    for bare in _expressions(frame, key):
        sql = bare.sql()
        for column in items(bare.references().toSeq()):
            if names.count(column.name().lower()) == 1:
                sql = _unqualified(sql, column.sql(), column.name())
        parts.append(f"{sql} {bare.dataType().sql()}{_variables(bare)}")
    return ", ".join(parts)


def key_zone(frame: DataFrame, key: Sequence[str | Column]) -> str:
    """Return the session's time zone if a key depends on it, as an hour does; else empty."""
    zones = set()
    for node in itertools.chain.from_iterable(map(nodes, _expressions(frame, key))):
        loader = node.getClass().getClassLoader()
        aware = loader.loadClass("org.apache.spark.sql.catalyst.expressions.TimeZoneAwareExpression").isInstance(node)
        # Spark gives every Cast a time zone; needsTimeZone() says whether the cast depends on it.
        # If the others counted too, store.match() would refuse the state after a change of the
        # session's time zone, though the key is the same.
        if aware and (node.getClass().getSimpleName() != "Cast" or node.needsTimeZone()):
            zones.add(node.timeZoneId().get())
    return ", ".join(sorted(zones))


def _expressions(frame: DataFrame, key: Sequence[str | Column]) -> Iterator[Any]:
    """Yield the expressions of a key's columns, without their names."""
    for expression in items(frame.select(*columns_of(frame, key))._jdf.queryExecution().analyzed().projectList()):
        yield expression.child() if expression.getClass().getSimpleName() == "Alias" else expression


def _variables(expression: Any) -> str:
    """Return the order of lambda variables in an expression: its SQL has one name for all."""
    variables = [
        node.exprId().id() for node in nodes(expression) if node.getClass().getSimpleName() == "NamedLambdaVariable"
    ]
    numbers = {variable: str(number) for number, variable in enumerate(dict.fromkeys(variables))}
    return f" with variables {' '.join(numbers[variable] for variable in variables)}" if variables else ""


def _unqualified(sql: str, column: str, name: str) -> str:
    """Return SQL with a column as its bare name, but not within texts.

    >>> _unqualified("concat(r.key, 'r.key', r.key.part, x.r.key)", "r.key", "key")
    "concat(key, 'r.key', key.part, x.r.key)"
    """
    bare = quoted(name) if column.endswith(quoted(name)) else name
    return re.sub(
        rf"'(?:[^'\\]|\\.)*'|(?<![\w`.]){re.escape(column)}(?![\w`])",
        lambda match: match[0] if match[0].startswith("'") else bare,
        sql,
    )


def hash_range_column(xxhash64: Column, count: int) -> Column:
    """Return the handle of hash values.

    The product of two 64-bit numbers exceeds 64 bits, so the place is split: for u = high * 2**32 +
    low the handle is ``(high * count + (low * count >> 32)) >> 32``, which is exact because floors
    of whole divisions nest.
    """
    from pyspark.sql import functions as sf

    place = xxhash64.bitwiseXOR(sf.lit(-SIGN))
    low = place.bitwiseAND(sf.lit(0xFFFF_FFFF))
    carried = sf.shiftrightunsigned(low * sf.lit(count), 32)
    return sf.shiftrightunsigned(sf.shiftrightunsigned(place, 32) * sf.lit(count) + carried, 32).cast("int")
