"""The columns of a DDL schema, without Spark, to find a wrong name before anything starts."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["columns_of"]

_COLUMN = re.compile(r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>[^\s:`]+))\s*:?\s*(?P<type>.*)", re.DOTALL)
_AFTER_TYPE = re.compile(r"\s+(?:not\s+null|comment\s|default\s|collate\s).*", re.DOTALL)


def columns_of(schema: str) -> dict[str, str]:
    """Return the columns of a schema with their types, in lower case: Spark ignores case.

    >>> columns_of("Query string, `start` timestamp NOT NULL, at: struct<x: int, y: decimal(3,1)>")
    {'query': 'string', 'start': 'timestamp', 'at': 'struct<x: int, y: decimal(3,1)>'}
    """
    columns: dict[str, str] = {}
    for column in _split(schema):
        match = _COLUMN.fullmatch(column)
        if match is not None:
            name = match["plain"] if match["quoted"] is None else match["quoted"].replace("``", "`")
            columns[name.lower()] = _AFTER_TYPE.sub("", match["type"].lower()).strip()
    return columns


def _split(schema: str) -> Iterator[str]:
    """Yield the texts between commas that are outside of brackets and quotes."""
    depth, quoted, begin = 0, "", 0
    for at, letter in enumerate(schema):
        if quoted:
            quoted = "" if letter == quoted else quoted
        elif letter in "`'\"":
            quoted = letter
        elif letter in "<(":
            depth += 1
        elif letter in ">)":
            depth -= 1
        elif letter == "," and depth == 0:
            yield schema[begin:at]
            begin = at + 1
    yield schema[begin:]
