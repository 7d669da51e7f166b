"""Slices of a computation: their names, their keys, and the slices of a key range.

A slice is served like a computation of its own. Its name is that of the whole, "~" and a number
from 0. No name that a caller may register has a "~".
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from lowwater.core import checks
from lowwater.views import Computation, Slice, slice_of

__all__ = ["MAX_SLICES", "cut", "parts_of", "slice_keys", "slices_of"]

MAX_SLICES: Final = 1000
_MAX_KEY: Final = 1024
"""Most bytes of a slice's first key, and above the most slices, that the authority accepts."""


def slice_keys(slices: object) -> list[bytes]:
    """Return the first keys of all slices but the first. Raises InvalidArgument."""
    keys = [checks.key(f"slices[{i}]", key) for i, key in enumerate(checks.listed("slices", slices))]
    if len(keys) >= MAX_SLICES:
        raise checks.refused(
            "slices", f"{len(keys) + 1} slices", f"at most {MAX_SLICES - 1} keys, which cut {MAX_SLICES} slices"
        )
    for i, key in enumerate(keys):
        if not 0 < len(key) <= _MAX_KEY:
            fix = f"keys of 1 to {_MAX_KEY} bytes, at which the second slice begins, the third, and so on; the first begins at the lowest key"
            raise checks.refused(f"slices[{i}]", key, fix)
    for i, (previous, key) in enumerate(pairwise(keys), 1):
        if key <= previous:
            raise checks.refused(f"slices[{i}]", key, "keys in strictly ascending order")
    return keys


def cut(computation: Computation, others: Iterable[Computation]) -> tuple[Slice, ...]:
    """Return a computation's slices, found among others, by key; an uncut one is one slice."""
    slices = [one for one in others if one.slice_of == computation.name] or [computation]
    return tuple(
        Slice(one.name, one.slice_start, one.slice_end) for one in sorted(slices, key=lambda one: one.slice_start)
    )


def parts_of(slices: Iterable[Slice], start: bytes, end: bytes) -> list[Slice]:
    """Return the parts of ``[start, end)``, one per slice. An empty end has no upper bound."""
    parts: list[Slice] = []
    for part in slices:
        first = max(start, part.start)
        last = min(filter(None, (end, part.end)), default=b"")
        if not last or first < last:
            parts.append(Slice(part.name, first, last))
    return parts


def slices_of(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the slices among some computations by their whole, in the order of keys. O(names)."""
    by_root: dict[str, list[str]] = {}
    for name in names:
        root = slice_of(name)
        if root:
            by_root.setdefault(root, []).append(name)
    return {root: tuple(sorted(slices, key=_number)) for root, slices in by_root.items()}


def _number(name: str) -> int:
    return int(name.rpartition("~")[2])
