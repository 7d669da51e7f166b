"""A path as Spark has it, in each of the forms in which Spark and its tables write it down.

Three texts name one directory, and each must be read by its own rule:

=====================  ==============================  ==========================================
form                   ``/data/a b%20c#1``             who writes it
=====================  ==============================  ==========================================
text of a Hadoop path  ``file:/data/a b%20c#1``        options, ``load``, ``save``,
                                                       ``Path.toString()``, Iceberg's locations
URI, escaped           ``file:/data/a%20b%2520c%231``  ``location()`` of a catalog's table, the
                                                       logs of file sources and sinks
local path             ``/data/a b%20c#1``             Python
=====================  ==============================  ==========================================

If a URI is taken for the text of a path, a directory with a blank becomes another directory: rows
are written there, and readers of the table never see them. If a text is unescaped, ``a%20b``
becomes ``a b``. So nothing else in this package escapes or unescapes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

__all__ = ["SparkPath"]

_KEPT: Final = "/:@!$&'()*,;=+~"
"""Characters that the path of a URI may have unescaped, beside letters, digits and ``-._``."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")

_PATTERN: Final = str.maketrans({mark: f"\\{mark}" for mark in "{}[]*?\\"})
"""Characters that Hadoop reads as a pattern, each with a backslash before it."""


@dataclass(frozen=True, slots=True)
class SparkPath:
    """A path with its file system. Nothing in it is escaped."""

    path: str
    """Path within the file system, from ``/`` on; a relative path has no slash before it."""
    scheme: str = ""
    """Scheme of the file system; empty: the session's default one."""
    authority: str = ""
    """Host and port, or bucket."""

    @classmethod
    def of_text(cls, text: str) -> SparkPath:
        """Return the path that Hadoop makes of a text, which unescapes nothing.

        >>> SparkPath.of_text("file:///data/a%20b#1").path, SparkPath.of_text("/data/a:b").scheme
        ('/data/a%20b#1', '')
        """
        scheme, authority, path = _parts(text)
        return cls(path, scheme, authority)

    @classmethod
    def of_uri(cls, uri: str) -> SparkPath:
        """Return the path that an escaped URI names.

        >>> SparkPath.of_uri("file:///data/a%20b%2520c.json").path
        '/data/a b%20c.json'
        """
        scheme, authority, path = _parts(uri)
        return cls(unquote(path), scheme, authority)

    @classmethod
    def of_local(cls, path: str | os.PathLike[str]) -> SparkPath:
        """Return a path of the local file system, whatever the session's default one is."""
        return cls(os.fspath(path), "file")

    @property
    def text(self) -> str:
        """Text that Spark and Hadoop take for this path, where they read no pattern.

        >>> SparkPath.of_local("/data/a b%20c#1").text, SparkPath("/t", "hdfs", "one:8020").text
        ('file:///data/a b%20c#1', 'hdfs://one:8020/t')
        """
        return f"{self.scheme}://{self.authority}{self.path}" if self.scheme else self.path

    @property
    def uri(self) -> str:
        """Escaped URI of this path.

        >>> SparkPath.of_local("/data/a b%20c#1").uri
        'file:///data/a%20b%2520c%231'
        """
        return SparkPath(quote(self.path, safe=_KEPT), self.scheme, self.authority).text

    @property
    def pattern(self) -> str:
        r"""Text for those who read patterns, as ``spark.read`` does: it names this path alone.

        >>> SparkPath("/data/a[1]").pattern
        '/data/a\\[1\\]'
        """
        return SparkPath(self.path.translate(_PATTERN), self.scheme, self.authority).text

    @property
    def local(self) -> Path | None:
        """Path in the local file system; None for a path of another one.

        A path without a scheme counts as local.
        """
        return Path(self.path) if self.scheme in ("", "file") else None

    @property
    def absolute(self) -> str:
        """Absolute path in the local file system; empty for any other path.

        Hadoop refuses a local URI with a host, such as ``file://data/in``.

        >>> SparkPath.of_text("file:/data/in").absolute, SparkPath.of_text("file://data/in").absolute
        ('/data/in', '')
        >>> SparkPath.of_text("hdfs://name/in").absolute, SparkPath.of_text("data/in").absolute
        ('', '')
        """
        is_local = self.scheme in ("", "file") and not self.authority and self.path.startswith("/")
        return self.path if is_local else ""

    def below(self, name: str) -> SparkPath:
        """Return the path that an escaped name in this directory leads to.

        A cloned table names the files of another table by whole URIs.

        >>> table = SparkPath("/data/t")
        >>> table.below("k=a%20b/1.parquet").path, table.below("file:/other/1.parquet").path
        ('/data/t/k=a b/1.parquet', '/other/1.parquet')
        >>> SparkPath("/data/t").below("k=10:00/1.parquet").path
        '/data/t/k=10:00/1.parquet'
        """
        target = SparkPath.of_uri(name)
        if target.scheme or target.path.startswith("/"):
            return target
        return SparkPath(f"{self.path.rstrip('/')}/{target.path}", self.scheme, self.authority)


def _parts(text: str) -> tuple[str, str, str]:
    """Return scheme, authority and path, as Hadoop splits a text.

    A colon after the first slash, or after a word that is no scheme, belongs to the path.
    """
    scheme, colon, rest = text.partition(":")
    if not colon or _SCHEME.fullmatch(scheme) is None:
        scheme, rest = "", text
    if not rest.startswith("//"):
        return scheme, "", rest
    authority, slash, path = rest[2:].partition("/")
    return scheme, authority, slash + path
