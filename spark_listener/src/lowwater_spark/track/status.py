"""How a tracked query stands, for people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import lowwater
from lowwater.core.text import on_one_line, without_secrets
from lowwater_spark.track.cut import Cut

__all__ = ["KeyRange", "Status", "first_line", "in_short"]

_MOST: Final = 200
"""Bytes of UTF-8 that the authority takes of what a worker waits for."""

_LEADING_FOLDERS: Final = re.compile(r"\S*/(?=[^\s/]+/[^\s/]+)")
"""All of a path but its last two names, which say most."""

_SPARKS_OWN: Final = re.compile(r"^\[STREAM_FAILED\] .*? terminated with exception: ")
"""What Spark puts before the error that ended a query."""


def in_short(waiting_for: Sequence[str]) -> str:
    """Return what a stage waits for as the authority takes it: the first of it, shortened if it is too long.

    >>> in_short([]), in_short(["/in/a.json"]), in_short(["/in/a.json", "/in/b.json"])
    ('', '/in/a.json', '/in/a.json, and 1 more')
    """
    if not any(waiting_for):
        return ""
    first = on_one_line(waiting_for[0])
    more = f", and {len(waiting_for) - 1} more" if waiting_for[1:] else ""
    room = _MOST - len(more)
    if len(first.encode()) > room:
        first = _LEADING_FOLDERS.sub(".../", first)
    said = first.encode()
    if len(said) > room:
        # A path stands at the beginning, and the reason behind it.
        head = said[: room // 3]
        first = f"{head.decode(errors='ignore')}...{said[len(head) + 3 - room :].decode(errors='ignore')}"
    return first + more


def first_line(failure: BaseException | None) -> str:
    r"""Return the first line of an error without its secrets, for people; empty for no error.

    The line of Spark's own error is returned without the ids of the query before it.

    >>> first_line(None), first_line(OSError("no space left")), first_line(KeyError())
    ('', 'no space left', 'KeyError')
    >>> first_line(ValueError("[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [SCHEMA] no\nat"))
    '[SCHEMA] no'
    >>> first_line(OSError("jdbc:postgresql://etl:pass@db/x does not answer"))
    'jdbc:postgresql://***@db/x does not answer'
    """
    if failure is None:
        return ""
    line = _SPARKS_OWN.sub("", str(failure)).strip().partition("\n")[0]
    return without_secrets(line) or type(failure).__name__


@dataclass(frozen=True, slots=True)
class KeyRange:
    """One key range of a stage."""

    handle: int
    """Its number, from 0."""
    start: bytes
    end: bytes
    """The first key that is not in it; empty: it has no upper bound."""

    @classmethod
    def of(cls, handle: int, cut: Cut) -> Self:
        """Return one of the ranges of a cut.

        >>> str(KeyRange.of(1, Cut(3)))
        '1 [5555555555555556, aaaaaaaaaaaaaaab)'
        """
        bounds = cut.bounds
        return cls(handle, bounds[handle], bounds[handle + 1])

    def __str__(self) -> str:
        """Return its handle and its bounds."""
        return f"{self.handle} [{self.start.hex()}, {self.end.hex()})"


@dataclass(frozen=True, slots=True)
class Status:
    """How a tracked query stands. A snapshot."""

    batch: int | None
    """The last committed batch; None before the first."""
    low: lowwater.Watermark
    """The input low watermark (of an injector: the frontier) that the committed batches have
    reached."""
    reported: lowwater.Watermark
    """The least of what the key ranges report."""
    holding: str
    """Why the stage reports nothing new at the moment; empty when it does."""
    waiting_for: tuple[str, ...]
    """Files that stood in a source when a newer watermark was read and that no committed batch has
    taken yet; a few of them. Where waiting does not help, with the reason: written again after it
    was read, too old for maxFileAge, or the mark of a writer that the inputs do not name. And what
    holds the stage by itself: rows that no broker has acknowledged, parts of an injector's source.
    """
    late_rows: int
    """Rows of this run that were below what the inputs had promised before, or below what an
    injector has declared of its source: broken promises."""
    late_example: str
    """The oldest of them: its batch and event time."""
    ticks: int
    """Empty batches that this run has asked for."""
    untimed_rows: int = 0
    """Rows of this run that had no event time: they hold no watermark, and are in no window. Of a
    driven query that is told by batches, those are counted that Spark has read: each once for each
    action of the function on its batch."""
    late_range: KeyRange | None = None
    """The key range of the oldest late row; None without one, and where it is not known."""
    dropped_rows: int = 0
    """Rows that Spark's own operators have dropped in this run, for being below Spark's own
    watermark. Of a query with withWatermark."""
    removed_batches: int = 0
    """Batches that this run has removed the files of (``keep`` of ``batch.write``), of all stages
    of the query."""
    removed_bytes: int = 0
    """Bytes of those files."""
    removal_held_back: float = 0.0
    """Seconds for which a batch has been kept beyond ``keep`` because a reader has not read it: the
    oldest such batch of all outputs. 0.0: there was none at the last write."""
    remembered_files: int = 0
    """Files that the sources of the query have read and whose names are kept: those that are there,
    as many again, and 1,000 a source."""
    ahead_rows: int = 0
    """Rows of this run that were too far ahead of the driver's clock, and do not move the frontier:
    of an injector with ``disorder``."""
    ahead_example: str = ""
    """The newest of them: its event time, partition or producer, offset and batch."""
    unsent_rows: int = 0
    """Rows that tasks have sent and that no broker has acknowledged yet: they are in the state, are
    sent again, and the low watermark does not pass them. Of a computation with weak productions;
    ``waiting_for`` names the topic."""
    unsent_since: float | None = None
    """The clock of the batch that has produced the first of them, seconds since the epoch; None
    without any, and where it is not known."""
    unsent_oldest: lowwater.Watermark | None = None
    """The oldest of their timestamps, which holds the low watermark; None without any."""
