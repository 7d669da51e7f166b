"""The facts that a report follows from. What could not be found out is None or empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["UNKNOWN", "Checkpoint", "Facts", "Place", "Query", "Rung"]

UNKNOWN: Final = "unknown"
"""Version of a package that can be imported and was not installed, such as a zip on the path."""


@dataclass(frozen=True, slots=True)
class Place:
    """A Python process that has looked around: the one that asks, or a worker of an executor."""

    host: str
    python: str
    """Version of Python."""
    lowwater: str
    """Version of ``lowwater``; empty: it cannot be imported there."""
    listener: str
    """Version of ``lowwater-spark``; empty: it cannot be imported there."""
    problem: str = ""
    """Reason why the authority is not reached, and the fix; empty: it answers."""
    ahead: float | None = None
    """Seconds by which this clock is ahead of the authority's; None: not known."""
    within: float = 0.0
    """Greatest error of :attr:`ahead`, seconds: half of the round trip."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpointLocation as a sidecar would see it."""

    path: str
    store: str
    """Kind of its file system: a scheme such as ``s3a``, or a type such as ``ext4``."""
    refused: str = ""
    """Reason why a sidecar cannot track it, and the fix; empty: it can."""
    paste: str = ""
    """Declarations for ``queries.toml``, to fill in."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to have a query's watermark."""

    name: str
    gives: str
    """What it gives: "an estimate", "exact"."""
    refused: str = ""
    """Reason why it is not possible, and the fix; empty: it is possible."""
    paste: str = ""
    """Lines to fill in and paste."""


@dataclass(frozen=True, slots=True)
class Query:
    """A running query, as far as its session knows it."""

    name: str
    """Its name, else its id."""
    sources: tuple[str, ...] = ()
    """Spark's descriptions; empty before the first batch."""
    sink: str = ""
    trigger: str = ""
    checkpoint: str = ""
    """Its checkpointLocation."""
    store: str = ""
    """Kind of the checkpoint's file system, as in :class:`Checkpoint`."""
    rungs: tuple[Rung, ...] = ()
    """Empty: a stage tracks the query already."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was looked up."""

    here: Place
    address: str
    """Address of the authority."""
    pyspark: str = ""
    """Version of PySpark in this process; empty: there is none."""
    spark: str = ""
    """Version of the session's Spark; empty: no session was looked at."""
    session: str = ""
    """"classic", "Connect" or "unknown"; empty: no session was looked at."""
    platform: str = ""
    """Name of a platform with changes of its own to Spark; empty: none was recognized."""
    java: str = ""
    """Version of the Java of this process; empty: there is none, or it is not needed."""
    catalogs: Mapping[str, str] = field(default_factory=dict[str, str])
    """Class of each catalogue by its name."""
    executors: tuple[Place, ...] = ()
    """Workers of executors, one a host."""
    job: str = ""
    """Reason why the job that looks at the executors failed; empty: it ran, or was not wanted."""
    queries: tuple[Query, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
