"""Lines of the files that Spark and its tables write: JSON, one value a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from lowwater_spark.checkpoint.location import Location

__all__ = ["last_lines", "lines_of"]

_BLOCK: Final = 1 << 16
"""Bytes that are read at a time at first; each block is twice as large as the one before it, up to
:data:`_LARGEST`."""

_LARGEST: Final = 1 << 22


def lines_of(text: str) -> list[str]:
    r"""Return the lines of a text: only ``\n`` ends one, and a text that ends with it has no empty line behind.

    ``str.splitlines`` also breaks at U+0085, U+2028, U+2029 and five more characters, which JSON has unescaped within its texts.
    A row with one of them in a column would make a table's log unreadable, for good.

    >>> lines_of("v1\n{}\n"), lines_of("one\u2028line"), lines_of("")
    (['v1', '{}'], ['one\u2028line'], [])
    """
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def last_lines(path: Location) -> Iterator[bytes]:
    """Yield the lines of a file from its end on, the last one first.

    Whoever needs the newest lines alone stops there: the lines before them are neither read nor
    held. Raises FileNotFoundError.
    """
    if isinstance(path, Path):
        with path.open("rb") as file:
            size = file.seek(0, 2)

            def read(start: int, length: int) -> bytes:
                file.seek(start)
                return file.read(length)

            yield from _backwards(size, read)
    else:
        yield from _backwards(path.size(), path.read_range)


def _backwards(end: int, read: Callable[[int, int], bytes]) -> Iterator[bytes]:
    block, pieces = _BLOCK, list[bytes]()
    while end > 0:
        start = max(0, end - block)
        # The first line of a block begins in an earlier one, unless a line feed stands right before
        # it.
        first, *lines = read(start, end - start).split(b"\n")
        end, block = start, min(2 * block, _LARGEST)
        if not lines:
            pieces.append(first)
            continue
        yield b"".join([lines.pop(), *reversed(pieces)])
        yield from reversed(lines)
        pieces = [first]
    yield b"".join(reversed(pieces))
