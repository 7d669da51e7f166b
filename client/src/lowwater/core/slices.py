"""Computations that are cut into slices: names, keys, and what lies where.

A slice is served like a computation of its own, under the name of the one that it is a slice of,
"~" and a number from 0. No name that anybody may register has a "~".
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
"""Bytes of the key where a slice begins. Both as the authority takes them."""


def slice_keys(slices: object) -> list[bytes]:
    """Return where slices but the first begin. Raises InvalidArgument."""
    keys = [checks.key(f"slices[{i}]", each) for i, each in enumerate(checks.listed("slices", slices))]
    if len(keys) >= MAX_SLICES:
        raise checks.refused(
            "slices", f"{len(keys) + 1} slices", f"at most {MAX_SLICES - 1} keys, which cut {MAX_SLICES} slices"
        )
    for i, each in enumerate(keys):
        if not 0 < len(each) <= _MAX_KEY:
            fix = f"keys of 1 to {_MAX_KEY} bytes, where the second slice begins and so on: the first begins at the first of all keys"
            raise checks.refused(f"slices[{i}]", each, fix)
    for i, (before, each) in enumerate(pairwise(keys), 1):
        if each <= before:
            raise checks.refused(f"slices[{i}]", each, "ascending keys, each once")
    return keys


def cut(computation: Computation, others: Iterable[Computation]) -> tuple[Slice, ...]:
    """Return the slices of a computation, which are among others, in the order of their keys; one that is not cut is one piece, under its own name."""
    slices = [each for each in others if each.slice_of == computation.name] or [computation]
    return tuple(
        Slice(each.name, each.slice_start, each.slice_end) for each in sorted(slices, key=lambda each: each.slice_start)
    )


def parts_of(slices: Iterable[Slice], start: bytes, end: bytes) -> list[Slice]:
    """Return what of ``[start, end)`` lies in which slice. An empty end has no upper bound."""
    found: list[Slice] = []
    for each in slices:
        first = max(start, each.start)
        last = min(filter(None, (end, each.end)), default=b"")
        if not last or first < last:
            found.append(Slice(each.name, first, last))
    return found


def slices_of(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the slices among some computations, by what they are slices of, in the order of their keys. O(names)."""
    found: dict[str, list[str]] = {}
    for name in names:
        root = slice_of(name)
        if root:
            found.setdefault(root, []).append(name)
    return {root: tuple(sorted(each, key=_number)) for root, each in found.items()}


def _number(name: str) -> int:
    return int(name.rpartition("~")[2])
