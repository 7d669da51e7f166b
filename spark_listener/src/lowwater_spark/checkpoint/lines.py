"""Lines of the files that Spark and its tables write: JSON, one value a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from lowwater_spark.checkpoint.location import Location

__all__ = ["last_lines", "lines_of"]

_BLOCK: Final = 1 << 16
"""Size of the first block that is read, in bytes. Each block is twice as large as the last, up to
:data:`_LARGEST`."""

_LARGEST: Final = 1 << 22


def lines_of(text: str) -> list[str]:
    r"""Return the lines of a text, split at ``\n`` alone; a last ``\n`` begins no empty line.

    ``str.splitlines`` also splits at U+0085, U+2028, U+2029 and five more characters, which JSON
    texts have unescaped. A row with one of them in a column would make a table's log unreadable for
    good.

    >>> lines_of("v1\n{}\n"), lines_of("one\u2028line"), lines_of("")
    (['v1', '{}'], ['one\u2028line'], [])
    """
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def last_lines(path: Location) -> Iterator[bytes]:
    """Yield the lines of a file backwards, the last one first.

    A caller that stops early reads no block before that. Raises FileNotFoundError.
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
        # ``first`` may be only the end of a line, whose beginning is in an earlier block. So it
        # waits in ``pieces`` until that block is read.
        first, *lines = read(start, end - start).split(b"\n")
        end, block = start, min(2 * block, _LARGEST)
        if not lines:
            pieces.append(first)
            continue
        yield b"".join([lines.pop(), *reversed(pieces)])
        yield from reversed(lines)
        pieces = [first]
    yield b"".join(reversed(pieces))
