"""Layouts: the key ranges that an owner should claim, and the tasks that they should run in.

An operator, or a balancer, asks for a layout. It changes no claim, no value and no watermark: the
owner adopts it between two micro-batches, by a claim with other bounds. The version grows with
every change, across resets and drops too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout. Version 0 is empty: none was asked for."""

    version: int = 0
    starts: tuple[int, ...] = ()
    """First slot of each range; empty: the owner chooses the ranges."""
    tasks: tuple[int, ...] = ()
    """Task in which each range should run, counted from 1; 0: any task; empty: any, for all ranges.
    """

    def differs(self, reported: Layout) -> bool:
        """Return True when an owner reports another layout than this wanted one.

        Starts are compared too where both are known, because two layouts may have one version: a
        journal that was restored from a copy counts versions again.
        """
        if self.version != reported.version:
            return True
        return bool(self.starts and reported.starts) and self != reported


class Load(NamedTuple):
    """Cost of a key range in one micro-batch of its owner."""

    start: int
    end: int
    rows: int
    micros: int
    bytes: int
    parts: tuple[int, ...]
    """Rows in each of equal parts of the range."""
    heaviest: int
    """Rows of its heaviest key."""


@dataclass(frozen=True, slots=True)
class LayoutReport:
    """An owner's report of its layout, with a commit. In memory only: each commit has one."""

    layout: Layout
    """The owner's layout; without starts where the same claim has reported them before."""
    refused: str = ""
    """Reason why the owner does not follow the wanted layout; empty: none."""
    batch: int = 0
    loads: tuple[Load, ...] = ()
